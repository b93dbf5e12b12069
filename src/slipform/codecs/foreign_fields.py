"""Translate other servers' schema fields into those of the OpenAI API that was called.

vLLM, llama.cpp, Ollama, Together, Cohere, OpenAI's Responses API and its older API each have a different field for a
JSON Schema. `read_foreign` moves that schema to where `serve_decode` looks for it, removes the foreign field, and names
what was lost; two different schemas are refused, with the names of both fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from slipform.codecs.request_fields import Fields, mapping, text
from slipform.errors import RequestError
from slipform.ir import ModelWarning
from slipform.text.strict import parse

_FIELDS: Final = frozenset(
    {"guided_json", "guided_choice", "structured_outputs", "json_schema", "format", "functions", "function_call"}
)
GRAMMARS: Final = ("guided_regex", "guided_grammar", "grammar")
"""Fields with a grammar that is not a schema: only the server they are written for supports them."""
_VLLM_GRAMMARS: Final = ("regex", "grammar", "structural_tag")
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_KEYWORDS: Final = frozenset({"properties", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "items", "$defs"})
_NAME: Final = "answer"


class ForeignReading(NamedTuple):
    """A request without foreign fields, the losses, and how its answer must be written."""

    data: dict[str, Any]
    warnings: tuple[ModelWarning, ...] = ()
    options: Mapping[str, bool] = {}
    """`functions`: calls are returned as `function_call`; `bare_text`: a JSON string is returned as the text it
    contains."""


class _Shape(NamedTuple):
    """The shape that one field requests: a schema under a name, or any JSON object (`schema` is None)."""

    where: str
    schema: Mapping[str, Any] | None
    name: str = _NAME
    strict: Any = None
    is_own: bool = False
    """Whether it is where the API's own reader looks for it, and stays there."""


def read_foreign(api: str, data: dict[str, Any]) -> ForeignReading | None:
    """Return a request of Chat Completions, Completions or Responses in that API's own fields; None if it already is.

    >>> read = read_foreign("openai-chat", {"model": "m", "guided_json": '{"type": "integer"}'})
    >>> read.data["response_format"]["json_schema"]["schema"]
    {'type': 'integer'}
    """
    response_format = data.get("response_format")
    is_own = response_format is None or (api != "openai-responses" and _is_own(response_format))
    has_foreign = not _FIELDS.isdisjoint(data) or (api != "openai-responses" and _text_format(data) is not None)
    if is_own and not has_foreign and not ("tool_choice" in data and _is_without_tools(data)):
        return None
    reading = _Reader(api, data)
    return reading.read()


def is_schema(value: Any) -> bool:
    """Return whether a value is a JSON Schema, as opposed to the description of a format.

    >>> is_schema({"type": "object"}), is_schema({"type": "json_object"}), is_schema({"anyOf": []})
    (True, False, True)
    """
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    if isinstance(kind, list):
        return True
    if kind is None:
        return not _KEYWORDS.isdisjoint(value)
    return isinstance(kind, str) and kind in _TYPES


def grammar_field(data: Mapping[str, Any]) -> str | None:
    """Return the field of a request that contains a grammar instead of a schema, if there is one.

    >>> grammar_field({"structured_outputs": {"regex": "a+"}})
    'structured_outputs.regex'
    """
    outputs = data.get("structured_outputs")
    if isinstance(outputs, Mapping):
        grammar_name = next((name for name in _VLLM_GRAMMARS if outputs.get(name) is not None), None)
        if grammar_name is not None:
            return f"structured_outputs.{grammar_name}"
    return next((name for name in GRAMMARS if data.get(name) is not None), None)


def _text_format(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the shape that a request asks for in the field of the Responses API."""
    text_options = data.get("text")
    text_format = None
    if isinstance(text_options, Mapping):
        text_format = text_options.get("format")
    is_shape = isinstance(text_format, Mapping) and text_format.get("type") in ("json_schema", "json_object")
    return text_format if is_shape else None


def _is_own(response_format: Any) -> bool:
    """Return whether a `response_format` is in OpenAI's form, or cannot be understood in another way."""
    if not isinstance(response_format, Mapping):
        return True
    kind = response_format.get("type")
    if kind == "json_schema":
        inner = response_format.get("json_schema")
        return response_format.get("schema") is None and not is_schema(inner)
    if kind == "json_object":
        return response_format.get("schema") is None and response_format.get("json_schema") is None
    return not is_schema(response_format)


def _is_without_tools(data: Mapping[str, Any]) -> bool:
    return data["tool_choice"] is not None and not data.get("tools") and not data.get("functions")


class _Reader:
    """Reads one request."""

    def __init__(self, api: str, data: dict[str, Any]) -> None:
        self._api = api
        self._data = dict(data)
        self._warnings: list[ModelWarning] = []
        self._options: dict[str, bool] = {}

    def read(self) -> ForeignReading:
        """Return the request with one schema, in the API's own field. Raises `RequestError` for several different ones.

        Raises `RequestError` for several different ones.
        """
        every = [*self._own_shapes(), *self._foreign_shapes()]
        shapes = [shape for shape in every if shape.schema is not None] or every
        for other in shapes[1:]:
            if other.schema != shapes[0].schema:
                raise RequestError(
                    f"`{shapes[0].where}` and `{other.where}` ask for different answers",
                    where=other.where,
                    hint="Send one schema.",
                )
        if shapes and not shapes[0].is_own:
            self._put(shapes[0])
        if self._api == "openai-chat":
            self._read_functions()
        data = self._data
        is_without = "tool_choice" in data and _is_without_tools(data)
        if is_without and data.pop("tool_choice") not in ("auto", "none"):
            self._warn("tool_choice", "The request has no tools to choose: it was left out.")
        return ForeignReading(data, tuple(self._warnings), self._options)

    def _warn(self, path: str, message: str) -> None:
        self._warnings.append(ModelWarning("foreign_field", message, path))

    def _own_shapes(self) -> Iterator[_Shape]:
        """Return the shape in the API's own field, and in the other API's; unknown forms stay, for the API's reader."""
        data = self._data
        where = "response_format"
        response_format = data.get(where)
        if self._api == "openai-responses":
            text_options = data.get("text")
            inner = None
            if isinstance(text_options, Mapping):
                inner = text_options.get("format")
            if isinstance(inner, Mapping) and inner.get("type") == "json_schema":
                yield _Shape("text.format", mapping(inner.get("schema"), "text.format.schema"), is_own=True)
        elif isinstance(response_format, Mapping) and _is_own(response_format):
            if response_format.get("type") == "json_schema" and isinstance(response_format.get("json_schema"), Mapping):
                yield _Shape(f"{where}.json_schema.schema", response_format["json_schema"].get("schema"), is_own=True)
            return
        if not isinstance(response_format, Mapping):
            return
        kind = response_format.get("type")
        schema = response_format.get("schema")
        named = response_format.get("json_schema")
        if is_schema(response_format):
            self._warn(where, "It is a schema itself; it was read as {type: json_schema, json_schema: {schema: …}}.")
            yield _Shape(where, response_format)
        elif kind in ("json_object", "json_schema") and schema is not None:
            yield _Shape(f"{where}.schema", mapping(schema, f"{where}.schema"), strict=response_format.get("strict"))
        elif kind in ("json_object", "json_schema") and named is not None:
            yield _named(named, f"{where}.json_schema")
        elif kind == "json_object":
            yield _Shape(where, None)
        elif kind != "text":
            return
        del data[where]

    def _foreign_shapes(self) -> Iterator[_Shape]:
        """Yield the schemas in fields of other servers, and remove those fields."""
        data = self._data
        if data.get("guided_json") is not None:
            yield _Shape("guided_json", _document(data["guided_json"], "guided_json"))
        if data.get("guided_choice") is not None:
            yield self._choice(data["guided_choice"], "guided_choice")
        for name in ("guided_json", "guided_choice"):
            data.pop(name, None)
        if isinstance(data.get("structured_outputs"), Mapping):
            yield from self._vllm_shapes(data["structured_outputs"])
        if data.get("json_schema") is not None:
            yield _named(data["json_schema"], "json_schema")
        data.pop("json_schema", None)
        form = data.get("format")
        if form == "json" or isinstance(form, Mapping):
            yield _Shape("format", None if form == "json" else form)
            del data["format"]

        if self._api != "openai-responses" and (responses_format := _text_format(data)) is not None:
            yield self._responses_shape(responses_format)

    def _responses_shape(self, text_format: Mapping[str, Any]) -> _Shape:
        """Return the shape in the field of the Responses API."""
        rest = {name: value for name, value in self._data.pop("text").items() if name != "format"}
        if rest:
            self._data["text"] = rest
        if text_format["type"] == "json_object":
            return _Shape("text.format", None)
        schema = mapping(text_format.get("schema"), "text.format.schema")
        name = text(text_format.get("name") or _NAME, "text.format.name")
        return _Shape("text.format.schema", schema, name, text_format.get("strict"))

    def _vllm_shapes(self, outputs: Mapping[str, Any]) -> Iterator[_Shape]:
        """Yield the schemas in vLLM's `structured_outputs`, and remove that field."""
        where = "structured_outputs"
        read = False
        if outputs.get("json") is not None:
            read = True
            yield _Shape(f"{where}.json", _document(outputs["json"], f"{where}.json"))
        if outputs.get("choice") is not None:
            read = True
            yield self._choice(outputs["choice"], f"{where}.choice")
        if outputs.get("json_object") is True:
            read = True
            yield _Shape(f"{where}.json_object", None)
        if not read:
            return
        self._data.pop(where)
        for name, value in outputs.items():
            if name not in ("json", "choice", "json_object") and value not in (None, False):
                self._warn(f"{where}.{name}", "It was left out: the schema is asked for in another way.")

    def _choice(self, value: Any, where: str) -> _Shape:
        """Return a schema for one of several words, which vLLM writes without the quotes of JSON."""
        if not isinstance(value, list) or not value:
            raise RequestError("Expected an array of strings", where=where)
        words = [text(word, f"{where}[{at}]") for at, word in enumerate(value)]
        self._options["bare_text"] = True
        return _Shape(where, {"type": "string", "enum": words})

    def _put(self, shape: _Shape) -> None:
        """Write the shape to the field where the API's own reader looks for it."""
        if shape.schema is None:
            response_format: dict[str, Any] = {"type": "json_object"}
        else:
            spec = {"name": shape.name, "schema": shape.schema}
            if shape.strict is not None:
                spec["strict"] = shape.strict
            is_flat = self._api == "openai-responses"
            # Not strict unless the client says so: Responses would default to strict.
            response_format = {"type": "json_schema", "strict": False, **spec} if is_flat else {"type": "json_schema"}
            if not is_flat:
                response_format["json_schema"] = spec
        if self._api == "openai-responses":
            self._data["text"] = {**mapping(self._data.get("text"), "text"), "format": response_format}
        else:
            self._data["response_format"] = response_format

    def _read_functions(self) -> None:
        """Turn OpenAI's `functions` and `function_call`, its fields until 2023, into tools."""
        data = self._data
        functions = data.pop("functions", None)
        choice = data.pop("function_call", None)
        if not functions:
            if choice not in (None, "auto", "none"):
                self._warn("function_call", "The request has no functions to call: it was left out.")
            return
        if data.get("tools"):
            raise RequestError(
                "`functions` and `tools` are both there", where="functions", hint="Send the functions as tools."
            )
        named = [Fields(each, f"functions[{at}]") for at, each in enumerate(Fields(data | {"f": functions}).items("f"))]
        data["tools"] = [{"type": "function", "function": each.data} for each in named]
        if isinstance(choice, Mapping):
            name = Fields(choice, "function_call").text("name")
            data["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif choice is not None:
            data["tool_choice"] = choice
        data["parallel_tool_calls"] = False  # an answer has one `function_call`
        if isinstance(data.get("messages"), list):
            data["messages"] = _with_tool_calls(data["messages"])
        self._options["functions"] = True


def _named(value: Any, where: str) -> _Shape:
    """Return a schema and its name, from a bare schema or OpenAI's form."""
    value = _document(value, where)
    if is_schema(value) or not isinstance(value.get("schema"), Mapping):
        return _Shape(where, value)
    name = value.get("name")
    return _Shape(where, value["schema"], name if isinstance(name, str) else _NAME, value.get("strict"))


def _document(value: Any, where: str) -> Mapping[str, Any]:
    """Return a schema from itself or from its JSON text."""
    if isinstance(value, str):
        try:
            value = parse(value)
        except ValueError as error:
            raise RequestError(f"The schema is not JSON: {error}", where=where) from error
    return mapping(value, where)


def _with_tool_calls(turns: list[Any]) -> list[Any]:
    """Return the turns with every `function_call` as a tool call; the next result of that function belongs to it."""
    rewritten: list[Any] = []
    waiting: dict[str, list[str]] = {}
    for at, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            rewritten.append(turn)
        elif isinstance(turn.get("function_call"), Mapping):
            call = turn["function_call"]
            name = str(call.get("name"))
            identity = f"call_{at}"
            waiting.setdefault(name, []).append(identity)
            rest = {key: value for key, value in turn.items() if key != "function_call"}
            rewritten.append({**rest, "tool_calls": [{"id": identity, "type": "function", "function": call}]})
        elif turn.get("role") == "function":
            calls = waiting.get(str(turn.get("name")))
            identity = calls.pop(0) if calls else str(turn.get("name"))
            rewritten.append({**turn, "role": "tool", "tool_call_id": identity})
        else:
            rewritten.append(turn)
    return rewritten

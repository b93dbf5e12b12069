"""Read the fields of a client's request, naming each mistake, and write them to a vendor, naming each loss.

Every field of a client is carried, renamed by a table, recorded as lost, or refused. `Fields` reads one object of a
request, refuses invalid fields, and keeps the unread ones; `Encoding` writes: `sampling` renames, `carry`, `own_part`
and `add_extra` carry fields that only one vendor understands, and everything else that the wire cannot carry goes
through `lose`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

import orjson

from slipform.errors import ConfigError, RequestError, UpstreamError
from slipform.ir import (
    RESERVED_TOOL,
    LossyEncode,
    Media,
    Message,
    ModelRequest,
    ModelWarning,
    NamedTool,
    Opaque,
    Reasoning,
    Sampling,
    Tool,
    ToolChoice,
    ToolResult,
)
from slipform.ir.request import NO_SAMPLING
from slipform.schema import OutputStrategy, ResponseFormat
from slipform.schema.lowering.dialects import OpenObjects
from slipform.schema.python_types import cached_format
from slipform.schema.shape import plain_mapping
from slipform.text.strict import parse

if TYPE_CHECKING:
    from slipform.codecs.schema_channel import SchemaChannel

_LARGEST = 2**63
CACHE_MARK: Final = "cache_control"
"""The field with which Anthropic's API marks the end of what is to be cached."""
UNDELIVERABLE: Final = "undeliverable"
"""The category of an error about content that one vendor's API cannot carry, but another's may."""
SAMPLING = tuple(each.name for each in fields(Sampling))
"""The names of the sampling fields in the IR."""


def read_body(body: bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return the request's body as a JSON object."""
    if isinstance(body, dict):
        return body
    if isinstance(body, Mapping):
        return dict(body)
    try:
        data = parse(body)
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}", hint="Send a JSON object.") from error
    if not isinstance(data, dict):
        raise RequestError("The body is not a JSON object", hint="Send a JSON object.")
    return data


def wrong(where: str, expected: str, value: Any) -> RequestError:
    """Return the error for a field of the wrong type."""
    return RequestError(f"Expected {expected}, found {type(value).__name__}", where=where)


def text(value: Any, where: str) -> str:
    """Return a string."""
    if not isinstance(value, str):
        raise wrong(where, "a string", value)
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return an object; None counts as an empty one."""
    if value is None:
        return {}
    if isinstance(value, dict):  # the quick one
        return value
    if not isinstance(value, Mapping):
        raise wrong(where, "an object", value)
    return dict(value)


def whole(value: Any, where: str) -> int | None:
    """Return an integer of at most 64 bits, which is what JSON encoders support, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(where, "a number", value)
    if isinstance(value, float) and not value.is_integer():
        raise wrong(where, "a whole number", value)
    number = int(value)
    if not -_LARGEST <= number < _LARGEST:
        raise RequestError("The number is too large", where=where)
    return number


def flag(value: Any, where: str) -> bool | None:
    """Return True, False, or None."""
    if value is not None and not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


class Fields:
    """One object of a client's request; reading a field removes it, so that `rest` returns the unread ones.

    A field of the wrong type is refused with its path. `data` is the unchanged object with all its fields.

    >>> request = Fields({"model": "m", "new": 1}, "request")
    >>> request.text("model"), request.rest()
    ('m', {'new': 1})
    """

    __slots__ = ("_left", "data", "where")

    def __init__(self, value: Any, where: str = "") -> None:
        self.data: Final[dict[str, Any]] = value if type(value) is dict else mapping(value, where)
        self.where: Final = where
        self._left: Final = self.data.copy()

    def place(self, key: str) -> str:
        """Return the path of a field in the request."""
        return f"{self.where}.{key}" if self.where else key

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of the field, whatever its type."""
        return self._left.pop(key, default)

    def keep(self, key: str, value: Any) -> None:
        """Put back the remainder of a field that was read in part."""
        self._left[key] = value

    def text(self, key: str) -> str:
        """Return a string."""
        value = self._left.pop(key, None)
        if isinstance(value, str):
            return value
        return text(value, self.place(key))

    def optional_text(self, key: str) -> str | None:
        """Return a string, or None."""
        value = self._left.pop(key, None)
        if value is None or isinstance(value, str):
            return value
        return text(value, self.place(key))

    def number(self, key: str) -> float | None:
        """Return a number, or None."""
        value = self._left.pop(key, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise wrong(self.place(key), "a number", value)
        return value

    def whole(self, key: str) -> int | None:
        """Return an integer, or None."""
        value = self._left.pop(key, None)
        if value is None:
            return None
        return whole(value, self.place(key))

    def flag(self, key: str) -> bool | None:
        """Return True, False, or None."""
        value = self._left.pop(key, None)
        if value is None:
            return None
        return flag(value, self.place(key))

    def items(self, key: str) -> list[Any]:
        """Return an array; None counts as an empty one."""
        value = self._left.pop(key, None)
        if value is None:
            return []
        if not isinstance(value, list):
            raise wrong(self.place(key), "an array", value)
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """Return an object for unchanged use; None counts as an empty one."""
        value = self._left.pop(key, None)
        if value is None:
            return {}
        return mapping(value, self.place(key))

    def object(self, key: str) -> Fields:
        """Return an object for further reading; None counts as an empty one."""
        return Fields(self._left.pop(key, None), self.place(key))

    def optional(self, key: str) -> Fields:
        """Return the same without a path: its fields are all optional, so no error needs one."""
        value = self._left.pop(key, None)
        if value is None:
            return NO_FIELDS
        return Fields(value, self.place(key))

    def objects(self, key: str) -> Iterator[Fields]:
        """Yield the objects of an array one after the other, so that the first mistake is the one reported."""
        items = self.items(key)
        if items:
            place = self.place(key)
            for at, item in enumerate(items):
                yield Fields(item, f"{place}[{at}]")

    def base64(self, key: str) -> bytes:
        """Return bytes written as base64."""
        return base64_bytes(self._left.pop(key, None), self.place(key))

    def sampling(self, names: Mapping[str, str]) -> Sampling:
        """Return the sampling fields, renamed back by the table of `Encoding.sampling`."""
        if self._left.keys().isdisjoint(names.values()):
            return NO_SAMPLING
        return Sampling(**{name: self._sampled(name, key) for name, key in names.items() if key in self._left})

    def _sampled(self, name: str, key: str) -> Any:
        if name in ("top_k", "seed"):
            return self.whole(key)
        if name != "stop":
            return self.number(key)
        if isinstance(self._left[key], str):
            return (self._left.pop(key),)
        return tuple(text(item, f"{self.place(key)}[{at}]") for at, item in enumerate(self.items(key)))

    def response_format(self, name: Any, schema: Any, *, strict: Any) -> ResponseFormat:
        """Return the requested shape, at this object's path; a description beside the schema is merged into it."""
        document = mapping(schema, self.place("schema"))
        description = self._left.get("description")
        if schema is None:
            hint = "Give the JSON Schema of the answer."
            raise RequestError("The schema is missing", where=self.place("schema"), hint=hint)
        if isinstance(description, str) and "description" not in document:
            document = {**document, "description": self._left.pop("description")}
        strict = flag(strict, self.place("strict")) is True
        try:
            return cached_format(name if isinstance(name, str) else "", document, strict=strict)
        except ConfigError as error:
            raise RequestError(error.message, where=self.where) from error

    def rest(self, objects: Mapping[str, Fields] = MappingProxyType({}), *, nulls: bool = False) -> dict[str, Any]:
        """Return the unread fields of this object and, by their names, of objects in it; empty ones only on demand."""
        unread = {key: value for key, value in self._left.items() if nulls or value is not None} if self._left else {}
        for name, inner in objects.items():
            if inner is not NO_FIELDS and (more := inner.rest()):
                unread[name] = more
        return unread


NO_FIELDS: Final = Fields({})
"""A missing object."""


def tagged(codec: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return an `extra` that only this codec reads; empty without fields."""
    return {codec: fields} if fields else {}


def media_from_url(url: str, kind: Literal["image", "audio", "video", "file"], name: str | None = None) -> Media:
    """Return a media part from an address, which may contain the bytes itself.

    >>> media_from_url("data:image/png;base64,aGk=", "image").data
    b'hi'
    """
    if not url.startswith("data:"):
        return Media(kind, url=url, name=name)
    head, _, payload = url[5:].partition(",")
    mime, _, encoding = head.partition(";")
    if encoding != "base64":
        return Media(kind, url=url, name=name)
    return Media(kind, mime_type=mime or None, data=base64_bytes(payload, "url"), name=name)


def base64_bytes(value: Any, where: str) -> bytes:
    """Return bytes written as base64."""
    try:
        return b64decode(text(value, where), validate=True)
    except (BadBase64, ValueError) as error:
        raise RequestError("Not valid base64", where=where) from error


def data_url(media: Media) -> str:
    """Return the bytes of a media part as a `data:` address, or its own address."""
    if media.data is None:
        return media.url or ""
    return f"data:{media.mime_type or 'application/octet-stream'};base64,{b64encode(media.data).decode()}"


QUIRKS: Final[Mapping[str, str]] = {
    "no_native_with_tools": "a native schema and tools exclude each other; the tool channel is used then",
    "required_only": "a tool call can be required, but not of one named tool",
    "no_strict": "the vendor does not know `strict`; it is left out",
    "no_parallel_switch": "`parallel_tool_calls` is left out",
    "usage_always": "usage comes in streams without asking; `stream_options` is left out",
    "no_logprobs": "the vendor gives no probabilities of tokens; they are not asked for",
    "random_seed": "the seed is spelled `random_seed` (Mistral)",
    "short_tool_ids": "tool call ids must be nine letters or digits (Mistral)",
    "reasoning_object": 'effort goes in `reasoning: {"effort": …}` (OpenRouter)',
    "thinking_object": 'thinking is switched with `thinking: {"type": …}` (DeepSeek, Z.ai)',
    "require_parameters": "routes that ignore a parameter are refused (OpenRouter)",
    "replay_reasoning": "tool-calling turns must be sent back with their `reasoning_content` (DeepSeek)",
    "top_k": "Chat Completions servers that take `top_k` all the same",
    "mid_system": "system messages may stand between other turns (some Claude models)",
    "schema_in_prompt": "the server holds the model to a schema without showing it; the prompt shows it, too",
    "list_keys": "a small model, whose prompt names the keys although the channel carries the schema",
    "split_schema": "a schema that was refused as too large; it is asked for in parts",
    "prefix_message": "an assistant's last message with `prefix` is the beginning of the answer (Mistral)",
    "continue_final_message": "`continue_final_message` makes an assistant's last message the beginning of the answer",
    "continues_last_message": "an assistant's last message is the beginning of the answer (Ollama)",
    "guided": "it takes `guided_regex`, `guided_grammar` and grammars in `structured_outputs` (vLLM)",
    "gbnf": "it takes a `grammar` (llama.cpp)",
    "body_version": "`anthropic_version` goes in the body and the model in the path (Claude on Vertex and Bedrock)",
}
"""Deviations of vendors or models that the codecs support: `Capabilities.quirks` names some of these."""


_PREFILLS: Final = frozenset({"prefix_message", "continue_final_message", "continues_last_message"})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of one model at one endpoint; `dialect` names the schema dialect of its native channel."""

    native: bool = False
    tools: bool = False
    forced_tool: bool = False
    json_mode: bool = False
    sampling: bool = True
    reasoning: bool = False
    max_tokens_field: str | None = None
    dialect: str = "identity"
    tool_dialect: str = "identity"
    quirks: frozenset[str] = frozenset()
    strategy: OutputStrategy = OutputStrategy.AUTO
    """The strategy of `auto` regardless of the other capabilities; no other channel is used then."""
    open_objects: OpenObjects = "auto"
    """Whether objects whose schema does not mention other keys keep a place for them; those of Python types never do,
    in `auto`."""

    @property
    def auto_strategy(self) -> OutputStrategy:
        """The strategy of `auto`: native, else a forced tool, else the prompt."""
        if self.strategy is not OutputStrategy.AUTO:
            return self.strategy
        if self.native:
            return OutputStrategy.NATIVE
        if self.forced_tool:
            return OutputStrategy.TOOL
        return OutputStrategy.PROMPTED

    @property
    def takes_prefill(self) -> bool:
        """Whether the model continues an answer whose beginning is the last message."""
        return not _PREFILLS.isdisjoint(self.quirks)


_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_FAMILY = {
    "openai-chat": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "google"
}  # fmt: skip
"""The APIs that accept the same uploaded files."""


class Encoding:
    """One request on its way to a vendor: the codec that writes it, the model's capabilities, and the losses."""

    __slots__ = ("capabilities", "codec", "losses", "origin", "quirks")

    def __init__(self, codec: str, capabilities: Capabilities, origin: str | None = None) -> None:
        self.codec: Final = codec
        self.origin: Final = origin
        """The codec of the API that the request came from; None if it came from the library."""
        self.capabilities: Final = capabilities
        self.quirks: Final = capabilities.quirks
        self.losses: Final[list[ModelWarning]] = []

    def lose(self, path: str, message: str, action: str = "dropped") -> None:
        """Record a field that the wire cannot carry, and how it was handled.

        >>> out = Encoding("cohere", Capabilities())
        >>> out.lose("sampling.seed", "This API has no seed.")
        >>> out.losses[0].action
        'dropped'
        """
        self.losses.append(LossyEncode("lossy_encode", message, path, action))

    def sampling(self, request: ModelRequest, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the sampling fields renamed by `names` (IR name → wire name); record those that cannot be sent."""
        values: dict[str, Any] = {}
        sampling = request.sampling
        if sampling is NO_SAMPLING or sampling == NO_SAMPLING:
            return values
        for name in SAMPLING:
            value = getattr(sampling, name)
            if value is None or value == ():
                continue
            if name not in names:
                self.lose(f"sampling.{name}", f"This API has no {name}.")
            elif not self.capabilities.sampling and name != "stop":
                self.lose(f"sampling.{name}", "This model takes no sampling parameters.")
            else:
                values[names[name]] = list(value) if name == "stop" else value
        return values

    def tools(
        self, plan: SchemaChannel, encode: Callable[[Tool], dict[str, Any]], inside: str = ""
    ) -> tuple[list[dict[str, Any]], ToolChoice | None]:
        """Return the tools as `encode` writes them, and the choice among them; a vendor's own tools stay unchanged.

        The fields meant for this codec go into the tool, or into the object that it has under `inside`.
        """
        encoded: list[dict[str, Any]] = []
        names: set[str] = set()
        for tool in plan.tools:
            path = f"tools.{tool.name}"
            if tool.vendor is not None and tool.vendor != self.codec:
                self.lose(path, f"A tool of {tool.vendor}'s own.")
                continue
            if tool.name in names and any("namespace" in fields for fields in tool.extra.values()):
                self._check_namespaces(tool)
            names.add(tool.name)
            if tool.vendor is not None:
                encoded.append(dict(self.own(tool.extra, path)))
            else:
                written = encode(tool)
                self.carry(written[inside] if inside else written, tool.extra, path)
                encoded.append(written)
        choice = plan.tool_choice
        if choice is not None and (not encoded or (isinstance(choice, NamedTool) and choice.name not in names)):
            self.lose(
                "tool_choice", "The tool is not offered here." if plan.tools else "The request has no tools to choose."
            )
            choice = None
        if plan.parallel_tool_calls is not None and not encoded:
            self.lose("parallel_tool_calls", "The request has no tools to call.")
        return encoded, choice

    def _check_namespaces(self, tool: Tool) -> None:
        """Refuse a second tool of the same name if the namespaces that distinguish them cannot be sent."""
        if "namespace" not in tool.extra.get(self.codec, {}):
            raise RequestError(
                f"Two namespaces have a tool {tool.name!r}, and this model's API has no namespaces",
                where="tools",
                hint="Give one of the two another name.",
            )

    def own(self, extra: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Return the part of a nested `extra` meant for this codec; fields meant for another are recorded as lost."""
        if not extra:
            return extra
        own = extra.get(self.codec, {})
        own = own if isinstance(own, Mapping) else {}
        for other, theirs in extra.items():
            if other != self.codec and (lost := [name for name in theirs if name not in own]):
                self.lose(path, f"Fields meant for {other} are left out: {', '.join(lost)}.")
        return own

    def carry(self, encoded: dict[str, Any], extra: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return the object with the fields meant for this codec, including those of nested objects."""
        if extra:
            _merge(encoded, self.own(extra, path))
        return encoded

    def drop(self, extra: Mapping[str, Any], path: str) -> None:
        """Record all of a nested `extra` as lost, if its object is not sent as an object."""
        if extra:
            for key in self.own(extra, path):
                self.lose(f"{path}.{key}", "What it stands in is not sent as it came.")

    def carry_media(
        self, encoded: dict[str, Any], media: Media, path: str, carried: Collection[str] = ()
    ) -> dict[str, Any]:
        """Do the same for a media part, whose name, or kind beside an address, is lost if it is not `carried`."""
        if media.name is not None and "name" not in carried:
            self.lose(f"{path}.name", f"This API takes no name for this {media.kind}.")
        if media.mime_type is not None and media.data is None and "mime_type" not in carried:
            self.lose(f"{path}.mime_type", "This API takes no media type beside an address.")
        return self.carry(encoded, media.extra, path)

    def speaker(self, message: Message, path: str) -> None:
        """Record the speaker as lost if an API has no names for them; a tool is known by the id of its call."""
        if message.name is not None and message.role != "tool":
            self.lose(f"{path}.name", "This API has no names for speakers.")

    def effort(self, effort: str, *levels: str) -> str:
        """Return an effort in this API's terms: its own, else the nearest one, which is recorded.

        >>> Encoding("ollama", Capabilities()).effort("xhigh", "low", "medium", "high")
        'high'
        """
        if effort in levels or effort not in _EFFORTS:
            return effort
        at = _EFFORTS.index(effort)
        nearest = min(levels, key=lambda each: abs(_EFFORTS.index(each) - at))
        self.lose("reasoning.effort", f"{effort} is spelled {nearest} here.", "approximated")
        return nearest

    def lose_one_call(self, plan: SchemaChannel) -> None:
        """Record the loss of "one call at a time" if tools are offered and the API has no such switch."""
        if plan.parallel_tool_calls is False and any(tool.name != RESERVED_TOOL for tool in plan.tools):
            self.lose("parallel_tool_calls", "This API may call several tools at once.")

    def reject_media(self, media: Media, path: str, place: str = "") -> NoReturn:
        """Raise `RequestError` for an image, sound or file that this API cannot carry: the model would not see it."""
        source = ""
        if media.data is None and media.url:
            source = f" at {media.url[:100]}"
        if media.file_id is not None:
            source = f" with the id {media.file_id}"
        raise RequestError(
            f"The API of this model ({self.codec}) does not take the {media.kind}{source}{place}",
            # Without the turn's number: a prompt that shows the schema shifts the turns.
            where=path.partition("[")[0],
            hint=f"{'Send its bytes, or choose' if source else 'Choose'} a model whose vendor takes it.",
            details={"category": UNDELIVERABLE},
        )

    def check_file(self, media: Media, path: str) -> None:
        """Raise `RequestError` for a file named by an id that another vendor assigned."""
        if media.file_id is None or self.origin is None or _FAMILY.get(self.origin) == _FAMILY.get(self.codec):
            return
        self.reject_media(media, path, f", which was uploaded to another vendor ({self.origin})")

    def lost_thinking(self, request: ModelRequest) -> bool:
        """Whether a turn with calls, whose results the model now gets, lacks the reasoning that its vendor signed.

        A vendor that requires it then refuses the request, unless this turn is answered without reasoning, too. Callers
        of the vendor's own API omit it knowingly.
        """
        if request.extra_for == self.codec:
            return False
        for index, message in open_turns(request.messages):
            if not any(isinstance(part, Reasoning) and self.codec in part.opaque for part in message.parts):
                self.lose("reasoning", f"What was thought in messages[{index}] is not known: this turn does not think.")
                return True
        return False

    def own_part(self, part: Reasoning | Opaque, path: str) -> dict[str, Any] | None:
        """Return an opaque part if it is this codec's own; else None, and it is recorded as lost."""
        if isinstance(part, Reasoning):
            own = part.opaque.get(self.codec)
            kind = "Reasoning"
        else:
            own = part.data if part.vendor == self.codec else None
            kind = "A part"
        if own is None:
            self.lose(path, f"{kind} of another API cannot be sent back here.")
            return None
        return dict(own)

    def add_extra(self, body: dict[str, Any], request: ModelRequest) -> None:
        """Pass vendor fields through unchanged, or record that they were meant for another API."""
        if not request.extra:
            return
        if request.extra_for is None:
            _merge(body, request.extra)
        elif request.extra_for == self.codec:
            self._add_unread(body, request.extra, "")
        else:
            for path in _field_paths(request.extra):
                self.lose(path, f"A field of {request.extra_for} that {self.codec} does not have.")

    def _add_unread(self, into: dict[str, Any], unread: Mapping[str, Any], path: str) -> None:
        """Put back unread fields, except those removed for this request or determined by its channel."""
        for key, value in unread.items():
            old = into.get(key)
            has_type = isinstance(value, Mapping) and "type" in value
            decided = old is not None and ((key == "tool_choice" and has_type) or (key == "mode" and old == "ANY"))
            if decided or (key in _PARTS and not isinstance(old, dict) and not has_type):
                self.lose(f"{path}{key}", "The way in which this request asks for its schema leaves no place for it.")
            elif isinstance(old, dict) and isinstance(value, Mapping):
                into[key] = dict(old)
                self._add_unread(into[key], value, f"{path}{key}.")
            else:
                into[key] = value


def open_turns(messages: Sequence[Message]) -> Iterator[tuple[int, Message]]:
    """Return the model's turns with calls since the last user message, with their positions: the current tool loop."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if message.role == "assistant":
            if message.tool_calls:
                yield index, message
        elif message.role == "user" and not any(isinstance(part, ToolResult) for part in message.parts):
            return


_PARTS = frozenset({"response_format", "json_schema", "format", "tool_choice", "stream_options"})
"""Objects that slipform reads and writes itself: their further fields are dropped with them."""
_PARTLY_READ = frozenset(
    {*_PARTS, "text", "reasoning", "thinking", "output_config", "generationConfig", "thinkingConfig"}
)
"""Objects of which slipform reads some fields: only the others are vendor fields."""


def _field_paths(extra: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted paths of the vendor fields, those inside partly read objects one by one."""
    for key, value in extra.items():
        if key in _PARTLY_READ and isinstance(value, Mapping):
            yield from _field_paths(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def encode_function(tool: Tool, parameters: str = "parameters") -> dict[str, Any]:
    """Return the name, description and schema of a function tool, as most APIs write them."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function[parameters] = tool.parameters
    return function


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            into[key] = dict(old)
            _merge(into[key], value)
        else:
            into[key] = value


def dumps(value: Any) -> bytes:
    """Return JSON as compact bytes, with unchanged order of keys."""
    try:
        return orjson.dumps(value, default=plain_mapping)
    except TypeError:
        return _dumps_unusual(value)


def _dumps_unusual(value: Any) -> bytes:
    """Return the same for what `orjson` refuses: integers beyond 64 bits, arguments nested more than 254 levels."""
    try:
        return json.dumps(value, default=plain_mapping, separators=(",", ":")).encode()
    except RecursionError:
        raise UpstreamError(
            "The answer is nested too deeply to be written", details={"category": "unreadable"}
        ) from None

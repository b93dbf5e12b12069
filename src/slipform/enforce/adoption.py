"""Find the schema that a known client library wrote into a prompt, so that it can be enforced.

Each library puts one fixed text before its schema and one after it. Both must occur word for word, the first of them
exactly once, with nothing but the schema between them. Text alone cannot distinguish a library's instruction from a
quotation of one; so by default (`json_mode`) a schema counts only in a system message, at its end, outside of any
quotation, and if the request itself asks for JSON. `all` lifts these conditions. When a library changes its wording it
is no longer recognised, and its calls are not enforced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from slipform.errors import SlipformError
from slipform.ir import ModelRequest, ModelWarning, Role
from slipform.schema import ResponseFormat
from slipform.schema.python_types import cached_format, cached_schema
from slipform.schema.spec import fit_name
from slipform.text.strict import parse

AdoptionMode: TypeAlias = Literal["off", "json_mode", "all"]
"""Where schemas are taken from prompts: nowhere, from system messages of requests in JSON mode, or everywhere."""


class Adopted(NamedTuple):
    """A schema found in a prompt: which library wrote it, and in which message."""

    library: str
    where: str
    format: ResponseFormat

    @property
    def warning(self) -> ModelWarning:
        """The warning for the caller."""
        return ModelWarning(
            "schema_adopted",
            f"The schema that {self.library} wrote into the prompt is enforced; an answer that cannot be made to fit "
            "is returned as it is.",
            self.where,
        )


class _Wording(NamedTuple):
    """How one library writes a schema into a prompt."""

    library: str
    before: str
    after: str
    """The text after the schema; empty if the message ends with the schema."""
    read: Callable[[str], Mapping[str, Any] | None]
    roles: tuple[Role, ...] = ("system",)
    leads: str = ""
    """A sentence that must occur somewhere before the schema."""
    tail: bool = False
    """Whether more text of the library follows."""


def find_schema(request: ModelRequest, mode: AdoptionMode) -> Adopted | None:
    r"""Return the one schema that a library wrote into the messages, if this mode accepts it; None in doubt.

    >>> from slipform.ir import Message
    >>> said = "Respond only with valid JSON that matches this exact schema:\n" + '{"properties": {"age": {}}}'
    >>> find_schema(ModelRequest("m", (Message.system(said),), json_mode=True), "json_mode").library
    'mirascope'
    """
    if mode == "off" or request.response_format is not None or request.tools:
        return None
    if request.extra.get("n") not in (None, 1) or request.extra.get("functions"):
        return None
    if mode == "json_mode" and not request.json_mode:
        return None
    adoptable = [_format(*each) for each in _matches(request, mode)]
    if not adoptable or any(
        each is None or adoptable[0] is None or each.format != adoptable[0].format for each in adoptable
    ):
        return None
    return adoptable[0]


def may_hold_schema(body: bytes) -> bool:
    """Whether a request's bytes contain a library's wording: a cheap test for calls that are otherwise not parsed."""
    return any(each in body for each in _MARKS)


def _matches(request: ModelRequest, mode: AdoptionMode) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the schemas that libraries wrote into a request's messages: the library, the location, the schema."""
    users = [at for at, message in enumerate(request.messages) if message.role == "user"]
    last_user = users[-1] if users else -1
    for at, message in enumerate(request.messages):
        if message.role != "system" and (mode == "json_mode" or at != last_user):
            continue
        for wording in _WORDINGS:
            if message.role not in wording.roles:
                continue
            at_end = mode == "json_mode" or message.role == "user"
            schema = _schema_between(message.text, wording, at_end=at_end)
            if schema is not None:
                yield wording.library, f"messages[{at}]", schema


def _schema_between(text: str, wording: _Wording, *, at_end: bool) -> Mapping[str, Any] | None:
    """Return the schema between a library's two texts."""
    if text.count(wording.before) != 1:
        return None
    head, _, rest = text.partition(wording.before)
    if (wording.leads and wording.leads not in head) or _is_quoted(head):
        return None
    inner, after, tail = rest.partition(wording.after) if wording.after else (rest, "", "")
    if after != wording.after or (at_end and tail.strip() and not wording.tail):
        return None
    schema = wording.read(inner.strip())
    if schema is not None and _is_schema(schema):
        return schema
    return None


def _is_quoted(head: str) -> bool:
    """Return whether this text ends inside a code block or an element that is still open."""
    line = head.rpartition("\n")[2].lstrip()
    if head.count("```") % 2 or line.startswith((">", '"', "'", "`", "“")):
        return True
    open_elements: dict[str, int] = {}
    for closing, name in _ELEMENT.findall(head):
        open_elements[name] = open_elements.get(name, 0) + (-1 if closing else 1)
    return any(count > 0 for count in open_elements.values())


_ELEMENT = re.compile(r"<(/?)([A-Za-z][\w-]*)(?:\s[^<>]*)?>")
_SAYS_SHAPE = frozenset({"type", "properties", "anyOf", "oneOf", "allOf", "$ref", "enum", "const", "items"})


def _is_schema(value: Mapping[str, Any]) -> bool:
    properties = value.get("properties")
    if properties is not None:
        return isinstance(properties, Mapping) and all(isinstance(each, Mapping | bool) for each in properties.values())
    return not _SAYS_SHAPE.isdisjoint(value)


def _format(library: str, where: str, schema: Mapping[str, Any]) -> Adopted | None:
    """Return the schema as a response format; None for one that cannot be used."""
    title = schema.get("title")
    if "properties" in schema and "type" not in schema:
        schema = {**schema, "type": "object"}  # LangChain leaves it out
    try:
        response_format = cached_format(fit_name(title if isinstance(title, str) else ""), schema, strict=False)
        cached_schema(response_format.json_schema)
    except SlipformError:
        return None
    return Adopted(library, where, response_format)


def _json(text: str) -> Mapping[str, Any] | None:
    try:
        value = parse(text.encode("utf-8", "replace"))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _schema_in_template(text: str) -> Mapping[str, Any] | None:
    """Return LlamaIndex's schema, whose braces a template has doubled."""
    return _json(text.replace("{{", "{").replace("}}", "}"))


def _fields(text: str) -> Mapping[str, Any] | None:
    """Return DSPy's output fields as an object; the value of each describes the field in words."""
    listed = _json(text)
    if not listed:
        return None
    properties = {}
    for name, description in listed.items():
        start = f"{{{name}}}"
        if not isinstance(description, str) or not description.startswith(start):
            return None
        properties[name] = _schema_of_note(description.removeprefix(start).strip())
    return {"type": "object", "properties": properties, "required": list(properties)}


_NOTE = "# note: the value you produce "
_KINDS: Final = {
    "must be True or False": {"type": "boolean"},
    "must be a single int value": {"type": "integer"},
    "must be a single float value": {"type": "number"},
}
_SCHEMA_NOTE = "must adhere to the JSON schema: "
_LISTS = ("must exactly match (no extra characters) one of: ", "must be one of: ")


def _schema_of_note(note: str) -> Mapping[str, Any]:
    """Return the schema of one of DSPy's fields; an unknown description allows everything."""
    if not note:
        return {"type": "string"}
    note = note.removeprefix(_NOTE)
    if note in _KINDS:
        return _KINDS[note]
    if note.startswith(_SCHEMA_NOTE):
        return _json(note.removeprefix(_SCHEMA_NOTE)) or {}
    for start in _LISTS:
        if note.startswith(start):
            words = [each.strip() for each in note.removeprefix(start).split(";")]
            return {"enum": list(dict.fromkeys([*words, *(number for word in words for number in _number(word))]))}
    return {}


def _number(word: str) -> tuple[int, ...]:
    if re.fullmatch(r"-?\d{1,15}", word):
        return (int(word),)
    return ()


_FENCE = "```"
_LANGCHAIN = "The output should be formatted as a JSON instance that conforms to the JSON schema below."
_WORDINGS: Final = (
    _Wording(
        "instructor",
        "the parsed objects in json that match the following json_schema:",
        "Make sure to return an instance of the JSON, not the schema itself",
        _json,
        leads="As a genius expert, your task is to understand the content and provide",
    ),
    _Wording(
        "pydantic-ai",
        "Always respond with a JSON object that's compatible with this schema:",
        "Don't include any text or Markdown fencing before or after.",
        _json,
    ),
    _Wording(
        "langchain",
        f"Here is the output schema:\n{_FENCE}",
        f"\n{_FENCE}",
        _json,
        roles=("system", "user"),
        leads=_LANGCHAIN,
    ),
    _Wording(
        "langchain",
        "Here is the output schema (shown in a code block for readability only — do not include any backticks or "
        f"Markdown in your output):\n{_FENCE}",
        f"\n{_FENCE}",
        _json,
        roles=("system", "user"),
        leads=_LANGCHAIN,
    ),
    _Wording(
        "llama-index",
        "Here's a JSON schema to follow:",
        "Output a valid JSON object but do not repeat the schema.",
        _schema_in_template,
        roles=("user",),
    ),
    _Wording(
        "dspy",
        "Outputs will be a JSON object with the following fields.",
        "In adhering to this structure, your objective is:",
        _fields,
        leads="All interactions will be structured in the following way, with the appropriate values filled in.",
        tail=True,
    ),
    _Wording("mirascope", "Respond only with valid JSON that matches this exact schema:", "", _json),
)
_MARKS: Final = (
    b"match the following json_schema:",
    b"compatible with this schema:",
    b"Here is the output schema",
    b"a JSON schema to follow:",
    b"Outputs will be a JSON object with the following fields.",
    b"matches this exact schema:",
)
"""A piece of each wording that JSON encodes in exactly one way."""

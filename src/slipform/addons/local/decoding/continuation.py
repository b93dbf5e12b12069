"""Let the model finish an answer that was cut off, with a grammar of the rest.

The rest is limited to required parts, and others that fit into the tokens. Where the schema is ambiguous, the answer
is not continued, and `closing` ends it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipform.addons.local.decoding.closing import AnswerCloser, Hints
from slipform.addons.local.decoding.cost import PER_CHARACTER, Costs
from slipform.addons.local.decoding.fit import fit
from slipform.addons.local.decoding.forms import merged
from slipform.addons.local.decoding.patterns import grammar_problem, json_rule
from slipform.schema.document import DEFINITIONS, REF, Json, lookup, reference_of
from slipform.schema.keywords import (
    ANNOTATIONS,
    NoNormalForm,
    json_type,
    named_types,
    property_schema,
    tuple_parts,
    widened,
)

_DEEPEST = 60
_MOST_ITEMS = 50
_FEWEST_TOKENS = 8
_HALF_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\(?:u[0-9a-fA-F]{0,3})?$")
_ENDS = (b", ", b"}", b"]")
_PLAIN_TEXTS: tuple[Json, ...] = ({"type": "string"}, {"type": ["string"]})
"""The grammar of the rest of a string that may end anywhere."""
_CHARACTER = r'([^"\\\x00-\x1f]|\\["\\bfnrt])'
_LONGEST_REST = 2_000
_SHARE_OF_TEXT = 0.6
_LEAST_FOR_TEXT = 4
"""The share, and the least number, of the remaining tokens for the string in which an answer was cut."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The text that completes the cut-off value, and the grammar of the rest."""

    text: str
    grammar: str
    is_shorter: bool = True
    """Whether the schema allows more than the grammar does."""
    room: int = 0
    """How many characters may be added to the string in which the answer was cut; 0 if it is completed."""


@dataclass(slots=True)
class OpenContainer:
    """An object or a list that is still open."""

    is_object: bool
    values: dict[str, str] = field(default_factory=dict)
    """The keys of an object, and the JSON of its complete scalar values."""
    key: str = ""
    count: int = 0
    """The number of items of a list, including the current one."""


class Outline:
    """Parses a growing JSON text: the open containers, and whether a value has just ended."""

    __slots__ = ("_escaped", "_has_blank", "_has_colon", "_scalar", "_string", "_wants_key", "is_between", "stack")

    def __init__(self) -> None:
        self.stack: list[OpenContainer] = []
        self.is_between = False
        """Whether a value of the innermost container has ended, and nothing follows it."""
        self._string = ""
        self._escaped = False
        self._scalar = ""
        self._wants_key = False
        self._has_colon = False
        self._has_blank = False

    @property
    def wants_value(self) -> bool:
        """Whether a value must follow: after a key and its colon, or after a comma in a list."""
        if self._string or self._scalar or self._wants_key or self.is_between or not self.stack:
            return False
        if not self._has_blank:
            return False
        container = self.stack[-1]
        if container.is_object:
            return self._has_colon
        return container.count > 0

    @property
    def is_in_number(self) -> bool:
        """Whether the text ends in a number or a literal, which may be complete."""
        return bool(self._scalar)

    @property
    def string_length(self) -> int:
        """The length of the string in which the text ends; 0 outside of one."""
        return len(self._string)

    @property
    def is_in_text(self) -> bool:
        """Whether the text ends inside a string that is a value, and not in an escape."""
        return bool(self._string) and not self._wants_key and not _HALF_ESCAPE.search(self._string)

    @property
    def pointer(self) -> tuple[str, ...]:
        """The pointer of the value in which, or after which, the text ends."""
        return tuple(each.key if each.is_object else str(max(each.count - 1, 0)) for each in self.stack)

    def feed(self, text: str) -> None:
        """Parse the next piece."""
        for character in text:
            if self._string:
                self._in_string(character)
            else:
                self._between(character)

    def end_number(self) -> None:
        """End the number or literal at the end of the text."""
        if self._scalar:
            self._value(self._scalar)
            self._scalar = ""

    def _in_string(self, character: str) -> None:
        self._string += character
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            text = self._string
            self._string = ""
            if self._wants_key and self.stack:
                self._wants_key = False
                self.stack[-1].key = _decoded(text)
                self.stack[-1].values[self.stack[-1].key] = ""
            else:
                self._value(text)

    def _between(self, character: str) -> None:
        """Parse a character outside of strings."""
        self._has_colon = character == ":" or (character == " " and self._has_colon)
        self._has_blank = character == " "
        if character == '"':
            self._begin()
            self._string = '"'
        elif character in "{[":
            self._begin()
            self.stack.append(OpenContainer(character == "{"))
            self._wants_key = character == "{"
        elif character in "}]":
            self.end_number()
            if self.stack:
                self.stack.pop()
            self._wants_key = False
            self._value("")
        elif character == ",":
            self.end_number()
            self.is_between = False
            self._wants_key = bool(self.stack) and self.stack[-1].is_object
        elif character not in " \n\r\t:":
            if not self._scalar:
                self._begin()
            self._scalar += character

    def _begin(self) -> None:
        self.is_between = False
        if self.stack and not self.stack[-1].is_object:
            self.stack[-1].count += 1

    def _value(self, text: str) -> None:
        self.is_between = True
        if self.stack and self.stack[-1].is_object:
            self.stack[-1].values[self.stack[-1].key] = text


def _decoded(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text[1:-1]


def _text_goes_on(closer: AnswerCloser, form: Mapping[str, Any], outline: Outline, *, is_stuck: bool) -> bool | None:
    """Return whether the answer continues inside a string; if not, the value is ended; None if that is impossible."""
    is_open = not is_stuck and outline.is_in_text and _leaf(form, outline.stack) in _PLAIN_TEXTS
    if not (is_open or _end_value(closer, outline)) or not outline.stack:
        return None
    if outline.is_in_text and not is_open:
        is_open = _leaf(form, outline.stack) in _PLAIN_TEXTS
        if not is_open and not _end_value(closer, outline, may_begin=False):
            return None
    return is_open


def continuation(
    grammar: str, form: Mapping[str, Any], text: str, *, opening: str = "", tokens: int, is_stuck: bool = False
) -> Continuation | None:
    """Return how a cut-off answer continues under a grammar, within the given tokens.

    None where the schema is ambiguous.

    `form` is the schema of the grammar; with an `opening` before the value, a brace follows it. A string in which the
    answer ends is continued, unless the model `is_stuck` there.
    """
    if tokens < _FEWEST_TOKENS:
        return None
    closer = AnswerCloser.at(grammar, text, Hints.of(form))
    outline = Outline()
    outline.feed(text[len(opening) :])
    is_open = None
    if closer is not None:
        is_open = _text_goes_on(closer, form, outline, is_stuck=is_stuck)
    if closer is None or is_open is None:
        return None
    rests = _rests(form, outline.stack)
    if rests and outline.wants_value and rests[0].count:
        rests[0] = dataclasses.replace(rests[0], count=rests[0].count - 1)
    room = tokens - len(closer.text) // 3
    first: Json = _leaf(form, outline.stack, bare=False) if outline.wants_value else None
    following = None if rests is None or first is False else _following(form, rests, room, is_open, first)
    if following is None:
        return None
    last = ' "}"' if opening else ""
    rule = f"%llguidance {{}}\nstart: {following.sequence}{last}\n{following.rules}"
    if grammar_problem(rule) is not None:
        return None
    return Continuation(closer.text, rule, following.is_shorter or not is_open, following.room)


def _leaf(form: Mapping[str, Any], stack: Sequence[OpenContainer], *, bare: bool = True) -> Json:
    """Return the schema of the current value of the innermost container; False where it is ambiguous."""
    sub: Json = form
    for container in stack:
        node = _node(sub, form, container, 0)
        if node is None:
            return False
        sub = _child(node, container, is_next=not bare and container is stack[-1])
    if bare and isinstance(sub, Mapping):
        return {key: value for key, value in sub.items() if key not in ANNOTATIONS}
    return sub


def _child(node: Mapping[str, Any], container: OpenContainer, *, is_next: bool = False) -> Json:
    """Return the schema of the current value of a container, or of its next item."""
    if container.is_object:
        try:
            return property_schema(node, container.key)
        except NoNormalForm:
            return False
    first, items = tuple_parts(node)
    number = container.count if is_next else container.count - 1
    if 0 <= number < len(first):
        return first[number]
    return items


def _end_value(closer: AnswerCloser, outline: Outline, *, may_begin: bool = True) -> bool:
    """Complete the value in which an answer was cut, in few characters, or begin the required one."""
    if outline.is_in_number and any(closer.is_admitted(end) for end in _ENDS):
        outline.end_number()
    while not (outline.is_between or outline.wants_value):
        step = closer.step()
        if not step:
            return False
        outline.feed(step)
        if may_begin and outline.is_in_text and outline.string_length == 1:
            return True
    return True


@dataclass(frozen=True, slots=True)
class _Rest:
    """The schemas of the rest of an open container."""

    properties: Mapping[str, Json] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    items: Json = True
    count: int = 0
    is_object: bool = True


def _rests(form: Mapping[str, Any], stack: Sequence[OpenContainer]) -> list[_Rest] | None:
    """Return the rest of each open container, the innermost first.

    None where the schema is ambiguous.
    """
    rests: list[_Rest] = []
    sub: Json = form
    for container in stack:
        node = _node(sub, form, container, 0)
        rest = None if node is None else _rest(node, container)
        if node is None or rest is None:
            return None
        rests.append(rest)
        sub = _child(node, container)
    return rests[::-1]


def _node(sub: Json, form: Mapping[str, Any], container: OpenContainer, depth: int) -> Mapping[str, Any] | None:
    """Return the one schema of a container; None where several are possible."""
    if not isinstance(sub, Mapping) or depth > _DEEPEST or "enum" in sub or "const" in sub:
        return None
    rest = sub.keys() - ANNOTATIONS - set(DEFINITIONS)
    if reference_of(sub) is not None:
        if rest == {REF}:
            return _node(lookup(form, sub[REF]), form, container, depth + 1)
        return None
    if "allOf" in sub:
        return _node(merged(sub, form), form, container, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        if keyword in sub:
            if rest - {keyword, "type"}:
                return None
            nodes = [_node(each, form, container, depth + 1) for each in sub[keyword] if _may_be(each, form, container)]
            return nodes[0] if len(nodes) == 1 else None
    return sub


def _may_be(sub: Json, form: Mapping[str, Any], container: OpenContainer) -> bool:
    """Return whether a container may match a branch, by its type, its keys, and the values that the branch lists."""
    for _ in range(_DEEPEST):
        if not isinstance(sub, Mapping) or reference_of(sub) is None:
            break
        sub = lookup(form, sub[REF])
    if not isinstance(sub, Mapping):
        return sub is not False
    kinds = widened(named_types(sub))
    if kinds and ("object" if container.is_object else "array") not in kinds:
        return False
    listed = sub.get("properties")
    if not container.is_object or not isinstance(listed, Mapping):
        return True
    for name, text in container.values.items():
        if name not in listed and sub.get("additionalProperties") is False and "patternProperties" not in sub:
            return False
        if text and not _is_listed(text, listed.get(name)):
            return False
    return True


def _is_listed(text: str, sub: Json) -> bool:
    """Return whether a complete scalar is one of the values that a schema lists, or has one of its types."""
    if not isinstance(sub, Mapping):
        return sub is not False
    try:
        value = json.loads(text)
    except ValueError:
        return True
    if "const" in sub:
        return bool(sub["const"] == value)
    if "enum" in sub:
        return value in sub["enum"]
    kinds = widened(named_types(sub))
    return not kinds or json_type(value) in kinds


def _rest(node: Mapping[str, Any], container: OpenContainer) -> _Rest | None:
    """Return the rest of an open container; None where the schema is ambiguous."""
    if not container.is_object:
        first, items = tuple_parts(node)
        count = node.get("minItems", 0) - container.count
        if count > 0 and (first or count > _MOST_ITEMS):
            return None
        return _Rest(items=items, count=max(count, 0), is_object=False)
    listed = node.get("properties") or {}
    names = list(listed)
    last = max((names.index(name) for name in container.values if name in listed), default=-1)
    required = frozenset(node.get("required", ())) - container.values.keys()
    following = names[last + 1 :]
    if any(name not in listed for name in container.values):
        following = []
    if not required <= set(following) or node.get("minProperties", 0) > len(container.values):
        return None
    if "maxProperties" in node:
        following = [name for name in following if name in required]
    return _Rest({name: listed[name] for name in following if listed[name] is not False}, required)


class _Following(NamedTuple):
    """The grammar of the rest: the sequence of its rules, the rules, and whether the schema allows more."""

    sequence: str
    rules: str
    is_shorter: bool
    room: int


def _following(
    form: Mapping[str, Any], rests: Sequence[_Rest], tokens: int, has_text: bool, first: Json
) -> _Following | None:
    """Return the grammar of the rest, fitted into the given tokens.

    It is preceded by the rest of a string, if the answer ends in one, or by a value of the schema `first`, if any.
    """
    names = [f"part {number}" for number in range(len(rests))]
    parts: dict[str, Any] = dict(zip(names, map(_as_schema, rests), strict=True))
    if first is not None:
        parts["first"] = first
    whole = {
        **{key: form[key] for key in ("$schema", *DEFINITIONS) if key in form},
        "type": "object",
        "properties": parts,
        "required": list(parts),
        "additionalProperties": False,
    }
    for_text = 0
    if has_text:
        surplus = tokens - Costs(whole).of(whole).comfortable
        for_text = int(max(surplus * _SHARE_OF_TEXT, _LEAST_FOR_TEXT))
    made = fit(whole, tokens - for_text)
    fitted = made.schema
    definitions: dict[str, Any] = {key: fitted[key] for key in ("$schema", *DEFINITIONS) if key in fitted}
    sequence: list[str] = []
    rules: list[str] = []
    room = 0
    if has_text:
        room = min(int(for_text / PER_CHARACTER), _LONGEST_REST)
        sequence.append(f'/{_CHARACTER}{{0,{room}}}/ "\\""')
    if first is not None:
        rules.append(f"value_0: {json_rule({**fitted['properties']['first'], **definitions})}")
        sequence.append("value_0")
    for name, rest in zip(names, rests, strict=True):
        part = fitted["properties"].get(name)
        if not isinstance(part, Mapping):
            return None
        for separator, sub, is_required in _values(part, rest):
            rule = f"value_{len(rules)}"
            rules.append(f"{rule}: {json_rule({**sub, **definitions})}")
            each = f"{json.dumps(separator)} {rule}"
            sequence.append(each if is_required else f"({each})?")
        sequence.append('"}"' if rest.is_object else '"]"')
    is_shorter = bool(made.left_out) or not all(rest.is_object for rest in rests)
    return _Following(" ".join(sequence), "\n".join(rules), is_shorter, room)


def _as_schema(rest: _Rest) -> dict[str, Any]:
    if not rest.is_object:
        return {"type": "array", "items": rest.items, "minItems": rest.count, "maxItems": rest.count}
    return {
        "type": "object",
        "properties": dict(rest.properties),
        "required": sorted(rest.required),
        "additionalProperties": False,
    }


def _values(part: Mapping[str, Any], rest: _Rest) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield each following value in a container: the text before it, its schema, and whether it is required."""
    if not rest.is_object:
        items = part.get("items", {})
        yield from [(", ", items, True)] * rest.count
        return
    for name, sub in (part.get("properties") or {}).items():
        if isinstance(sub, Mapping):
            yield f", {json.dumps(name, ensure_ascii=False)}: ", sub, name in rest.required

"""Represent a `Violation`, and word it for people and models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slipform.schema.document import join_pointer, split_pointer

_PLAIN_KEY = re.compile(r"[^\W\d]\w*\Z")
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation in a value: its place, the keyword, and a sentence.

    >>> Violation("/age", "/properties/age/type", "type", 'expected integer, found "x"').json_path
    '$.age'
    """

    instance_path: str
    """JSON Pointer into the value; the empty string is the root."""
    schema_path: str
    """JSON Pointer into the schema, to the keyword."""
    keyword: str
    message: str
    expected: str | None = None
    """The expectation of the schema, in a few words."""
    found: str | None = None
    """The actual value as short JSON."""
    steps: tuple[str | int, ...] | None = None
    """`instance_path` as steps: keys are strings, positions in arrays are integers."""
    closest: tuple[Violation, ...] = ()
    """For a failed union: the violations of the nearest alternative."""

    @property
    def json_path(self) -> str:
        """The path as `$.a[0]`; unusual keys are quoted, as in `$["my key"]`."""
        return json_path(guess_steps(self.instance_path) if self.steps is None else self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields: dict[str, Any] = {"path": self.json_path, "keyword": self.keyword, "message": self.message}
        fields["pointer"] = self.instance_path
        fields["schema_path"] = self.schema_path
        if self.expected is not None:
            fields["expected"] = self.expected
        if self.found is not None:
            fields["found"] = self.found
        if self.closest:
            fields["closest"] = [violation.to_dict() for violation in self.closest]
        return fields


def violation_at(steps: tuple[str | int, ...], keyword: str, message: str, value: Any) -> Violation:
    """Return a violation without a keyword of the schema, at a place of a value.

    >>> violation_at(("age",), "validator", "too young", {"age": 3}).found
    '3'
    """
    for step in steps:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return Violation(join_pointer(steps), "", keyword, message, steps=steps)
    return Violation(join_pointer(steps), "", keyword, message, None, excerpt_of(value), steps)


def json_path(steps: Iterable[str | int]) -> str:
    """Return the `$.a[0]` form of a path.

    >>> json_path(["items", 0, "first name", "0"])
    '$.items[0]["first name"]["0"]'
    """
    return "$" + "".join(_step(step) for step in steps)


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _PLAIN_KEY.match(step):
        return f".{step}"
    return f"[{excerpt_of(step)}]"


_PATH_STEP = re.compile(r'\.?([^\W\d]\w*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]')


def path_steps(path: str) -> tuple[str | int, ...]:
    """Parse a path such as `$.items[0]["first name"]`, with or without `$`, or a pointer. Raises `ValueError`.

    >>> path_steps('items[0]["first name"].x'), path_steps("/items/0")
    (('items', 0, 'first name', 'x'), ('items', 0))
    """
    if path.startswith("/"):
        return guess_steps(path)
    steps: list[str | int] = []
    rest = path.removeprefix("$")
    while rest:
        match = _PATH_STEP.match(rest)
        if match is None:
            raise ValueError(f"{path!r} is not a path; write it like `items[0].name` or `/items/0/name`")
        key, index, quoted = match.groups()
        if key is not None:
            steps.append(key)
        else:
            steps.append(int(index) if index is not None else orjson.loads(quoted))
        rest = rest[match.end() :]
    return tuple(steps)


def guess_steps(path: str) -> tuple[str | int, ...]:
    """Split a pointer into a value that is not known: numbers are read as indices of arrays."""
    return tuple(int(part) if part.isdecimal() and part.isascii() else part for part in split_pointer(path))


def excerpt_of(value: Any, size: int = _SHOWN) -> str:
    """Return a value as short JSON: long strings are cut, large containers only counted.

    >>> excerpt_of({"a": 1}), excerpt_of(list(range(100)))
    ('{"a":1}', 'an array of 100 items')
    """
    if isinstance(value, str):
        text = _dump(value if len(value) <= size else value[:size])
        return text if len(value) <= size else text[:-1] + '…"'
    if isinstance(value, Mapping):
        brief = _brief(value.values(), len(value), value)
        return brief or f"an object with {_count(len(value), 'key')}"
    if isinstance(value, (list, tuple)):
        return _brief(value, len(value), value) or f"an array of {_count(len(value), 'item')}"
    text = _dump(value)
    return text if len(text) <= size else text[:size] + "…"


def _brief(parts: Iterable[Any], count: int, whole: Any) -> str | None:
    """Return small containers as JSON; anything that could be large is not even serialised."""
    if count > 8 or any(isinstance(part, (Mapping, list, tuple)) and part for part in parts):
        return None
    if any(isinstance(part, str) and len(part) > _SHOWN for part in parts):
        return None
    text = _dump(whole)
    return text if len(text) <= _SHOWN else None


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def _dump(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        pass
    if isinstance(value, str):
        return '"' + value.encode("utf-8", "backslashreplace").decode() + '"'
    if isinstance(value, int):
        if abs(value).bit_length() < 2000:
            return str(value)
        return "an integer of over 600 digits"
    return f"a Python {type(value).__name__}"


_LISTED = 12
_LISTED_SIZE = 300


def expected(keyword: str, node: Mapping[str, Any]) -> str:
    """Return the expectation of one assertion of a schema.

    >>> expected("type", {"type": ["integer", "null"]})
    'integer or null'
    >>> expected("minimum", {"minimum": 3})
    'a number >= 3'
    """
    phrase = _PHRASES.get(keyword)
    if phrase:
        return phrase(node[keyword], node)
    return f"a value that fits `{keyword}`"


def alternatives(values: list[Any]) -> str:
    """Return a list of allowed values as text; a long one is cut and counted.

    >>> alternatives(["a", "b"])
    '"a" or "b"'
    """
    parts: list[str] = []
    size = 0
    for value in values[:_LISTED]:
        text = excerpt_of(value)
        size += len(text)
        if parts and size > _LISTED_SIZE:
            break
        parts.append(text)
    more = len(values) - len(parts)
    if more:
        return f"{', '.join(parts)} or one of {more} more"
    return joined(parts)


def joined(parts: list[str]) -> str:
    """Join words as in `a, b or c`."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} or {parts[-1]}"


def _types(value: Any, _: Mapping[str, Any]) -> str:
    if isinstance(value, list):
        return joined([str(name) for name in value] or ["nothing"])
    return str(value)


def _bound(sign: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda limit, _: f"a number {sign} {excerpt_of(limit)}"


def _draft4_bound(strict: str, lax: str, exclusive: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda limit, node: f"a number {strict if node.get(exclusive) is True else lax} {excerpt_of(limit)}"


def _counting_message(words: str, noun: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda limit, _: f"{words} {excerpt_of(limit)} {noun}{'' if limit == 1 else 's'}"


_PHRASES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "type": _types,
    "enum": lambda options, _: alternatives(options) if options else "nothing",
    "const": lambda value, _: excerpt_of(value),
    "multipleOf": lambda value, _: f"a multiple of {excerpt_of(value)}",
    "maximum": _draft4_bound("<", "<=", "exclusiveMaximum"),
    "minimum": _draft4_bound(">", ">=", "exclusiveMinimum"),
    "exclusiveMaximum": _bound("<"),
    "exclusiveMinimum": _bound(">"),
    "maxLength": _counting_message("at most", "character"),
    "minLength": _counting_message("at least", "character"),
    "maxItems": _counting_message("at most", "item"),
    "minItems": _counting_message("at least", "item"),
    "maxProperties": _counting_message("at most", "key"),
    "minProperties": _counting_message("at least", "key"),
    "pattern": lambda pattern, _: f"text that matches {pattern if len(pattern) <= 200 else pattern[:200] + '…'}",
    "format": lambda name, _: f"text in the format {excerpt_of(name)}",
    "uniqueItems": lambda *_: "items that all differ",
    "contentEncoding": lambda name, _: f"text encoded as {excerpt_of(name)}",
    "contentMediaType": lambda name, _: f"text that is {excerpt_of(name)}",
}
ASSERTIONS = frozenset(_PHRASES)
"""Keywords that check a value as a whole and have no subschemas."""


def found(keyword: str, value: Any) -> str:
    """Return the actual value in terms of the keyword: a length for a length rule, else the value."""
    if keyword in {"maxItems", "minItems", "maxProperties", "minProperties"}:
        return str(len(value))
    if keyword in {"maxLength", "minLength"}:
        return f"{len(value)}: {excerpt_of(value, 40)}"
    return excerpt_of(value)

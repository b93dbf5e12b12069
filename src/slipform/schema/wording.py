"""What a schema asks for, in a few words that a model and a person understand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slipform.schema.violations import shown

_LISTED = 12
_LISTED_SIZE = 300


def expected(keyword: str, node: Mapping[str, Any]) -> str:
    """What one assertion of a schema asks for.

    >>> expected("type", {"type": ["integer", "null"]})
    'integer or null'
    >>> expected("minimum", {"minimum": 3})
    'a number >= 3'
    """
    phrase = _PHRASES.get(keyword)
    return phrase(node[keyword], node) if phrase else f"a value that fits `{keyword}`"


def alternatives(values: list[Any]) -> str:
    """A list of allowed values; a long one is cut and counted.

    >>> alternatives(["a", "b"])
    '"a" or "b"'
    """
    parts: list[str] = []
    size = 0
    for value in values[:_LISTED]:
        text = shown(value)
        size += len(text)
        if parts and size > _LISTED_SIZE:
            break
        parts.append(text)
    more = len(values) - len(parts)
    if more:
        return f"{', '.join(parts)} or one of {more} more"
    return joined(parts)


def joined(parts: list[str]) -> str:
    """`a, b or c`."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def _types(value: Any, _: Mapping[str, Any]) -> str:
    return joined([str(name) for name in value] or ["nothing"]) if isinstance(value, list) else str(value)


def _bound(sign: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda limit, _: f"a number {sign} {shown(limit)}"


def _draft4_bound(strict: str, lax: str, exclusive: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda limit, node: f"a number {strict if node.get(exclusive) is True else lax} {shown(limit)}"


def _count(words: str, noun: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda limit, _: f"{words} {shown(limit)} {noun}{'' if limit == 1 else 's'}"


_PHRASES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "type": _types,
    "enum": lambda options, _: alternatives(options) if options else "nothing",
    "const": lambda value, _: shown(value),
    "multipleOf": lambda value, _: f"a multiple of {shown(value)}",
    "maximum": _draft4_bound("<", "<=", "exclusiveMaximum"),
    "minimum": _draft4_bound(">", ">=", "exclusiveMinimum"),
    "exclusiveMaximum": _bound("<"),
    "exclusiveMinimum": _bound(">"),
    "maxLength": _count("at most", "character"),
    "minLength": _count("at least", "character"),
    "maxItems": _count("at most", "item"),
    "minItems": _count("at least", "item"),
    "maxProperties": _count("at most", "key"),
    "minProperties": _count("at least", "key"),
    "pattern": lambda pattern, _: f"text that matches {pattern if len(pattern) <= 200 else pattern[:200] + '…'}",
    "format": lambda name, _: f"text in the format {shown(name)}",
    "uniqueItems": lambda *_: "items that all differ",
    "contentEncoding": lambda name, _: f"text encoded as {shown(name)}",
    "contentMediaType": lambda name, _: f"text that is {shown(name)}",
}

ASSERTIONS = frozenset(_PHRASES)
"""The keywords that look at a value as a whole and hold no subschemas."""


def found(keyword: str, value: Any) -> str:
    """What is there, seen with the keyword's eyes: a length for a length rule, else the value."""
    if keyword in {"maxItems", "minItems", "maxProperties", "minProperties"}:
        return str(len(value))
    if keyword in {"maxLength", "minLength"}:
        return f"{len(value)}: {shown(value, 40)}"
    return shown(value)

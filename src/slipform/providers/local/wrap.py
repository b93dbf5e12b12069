"""Roots that are no object or array: asked for under one key, and taken out again.

Left alone with a bare number, a small model writes digits until the token limit; inside an object it stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.providers.local.walk import lookup

KEY = "answer"
_CONTAINERS = frozenset({"object", "array"})
_DEEPEST = 8


def needs_wrapping(schema: Mapping[str, Any]) -> bool:
    """Whether answers of this schema may be bare strings, numbers or literals.

    >>> needs_wrapping({"type": "integer"}), needs_wrapping({"type": "array"})
    (True, False)
    """
    return not _contained(schema, schema, 0)


def _contained(sub: Any, root: Mapping[str, Any], depth: int) -> bool:
    if not isinstance(sub, Mapping) or depth > _DEEPEST:
        return False
    if "type" in sub:
        kinds = [sub["type"]] if isinstance(sub["type"], str) else sub["type"]
        return bool(kinds) and _CONTAINERS.issuperset(kinds)
    if "properties" in sub:
        return True
    if "$ref" in sub:
        return _contained(lookup(root, sub["$ref"]), root, depth + 1)
    if any(_contained(each, root, depth + 1) for each in sub.get("allOf", ())):
        return True
    for key in ("anyOf", "oneOf"):
        if sub.get(key):
            return all(_contained(each, root, depth + 1) for each in sub[key])
    return False


@dataclass(slots=True)
class Tail:
    """Lets text through but for the closing brace at its end, which belongs to the wrapper."""

    _held: str = ""

    def feed(self, text: str) -> str:
        """What surely belongs to the value."""
        self._held += text
        if not self._held.rstrip().endswith("}"):
            leaving, self._held = self._held, ""
            return leaving
        at = self._held.rindex("}")
        leaving, self._held = self._held[:at], self._held[at:]
        return leaving


@dataclass(slots=True)
class Unwrap:
    """Takes the value out of a wrapped answer's text, piece by piece.

    >>> unwrap = Unwrap()
    >>> unwrap.feed('{ "ans') + unwrap.feed('wer": 4') + unwrap.feed("2 }")
    ' 42 '
    """

    _head: str | None = ""
    _tail: Tail = field(default_factory=Tail)

    def feed(self, text: str) -> str:
        """What of this text belongs to the value."""
        if self._head is None:
            return self._tail.feed(text)
        self._head, colon, rest = (self._head + text).partition(":")
        if not colon:
            return ""
        self._head = None
        return self._tail.feed(rest)

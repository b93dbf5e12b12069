"""Roots that are no object or array: asked for under one key, and taken out again.

Left alone with a bare number, a small model writes digits until the token limit; inside an object it stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

KEY = "answer"
_HOISTED = ("$schema", "$defs", "definitions")


def needs_wrapping(schema: Mapping[str, Any]) -> bool:
    """Whether answers of this schema may be bare strings, numbers or literals.

    >>> needs_wrapping({"type": "integer"}), needs_wrapping({"type": "array"})
    (True, False)
    """
    return schema.get("type") not in ("object", "array") and "properties" not in schema and "$ref" not in schema


def wrap(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema under one key; definitions stay at the root, where references look for them."""
    inner = {name: value for name, value in schema.items() if name not in _HOISTED}
    hoisted = {name: schema[name] for name in _HOISTED if name in schema}
    return {
        **hoisted,
        "type": "object",
        "properties": {KEY: inner},
        "required": [KEY],
        "additionalProperties": False,
    }


@dataclass(slots=True)
class Unwrap:
    """Takes the value out of a wrapped answer's text, piece by piece.

    >>> unwrap = Unwrap()
    >>> unwrap.feed('{ "ans') + unwrap.feed('wer": 4') + unwrap.feed("2 }")
    ' 42 '
    """

    _begun: bool = False
    _held: str = ""

    def feed(self, text: str) -> str:
        """What of this text belongs to the value; the last closing brace belongs to the wrapper."""
        self._held += text
        if not self._begun:
            _, colon, rest = self._held.partition(":")
            if not colon:
                return ""
            self._begun, self._held = True, rest
        if not self._held.rstrip().endswith("}"):
            leaving, self._held = self._held, ""
            return leaving
        at = self._held.rindex("}")
        leaving, self._held = self._held[:at], self._held[at:]
        return leaving

"""`load`: the JSON in whatever a model wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from slipform.errors import JsonEnforcementError


@dataclass(frozen=True, slots=True)
class Loaded:
    """A value, and where in the text it stood."""

    value: Any
    start: int
    end: int


def load(text: str) -> Loaded:
    """The value of `text`, or of the first balanced object or array in it that is JSON.

    >>> load('Sure! {"age": 36} Anything else?').value
    {'age': 36}
    """
    try:
        return Loaded(orjson.loads(text), 0, len(text))
    except orjson.JSONDecodeError as error:
        position, reason = error.pos, error.msg
    start = 0
    while (span := _balanced(text, start)) is not None:
        try:
            return Loaded(orjson.loads(text[span[0] : span[1]]), *span)
        except orjson.JSONDecodeError:
            start = span[0] + 1
    raise JsonEnforcementError(
        f"The answer holds no JSON: {reason} at character {position}",
        hint="Ask again, or ask a model that can be held to a schema.",
    )


def _balanced(text: str, start: int) -> tuple[int, int] | None:
    """The first balanced object or array from `start` on, respecting strings and escapes."""
    begin = min((at for bracket in "{[" if (at := text.find(bracket, start)) >= 0), default=-1)
    if begin < 0:
        return None
    depth = 0
    in_string = escaped = False
    for at in range(begin, len(text)):
        char = text[at]
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = in_string
        elif char == '"':
            in_string = not in_string
        elif not in_string and char in "{[":
            depth += 1
        elif not in_string and char in "}]":
            depth -= 1
            if depth == 0:
                return begin, at + 1
    return None

"""Parse strict JSON without losing digits of big integers, and find duplicate keys."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NamedTuple

import orjson

_DIGITS_AS_ZERO: Final = bytes(48 if 48 <= code <= 57 else code if code > 57 else 0 for code in range(256))
_BIG_INTEGER: Final = b"0" * 19
_TOKENS: Final = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*+(:)?|[{}\[\]]', re.DOTALL)


def parse(text: str) -> Any:
    """Return the value of a valid JSON text; raises `ValueError` (mostly with `pos`) for any other.

    Integers keep all their digits, which `orjson` alone would round to floats beyond 64 bits. Every sixth character is
    checked first: a run of 19 digits shows three in a row there, and only then is the whole text searched for one.

    >>> parse("[12345678901234567890123]")
    [12345678901234567890123]
    """
    data = text.encode()
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "infinity" not in error.msg:
            raise
        return _parse_exactly(text)
    if b"000" in data[::6].translate(_DIGITS_AS_ZERO) and _BIG_INTEGER in data.translate(_DIGITS_AS_ZERO):
        return _parse_exactly(text)
    return value


def _parse_exactly(text: str) -> Any:
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("It is nested too deeply to keep the digits of its big integers") from None


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"The number {number} is too large")
    return value


class Duplicate(NamedTuple):
    """A key that an object has more than once; `position` is that of the later one."""

    key: str
    position: int


def duplicates(text: str) -> list[Duplicate]:
    """Return every key of a valid JSON text that repeats an earlier one of the same object.

    >>> duplicates('{"a": 1, "a": 2}')
    [Duplicate(key='a', position=9)]
    """
    repeated: list[Duplicate] = []
    open_keys: list[set[str]] = []
    for token in _TOKENS.finditer(text):
        key = token.group(1)
        if key is None:
            if token.group() in "{[":
                open_keys.append(set())
            elif open_keys:
                open_keys.pop()
        elif token.group(2) and open_keys:
            name: str = orjson.loads(key) if "\\" in key else key[1:-1]
            if name in open_keys[-1]:
                repeated.append(Duplicate(name, token.start()))
            open_keys[-1].add(name)
    return repeated


def has_unique_keys(value: Any, text: str, encoded: bytes | None = None) -> bool:
    """Whether a valid text certainly has no duplicate key: its value, encoded again, has as many quotes as the text.

    A dropped key takes its quotes along, and no other quote changes. False only means that `duplicates` must search.
    `encoded` is the encoded value, where the caller has it.

    >>> has_unique_keys({"a": 1}, '{"a": 1}'), has_unique_keys({"a": 2}, '{"a": 1, "a": 2}')
    (True, False)
    """
    if encoded is None:
        try:
            encoded = orjson.dumps(value)
        except TypeError:
            return False
    return text.count('"') == encoded.count(b'"') and "\\u0022" not in text

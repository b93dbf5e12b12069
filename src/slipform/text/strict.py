"""Parse strict JSON without losing digits of big integers, and find duplicate keys."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NamedTuple

import orjson

MAX_INT_DIGITS: Final = 4300
"""The most digits of an integer that Python can parse or format, and so the parser."""
_DIGITS_AS_ZERO: Final = bytes(48) + b"0" * 10 + bytes(range(58, 256))
"""A table for `bytes.translate`: digits become `0`, characters that sort before them NUL."""
_BIG_INTEGER: Final = b"0" * 19
_TOKENS: Final = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*+(:)?|[{}\[\]]', re.DOTALL)


def parse(text: str | bytes) -> Any:
    """Return the value of a valid JSON text; raises `ValueError` (mostly with `pos`) for any other.

    Integers keep all their digits, which `orjson` alone would round to floats beyond 64 bits. Every sixth character is
    checked first: a run of 19 digits shows three in a row there, and only then is the whole text searched for one.

    >>> parse("[12345678901234567890123]")
    [12345678901234567890123]
    """
    data = text.encode() if isinstance(text, str) else text
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if "infinity" not in error.msg:
            raise
        return _parse_exactly(text)
    # `in` first tries the digits as a number, which costs more than the search.
    has_run = data[::6].translate(_DIGITS_AS_ZERO).find(b"000") >= 0
    if has_run and data.translate(_DIGITS_AS_ZERO).find(_BIG_INTEGER) >= 0:
        return _parse_exactly(text)
    return value


def _parse_exactly(text: str | bytes) -> Any:
    try:
        value = json.loads(text, parse_float=_finite, parse_constant=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("It is nested too deeply to keep the digits of its big integers") from None
    except UnicodeEncodeError:  # which `orjson` refuses, too
        raise ValueError("It holds a lone surrogate") from None
    return value


def compact_json(value: Any) -> str:
    """Return a value as compact JSON; integers keep all their digits here too. Raises `ValueError` for great depth.

    >>> compact_json({"n": 12345678901234567890123})
    '{"n":12345678901234567890123}'
    """
    try:
        return str(orjson.dumps(value), "utf-8")  # typed so that it compiles where orjson is not installed
    except TypeError:  # also lone surrogates, which are escaped, and deep nesting
        return _written_exactly(value)


def _written_exactly(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError:
        raise ValueError("It is nested too deeply to be written") from None
    return text


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"The number {number} is too large")
    return value


def _steps() -> bytes:
    digits = dict.fromkeys("0123456789")
    exponent = {"e": 6, "E": 6}
    whole = dict.fromkeys(digits, 3)
    states: list[dict[str, int]] = [
        {**whole, "-": 1, "0": 2},  # 0: at its start
        {**whole, "0": 2},  # 1: after the minus
        {".": 4, **exponent},  # 2: after a leading zero
        {".": 4, **exponent, **whole},  # 3: in the integer
        dict.fromkeys(digits, 5),  # 4: after the point
        {**exponent, **dict.fromkeys(digits, 5)},  # 5: in the fraction
        {"+": 7, "-": 7, **dict.fromkeys(digits, 8)},  # 6: after the e
        dict.fromkeys(digits, 8),  # 7: after its sign
        dict.fromkeys(digits, 8),  # 8: in the exponent
    ]
    return bytes(following.get(chr(code), 0) for following in states for code in range(128))


NUMBER_STEPS: Final = _steps()
"""At 128 × state + character: the next state; 0 where the number does not continue."""
NUMBER_ENDS: Final = frozenset((2, 3, 5, 8))
"""The states in which a number may end."""
LAST_INTEGER: Final = 3
"""A number that ends in this state or an earlier one is an integer."""


def integer_value(digits: str) -> int | None:
    """Return the integer with all its digits; None when it has more than Python supports."""
    if len(digits) > MAX_INT_DIGITS + digits.startswith("-"):
        return None
    try:
        return int(digits)
    except ValueError:  # the interpreter has a lower limit
        return None


class Duplicate(NamedTuple):
    """A key that an object has more than once; `position` is that of the later one."""

    key: str
    position: int


def duplicates(text: str) -> list[Duplicate]:
    """Return every key of a valid JSON text that occurs more than once in an object.

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


def conflicting_keys(text: str) -> list[str]:
    """Return the keys of a valid JSON text that one object has more than once with different values.

    >>> conflicting_keys('[{"a": 1, "a": 1}, {"b": 1, "b": 2}]')
    ['b']
    """
    conflicting: dict[str, None] = {}

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, each in pairs:
            if key in value and value[key] != each:
                conflicting[key] = None
            value[key] = each
        return value

    try:
        json.loads(text, object_pairs_hook=build)
    except RecursionError:
        return [each.key for each in duplicates(text)]
    return list(conflicting)


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

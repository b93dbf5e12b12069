"""Lossless changes of type: the same datum, spelled as the schema wants it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import orjson

Risk: TypeAlias = Literal["low", "medium", "high"]

_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
# Both marks are there, or the groups repeat: then no reading makes the comma a decimal mark.
_GROUPED = re.compile(
    r"[+-]?[0-9]{1,3}((,[0-9]{3})+\.[0-9]+|(,[0-9]{3}){2,}|([ _’'\u00a0\u202f][0-9]{3})+(\.[0-9]+)?)\Z"
)
_WITH_UNIT = re.compile(r"(?:[€$£¥]\s*)?([+-]?[0-9][0-9,._ ]*)\s*(?:%|[^\W\d_][^\d]{0,15}|[€$£¥°])?\Z")
_WORDS = {"true": True, "false": False}
_NOTHING = frozenset({"null", "none", "n/a", ""})
_MOST_DIGITS = 400


@dataclass(frozen=True, slots=True)
class Coerced:
    """A value in another type, how it was made, and how sure that is."""

    value: Any
    reason: str
    risk: Risk = "low"


def coercions(value: Any, types: frozenset[str], *, units: bool = False) -> Iterator[Coerced]:
    """The spellings of `value` in one of these JSON types that lose nothing.

    >>> [each.value for each in coercions("42", frozenset({"integer"}))]
    [42]
    >>> list(coercions("forty-two", frozenset({"integer"})))
    []
    """
    if isinstance(value, str):
        yield from _from_text(value, types, units=units)
    elif isinstance(value, bool):
        return
    elif isinstance(value, int | float):
        yield from _from_number(value, types)
    elif isinstance(value, list) and len(value) == 1 and "array" not in types:
        yield from _out_of_list(value[0])


def _out_of_list(value: Any) -> Iterator[Coerced]:
    """`[7]` where 7 is wanted."""
    if isinstance(value, str | int | float | dict) or value is None:
        yield Coerced(value, "the one value of a list", "medium")


def _from_number(value: float, types: frozenset[str]) -> Iterator[Coerced]:
    if "integer" in types and isinstance(value, float) and math.isfinite(value) and value.is_integer():
        yield Coerced(int(value), "whole number")
    if "string" in types:
        if isinstance(value, int):
            yield Coerced(str(value), "number as text")
        elif math.isfinite(value):
            yield Coerced(repr(value), "number as text", "medium")


def _from_text(value: str, types: frozenset[str], *, units: bool) -> Iterator[Coerced]:
    text = value.strip()
    if types & {"integer", "number"}:
        yield from _numbers(text, types, units=units)
    if "boolean" in types and text.lower() in _WORDS:
        yield Coerced(_WORDS[text.lower()], "text as boolean")
    if "null" in types and text.lower() in _NOTHING:
        yield Coerced(None, "text as null", "medium")
    if types & {"object", "array"} and text[:1] in ("{", "["):
        yield from _nested(text, types)


def _numbers(text: str, types: frozenset[str], *, units: bool) -> Iterator[Coerced]:
    if len(text) > _MOST_DIGITS:
        return
    number = _number(text, types)
    if number is not None:
        yield Coerced(number, "text as number")
    elif _GROUPED.match(text):
        number = _number(re.sub(r"[^0-9.+-]", "", text), types)
        if number is not None:
            yield Coerced(number, "grouped digits as number", "medium")
    elif units and (match := _WITH_UNIT.match(text)):
        bare = match.group(1).strip()
        number = _number(bare, types)
        if number is None and _GROUPED.match(bare):
            number = _number(re.sub(r"[^0-9.+-]", "", bare), types)
        if number is not None:
            yield Coerced(number, "number without its unit", "high")


def _number(text: str, types: frozenset[str]) -> int | float | None:
    if _INTEGER.match(text):
        return int(text)
    if not _NUMBER.match(text):
        return None
    exact = Decimal(text)
    if "number" not in types:
        return int(exact) if exact == exact.to_integral_value() and exact.adjusted() < _MOST_DIGITS else None
    number = float(text)
    # Only where the double prints as the same number: digits must not be lost in silence.
    return number if math.isfinite(number) and Decimal(repr(number)) == exact else None


def _nested(text: str, types: frozenset[str]) -> Iterator[Coerced]:
    try:
        inner = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if ("object" in types and isinstance(inner, dict)) or ("array" in types and isinstance(inner, list)):
        yield Coerced(inner, "JSON inside text")

"""Estimate how many tokens an answer takes.

Estimates for JSON on one line. Digits are one token each in small models' vocabularies, words one per four characters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.schema.document import Json, lookup, reference_of
from slipform.schema.keywords import implied_types, named_types, tuple_parts
from slipform.schema.patterns import parsed

PER_CHARACTER = 0.5
"""Tokens per character of a text: words with some names and numbers among them."""

KEY_BEYOND = 14
"""Tokens of a key that the schema does not list."""

_QUOTES = 2.0
_SEPARATOR = 2.0
_COMFORTABLE = 24
_NUMBER = 8.0
_LITERAL = 1.5
_ENTRIES = 8
"""The number of entries in a long list or map."""

_DEEPEST = 40
_FORMATS = {"date": 12, "time": 14, "date-time": 26, "uuid": 38, "ipv4": 15, "ipv6": 36, "duration": 10}
_OPEN_TEXT = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens of the shortest answer, of a reasonable one, and of a long one."""

    least: float
    comfortable: float
    ample: float

    def plus(self, other: Cost) -> Cost:
        """Return the cost of both in sequence."""
        return Cost(
            self.least + other.least, self.comfortable + other.comfortable, min(self.ample + other.ample, _OPEN_TEXT)
        )


_NEVER = Cost(math.inf, math.inf, math.inf)
_ANYTHING = Cost(_LITERAL, 12, 60)


class Costs:
    """Computes the cost of each part of one schema; references are resolved once."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._by_reference: dict[str, Cost] = {}
        self._under_way: set[str] = set()

    def of(self, sub: Json, depth: int = 0) -> Cost:
        """Return the cost of an answer to a subschema; infinite for one that never ends."""
        if not isinstance(sub, Mapping):
            return _NEVER if sub is False else _ANYTHING
        if depth > _DEEPEST:
            return _NEVER
        if "enum" in sub or "const" in sub:
            return _literal(sub)
        if (reference := reference_of(sub)) is not None:
            return self._reference(reference, depth)
        if branches := [*sub.get("anyOf", ()), *sub.get("oneOf", ())]:
            cost = _either([self.of(each, depth + 1) for each in branches])
            if "properties" in sub:
                return cost.plus(self._kinds(sub, depth))
            return cost
        if every := sub.get("allOf"):
            total = self._kinds(sub, depth) if "properties" in sub else Cost(0, 0, 0)
            for each in every:
                total = total.plus(self.of(each, depth + 1))
            return total
        return self._kinds(sub, depth)

    def _reference(self, reference: str, depth: int) -> Cost:
        if reference in self._under_way:
            return _NEVER
        if reference not in self._by_reference:
            self._under_way.add(reference)
            cost = self.of(lookup(self._root, reference), depth + 1)
            self._under_way.discard(reference)
            if self._under_way and math.isinf(cost.least):  # inside a cycle, the cost of a finite part may be infinite
                return cost
            self._by_reference[reference] = cost
        return self._by_reference[reference]

    def _kinds(self, sub: Mapping[str, Any], depth: int) -> Cost:
        kinds = types_of(sub)
        one: dict[str, Callable[[Mapping[str, Any], int], Cost]] = {
            "string": lambda schema, _: text_cost(schema),
            "array": self._array,
            "object": self._object,
        }
        return _either([one.get(kind, _scalar(kind))(sub, depth) for kind in kinds])

    def _array(self, sub: Mapping[str, Any], depth: int) -> Cost:
        """Return the cost of an array: its shortest, a likely and a long value."""
        first, items = tuple_parts(sub)
        least: int = sub.get("minItems", 0)
        total = Cost(2, 2, 2)
        for number, each in enumerate(first):
            cost = self.of(each, depth + 1)
            total = total.plus(spaced(cost) if number < least else Cost(0, 0, cost.ample))
        item = self.of(items, depth + 1)
        needed = max(0, least - len(first))
        likely = min(max(needed, 0 if first else 1), sub.get("maxItems", math.inf))
        most = max(needed, min(_ENTRIES, sub.get("maxItems", _ENTRIES)))
        if not most or math.isinf(item.least):
            # Inside a cycle: an empty list ends it, and more items are possible.
            if not needed:
                return total.plus(Cost(0, 0, _OPEN_TEXT if most else 0))
            return _NEVER
        each = item.comfortable + _SEPARATOR
        return total.plus(Cost(_times(needed, item.least + _SEPARATOR), likely * each, most * (item.ample + 2)))

    def _object(self, sub: Mapping[str, Any], depth: int) -> Cost:
        """Return the cost of an object: its shortest, a likely and a long value."""
        properties = sub.get("properties") or {}
        needed = frozenset(sub.get("required", ()))
        total = Cost(2, 2, 2)
        for name, each in properties.items():
            cost = Cost(0, 0, 0).plus(self.of(each, depth + 1))
            if name in needed:
                total = total.plus(keyed(name, cost))
            elif not math.isinf(cost.least):
                total = total.plus(Cost(0, 0, keyed(name, cost).ample))
        for name in needed - properties.keys():
            total = total.plus(keyed(name, _ANYTHING))
        more = sub.get("additionalProperties", True)
        if not properties and more is not False:
            entry = self.of(more, depth + 1)
            if not math.isinf(entry.least):
                one = KEY_BEYOND + entry.comfortable
                needed_entries = max(0, sub.get("minProperties", 0) - len(needed))
                total = total.plus(Cost(needed_entries * one, max(needed_entries, 1) * one, _ENTRIES * one))
        return total


def types_of(sub: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema names or implies; without any, string, the shortest answer."""
    return named_types(sub) or frozenset(implied_types(sub) or ("string", "number", "boolean", "null"))


def text_cost(sub: Mapping[str, Any]) -> Cost:
    """Return the cost of a string."""
    if (fixed := _FORMATS.get(sub.get("format", ""))) is not None:
        return Cost(fixed, fixed, fixed)
    shortest, longest = widths(sub)
    each = PER_CHARACTER
    middle = min(longest, max(shortest, _COMFORTABLE))
    return Cost(_QUOTES + shortest * each, _QUOTES + middle * each, min(_QUOTES + longest * each, _OPEN_TEXT))


def widths(sub: Mapping[str, Any]) -> tuple[float, float]:
    """Return the minimum and maximum length of a string, in characters."""
    shortest = float(sub.get("minLength", 0))
    longest = float(sub.get("maxLength", math.inf))
    if isinstance(pattern := sub.get("pattern"), str):
        narrow, wide = _pattern_widths(pattern)
        shortest = max(shortest, narrow)
        if pattern.startswith("^") and pattern.endswith("$") and "|" not in pattern:
            longest = min(longest, max(wide, shortest))
    if "format" in sub:
        shortest = max(shortest, 8)
    return shortest, max(shortest, longest)


def _pattern_widths(pattern: str) -> tuple[float, float]:
    tree = parsed(pattern)
    if tree is None:
        return 4, math.inf
    narrow, wide = tree.getwidth()
    return float(min(narrow, 10_000)), math.inf if wide > 10_000 else float(wide)


def keyed(name: str, cost: Cost) -> Cost:
    """Return the cost of a value together with its key."""
    key = key_cost(name)
    return Cost(cost.least + key, cost.comfortable + key, cost.ample + key)


def key_cost(name: str) -> float:
    """Return the tokens of `"name": ` and the comma before it."""
    return 4.5 + len(name) / 4


def spaced(cost: Cost) -> Cost:
    """Return the cost of a value with the comma after it."""
    return cost.plus(Cost(_SEPARATOR, _SEPARATOR, _SEPARATOR))


def _literal(sub: Mapping[str, Any]) -> Cost:
    sizes = [1 + len(str(value)) / 3 for value in sub.get("enum", [sub.get("const")])] or [0.0]
    return Cost(min(sizes), max(sizes), max(sizes))


def _scalar(kind: str) -> Callable[[Mapping[str, Any], int], Cost]:
    size = _NUMBER if kind in ("number", "integer") else _LITERAL
    return lambda *_: Cost(_LITERAL, size, size)


def _either(costs: list[Cost]) -> Cost:
    ending = [cost for cost in costs if not math.isinf(cost.least)]
    if not ending:
        return _NEVER
    return Cost(
        min(cost.least for cost in ending),
        min(cost.comfortable for cost in ending),
        max(cost.ample for cost in ending),
    )


def _times(count: int, each: float) -> float:
    return count * each if count else 0.0

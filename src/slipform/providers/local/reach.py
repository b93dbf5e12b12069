"""What of an answer was cut short by the bounds that decoding adds: said once, with the places."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.ir import ModelWarning
from slipform.providers.local.cost import types
from slipform.providers.local.walk import Json, Pointer, lookup, subschemas, written

_NAMED = 5
_MANY_DIGITS = 10**14
_DECIMALS = 9
_DEEPEST = 60


@dataclass(frozen=True, slots=True)
class Bounds:
    """What decoding was held to beyond the schema, so that the answer would close within its tokens."""

    narrowed: Mapping[str, Any]
    given: Mapping[str, Any]
    left_out: tuple[Pointer, ...]
    """Optional parts of the schema that there was no room for."""
    max_tokens: int

    def warnings(self, text: str, key: str | None = None) -> tuple[ModelWarning, ...]:
        """What to say about an answer, or the value at its `key`; nothing, where nothing was cut or left out."""
        try:
            value = json.loads(text)
        except ValueError:
            return ()  # cut off, which is said elsewhere
        if key is not None:
            value = value[key]
        reached = [written(at) or "the root" for at in _reached(value, self.narrowed, self, (), 0)]
        missing = [written(pointer) for pointer in self.left_out]
        said = [
            f"{what} {_listed(places)}"
            for what, places in (("reached at", reached), ("leaving no room for the optional", missing))
            if places
        ]
        if not said:
            return ()
        message = f"Decoding was bounded to close within {self.max_tokens} tokens, {'; '.join(said)}."
        return (ModelWarning("answer_bounded", f"{message} Ask with more max_tokens for more.", None),)

    def own(self, keyword: str) -> frozenset[int]:
        """The bounds of this kind that the schema itself has: to reach those is no loss."""
        return frozenset(sub[keyword] for _, sub in subschemas(self.given) if isinstance(sub.get(keyword), int))


def _listed(places: list[str]) -> str:
    more = len(places) - _NAMED
    return ", ".join(places[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _reached(value: Any, sub: Json, bounds: Bounds, at: Pointer, depth: int) -> Iterator[Pointer]:
    """Where the value is as long as it was allowed to get."""
    if not isinstance(sub, Mapping) or depth > _DEEPEST or "enum" in sub or "const" in sub:
        return
    if "$ref" in sub:
        yield from _reached(value, lookup(bounds.narrowed, sub["$ref"]), bounds, at, depth + 1)
        return
    for branch in sub.get("anyOf", ()):
        if isinstance(branch, Mapping) and _kind(value) & (types(branch) or _kind(value)):
            yield from _reached(value, branch, bounds, at, depth + 1)
            break
    if _is_full(value, sub, bounds):
        yield at
    if isinstance(value, dict):
        named = sub.get("properties") or {}
        other = next(iter((sub.get("patternProperties") or {}).values()), None)
        for name, each in value.items():
            yield from _reached(each, named.get(name, other), bounds, (*at, name), depth + 1)
    elif isinstance(value, list) and isinstance(items := sub.get("items"), Mapping):
        for number, each in enumerate(value):
            yield from _reached(each, items, bounds, (*at, str(number)), depth + 1)


def _kind(value: Any) -> frozenset[str]:
    if isinstance(value, bool) or value is None:
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int | float):
        return frozenset({"number", "integer"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})


def _is_full(value: Any, sub: Mapping[str, Any], bounds: Bounds) -> bool:
    if isinstance(value, str):
        return len(value) == sub.get("maxLength") and len(value) not in bounds.own("maxLength")
    if isinstance(value, list):
        return len(value) == sub.get("maxItems") and len(value) not in bounds.own("maxItems")
    if isinstance(value, dict):
        return len(value) == sub.get("maxProperties") and len(value) not in bounds.own("maxProperties")
    if isinstance(value, float):
        return len(repr(value).partition(".")[2]) >= _DECIMALS or abs(value) >= _MANY_DIGITS
    return isinstance(value, int) and abs(value) >= _MANY_DIGITS

"""Bound a schema's open ends by a token budget, and report the bounds that an answer has reached.

Every valid value of the narrowed schema is valid under the original one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.addons.local.decoding.cost import types_of
from slipform.addons.local.decoding.forms import merged
from slipform.ir import ModelWarning
from slipform.schema.document import (
    CONTENTS,
    DEFINITIONS,
    DYNAMIC_REF,
    RECURSIVE_REF,
    REF,
    Json,
    Pointer,
    join_pointer,
    lookup,
    reference_of,
    subschemas,
)
from slipform.schema.keywords import ANNOTATIONS, JSON_TYPES, json_type, named_types, tuple_parts, widened

_CHARS_PER_TOKEN = 3.5
_SHARE = 0.8
"""The share of the token limit that a full answer may use: the estimate is rough."""
_RUNAWAY = 0.7
"""Additional tokens per character of a string in which the model gets stuck (`1234567890…`): up to two in all."""
_LONGEST_KEY = 40
_DEEPEST = 12
_MOST_MERGES = 400
_DIGITS = 10**15
_FINEST = 1e-9
"""Numbers have nine digits after the point and no exponent: a small model may otherwise write zeros endlessly."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_COMBINES = (REF, "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies", DYNAMIC_REF, "not")
_OPENS = ("patternProperties", "unevaluatedProperties", "propertyNames", "minProperties")
_SHORT_FORMATS = frozenset({"date", "time", "date-time", "uuid", "ipv4", "ipv6", "duration"})


@dataclass(frozen=True, slots=True)
class TokenBounds:
    """The longest string in characters, and the most items of an array or entries of a map; None for no limit."""

    length: int | None
    items: int | None
    patterns: bool = True
    """Whether strings with a pattern get a length too; both together may exclude every value."""
    close: bool = True
    """Whether open objects are closed, so that the model cannot invent further keys."""
    shared: frozenset[str] = frozenset()
    """Definitions that describe an object together with others, and so must stay open."""


_LADDER = ((512, 24), (384, 16), (256, 12), (192, 10), (128, 8), (96, 6), (64, 4), (48, 3), (32, 2), (24, 1))


def with_merged_forms(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with several schemas of one object merged into one, where possible."""
    return _Merging(schema).whole()


class _Merging:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = _MOST_MERGES

    def whole(self) -> dict[str, Any]:
        root_fields = {key: value for key, value in self._root.items() if key in ("$schema", *DEFINITIONS)}
        made = self._sub({key: value for key, value in self._root.items() if key not in DEFINITIONS}, 0)
        definitions = {key: self._inside(key, value, 0) for key, value in root_fields.items() if key in DEFINITIONS}
        return {**root_fields, **made, **definitions}

    def _sub(self, sub: Json, depth: int) -> Any:
        """Return a subschema with its combinations merged, up to the limit of merges."""
        if not isinstance(sub, Mapping):
            return sub
        if self._left > 0 and depth < _DEEPEST and _is_combined(sub):
            self._left -= 1
            one = merged(sub, self._root)
            if one is not None:
                return self._sub(one, depth + 1)
        return {key: self._inside(key, value, depth) for key, value in sub.items()}

    def _inside(self, key: str, value: Any, depth: int) -> Any:
        """Return a keyword's value with the subschemas in it merged."""
        if key in _MAPS and isinstance(value, Mapping):
            return {name: self._sub(each, depth) for name, each in value.items()}
        if key in _LISTS and isinstance(value, list):
            return [self._sub(each, depth) for each in value]
        if key in CONTENTS:
            return self._sub(value, depth)
        return value


def _is_combined(sub: Mapping[str, Any]) -> bool:
    """Return whether the schema combines several schemas of one value."""
    constraints = sub.keys() - ANNOTATIONS - {"type", *DEFINITIONS}
    return "allOf" in sub or (len(constraints) > 1 and not constraints.isdisjoint({REF, "anyOf", "oneOf"}))


def no_limits(schema: Mapping[str, Any]) -> TokenBounds:
    """Return limits that leave texts, lists and maps as long as the schema does."""
    close = not any(DYNAMIC_REF in sub or RECURSIVE_REF in sub for _, sub in subschemas(schema))
    return TokenBounds(None, None, close=close, shared=_shared_definitions(schema))


def limits_for(schema: Mapping[str, Any], max_tokens: int) -> TokenBounds:
    """Return the widest limits under which a full answer should fit in `max_tokens`."""
    widest = no_limits(schema)
    strings = sum("string" in named_types(sub) and "enum" not in sub for _, sub in subschemas(schema))
    for length, items in _LADDER:
        limits = dataclasses.replace(widest, length=length, items=items)
        if _Size(schema, length, items).of(schema, 0) + min(2, strings) * length * _RUNAWAY <= max_tokens * _SHARE:
            return limits
    return limits


def _shared_definitions(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return references inside combinations whose parent describes the same object, and those that they lead to."""
    shared: set[str] = set()
    pending: list[Json] = []
    for _, sub in subschemas(schema):
        speaks = any(key in sub for key in ("properties", "required", "additionalProperties"))
        if speaks or "allOf" in sub or sum(key in sub for key in (REF, "anyOf", "oneOf", "allOf")) > 1:
            pending += _partners(sub)
    while pending:
        sub = pending.pop()
        if isinstance(sub, Mapping):
            reference = reference_of(sub)
            if reference is not None and reference not in shared:
                shared.add(reference)
                pending.append(lookup(schema, reference))
            pending += _combined(sub)
    return frozenset(shared)


def _partners(sub: Mapping[str, Any]) -> list[Json]:
    """Return the subschemas of the same value."""
    if REF in sub:
        return [*_combined(sub), {REF: sub[REF]}]
    return _combined(sub)


def _combined(sub: Mapping[str, Any]) -> list[Json]:
    return [each for key in ("anyOf", "oneOf", "allOf") for each in sub.get(key, ())]


def narrow(sub: Json, limits: TokenBounds, *, branch: bool = False) -> Json:
    """Return the schema with a limit for every open end, so that an answer fits its tokens.

    `branch` is for a schema inside `anyOf` and the like: the schema around it applies to the same value, and types it.
    """
    if not isinstance(sub, Mapping) or sub.keys() <= ANNOTATIONS:
        if sub is False or branch:
            return sub
        return anything(limits, 1)
    changed: dict[str, Any] = dict(sub)
    kinds = named_types(sub)
    if not kinds and not branch and not any(key in sub for key in (*_COMBINES, "enum", "const")):
        kinds = types_of(sub)
        changed["type"] = sorted(kinds) if len(kinds) > 1 else next(iter(kinds))
    if "enum" not in sub and "const" not in sub:
        _narrow_types(changed, kinds, limits, branch=branch)
    return _inside(sub, changed, limits, branch=branch)


def _narrow_types(changed: dict[str, Any], kinds: frozenset[str], limits: TokenBounds, *, branch: bool) -> None:
    """Bound the values of each of these types."""
    if "string" in kinds:
        _narrow_string(changed, limits)
    narrow_numbers(changed, kinds)
    if "array" in kinds:
        _narrow_array(changed, limits, branch=branch)
    if "object" in kinds:
        _narrow_object(changed, limits, branch=branch)


def _inside(sub: Mapping[str, Any], changed: dict[str, Any], limits: TokenBounds, *, branch: bool) -> dict[str, Any]:
    """Return `changed` with every subschema of it narrowed."""
    for key in _MAPS:
        if isinstance(children := sub.get(key), Mapping):
            narrowed = {
                name: narrow(each, limits, branch=f"#/{key}/{name}" in limits.shared) for name, each in children.items()
            }
            changed[key] = {**changed[key], **narrowed}
    shared = branch or any(key in sub for key in ("properties", "items", "type"))
    for key in _LISTS:
        if isinstance(children := sub.get(key), list):
            inside = key == "allOf" or (shared and key in ("anyOf", "oneOf"))
            changed[key] = [narrow(each, limits, branch=inside) for each in children]
    for key in CONTENTS:
        children = sub.get(key)
        if isinstance(children, Mapping) and changed.get(key) is children:
            changed[key] = narrow(children, limits)
    return changed


def _narrow_string(changed: dict[str, Any], limits: TokenBounds) -> None:
    """Bound the length of a string; a string with a pattern or format gets more."""
    if changed.get("format") in _SHORT_FORMATS or ("pattern" in changed and not limits.patterns):
        return
    if limits.length is None:
        return
    roomy = max(limits.length, 64) if "format" in changed or "pattern" in changed else limits.length
    changed["maxLength"] = max(min(roomy, changed.get("maxLength", roomy)), changed.get("minLength", 0))


def narrow_numbers(changed: dict[str, Any], types: frozenset[str]) -> None:
    """Bound the digits of a number: a small model may otherwise write them endlessly."""
    if "integer" in types and "multipleOf" not in changed:
        _narrow_integer(changed)
    if "number" in types:
        changed.setdefault("multipleOf", _FINEST)
        _narrow_integer(changed)


def _narrow_integer(changed: dict[str, Any]) -> None:
    if not any(key in changed for key in ("maximum", "exclusiveMaximum")):
        changed["maximum"] = max(_DIGITS, _number(changed, "minimum"), _number(changed, "exclusiveMinimum") * 10)
    if not any(key in changed for key in ("minimum", "exclusiveMinimum")):
        changed["minimum"] = min(-_DIGITS, _number(changed, "maximum"), _number(changed, "exclusiveMaximum") * 10)


def _number(schema: Mapping[str, Any], key: str) -> Any:
    value = schema.get(key, 0)
    return 0 if isinstance(value, bool) else value


def _narrow_array(changed: dict[str, Any], limits: TokenBounds, *, branch: bool) -> None:
    if limits.items is not None:
        least = max(changed.get("minItems", 0), len(tuple_parts(changed)[0]))
        most = max(least, limits.items)
        changed["maxItems"] = min(most, changed.get("maxItems", most))
    if not branch and "items" not in changed and "prefixItems" not in changed:
        changed["items"] = anything(limits, 0)


def _narrow_object(changed: dict[str, Any], limits: TokenBounds, *, branch: bool) -> None:
    """Close an object to unlisted keys, or bound their number."""
    if branch or not limits.close or any(key in changed for key in (*_OPENS, *_COMBINES)):
        return
    more = changed.get("additionalProperties", True)
    if listed := changed.get("properties"):
        if more is True or more == {}:
            missing = {name: anything(limits, 0) for name in changed.get("required", ())}
            changed["properties"] = {**changed["properties"], **{n: v for n, v in missing.items() if n not in listed}}
            changed["additionalProperties"] = False
        return
    if more is False:
        return
    if limits.items is None:
        changed["additionalProperties"] = narrow(more, limits)
    else:
        _bound_keys(changed, anything(limits, 1) if more is True or more == {} else narrow(more, limits))
        most = max(limits.items, len(changed.get("required", ())))
        changed["maxProperties"] = min(most, changed.get("maxProperties", most))


def anything(limits: TokenBounds, depth: int) -> dict[str, Any]:
    """Return the schema of any value up to a depth; without limits, of any depth."""
    if limits.length is None or limits.items is None:
        return {}
    scalars: dict[str, Any] = {
        "type": ["string", "number", "boolean", "null"],
        "maxLength": limits.length,
        "multipleOf": _FINEST,
        "minimum": -_DIGITS,
        "maximum": _DIGITS,
    }
    if depth == 0:
        return scalars
    inner = anything(limits, depth - 1)
    few = min(limits.items, 8)
    listed = {"type": "array", "items": inner, "maxItems": few}
    mapped: dict[str, Any] = {"type": "object", "maxProperties": few}
    _bound_keys(mapped, inner)
    return {"anyOf": [scalars, listed, mapped]}


def _bound_keys(changed: dict[str, Any], value: Json) -> None:
    """Return the schema of a map with short keys: a model can get stuck in a key as well."""
    changed["patternProperties"] = {f"^.{{1,{_LONGEST_KEY}}}$": value}
    changed["additionalProperties"] = False


class _Size:
    """Estimates how many tokens a full answer takes: required parts in full, optional ones at half."""

    def __init__(self, root: Mapping[str, Any], length: int, items: int) -> None:
        self._root = root
        self._length = length
        self._items = items
        self._sizes: dict[str, float] = {}

    def of(self, sub: Json, depth: int) -> float:
        """Return about how many tokens a full value of a subschema takes."""
        if not isinstance(sub, Mapping):
            return self._string({}) if sub is not False else 0
        if depth > _DEEPEST:
            return 8
        if "enum" in sub or "const" in sub:
            longest = max((len(str(value)) for value in sub.get("enum", [sub.get("const")])), default=0)
            return 2 + longest / _CHARS_PER_TOKEN
        size = max((self._kind(kind, sub, depth) for kind in types_of(sub)), default=0.0)
        if (reference := reference_of(sub)) is not None:
            return max(self._reference(reference, depth), size if "type" in sub else 0.0)
        if branches := [*sub.get("anyOf", ()), *sub.get("oneOf", ())]:
            size = (size if "properties" in sub else 0) + max(self.of(each, depth + 1) for each in branches)
        return size + sum(self.of(each, depth + 1) for each in sub.get("allOf", ()))

    def _reference(self, reference: str, depth: int) -> float:
        if reference not in self._sizes:
            self._sizes[reference] = 8  # the cost of a recursive reference
            self._sizes[reference] = self.of(lookup(self._root, reference), depth + 1)
        return self._sizes[reference]

    def _kind(self, kind: str, sub: Mapping[str, Any], depth: int) -> float:
        if kind == "string":
            return self._string(sub)
        if kind == "array":
            return self._array(sub, depth)
        if kind == "object":
            return self._object(sub, depth)
        return 6 if kind in ("number", "integer") else 1

    def _string(self, sub: Mapping[str, Any]) -> float:
        if sub.get("format") in _SHORT_FORMATS:
            return 16
        most: int = min(self._length, sub.get("maxLength", self._length))
        longest: int = max(most, sub.get("minLength", 0))
        return 2 + longest / _CHARS_PER_TOKEN

    def _array(self, sub: Mapping[str, Any], depth: int) -> float:
        first, items = tuple_parts(sub)
        most: int = min(self._items, sub.get("maxItems", self._items))
        count: int = max(most, sub.get("minItems", 0))
        rest = max(0, count - len(first)) * (2 + self.of(items, depth + 1))
        return 3 + sum(2 + self.of(each, depth + 1) for each in first) + rest

    def _object(self, sub: Mapping[str, Any], depth: int) -> float:
        """Return about how many tokens an object takes: optional properties count half."""
        properties = sub.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            inner = sub.get("additionalProperties", True)
            entry = 8 + (self.of(inner, depth + 1) if isinstance(inner, Mapping) else 8)
            return 3 + (0 if inner is False else self._items * entry)
        required = set(sub.get("required", ()))
        total = 3.0
        for name, each in properties.items():
            whole = 5 + len(name) / _CHARS_PER_TOKEN + self.of(each, depth + 1)
            total += whole if name in required else whole / 2
        return total


_NAMED = 5
_MANY_DIGITS = 10**14
_DECIMALS = 9
_DEEPEST_REACHED = 60


@dataclass(frozen=True, slots=True)
class AddedBounds:
    """Bounds that decoding added to the schema, so that the answer closes within its tokens."""

    narrowed: Mapping[str, Any]
    original: Mapping[str, Any]
    left_out: tuple[Pointer, ...]
    """Optional parts of the schema that did not fit into the budget."""
    max_tokens: int

    def warnings(self, text: str, key: str | None = None) -> tuple[ModelWarning, ...]:
        """Return warnings about an answer, or the value at its `key`, that reached a bound; none otherwise."""
        try:
            value = json.loads(text)
        except ValueError:
            return ()  # a truncated answer, which is reported elsewhere
        if key is not None:
            value = value[key]
        reached = [join_pointer(at) or "the root" for at in _reached_bounds(value, self.narrowed, self, (), 0)]
        missing = [join_pointer(pointer) for pointer in self.left_out]
        changes = [
            f"{what} {_names_text(places)}"
            for what, places in (("reached at", reached), ("leaving no room for the optional", missing))
            if places
        ]
        if not changes:
            return ()
        message = f"Decoding was bounded to close within {self.max_tokens} tokens, {'; '.join(changes)}."
        return (ModelWarning("answer_bounded", f"{message} Ask with more max_tokens for more.", None),)

    def own(self, keyword: str) -> frozenset[int]:
        """Return the schema's own bounds of this kind: reaching those is not a loss."""
        return frozenset(sub[keyword] for _, sub in subschemas(self.original) if isinstance(sub.get(keyword), int))


def _names_text(places: list[str]) -> str:
    more = len(places) - _NAMED
    return ", ".join(places[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _reached_bounds(value: Any, sub: Json, bounds: AddedBounds, at: Pointer, depth: int) -> Iterator[Pointer]:
    """Yield where the value is as long as decoding allowed."""
    if not isinstance(sub, Mapping) or depth > _DEEPEST_REACHED or "enum" in sub or "const" in sub:
        return
    if REF in sub:
        yield from _reached_bounds(value, lookup(bounds.narrowed, sub[REF]), bounds, at, depth + 1)
        return
    for branch in sub.get("anyOf", ()):
        if isinstance(branch, Mapping) and json_type(value) in (widened(named_types(branch)) or JSON_TYPES):
            yield from _reached_bounds(value, branch, bounds, at, depth + 1)
            break
    if _is_full(value, sub, bounds):
        yield at
    for step, child, child_schema in _children(value, sub):
        yield from _reached_bounds(child, child_schema, bounds, (*at, step), depth + 1)


def _children(value: Any, sub: Mapping[str, Any]) -> Iterator[tuple[str, Any, Json]]:
    """Yield the children of a value, each with its key or index, and its subschema."""
    if isinstance(value, dict):
        listed = sub.get("properties") or {}
        unlisted = next(iter((sub.get("patternProperties") or {}).values()), None)
        yield from ((name, each, listed.get(name, unlisted)) for name, each in value.items())
    elif isinstance(value, list) and isinstance(items := sub.get("items"), Mapping):
        yield from ((str(index), each, items) for index, each in enumerate(value))


def _is_full(value: Any, sub: Mapping[str, Any], bounds: AddedBounds) -> bool:
    """Return whether a value is as large as a bound that decoding added."""
    if isinstance(value, str):
        return len(value) == sub.get("maxLength") and len(value) not in bounds.own("maxLength")
    if isinstance(value, list):
        return len(value) == sub.get("maxItems") and len(value) not in bounds.own("maxItems")
    if isinstance(value, dict):
        return len(value) == sub.get("maxProperties") and len(value) not in bounds.own("maxProperties")
    if isinstance(value, float):
        return len(repr(value).partition(".")[2]) >= _DECIMALS or abs(value) >= _MANY_DIGITS
    return isinstance(value, int) and abs(value) >= _MANY_DIGITS

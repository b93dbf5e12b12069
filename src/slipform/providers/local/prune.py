"""Leaving out of a schema what decoding cannot be held to, where it is optional.

A model that has answered wrongly there once is not asked for it again: a property that need not be there is left out,
a list that may be empty stays empty, a branch that is not the only one is not taken. Everything valid under the result
is valid under the schema it was made of, as far as the places that were taken out go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipform.errors import SchemaError
from slipform.providers.local.walk import CONTENTS, LISTS, MAPS, Json, Pointer, changed_at, found_at, lookup
from slipform.schema import Schema

_ROUNDS = 60


def prune(given: Mapping[str, Any], weak: Mapping[str, Any], places: Iterable[Pointer]) -> tuple[Json, set[Pointer]]:
    """The schema `weak` without as many of the places as it can do without, and which those are.

    A place is the pointer of a keyword that is not held in `weak`; `given` still has it. Known values that are valid
    there (a `default`, `examples`) are kept as the only ones.

    >>> schema = {"properties": {"a": {"pattern": "(a)(?=b)"}, "b": {"type": "null"}}}
    >>> prune(schema, {"properties": {"a": {}, "b": {"type": "null"}}}, [("properties", "a", "pattern")])[0]
    {'properties': {'b': {'type': 'null'}}, 'additionalProperties': False}
    """
    done: set[Pointer] = set()
    current: Json = weak
    for place in places:
        shorter = _without(current, given, place)
        if shorter is not None:
            current = shorter
            done.add(place)
    return current, done


def _without(current: Json, given: Json, place: Pointer) -> Json:
    """The schema without one place, or None where it cannot do without."""
    holder = _holder(current, place)
    there, full = _found(current, holder), _found(given, holder)
    if not isinstance(there, Mapping) or not isinstance(full, Mapping):
        return None
    for less in (_single(place, there), _unnamed(place, holder, there), _known_values(full, given), False):
        if less is not None:
            result = closed_up(changed_at(current, holder, less) if holder else less)
            if result is not False:
                return result
    return None


def _found(schema: Json, pointer: Pointer) -> Json:
    try:
        return found_at(schema, pointer)
    except (KeyError, IndexError, ValueError, TypeError):
        return None


def _holder(current: Json, place: Pointer) -> Pointer:
    """The subschema that a place is, or is a keyword of."""
    listed = bool(place[-2:-1]) and (place[-2] in MAPS or (place[-1].isdigit() and place[-2] in LISTS))
    if not place or ((listed or place[-1] in CONTENTS) and isinstance(_found(current, place), Mapping)):
        return place
    return place[:-2] if listed else place[:-1]


def _unnamed(place: Pointer, holder: Pointer, sub: Mapping[str, Any]) -> Json:
    """A map with a pattern of names that is not held, without any names that only patterns give."""
    if "patternProperties" not in place[len(holder) :] and place[-1:] != ("propertyNames",):
        return None
    return {**{key: value for key, value in sub.items() if key != "patternProperties"}, "additionalProperties": False}


def _single(place: Pointer, sub: Mapping[str, Any]) -> Json:
    """A list whose items must differ, with one item at the most."""
    if place[-1:] != ("uniqueItems",) or sub.get("minItems", 0) > 1:
        return None
    return {**sub, "maxItems": min(1, sub.get("maxItems", 1))}


def _known_values(sub: Mapping[str, Any], root: Mapping[str, Any]) -> Json:
    """The values that the schema itself names for the place, if they are valid there."""
    examples = sub.get("examples", [])
    named = [*(examples if isinstance(examples, list) else []), *([sub["default"]] if "default" in sub else [])]
    if not named:
        return None
    definitions = {key: root[key] for key in ("$schema", "$defs", "definitions") if key in root}
    try:
        judge = Schema[object]("place", {**definitions, **sub})
        valid = [value for value in named if not judge.validate(value)]
    except SchemaError:  # it refers to a part of the document that is not here
        return None
    return {"enum": valid} if valid else None


def closed_up(schema: Json) -> Json:
    """The schema without the parts that no value fits, or False if then no value fits at all.

    >>> closed_up({"anyOf": [{"type": "null"}, {"required": ["a"], "properties": {"a": False}}]})
    {'anyOf': [{'type': 'null'}]}
    """
    for _ in range(_ROUNDS):
        smaller = _closed(schema, schema)
        if smaller == schema:
            return smaller
        schema = smaller
    return schema


def _closed(sub: Json, root: Json) -> Json:
    if not isinstance(sub, Mapping):
        return sub
    if "$ref" in sub and lookup(root, sub["$ref"]) is False:
        return False
    changed: dict[str, Any] = dict(sub)
    for key, held in sub.items():
        if key in MAPS and isinstance(held, Mapping):
            changed[key] = {name: _closed(each, root) for name, each in held.items()}
        elif key in LISTS and isinstance(held, list):
            changed[key] = [_closed(each, root) for each in held]
        elif key in CONTENTS:
            changed[key] = _closed(held, root)
    for close in (_close_choices, _close_object, _close_array):
        if not close(changed):
            return False
    return changed


def _close_choices(changed: dict[str, Any]) -> bool:
    if False in changed.get("anyOf", ()):
        changed["anyOf"] = [each for each in changed["anyOf"] if each is not False]
        if not changed["anyOf"]:
            return False
    # What one branch of a `oneOf` takes must not be in the others: without it, they would take too much.
    return False not in (*changed.get("oneOf", ()), *changed.get("allOf", ()))


def _close_object(changed: dict[str, Any]) -> bool:
    listed = changed.get("properties", {})
    if gone := [name for name, each in listed.items() if each is False]:
        changed["properties"] = {name: each for name, each in listed.items() if each is not False}
        changed["additionalProperties"] = False
        changed.pop("patternProperties", None)
    named = changed.get("patternProperties", {})
    if any(each is False for each in named.values()):
        # Which names are left would have to be said in one pattern: rather none of them.
        del changed["patternProperties"]
        changed["additionalProperties"] = False
    return not set(gone) & set(changed.get("required", ()))


def _close_array(changed: dict[str, Any]) -> bool:
    for key in ("items", "prefixItems"):
        if isinstance(changed.get(key), list) and False in changed[key]:
            _shorten(changed, changed[key].index(False))
            changed[key] = changed[key][: changed[key].index(False)]
    if changed.get("items") is False and "maxItems" not in changed:
        _shorten(changed, len(changed.get("prefixItems", ())))
    return bool(changed.get("minItems", 0) <= changed.get("maxItems", changed.get("minItems", 0)))


def _shorten(changed: dict[str, Any], most: int) -> None:
    changed["maxItems"] = min(most, changed.get("maxItems", most))

"""Several schemas of one value → one, so that the tokens of its answer can be shared out.

`allOf`, a `$ref` with siblings, and `anyOf` beside properties all speak of one value together. Merging never widens;
what it cannot put into one schema it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from slipform.providers.local.cost import types
from slipform.providers.local.walk import Json, lookup

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "$id", "id", "$schema", "readOnly"}
)
DEFINITIONS = frozenset({"$defs", "definitions"})
_CHOICES = ("anyOf", "oneOf")
_MOST_BRANCHES = 24
_DEEPEST = 8

Schema: TypeAlias = dict[str, Any]


class Unmergeable(Exception):  # noqa: N818 — nothing went wrong
    """Two schemas that one cannot say."""


def merged(sub: Mapping[str, Any], root: Mapping[str, Any]) -> Schema | None:
    """One schema without `allOf`, with choices at the top or not at all; None where there is none.

    >>> merged({"required": ["a"], "allOf": [{"properties": {"a": {"type": "null"}}}]}, {})
    {'required': ['a'], 'properties': {'a': {'type': 'null'}}}
    """
    try:
        return _one(sub, root, 0)
    except Unmergeable:
        return None


def _one(sub: Json, root: Mapping[str, Any], depth: int) -> Schema:
    if sub is True:
        return {}
    if not isinstance(sub, Mapping) or depth > _DEEPEST or "$dynamicRef" in sub:
        raise Unmergeable
    parts: list[Json] = []
    if "$ref" in sub:
        target = lookup(root, sub["$ref"])
        parts.append(target)
    parts += sub.get("allOf", ())
    result = {key: value for key, value in sub.items() if key not in {"$ref", "allOf", *_CHOICES, *DEFINITIONS}}
    for part in parts:
        result = _both(result, _one(part, root, depth + 1))
    for key in _CHOICES:
        if key in sub:
            branches = [_one(each, root, depth + 1) for each in sub[key] if each is not False]
            result = _both(result, {"anyOf": branches})
    return result


def _both(one: Schema, other: Schema) -> Schema:
    """What holds to both; choices of either are multiplied out."""
    if "anyOf" in one or "anyOf" in other:
        lefts = one.get("anyOf", [{}])
        rights = other.get("anyOf", [{}])
        if len(lefts) * len(rights) > _MOST_BRANCHES:
            raise Unmergeable
        plain = _both(_without_choice(one), _without_choice(other))
        branches = []
        for left in lefts:
            for right in rights:
                try:
                    branches.append(_both(plain, _both(left, right)))
                except Unmergeable:
                    continue
        if not branches:
            raise Unmergeable
        return {"anyOf": branches}
    return _plain(one, other)


def _without_choice(sub: Schema) -> Schema:
    return {key: value for key, value in sub.items() if key != "anyOf"}


def _plain(one: Schema, other: Schema) -> Schema:
    result = dict(one)
    for key, value in other.items():
        if key not in result or result[key] == value or key in ANNOTATIONS:
            result.setdefault(key, value)
        elif key in _TOGETHER:
            result[key] = _TOGETHER[key](result[key], value)
        elif key not in ("type", "properties", "additionalProperties", "patternProperties"):
            raise Unmergeable
    if "type" in one and "type" in other:
        result["type"] = _types(one, other)
    if any("properties" in each or "additionalProperties" in each for each in (one, other)):
        _properties(result, one, other)
    return result


def _types(one: Schema, other: Schema) -> list[str]:
    first, second = types(one), types(other)
    common = set(first & second)
    if "integer" in first | second and "number" in first | second:
        common.add("integer")
    if not common:
        raise Unmergeable
    return sorted(common)


def _properties(result: Schema, one: Schema, other: Schema) -> None:
    if any("patternProperties" in each for each in (one, other)):
        if one.keys() & other.keys() & {"properties", "patternProperties", "additionalProperties"} or any(
            key in both for both in (one, other) for key in ("additionalProperties",)
        ):
            raise Unmergeable
        return
    names = dict.fromkeys([*one.get("properties", ()), *other.get("properties", ())])
    held: Schema = {}
    for name in names:
        sides = [_side(each, name) for each in (one, other)]
        if False in sides:
            held[name] = False
        else:
            said = [side for side in sides if side is not True]
            held[name] = said[0] if len(said) == 1 else {"allOf": said} if said else {}
    if held:
        result["properties"] = {name: each for name, each in held.items() if each is not False}
    more = [each.get("additionalProperties", True) for each in (one, other)]
    closed = False in more or any(each is False for each in held.values())
    said = [each for each in more if each is not True and each != {}]
    if closed:
        result["additionalProperties"] = False
    elif said:
        result["additionalProperties"] = said[0] if len(said) == 1 or said[0] == said[1] else {"allOf": said}


def _side(sub: Schema, name: str) -> Json:
    """What one of the two says of a property."""
    properties = sub.get("properties", {})
    return properties[name] if name in properties else sub.get("additionalProperties", True)


def _common(one: list[Any], other: list[Any]) -> list[Any]:
    common = [value for value in one if value in other]
    if not common:
        raise Unmergeable
    return common


_TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "enum": _common,
    "minimum": max,
    "maximum": min,
    "minLength": max,
    "maxLength": min,
    "minItems": max,
    "maxItems": min,
    "minProperties": max,
    "maxProperties": min,
}

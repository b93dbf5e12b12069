"""Several schemas of one value → one, so that the tokens of its answer can be shared out.

`allOf`, a `$ref` with siblings, and `anyOf` beside properties all speak of one value together. Merging never widens;
what it cannot put into one schema it leaves alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from slipform.providers.embedded.decoding.cost import Kinds, types
from slipform.schema.document import DEFINITIONS, DYNAMIC_REF, REF, Json, lookup
from slipform.schema.patterns import search

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "$id", "id", "$schema", "readOnly"}
)
_OF_OBJECTS = ("properties", "patternProperties", "additionalProperties")
_CHOICES = ("anyOf", "oneOf")
_MOST_BRANCHES = 24
_DEEPEST = 8

Schema: TypeAlias = dict[str, Any]


class NoNormalForm(Exception):  # noqa: N818 — nothing went wrong
    """Two schemas that one cannot say."""


class Unsatisfiable(NoNormalForm):
    """Two schemas that no value fits."""


def merged(sub: Mapping[str, Any], root: Mapping[str, Any]) -> Schema | None:
    """One schema without `allOf`, with choices at the top or not at all; None where there is none.

    >>> merged({"required": ["a"], "allOf": [{"properties": {"a": {"type": "null"}}}]}, {})
    {'required': ['a'], 'properties': {'a': {'type': 'null'}}}
    """
    try:
        one = _one(sub, root, 0)
    except NoNormalForm:
        return None
    return None if "allOf" in one else one


def _one(sub: Json, root: Mapping[str, Any], depth: int) -> Schema:
    if sub is True:
        return {}
    if not isinstance(sub, Mapping) or depth > _DEEPEST or DYNAMIC_REF in sub:
        raise NoNormalForm
    parts: list[Json] = []
    if REF in sub:
        target = lookup(root, sub[REF])
        parts.append(target)
    parts += sub.get("allOf", ())
    result = {key: value for key, value in sub.items() if key not in {REF, "allOf", *_CHOICES, *DEFINITIONS}}
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
            raise NoNormalForm
        plain = _both(_without_choice(one), _without_choice(other))
        branches = []
        for left in lefts:
            for right in rights:
                try:
                    branches.append(_both(plain, _both(left, right)))
                except NoNormalForm:
                    continue
        if not branches:
            raise NoNormalForm
        return {"anyOf": branches}
    return both_plain(one, other)


def _without_choice(sub: Schema) -> Schema:
    return {key: value for key, value in sub.items() if key != "anyOf"}


def both_plain(one: Schema, other: Schema) -> Schema:
    """What holds to two schemas that have no choices; raises `NoNormalForm` where nothing does, or none can say it."""
    result = dict(one)
    for key, value in other.items():
        if key not in result or result[key] == value or key in ANNOTATIONS:
            result.setdefault(key, value)
        elif key in _TOGETHER:
            result[key] = _TOGETHER[key](result[key], value)
        elif key == "pattern":
            result["allOf"] = [*result.get("allOf", ()), {"pattern": value}]
        elif key not in ("type", "properties", "additionalProperties", "patternProperties"):
            raise NoNormalForm
    if "type" in one and "type" in other:
        result["type"] = _types(one, other)
    if "enum" in result and "type" in result:
        result["enum"] = _common_kinds(result["enum"], types(result))
    if any(key in each for each in (one, other) for key in _OF_OBJECTS):
        _properties(result, one, other)
    if any(said_of(result, name) is False for name in result.get("required", ())) or _is_void(result):
        raise Unsatisfiable
    return result


def _is_void(sub: Schema) -> bool:
    """Whether the bounds of a value's only type leave nothing between them."""
    kinds = types(sub)
    pairs = [pair for kind, pair in _BOUNDS.items() if kinds and kinds <= kind]
    least = {"minProperties": len(set(sub.get("required", ())))}
    return any(max(sub.get(low, 0), least.get(low, 0)) > sub[high] for low, high in pairs if high in sub)


def said_of(sub: Mapping[str, Any], name: str) -> Json:
    """What a schema without choices says of a property.

    >>> said_of({"properties": {"a": {"type": "null"}}, "additionalProperties": False}, "b")
    False
    """
    said = [sub["properties"][name]] if name in sub.get("properties", ()) else []
    said += [each for pattern, each in sub.get("patternProperties", {}).items() if is_named(name, [pattern])]
    return _together(said) if said else sub.get("additionalProperties", True)


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns names the property; `NoNormalForm` where that cannot be told."""
    matches = [search(pattern, name) for pattern in patterns]
    if None in matches:
        raise NoNormalForm
    return True in matches


def _together(said: list[Json]) -> Json:
    """One schema that says all of these."""
    if False in said:
        return False
    apart = [each for number, each in enumerate(said) if each not in (True, {}) and each not in said[:number]]
    return apart[0] if len(apart) == 1 else {"allOf": apart} if apart else {}


def _types(one: Schema, other: Schema) -> list[str]:
    first, second = types(one), types(other)
    common = set(first & second)
    if "integer" in first | second and "number" in first | second:
        common.add("integer")
    if not common:
        raise Unsatisfiable
    return sorted(common)


def _properties(result: Schema, one: Schema, other: Schema) -> None:
    """The keys of an object as both have it; what patterns name is kept where but one of the two has patterns."""
    sides = (one, other)

    def held_by_both(names: Iterable[str]) -> dict[str, Json]:
        return {name: _together([said_of(each, name) for each in sides]) for name in names}

    held = held_by_both([*one.get("properties", ()), *other.get("properties", ())])
    shut_out = [name for name, each in held.items() if each is False]
    patterned = [each for each in sides if "patternProperties" in each]
    beyond = [each.get("additionalProperties", True) for each in sides if each not in patterned]
    if len(patterned) == 2 or (patterned and any(isinstance(more, Mapping) and more for more in beyond)):
        raise NoNormalForm
    if patterned and False in beyond:
        del result["patternProperties"]
    if shut_out:
        held |= held_by_both(result.get("required", ()))
        if any(is_named(name, each["patternProperties"]) for each in patterned for name in shut_out):
            result.pop("patternProperties", None)
        result["additionalProperties"] = False
    elif any("additionalProperties" in each for each in sides):
        result["additionalProperties"] = _together([each.get("additionalProperties", True) for each in sides])
    if held:
        result["properties"] = {name: each for name, each in held.items() if each is not False}


def _items(one: Json, other: Json) -> Json:
    if isinstance(one, list) or isinstance(other, list):
        raise NoNormalForm
    return _together([one, other])


def _common(one: list[Any], other: list[Any]) -> list[Any]:
    common = [value for value in one if any(value == each and type(value) is type(each) for each in other)]
    if not common:
        raise Unsatisfiable
    return common


def _common_kinds(values: list[Any], kinds: Kinds) -> list[Any]:
    wider = kinds | {"integer"} if "number" in kinds else kinds
    common = [value for value in values if kind_of(value) in wider]
    if not common:
        raise Unsatisfiable
    return common


def kind_of(value: Json) -> str:
    """The type of a JSON value, by its JSON Schema name.

    >>> kind_of(True), kind_of(1), kind_of(None)
    ('boolean', 'integer', 'null')
    """
    return _KINDS.get(type(value), "null")


_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_BOUNDS = {
    frozenset({"string"}): ("minLength", "maxLength"),
    frozenset({"array"}): ("minItems", "maxItems"),
    frozenset({"object"}): ("minProperties", "maxProperties"),
}
_TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "enum": _common,
    "items": _items,
    "allOf": lambda one, other: [*one, *other],
    "exclusiveMinimum": max,
    "exclusiveMaximum": min,
    "minimum": max,
    "maximum": min,
    "minLength": max,
    "maxLength": min,
    "minItems": max,
    "maxItems": min,
    "minProperties": max,
    "maxProperties": min,
}

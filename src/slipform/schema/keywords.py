"""Interpret single keywords of a JSON Schema, and intersect two schemas keyword by keyword.

A schema is normalised three times, each for a different purpose: lowering reports the change to every keyword
(`normal_form`), decoding must never allow an invalid value (`addons/local/decoding/forms`), and a stream must never
refuse a valid one (`text/resolve_plan`). This module has their common parts: types, enumerated values, bounds, the
places where a schema constrains a property, and the intersection of two schemas without choices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from slipform.schema.document import Json, found_at
from slipform.schema.patterns import search

PlainSchema: TypeAlias = dict[str, Any]
"""A schema without references and choices."""

JSON_TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
"""In a set of types after `widened`, "number" means numbers with a fraction."""

CHOICES: Final = ("anyOf", "oneOf")
ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "$comment", "deprecated", "$id", "id", "$schema", "readOnly"}
)
KEYWORDS_OF: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    }),
    "array": frozenset({
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
        "maxContains", "unevaluatedItems",
    }),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
}  # fmt: skip
"""The keywords that constrain values of one type only."""

TIGHTER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "minimum": max, "exclusiveMinimum": max, "minLength": max, "minItems": max, "minProperties": max,
    "maximum": min, "exclusiveMaximum": min, "maxLength": min, "maxItems": min, "maxProperties": min,
}  # fmt: skip
"""For each bound, the function that chooses between two values when both apply."""


class NoNormalForm(Exception):  # noqa: N818 — nothing went wrong
    """The intersection of two schemas cannot be one schema."""


class Unsatisfiable(NoNormalForm):
    """The intersection of two schemas has no values."""


def json_type(value: Json) -> str:
    """Return the JSON Schema type of a value; a number without a fraction is an integer in any notation.

    >>> json_type(True), json_type(2.0), json_type(2.5), json_type(None)
    ('boolean', 'integer', 'number', 'null')
    """
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "array" if isinstance(value, list) else "object"


def json_key(value: Json) -> str:
    """Return a text that is the same for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, str):
        return '"' + value
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: Json) -> Json:
    """Return the value with floats without a fraction as integers."""
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def common_values(one: list[Any], other: list[Any]) -> list[Any]:
    """Return the values that two enumerations share, in the order of the first.

    >>> common_values([1, True, "a"], ["a", 1.0])
    [1, 'a']
    """
    listed = {json_key(value) for value in other}
    return [value for value in one if json_key(value) in listed]


def named_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema names; none where it names none."""
    names = schema.get("type", ())
    return frozenset([names] if isinstance(names, str) else names)


def implied_types(keywords: Iterable[str]) -> list[str]:
    """Return the types that a schema without `type` implies by its keywords.

    >>> implied_types({"minLength": 3, "properties": {}})
    ['object', 'string']
    """
    present = frozenset(keywords)
    return [name for name, own in KEYWORDS_OF.items() if not own.isdisjoint(present)]


def widened(types: frozenset[str]) -> frozenset[str]:
    """Return the types of matching values: integers match where numbers do."""
    return types | {"integer"} if "number" in types else types


def common_types(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """Return the common types of two lists of types, as in a schema.

    >>> sorted(common_types(frozenset({"number", "null"}), frozenset({"integer", "string"})))
    ['integer']
    """
    common = widened(one) & widened(other)
    if "number" in common:
        return common - {"integer"}
    return common


def tuple_parts(schema: Mapping[str, Any]) -> tuple[list[Json], Json]:
    """Return the schemas of an array's first items, and of the others."""
    items = schema.get("items", True)
    if isinstance(items, list):  # the spelling of prefixItems in drafts before 2020-12
        return items, schema.get("additionalItems", True)
    first = schema.get("prefixItems")
    return (first if isinstance(first, list) else []), items


def property_places(schema: Mapping[str, Any], name: str) -> tuple[list[tuple[str, ...]], bool]:
    """Return the places where a schema constrains a property, and whether the list is complete.

    >>> property_places({"patternProperties": {"^a": {}}, "additionalProperties": False}, "b")
    ([('additionalProperties',)], True)
    """
    places: list[tuple[str, ...]] = []
    certain = True
    if name in _keyed(schema, "properties"):
        places.append(("properties", name))
    for pattern in _keyed(schema, "patternProperties"):
        match = search(pattern, name)
        certain = certain and match is not None
        if match:
            places.append(("patternProperties", pattern))
    if not places and certain and "additionalProperties" in schema:
        places.append(("additionalProperties",))
    return places, certain


def _keyed(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Json]:
    keyed = schema.get(keyword)
    return keyed if isinstance(keyed, Mapping) else {}


def property_schema(schema: Mapping[str, Any], name: str) -> Json:
    """Return the schema of a property in a schema without choices; raises `NoNormalForm` where it is unknown.

    >>> property_schema({"properties": {"a": {"type": "null"}}, "additionalProperties": False}, "b")
    False
    """
    places, certain = property_places(schema, name)
    if not certain:
        raise NoNormalForm
    if places:
        return _all_of([found_at(schema, steps) for steps in places])
    return True


def _all_of(schemas: list[Json]) -> Json:
    """Return the intersection of all these schemas."""
    if len(schemas) == 1:
        return schemas[0]
    if False in schemas:
        return False
    distinct = [each for number, each in enumerate(schemas) if each not in (True, {}) and each not in schemas[:number]]
    if len(distinct) > 1:
        return {"allOf": distinct}
    return distinct[0] if distinct else {}


def intersection(one: PlainSchema, other: PlainSchema) -> PlainSchema:
    """Return the intersection of two schemas without choices.

    It never widens. Raises `Unsatisfiable` where no value matches both, `NoNormalForm` where one schema is not enough.

    >>> intersection({"type": "number", "minimum": 1}, {"type": ["integer", "null"], "minimum": 3})
    {'type': ['integer'], 'minimum': 3}
    """
    result = dict(one)
    for key, value in other.items():
        _tighten(result, key, value)
    if "type" in one and "type" in other:
        result["type"] = _require_any(sorted(common_types(named_types(one), named_types(other))))
    if "enum" in result and "type" in result:
        types = widened(named_types(result))
        result["enum"] = _require_any([value for value in result["enum"] if json_type(value) in types])
    if _has_any(one, _OF_OBJECTS) or _has_any(other, _OF_OBJECTS):
        _common_properties(result, one, other)
    if _has_any(one, _OF_ITEMS) and _has_any(other, _OF_ITEMS):
        _common_items(result, one, other)
    if _has_any(one, _OF_CONTAINS) or _has_any(other, _OF_CONTAINS):
        _common_contains(result, one, other)
    if any(property_schema(result, name) is False for name in result.get("required", ())) or _is_contradictory(result):
        raise Unsatisfiable
    return result


def _require_any(values: list[Any]) -> list[Any]:
    if not values:
        raise Unsatisfiable
    return values


def _is_contradictory(schema: PlainSchema) -> bool:
    """Return whether the bounds of a value's only type contradict each other."""
    types = named_types(schema)
    required = len(set(schema.get("required", ())))
    for name, low, high in _LENGTHS:
        least = max(schema.get(low, 0), required if name == "object" else 0)
        if types == {name} and least > schema.get(high, least):
            return True
    return False


def _check_patterns(result: PlainSchema, plain: PlainSchema) -> None:
    """Compare the patterns of one schema with `additionalProperties` of the other, which has no patterns."""
    additional = plain.get("additionalProperties", True)
    if isinstance(additional, Mapping) and additional:
        raise NoNormalForm
    if additional is False:
        del result["patternProperties"]


def _matches_any(patterns: Iterable[str], names: Sequence[str]) -> bool:
    return any(search(pattern, name) for pattern in patterns for name in names)


def _has_any(schema: PlainSchema, keywords: Iterable[str]) -> bool:
    return any(keyword in schema for keyword in keywords)


def _tighten(result: PlainSchema, key: str, value: Json) -> None:
    """Add one keyword to a schema; those that depend on others (types, properties, items) are left to the caller."""
    if key not in result or result[key] == value or key in ANNOTATIONS:
        result.setdefault(key, value)
    elif key in TIGHTER:
        result[key] = TIGHTER[key](result[key], value)
    elif key in _TOGETHER:
        result[key] = _TOGETHER[key](result[key], value)
    elif key == "pattern":
        result["allOf"] = [*result.get("allOf", ()), {"pattern": value}]
    elif key not in ("type", *_OF_OBJECTS, *_OF_ITEMS, *_OF_CONTAINS):
        raise NoNormalForm


def _common_properties(result: PlainSchema, one: PlainSchema, other: PlainSchema) -> None:
    """Merge the properties of both schemas; patterns stay where only one of them has any."""
    sides = (one, other)

    def intersected(names: Iterable[str]) -> dict[str, Json]:
        return {name: _all_of([property_schema(each, name) for each in sides]) for name in names}

    shared = intersected([*one.get("properties", ()), *other.get("properties", ())])
    excluded = [name for name, each in shared.items() if each is False]
    patterned = [each for each in sides if "patternProperties" in each]
    if len(patterned) == 2:
        raise NoNormalForm
    if patterned:
        _check_patterns(result, other if patterned[0] is one else one)
    if excluded:
        shared |= intersected(result.get("required", ()))
        if patterned and _matches_any(patterned[0]["patternProperties"], excluded):
            result.pop("patternProperties", None)
        result["additionalProperties"] = False
    elif any("additionalProperties" in each for each in sides):
        result["additionalProperties"] = _all_of([each.get("additionalProperties", True) for each in sides])
    if shared:
        result["properties"] = {name: each for name, each in shared.items() if each is not False}


def _common_items(result: PlainSchema, one: PlainSchema, other: PlainSchema) -> None:
    """Merge the items of both schemas, position by position: the meaning of `items` depends on the tuple."""
    if len(tuple_keywords := {name for each in (one, other) if (name := _tuple_keyword(each)) is not None}) == 2:
        raise NoNormalForm
    sides = [tuple_parts(each) for each in (one, other)]
    longest = max(len(first) for first, _ in sides)
    parts = [_all_of([first[at] if at < len(first) else rest for first, rest in sides]) for at in range(longest)]
    rest = _all_of([rest for _, rest in sides])
    for key in _OF_ITEMS:
        result.pop(key, None)
    if tuple_keywords == {"items"}:
        result |= {"items": parts, "additionalItems": rest}
    else:
        result |= {"prefixItems": parts, "items": rest} if parts else {"items": rest}


def _tuple_keyword(schema: PlainSchema) -> str | None:
    return next((key for key in ("items", "prefixItems") if isinstance(schema.get(key), list)), None)


def _common_contains(result: PlainSchema, one: PlainSchema, other: PlainSchema) -> None:
    """Set `contains` and its counts as both schemas require; raises `NoNormalForm` where they differ.

    The counts apply to the `contains` of their own schema only, and mean nothing without one.
    """
    with_contains = [each for each in (one, other) if "contains" in each]
    rules = [{key: value for key, value in each.items() if key in _OF_CONTAINS} for each in with_contains]
    if len(rules) == 2 and rules[0] != rules[1]:
        raise NoNormalForm
    for key in _OF_CONTAINS:
        result.pop(key, None)
    if rules:
        result |= rules[0]


_OF_OBJECTS: Final = ("properties", "patternProperties", "additionalProperties")
_OF_ITEMS: Final = ("items", "prefixItems", "additionalItems")
_OF_CONTAINS: Final = ("contains", "minContains", "maxContains")
_LENGTHS: Final = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
)
_TOGETHER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "enum": lambda one, other: _require_any(common_values(one, other)),
    "allOf": lambda one, other: [*one, *other],
}

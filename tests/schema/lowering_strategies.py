"""Schemas drawn at random, and values for them."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "kind", "key", "value", "extra_properties", "x y", "item_1"])
WORDS = st.sampled_from(["", "a", "ab", "null", "1", "[]", '"q"', "red", "{}"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -1.5, 2.0]), WORDS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=2)),
    max_leaves=4,
)

_STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(1, 4),
        "pattern": st.sampled_from(["^a", "b$", "^(?!q)", "."]),
        "description": st.just("a string"),
    },
)
_NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-3, 0),
        "exclusiveMaximum": st.integers(1, 4),
        "multipleOf": st.sampled_from([1, 0.5]),
        "default": st.just(0),
    },
)
_LISTED = ["string", "null", "integer", "object"]
_LEAVES = st.one_of(
    _STRINGS,
    _NUMBERS,
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": "object"}),
    st.just({"type": "array"}),
    st.just({}),
    st.fixed_dictionaries(
        {"type": st.lists(st.sampled_from(["string", "null", "integer", "object"]), min_size=1, unique=True)}
    ),
    st.fixed_dictionaries({"enum": st.lists(JSON, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": JSON}),
    st.sampled_from([{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}, {"$ref": "#/$defs/one", "description": "here"}]),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "patternProperties": st.dictionaries(st.sampled_from(["^x", "^a$"]), inner, max_size=1),
            "minProperties": st.integers(0, 2),
            "anyOf": st.lists(st.fixed_dictionaries({"required": st.lists(NAMES, max_size=1)}), min_size=1, max_size=2),
            "dependentRequired": st.just({"a": ["b"]}),
            "propertyNames": st.just({"pattern": "^[a-z]"}),
        },
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": st.one_of(inner, st.booleans()),
            "prefixItems": st.lists(inner, min_size=1, max_size=3),
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(1, 3),
            "uniqueItems": st.booleans(),
        },
    )


def _compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    branches = st.lists(inner, min_size=1, max_size=3)
    objects = _objects(inner)
    some = st.lists(objects, min_size=1, max_size=2)
    return st.one_of(
        objects,
        objects,
        _arrays(inner),
        st.fixed_dictionaries({"anyOf": branches}),
        st.fixed_dictionaries({"oneOf": branches}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
        st.builds(lambda base, branches: {**base, "anyOf": branches}, objects, some),
        st.builds(lambda base, then: {**base, "if": {"required": ["a"]}, "then": then}, objects, objects),
    )


SUBSCHEMAS = st.recursive(_LEAVES, _compound, max_leaves=6)
_UNIONS = st.builds(
    lambda branches: {"type": "object", "properties": {"a": {"anyOf": branches}}, "additionalProperties": False},
    st.lists(SUBSCHEMAS, min_size=2, max_size=4),
)


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """A schema with two definitions that its parts, and they themselves, may refer to."""
    root = draw(SUBSCHEMAS | _UNIONS)
    return {**root, "$defs": {"one": draw(SUBSCHEMAS), "two": draw(SUBSCHEMAS)}}


def values(schema: Any, root: dict[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values that mostly fit a schema; the caller filters."""
    if not isinstance(schema, dict) or depth > 6:
        return JSON if schema is not False else st.nothing()
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return values(root if schema["$ref"] == "#" else root["$defs"][name], root, depth + 1)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    for word in ("anyOf", "oneOf"):
        if word in schema and "properties" not in schema:
            return st.one_of([values(branch, root, depth + 1) for branch in schema[word]])
    if "allOf" in schema:
        return st.one_of([values(branch, root, depth + 1) for branch in schema["allOf"]])
    said = schema.get("type")
    kinds = said if isinstance(said, list) else [said]
    return st.one_of([_value(kind, schema, root, depth) for kind in kinds])


def _value(kind: Any, schema: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    simple = {
        "string": WORDS | st.sampled_from(["2020-01-01", "a@b.co"]),
        "integer": st.integers(-3, 4),
        "number": st.integers(-3, 4) | st.sampled_from([0.5, 1.5]),
        "boolean": st.booleans(),
        "null": st.none(),
    }
    if kind in simple:
        return simple[kind]
    if kind == "array":
        prefix = [values(sub, root, depth + 1) for sub in schema.get("prefixItems", [])]
        rest = values(schema.get("items", {}), root, depth + 1)
        tail = st.lists(rest, max_size=2) if depth < 6 and schema.get("items") is not False else st.just([])
        return st.builds(lambda head, more: [*head, *more], st.tuples(*prefix) if prefix else st.just(()), tail)
    if kind == "object":
        return _object(schema, root, depth)
    return JSON


def _object(schema: dict[str, Any], root: dict[str, Any], depth: int) -> st.SearchStrategy[Any]:
    properties = dict(schema.get("properties", {}))
    for branch in [*schema.get("anyOf", []), schema.get("then", {})]:
        properties = {**branch.get("properties", {}), **properties}
    required = {name: values(properties.get(name, {}), root, depth + 1) for name in schema.get("required", [])}
    optional = {name: values(sub, root, depth + 1) for name, sub in properties.items() if name not in required}
    fixed = st.fixed_dictionaries(required, optional=optional)
    others = schema.get("additionalProperties", {})
    if others is False or depth > 5:
        return fixed
    return st.builds(
        lambda own, more: {**more, **own}, fixed, st.dictionaries(NAMES, values(others, root, depth + 1), max_size=2)
    )


def validator(schema: Any) -> Any:
    """A compiled validator of the caller's schema."""
    return jsonschema_rs.Draft202012Validator(schema, offline=True)

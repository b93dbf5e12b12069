"""Lowering, encoding by encoding: what the vendor sees, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schema.lowering_encode import encode
from tests.schema.lowering_helpers import actions, both_ways, closed


def test_a_schema_the_vendor_takes_is_left_alone_and_lifting_costs_nothing() -> None:
    schema = closed({"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}}, "a", "b")
    lowered = both_ways(schema, "openai")
    value = {"a": "x", "b": [1]}
    assert lowered.schema == schema
    assert lowered.identity
    assert lowered.lift(value) is value


def test_an_optional_property_is_required_and_nullable_and_absent_again_on_the_way_back() -> None:
    lowered = both_ways(closed({"a": {"type": "string"}}), "openai", {}, {"a": "x"})
    assert lowered.schema["required"] == ["a"]
    assert lowered.schema["properties"]["a"] == {"type": ["string", "null"]}
    assert lowered.lift({"a": None}) == {}


def test_absent_and_null_stay_apart_where_both_are_legal() -> None:
    maybe = {"type": ["string", "null"]}
    lowered = both_ways(closed({"a": maybe}), "openai", {}, {"a": None}, {"a": "x"}, {"a": ""})
    assert lowered.lift({"a": None}) == {"a": None}
    listed = {"type": ["array", "null"], "items": {"type": "integer"}}
    both_ways(closed({"a": listed}), "openai", {}, {"a": None}, {"a": []}, {"a": [1]})
    both_ways(closed({"a": {}}), "openai", {}, {"a": None}, {"a": "null"}, {"a": []})


def test_optional_properties_stay_optional_where_the_vendor_has_them() -> None:
    lowered = both_ways(closed({"a": {"type": "string"}}), "anthropic", {}, {"a": "x"})
    assert lowered.schema["required"] == []
    assert lowered.identity


def test_a_map_travels_as_key_value_pairs() -> None:
    schema = closed({"map": {"type": "object", "additionalProperties": {"type": "integer"}}}, "map")
    lowered = both_ways(schema, "openai", {"map": {}}, {"map": {"a": 1, "b c": 2}})
    assert encode(lowered, {"map": {"a": 1}}) == {"map": [{"key": "a", "value": 1}]}
    assert lowered.lift({"map": [{"key": "a", "value": 1}, {"key": "a", "value": 2}]}) == {"map": {"a": 1}}
    assert lowered.lift({"map": {"a": 1}}) == {"map": {"a": 1}}


def test_named_properties_and_a_map_share_an_object() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "extra_properties": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": {"type": "array", "items": {"type": "string"}},
    }
    values = [{"id": 1}, {"id": 1, "x": ["y"]}, {"id": 1, "extra_properties": "taken", "extra_properties_": []}]
    lowered = both_ways(schema, "openai", *values)
    assert list(lowered.schema["properties"]) == ["id", "extra_properties", "extra_properties_"]
    both_ways(schema, "anthropic", *values)
    assert both_ways(schema, "gemini", *values).identity


def test_pattern_properties_travel_as_pairs_with_the_pattern_on_the_key() -> None:
    schema = {
        "type": "object",
        "patternProperties": {"^x-": {"type": "string"}, "^n": {"type": "integer"}},
        "additionalProperties": False,
    }
    lowered = both_ways(schema, "openai", {}, {"x-a": "b", "n": 3})
    one = {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}
    lowered = both_ways(one, "openai", {"x-a": "b"})
    assert lowered.schema["properties"]["value"]["items"]["properties"]["key"]["pattern"] == "^x-"


def test_property_names_restrict_the_key() -> None:
    schema = closed({"m": {"type": "object", "additionalProperties": True, "propertyNames": {"enum": ["a", "b"]}}}, "m")
    lowered = both_ways(schema, "openai", {"m": {"a": [1, None]}})
    assert lowered.schema["properties"]["m"]["items"]["properties"]["key"]["enum"] == ["a", "b"]


def test_free_form_values_travel_as_json_text() -> None:
    schema = closed({"any": {}, "yes": True, "object": {"type": "object"}, "list": {"type": "array"}}, "any")
    free: list[Any] = [None, 1, "x", "1", "null", [], {}, {"a": [1, {"b": None}]}, 10**30, "é\n"]
    values = [{"any": value} for value in free]
    lowered = both_ways(schema, "openai", *values, {"any": 1, "yes": "1", "object": {"a": 1}, "list": [1, "2"]})
    assert encode(lowered, {"any": {"a": 1}})["any"] == '{"a": 1}'
    assert lowered.lift({"any": "not json", "yes": "NaN", "object": None, "list": None}) == {
        "any": "not json",
        "yes": "NaN",
    }


@pytest.mark.covers("C21")
@pytest.mark.parametrize("dialect", ["openai", "anthropic", "tool"])
def test_a_root_that_is_no_object_is_wrapped_and_unwrapped(dialect: str) -> None:
    item = closed({"a": {"type": "integer"}}, "a")
    lowered = both_ways({"type": "array", "items": item}, dialect, [], [{"a": 1}])
    assert list(lowered.schema["properties"]) == ["value"]
    both_ways({"anyOf": [item, {"type": "string"}]}, dialect, "x", {"a": 1})
    both_ways({"enum": ["a", "b"]}, dialect, "a")


@pytest.mark.covers("C21")
def test_references_follow_the_wrapped_root_of_a_tool() -> None:
    schema = {"$id": "urn:x", "type": "array", "items": {"$ref": "#/$defs/n"}, "$defs": {"n": {"type": "integer"}}}
    lowered = both_ways(schema, "tool", [1])
    assert lowered.schema["properties"]["value"]["items"] == {"$ref": "#/properties/value/$defs/n"}


def test_a_tuple_travels_as_an_object_with_one_property_per_place() -> None:
    schema = closed(
        {"t": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False, "type": "array"}}, "t"
    )
    lowered = both_ways(schema, "openai", {"t": []}, {"t": ["a"]}, {"t": ["a", 1]})
    assert encode(lowered, {"t": ["a", 1]}) == {"t": {"item_1": "a", "item_2": 1}}
    draft7 = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **closed(
            {
                "t": {
                    "type": "array",
                    "items": [{"type": "string"}, {"type": "integer"}],
                    "additionalItems": {"type": "boolean"},
                    "minItems": 2,
                }
            },
            "t",
        ),
    }
    both_ways(draft7, "openai", {"t": ["a", 1]}, {"t": ["a", 1, True, False]})
    assert both_ways(draft7, "gemini", {"t": ["a", 1, True]}).identity


def test_a_tuple_of_equal_places_stays_an_array() -> None:
    point = {"type": "array", "prefixItems": [{"type": "number"}] * 2, "items": False, "minItems": 2}
    lowered = both_ways(closed({"p": point}, "p"), "openai", {"p": [1, 2.5]})
    assert lowered.schema["properties"]["p"] == {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 2,
        "maxItems": 2,
    }


def test_type_lists_become_unions() -> None:
    schema = closed({"a": {"type": ["string", "integer", "object"], "properties": {"b": {"type": "null"}}}}, "a")
    both_ways(schema, "openai", {"a": "x"}, {"a": 1}, {"a": {"b": None}})


def test_all_of_is_merged() -> None:
    schema = {
        "allOf": [
            {"$ref": "#/$defs/base"},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
            {"properties": {"a": {"minimum": 3, "maximum": 9}}},
        ],
        "unevaluatedProperties": False,
        "$defs": {
            "base": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]}
        },
    }
    lowered = both_ways(schema, "openai", {"a": 5, "b": "x"})
    assert lowered.schema["properties"] == {
        "a": {"type": "integer", "minimum": 3, "maximum": 9},
        "b": {"type": "string"},
    }


def test_all_of_takes_each_parts_own_view_of_other_keys() -> None:
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False},
            {"properties": {"b": {"type": "string"}, "c": {}}, "additionalProperties": {"type": "integer"}},
        ]
    }
    lowered = both_ways(schema, "gemini", {"a": 1, "b": "x"})
    assert lowered.schema["properties"] == {"a": {"type": "integer"}, "b": {"type": "string"}}


def test_one_of_becomes_any_of_and_const_becomes_enum() -> None:
    branches = [closed({"kind": {"const": kind}, "n": {"type": "integer"}}, "kind") for kind in ("a", "b")]
    lowered = both_ways(closed({"it": {"oneOf": branches}}, "it"), "openai", {"it": {"kind": "a"}})
    assert [branch["properties"]["kind"]["enum"] for branch in lowered.schema["properties"]["it"]["anyOf"]] == [
        ["a"],
        ["b"],
    ]
    assert ("/properties/it/oneOf", "oneOf", "approximated") in actions(lowered)


def test_alternatives_whose_spellings_clash_are_told_apart_by_a_tag() -> None:
    pairs = {
        "type": "array",
        "items": closed({"key": {"type": "string"}, "value": {"type": "integer"}}, "key", "value"),
    }
    mapping = {"type": "object", "additionalProperties": {"type": "integer"}}
    both_ways(
        closed({"a": {"anyOf": [mapping, pairs]}}, "a"),
        "openai",
        *({"a": value} for value in ({}, [], {"x": 1}, [{"key": "x", "value": 1}])),
    )
    either = {"anyOf": [{"type": "string"}, {"type": "object"}]}
    both_ways(closed({"a": either}, "a"), "openai", {"a": "{}"}, {"a": {}}, {"a": {"b": "c"}})


def test_enums_of_any_value_are_kept() -> None:
    values = ["a", 1, 1.5, True, None, [1], {"b": 2}]
    for dialect in ("openai", "anthropic", "gemini"):
        both_ways(closed({"e": {"enum": values}}, "e"), dialect, *({"e": value} for value in values))
    both_ways(closed({"e": {"anyOf": [{"type": "null"}, {"enum": [[]]}]}}, "e"), "openai", {"e": None}, {"e": []})
    lowered = both_ways(closed({"e": {"enum": ["a", 1], "type": "string"}}, "e"), "openai", {"e": "a"})
    assert lowered.schema["properties"]["e"]["enum"] == ["a"]

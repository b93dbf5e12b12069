"""Lowering: constraints, references, drafts, limits, and what the report says of them."""

from __future__ import annotations

from typing import Any

import pytest

from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.schema.lowering.emit import LoweringLoss
from slipform.schema.lowering.lowered import lower
from tests.schema.lowering_encode import encode
from tests.schema.lowering_helpers import actions, both_ways, closed


def test_what_the_dialect_lacks_is_told_in_the_description_and_left_to_the_local_check() -> None:
    number = {"type": "integer", "minimum": 1, "multipleOf": 2, "description": "even"}
    schema = closed({"n": number, "s": {"type": "string", "format": "iri", "pattern": "(?=a)"}}, "n", "s")
    lowered = both_ways(schema, "anthropic", {"n": 2, "s": "a"})
    assert lowered.schema["properties"]["n"] == {
        "type": "integer",
        "description": "even (minimum: 1; multipleOf: 2)",
    }
    assert LoweringLoss("/properties/n/minimum", "minimum", 1, "dropped", "local") in lowered.report
    lowered = both_ways(schema, "openai")
    assert lowered.schema["properties"]["n"]["minimum"] == 1
    assert "pattern" not in lowered.schema["properties"]["s"]
    assert LoweringLoss("/properties/n/minimum", "minimum", 1, "kept", "vendor") in lowered.report


@pytest.mark.parametrize(
    "more",
    [
        {"not": {"required": ["b"]}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 1}},
        {"dependentRequired": {"a": ["b"]}},
        {"dependentSchemas": {"a": {"required": ["b"]}}},
        {"minProperties": 1},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_a_condition_no_vendor_knows_is_reported(more: dict[str, Any]) -> None:
    schema = closed({"a": {"type": "string"}, "b": {"type": "string"}}, **more)
    for dialect in ("openai", "anthropic", "gemini"):
        lowered = both_ways(schema, dialect)
        word = next(iter(more))
        found = [loss for loss in lowered.report if loss.keyword == word]
        assert [(loss.pointer, loss.action, loss.enforced_by) for loss in found] == [(f"/{word}", "dropped", "local")]
        assert word in lowered.schema["description"]


def test_contains_and_unique_items_are_reported() -> None:
    schema = closed(
        {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "contains": {"const": 1}}}
    )
    found = {loss.keyword: loss.action for loss in both_ways(schema, "openai", {"a": [1, 2]}).report}
    assert found["uniqueItems"] == found["contains"] == "dropped"


def test_keys_named_only_under_a_condition_can_still_be_said() -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"type": "string"}},
        "if": {"properties": {"kind": {"const": "a"}}},
        "then": {"properties": {"size": {"type": "integer"}}, "required": ["size"]},
    }
    both_ways(schema, "openai", {"kind": "a", "size": 3}, {"kind": "b"})


def test_an_object_open_by_default_stays_open_unless_told_otherwise_and_then_the_report_says_so() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    lowered = lower(schema, "openai", open_objects="closed")
    assert lowered.lift(encode(lowered, {"a": "x"})) == {"a": "x"}
    assert ("/additionalProperties", "additionalProperties", "closed") in actions(lowered)
    with pytest.raises(SchemaError, match="no words for this value"):
        encode(lowered, {"a": "x", "b": 1})
    kept = both_ways(schema, "openai", {"a": "x"}, {"a": "x", "b": 1})
    assert not any(loss.action == "closed" for loss in kept.report)
    assert both_ways(schema, "gemini", {"a": "x", "b": 1}).identity


def test_references_are_kept_and_recursion_with_them() -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node", "description": "the rest"}},
        "required": ["v"],
    }
    schema = closed({"head": {"$ref": "#/$defs/node"}}, "head", **{"$defs": {"node": node}})
    chain = {"head": {"v": 1, "next": {"v": 2, "next": {"v": 3}}}}
    lowered = both_ways(schema, "openai", chain)
    assert lowered.schema["properties"]["head"] == {"$ref": "#/$defs/node"}
    assert lowered.schema["$defs"]["node"]["properties"]["next"]["description"] == "the rest"
    assert both_ways(schema, "gemini", chain).identity
    assert not both_ways(schema, "anthropic", chain).identity


def test_recursion_through_the_root_and_through_required_values() -> None:
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["children"],
        "additionalProperties": False,
    }
    value = {"children": [{"children": []}, {"children": [{"children": []}]}]}
    assert both_ways(tree, "openai", value).schema["properties"]["children"]["items"] == {"$ref": "#"}
    for dialect in ("anthropic", "gemini", "gemini-openapi"):
        both_ways(tree, dialect, value)


def test_a_pointer_into_the_middle_and_anchors_and_ids_resolve() -> None:
    schema = {
        "$id": "https://example.com/root.json",
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"b/c": {"type": "integer"}}, "additionalProperties": False},
            "d": {"$ref": "#/properties/a/properties/b~1c"},
            "e": {"$ref": "#here"},
            "f": {"$ref": "other.json#/$defs/g"},
            "h": {"$dynamicRef": "#dyn"},
        },
        "additionalProperties": False,
        "$defs": {
            "x": {"$anchor": "here", "type": "boolean"},
            "y": {"$id": "other.json", "$defs": {"g": {"type": "null"}}},
            "z": {"$dynamicAnchor": "dyn", "type": "string"},
        },
    }
    lowered = both_ways(schema, "openai", {"a": {"b/c": 1}, "d": 2, "e": True, "f": None, "h": "x"})
    assert lowered.schema["properties"]["d"] == {"anyOf": [{"$ref": "#/$defs/b_c"}, {"type": "null"}]}


def test_siblings_of_a_reference_count_from_2019_on_and_not_before() -> None:
    def schema(draft: str) -> dict[str, Any]:
        return {
            "$schema": draft,
            **closed({"a": {"$ref": "#/definitions/n", "maximum": 5}}, "a"),
            "definitions": {"n": {"type": "integer"}},
        }

    new = lower(schema("https://json-schema.org/draft/2020-12/schema"), "openai").schema["properties"]["a"]
    old = lower(schema("http://json-schema.org/draft-07/schema#"), "openai").schema["properties"]["a"]
    assert new == {"type": "integer", "maximum": 5}
    assert old == {"$ref": "#/$defs/n"}


def test_old_spellings_are_understood() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        **closed({"n": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}, "m": {"type": "string"}}, "n"),
        "dependencies": {"m": ["n"]},
        "const": 3,
    }
    lowered = both_ways(schema, "openai", {"n": 2})
    assert lowered.schema["properties"]["n"]["exclusiveMinimum"] == 1
    assert ("/dependencies", "dependencies", "dropped") in actions(lowered)
    assert both_ways(schema, "gemini").schema["properties"]["n"]["minimum"] == 2


def test_boolean_schemas() -> None:
    schema = closed({"a": True, "b": False, "c": {"type": "array", "items": False}}, "c")
    lowered = both_ways(schema, "openai", {"c": []}, {"a": {"x": 1}, "c": []})
    assert "b" not in lowered.schema["properties"]
    with pytest.raises(UnsupportedSchemaError, match="No value fits"):
        lower(closed({"a": False}, "a"), "openai")


def test_the_order_of_properties_is_kept() -> None:
    names = ["reasoning", "answer", "a", "zeta", "b"]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": ["b", "answer"]}
    for dialect in ("openai", "anthropic", "gemini", "gemini-openapi"):
        lowered = lower(schema, dialect, open_objects="closed")
        assert list(lowered.schema["properties"]) == names
        assert list(lowered.lift(encode(lowered, dict.fromkeys(reversed(names), "x")))) in (names, names[::-1])
    assert lower(schema, "gemini", open_objects="closed").schema["propertyOrdering"] == names


@pytest.mark.covers("C13")
def test_titles_and_descriptions_are_kept() -> None:
    schema = closed(
        {
            "title": {"type": "string", "title": "T", "description": "D"},
            "r": {"$ref": "#/$defs/r", "description": "here"},
        },
        "title",
        "r",
        description="root",
        **{"$defs": {"r": {"type": "integer", "description": "there"}}},
    )
    lowered = both_ways(schema, "openai", {"title": "x", "r": 1})
    assert lowered.schema["description"] == "root"
    assert lowered.schema["properties"]["title"] == {"title": "T", "description": "D", "type": "string"}
    assert lowered.schema["properties"]["r"] == {"description": "here", "anyOf": [{"$ref": "#/$defs/r"}]}
    assert lowered.schema["$defs"]["r"]["description"] == "there"


def test_too_much_nesting_moves_into_definitions() -> None:
    schema: dict[str, Any] = {"type": "string"}
    value: Any = "x"
    for _ in range(25):
        schema, value = closed({"a": schema}, "a"), {"a": value}
    lowered = both_ways(schema, "openai", value)
    assert len(lowered.schema["$defs"]) == 2


def test_large_enums_are_told_and_checked_locally() -> None:
    schema = closed({"e": {"enum": [f"value {at}" for at in range(2_000)]}, "f": {"enum": ["a", "b"]}}, "e", "f")
    lowered = both_ways(schema, "openai", {"e": "value 7", "f": "a"})
    assert "enum" not in lowered.schema["properties"]["e"]
    assert lowered.schema["properties"]["f"]["enum"] == ["a", "b"]
    assert ("/properties/e/enum", "enum", "dropped") in actions(lowered)


def test_more_optionals_and_unions_than_anthropic_takes_are_spelled_as_arrays() -> None:
    optional = {f"o{at}": {"type": "string"} for at in range(40)}
    unions = {f"u{at}": {"type": ["string", "integer", "null"]} for at in range(30)}
    either = {f"e{at}": {"anyOf": [closed({"a": {"type": "string"}}, "a"), {"type": "integer"}]} for at in range(5)}
    schema = closed({**optional, **unions, **either}, *unions, *either)
    value = dict.fromkeys(unions) | {name: {"a": "x"} for name in either}
    full = value | dict.fromkeys(optional, "x") | {"u3": 4, "u29": "x", "e4": 7}
    lowered = both_ways(schema, "anthropic", value, full)
    assert not lowered.identity


def test_a_limit_that_cannot_be_kept_is_refused_before_a_call() -> None:
    schema = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(5_001)}}
    with pytest.raises(
        UnsupportedSchemaError, match="Not expressible in openai: 5001 properties, at most 5000"
    ) as caught:
        lower(schema, "openai", open_objects="closed")
    assert "next channel" in str(caught.value)


def test_a_vendor_that_ignores_the_spelling_is_understood() -> None:
    schema = closed(
        {
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "any": {},
            "maybe": {"type": ["string", "null"]},
        },
        "map",
        "any",
    )
    answer = {"map": {"a": 1}, "any": {"b": 2}, "maybe": "x"}
    assert lower(schema, "openai").lift(answer) == answer


def test_a_bad_schema_is_an_error_that_names_the_place() -> None:
    with pytest.raises(SchemaError, match="Unknown type 'strng', at #/properties/a/type"):
        lower({"type": "object", "properties": {"a": {"type": "strng"}}}, "openai")
    with pytest.raises(SchemaError, match="must be an object or a boolean"):
        lower({"type": "object", "properties": {"a": 3}}, "openai")
    with pytest.raises(SchemaError, match="cannot be written as JSON"):
        lower({"enum": [object()]}, "openai")


def test_unevaluated_keys_are_those_no_subschema_speaks_of() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "allOf": [{"properties": {"b": {"type": "integer"}}}],
        "if": {"required": ["a"]},
        "then": {"properties": {"c": {"type": "boolean"}}},
        "unevaluatedProperties": False,
    }
    lowered = both_ways(schema, "openai", {}, {"a": "x", "b": 1, "c": True})
    assert not any(loss.action == "closed" for loss in lowered.report)
    pair = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "unevaluatedItems": False}
    lowered = both_ways(closed({"p": pair}, "p"), "openai", {"p": []}, {"p": ["a", 1]})
    assert not any(loss.action == "closed" for loss in lowered.report)


def test_a_draft_4_id_moves_the_base_of_the_references_under_it() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/root.json",
        **closed({"a": {"$ref": "item.json#/definitions/n"}, "b": {"$ref": "#/definitions/n"}}, "a", "b"),
        "definitions": {
            "n": {"type": "string"},
            "item": {"id": "item.json", "definitions": {"n": {"type": "integer"}}},
        },
    }
    both_ways(schema, "openai", {"a": 1, "b": "x"})


def test_a_reference_to_the_meta_schema_is_any_value_and_reported() -> None:
    schema = closed({"s": {"$ref": "http://json-schema.org/draft-07/schema#"}}, "s")
    lowered = both_ways(schema, "openai", {"s": {"type": "string"}})
    assert ("/properties/s/$ref", "$ref", "approximated") in actions(lowered)

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.errors import SchemaError
from slipform.schema import Schema, summarize
from slipform.schema.document import followed, with_plain_references
from slipform.schema.validator import violations
from tests.conftest import examples
from tests.schema.data import needs_real_world, real_world
from tests.schema.strategies import schemas


def read(schema: dict[str, Any], **options: Any) -> Any:
    return json.loads(summarize(schema, **options).text)


@pytest.mark.covers("S2-55", "S2-56", "S2-57", "C12")
def test_annotations_go_and_constraints_stay() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "description": "D",
        "examples": [1],
        "x-order": 3,
        "type": "object",
        "properties": {"a": {"type": "integer", "title": "A", "default": 3, "minimum": 1, "description": "x"}},
        "required": ["a"],
        "oneOf": [{"title": "one"}, {"deprecated": True, "items": {"enum": [1]}}],
    }
    assert read(schema) == {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1}},
        "required": ["a"],
        "oneOf": [{}, {"items": {"enum": [1]}}],
    }
    assert summarize(schema).note is None


@pytest.mark.covers("C12")
def test_what_is_data_or_a_name_is_never_taken_for_an_annotation() -> None:
    schema = {
        "properties": {
            "title": {"enum": ["title", {"description": "kept"}]},
            "default": {"const": {"title": 1}},
            "description": True,
            "properties": {"properties": {"examples": {"title": "gone"}}},
            "x-y": {"x-z": 1},
        },
        "patternProperties": {"description": {}},
        "required": ["title"],
    }
    assert read(schema)["properties"] == {
        "title": {"enum": ["title", {"description": "kept"}]},
        "default": {"const": {"title": 1}},
        "description": True,
        "properties": {"properties": {"examples": {}}},
        "x-y": {},
    }
    assert read(schema)["patternProperties"] == {"description": {}}


@pytest.mark.covers("C13")
def test_descriptions_are_kept_on_request() -> None:
    schema = {"description": "a user", "title": "U", "properties": {"a": {"description": "the a"}}}
    assert read(schema, descriptions=True) == {"description": "a user", "properties": {"a": {"description": "the a"}}}


@pytest.mark.covers("S0-39")
def test_a_type_and_its_schema_are_summarised_alike() -> None:
    assert summarize(Schema.of(list[int]).document).text == '{"items":{"type":"integer"},"type":"array"}'


def test_definitions_used_once_are_put_in_place_and_unused_ones_go() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/B"}, "c": {"$ref": "#/$defs/B"}},
        "$defs": {"A": {"items": {"$ref": "#/$defs/C"}}, "B": {"type": "null"}, "C": {"const": 1}, "D": {"const": 2}},
    }
    assert read(schema) == {
        "properties": {"a": {"items": {"const": 1}}, "b": {"$ref": "#/$defs/B"}, "c": {"$ref": "#/$defs/B"}},
        "$defs": {"B": {"type": "null"}},
    }


def test_recursion_is_kept_as_references() -> None:
    node = {"properties": {"next": {"$ref": "#/$defs/N"}}}
    assert read({"$ref": "#/$defs/N", "$defs": {"N": node}})["$defs"] == {"N": node}
    assert read({"items": {"$ref": "#"}}) == {"items": {"$ref": "#"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "null"}}},
        {"$ref": "https://e.example/a", "$defs": {"a": {"$id": "https://e.example/a", "type": "null"}}},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "null"}}},
        {"$ref": "#/$defs/a/$defs/b", "$defs": {"a": {"$defs": {"b": {"$ref": "#/$defs/c"}}}, "c": {"type": "null"}}},
    ],
)
def test_other_ways_to_refer_keep_their_meaning(schema: dict[str, Any]) -> None:
    for value in (None, 1):
        assert bool(violations(read(schema), value)) == bool(violations(schema, value))


@pytest.mark.covers("S0-41", "S0-42", "S0-43", "S0-55", "C12")
def test_a_long_schema_is_reduced_by_depth_and_says_so() -> None:
    deep: dict[str, Any] = {"type": "string", "pattern": "x" * 100}
    for level in range(12):
        deep = {"type": "object", "properties": {f"level{level}{name}": deep for name in "ab"}, "required": []}
    summary = summarize(deep)
    assert summary.cut
    assert len(summary.text) <= 2_000
    assert "full schema" in (summary.note or "")
    shown = json.loads(summary.text)
    assert list(shown["properties"]) == ["level11a", "level11b"]
    assert '"$comment":"shortened"' in summary.text


@pytest.mark.covers("S0-41")
@pytest.mark.parametrize("limit", [0, 1, 2, 20, 60, 100, 500, 5_000])
def test_the_cap_holds_for_any_size(limit: int) -> None:
    schema = {
        "type": "object",
        "required": ["r" * 50] * 9,
        "properties": {f"p{n}": {"enum": ["e" * 30] * 9} for n in range(9)},
    }
    summary = summarize(schema, limit)
    assert len(summary.text) <= limit
    assert summary.cut == (limit < 5_000)
    assert not summary.text or isinstance(json.loads(summary.text), dict)


def test_too_long_descriptions_go_before_structure_does() -> None:
    schema = {"properties": {f"p{n}": {"type": "null", "description": "d" * 500} for n in range(20)}}
    summary = summarize(schema, descriptions=True)
    assert summary.cut
    assert json.loads(summary.text) == {"properties": {f"p{n}": {"type": "null"} for n in range(20)}}


@pytest.mark.covers("S0-40", "S2-56")
@settings(max_examples=examples(160), deadline=None)
@given(schemas(), st.integers(0, 300))
def test_a_summary_is_json_within_its_cap_and_means_the_same_when_whole(schema: dict[str, Any], limit: int) -> None:
    whole = summarize(schema, 100_000)
    assert not whole.cut
    for value in (None, 1, "x", {}, [], {"a": 1, "title": "x"}, [1, "a"]):
        assert bool(violations(json.loads(whole.text), value)) == bool(violations(schema, value))
    part = summarize(schema, limit)
    assert len(part.text) <= limit
    assert part.cut == (len(whole.text) > limit)
    if part.text:
        json.loads(part.text)


@needs_real_world
@pytest.mark.covers("S0-41")
def test_real_schemas_are_summarised_within_the_cap() -> None:
    cut = 0
    for entry in real_world():
        summary = summarize(entry["schema"])
        cut += summary.cut
        assert len(summary.text) <= 2_000
        json.loads(summary.text)
    assert cut < 100


def test_hostile_schemas_are_refused_not_walked() -> None:
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"items": deep}
    with pytest.raises(SchemaError):
        summarize(deep)


@pytest.mark.covers("C12", "S0-41")
def test_a_wide_object_keeps_its_keys_and_types() -> None:
    nullable = {"anyOf": [{"type": "string", "maxLength": 40, "pattern": "^[a-z ]*$"}, {"type": "null"}]}
    names = [f"field_{number}" for number in range(60)]
    schema = {"type": "object", "properties": dict.fromkeys(names, nullable), "required": names[:5]}
    shortened = read(schema, max_chars=2_000)
    assert list(shortened["properties"]) == names
    assert shortened["required"] == names[:5]


@pytest.mark.covers("C12")
def test_each_branch_is_cut_by_itself() -> None:
    deep = {
        "type": "object",
        "properties": {f"deep_{n}": {"type": "string"} for n in range(100)},
        "required": ["deep_1"],
    }
    small = {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
    schema = {"type": "object", "properties": {"address": small, "history": {"type": "array", "items": deep}}}
    shortened = read(schema, max_chars=500)
    assert shortened["properties"]["address"] == small
    assert shortened["properties"]["history"]["items"]["required"] == ["deep_1"]


@pytest.mark.covers("C12")
@needs_real_world
def test_no_real_schema_loses_a_required_key_of_its_root() -> None:
    for number, entry in enumerate(real_world()):
        document = with_plain_references(entry["schema"])
        root, told = followed(document, document), read(entry["schema"])
        names = {*followed(told, told).get("properties", {}), *followed(told, told).get("required", ())}
        assert set(root.get("required", ())) <= names, number

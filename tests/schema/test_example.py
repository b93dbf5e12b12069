from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from slipform.schema import Schema, example
from slipform.schema.examples import FORMATS, matching
from slipform.schema.validator import violations
from tests.conftest import examples
from tests.schema.data import needs_real_world, real_world
from tests.schema.strategies import schemas


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"const": None}, None),
        ({"enum": [3, 4]}, 3),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5}, 6),
        ({"type": "integer", "maximum": -5}, -5),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, 10),
        ({"type": ["null", "boolean"]}, True),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"type": "string", "maxLength": 2}, "te"),
        ({"type": "string", "examples": ["good"]}, "good"),
        ({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, "AA-000"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True}, [1, 2, 3]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 2, "uniqueItems": True}, ["a", "b"]),
        ({"prefixItems": [{"const": 1}, {"const": "a"}], "items": False, "minItems": 2}, [1, "a"]),
        ({"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"required": ["x"], "additionalProperties": {"type": "null"}}, {"x": None}),
        ({"minProperties": 2, "type": "object"}, {"key1": "text", "key2": "text"}),
        ({"allOf": [{"required": ["a"]}, {"properties": {"a": {"const": 2}}}]}, {"a": 2}),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}], "minimum": 1}, 1),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["v"], "properties":
            {"v": {"const": 1}, "next": {"$ref": "#/$defs/n"}}}}}, {"v": 1}),
        ({"type": "object", "required": ["a"], "dependentRequired": {"a": ["b"]}, "properties":
            {"a": {"const": 1}, "b": {"const": 2}}}, {"a": 1, "b": 2}),
    ],
    ids=str,
)  # fmt: skip
def test_an_example_is_small_and_predictable(schema: dict[str, Any], value: Any) -> None:
    found = example(schema)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"not": {}},
        {"enum": [1], "type": "string"},
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}},
        {"type": "string", "minLength": 10**9},
        {"type": "number", "minimum": 1e308, "multipleOf": 1e-300},
        {"type": "array", "minItems": 10**9},
    ],
    ids=str,
)
def test_where_there_is_none_none_is_given(schema: dict[str, Any]) -> None:
    assert example(schema) is None


@pytest.mark.parametrize("name", FORMATS)
def test_every_sample_fits_its_format(name: str) -> None:
    found = example({"type": "string", "format": name})
    assert found is not None
    assert found.value == FORMATS[name]


@pytest.mark.parametrize(
    "pattern",
    ["^a+$", "[^a-z]", "(x|y)z", r"\w+@\w+\.com", r"^(?<n>\d)-\1$", ".", "^$", "[A-Fa-f0-9]{8}", r"\S+", r"^\D$"],
)
def test_patterns_are_matched_by_their_samples(pattern: str) -> None:
    for variant in range(3):
        text = matching(pattern, variant)
        assert text is not None
        assert violations({"pattern": pattern}, text) == []


@pytest.mark.parametrize("pattern", ["(", "[[a]]", "a" * 5_000, "(a{1000}){1000}"])
def test_patterns_beyond_reach_give_none(pattern: str) -> None:
    assert matching(pattern) is None


def test_the_text_is_compact_json() -> None:
    found = example(Schema.of(dict[str, list[int]]).document)
    assert found is not None
    assert found.text == "{}"
    big = example({"const": 2**70})
    assert big is not None
    assert big.text == str(2**70)


@settings(max_examples=examples(160), deadline=None)
@given(schemas())
def test_an_example_validates_and_is_always_the_same(schema: dict[str, Any]) -> None:
    found = example(schema)
    assert found == example(schema)
    if found is not None:
        assert violations(schema, found.value) == []


def test_work_on_unions_is_bounded() -> None:
    definitions: dict[str, Any] = {"d10": {"type": "integer", "minimum": 2, "maximum": 1}}
    for level in range(10):
        inner = {"type": "array", "items": {"$ref": f"#/$defs/d{level + 1}"}, "minItems": 1}
        definitions[f"d{level}"] = {"anyOf": [inner, {**inner, "minItems": 2}]}
    assert example({"$ref": "#/$defs/d0", "$defs": definitions}) is None


@needs_real_world
def test_nearly_all_real_schemas_get_an_example() -> None:
    found = [example(entry["schema"]) for entry in real_world()]
    assert sum(one is not None for one in found) >= 0.97 * len(found)

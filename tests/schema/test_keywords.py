"""What two schemas say together: an intersection may leave values out, and never lets one in."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipform.schema.keywords import NoNormalForm, Unsatisfiable, intersection
from tests.conftest import examples

PARTS = st.sampled_from([
    {"type": "string"}, {"type": "integer"}, {"minimum": 3}, {"enum": [1, "a"]}, {"type": ["null", "string"]},
    True, False,
])  # fmt: skip
SIZES = st.integers(0, 2)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "contains": PARTS,
        "minContains": SIZES,
        "maxContains": SIZES,
        "minItems": SIZES,
        "maxItems": SIZES,
        "items": PARTS,
        "prefixItems": st.lists(PARTS, min_size=1, max_size=2),
    },
)
OLD_ITEMS = st.fixed_dictionaries(
    {}, optional={"items": PARTS | st.lists(PARTS, min_size=1, max_size=2), "additionalItems": PARTS, "minItems": SIZES}
)
KEYS = st.sampled_from(["a", "b", "xa", "c"])
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "properties": st.dictionaries(KEYS, PARTS, max_size=2),
        "patternProperties": st.dictionaries(st.sampled_from(["^x", "a", "^b$", "^(?=q)"]), PARTS, max_size=1),
        "additionalProperties": PARTS,
        "required": st.lists(KEYS, max_size=1),
        "maxProperties": SIZES,
    },
)
VALUES = st.sampled_from(["a", "b", 1, 4, None])
LATEST, OLD = "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("draft", "schemas", "values"),
    [
        (LATEST, ITEMS, st.lists(VALUES, max_size=3)),
        (OLD, OLD_ITEMS, st.lists(VALUES, max_size=3)),
        (LATEST, OBJECTS, st.dictionaries(KEYS, VALUES, max_size=3)),
    ],
    ids=["arrays", "arrays of draft 7", "objects"],
)
def test_an_intersection_takes_only_what_both_schemas_take(
    draft: str, schemas: st.SearchStrategy[dict[str, Any]], values: st.SearchStrategy[Any]
) -> None:
    @settings(max_examples=examples(400), deadline=None, suppress_health_check=list(HealthCheck))
    @given(schemas, schemas, st.lists(values, max_size=8))
    def check(one: dict[str, Any], other: dict[str, Any], instances: list[Any]) -> None:
        try:
            both = intersection(one, other)
        except NoNormalForm:
            return
        takes = [jsonschema_rs.validator_for({"$schema": draft, **each}).is_valid for each in (one, other, both)]
        assert [each for each in instances if takes[2](each) and not (takes[0](each) and takes[1](each))] == []

    check()


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"items": {"minimum": 1}}, {"items": {"maximum": 9}}, {"items": {"allOf": [{"minimum": 1}, {"maximum": 9}]}}),
        (
            {"prefixItems": [{"type": "string"}]},
            {"items": {"minLength": 2}},
            {"prefixItems": [{"allOf": [{"type": "string"}, {"minLength": 2}]}], "items": {"minLength": 2}},
        ),
        (
            {"items": [{"type": "string"}], "additionalItems": False},
            {"items": [True, {"type": "null"}]},
            {"items": [{"type": "string"}, False], "additionalItems": False},
        ),
        ({"contains": {"const": 1}}, {"minContains": 0}, {"contains": {"const": 1}}),
        (
            {"properties": {"xa": {}}, "additionalProperties": False},
            {"patternProperties": {"^x": {"type": "null"}}},
            {"properties": {"xa": {"type": "null"}}, "additionalProperties": False},
        ),
        (
            {"properties": {"xa": False}},
            {"patternProperties": {"^x": {"type": "null"}}},
            {"properties": {}, "additionalProperties": False},
        ),
        (
            {"properties": {"b": False}},
            {"patternProperties": {"^x": {"type": "null"}}},
            {"properties": {}, "patternProperties": {"^x": {"type": "null"}}, "additionalProperties": False},
        ),
    ],
)
def test_what_two_schemas_say_together(one: dict[str, Any], other: dict[str, Any], both: dict[str, Any]) -> None:
    assert intersection(one, other) == both


@pytest.mark.parametrize(
    ("one", "other", "error"),
    [
        ({"items": [{}]}, {"prefixItems": [{}]}, NoNormalForm),
        ({"contains": {"const": 1}}, {"contains": {"const": 2}}, NoNormalForm),
        ({"multipleOf": 2}, {"multipleOf": 3}, NoNormalForm),
        ({"properties": {"q": {}}}, {"patternProperties": {"^(?:a{1000}){1000}$": {}}}, NoNormalForm),
        ({"properties": {"a": False}}, {"required": ["a"]}, Unsatisfiable),
        ({"type": "string", "minLength": 3}, {"maxLength": 2}, Unsatisfiable),
        ({"enum": [1]}, {"enum": [2]}, Unsatisfiable),
    ],
)
def test_what_one_schema_cannot_say_has_no_intersection(
    one: dict[str, Any], other: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as raised:
        intersection(one, other)
    assert type(raised.value) is error

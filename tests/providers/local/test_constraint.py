"""A schema → a grammar that compiles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.errors import UnsupportedSchemaError
from slipform.providers.local.constraint import Constraint, any_object, constrain
from tests.conftest import PERSON


def schema_in(constraint: Constraint) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(constraint.grammar.partition("%json ")[2])
    return schema


def test_a_plain_schema_is_held_exactly() -> None:
    constraint = constrain(PERSON, 512)
    assert constraint.exact
    assert constraint.grammar.startswith("%llguidance")


def test_open_ended_strings_and_arrays_get_bounds_from_the_token_budget() -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}}
    small, large = schema_in(constrain(schema, 60)), schema_in(constrain(schema, 600))
    length = [each["properties"]["tags"]["items"]["maxLength"] for each in (small, large)]
    assert length[0] < length[1]
    assert small["properties"]["tags"]["maxItems"] >= 1


def test_the_callers_own_bounds_stay() -> None:
    schema = {"type": "array", "minItems": 40, "items": {"type": "string", "maxLength": 7}}
    bounded = schema_in(constrain(schema, 64))
    assert bounded["maxItems"] == 40
    assert bounded["items"]["maxLength"] == 7


def test_properties_named_like_keywords_are_left_alone() -> None:
    schema = {"type": "object", "properties": {"type": {"const": "string"}, "items": {"type": "integer"}}}
    bounded = schema_in(constrain(schema, 64))
    assert bounded["properties"] == schema["properties"]


def test_open_objects_are_closed_where_that_cannot_shut_out_what_a_sibling_asks_for() -> None:
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert schema_in(constrain(plain, 64))["additionalProperties"] is False
    combined = {"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"properties": {"b": True}}]}
    narrowed = schema_in(constrain(combined, 64))
    assert "additionalProperties" not in narrowed
    assert "additionalProperties" not in narrowed["anyOf"][0]


def test_what_decoding_cannot_hold_is_named_and_left_to_the_validator() -> None:
    constraint = constrain({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, 64)
    assert not constraint.exact
    assert "uniqueItems" in constraint.warnings[0].message


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "(?=a)b"}, {"enum": []}])
def test_what_cannot_be_decoded_at_all_is_refused_before_any_call(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchemaError, match="another provider"):
        constrain(schema, 64)


def test_json_mode_is_an_object_of_any_shape() -> None:
    assert schema_in(any_object(64))["type"] == "object"

"""The dialects as data, and where they differ."""

from __future__ import annotations

from typing import Any

import pytest

from slipform.errors import ConfigError
from slipform.schema.lowering.dialects import dialect, dialect_names
from slipform.schema.lowering.lowered import lower
from tests.schema.lowering_encode import encode

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": ["integer", "null"], "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_an_unknown_dialect_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Unknown dialect 'antropic'") as caught:
        lower(PERSON, "antropic")
    assert "The nearest: anthropic" in str(caught.value)
    assert "gemini-openapi" in str(caught.value)


@pytest.mark.parametrize("name", dialect_names())
def test_every_dialect_names_its_source_and_date(name: str) -> None:
    row = dialect(name)
    assert row.source
    assert row.date.year >= 2026


CARRIED: dict[str, dict[str, Any]] = {
    "pattern": {"type": "string", "pattern": "a"},
    "minLength": {"type": "string", "minLength": 1},
    "maxLength": {"type": "string", "maxLength": 9},
    "minimum": {"type": "integer", "minimum": 1},
    "maximum": {"type": "integer", "maximum": 9},
    "exclusiveMinimum": {"type": "number", "exclusiveMinimum": 0.5},
    "exclusiveMaximum": {"type": "number", "exclusiveMaximum": 9.5},
    "multipleOf": {"type": "integer", "multipleOf": 3},
    "minItems": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "maxItems": {"type": "array", "items": {"type": "string"}, "maxItems": 9},
}
"""For each keyword that lowering can carry, but `format`, a schema with it."""


@pytest.mark.parametrize("name", dialect_names())
def test_a_dialect_sends_every_keyword_and_format_that_its_row_lists(name: str) -> None:
    row = dialect(name)
    assert row.keywords <= {*CARRIED, "format"}, "a keyword that lowering drops whatever the row says"
    listed = {word: CARRIED[word] for word in row.keywords if word != "format"}
    listed |= {each: {"type": "string", "format": each} for each in row.formats}
    schema = {"type": "object", "properties": listed, "required": sorted(listed), "additionalProperties": False}
    sent = lower(schema, name).schema["properties"] if listed else {}
    dropped = [word for word, each in listed.items() if not {*each} - {"type", "items"} <= {*sent[word]}]
    assert dropped == []


def test_the_vendors_asked_for_are_there() -> None:
    wanted = {
        "openai", "anthropic", "gemini", "gemini-openapi", "groq", "cerebras", "fireworks", "together", "mistral",
        "xai",
        "deepseek", "cohere", "bedrock", "tool", "llguidance", "identity",
    }  # fmt: skip
    for name in wanted:
        dialect(name)


@pytest.mark.covers("C18")
def test_gemini_takes_json_schema_by_default_and_the_openapi_form_on_request() -> None:
    plain = lower(PERSON, "gemini")
    assert plain.schema["properties"]["age"] == {"type": ["integer", "null"], "minimum": 0}
    assert plain.schema["additionalProperties"] is False
    converted = lower(PERSON, "gemini-openapi")
    assert converted.schema == {
        "type": "OBJECT",
        "properties": {
            "name": {"type": "STRING", "minLength": 1},
            "age": {"type": "INTEGER", "minimum": 0, "nullable": True},
            "tags": {"type": "ARRAY", "items": {"type": "STRING", "enum": ["a", "b"]}},
        },
        "required": ["name", "age"],
        "propertyOrdering": ["name", "age", "tags"],
    }
    value = {"name": "x", "age": None}
    assert converted.lift(encode(converted, value)) == value


def test_groq_takes_no_constraints_and_mistral_leaves_optionals() -> None:
    assert lower(PERSON, "groq").schema["properties"]["name"]["description"] == "minLength: 1"
    assert lower(PERSON, "mistral").schema["required"] == ["name", "age"]


def test_cohere_has_no_unions_and_every_object_requires_something() -> None:
    lowered = lower({**PERSON, "required": []}, "cohere")
    assert "anyOf" not in str(lowered.schema)
    assert lowered.schema["required"]
    for value in ({}, {"age": None}, {"name": "x", "age": 3, "tags": ["a"]}):
        assert lowered.lift(encode(lowered, value)) == value


def test_a_dialect_without_references_spells_them_out() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"$ref": "#/$defs/n"}},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer"}},
    }
    assert "$ref" not in str(lower(schema, "deepseek").schema)


def test_the_local_engine_keeps_what_it_can_enforce() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^x", "maxLength": 3}},
        "patternProperties": {"^n": {"type": "integer"}},
        "oneOf": [{"required": ["a"]}, {"required": ["n"]}],
    }
    lowered = lower(schema, "llguidance")
    assert lowered.identity
    assert lowered.schema["patternProperties"] == {"^n": {"type": "integer"}}
    assert "oneOf" not in lowered.schema
    assert {loss.enforced_by for loss in lowered.report if loss.action == "kept"} == {"engine"}


def test_identity_and_tools_leave_the_schema_alone() -> None:
    assert lower(PERSON, "identity").schema is PERSON
    assert lower(PERSON, "tool").schema == PERSON
    assert lower(PERSON, "tool").identity

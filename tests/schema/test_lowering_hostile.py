"""Schemas made to hurt: each is answered or refused, within a bound, and the process lives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.errors import SchemaError
from slipform.schema.document import definition_of, subschemas
from slipform.schema.lowering.dialects import dialect_names
from slipform.schema.lowering.lowered import lower
from tests.schema.lowering_encode import encode


def bomb(word: str, levels: int = 30) -> dict[str, Any]:
    """2^levels subschemas in a few lines."""
    defs: dict[str, Any] = {
        f"n{level}": {word: [{"$ref": f"#/$defs/n{level + 1}"}, {"$ref": f"#/$defs/n{level + 1}"}]}
        for level in range(levels)
    }
    defs[f"n{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/n0", "$defs": defs}


def property_bomb(levels: int = 30) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"n{level}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/n{level + 1}"} for name in "ab"},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        for level in range(levels)
    }
    defs[f"n{levels}"] = {"type": "string"}
    return {"$ref": "#/$defs/n0", "$defs": defs}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    return schema


HOSTILE = {
    "allOf bomb": bomb("allOf"),
    "anyOf bomb": bomb("anyOf"),
    "oneOf bomb": bomb("oneOf"),
    "property bomb": property_bomb(),
    "self": {"$ref": "#"},
    "loop": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "anyOf self": {
        "anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}, {"type": "array"}],
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
    },
    "root self": {"anyOf": [{"$ref": "#"}]},
    "anyOf loop": {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    "allOf loop": {"allOf": [{"$ref": "#"}], "type": "object", "properties": {"a": {"$ref": "#"}}},
    "deep": deep(100),
    "very deep": deep(10_000),
    "groups": {
        "type": "object",
        "allOf": [{"anyOf": [{"properties": {f"p{at}": {"const": value}}} for value in range(4)]} for at in range(12)],
    },
    "many properties": {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(6_000)}},
    "large enum": {"enum": [f"v{at}" for at in range(20_000)]},
    "bad pattern": {"type": "string", "pattern": "(((("},
    "slow pattern": {
        "type": "object",
        "properties": {"a" * 40 + "!": {"type": "string"}},
        "patternProperties": {"^(a+)+$": {"type": "integer"}},
    },
    "remote": {"$ref": "http://example.com/schema.json"},
    "file": {"$ref": "file:///etc/passwd"},
    "nowhere": {"$ref": "#/$defs/none"},
    "not a schema": {"properties": {"a": 3}},
    "surrogate": {"type": "string", "enum": ["\ud800"]},
    "ever growing": {
        "type": "object",
        "properties": {"a": {"allOf": [{"$ref": "#"}, {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}]}},
    },
}


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini", "gemini-openapi", "llguidance", "tool"])
@pytest.mark.parametrize("name", list(HOSTILE))
@pytest.mark.timeout(30)
def test_a_hostile_schema_is_answered_or_refused(name: str, dialect: str) -> None:
    try:
        lowered = lower(HOSTILE[name], dialect)
    except SchemaError:
        return
    json.dumps(lowered.schema)
    lowered.lift({"value": [{}]})


def test_a_reference_bomb_is_lowered_without_being_spelled_out() -> None:
    lowered = lower(property_bomb(), "openai")
    assert len(lowered.schema["$defs"]) == 30
    assert lower(bomb("allOf"), "openai").lift({"value": "x"}) == "x"


def test_a_bomb_in_a_dialect_without_references_is_refused_by_count() -> None:
    with pytest.raises(SchemaError, match="more than 10000 parts"):
        lower(property_bomb(), "deepseek")


@pytest.mark.parametrize("name", ["remote", "file", "nowhere"])
def test_a_reference_that_leads_out_of_the_document_is_named(name: str) -> None:
    with pytest.raises(SchemaError, match="points at nothing") as caught:
        lower(HOSTILE[name], "openai")
    assert HOSTILE[name]["$ref"] in str(caught.value)


def test_a_deep_answer_is_lifted() -> None:
    schema = {
        "type": "object",
        "properties": {"next": {"$ref": "#"}, "note": {"type": "string"}},
        "additionalProperties": False,
    }
    answer: dict[str, Any] = {"next": None, "note": None}
    for _ in range(5_000):
        answer = {"next": answer, "note": None}
    value = lower(schema, "openai").lift(answer)
    depth = 0
    while value:
        value = value["next"]
        depth += 1
    assert depth == 5_000


@pytest.mark.parametrize("name", dialect_names())
def test_every_dialect_takes_an_ordinary_schema(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    lowered = lower(schema, name)
    for value in ({"a": "x"}, {"a": "x", "b": [1]}):
        assert lowered.lift(encode(lowered, value)) == value


def test_lifting_on_its_own_stack_gives_the_same() -> None:
    """Every kind of encoding inside one loop, deeper than the interpreter's stack."""
    node = {
        "type": "object",
        "properties": {
            "next": {"$ref": "#/$defs/node"},
            "free": {},
            "map": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
            "pair": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        },
        "additionalProperties": {"type": "string"},
    }
    lowered = lower({"$ref": "#/$defs/node", "$defs": {"node": node}}, "openai")
    full = {
        "free": {"a": [1]},
        "map": {"x": None, "y": 2},
        "pair": ["p"],
        "maybe": None,
        "either": {"z": 1},
        "other": "text",
    }
    sent = encode(lowered, full)
    answer: dict[str, Any] = sent
    for _ in range(2_000):
        answer = {**sent, "next": answer}
    value = lowered.lift(answer)
    for _ in range(2_000):
        assert {name: each for name, each in value.items() if name != "next"} == full
        value = value["next"]
    assert value == full


@pytest.mark.parametrize("dialect", dialect_names())
def test_a_definition_that_nothing_fits_may_be_referred_to_from_inside(dialect: str) -> None:
    never = {"allOf": [{"type": "string"}, {"type": "number"}]}
    inside = {"properties": {"again": {"$ref": "#/$defs/other"}, "never": never}, "required": ["never"]}
    schema = {
        "properties": {"a": {"$ref": "#/$defs/node"}, "b": {"type": "string"}},
        "$defs": {"node": inside, "other": {"additionalProperties": {"$ref": "#/$defs/node"}}},
    }
    lowered = lower(schema, dialect, open_objects="closed").schema
    names = {name for _, node in subschemas(lowered) if (name := definition_of(node)) is not None}
    assert names <= set(lowered.get("$defs", {}))

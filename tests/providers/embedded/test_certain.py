"""What no grammar can hold is said in words that one can, or, on a second try, left out: nothing invalid comes out."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from slipform import Client
from slipform.addons.local import LocalProvider
from slipform.addons.local.decoding.constrain import constrain, constrain_retry
from slipform.addons.local.decoding.weaken import weaken
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import Message, ToolCall, ToolResult
from slipform.providers.router import Router
from tests.providers.embedded.walks import RandomEngine, random_answer

TAGS = {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}

HELD_AT_ONCE: dict[str, dict[str, Any]] = {
    "a condition on a literal": {
        "type": "object",
        "properties": {"kind": {"enum": ["cat", "dog", "eel"]}, "legs": {"type": "integer"}},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "cat"}}},
        "then": {"properties": {"legs": {"const": 4}}, "required": ["legs"]},
        "else": {"not": {"required": ["legs"]}},
    },
    "several conditions, each of its own key": {
        "type": "object",
        "properties": {"kind": {"$ref": "#/$defs/kind"}},
        "required": ["kind"],
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}},
                "then": {
                    "properties": {"kind": {"$ref": "#/$defs/kind"}, kind: {"type": "boolean"}},
                    "required": [kind],
                    "additionalProperties": False,
                },
            }
            for kind in ("a", "b", "c")
        ],
        "$defs": {"kind": {"enum": ["a", "b", "c"]}},
    },
    "not both keys": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "null"}},
        "not": {"allOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "minProperties": 1,
    },
    "not a literal": {"type": "object", "properties": {"s": {"type": "string", "not": {"enum": ["", "no", "non"]}}}},
    "not a type": {"type": "object", "properties": {"s": {"not": {"type": ["string", "object", "array"]}}}},
    "never": {"type": "object", "properties": {"a": {"type": "null"}, "b": {"not": {}}}},
    "one of several keys": {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in "abc"},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}],
        "additionalProperties": False,
    },
    "one of several, within all of": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "n": {"type": "string", "maxLength": 3}},
        "allOf": [{"required": ["n"]}, {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}],
        "additionalProperties": False,
    },
    "one of several objects that are told apart by a key": {
        "oneOf": [
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            {"type": "object", "properties": {"hotel": {"type": "integer"}}, "required": ["hotel"]},
        ]
    },
    "one of two patterns that no text matches both of": {
        "type": "object",
        "properties": {
            "s": {"type": "string", "oneOf": [{"pattern": "^a[0-9]+$"}, {"pattern": "^b[0-9]+$"}]},
        },
    },
    "a key that asks for another": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
        "dependentRequired": {"a": ["b"]},
        "dependentSchemas": {"b": {"required": ["c"]}},
    },
    "a key that asks for another, in an older draft": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "dependencies": {"a": ["b"]},
    },
    "a choice that leads back to itself": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "oneOf": [
                    {"type": "object", "properties": {"leaf": {"type": "integer"}}, "required": ["leaf"]},
                    {"type": "object", "properties": {"in": {"$ref": "#/$defs/node"}}, "required": ["in"]},
                ]
            }
        },
    },
    "a format that the engine does not know": {"type": "object", "properties": {"at": {"format": "uri"}}},
    "a format with a pattern": {
        "type": "object",
        "properties": {"at": {"type": "string", "format": "uri", "pattern": "^https?://"}},
        "required": ["at"],
    },
    "what stands beside a reference counts for nothing in older drafts": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/a", "not": {"type": "string"}}},
        "required": ["a"],
        "definitions": {"a": {"type": "string", "maxLength": 3}},
    },
}

HELD_ON_A_SECOND_TRY: dict[str, dict[str, Any]] = {
    "items that differ": TAGS,
    "items that differ, behind a reference": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "null"}},
        "$defs": {"a": {**TAGS, "minItems": 2}},
    },
    "a pattern that looks ahead": {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(?!.*--)[a-z-]+$"}, "b": {"type": "null"}},
    },
    "a pattern that refers back, with examples": {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"^(a|b)\1$", "examples": ["aa", "ab", "bb"]}},
        "required": ["a"],
    },
    "a pattern with an end inside": {
        "type": "object",
        "properties": {"path": {"type": "string", "pattern": "^([a-z]{1,3}(/|$))+$"}},
        "required": ["path"],
    },
    "numbers that are whole or large": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]},
    "not a pattern": {"type": "object", "properties": {"s": {"type": "string", "not": {"pattern": "^[ .-]+$"}}}},
    "texts told apart by how they begin": {
        "type": "object",
        "properties": {"key": {"oneOf": [{"format": "uuid"}, {"pattern": "^\\$[A-Z]+$"}]}},
        "required": ["key"],
    },
    "names that no pattern may look ahead in": {
        "type": "object",
        "patternProperties": {"^(?!@@)[a-z@]+$": {"type": "integer"}},
        "additionalProperties": False,
    },
    "a regular expression": {"type": "object", "properties": {"r": {"type": "string", "format": "regex"}}},
    "one of two, of which one is anything": {
        "oneOf": [{"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}, {}],
        "type": "object",
    },
    "a list of which some items may not be": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9},
        "not": {"items": {"maximum": 4}},
    },
}


def answers(schema: dict[str, Any], *, exact: bool = False) -> list[Any]:
    constraint = constrain(schema, 200, exact=exact)
    return [random_answer(constraint, seed) for seed in range(30)]


def asked_of(engine: RandomEngine, schema: dict[str, Any]) -> Any:
    router = Router({"local": LocalProvider(lambda _: engine)})
    with Client("local", router=router, options=Options(budget=Budget(attempts=2))) as client:
        return client.ask(schema, "Write something.", max_tokens=200)


def invalid(schema: dict[str, Any], values: list[Any]) -> list[Any]:
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    return [value for value in values if not validator.is_valid(value)]


@pytest.mark.covers("S0-10")
@pytest.mark.parametrize("schema", HELD_AT_ONCE.values(), ids=HELD_AT_ONCE)
def test_what_has_a_plain_spelling_is_held_by_every_answer(schema: dict[str, Any]) -> None:
    assert constrain(schema, 200).exact
    assert invalid(schema, answers(schema)) == []


@pytest.mark.covers("S0-10")
@pytest.mark.parametrize("schema", HELD_ON_A_SECOND_TRY.values(), ids=HELD_ON_A_SECOND_TRY)
def test_what_has_none_is_left_out_on_a_second_try(schema: dict[str, Any]) -> None:
    first, second = constrain(schema, 200), constrain(schema, 200, exact=True)
    assert not first.exact
    assert second.exact
    assert {warning.code for warning in second.warnings} <= {"constraint_narrowed"}
    assert invalid(schema, answers(schema, exact=True)) == []


@pytest.mark.covers("S0-10")
@pytest.mark.parametrize("schema", HELD_ON_A_SECOND_TRY.values(), ids=HELD_ON_A_SECOND_TRY)
def test_two_attempts_are_enough_for_a_model_that_knows_nothing(schema: dict[str, Any]) -> None:
    assert invalid(schema, [asked_of(RandomEngine(seed), schema) for seed in range(8)]) == []


def test_a_second_attempt_is_needed_where_the_first_could_be_wrong() -> None:
    engines = [RandomEngine(seed) for seed in range(8)]
    for engine in engines:
        asked_of(engine, {**TAGS, "minItems": 1})
    assert {engine.asked for engine in engines} == {1, 2}


def test_every_branch_that_a_plain_spelling_keeps_can_still_be_answered() -> None:
    kinds = {value["kind"] for value in answers(HELD_AT_ONCE["several conditions, each of its own key"])}
    assert kinds == {"a", "b", "c"}
    keys = {key for value in answers(HELD_AT_ONCE["one of several keys"]) for key in value}
    assert keys == {"a", "b", "c"}


def test_the_first_answer_is_not_held_to_less_than_the_schema_takes() -> None:
    """2.5 is a valid answer, though no plain alternative has it."""
    schema = HELD_ON_A_SECOND_TRY["numbers that are whole or large"]
    assert [warning.code for warning in constrain(schema, 100).warnings] == ["constraint_weakened"]
    assert any(isinstance(value, float) for value in answers(schema))


def test_what_is_taken_out_is_named_at_its_place_in_the_schema_as_it_was_given() -> None:
    listed = {"type": "object", "required": ["t"], "properties": {"t": TAGS}}
    other = {"type": "object", "required": ["u"], "properties": {"u": {"type": "null"}}}
    for schema, place in (
        ({"type": "object", "properties": {"a": {"oneOf": [listed, other]}}}, "/properties/a"),
        ({"oneOf": [listed, other]}, ""),
    ):
        assert [warning.path for warning in constrain(schema, 100).warnings] == [place]
        assert [warning.path for warning in constrain(schema, 100, exact=True).warnings] == [place]


def test_an_edit_that_others_came_before_does_not_bring_back_what_they_saw() -> None:
    """Taking `oneOf` for `anyOf` at the root must not hide that a `not` below it was dropped."""
    schema = {
        "oneOf": [{"type": "object", "properties": {"a": {"type": "string", "not": {"format": "date"}}}}, {}],
    }
    _, losses, fatal = weaken(schema)
    assert fatal is None
    assert {loss.pointer for loss in losses} == {(), ("oneOf", "0", "properties", "a", "not")}


@pytest.mark.covers("S0-10")
def test_the_conversation_tells_that_this_is_a_second_try() -> None:
    question, complaint = Message.user("Letters."), Message.user("They must differ.")
    twice, once = Message.assistant('["a", "a"]'), Message.assistant('["a"]')
    assert not constrain_retry(TAGS, 100, (question,)).exact
    assert not constrain_retry(TAGS, 100, (question, once, complaint)).exact
    assert not constrain_retry(TAGS, 100, (question, Message.assistant("Sorry?"), complaint)).exact
    assert constrain_retry(TAGS, 100, (question, twice, complaint)).exact


def test_a_call_with_invalid_arguments_makes_the_next_one_certain() -> None:
    schema = {"type": "object", "properties": {"tags": TAGS}, "required": ["tags"]}
    call = Message("assistant", (ToolCall("1", "tag", '{"tags": ["a", "a"]}'),))
    messages = (Message.user("Tag it."), call, Message("tool", (ToolResult("1", (), is_error=True),)))
    assert constrain_retry(schema, 100, messages, tool="tag").exact
    assert not constrain_retry(schema, 100, messages, tool="other").exact


def test_what_is_required_and_cannot_be_held_stays_for_the_validator() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"^(a|b)\1$"}, "b": TAGS},
        "required": ["a"],
    }
    certain = constrain(schema, 100, exact=True)
    assert not certain.exact
    assert sorted(warning.path or "" for warning in certain.warnings) == [
        "/properties/a/pattern",
        "/properties/b/uniqueItems",
    ]


def test_counted_keys_still_hold_to_the_patterns_of_their_names() -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"type": ["string", "null"]}, "c": {"type": "integer"}},
        "patternProperties": {"^b": {"type": "string"}},
        "maxProperties": 1,
    }
    assert constrain(schema, 100).exact
    assert invalid(schema, answers(schema)) == []


def test_a_choice_that_has_no_plain_spelling_is_not_narrowed_in_its_branches() -> None:
    """A text is valid under two of the branches, so it is not valid; to narrow one of them would not make it so."""
    schema = {
        "type": ["string", "null", "object"],
        "oneOf": [
            {"if": {"const": 1}, "else": {"type": "string"}, "dependentRequired": {"a": ["b"]}},
            {"patternProperties": {"^b": {"type": "string", "minLength": 2}}, "minProperties": 1},
        ],
    }
    assert not constrain(schema, 100, exact=True).exact

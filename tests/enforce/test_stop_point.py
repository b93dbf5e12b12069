"""Violations of an answer that was stopped: only those that the model caused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipform.enforce import Budget, Outcome, Plan, Switches, enforce
from slipform.enforce.stream import EnforcedCall, Release
from slipform.engine.setup import Options
from slipform.errors import EnforcementError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, ToolCall
from slipform.ir.request import Tool
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.testing import FakeModel
from tests.enforce.test_live import streamed

LINE: Any = {
    "type": "object",
    "properties": {"qty": {"type": "integer", "maximum": 999}, "price": {"type": "number"}},
    "required": ["qty", "price"],
    "additionalProperties": False,
}
BOOK = {"properties": {"kind": {"const": "book"}, "pages": {"type": "integer"}}, "required": ["kind", "pages"]}
DISC = {"properties": {"kind": {"const": "disc"}, "minutes": {"type": "integer"}}, "required": ["kind", "minutes"]}


def required(properties: Any, **more: Any) -> Any:
    return {"type": "object", "properties": properties, "required": list(properties), **more}


STOPPED: dict[str, tuple[Any, str, list[str]]] = {
    "keys of the object and of those around it": (
        required({"lines": {"type": "array", "items": LINE, "minItems": 3}, "total": {"type": "number"}}),
        '{"lines": [{"qty": 40000, "price": 2}], "total": 3}',
        ["$.lines[0].qty maximum"],
    ),
    "least number of members and items": (
        {"properties": {"a": {"items": {"maximum": 9}, "minItems": 2}}, "minProperties": 2},
        '{"a": [10, 2], "b": 1}',
        ["$.a[0] maximum"],
    ),
    "an item that has to be there": (
        {"properties": {"a": {"type": "array", "items": {"maximum": 9}, "contains": {"const": 7}}}},
        '{"a": [10, 7]}',
        ["$.a[0] maximum"],
    ),
    "a string that could have been longer": (
        required({"id": {"type": "string", "enum": ["open"], "minLength": 4}, "b": {}}),
        '{"id": "x-long", "b": 1}',
        ["$.id enum"],
    ),
    "a member whose value had not begun": (
        {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "maxProperties": 1},
        '{"a": 1, "b": 2}',
        ["$ maxProperties"],
    ),
    "an object of a union": (
        required({"items": {"type": "array", "items": {"anyOf": [BOOK, DISC]}}, "last": {}}),
        '{"items": [{"kind": "book", "pages": [], "x": 1}], "last": 1}',
        ["$.items[0] anyOf"],
    ),
    "keys that an object lacks where it has closed": (
        required({"line": LINE, "total": {}}),
        '{"line": {"qty": 4}, "total": 3}',
        ["$.line required"],
    ),
}


@pytest.mark.parametrize("case", STOPPED)
@pytest.mark.parametrize("size", [1, 7, 400])
async def test_a_stopped_answer_is_charged_with_what_the_model_wrote_and_nothing_else(case: str, size: int) -> None:
    schema, text, expected = STOPPED[case]
    _, outcome, model = await streamed(schema, text, text, size=size)
    assert isinstance(outcome, EnforcementError)
    first = outcome.report.attempts[0]
    assert [f"{each.json_path} {each.keyword}" for each in first.violations] == expected
    told = f"{model.requests[1].messages[-1].text} {json.dumps(first.to_dict())} {outcome}"
    assert ("is missing" in told) is expected[0].endswith("required")


async def test_the_arguments_of_a_stopped_call_are_charged_with_what_the_model_wrote() -> None:
    tool = Tool("order", LINE)
    bad = ModelResponse(tool_calls=(ToolCall("c1", "order", '{"qty": 40000, "price": 2}'),))
    good = ModelResponse(tool_calls=(ToolCall("c1", "order", '{"qty":4,"price":2}'),))
    model = FakeModel([bad, good], chunk_size=4, models=("m",))
    client = AsyncClient(router=Router({"fake": model}))
    request = ModelRequest("fake/m", (Message.user("go"),), tools=(tool,))
    outcome: Any = None
    async for piece in client.respond_stream(request, Options(budget=Budget(attempts=2)), mode="live"):
        if isinstance(piece, Outcome):
            outcome = piece
    assert outcome.answer.tool_calls[0].arguments == '{"qty":4,"price":2}'
    assert [each.keyword for each in outcome.report.attempts[0].violations] == ["maximum"]


async def test_large_answers_that_were_stopped_are_asked_for_whole() -> None:
    """What the model had no chance to write must not be left out of the answer."""
    schema = required({"note": {"type": "string"}, "qty": {"type": "integer", "maximum": 9}}, additionalProperties=True)
    note = " ".join(map(str, range(3000)))
    bad, good = json.dumps({"note": note, "qty": 10, "more": 1}), json.dumps({"note": note, "qty": 9, "more": 1})
    left, outcome, _ = await streamed(schema, bad, good, size=50)
    assert isinstance(outcome, Outcome)
    assert json.loads(left) == outcome.value == json.loads(good)


@pytest.mark.parametrize("size", [1, 5, 100])
async def test_a_valid_answer_is_not_stopped_where_the_validator_ignores_siblings_of_a_reference(size: int) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "string", "$ref": "#/definitions/o"}},
        "definitions": {"o": {"type": "object", "required": ["x"]}},
    }
    assert Schema.of(schema).fits({"a": {"x": 1}})
    left, outcome, _ = await streamed(schema, '{"a":{"x":1}}', size=size, attempts=1)
    assert isinstance(outcome, Outcome)
    assert left == '{"a":{"x":1}}'


CLOSED = required({"name": {"type": "string"}, "next": {"type": "integer"}}, additionalProperties=False)
EITHER = {"anyOf": [{"type": "null"}, {"type": "boolean"}]}
POSITIVE = required({"n": {"type": "integer", "minimum": 1}})
STOPS: list[tuple[str, Any, str, str]] = [
    ("a number where a string is due", CLOSED, '{"name":-7.25}', '{"name":-'),
    ("a digit where an object is due", required({"o": {"type": "object"}}), '{"o":12}', '{"o":1'),
    ("a number in an array of strings", required({"l": {"items": {"type": "string"}}}), '{"l":["",1]}', '{"l":["",1'),
    ("a number where neither choice has one", required({"a": EITHER}), '{"a":1}', '{"a":1'),
    ("a minus sign where all numbers are positive", POSITIVE, '{"n":-3}', '{"n":-'),
    ("a key that no property begins with", CLOSED, '{"nickname":"Ada"}', '{"ni'),
    ("the key of a nested object", required({"o": CLOSED}), '{"o":{"surname":"Ada"}}', '{"o":{"s'),
]
GOES_ON: list[tuple[str, Any, str]] = [
    ("a minus sign where zero is the least", required({"n": {"type": "integer", "minimum": 0}}), '{"n":-0}'),
    ("a whole number in scientific notation", POSITIVE, '{"n":1.5e1}'),
    ("a number that one of two choices has", required({"a": {"type": ["string", "number"]}}), '{"a":1.5}'),
    ("a key of a pattern", {"patternProperties": {"^x-": {}}, "additionalProperties": False}, '{"x-1":2}'),
    ("a key that is escaped", CLOSED, '{"na\\u006de":"Ada","next":1}'),
    ("a key of an open object", required({"a": {}}), '{"b":1,"a":2}'),
]


def stop_of(schema: Any, text: str) -> str | None:
    """What had been written, character by character, when the model was stopped; nothing is patched."""
    plan = Plan(Schema.of(schema), switches=Switches.none())
    call = EnforcedCall(enforce(ModelRequest("m", ()), plan), plan, streaming=True, release=Release(answer=True))
    reader = call.read()
    for at, char in enumerate(text):
        reader.push([CompletionChunk(char)])
        if reader.stopped:
            return text[: at + 1]
    return None


def test_the_model_is_stopped_at_the_first_character_that_nothing_valid_has_there() -> None:
    wrong = [(name, stop) for name, schema, text, expected in STOPS if (stop := stop_of(schema, text)) != expected]
    assert wrong == []


def test_what_may_still_become_valid_is_not_stopped() -> None:
    assert [(name, stop) for name, schema, text in GOES_ON if (stop := stop_of(schema, text)) is not None] == []

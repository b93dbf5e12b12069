"""A model that writes without end is stopped with the fault `runaway`, and asked otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipform import Budget, Client, Options
from slipform.codecs import Capabilities
from slipform.enforce import Requirement, judge
from slipform.enforce.early_stop import RunawayStop
from slipform.errors import RunawayError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, ToolDelta
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from slipform.testing import FakeModel

SHAPE: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
GOOD = '{"a":"x"}'
ENDLESS = {
    "newlines": '{"a":' + "\n" * 50_000,
    "a phrase": '{"a": "' + "Other; " * 20_000,
    "digits": '{"b": 1' + "0" * 50_000,
    "prose": "Well, well. " * 10_000,
}


class Counted(FakeModel):
    """Counts the characters that were taken from its streams."""

    taken = 0

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        for chunk in super().stream(request):
            self.taken += len(chunk.text)
            yield chunk


def _client(model: FakeModel, attempts: int = 2) -> Client:
    return Client("fake/m", router=Router({"fake": model}), options=Options(budget=Budget(attempts)))


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_stream_is_stopped_and_asked_otherwise(text: str) -> None:
    model = Counted([text, GOOD], capabilities=Capabilities(native=True))
    result = _client(model).stream(SHAPE, "Which?").result
    assert result.value == {"a": "x"}
    assert model.taken < 12_000
    assert [attempt.outcome for attempt in result.report.attempts] == ["runaway", "ok"]
    first, second = model.requests
    assert second.messages[: len(first.messages)] != second.messages
    assert "without end" in second.messages[-1].text
    assert second.sampling.frequency_penalty is not None
    assert [attempt.strategy for attempt in result.report.attempts] == [OutputStrategy.NATIVE, OutputStrategy.PROMPTED]


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_whole_answer_that_never_ended_is_told_apart_from_a_small_limit(text: str) -> None:
    model = FakeModel([ModelResponse(text=text, finish="length"), GOOD])
    outcome = _client(model).respond(_request())
    assert outcome.value == {"a": "x"}
    assert [attempt.outcome for attempt in outcome.report.attempts] == ["runaway", "ok"]


def test_the_error_says_what_and_where() -> None:
    model = FakeModel([ModelResponse(text=ENDLESS["newlines"], finish="length")])
    with pytest.raises(RunawayError, match="blanks without end") as caught:
        _client(model, 1).ask(SHAPE, "Which?")
    assert caught.value.details["kind"] == "blanks"
    assert caught.value.to_dict()["details"]["validation_errors"][0]["keyword"] == "runaway"


def test_json_that_had_closed_before_is_the_answer() -> None:
    model = Counted([GOOD + "\n" * 50_000])
    result = _client(model).stream(SHAPE, "Which?").result
    assert (result.value, len(result.report.attempts)) == ({"a": "x"}, 1)
    assert model.taken < 5_000


def test_arguments_and_thinking_are_watched_too() -> None:
    stop = RunawayStop(Schema.of(SHAPE))
    assert stop.feed(CompletionChunk(tool_calls=(ToolDelta(0, "c", "f", '{"x": "' + "la " * 3_000),)))
    stop = RunawayStop(Schema.of(SHAPE))
    assert not stop.feed(CompletionChunk(reasoning="Hm. " * 1_000))
    assert stop.feed(CompletionChunk(reasoning="Hm. " * 2_000))


@pytest.mark.parametrize("extra", [{"contentEncoding": "base64"}, {"format": "byte"}, {"maxLength": 100}])
def test_encoded_and_bounded_strings_may_repeat(extra: dict[str, Any]) -> None:
    shape = {"type": "object", "properties": {"d": {"type": "string", **extra}, "e": {"type": "string"}}}
    stop = RunawayStop(Schema.of({"type": "array", "items": {"anyOf": [shape, {"type": "null"}]}}))
    assert not stop.feed(CompletionChunk('[{"d": "' + "AAAA" * 5_000))
    other = RunawayStop(Schema.of({"type": "array", "items": shape}))
    assert other.feed(CompletionChunk('[{"e": "' + "AAAA" * 5_000))


def test_equal_rows_only_warn() -> None:
    rows = json.dumps([{"a": "a row of some length, which is the same each time"}] * 400)
    verdict = judge(ModelResponse(text=rows), Requirement(Schema.of({"type": "array", "items": SHAPE})))
    assert verdict.ok
    assert [warning.code for warning in verdict.warnings] == ["repeated_rows"]
    zeros = judge(ModelResponse(text=json.dumps([0] * 20_000)), Requirement(Schema.of(list[int])))
    assert zeros.warnings == ()


def _request() -> ModelRequest:
    return ModelRequest("fake/m", (Message.user("Which?"),), ResponseFormat.strict(JsonSchemaSpec("thing", SHAPE)))

"""Answers that are looked at while they are written: stopped where the JSON closes, or where it is certainly wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform import AsyncClient, Client
from slipform.codecs import Capabilities
from slipform.enforce import Budget, EarlyStop, Guard, Outcome, Plan, enforce
from slipform.engine.setup import Options
from slipform.errors import InvalidResponseFormat, RefusalError, RequestError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from slipform.testing import FakeModel

SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
    "required": ["a"],
    "additionalProperties": False,
}
HARD = Guard(response_format_fail_hard=True)
STOP = Guard(stop_after_json=True)
LONG = " and so on" * 100


class Counted(FakeModel):
    """Counts the characters that were taken from it, and notices when its stream is closed early."""

    def __init__(self, script: list[Any], **fields: Any) -> None:
        super().__init__(script, **fields)
        self.taken = 0
        self.cut = 0

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        over = False
        try:
            for chunk in super().stream(request):
                self.taken += len(chunk.text)
                yield chunk
            over = True
        finally:
            self.cut += not over

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        chunks = self.stream(request)
        try:
            for chunk in chunks:
                yield chunk
        finally:
            chunks.close()  # type: ignore[attr-defined]


def request(**extra: Any) -> ModelRequest:
    wanted = ResponseFormat.strict(JsonSchemaSpec("thing", SHAPE))
    return ModelRequest("fake/m", (Message.user("Which?"),), wanted, extra=extra)


def router(model: FakeModel) -> Router:
    return Router({"fake": model})


def options(guard: Guard, attempts: int = 1, **fields: Any) -> Options:
    return Options(budget=Budget(attempts), guard=guard, **fields)


@pytest.mark.covers("S0-57", "S0-65", "S0-07")
def test_the_model_is_stopped_where_the_json_closes() -> None:
    model = Counted(['Sure: {"a": 1}' + LONG])
    outcome = Client(router=router(model), options=options(STOP)).respond(request())
    assert outcome.value == {"a": 1}
    assert (model.cut, model.taken < 30) == (1, True)


@pytest.mark.covers("S0-57", "S0-64", "S0-02")
async def test_the_model_is_stopped_where_the_json_closes_on_every_path() -> None:
    for path in ("ask", "stream", "respond_stream", "sync_stream"):
        model = Counted(['Sure: {"a": 1}' + LONG])
        client = AsyncClient("fake/m", router=router(model), options=options(STOP))
        value: Any = None
        if path == "ask":
            value = await client.ask(SHAPE, "Which?")
        elif path == "stream":
            value = (await client.stream(SHAPE, "Which?").result()).value
        elif path == "sync_stream":
            value = Client("fake/m", router=router(model), options=options(STOP)).stream(SHAPE, "Which?").result.value
        else:
            async for piece in client.respond_stream(request()):
                value = piece.value if isinstance(piece, Outcome) else value
        assert value == {"a": 1}, path
        assert (model.cut, model.taken < 30) == (1, True), path


def test_without_a_guard_nothing_is_cut() -> None:
    model = Counted(['Sure: {"a": 1}' + LONG])
    assert Client("fake/m", router=router(model)).stream(SHAPE, "Which?").result.value == {"a": 1}
    assert model.cut == 0


WRONG = [
    ("a value of the wrong kind", '{"a": "one", "b": ["x"' + LONG, "schema_violation"),
    ("an item of the wrong kind", '{"a": 1, "b": [{"c": 2}, "x"' + LONG, "schema_violation"),
    ("no JSON in sight", "I would say" + LONG, "not_json"),
]


@pytest.mark.covers("S0-60", "S0-61", "S0-62", "S0-63", "C10")
@pytest.mark.parametrize(("text", "cause"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_certainly_wrong_is_stopped_at_once(text: str, cause: str, streamed: bool) -> None:
    model = Counted([text])
    client = Client("fake/m", router=router(model), options=options(HARD))
    with pytest.raises(InvalidResponseFormat) as caught:
        _ = client.stream(SHAPE, "Which?").result if streamed else client.ask(SHAPE, "Which?")
    assert caught.value.code == "invalid_response_format"
    assert caught.value.details["cause"] == cause
    assert (model.cut, model.taken < len(text)) == (1, True)


@pytest.mark.covers("S0-64", "C10")
def test_what_can_be_mended_is_not_stopped() -> None:
    for text in ('{"a": "1", "b": ["x"]}', '{"thing": {"a": 1, "b": ["x"]}}', "{'a': 1, 'b': ['x'],}"):
        model = Counted([text])
        assert Client("fake/m", router=router(model), options=options(HARD)).ask(SHAPE, "?") == {"a": 1, "b": ["x"]}


@pytest.mark.covers("C10", "S3-53")
def test_without_fail_hard_an_error_waits_for_the_end() -> None:
    model = Counted(['{"a": "one", "b": ["x"' + LONG + '"]}', '{"a": 1}'])
    client = Client("fake/m", router=router(model), options=options(Guard(), attempts=2))
    assert client.stream(SHAPE, "Which?").result.value == {"a": 1}
    assert model.cut == 0


def test_an_answer_that_was_stopped_is_asked_for_again_within_the_budget() -> None:
    model = Counted(['{"a": "one", "b": ["x"' + LONG, '{"a": 1}'])
    client = Client("fake/m", router=router(model), options=options(HARD, attempts=2))
    with client.stream(SHAPE, "Which?") as stream:
        kinds = [delta.kind for delta in stream.deltas()]
        assert stream.result.value == {"a": 1}
    assert "restart" in kinds
    assert [attempt.outcome for attempt in stream.result.report.attempts] == ["schema_violation", "ok"]
    assert model.cut == 1


@pytest.mark.covers("S0-15", "S0-16", "S0-58", "S0-59", "S0-79", "S0-80", "C01")
@pytest.mark.parametrize(("text", "code"), [("no JSON", "not_json"), ('{"b": []}', "schema_violation")])
def test_raw_text_with_a_warning_unless_told_to_fail_hard(text: str, code: str) -> None:
    soft = Client(router=router(FakeModel([text])), options=options(Guard(), on_failure="raw")).respond(request())
    assert soft.text == text
    assert [warning.code for warning in soft.report.warnings] == [code]
    with pytest.raises(InvalidResponseFormat) as caught:
        Client(router=router(FakeModel([text])), options=options(HARD, on_failure="raw")).respond(request())
    assert caught.value.report is not None


def test_a_refusal_stays_a_refusal() -> None:
    model = FakeModel([ModelResponse(refusal="No.")])
    with pytest.raises(RefusalError):
        Client(router=router(model), options=options(HARD)).respond(request())


@pytest.mark.covers("S0-57", "S0-59")
def test_a_request_asks_for_the_guard_and_no_vendor_sees_that() -> None:
    model = Counted(['{"a": 1}' + LONG])
    outcome = Client(router=router(model)).respond(request(stop_after_json=True, top_logprobs=2))
    assert outcome.value == {"a": 1}
    assert model.cut == 1
    assert model.requests[0].extra == {"top_logprobs": 2}
    with pytest.raises(RequestError, match="true or false"):
        Client(router=router(model)).respond(request(stop_after_json="yes"))


@pytest.mark.covers("S0-06", "S0-47", "S0-48")
def test_only_a_provider_that_can_is_told_to_force_the_start() -> None:
    guard = Guard(force_json_start=True)
    steps = enforce(request(), Plan(Schema.of(SHAPE), guard=guard, guarded_decoding=True))
    assert next(steps).extra == {"force_json_start": True}
    outcome = Client(router=router(FakeModel(['{"a": 1}'])), options=options(guard)).respond(request())
    assert [warning.code for warning in outcome.report.warnings] == ["force_json_start_ignored"]


def test_the_tool_channel_is_not_watched() -> None:
    wanted = ResponseFormat.strict(JsonSchemaSpec("thing", SHAPE)).with_strategy(OutputStrategy.TOOL)
    plan = Plan(Schema.of(SHAPE), guard=HARD)
    assert plan.watch(ModelRequest("m", (), wanted)) is None
    assert Plan(Schema.of(SHAPE)).watch(request()) is None


VALUES = st.fixed_dictionaries({"a": st.integers()}, optional={"b": st.lists(st.text(max_size=8), max_size=3)})


@settings(deadline=None)
@given(value=VALUES, size=st.integers(1, 9), indent=st.sampled_from([None, 2]))
def test_a_valid_answer_is_never_stopped_before_its_end(value: Any, size: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    watch = EarlyStop(Guard(stop_after_json=True, response_format_fail_hard=True), Schema.of(SHAPE))
    read = ""
    for at in range(0, len(text), size):
        read += text[at : at + size]
        if watch.feed(text[at : at + size]):
            break
    assert watch.error is None
    assert (read, watch.over) == (text, True)


def test_native_answers_of_a_vendors_shape_are_judged_at_their_end() -> None:
    watch = EarlyStop(HARD, Schema.of(SHAPE))
    watch.follow_no_schema()
    assert not watch.feed('{"items": [{"key": "a", "value": 1}], "rest": null')
    assert Capabilities().auto_strategy is OutputStrategy.PROMPTED


@pytest.mark.covers("S0-23")
@pytest.mark.parametrize(
    "prose", ["As shown in [1], ", "In [1, 2] and []: ", "Begin with {}, then: ", "[[1], [2]] is not it. "]
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stopping_after_the_json_does_not_stop_at_brackets_the_schema_cannot_begin_with(prose: str, size: int) -> None:
    schema = Schema.of({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    answer = '{"name": "Ada"}'
    watch = EarlyStop(Guard(stop_after_json=True), schema)
    text = prose + answer
    stops = [watch.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert stops == [False] * (len(stops) - 1) + [True]
    assert watch.error is None

"""Tool calls while they grow: what leaves, when the model is stopped, and how a call asked for again goes on."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.enforce import Budget, Outcome, Plan
from slipform.engine.drive import Mode, run_stream_blocking
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import RESERVED_TOOL, CompletionChunk, Message, ModelRequest, Tool, ToolDelta
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema
from tests.conftest import PERSON, examples
from tests.enforce.test_live import FAULTS, ORDER, ORDERS

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: dict[str, Any] = {"weather": WEATHER, "order": ORDER, "person": PERSON, "note": {"type": "object"}}
SCHEMAS = {name: Schema[Any](name, document) for name, document in TOOLS.items()}


class Script:
    """A model whose answers are lists of pieces: a text, `("think", …)`, or a call `(id, name, arguments)`."""

    def __init__(
        self, *answers: Any, size: int = 4, cuts: random.Random | None = None, chunks: Iterable[CompletionChunk] = ()
    ) -> None:
        self.answers = [answer if isinstance(answer, list) else [answer] for answer in answers]
        self.size, self.cuts, self.given = size, cuts, chunks
        self.requests: list[ModelRequest] = []
        self.pulled: list[int] = []

    def __call__(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        self.requests.append(request)
        self.pulled.append(0)
        for chunk in self.chunks(self.answers[min(len(self.requests), len(self.answers)) - 1]):
            self.pulled[-1] += 1
            yield chunk

    def chunks(self, answer: list[Any]) -> Iterator[CompletionChunk]:
        calls = 0
        if self.given:
            yield from self.given
            return
        for part in answer:
            if isinstance(part, str):
                yield from (CompletionChunk(piece) for piece in self.cut(part))
            elif part[0] == "think":
                yield from (CompletionChunk(reasoning=piece) for piece in self.cut(part[1]))
            else:
                identity, name, arguments = part
                yield CompletionChunk(tool_calls=(ToolDelta(calls, identity, name),))
                for piece in self.cut(arguments):
                    yield CompletionChunk(tool_calls=(ToolDelta(calls, arguments=piece),))
                calls += 1
        yield CompletionChunk(finish="tool_calls" if calls else "stop")

    def cut(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            size = self.size if self.cuts is None else self.cuts.randint(1, 12)
            yield text[at : at + size]
            at += size


class Client:
    """What a client has seen of a stream, and how it ended."""

    def __init__(
        self,
        model: Script,
        *,
        mode: Mode = "auto",
        answer: Any = None,
        strategy: OutputStrategy = OutputStrategy.NATIVE,
        must_call: tuple[str, ...] = (),
        attempts: int = 3,
        on_failure: Literal["raise", "raw"] = "raise",
        tools: Mapping[str, Schema[Any]] = SCHEMAS,
    ) -> None:
        shape = None if answer is None else ResponseFormat.strict(JsonSchemaSpec("answer", answer))
        asked = ModelRequest(
            "m", (Message.user("go"),), shape, tools=tuple(Tool(name, document) for name, document in TOOLS.items())
        )
        plan = Plan(
            None if answer is None else Schema("answer", answer),
            strategy,
            Budget(attempts=attempts),
            tools=tools,
            must_call=must_call,
            on_failure=on_failure,
        )
        self.model = model
        self.seen: list[Any] = []
        self.text, self.thought = "", ""
        self.calls: list[list[str]] = []
        self.outcome: Outcome | None = None
        self.error: SlipformError | None = None
        try:
            for piece in run_stream_blocking(asked, plan, model, mode):
                if isinstance(piece, Outcome):
                    self.outcome = piece
                else:
                    self._read(piece)
        except SlipformError as error:
            self.error = error

    def _read(self, chunk: CompletionChunk) -> None:
        self.text += chunk.text
        self.thought += chunk.reasoning
        if chunk.text or chunk.reasoning:
            self.seen.append(chunk.text or ("think", chunk.reasoning))
        for delta in chunk.tool_calls:
            assert delta.index is not None
            if delta.index == len(self.calls):
                self.calls.append([delta.id or "", delta.name or "", ""])
            else:
                assert (delta.id, delta.name) == (None, None), (delta, self.calls)
            self.calls[delta.index][2] += delta.arguments
            self.seen.append((delta.index, delta.arguments))


OSLO = '{"city": "Oslo", "unit": "c"}'


def test_text_thinking_and_arguments_leave_as_they_come() -> None:
    client = Client(Script([("think", "Hm."), "I will look.", ("c1", "weather", OSLO)]))
    assert client.seen == [
        ("think", "Hm."), "I wi", "ll l", "ook.", (0, '{"city":"Os'), (0, 'lo"'), (0, ',"unit":"c"'), (0, "}"),
    ]  # fmt: skip
    assert client.calls == [["c1", "weather", '{"city":"Oslo","unit":"c"}']]


def test_the_opening_bracket_of_a_call_leaves_with_its_third_piece_at_the_latest() -> None:
    client = Client(Script([("c1", "weather", '{ "unit": "c", "city": "Oslo"}')], size=3))
    assert client.seen[0] == (0, "{")
    assert client.model.pulled == [12]


def test_of_a_call_that_comes_whole_all_but_its_end_leaves_at_once() -> None:
    client = Client(Script([("c1", "weather", OSLO), ("c2", "weather", '{"city": "Rome"}')], size=99))
    assert client.seen == [(0, '{"city":"Oslo","unit":"c"'), (0, "}"), (1, '{"city":"Rome"'), (1, "}")]


@pytest.mark.parametrize(
    ("said", "pulled"),
    [
        ([("c1", "order", '{"state": "lost on the way", "items": []}')], 4),
        ([("c1", "weather", '{"city": ["Oslo", "and", "many", "more"]}')], 4),
        ([("c1", "fly", '{"to": "Oslo, or to some other place"}')], 1),
        ([("c1", "weather", '{"days": 3}'), ("c2", "weather", OSLO)], 4),
    ],
    ids=["value", "type", "unknown tool", "missing key"],
)
def test_a_call_that_can_no_longer_become_valid_stops_the_model_and_is_asked_again(said: Any, pulled: int) -> None:
    client = Client(Script(said, [("d1", "weather", OSLO)]))
    assert client.model.pulled[0] == pulled
    assert [call[1:] for call in client.calls] == [["weather", '{"city":"Oslo","unit":"c"}']]
    assert client.outcome is not None
    (told,) = client.model.requests[1].messages[-1].parts
    assert "not valid" in told.parts[0].text  # type: ignore[union-attr]


def test_a_call_goes_on_under_its_first_id_from_what_has_left() -> None:
    client = Client(
        Script(["Look!", ("c1", "weather", '{"city": "Oslo", "unit": "k"}')], ["Oh.", ("d1", "weather", OSLO)])
    )
    assert client.calls == [["c1", "weather", '{"city":"Oslo","unit":"c"}']]
    assert client.text == "Look!", "what is said beside the mended call is about the mistake"
    assert client.outcome is not None
    assert [(call.id, call.arguments) for call in client.outcome.answer.tool_calls] == [("c1", client.calls[0][2])]


def test_a_call_that_cannot_go_on_from_what_has_left_ends_the_stream_with_an_error() -> None:
    client = Client(
        Script([("c1", "weather", '{"city": "Oslo", "unit": "k"}')], [("d1", "weather", '{"city": "Rome"}')])
    )
    assert client.error is not None
    assert "already been sent" in str(client.error)
    assert client.calls == [["c1", "weather", '{"city":"Oslo"']]


def test_valid_calls_are_kept_and_only_the_others_asked_for_again() -> None:
    said = [("c1", "weather", OSLO), ("c2", "weather", '{"city": "Rome", "days": "x y"}')]
    for again in (
        [("d1", "weather", '{"city": "Rome", "days": 2}')],
        [("d1", "weather", OSLO), ("d2", "weather", '{"city": "Rome", "days": 2}')],
        [("d1", "weather", '{"city": "OSLO"}'), ("d2", "weather", '{"city": "Rome", "days": 2}')],
    ):
        client = Client(Script(said, again))
        assert client.calls == [
            ["c1", "weather", '{"city":"Oslo","unit":"c"}'],
            ["c2", "weather", '{"city":"Rome","days":2}'],
        ]
        first, second = client.model.requests[1].messages[-1].parts
        assert "is kept" in first.parts[0].text  # type: ignore[union-attr]
        assert "not valid" in second.parts[0].text  # type: ignore[union-attr]


def test_a_text_in_place_of_a_call_follows_the_text_that_has_left() -> None:
    client = Client(Script(["Let me see. ", ("c1", "fly", "{}")], "I cannot fly."))
    assert client.text == "Let me see. \n\nI cannot fly."
    assert client.outcome is not None
    assert client.outcome.text == client.text


def test_text_after_a_call_leaves_behind_the_whole_call() -> None:
    client = Client(Script([("c1", "weather", "{'city': 'Oslo'}"), "Done.", ("c2", "weather", OSLO)], size=99))
    assert client.seen == [(0, '{"city":"Oslo"}'), "Done.", (1, '{"city":"Oslo","unit":"c"'), (1, "}")]


def test_calls_that_grow_side_by_side_are_followed_each_on_its_own() -> None:
    pieces = [(0, '{"city": "Os'), (1, '{"city": "Ro'), (0, 'lo"'), (1, 'me"'), (0, "}"), (1, "}")]
    chunks = [CompletionChunk(tool_calls=(ToolDelta(at, f"c{at}", "weather"),)) for at in (0, 1)]
    chunks += [CompletionChunk(tool_calls=(ToolDelta(at, arguments=piece),)) for at, piece in pieces]
    chunks.append(CompletionChunk(finish="tool_calls"))
    client = Client(Script([], chunks=chunks))
    assert client.seen[:4] == [(0, '{"city":"Os'), (1, '{"city":"Ro'), (0, 'lo"'), (1, 'me"')]
    assert [call[2] for call in client.calls] == ['{"city":"Oslo"}', '{"city":"Rome"}']


def test_where_a_call_is_required_what_may_be_one_in_words_waits() -> None:
    client = Client(Script('Sure: {"city": "Oslo"}'), must_call=("weather",))
    assert (client.text, client.calls) == ("Sure: ", [["call_1", "weather", '{"city":"Oslo"}']])
    client = Client(Script(["See [1] here. ", ("c1", "weather", OSLO)]), must_call=("weather",))
    assert client.seen[:3] == ["See ", "[1] here. ", (0, '{"city":"Os')]


@pytest.mark.parametrize("strategy", list(OutputStrategy)[1:])
@pytest.mark.parametrize("mode", ["auto", "live"])
def test_with_a_schema_too_calls_leave_as_they_grow_and_free_the_text_before_them(
    strategy: OutputStrategy, mode: Mode
) -> None:
    client = Client(Script(["I look. ", ("c1", "weather", OSLO)]), answer=PERSON, strategy=strategy, mode=mode)
    assert client.seen == ["I look. ", (0, '{"city":"Os'), (0, 'lo"'), (0, ',"unit":"c"'), (0, "}")]
    by_tool = strategy is OutputStrategy.TOOL
    answer = '{"name": "Ada", "age": 36}'
    said = [("c1", RESERVED_TOOL, answer)] if by_tool else [answer]
    client = Client(Script(said), answer=PERSON, strategy=strategy, mode=mode)
    assert client.text == '{"name":"Ada","age":36}'
    assert len(client.seen) > 1
    assert client.calls == []


def test_buffered_streams_show_nothing_before_the_end() -> None:
    client = Client(Script(["I look.", ("c1", "weather", OSLO)]), mode="buffer")
    assert client.seen == ["I look.", (0, '{"city":"Oslo","unit":"c"}')]


def test_calls_that_may_be_given_back_as_they_are_wait_for_the_end_and_words_do_not() -> None:
    client = Client(Script(["Hm. ", ("c1", "weather", '{"days": 3}')]), on_failure="raw", attempts=1)
    assert client.seen == ["Hm. ", (0, '{"days": 3}')]


def test_calls_of_tools_that_nobody_holds_to_a_schema_leave_as_they_are_written() -> None:
    client = Client(Script(["Hm. ", ("c1", "fly", '{ "to": ')]), answer=PERSON, tools={})
    assert client.seen == ["Hm. ", (0, '{ "t'), (0, 'o": '), (0, "")]


def test_a_call_under_a_very_large_schema_leaves_when_it_is_complete() -> None:
    large = {**WEATHER, "properties": {**WEATHER["properties"], "note": {"description": "x" * 70_000}}}
    client = Client(Script([("c1", "weather", OSLO), "Done."]), tools={"weather": Schema("weather", large)})
    assert client.seen == [(0, '{"city":"Oslo","unit":"c"}'), "Done", "."]


def test_a_stream_that_breaks_off_ends_with_an_error_behind_what_has_left() -> None:
    def breaking(chunks: Iterator[CompletionChunk]) -> Iterator[CompletionChunk]:
        yield from itertools.islice(chunks, 5)
        raise UpstreamError("The connection broke")

    model = Script(["Hm. ", ("c1", "weather", OSLO)])
    written = list(model.chunks(model.answers[0]))
    client = Client(Script([], chunks=written))
    assert client.calls == [["c1", "weather", '{"city":"Oslo","unit":"c"}']]
    client = Client(Script([], chunks=breaking(iter(written))))
    assert (client.text, client.calls) == ("Hm. ", [["c1", "weather", '{"city":"Os']])
    assert isinstance(client.error, UpstreamError)


NAMES = st.sampled_from(["weather", "order", "person", "note", "fly"])


@st.composite
def arguments(draw: st.DrawFn, name: str) -> str:
    """Valid, patchable or broken arguments of a tool."""
    value: Any = {"text": draw(st.text(max_size=9))}
    if name == "order":
        value = draw(ORDERS)
    elif name == "weather":
        days = draw(st.sampled_from([None, 3, "3", "x", [3]]))
        value = {"city": draw(st.text(max_size=9)), "unit": draw(st.sampled_from(["c", "C", "k"])), "days": days}
        value = {key: value[key] for key in draw(st.permutations(list(value))) if value[key] is not None}
    elif name == "person":
        value = {"name": draw(st.text(max_size=9)), "age": draw(st.sampled_from([36, "36", 3.5, None]))}
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    fault = draw(st.sampled_from([FAULTS[0], FAULTS[0], *FAULTS]))
    try:
        spoiled: str = fault(text, random.Random(draw(st.integers(0, 99))))
    except (ValueError, IndexError):
        return text
    return spoiled


@st.composite
def answers(draw: st.DrawFn) -> list[Any]:
    """Thinking, texts and calls in any order."""
    parts: list[Any] = []
    for at in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["think", "text", "call", "call"]))
        if kind == "call":
            name = draw(NAMES)
            parts.append((f"c{at}", name, draw(arguments(name))))
        else:
            words = draw(st.sampled_from(["Well.", "Let me [1] see: ", '{"name": "Ada", "age": 36}', '{"name": 3}']))
            parts.append(words if kind == "text" else ("think", words))
    return parts


@pytest.mark.covers("C11")
@settings(max_examples=examples(500), deadline=None)
@given(
    first=answers(),
    second=answers(),
    seed=st.integers(0, 9999),
    answer=st.sampled_from([None, None, PERSON]),
    strategy=st.sampled_from(list(OutputStrategy)[1:]),
    mode=st.sampled_from(["auto", "live"]),
    must_call=st.sampled_from([(), (), tuple(TOOLS)]),
)
def test_what_has_left_begins_what_is_delivered_and_every_delivered_call_is_valid(
    first: Any, second: Any, seed: int, answer: Any, strategy: Any, mode: Any, must_call: Any
) -> None:
    model = Script(first, second, cuts=random.Random(seed))
    client = Client(model, mode=mode, answer=answer, strategy=strategy, must_call=must_call)
    if client.outcome is None:
        assert client.error is not None
        return
    delivered = client.outcome.answer
    assert client.text == delivered.text
    assert client.calls == [[call.id, call.name, call.arguments] for call in delivered.tool_calls]
    for call in delivered.tool_calls:
        assert SCHEMAS[call.name].validate(json.loads(call.arguments)) == []
    if answer is not None and not delivered.tool_calls:
        assert Schema.of(answer).validate(json.loads(client.text)) == []

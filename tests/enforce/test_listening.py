"""Hearing answers: what may leave, what the sink takes, when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.enforce import Guard, Plan
from slipform.enforce.stream import EnforcedStream, Release
from slipform.ir import RESERVED_TOOL, CompletionChunk, Message, ModelRequest, ToolDelta
from slipform.ir.response import PassThroughSink
from slipform.schema import OutputStrategy, Schema
from tests.conftest import examples

SCHEMA: Schema[Any] = Schema.of(
    {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a"]}
)
ASKED = ModelRequest("m", (Message.user("?"),))


def listening(sink: Any = None, **plan: Any) -> EnforcedStream:
    made = EnforcedStream(Plan(SCHEMA, **plan), Release(answer=True), sink)
    made.begin(ASKED)
    return made


def texts(chunks: Sequence[CompletionChunk] | None) -> list[str] | None:
    return None if chunks is None else [chunk.text for chunk in chunks]


@pytest.mark.covers("S2-73")
def test_what_is_certain_is_given_and_what_is_not_is_nothing_to_be_done() -> None:
    heard = listening()
    assert texts(heard.push([CompletionChunk('{"a"'), CompletionChunk(': "x')])) == ['{"a":"x']
    assert heard.push([CompletionChunk('", "n": 1')]) is not None
    assert heard.push([CompletionChunk("2")]) is None
    assert heard.push([CompletionChunk(" }", finish="stop")]) is None, "the end leaves when the whole has been judged"
    assert heard.complete
    assert heard.response().text == '{"a": "x", "n": 12 }'


def test_what_the_sink_takes_is_not_given_again() -> None:
    taken: list[str] = []
    open_ = [True]

    class Gated(PassThroughSink):
        def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
            if open_[0]:
                taken.extend(chunk.text for chunk in chunks)
            return None if open_[0] else chunks

    heard = listening(Gated())
    assert heard.push([CompletionChunk('{"a":"x')]) is None
    open_[0] = False
    assert texts(heard.push([CompletionChunk("y"), CompletionChunk("z")])) == ["y", "z"]
    open_[0] = True
    assert heard.push([CompletionChunk("!")]) is None
    assert taken == ['{"a":"x', "!"]


def test_an_answer_that_can_no_longer_become_valid_stops_in_the_middle_of_a_batch() -> None:
    heard = listening(Taking())
    batch = [CompletionChunk('{"a":"x","n":'), CompletionChunk("[1"), CompletionChunk('],"more":1}')]
    left = heard.push(batch)
    assert left is not None, "whoever listens has to look at it"
    assert heard.stopped
    assert heard.response().finish == "stop"


class Taking:
    """A sink that takes text as such, every other time."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self._times = 0

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        return None if self.push_texts([chunk.text for chunk in chunks]) is None else chunks

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        assert call == -1
        self._times += 1
        if self._times % 2:
            self.taken += texts
            return None
        return [CompletionChunk(text) for text in texts]


ANSWERS = ['{"a": "x \\u00e9\\n", "n": 12}', 'Sure: {"a":"x"} and so on' * 9, '{"a":"x","n":"no"}', '{"n":1,"a":[2]}']


@settings(max_examples=examples(120), deadline=None)
@given(
    st.sampled_from(ANSWERS),
    st.lists(st.integers(1, 9), min_size=1, max_size=60),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.sampled_from([{}, {"strategy": OutputStrategy.TOOL}]),
)
def test_text_alone_is_heard_as_a_chunk_of_it_is(
    answer: str, sizes: list[int], alone: list[bool], plan: dict[str, Any]
) -> None:
    sinks = Taking(), Taking()
    as_chunks, as_text = (listening(sink, **plan) for sink in sinks)
    at = 0
    for turn, size in enumerate(sizes):
        pieces = [answer[at : at + size], answer[at + size : at + size + size // 3]]
        at += size + size // 3
        batch = [CompletionChunk(piece, id="i") for piece in pieces]
        heard = as_chunks.push(batch)
        assert heard == (as_text.push_texts(pieces) if turn and alone[turn % len(alone)] else as_text.push(batch))
        assert as_text.stopped == as_chunks.stopped
        if as_text.stopped:
            break
    assert sinks[0].taken == sinks[1].taken
    assert as_text.response() == as_chunks.response()


def test_a_guarded_answer_is_read_and_given_whole() -> None:
    heard = EnforcedStream(Plan(SCHEMA, guard=Guard(stop_after_json=True)))
    heard.begin(ASKED)
    assert heard.push_texts(['{"a":']) is None
    assert heard.push([CompletionChunk('"x"} and'), CompletionChunk(" more")]) == []
    assert heard.stopped
    assert heard.response().text == '{"a":"x"} and'


@pytest.mark.parametrize("name", [7, None, "c1"])
def test_names_and_arguments_are_taken_as_a_vendor_gives_them(name: Any) -> None:
    heard = listening(strategy=OutputStrategy.TOOL)
    odd: Any = {"a": "x"}
    assert heard.push([CompletionChunk(tool_calls=(ToolDelta(0, "t", RESERVED_TOOL),), id=name, model=name)]) is None
    (chunk,) = heard.push([CompletionChunk(tool_calls=(ToolDelta(0, arguments='{"a":"x'),))]) or [CompletionChunk()]
    assert (chunk.text, chunk.id, chunk.model) == ('{"a":"x', name, name)
    assert heard.push([CompletionChunk(tool_calls=(ToolDelta(0, arguments=odd),))]) is None

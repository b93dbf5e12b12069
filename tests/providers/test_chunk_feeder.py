"""Bytes of a streamed answer where they come in: to the steps of the call, or past them as text."""

from __future__ import annotations

from collections.abc import Sequence

from slipform.ir import CompletionChunk, ModelResponse
from slipform.ir.response import ChunkSink
from slipform.providers.call import CallSteps, ChunkFeeder, Effect, FinishEffect, ReadEffect


def upper_case(data: bytes) -> tuple[list[str], int, bytes] | None:
    text, _, rest = data.partition(b",")
    return ([text.decode()], -1, rest) if text.isupper() else None


def steps(seen: list[bytes]) -> CallSteps:
    """A call whose bytes are its text; upper case, up to a comma, may be taken as text alone."""
    effect: Effect = ReadEffect()
    while data := (yield effect):
        seen.append(data)
        effect = ReadEffect([CompletionChunk(data.decode())], upper_case)
    yield FinishEffect(ModelResponse())


class Noting:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        return self.push_texts([f"<{chunk.text}>" for chunk in chunks])

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        assert call == -1
        self.heard += texts
        return [CompletionChunk("left")] if texts == ["STOP"] else None


def decoding(sink: ChunkSink, seen: list[bytes]) -> ChunkFeeder:
    call = steps(seen)
    read = next(call)
    assert isinstance(read, ReadEffect)
    return ChunkFeeder(call, read, sink)


def test_text_goes_past_the_steps_of_the_call_once_they_say_how_to_read_it() -> None:
    seen: list[bytes] = []
    sink = Noting()
    one = decoding(sink, seen)
    assert [one.feed(data) for data in (b"A", b"B", b"c", b"D")] == [True] * 4
    assert sink.heard == ["<A>", "B", "<c>", "D"]
    assert seen == [b"A", b"c"]
    assert not one.feed(b"STOP")
    assert one.undelivered == [CompletionChunk("left")]
    assert isinstance(one.effect, ReadEffect), "the call goes on where it was"
    one.undelivered = None
    assert not one.feed(b"")
    assert isinstance(one.effect, FinishEffect)


def test_bytes_after_the_text_go_to_the_steps_once_the_sink_has_taken_it() -> None:
    fed: list[bytes] = []
    sink = Noting()
    one = decoding(sink, fed)
    assert [one.feed(data) for data in (b"A", b"B,c", b"D")] == [True] * 3
    assert sink.heard == ["<A>", "B", "<c>", "D"]
    assert fed == [b"A", b"c"]
    assert not one.feed(b"STOP,e")
    assert (one.undelivered, one.rest, fed) == ([CompletionChunk("left")], b"e", [b"A", b"c"])

"""Bytes of a streamed answer where they come in: to the steps of the call, or past them as text."""

from __future__ import annotations

from collections.abc import Sequence

from slipform.ir import CompletionChunk, ModelResponse
from slipform.ir.response import ChunkSink
from slipform.providers.call import CallSteps, ChunkFeeder, Effect, FinishEffect, ReadEffect


def steps(seen: list[bytes]) -> CallSteps:
    """A call whose bytes are its text; upper case may be taken as text alone."""
    effect: Effect = ReadEffect()
    while data := (yield effect):
        seen.append(data)
        effect = ReadEffect(
            [CompletionChunk(data.decode())], lambda data: ([data.decode()], -1) if data.isupper() else None
        )
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
    assert one.left == [CompletionChunk("left")]
    assert isinstance(one.effect, ReadEffect), "the call goes on where it was"
    one.left = None
    assert not one.feed(b"")
    assert isinstance(one.effect, FinishEffect)

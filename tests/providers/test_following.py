"""Bytes of a streamed answer where they come in: to the steps of the call, or past them as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slipform.ir import CompletionChunk, ModelResponse
from slipform.providers.call import Effect, FinishEffect, Following, ReadEffect, Steps


def steps(seen: list[bytes]) -> Steps:
    """A call whose bytes are its text; upper case may be taken as text alone."""
    effect: Effect = ReadEffect()
    while data := (yield effect):
        seen.append(data)
        effect = ReadEffect([CompletionChunk(data.decode())], lambda data: [data.decode()] if data.isupper() else None)
    yield FinishEffect(ModelResponse())


class Through:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, chunks: Sequence[CompletionChunk]) -> str | None:
        return self.texts([f"<{chunk.text}>" for chunk in chunks])

    def texts(self, texts: list[str]) -> str | None:
        self.heard += texts
        return "made" if texts == ["STOP"] else None


def following(through: Any, seen: list[bytes]) -> Following[Any]:
    call = steps(seen)
    read = next(call)
    assert isinstance(read, ReadEffect)
    return Following(call, read, through)


def test_text_goes_past_the_steps_of_the_call_once_they_say_how_to_read_it() -> None:
    seen: list[bytes] = []
    through = Through()
    one = following(through, seen)
    assert [one(data) for data in (b"A", b"B", b"c", b"D")] == [True] * 4
    assert through.heard == ["<A>", "B", "<c>", "D"]
    assert seen == [b"A", b"c"]
    assert not one(b"STOP")
    assert one.made == "made"
    assert isinstance(one.effect, ReadEffect), "the call goes on where it was"
    one.made = None
    assert not one(b"")
    assert isinstance(one.effect, FinishEffect)


def test_who_knows_only_chunks_is_given_chunks() -> None:
    seen: list[bytes] = []
    heard: list[str] = []
    one = following(lambda chunks: heard.append(chunks[0].text), seen)
    assert [one(data) for data in (b"A", b"B")] == [True, True]
    assert (heard, seen) == (["A", "B"], [b"A", b"B"])

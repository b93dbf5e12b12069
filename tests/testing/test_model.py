"""The fake model, as users' own tests would use it."""

from __future__ import annotations

import pytest

from slipform.codecs import Capabilities
from slipform.errors import ConfigError, RateLimitError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse
from slipform.providers.base import Provider
from slipform.providers.router import Router
from slipform.testing import FakeModel, Interrupted

ASKED = ModelRequest("m", (Message.user("hi"),))


async def collect(provider: Provider, request: ModelRequest) -> list[CompletionChunk]:
    return [chunk async for chunk in provider.stream_async(request)]


async def test_it_answers_from_its_script_on_every_face() -> None:
    model: Provider = FakeModel(["one", ModelResponse(text="two", finish="length"), "three", "four"], chunk_size=2)
    assert model.complete(ASKED).text == "one"
    assert (await model.complete_async(ASKED)).finish == "length"
    assert [chunk.text for chunk in model.stream(ASKED)] == ["th", "re", "e", ""]
    assert "".join(chunk.text for chunk in await collect(model, ASKED)) == "four"
    assert model.complete(ASKED).text == "four"


def test_it_remembers_what_it_was_asked() -> None:
    model = FakeModel(lambda request: request.messages[0].text.upper(), name="echo", models=["m"])
    router = Router({"echo": model}, default="echo/m")
    provider, upstream = router.resolve()
    assert provider.complete(ASKED.replace(model=upstream)).text == "HI"
    assert [request.messages[0].text for request in model.requests] == ["hi"]
    router.close()
    assert model.closed


async def test_it_raises_what_it_is_told_to() -> None:
    model = FakeModel([RateLimitError("slow")])
    with pytest.raises(RateLimitError):
        model.complete(ASKED)
    with pytest.raises(RateLimitError):
        list(model.stream(ASKED))
    with pytest.raises(RateLimitError):
        await collect(model, ASKED)


def test_a_stream_can_break_in_the_middle() -> None:
    model = FakeModel([Interrupted("hello world", RateLimitError("gone"), after=2)])
    got: list[str] = []
    with pytest.raises(RateLimitError):
        got.extend(chunk.text for chunk in model.stream(ASKED))
    assert got == ["hell", "o wo"]
    with pytest.raises(RateLimitError):
        model.complete(ASKED)


def test_it_can_do_what_it_is_said_to() -> None:
    assert FakeModel(["x"], capabilities=Capabilities(native=True)).capabilities("any").native
    assert FakeModel(["x"]).models() == []
    with pytest.raises(ConfigError):
        FakeModel([])

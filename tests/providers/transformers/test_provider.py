"""Models of transformers: the embedded model's own file, loaded by torch. Runs where torch is installed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.addons.local.weights import SMOLLM2, find
from slipform.addons.transformers import TransformersProvider
from slipform.errors import LocalModelError, UpstreamRequestError
from slipform.ir import Message, ModelRequest, Sampling
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat
from tests.conftest import PERSON

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("transformers")]
NEEDED = ("torch", "transformers", "gguf", "accelerate", "llguidance")
with_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="torch and transformers are not installed"
)


@pytest.fixture(scope="module")
def provider() -> Iterator[TransformersProvider]:
    with contextlib.closing(TransformersProvider()) as provider:
        yield provider


def request(text: str = "Ada is 36\nReply in JSON with the keys: name, age.", **changes: Any) -> ModelRequest:
    spec = ResponseFormat.strict(JsonSchemaSpec("person", changes.pop("schema", PERSON)))
    path = find(SMOLLM2)
    assert path
    return ModelRequest(str(path), (Message.user(text),), changes.pop("format", spec), **{"max_tokens": 60, **changes})


@with_torch
@pytest.mark.covers("S0-02", "S0-03", "S0-04")
def test_an_answer_has_the_shape_asked_for(provider: TransformersProvider) -> None:
    answer = provider.complete(request())
    assert json.loads(answer.text) == {"name": "Ada", "age": 36}
    assert answer.finish == "stop"
    assert (answer.usage.input or 0) > 10
    assert (answer.usage.output or 0) > 5


@with_torch
async def test_every_path_gives_the_same_answer(provider: TransformersProvider) -> None:
    whole = (await provider.complete_async(request())).text
    assert "".join(chunk.text for chunk in provider.stream(request())) == whole
    assert "".join([chunk.text async for chunk in provider.stream_async(request())]) == whole


@with_torch
@pytest.mark.covers("S0-06", "S0-20")
def test_a_forced_start_leaves_no_room_for_chatter(provider: TransformersProvider) -> None:
    spec = ResponseFormat.strict(JsonSchemaSpec("person", PERSON)).with_strategy(OutputStrategy.PROMPTED)
    free = provider.complete(request("Say hello.", format=spec, max_tokens=6))
    forced = provider.complete(request("Say hello.", format=spec, max_tokens=6, extra={"force_json_start": True}))
    assert free.text.lstrip()[0] not in "{["
    assert forced.text.lstrip()[0] in "{["


@with_torch
def test_the_same_seed_gives_the_same_words(provider: TransformersProvider) -> None:
    drawn = Sampling(temperature=1.2, seed=7)
    asked = request("Tell a story.", format=None, max_tokens=10, sampling=drawn)
    first, second = provider.complete(asked).text, provider.complete(asked).text
    assert first == second
    assert provider.complete(asked.replace(sampling=Sampling(temperature=1.2, seed=8))).text != first


@with_torch
def test_closing_the_stream_stops_the_model(provider: TransformersProvider) -> None:
    long = {"type": "array", "items": {"type": "integer"}, "minItems": 400}
    stream = provider.stream(request("Count up.", schema=long, max_tokens=3000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert provider.complete(request(max_tokens=4)).usage.output == 4


@with_torch
def test_a_stop_sequence_ends_the_answer_before_it(provider: TransformersProvider) -> None:
    answer = provider.complete(request(sampling=Sampling(stop=('"age"',))))
    assert '"age"' not in answer.text
    assert answer.text.startswith('{"name": "Ada"')
    assert answer.finish == "stop"


@with_torch
def test_an_answer_over_the_limit_and_a_prompt_over_the_context_are_told_apart(provider: TransformersProvider) -> None:
    assert provider.complete(request(max_tokens=4)).finish == "length"
    with pytest.raises(UpstreamRequestError, match=r"\d+ tokens\).*\(4096 tokens\)"):
        provider.complete(request("word " * 5000))


@with_torch
def test_a_model_that_is_not_there_is_refused(provider: TransformersProvider) -> None:
    with pytest.raises(LocalModelError, match="could not be loaded"):
        provider.complete(request().replace(model="nowhere/model.gguf"))


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_the_packages_the_error_says_what_to_install(provider: TransformersProvider) -> None:
    with pytest.raises(LocalModelError, match="transformers") as caught:
        provider.complete(request())
    assert "pip install" in str(caught.value)

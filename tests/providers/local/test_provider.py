"""The embedded model, for real."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slipform.errors import LocalModelError, RequestError, UpstreamRequestError
from slipform.ir import CompletionChunk, Media, Message, ModelRequest, ModelResponse, Sampling, Tool
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.local import LocalProvider
from slipform.providers.local.engine import LlamaEngine
from slipform.schema import JsonSchemaSpec, ResponseFormat, Schema
from tests.conftest import PERSON

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("local")]


def request(text: str = "Ada is 36\nReply in JSON with the keys: name, age.", **changes: Any) -> ModelRequest:
    spec = JsonSchemaSpec("person", changes.pop("schema", PERSON))
    return ModelRequest("smollm2-135m", (Message.user(text),), ResponseFormat.strict(spec), **changes)


def fold(chunks: list[CompletionChunk]) -> ModelResponse:
    reducer = Reducer()
    reducer.start(Snapshot())
    for chunk in chunks:
        reducer.push(chunk)
    return reducer.finish()


def test_an_answer_has_the_shape_asked_for(local: LocalProvider) -> None:
    response = local.complete(request())
    assert json.loads(response.text) == {"name": "Ada", "age": 36}
    assert response.finish == "stop"
    assert response.usage.output
    assert response.usage.input


def test_the_stream_adds_up_to_the_same_answer(local: LocalProvider) -> None:
    chunks = list(local.stream(request()))
    assert len(chunks) > 5
    assert fold(chunks).text == local.complete(request()).text
    assert fold(chunks).usage.output


async def test_the_async_paths_give_the_same_answer(local: LocalProvider) -> None:
    chunks = [chunk async for chunk in local.stream_async(request())]
    assert fold(chunks).text == (await local.complete_async(request())).text


def test_several_requests_are_answered_at_once(local: LocalProvider) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = [f"Ada is {age}\nReply in JSON with the keys: name, age." for age in range(30, 36)]
        answers = [
            json.loads(response.text) for response in pool.map(lambda text: local.complete(request(text)), texts)
        ]
    assert all(Schema[object]("person", PERSON).validate(answer) == [] for answer in answers)


def test_an_answer_over_the_limit_says_that_it_was_cut(local: LocalProvider) -> None:
    assert local.complete(request(max_tokens=4)).finish == "length"


def test_closing_the_stream_stops_the_engine(local: LocalProvider) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 400, "maxItems": 400}
    stream = local.stream(request("Count up.", schema=schema, max_tokens=3000))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 20
    while any(thread.name == "slipform-local" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_plain_text_needs_no_schema(local: LocalProvider) -> None:
    asked = ModelRequest("m", (Message.user("Say hi."),), max_tokens=12, sampling=Sampling(temperature=0, seed=1))
    assert local.complete(asked).text.strip()


def test_a_prompt_over_the_context_is_refused_with_the_reason(local: LocalProvider) -> None:
    with pytest.raises(UpstreamRequestError, match="too long"):
        local.complete(request("word " * 9000))


def test_a_failure_in_the_stream_is_raised_where_it_is_read(local: LocalProvider) -> None:
    with pytest.raises(UpstreamRequestError, match="too long"):
        list(local.stream(request("word " * 9000)))


def test_what_a_text_model_cannot_do_is_refused(local: LocalProvider) -> None:
    with pytest.raises(RequestError, match="tools"):
        local.complete(request(tools=(Tool("t", {}),)))
    image = Message("user", (Media("image", url="data:,"),))
    with pytest.raises(RequestError, match="text only"):
        local.complete(request().replace(messages=(image,)))


def test_a_file_that_is_no_model_is_refused(tmp_path: Any) -> None:
    (tmp_path / "not.gguf").write_bytes(b"nothing")
    with pytest.raises(LocalModelError, match="could not load"):
        LlamaEngine(tmp_path / "not.gguf")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "multipleOf": 7, "minimum": 30, "maximum": 99}, "Pick a number."),
        ({"type": "number", "minimum": 50.5, "maximum": 51}, "Pick a number."),
        ({"type": "string", "format": "ipv4"}, "Give an address."),
        ({"type": "string", "pattern": "zq", "maxLength": 8}, "Say something."),
    ],
)
def test_the_engine_decodes_under_llguidance_and_not_its_own_grammar(
    local: LocalProvider, schema: dict[str, Any], words: str
) -> None:
    """A contract with the engine: its own converter ignores each of these keywords."""
    answer = json.loads(local.complete(request(words, schema=schema)).text)
    assert Schema[object]("answer", schema).validate(answer) == []

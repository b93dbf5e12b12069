"""Ollama's own client, pointed at the proxy: enforced with any vendor behind, forwarded to an Ollama."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ollama
import pytest

from slipform.codecs import find_api
from slipform.ir import ModelResponse, Reasoning, ToolCall, Usage
from slipform.providers.http import HttpProvider
from slipform.testing import Answer, Api, FakeVendor, Raw
from tests.conftest import PERSON
from tests.proxy.account import KEY, answered
from tests.proxy.proxying import call, proxied

WORDS: Any = [{"role": "user", "content": "Ada is 36"}]
WRONG, ADA = '{"name": "Ada"}', '{"name": "Ada", "age": 36}'
VENDORS: list[Api] = ["openai", "anthropic", "gemini", "ollama"]


@contextmanager
def faced(script: Any, api: Api = "openai") -> Iterator[tuple[ollama.Client, FakeVendor, str]]:
    with FakeVendor(script, api=api) as vendor:
        provider = HttpProvider(api, base_url=vendor.base_url, api_key=KEY)
        with proxied({"up": provider}, {"model_aliases": {"small": "up/m"}}) as address:
            client = ollama.Client(host=address)
            try:
                yield client, vendor, address
            finally:
                client._client.close()


@pytest.mark.parametrize("api", VENDORS)
def test_a_format_is_enforced_in_chat_whole_and_streamed(api: Api) -> None:
    with faced([WRONG, ADA], api) as (client, vendor, _):
        whole = client.chat(model="small", messages=WORDS, format=PERSON, options={"temperature": 0, "num_predict": 99})
        assert json.loads(whole.message.content or "") == {"name": "Ada", "age": 36}
        assert whole.done
        assert whole.eval_count is not None
    with faced([WRONG, ADA], api) as (client, vendor, _):
        parts = list(client.chat(model="small", messages=WORDS, format=PERSON, stream=True))
    assert json.loads("".join(each.message.content or "" for each in parts)) == {"name": "Ada", "age": 36}
    assert [each.done for each in parts][-1]
    assert len(vendor.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_format_is_enforced_in_generate(stream: bool) -> None:
    with faced([WRONG, ADA]) as (client, vendor, _):
        if stream:
            parts = client.generate(model="small", prompt="Ada is 36", system="Be short", format=PERSON, stream=True)
            text = "".join(each.response or "" for each in parts)
        else:
            text = client.generate(model="small", prompt="Ada is 36", system="Be short", format=PERSON).response or ""
    assert json.loads(text) == {"name": "Ada", "age": 36}
    assert [turn["role"] for turn in vendor.requests[0].json()["messages"]] == ["system", "user"]


def test_json_mode_and_a_stream_that_nobody_asked_for_by_name() -> None:
    with faced(["Hello", "{}"]) as (_, _, address):
        reply = call(address, "/api/chat", {"model": "small", "messages": WORDS, "format": "json"})
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert "".join(each["message"]["content"] for each in lines) == "{}"
    assert lines[-1]["done_reason"] == "stop"


def test_tools_and_their_results_find_each_other() -> None:
    called = ModelResponse(tool_calls=(ToolCall("c9", "save", ADA),), finish="tool_calls", usage=Usage(1, 1))
    tools: Any = [{"type": "function", "function": {"name": "save", "description": "Save", "parameters": PERSON}}]
    with faced([called, called, "Done"]) as (client, vendor, _):
        first = client.chat(model="small", messages=WORDS, tools=tools)
        streamed = list(client.chat(model="small", messages=WORDS, tools=tools, stream=True))
        assert first.message.tool_calls is not None
        assert first.message.tool_calls[0].function.arguments == {"name": "Ada", "age": 36}
        found = [each for part in streamed for each in part.message.tool_calls or ()]
        assert [each.function.name for each in found] == ["save"]
        turns = [*WORDS, first.message, {"role": "tool", "tool_name": "save", "content": "ok"}]
        assert client.chat(model="small", messages=turns).message.content == "Done"
    sent = vendor.requests[-1].json()["messages"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"]


def test_thinking_and_images_are_carried() -> None:
    thought = ModelResponse("Hi", reasoning="Hm.", parts=(Reasoning("Hm."),), usage=Usage(1, 1))
    with faced([Answer(thought)]) as (client, vendor, _):
        turn: Any = {"role": "user", "content": "What is it?", "images": [b"\x89PNG"]}
        got = client.chat(model="small", messages=[turn], think="low")
    assert got.message.content == "Hi"
    assert "image_url" in json.dumps(vendor.requests[0].json())
    assert vendor.requests[0].json()["reasoning_effort"] == "low"


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_format_an_ollama_gets_the_bytes_as_they_are(stream: bool) -> None:
    with faced(["Hello"], "ollama") as (client, vendor, _):
        chat: Any = client.chat
        got = chat(model="small", messages=WORDS, stream=stream, keep_alive="5m", options={"num_ctx": 10})
        if stream:
            list(got)
    sent = vendor.requests[0].json()
    assert (sent["keep_alive"], sent["options"]) == ("5m", {"num_ctx": 10})
    assert vendor.requests[0].path == "/api/chat"


def test_generates_own_fields_reach_an_ollama_and_are_refused_elsewhere() -> None:
    step = Raw((b'{"response": "x", "done": true, "eval_count": 3, "prompt_eval_count": 4}\n',))
    with faced([step], "ollama") as (client, vendor, _):
        client.generate(model="small", prompt="a", suffix="b", raw=True)
    assert vendor.requests[0].path == "/api/generate"
    assert vendor.requests[0].json()["suffix"] == "b"
    with faced(["Hello"]) as (client, vendor, _):
        with pytest.raises(ollama.ResponseError, match="suffix"):
            client.generate(model="small", prompt="a", suffix="b")
        assert client.generate(model="small", prompt="a").response == "Hello"


def test_embeddings_go_to_an_ollama() -> None:
    with faced([answered({"model": "m", "embeddings": [[0.5]]})], "ollama") as (client, vendor, _):
        assert client.embed(model="small", input="a").embeddings == [[0.5]]
    assert vendor.requests[0].path == "/api/embed"
    with faced(["x"]) as (client, _, _), pytest.raises(ollama.ResponseError) as refused:
        client.embed(model="small", input="a")
    assert refused.value.status_code == 501


def test_lists_and_versions_are_there_and_models_are_not_managed() -> None:
    with faced(["x"]) as (client, vendor, address):
        assert "small" in [each.model for each in client.list().models]
        assert "completion" in (client.show("small").capabilities or ())
        assert client.ps().models == []
        assert call(address, "/api/version").json["version"]
        with pytest.raises(ollama.ResponseError) as refused:
            client.pull("llama3")
        assert refused.value.status_code == 403
        with pytest.raises(ollama.ResponseError) as unknown:
            client.show("nobody/x")
        assert unknown.value.status_code == 404
    assert [(each.method, each.path) for each in vendor.requests] == [("GET", "/v1/models")], "its list, once"


def test_an_answer_that_stays_wrong_is_an_error_of_ollamas_kind() -> None:
    with faced([WRONG]) as (client, _, _), pytest.raises(ollama.ResponseError, match="age") as failed:
        client.chat(model="small", messages=WORDS, format=PERSON)
    assert failed.value.status_code == 422


def test_the_records_are_found_by_name() -> None:
    assert find_api("ollama").name == "ollama"
    assert find_api("ollama-generate").name == "ollama-generate"

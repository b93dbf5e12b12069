"""Details of the wire that clients written for a vendor rely on: paths, headers, nulls, marks, all content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest

from slipform.addons.server import App
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, Api, FakeVendor, Raw, calling
from tests.conftest import PERSON, serving
from tests.proxy.proxying import ADA, call

WORDS: Any = [{"role": "user", "content": "Ada is 36"}]
SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
OUTPUT: Any = {"format": {"type": "json_schema", "schema": PERSON}}
CHAT = "/v1/chat/completions"
ROWS: dict[Api, str] = {
    "openai": "openai-compatible",
    "anthropic": "anthropic",
    "gemini": "gemini",
    "ollama": "ollama",
    "cohere": "cohere",
    "bedrock": "bedrock",
}


@contextmanager
def before(vendor: FakeVendor, api: Api = "openai", other: FakeVendor | None = None) -> Iterator[str]:
    """A proxy before this vendor, whose model is `a/m`; `b/m` is the model of the other one, of OpenAI's kind."""
    providers: Any = {"a": HttpProvider(ROWS[api], base_url=vendor.base_url, api_key="k")}
    if other is not None:
        providers["b"] = HttpProvider(ROWS["openai"], base_url=other.base_url, api_key="k")
    with serving(App(AsyncClient(router=Router(providers, default="a/m")), Settings())) as address:
        yield address


@pytest.mark.parametrize("stream", [False, True])
def test_a_path_of_geminis_may_name_a_provider_without_its_folder(stream: bool) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "Ada is 36"}]}]}
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    with FakeVendor([ADA, ADA]) as vendor, before(vendor) as address:
        assert call(address, f"/v1beta/a/m:{method}", body).status == 200
        assert call(address, f"/v1beta/nobody/m:{method}", body).status == 404
        assert [received.json()["model"] for received in vendor.requests] == ["m"]


def test_an_answer_may_begin_with_a_byte_order_mark() -> None:
    answer = {"id": "c", "model": "m", "choices": [{"message": {"content": ADA}, "finish_reason": "stop"}]}
    body = b"\xef\xbb\xbf" + json.dumps(answer).encode()
    with FakeVendor([Raw((body,), headers={"content-type": "application/json"})]) as vendor, before(vendor) as address:
        reply = call(address, CHAT, {"model": "a/m", "messages": WORDS, "response_format": SHAPE})
    assert reply.json["choices"][0]["message"]["content"] == ADA


def test_a_streamed_tool_call_has_no_content_rather_than_an_empty_one() -> None:
    tool: Any = {"type": "function", "function": {"name": "save", "parameters": PERSON, "strict": True}}
    answer = Answer(calling(("save", ADA)))
    with (
        FakeVendor([answer]) as vendor,
        before(vendor) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k") as sdk,
        sdk.chat.completions.stream(model="a/m", messages=WORDS, tools=[tool]) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == json.loads(ADA)


@pytest.mark.parametrize("stream", [False, True])
def test_anthropics_sdk_finds_the_id_of_its_request(stream: bool) -> None:
    with (
        FakeVendor([ADA], api="anthropic") as vendor,
        before(vendor, "anthropic") as address,
        anthropic.Anthropic(base_url=address, api_key="k") as sdk,
    ):
        request: Any = {"model": "a/m", "max_tokens": 50, "messages": WORDS, "output_config": OUTPUT}
        if stream:
            with sdk.messages.stream(**request) as events:
                identity = events.response.headers["request-id"]
        else:
            identity = sdk.messages.create(**request)._request_id or ""
    assert len(identity) == 32


CREATED = 1_700_000_000
STREAMED: list[dict[str, Any]] = [
    {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
    {"delta": {"content": ADA}, "finish_reason": None},
    {"delta": {}, "finish_reason": "stop"},
]


def event(choice: dict[str, Any]) -> bytes:
    head = {"id": "c", "object": "chat.completion.chunk", "created": CREATED, "model": "m", "system_fingerprint": "fp"}
    return b"data: " + json.dumps({**head, "choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


@pytest.mark.parametrize("shape", [SHAPE, None])
def test_when_and_by_which_build_an_answer_was_made_is_what_the_vendor_says(shape: Any) -> None:
    stream = Raw((*map(event, STREAMED), b"data: [DONE]\n\n"), headers={"content-type": "text/event-stream"})
    choice = {"index": 0, "message": {"role": "assistant", "content": ADA}, "finish_reason": "stop"}
    whole = {"id": "c", "created": CREATED, "model": "m", "system_fingerprint": "fp", "choices": [choice]}
    script = [Raw((json.dumps(whole).encode(),), headers={"content-type": "application/json"}), stream]
    request: dict[str, Any] = {"model": "a/m", "messages": WORDS, **({"response_format": shape} if shape else {})}
    with (
        FakeVendor(script) as vendor,
        before(vendor) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k") as sdk,
    ):
        answer = sdk.chat.completions.create(**request)
        chunks = list(sdk.chat.completions.create(**request, stream=True))
    assert (answer.created, answer.system_fingerprint) == (CREATED, "fp")
    assert {(chunk.created, chunk.system_fingerprint) for chunk in chunks} == {(CREATED, "fp")}


def test_cache_marks_of_openai_clients_reach_anthropic() -> None:
    mark = {"type": "ephemeral"}
    parts = [{"type": "text", "text": "A long text", "cache_control": mark}, {"type": "text", "text": "Who?"}]
    tool = {"type": "function", "function": {"name": "save", "parameters": PERSON}, "cache_control": mark}
    messages = [{"role": "system", "content": "Be brief.", "cache_control": mark}, {"role": "user", "content": parts}]
    with FakeVendor(["Ada"], api="anthropic") as vendor, before(vendor, "anthropic") as address:
        assert call(address, CHAT, {"model": "a/m", "messages": messages, "tools": [tool]}).status == 200
        body = vendor.requests[0].json()
    marked = [body["system"][0], body["messages"][0]["content"][0], body["tools"][0]]
    assert [each.get("cache_control") for each in marked] == [mark] * 3
    assert "cache_control" not in body["messages"][0]["content"][1]


@pytest.mark.parametrize("api", ["anthropic", "gemini"])
def test_a_turn_that_only_refuses_is_sent_on(api: Api) -> None:
    refusing = {"role": "assistant", "content": None, "refusal": "I must not."}
    messages = [*WORDS, refusing, {"role": "user", "content": "Why?"}]
    with FakeVendor(["So."], api=api) as vendor, before(vendor, api) as address:
        assert call(address, CHAT, {"model": "a/m", "messages": messages}).status == 200
        body = vendor.requests[0].json()
    turns = body["messages" if api == "anthropic" else "contents"]
    assert [turn["role"] for turn in turns] == ["user", "assistant" if api == "anthropic" else "model", "user"]
    assert "I must not." in json.dumps(turns[1])


PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SOUND = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
UNDELIVERABLE: list[tuple[Api, dict[str, Any], str]] = [
    ("ollama", PICTURE, "image at https://example.com/a.png"),
    ("bedrock", PICTURE, "image at https://example.com/a.png"),
    ("cohere", SOUND, "audio"),
    ("anthropic", SOUND, "audio"),
]


@pytest.mark.parametrize("shape", [SHAPE, None], ids=["schema", "plain"])
def test_content_that_cannot_be_delivered_is_an_error_that_names_it_and_nothing_is_sent(shape: Any) -> None:
    wrong: list[Any] = []
    for api, part, named in UNDELIVERABLE:
        for parts in ([part], [{"type": "text", "text": "What is it?"}, part]):
            for stream in (False, True):
                body = {"model": "a/m", "messages": [{"role": "user", "content": parts}], "stream": stream}
                if shape:
                    body["response_format"] = shape
                with FakeVendor([ADA], api=api) as vendor, before(vendor, api) as address:
                    reply = call(address, CHAT, body)
                    error = reply.json.get("error", {}) if reply.status != 200 else {}
                    if (reply.status, error.get("param"), vendor.requests) != (400, "messages", []):
                        wrong.append((api, named, reply.status, reply.body))
                    elif named not in error["message"]:
                        wrong.append((api, named, error["message"]))
    assert wrong == []


def test_the_next_model_of_a_list_gets_what_the_first_cannot_take() -> None:
    with (
        FakeVendor([ADA], api="ollama") as deaf,
        FakeVendor([ADA]) as hearing,
        before(deaf, "ollama", hearing) as address,
    ):
        body = {"model": ["a/m", "b/m"], "messages": [{"role": "user", "content": [PICTURE]}], "response_format": SHAPE}
        assert call(address, CHAT, body).status == 200
        assert (len(deaf.requests), len(hearing.requests)) == (0, 1)

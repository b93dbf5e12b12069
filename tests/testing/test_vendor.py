"""The fake vendor, seen by plain sockets and by the vendors' own SDKs."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from slipform.errors import ConfigError
from slipform.ir import Message, ModelRequest, ModelResponse, ToolCall, Usage
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.http import HttpProvider
from slipform.testing import (
    Answer,
    Api,
    FakeVendor,
    Raw,
    Received,
    Step,
    cut_stream,
    garbage,
    hang,
    rate_limited,
    refusal,
    reset,
    server_error,
    trickle,
    truncated,
)
from slipform.testing.wire_formats import SHAPES

CALL = ModelResponse(
    tool_calls=(ToolCall("call_1", "find", '{"city": "Zürich"}'),), finish="tool_calls", usage=Usage(input=1, output=2)
)


def post(
    vendor: FakeVendor, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(vendor.base_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def test_steps_are_taken_in_order_and_the_last_one_repeats() -> None:
    with FakeVendor(["one", rate_limited(retry_after=2, retry_after_ms=5), server_error(503)]) as vendor:
        assert json.loads(post(vendor, {})[2])["choices"][0]["message"]["content"] == "one"
        status, headers, _ = post(vendor, {})
        assert (status, headers["retry-after"], headers["retry-after-ms"]) == (429, "2", "5")
        assert [post(vendor, {})[0] for _ in range(2)] == [503, 503]
    assert len(vendor.requests) == 4
    assert all(request.answered and not request.aborted for request in vendor.requests)


def test_a_function_can_be_the_script() -> None:
    def script(received: Received) -> Step:
        return str(received.json()["q"]).upper()

    with FakeVendor(script) as vendor:
        assert b"HELLO" in post(vendor, {"q": "hello"})[2]


def start_request(vendor: FakeVendor, body: bytes = b"{}") -> socket.socket:
    parts = urlsplit(vendor.base_url)
    client = socket.create_connection((parts.hostname, parts.port), timeout=10)
    client.sendall(b"POST /x HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body))
    client.sendall(body)
    return client


def test_a_slow_answer_is_overtaken_by_a_quick_one() -> None:
    with FakeVendor([Answer("slow", latency=5.0), "quick"]) as vendor:
        slow = start_request(vendor)
        assert vendor.wait_until(lambda v: len(v.requests) == 1)
        assert b"quick" in post(vendor, {})[2]
        assert not vendor.requests[0].answered
        slow.close()


def test_a_trickle_comes_piece_by_piece() -> None:
    with FakeVendor([trickle("abc", pace=0.05)]) as vendor:
        client = start_request(vendor, b'{"stream": true}')
        first = client.recv(65536)
        assert not vendor.requests[0].answered
        rest = b"".join(iter(lambda: client.recv(65536) if not vendor.requests[0].answered else b"", b""))
        client.close()
    assert b"200 OK" in first
    assert b"[DONE]" not in first
    assert b'"content": "a"' in first + rest


def test_faults_look_like_faults() -> None:
    with FakeVendor([reset(), garbage(), cut_stream("hello", after=2)]) as vendor:
        with pytest.raises(ConnectionResetError):
            post(vendor, {})
        with pytest.raises(http.client.BadStatusLine):
            post(vendor, {})
        with pytest.raises(http.client.IncompleteRead):
            post(vendor, {"stream": True})


def test_a_client_that_goes_away_is_noticed() -> None:
    with FakeVendor([hang()]) as vendor:
        client = start_request(vendor)
        assert vendor.wait_until(lambda v: len(v.requests) == 1)
        assert vendor.open_connections == 1
        client.close()
        assert vendor.wait_until(lambda v: v.open_connections == 0)
    assert vendor.requests[0].aborted
    assert not vendor.requests[0].answered


def test_waiting_ends_when_nothing_happens() -> None:
    with FakeVendor(["x"]) as vendor:
        assert not vendor.wait_until(lambda v: bool(v.requests), timeout=0.02)


def test_a_raw_step_with_an_unknown_status() -> None:
    with FakeVendor([Raw((b"a", b"b"), 599, chunked=True)]) as vendor:
        assert post(vendor, {})[::2] == (599, b"ab")


def test_a_script_must_not_be_empty() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        FakeVendor([])


def openai_client(vendor: FakeVendor) -> openai.OpenAI:
    return openai.OpenAI(base_url=vendor.base_url, api_key="x", max_retries=0)


def test_the_openai_sdk_reads_its_answers() -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    script: list[Step] = ["Hello", "Hello", refusal("No."), truncated('{"a'), CALL, CALL]
    with FakeVendor(script) as vendor, openai_client(vendor) as client:
        create = client.chat.completions.create
        whole = create(model="m", messages=messages)
        assert (whole.choices[0].message.content, whole.usage and whole.usage.prompt_tokens) == ("Hello", 7)
        chunks = list(create(model="m", messages=messages, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
        assert chunks[-1].usage is not None
        assert create(model="m", messages=messages).choices[0].message.refusal == "No."
        assert create(model="m", messages=messages).choices[0].finish_reason == "length"
        calls: Any = create(model="m", messages=messages).choices[0].message.tool_calls
        assert (calls[0].id, json.loads(calls[0].function.arguments)) == ("call_1", {"city": "Zürich"})
        with client.chat.completions.stream(model="m", messages=messages) as stream:
            final: Any = stream.get_final_completion()
        assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Zürich"}


def test_the_anthropic_sdk_reads_its_answers() -> None:
    messages: Any = [{"role": "user", "content": "hi"}]
    thought = ModelResponse(text="Hello", reasoning="hm", usage=Usage(input=1, output=2))
    script: list[Step] = ["Hello", thought, refusal("No."), truncated("{"), CALL, CALL]
    with (
        FakeVendor(script, api="anthropic") as vendor,
        anthropic.Anthropic(base_url=vendor.base_url, api_key="x", max_retries=0) as client,
    ):

        def create() -> Any:
            return client.messages.create(model="m", max_tokens=9, messages=messages)

        def stream() -> Any:
            with client.messages.stream(model="m", max_tokens=9, messages=messages) as events:
                return events.get_final_message()

        assert create().content[0].text == "Hello"
        final = stream()
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert (final.content[1].text, final.stop_reason) == ("Hello", "end_turn")
        assert create().stop_reason == "refusal"
        assert create().stop_reason == "max_tokens"
        assert create().content[0].input == {"city": "Zürich"}
        assert stream().content[0].input == {"city": "Zürich"}


def test_the_google_sdk_reads_its_answers() -> None:
    script: list[Step] = ["Hello", Answer("Hello, world", chunk_size=5), truncated("{"), CALL, CALL]
    with FakeVendor(script, api="gemini") as vendor:
        options = types.HttpOptions(base_url=vendor.base_url)
        with genai.Client(api_key="x", http_options=options) as client:
            models: Any = client.models
            assert models.generate_content(model="m", contents="hi").text == "Hello"
            streamed = list(models.generate_content_stream(model="m", contents="hi"))
            assert "".join(chunk.text or "" for chunk in streamed) == "Hello, world"
            short = models.generate_content(model="m", contents="hi")
            assert short.candidates[0].finish_reason == "MAX_TOKENS"
            assert models.generate_content(model="m", contents="hi").function_calls[0].args == {"city": "Zürich"}
            last = list(models.generate_content_stream(model="m", contents="hi"))
            assert last[0].function_calls[0].args == {"city": "Zürich"}
    assert ":streamGenerateContent" in vendor.requests[1].path


@pytest.mark.parametrize("api", SHAPES)
def test_every_api_says_the_same_whole_and_streamed(api: Api) -> None:
    said = ModelResponse(text='{"age": 36}', reasoning="She is 36.", usage=Usage(input=7, output=5, total=12))
    both = [ModelResponse(text=said.text, reasoning=said.reasoning, usage=said.usage), CALL]
    request = ModelRequest("m", (Message.user("Ada"),))
    steps = [step for step in both for _ in range(2)]
    with (
        FakeVendor(steps, api=api) as vendor,
        HttpProvider(api, base_url=vendor.base_url, api_key="any") as provider,
    ):
        for wanted in both:
            reducer = Reducer()
            reducer.start(Snapshot())
            whole = provider.complete(request)
            for chunk in provider.stream(request):
                reducer.push(chunk)
            for answer in (whole, reducer.finish()):
                assert (answer.text, answer.reasoning) == (wanted.text, wanted.reasoning)
                assert [call.name for call in answer.tool_calls] == [call.name for call in wanted.tool_calls]
                assert [json.loads(call.arguments) for call in answer.tool_calls] == [
                    json.loads(call.arguments) for call in wanted.tool_calls
                ]
                assert (answer.usage.input, answer.usage.output) == (wanted.usage.input, wanted.usage.output)


@pytest.mark.parametrize("api", SHAPES)
@pytest.mark.parametrize("stream", [False, True])
def test_every_api_tells_of_a_token_limit(api: Api, stream: bool) -> None:
    request = ModelRequest("m", (Message.user("Ada"),))
    with (
        FakeVendor([truncated('{"age"')], api=api) as vendor,
        HttpProvider(api, base_url=vendor.base_url, api_key="any") as provider,
    ):
        chunks = provider.stream(request) if stream else iter((provider.complete(request),))
        assert "length" in {chunk.finish for chunk in chunks}

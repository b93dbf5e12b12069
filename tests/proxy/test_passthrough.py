"""Calls that ask for no shape: the vendor sees the caller's bytes, and the caller the vendor's."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import anthropic
import openai
import pytest
from google import genai

from slipform.addons.server import App
from slipform.config import Settings, read_settings
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.masking import mask_of
from slipform.providers.network.transport import Timeouts
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor, Raw, hang
from tests.conftest import serving
from tests.proxy.wire import KEY, Reply, before, post
from tests.waiting import steady

CHAT = "/v1/chat/completions"
BODY = b'{ "model" : "fast", "messages": [{"role": "user", "content": "hi \\"model\\""}], "new_field": {"x": 1.50} }'


def sent_through(body: bytes, step: Any = "Hello", headers: Any = None, path: str = CHAT) -> tuple[Reply, FakeVendor]:
    with FakeVendor([step]) as vendor, before(vendor) as address:
        return post(address, path, body, headers), vendor


@pytest.mark.covers("S2-24")
def test_only_the_models_name_is_changed_in_the_body() -> None:
    reply, vendor = sent_through(BODY)
    assert reply.status == 200
    assert vendor.requests[0].body == BODY.replace(b'"model" : "fast"', b'"model":"gpt-6-luna"')
    assert vendor.requests[0].path == "/v1/chat/completions"


@pytest.mark.covers("S2-24", "S1-52")
def test_the_callers_credentials_stay_here_and_the_providers_own_go_out() -> None:
    caller = {"authorization": "Bearer callers-own", "x-api-key": "callers-own", "cookie": "a=b", "openai-beta": "x=1"}
    reply, vendor = sent_through(BODY, headers=caller)
    seen = vendor.requests[0].headers
    assert seen["authorization"] == f"Bearer {KEY}"
    assert "callers-own" not in str(seen)
    assert "cookie" not in seen
    assert seen["openai-beta"] == "x=1"
    assert KEY not in str(reply)


def test_the_vendors_bytes_and_some_of_its_headers_come_back_as_they_are() -> None:
    odd = b'{"choices":   [], "extra": "\\u00e9"}\n'
    headers = {
        "content-type": "application/json; charset=utf-8",
        "x-ratelimit-remaining-requests": "7",
        "openai-version": "2020",
        "set-cookie": "secret=1",
        "openai-organization": "org",
        "server": "x",
    }
    reply, _ = sent_through(BODY, Raw(pieces=(odd,), headers=headers))
    assert reply.body == odd
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert reply.headers["x-ratelimit-remaining-requests"] == "7"
    assert reply.headers["openai-version"] == "2020"
    assert not {"set-cookie", "openai-organization"} & set(reply.headers)
    assert reply.headers["x-slipform-provider"] == "openai"
    assert reply.headers["x-slipform-model"] == "gpt-6-luna"


@pytest.mark.covers("C31", "S1-52")
def test_the_vendors_errors_come_back_as_they_are_but_for_a_key_in_them() -> None:
    said = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "type": "auth"}}).encode()
    headers = {"content-type": "application/json", "retry-after": "3"}
    reply, _ = sent_through(BODY, Raw(status=401, pieces=(said,), headers=headers))
    assert reply.status == 401
    masked = mask_of(KEY.encode()).decode()
    assert reply.json()["error"] == {"message": f"Incorrect API key provided: {masked}", "type": "auth"}
    assert reply.headers["retry-after"] == "3"


def test_a_stream_comes_back_byte_for_byte_with_headers_that_keep_nobody_from_passing_it_on() -> None:
    pieces = (b": hi\n\n", b'data: {"id": 1,', b'"odd": []}\n\n', b"data: [DONE]\n\n")
    step = Raw(pieces=pieces, headers={"content-type": "text/event-stream"}, chunked=True, pace=0.01)
    reply, _ = sent_through(BODY[:-1] + b', "stream": true}', step)
    assert reply.body == b"".join(pieces)
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"


@pytest.mark.covers("C31")
def test_a_stream_that_breaks_off_ends_in_the_apis_error_event() -> None:
    body = {"model": "fast", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with FakeVendor([Answer("many words here", cut_after=3, ending="reset")]) as vendor, before(vendor) as address:
        events = post(address, CHAT, body).events()
        assert "error" in events[-1]
        with openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="fast", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            with pytest.raises(openai.APIError, match="broke"):
                list(stream)


def test_a_vendor_that_cannot_be_reached_is_an_error_in_the_apis_shape() -> None:
    with FakeVendor(["x"]) as vendor:
        proxy = before(vendor)
    with proxy as address:
        reply = post(address, CHAT, BODY)
    assert reply.status == 502
    assert reply.json()["error"]["code"] == "upstream_error"


@pytest.mark.parametrize("mode", ["enforce", "pass"])
@pytest.mark.covers("S2-75")
def test_tools_go_through_only_when_they_are_not_to_be_enforced(mode: str) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}, "odd": 1}
    body = {"model": "fast", "messages": [{"role": "user", "content": "hi"}], "tools": [tool], "seed": None}
    with FakeVendor(["Hello"]) as vendor:
        with before(vendor, settings=read_settings(f"enforcement: {{tools: {mode}}}")) as address:
            assert post(address, CHAT, body).status == 200
        received = vendor.requests[0].json()
        assert received["tools"][0]["odd"] == 1
        assert ("seed" in received) is (mode == "pass")  # a request that is written anew has no use for null


@pytest.mark.covers("S2-17", "S2-20", "S2-21", "S2-62", "S2-69")
def test_openais_sdk_sees_what_it_would_see_there() -> None:
    with (
        FakeVendor(["Hello there"]) as vendor,
        before(vendor) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="anything", max_retries=0) as client,
    ):
        asked: Any = {
            "model": "fast",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0.2,
            "top_p": 0.9,
            "max_tokens": 9,
        }
        assert client.chat.completions.create(**asked).choices[0].message.content == "Hello there"
        pieces = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(stream=True, **asked)
            if chunk.choices
        ]
        assert "".join(pieces) == "Hello there"
        assert vendor.connections_made == 1
        assert vendor.requests[0].json() == {**asked, "model": "gpt-6-luna"}


def test_anthropics_sdk_sees_what_it_would_see_there() -> None:
    with (
        FakeVendor(["Hello there"], api="anthropic") as vendor,
        before(vendor, "anthropic") as address,
        anthropic.Anthropic(base_url=address, api_key="anything", max_retries=0) as client,
    ):
        asked: Any = {"model": "up/claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
        said: Any = client.messages.create(**asked).content[0]
        assert said.text == "Hello there"
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == "Hello there"
        seen = vendor.requests[0]
        assert seen.json()["model"] == "claude-x"
        assert seen.headers["authorization"] == f"Bearer {KEY}"
        assert "anthropic-version" in seen.headers


def test_googles_sdk_sees_what_it_would_see_there() -> None:
    with FakeVendor(["Hello there"], api="gemini") as vendor, before(vendor, "gemini") as address:
        client = genai.Client(api_key="anything", http_options={"base_url": address})
        answer = client.models.generate_content(model="up/gemini-x", contents="hi")
        assert answer.text == "Hello there"
        pieces = [part.text or "" for part in client.models.generate_content_stream(model="up/gemini-x", contents="hi")]
        assert "".join(pieces) == "Hello there"
        assert "gemini-x:streamGenerateContent" in vendor.requests[1].path
        assert "anything" not in str(vendor.requests[0].headers)


def test_another_api_than_the_providers_goes_the_long_way() -> None:
    with FakeVendor(["Hello there"]) as vendor, before(vendor) as address:
        body = {"model": "fast", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        answer = post(address, "/v1/messages", body).json()
    assert answer["content"] == [{"type": "text", "text": "Hello there"}]


def raw_stream(address: str, body: Any) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    client.sendall(head.encode() + raw)
    return client


NOTE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
SHAPE: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": NOTE, "strict": True}}


@pytest.mark.parametrize("shape", [None, SHAPE], ids=["passed", "enforced"])
def test_a_client_that_goes_away_takes_its_call_to_the_vendor_along(shape: Any) -> None:
    body = {"model": "fast", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    body |= {"response_format": shape} if shape else {}
    with FakeVendor([Answer('{"a": "' + "x " * 2000, pace=0.01)]) as vendor, before(vendor) as address:
        client = raw_stream(address, body)
        client.recv(10)
        client.close()
        assert vendor.wait_until(lambda it: it.requests[0].aborted)


def test_a_client_that_waits_for_a_whole_answer_and_goes_away_takes_its_call_along() -> None:
    with FakeVendor([Answer("late", latency=30)]) as vendor, before(vendor) as address:
        client = raw_stream(address, {"model": "fast", "messages": [{"role": "user", "content": "hi"}]})
        assert vendor.wait_until(lambda it: len(it.requests) == 1)
        client.close()
        assert vendor.wait_until(lambda it: it.requests[0].aborted)


@pytest.mark.parametrize("shape", [None, SHAPE], ids=["passed", "enforced"])
def test_a_client_that_does_not_read_slows_the_vendor_down_instead_of_filling_the_memory(shape: Any) -> None:
    """The vendor has 64 MB to say; what is not read stays with it."""
    piece = json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"content": "x" * 16000}}]})
    first = json.dumps({"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": '{"a": "'}}]})
    count = 4000
    events = (f"data: {first}\n\n".encode(), *[f"data: {piece}\n\n".encode()] * count)
    written = 0
    server = socket.create_server(("127.0.0.1", 0))

    def play() -> None:
        nonlocal written
        peer, _ = server.accept()
        peer.settimeout(20)
        peer.recv(65536)
        peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            for event in events:
                peer.sendall(b"%x\r\n%b\r\n" % (len(event), event))
                written += len(event)
        except OSError:
            pass
        finally:
            peer.close()

    player = threading.Thread(target=play, daemon=True)
    player.start()
    provider = HttpProvider("openai", base_url=f"http://127.0.0.1:{server.getsockname()[1]}/v1", api_key=KEY)
    proxy = serving(App(AsyncClient(router=Router({"up": provider}, aliases={"fast": "up/gpt-6-luna"})), Settings()))
    body = {"model": "fast", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    body |= {"response_format": shape} if shape else {}
    with proxy as address:
        client = raw_stream(address, body)
        client.recv(10)
        steady(lambda: written)
        client.close()
        player.join(10)
    server.close()
    assert written < 16_000_000


@pytest.mark.parametrize("stream", [False, True])
def test_a_vendor_that_says_nothing_meets_the_providers_time_limit(stream: bool) -> None:
    with FakeVendor([hang()]) as vendor:
        provider = HttpProvider(
            "openai",
            base_url=vendor.base_url,
            api_key=KEY,
            retries=RetryPolicy(attempts=0),
            timeouts=Timeouts(total=0.3),
        )
        router = Router({"up": provider}, aliases={"fast": "up/gpt-6-luna"}, default="fast")
        with serving(App(AsyncClient(router=router), Settings())) as address:
            reply = post(address, CHAT, {"model": "fast", "messages": [], "stream": stream})
    assert reply.status == 504
    assert reply.json()["error"]["code"] == "upstream_timeout"

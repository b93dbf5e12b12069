"""A client of one API on a model of another's: what its answers have no place for is named, tools keep their names."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from slipform.addons.server.app import App
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, Api, FakeVendor, Raw, Received, calling, rejected
from tests.conftest import serving

VALUE = '{"city": "Bonn"}'
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
SOURCE = {"type": "web_search_result_location", "url": "https://e"}
BLOCKS: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "text", "text": VALUE, "citations": [SOURCE]},
]
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn"}


def _events() -> bytes:
    usage = {"input_tokens": 1, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**MESSAGE, "content": [], "usage": usage}}]
    for index, block in enumerate(BLOCKS):
        opened = {**block, "text": ""} if block["type"] == "text" else block
        opened.pop("citations", None)
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        if block["type"] == "text":
            for delta in ({"type": "text_delta", "text": VALUE}, {"type": "citations_delta", "citation": SOURCE}):
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    events.append({"type": "message_stop"})
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def _claude(received: Received) -> Raw:
    if received.json().get("stream"):
        return Raw((_events(),), 200, {"content-type": "text/event-stream"})
    body = {**MESSAGE, "content": BLOCKS, "usage": {"input_tokens": 1, "output_tokens": 1}}
    return Raw((json.dumps(body).encode(),), 200, {"content-type": "application/json"})


def _served(vendor: FakeVendor, settings: Mapping[str, Any] | None = None, api: Api = "anthropic") -> serving:
    provider = HttpProvider(api, base_url=vendor.base_url, api_key="k")
    # A model with a fallback is never forwarded as bytes, whatever API the vendor has.
    router = Router({"up": provider}, aliases={"m": ["up/claude-sonnet-4-5", "up/claude-haiku-4-5"]}, default="m")
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=1)))
    return serving(App(client, Settings.model_validate({"default_model": "m", **(settings or {})})))


@contextmanager
def _proxied(vendor: FakeVendor) -> Iterator[openai.OpenAI]:
    with (
        _served(vendor) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0) as sdk,
    ):
        yield sdk


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("enforced", [False, True])
def test_sources_that_the_callers_api_has_no_place_for_are_named(
    enforced: bool, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Where?"}]}
    if enforced:
        asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
        asked["extra_body"] = {"slipform": {"report": True}}
    with FakeVendor(_claude, api="anthropic") as vendor, _proxied(vendor) as sdk, caplog.at_level(logging.INFO):
        if stream:
            said = [event.model_dump() for event in sdk.chat.completions.create(stream=True, **asked)]
            text = "".join(each["choices"][0]["delta"].get("content") or "" for each in said if each["choices"])
        else:
            said = [sdk.chat.completions.create(**asked).model_dump()]
            text = said[0]["choices"][0]["message"]["content"]
    assert json.loads(text) == {"city": "Bonn"}
    if enforced:
        (report,) = [each["slipform"] for each in said if each.get("slipform")]
        named = [warning["message"] for warning in report["warnings"] if warning["code"] == "lossy_answer"]
    else:
        named = [record.getMessage() for record in caplog.records if "lossy_answer" in record.getMessage()]
    assert named
    for name in ("server_tool_use", "web_search_tool_result", "citations"):
        assert any(name in each for each in named)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_keeps_its_name_whatever_the_vendor_takes(stream: bool) -> None:
    def answer(received: Received) -> Answer | Raw:
        body = received.json()
        names = [tool["name"] for tool in body["tools"]]
        calls = [part for turn in body["messages"] if isinstance(turn["content"], list) for part in turn["content"]]
        names += [part["name"] for part in calls if part["type"] == "tool_use"]
        if bad := [name for name in names if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)]:
            return rejected(f"tools.0.custom.name: String should match pattern, got {bad[0]}")
        return Answer(calling((names[0], {"city": "Bonn"})) if len(names) == 1 else VALUE)

    messages: list[Any] = [{"role": "user", "content": "Where?"}]
    tools: Any = [{"type": "function", "function": {"name": "places.find/one", "parameters": CITY}}]
    with FakeVendor(answer, api="anthropic") as vendor, _proxied(vendor) as sdk:
        for _ in range(2):
            if stream:
                with sdk.chat.completions.stream(model="m", messages=messages, tools=tools) as events:
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = sdk.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
            if not message.tool_calls:
                break
            assert [call.function.name for call in message.tool_calls] == ["places.find/one"]
            messages.append(message.model_dump(exclude_none=True))
            messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "found"})
    assert message.content == VALUE
    assert len(vendor.requests) == 2


def _data(line: bytes) -> Any:
    """The JSON of a line of events or of NDJSON; None of any other."""
    text = line.removeprefix(b"data:").strip()
    return json.loads(text) if text.startswith(b"{") else None


SAYS: Any = [{"role": "user", "content": "x"}]
FACES: dict[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": SAYS, "stream": True},
        lambda event: "".join(each["delta"].get("content") or "" for each in event["choices"]),
    ),
    "completions": (
        "/v1/completions",
        {"prompt": "x", "stream": True},
        lambda event: "".join(each["text"] for each in event["choices"]),
    ),
    "responses": ("/v1/responses", {"input": "x", "stream": True}, lambda event: str(event.get("delta", ""))),
    "ollama chat": ("/api/chat", {"messages": SAYS}, lambda event: str(event["message"]["content"])),
    "ollama generate": ("/api/generate", {"prompt": "x"}, lambda event: str(event["response"])),
}


def _lines(address: str, face: str, **more: Any) -> Iterator[bytes]:
    """The lines of a streamed answer, each as soon as it is there."""
    path, body, _ = FACES[face]
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    with closing(connection):
        connection.request("POST", path, json.dumps({"model": "m", **body, **more}))
        response = connection.getresponse()
        assert response.status == 200
        yield from iter(response.readline, b"")


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools that nobody enforces"])
@pytest.mark.parametrize("api", ["anthropic", "openai"])
@pytest.mark.parametrize("face", FACES)
def test_each_piece_of_text_reaches_the_client_before_the_next_is_written(face: str, api: Api, tools: bool) -> None:
    pieces, seen = [f"{number:4}\n" for number in range(10)], threading.Semaphore(0)

    async def gate(number: int) -> None:
        if 4 <= number <= 9:  # one of the texts in every API; the first comes third at the latest
            assert await asyncio.to_thread(seen.acquire, timeout=30)

    more: dict[str, Any] = {}
    if tools and face not in ("completions", "ollama generate"):
        function = {"name": "save", "description": "Save it", "parameters": CITY}
        more["tools"] = [{"type": "function", **(function if face == "responses" else {"function": function})}]
    texts: list[str] = []
    with (
        FakeVendor([Answer("".join(pieces), chunk_size=5, gate=gate)], api=api) as vendor,
        _served(vendor, {"enforcement": {"tools": "pass"}}, api) as address,
    ):
        for line in _lines(address, face, **more):
            if (event := _data(line)) is not None and (text := FACES[face][2](event)):
                texts.append(text)
                seen.release()
    assert texts == pieces


@pytest.mark.parametrize("face", FACES)
def test_a_stream_that_breaks_ends_in_the_error_of_the_callers_api(face: str) -> None:
    sent = threading.Event()

    async def gate(number: int) -> None:
        if number == 4:  # the client has the text before the connection breaks
            assert await asyncio.to_thread(sent.wait, 30)

    answer = Answer("One. Two. Three.", chunk_size=5, gate=gate, cut_after=4, ending="reset")
    events: list[Any] = []
    with FakeVendor([answer], api="anthropic") as vendor, _served(vendor) as address:
        for line in _lines(address, face):
            if (event := _data(line)) is not None:
                events.append(event)
                if "One" in json.dumps(event):
                    sent.set()
    said = events[-1].get("error") or events[-1]["response"]["error"]
    assert "broke" in str(said["message"] if isinstance(said, dict) else said)

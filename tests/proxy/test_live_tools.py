"""Streams with tools through the proxy: how far a client is behind the vendor, counted in events and not in time."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from slipform.addons.server import App
from slipform.config import Settings, read_settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import ModelResponse, ToolCall, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, Api, FakeVendor, calling
from slipform.testing.wire_formats import SHAPES
from tests.conftest import serving
from tests.proxy.agent_wire import APIS, Said, StreamReader, agent_request, data_of, read_whole

TOOLS: dict[str, Any] = {
    "note": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
        "required": ["title", "text"],
        "additionalProperties": False,
    }
}
WORDS = "I will write that down for you, one moment please."
NOTE = '{"title":"Groceries","text":"Milk, eggs, bread and a large bag of flour"}'
ROWS: dict[str, tuple[Api, str, str]] = {
    "openai": ("openai", "openai", "gpt-6-luna"),
    "openai-compatible": ("openai", "openai-compatible", "anything"),
    "responses": ("openai-responses", "openai-responses", "gpt-6-luna"),
    "anthropic": ("anthropic", "anthropic", "claude-opus-5-5"),
    "gemini": ("gemini", "gemini", "gemini-3-pro"),
    "cohere": ("cohere", "cohere", "command-a-03-2025"),
    "ollama": ("ollama", "ollama", "llama3.2"),
}
WHOLE_CALLS = ("gemini", "ollama")
"""Vendors that send a call in one piece."""


class Confirmed:
    """Lets a vendor on once the client has seen enough: how much that is, says a function of the piece's number."""

    def __init__(self, needs: Callable[[int], int]) -> None:
        self._needs = needs
        self._seen = 0
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, asyncio.Future[None], asyncio.AbstractEventLoop]] = []

    async def __call__(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        needed = self._needs(number)
        with self._lock:
            if self._seen >= needed:
                return
            arrived = loop.create_future()
            self._waiting.append((needed, arrived, loop))
        await arrived

    def confirm(self, seen: int) -> None:
        """The client has seen so many characters."""
        with self._lock:
            self._seen = seen
            ready = [each for each in self._waiting if each[0] <= seen]
            self._waiting = [each for each in self._waiting if each[0] > seen]
        for _, arrived, loop in ready:
            loop.call_soon_threadsafe(arrived.set_result, None)


@contextmanager
def proxied(vendor: FakeVendor, row: str, model: str, settings: Settings | None = None) -> Iterator[str]:
    """The address of a proxy before this vendor, under the name `fast`."""
    provider = HttpProvider(row, base_url=vendor.base_url, api_key="k")
    router = Router({"up": provider}, aliases={"fast": f"up/{model}"}, default="fast")
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=3)))
    with serving(App(client, settings or Settings())) as address:
        yield address


def streamed(address: str, api: str, body: Any, path: str, confirm: Callable[[Said], None] | None = None) -> Said:
    """The answer, read event by event."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    reader = StreamReader(api)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for event in data_of(iter(response.readline, b"")):
            reader.feed(event)
            if confirm is not None:
                confirm(reader.said)
    finally:
        connection.close()
    return reader.said


def posted(address: str, path: str, body: Any) -> tuple[int, Any]:
    """The status and body of an answer that comes whole."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def written_before(api: Api, said: ModelResponse, text: str) -> list[int]:
    """For every event of the vendor's: how many characters of this text, or of these arguments, came before it."""
    before, written = [], 0
    for event in SHAPES[api].events(said, 4):
        before.append(written)
        piece = text[written : written + 4]
        if piece and json.dumps(piece)[1:-1].encode() in event:
            written += len(piece)
        elif not written and text[0] == "{" and json.dumps(json.loads(text)).encode() in event:
            written = len(text)
    assert written == len(text), "every piece of it was found"
    return before


SAID = ModelResponse(
    text=WORDS,
    tool_calls=(ToolCall("call_1", "note", NOTE),),
    reasoning="Hm, a note.",
    finish="tool_calls",
    usage=Usage(input=3, output=5, total=8),
)
PAIRS = [(api, row) for api in APIS for row in ROWS]


@pytest.mark.parametrize(("api", "row"), PAIRS, ids=[f"{api}-{row}" for api, row in PAIRS])
def test_text_leaves_with_the_vendors_event_while_tools_are_offered(api: str, row: str) -> None:
    before = written_before(ROWS[row][0], SAID, WORDS)
    gate = Confirmed(lambda number: before[number])
    said = play(api, row, gate, lambda said: len(said.text))
    assert (said.text, said.finish) == (WORDS, finish_of(api))


@pytest.mark.parametrize(("api", "row"), PAIRS, ids=[f"{api}-{row}" for api, row in PAIRS])
def test_arguments_leave_within_three_events_of_the_vendors(api: str, row: str) -> None:
    before = written_before(ROWS[row][0], SAID, NOTE)
    late = 1 if row in WHOLE_CALLS else 3

    def needs(number: int) -> int:
        written = before[max(0, number - late)]
        if row in WHOLE_CALLS:
            return 0 if api == "gemini" else max(0, written - 1)  # its end leaves when it is known to be the end
        return 0 if api == "gemini" and written < len(NOTE) else written  # that API carries calls whole

    said = play(api, row, Confirmed(needs), lambda said: len(said.arguments))
    assert said.calls == [("note", NOTE)]


STRICT_TOOLS: dict[str, Any] = {
    "note": {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "pages": {"type": "integer"},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["title"],
        "additionalProperties": False,
    }
}
VENDOR_NOTE = {"title": "Groceries", "pages": None, "tags": [{"key": "text", "value": "Milk, eggs, bread and flour"}]}
"""As a strict mode that wants every key and has no maps writes it."""
CALLER_NOTE = {"title": "Groceries", "tags": {"text": "Milk, eggs, bread and flour"}}


@pytest.mark.parametrize("api", APIS)
def test_arguments_of_a_rewritten_strict_tool_stream_in_the_callers_shape(api: str) -> None:
    path, body = agent_request(api, STRICT_TOOLS, stream=True)
    is_strict = api != "gemini"  # that API has neither `strict` nor pieces of arguments
    if is_strict:
        tool = body["tools"][0]
        tool.get("function", tool)["strict"] = True
    answer = Answer(calling(("note", VENDOR_NOTE if is_strict else CALLER_NOTE)), chunk_size=4)
    with FakeVendor([answer, answer]) as vendor, proxied(vendor, "openai", "gpt-6-luna") as address:
        live = streamed(address, api, body, path)
        whole_path, whole_body = agent_request(api, STRICT_TOOLS)
        whole_body["tools"] = body["tools"]
        whole = read_whole(api, *posted(address, whole_path, whole_body))
        sent = vendor.requests[0].json()["tools"][0]["function"]
    pieces = [arguments for _, arguments in live.sequence]
    assert (json.loads(live.arguments), live.calls) == (CALLER_NOTE, whole.calls)
    assert ("pages" in sent["parameters"]["required"]) == is_strict
    assert not is_strict or len(pieces) > 5
    assert not is_strict or len("".join(pieces[:-1])) > 0.8 * len(live.arguments)


@pytest.mark.parametrize("api", APIS)
def test_thinking_leaves_first_and_as_it_comes(api: str) -> None:
    before = written_before("anthropic", SAID, SAID.reasoning)
    said = play(api, "anthropic", Confirmed(lambda number: before[number]), lambda said: len(said.thought))
    assert said.sequence[:3] == [("think", "Hm, "), ("think", "a no"), ("think", "te.")]


@pytest.mark.parametrize("api", APIS)
def test_buffered_streams_wait_for_the_end_of_the_answer(api: str) -> None:
    settings = read_settings("enforcement: {stream_mode: buffer}")
    said = play(api, "openai", None, settings=settings)
    assert [each for each in said.sequence if each[0] == "text"] == [("text", WORDS)]
    assert (said.calls, len(said.sequence)) == ([("note", NOTE)], 4 if api == "chat" else 3)


def finish_of(api: str) -> str:
    """What the API says of an answer that ends with a call."""
    return "tool_calls" if api in ("chat", "messages") else "stop"


def play(
    api: str,
    row: str,
    gate: Confirmed | None,
    measure: Callable[[Said], int] | None = None,
    settings: Settings | None = None,
) -> Said:
    """Stream the answer from this vendor through the proxy; what the client has seen lets the vendor on."""
    kind, name, model = ROWS[row]
    path, body = agent_request(api, TOOLS, stream=True)

    def confirm(said: Said) -> None:
        if gate is not None and measure is not None:
            gate.confirm(measure(said))

    with FakeVendor([Answer(SAID, gate=gate)], api=kind) as vendor, proxied(vendor, name, model, settings) as address:
        return streamed(address, api, body, path, confirm)

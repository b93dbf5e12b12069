"""Enforced streams on the proxy, against a vendor that misbehaves."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import openai
import pytest

from slipform.addons.server.calls.stream_writer import StreamWriter
from slipform.addons.server.http_server.asgi import RecordingSend
from slipform.addons.server.observability.call_record import CallRecord
from slipform.codecs import ServedRequest, find_api
from slipform.config import read_settings
from slipform.ir import CompletionChunk, ModelRequest
from slipform.schema.lowering import lower
from slipform.testing import Answer, Api, FakeVendor
from tests.conftest import PERSON
from tests.proxy.wire import before, post
from tests.schema.lowering_encode import encode
from tests.waiting import DEADLINE, steady_async, until_async

CHAT = "/v1/chat/completions"
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
ASK: Any = {
    "model": "fast",
    "messages": [{"role": "user", "content": "Ada"}],
    "response_format": FORMAT,
    "stream": True,
}
GOOD = '{"name": "Ada", "age": 36}'
COMPACT = '{"name":"Ada","age":36}'


def content(events: list[Any]) -> str:
    chunks = [event for event in events if isinstance(event, dict) and event.get("choices")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in chunks)


@pytest.mark.covers("S2-73", "C11")
def test_the_pieces_leave_while_the_vendor_still_writes() -> None:
    with FakeVendor([Answer(GOOD, ending="hang")]) as vendor, before(vendor) as address:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0, timeout=20) as client:
            stream = client.chat.completions.create(**ASK)
            seen = ""
            for chunk in stream:
                seen += chunk.choices[0].delta.content or ""
                if seen == '{"name":"Ada"':
                    break
            stream.close()
        assert vendor.wait_until(lambda it: it.requests[0].aborted)


def test_an_answer_that_goes_wrong_is_stopped_at_the_vendor_and_asked_again_in_the_same_stream() -> None:
    wrong = Answer('{"name": {"first": "' + "Ada " * 5000, pace=0.005)
    with FakeVendor([wrong, GOOD]) as vendor, before(vendor) as address:
        reply = post(address, CHAT, {**ASK, "stream_options": {"include_usage": True}})
        assert vendor.requests[0].aborted
    events = reply.events()
    assert reply.status == 200
    assert content(events) == COMPACT
    assert events[-1] == "[DONE]"
    assert len(vendor.requests) == 2


@pytest.mark.covers("C11", "C31", "S2-66")
def test_an_answer_that_goes_wrong_after_its_beginning_left_goes_on_with_one_that_begins_like_it() -> None:
    with FakeVendor(['{"name": "Ada", "age": [36]}', GOOD]) as vendor, before(vendor) as address:
        events = post(address, CHAT, ASK).events()
    assert content(events) == COMPACT
    assert events[-1] == "[DONE]"
    assert len(vendor.requests) == 2


@pytest.mark.covers("C11", "C31", "S2-66")
def test_an_answer_that_cannot_go_on_from_what_has_left_ends_in_the_apis_error() -> None:
    with FakeVendor(['{"name": "Ada", "age": [36]}', '{"name": "Eve", "age": 1}']) as vendor, before(vendor) as address:
        events = post(address, CHAT, ASK).events()
    assert content(events) == '{"name":"Ada"'
    assert events[-1]["error"]["type"] == "structured_output_failed"
    assert "already been sent" in events[-1]["error"]["message"]
    assert len(vendor.requests) == 2


LEADS = (
    "",
    "```json\n",
    "Sure!\n```json\n",
    "<think>Ada? {}</think>\n",
    "Here is the JSON in the requested format:\n\n",
)


@pytest.mark.parametrize("mode", ["auto", "live"])
@pytest.mark.parametrize("strategy", ["prompted", "tool", "native"])
@pytest.mark.parametrize("lead", LEADS)
def test_every_channel_is_live(strategy: str, mode: str, lead: str) -> None:
    with FakeVendor([lead + GOOD if strategy == "prompted" else GOOD]) as vendor, before(vendor) as address:
        reply = post(address, CHAT, {**ASK, "slipform": {"strategy": strategy, "stream_mode": mode}})
    pieces = [
        event for event in reply.events() if isinstance(event, dict) and event["choices"][0]["delta"].get("content")
    ]
    assert content(reply.events()) == COMPACT
    assert len(pieces) > 1 or strategy == "tool"


PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
    "required": ["city"],
}
PLACED = {"city": "Oslo by the fjord", "note": "seen from the ferry"}
LOWERED: dict[str, tuple[dict[str, Any], Any]] = {
    "an optional property": ({**PLACE, "additionalProperties": False}, PLACED),
    "an open object": (PLACE, PLACED),
    "a list at the root": ({"type": "array", "items": {"type": "string"}}, list(PLACED.values())),
}
VENDORS: dict[Api, str] = {
    "openai": "gpt-6-luna",
    "anthropic": "claude-opus-5-5",
    "gemini": "gemini-3-pro",
}


@pytest.mark.parametrize("api", VENDORS)
def test_answers_in_a_vendors_own_shape_are_live(api: Api) -> None:
    model = VENDORS[api]
    wrong: list[Any] = []
    for case, (schema, value) in LOWERED.items():
        written = json.dumps(encode(lower(schema, api, open_objects="auto"), value))
        shape = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema, "strict": True}}
        body = {**ASK, "model": f"up/{model}", "response_format": shape, "slipform": {"stream_mode": "live"}}
        with FakeVendor([written], api=api) as vendor, before(vendor, api) as address:
            events = post(address, CHAT, body).events()
        pieces = [content([event]) for event in events]
        if json.loads(content(events)) != value or sum(map(bool, pieces)) < 4:
            wrong.append((case, written, pieces))
    assert wrong == []


REASONED = {
    "a draft": 'A first draft would be {"name": "Bob", "age": 3}. But it is Ada: ',
    "an example": 'The format is, for example, {"name": "Bob", "age": 3}.\n\nThe answer:\n',
    "thinking aloud": "The text says that Ada is 36. " * 20 + '{"name": "Bob", "age": 3} is wrong, so: ',
}


@pytest.mark.covers("C11")
@pytest.mark.parametrize("case", REASONED)
def test_json_that_follows_more_than_a_lead_in_is_the_same_streamed_and_whole(case: str) -> None:
    body = {**ASK, "slipform": {"strategy": "prompted", "max_attempts": 1}}
    with FakeVendor([REASONED[case] + GOOD]) as vendor, before(vendor) as address:
        whole = post(address, CHAT, {**body, "stream": False})
        streamed = post(address, CHAT, body)
    if whole.status == 200:
        assert content(streamed.events()) == whole.json()["choices"][0]["message"]["content"]
    else:
        assert streamed.status == whole.status, "an error, and nothing was sent"


def test_a_stream_that_is_judged_first_leaves_in_one_piece() -> None:
    settings = read_settings("enforcement: {stream_mode: buffer}")
    with FakeVendor([GOOD]) as vendor, before(vendor, settings=settings) as address:
        reply = post(address, CHAT, ASK)
    assert content(reply.events()) == COMPACT
    assert reply.headers["x-slipform-strategy"] == "native"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("serving", "sign"),
    [
        (find_api("openai-chat"), b": keep-alive\n\n"),
        (find_api("anthropic"), b"event: ping"),
        (find_api("gemini"), b""),
    ],
    ids=["openai", "anthropic", "gemini"],
)
async def test_a_silent_stream_gives_signs_of_life_where_its_clients_take_them(serving: Any, sign: bytes) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    served = ServedRequest(ModelRequest("m", ()), stream=True)
    writer = StreamWriter(serving, served, (record := CallRecord("r")), RecordingSend(send, record), keep_alive=0.01)

    def has_two() -> bool:
        return [message["type"] for message in sent].count("http.response.body") >= 2

    assert await until_async(has_two, seconds=DEADLINE if sign else 0.1) is bool(sign)
    assert writer.started is bool(sign)
    await writer.write([CompletionChunk(text="x")])
    await writer.finish()
    before_end = len(sent)
    assert await steady_async(lambda: len(sent)) == before_end, "nothing follows the end"
    bodies = [message["body"] for message in sent if message["type"] == "http.response.body"]
    assert [message["type"] for message in sent].count("http.response.start") == 1
    if sign:
        assert all(body.startswith(sign) for body in bodies[:2])


class Client:
    """Our server's end of one response: writes at once while the client keeps up, and else when it is waited for."""

    def __init__(self) -> None:
        self.full: asyncio.Future[None] | None = None
        self.written: list[tuple[str, bytes]] = []

    @property
    def can_push(self) -> bool:
        return self.full is None

    def push(self, data: bytes) -> bool:
        self.written.append(("pushed", data))
        return True

    async def send(self, message: Any) -> None:
        if self.full is not None:
            await self.full
        self.written.append(("sent", message.get("body", b"")))

    def texts(self) -> list[tuple[str, list[str]]]:
        return [
            (way, re.findall(r'"content":"(\w*)"\}', data.decode())) for way, data in self.written if b"data: {" in data
        ]


def written_to(client: Client, exchange: Any) -> StreamWriter:
    record = CallRecord("r")
    served = ServedRequest(ModelRequest("m", ()), stream=True)
    return StreamWriter(find_api("openai-chat"), served, record, RecordingSend(client.send, record, cycle=exchange))


async def test_what_is_pushed_leaves_at_once_and_in_order_also_when_the_client_is_slow() -> None:
    client = Client()
    writer = written_to(client, client)
    assert writer.push([CompletionChunk("a")]) is not None, "the head has to leave first, and that is waited for"
    await writer.write([CompletionChunk("a")])
    assert writer.push([CompletionChunk("b"), CompletionChunk("c")]) is None
    client.full = asyncio.get_running_loop().create_future()
    assert writer.push([CompletionChunk("d")]) is not None, "nothing is heaped up for a client that does not read"
    writing = asyncio.create_task(writer.write([CompletionChunk("d")]))
    await asyncio.sleep(0)
    assert client.texts() == [("sent", ["a"]), ("pushed", ["b", "c"])]
    client.full.set_result(None)
    await writing
    client.full = None
    assert writer.push([CompletionChunk("e")]) is None
    await writer.finish()
    assert client.texts()[2:4] == [("sent", ["d"]), ("pushed", ["e"])]


async def test_text_is_pushed_as_a_chunk_of_it_is_and_never_under_another_server() -> None:
    client = Client()
    writer = written_to(client, client)
    assert writer.push_texts(["a"]) is not None, "the head has to leave first, and that is waited for"
    await writer.write([CompletionChunk("a")])
    assert writer.push_texts(["b"]) is None
    assert writer.push([CompletionChunk("c")]) is None
    assert writer.push_texts([""]) is None
    assert writer.push_texts(["x", "y"]) is None
    writer.close()
    assert client.texts() == [("sent", ["a"]), ("pushed", ["b"]), ("pushed", ["c"]), ("pushed", ["x", "y"])]
    elsewhere = written_to(client, None)
    await elsewhere.write([CompletionChunk("a")])
    assert elsewhere.push_texts(["b"]) == [CompletionChunk("b")]
    elsewhere.close()

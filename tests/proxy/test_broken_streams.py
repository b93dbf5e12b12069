"""A vendor that fails after its stream has begun: the caller sees one stream, or an error that names the vendor."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.config import Settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import ModelResponse
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor, Raw, Step, calling
from slipform.testing.wire_formats import SHAPES
from tests.conftest import PERSON, serving
from tests.proxy.agent_wire import APIS, Said, StreamReader, agent_request, read_whole
from tests.proxy.proxying import call
from tests.proxy.wire import before, post, provider_of

GOOD = '{"name":"Ada Lovelace","age":36}'
VENDORS: tuple[Any, ...] = ("openai", "anthropic", "gemini", "ollama")
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = {"weather": WEATHER}
SSE = {"content-type": "text/event-stream"}
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
FAILED = b'data: {"error":{"message":"upstream died","type":"server_error","code":500}}\n\n'


def streamed(address: str, api: str, tools: Any = None, **fields: Any) -> Said:
    path, body = agent_request(api, tools or {}, stream=True, answer=None if tools else PERSON)
    if not tools:
        body.pop("tools", None)
    reply = post(address, path, {**body, **fields})
    if reply.status != 200:
        return read_whole(api, reply.status, reply.json())
    return StreamReader(api).read(reply.events())


def events_of(api: Any, text: str = GOOD) -> tuple[bytes, ...]:
    return tuple(SHAPES[api].events(Answer(text).response, 4))


@contextlib.contextmanager
def listed(first: FakeVendor, second: FakeVendor, attempts: int = 1) -> Iterator[str]:
    """A proxy whose model `fast` is one of the first vendor, then one of the second."""
    router = Router(
        {"one": provider_of(first), "two": provider_of(second)}, aliases={"fast": ["one/a", "two/b"]}, default="fast"
    )
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=attempts)))
    with serving(App(client, Settings())) as address:
        yield address


@pytest.mark.covers("C11", "S2-66")
@pytest.mark.parametrize("vendor_api", VENDORS)
def test_a_stream_that_breaks_anywhere_is_the_same_to_the_caller(vendor_api: Any) -> None:
    wrong: list[Any] = []
    count = len(events_of(vendor_api))
    for after in range(0, count, 2):
        broken = Answer(GOOD, cut_after=after, ending="cut")
        with FakeVendor([broken, GOOD], api=vendor_api) as vendor, before(vendor, vendor_api) as address:
            for api in APIS:
                vendor.requests.clear()
                said = streamed(address, api)
                if (said.text, said.finish, said.error) != (GOOD, "stop", None):
                    wrong.append((after, api, said))
    assert wrong == []


FAULTS: dict[str, bytes] = {
    "an error event": FAILED,
    "an overloaded event": OVERLOADED,
    "no event": b"data: <html>\n\n",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_that_the_vendor_sends_in_its_stream_is_asked_over(fault: str) -> None:
    wrong: list[Any] = []
    start = events_of("openai")[:5]
    for pieces in ((FAULTS[fault],), (*start, FAULTS[fault])):
        step = Raw(pieces, headers=SSE, chunked=True)
        with FakeVendor([step, GOOD]) as vendor, before(vendor) as address:
            for api in APIS:
                vendor.requests.clear()
                said = streamed(address, api)
                if (said.text, said.error, len(vendor.requests)) != (GOOD, None, 2):
                    wrong.append((len(pieces), api, said))
    assert wrong == []


@pytest.mark.parametrize("attempts", [1, 2])
def test_the_next_model_goes_on_behind_the_open_stream(attempts: int) -> None:
    wrong: list[Any] = []
    for step in (Answer(GOOD, cut_after=6, ending="reset"), '{"name": "Ada Lovelace", "age": [36]}'):
        with FakeVendor([step]) as first, FakeVendor([GOOD]) as second, listed(first, second, attempts) as address:
            for api in APIS:
                said = streamed(address, api)
                if (said.text, said.finish, said.error) != (GOOD, "stop", None):
                    wrong.append((step, api, said))
            assert len(first.requests) == attempts * len(APIS)
    assert wrong == []


def test_a_call_whose_stream_broke_is_asked_for_again() -> None:
    wrong: list[Any] = []
    call = calling(("weather", '{"city": "Oslo and Bergen"}'))
    for after in range(1, 8):
        broken = Answer(call, cut_after=after, ending="cut")
        with FakeVendor([broken, Answer(call)]) as vendor, before(vendor) as address:
            for api in APIS:
                vendor.requests.clear()
                said = streamed(address, api, TOOLS)
                found = [(name, json.loads(arguments)) for name, arguments in said.calls]
                if found != [("weather", {"city": "Oslo and Bergen"})] or said.error:
                    wrong.append((after, api, said))
    assert wrong == []


@pytest.mark.parametrize("after", [0, 6])
def test_a_vendor_that_fails_every_time_is_what_the_error_says(after: int) -> None:
    step: Step = Answer(GOOD, cut_after=after, ending="cut")
    with FakeVendor([step]) as vendor, before(vendor) as address:
        found = {api: streamed(address, api).error for api in APIS}
        assert len(vendor.requests) == 2 * len(APIS)
    assert set(found.values()).isdisjoint({"invalid_request_error", "truncated", "INVALID_ARGUMENT"})
    assert (found["chat"], found["responses"]) == ("upstream_error", "upstream_error" if after else "server_error")
    assert found["messages"] == "api_error"


def test_nothing_was_sent_of_an_answer_that_died_with_its_head() -> None:
    """SDKs ask again after a 502, never after a 422."""
    with FakeVendor([Answer(GOOD, cut_after=0, ending="cut")]) as vendor, before(vendor) as address:
        path, body = agent_request("chat", {}, stream=True, answer=PERSON)
        reply = post(address, path, {**body, "tools": None})
    assert reply.status == 502


@pytest.mark.covers("S2-24")
def test_a_whole_answer_that_broke_off_is_asked_for_again() -> None:
    broken = Answer(GOOD, cut_after=3, ending="cut")
    with FakeVendor([broken, GOOD]) as vendor, before(vendor) as address:
        path, body = agent_request("chat", {}, answer=PERSON)
        body.pop("tools")
        reply = post(address, path, {**body, "slipform": {"report": True}})
    assert reply.status == 200
    outcomes = [attempt["outcome"] for attempt in reply.json()["slipform"]["attempts"]]
    assert outcomes == ["upstream_error", "ok"]


def usage_of(api: str, events: list[Any]) -> tuple[int, int]:
    """Input and output tokens as a client counts them."""
    counts = {"input": 0, "output": 0}
    for event in events:
        if not isinstance(event, dict):
            continue
        usage = event.get("usage") or event.get("usageMetadata") or event.get("response", {}).get("usage") or {}
        usage = usage or event.get("message", {}).get("usage") or {}
        for name, count in usage.items():
            if name in ("prompt_tokens", "input_tokens", "promptTokenCount"):
                counts["input"] = max(counts["input"], count)
            if name in ("completion_tokens", "output_tokens", "candidatesTokenCount"):
                counts["output"] = max(counts["output"], count)
    return counts["input"], counts["output"]


@pytest.mark.parametrize("vendor_api", ["openai", "anthropic", "gemini"])
def test_tokens_of_an_attempt_that_was_not_read_to_its_end_are_estimated(vendor_api: Any) -> None:
    """The vendor says 7 and 5 for each answer, at its end."""
    wrong: list[Any] = []
    long = '{"name": "' + " ".join(map(str, range(100))) + '", "age": [36], "more": "' + "x" * 4000
    agreeing = '{"name":"' + " ".join(map(str, range(100))) + '","age":36}'
    for first in (long, Answer(agreeing, cut_after=40, ending="cut")):
        with FakeVendor([first, agreeing], api=vendor_api) as vendor, before(vendor, vendor_api) as address:
            for api in APIS:
                vendor.requests.clear()
                path, body = agent_request(api, {}, stream=True, answer=PERSON)
                body.pop("tools")
                extra: Any = {"stream_options": {"include_usage": True}} if api == "chat" else {}
                found = usage_of(api, post(address, path, {**body, **extra}).events())
                if not (12 <= found[0] < 500 and 5 + 30 <= found[1] < 300):
                    wrong.append((api, found))
    assert wrong == []


def test_a_stream_that_breaks_off_after_its_json_has_tokens_and_says_that_they_are_estimated() -> None:
    last = next(at for at, piece in enumerate(events_of("openai")) if b":36}" in piece)
    broken = Answer(GOOD, cut_after=last + 1, ending="cut")
    with FakeVendor([broken]) as vendor, before(vendor) as address:
        path, body = agent_request("chat", {}, stream=True, answer=PERSON)
        body.pop("tools")
        events = post(address, path, {**body, "slipform": {"report": True}}).events()
        assert len(vendor.requests) == 1
    report = next(event["slipform"] for event in events if isinstance(event, dict) and "slipform" in event)
    assert report["usage"]["output"] >= len(GOOD) // 4
    assert [note["code"] for note in report["notes"]] == ["usage_estimated"]


NOT_HERE: dict[str, Step] = {
    "too long": Raw((b'{"error":{"message":"too long","code":"context_length_exceeded"}}',), 400),
    "policy": Raw((b'{"error":{"message":"no","code":"content_policy_violation"}}',), 400),
    "filter": Raw((b'{"error":{"message":"no","code":"content_filter"}}',), 400),
    "too large": Raw((b'{"error":{"message":"Request too large"}}',), 413),
}


@pytest.mark.parametrize("stream", [False, True])
def test_what_another_model_may_take_is_asked_of_it(stream: bool) -> None:
    wrong: list[Any] = []
    filtered = Answer(ModelResponse(text='{"name":"Ada', finish="content_filter"))
    steps: dict[str, Step] = {**NOT_HERE, "filtered answer": filtered}
    for name, step in steps.items():
        with FakeVendor([step]) as first, FakeVendor([GOOD]) as second, listed(first, second) as address:
            for api in APIS:
                path, body = agent_request(api, {}, stream=stream, answer=PERSON)
                body.pop("tools")
                reply = post(address, path, body)
                said = read_whole(api, reply.status, reply.json()) if not stream else Said(error="")
                if stream and reply.status == 200:
                    said = StreamReader(api).read(reply.events())
                if said.text != GOOD:
                    wrong.append((name, api, reply.status, said.error))
    assert wrong == []


def test_a_stream_that_breaks_anywhere_is_the_same_to_clients_of_ollama() -> None:
    wrong: list[Any] = []
    for after in range(0, len(events_of("openai")), 3):
        broken = Answer(GOOD, cut_after=after, ending="cut")
        with FakeVendor([broken, GOOD]) as vendor, before(vendor) as address:
            ask = {"model": "fast", "messages": [{"role": "user", "content": "Who?"}], "format": PERSON, "stream": True}
            reply = call(address, "/api/chat", ask)
        lines = [json.loads(line) for line in reply.body.splitlines()]
        text = "".join(line["message"]["content"] for line in lines if "message" in line)
        if (reply.status, text, lines[-1].get("done")) != (200, GOOD, True):
            wrong.append((after, reply.status, lines))
    assert wrong == []

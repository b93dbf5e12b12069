"""Answers kept for the same question."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import redis as redis_py

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.calls.cache import AnswerCache
from slipform.addons.server.calls.enforced import answer
from slipform.addons.server.calls.inbound import Inbound
from slipform.addons.server.calls.request_switches import RequestSwitches
from slipform.addons.server.calls.routes import api_at
from slipform.addons.server.http_server.asgi import RecordingSend
from slipform.addons.server.observability.call_record import CallRecord
from slipform.codecs import ServedRequest, find_api
from slipform.config import Settings
from slipform.engine.setup import Options
from slipform.ir import Message, ModelRequest, ModelResponse, Sampling, Tool, ToolCall, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, ResponseFormat
from slipform.testing import Answer, FakeModel, FakeVendor, Raw
from tests.conftest import PERSON
from tests.proxy.proxying import (
    ADA,
    ASK,
    FORMAT,
    RedisServer,
    Reply,
    call,
    chat,
    keys_path,
    proxied,
    running_redis,
)
from tests.waiting import until

ON = {"cache": {"enabled": True}}


def spoken(text: str = ADA) -> ModelResponse:
    return ModelResponse(text=text, usage=Usage(input=7, output=5, total=12))


def content(reply: Reply) -> Any:
    return reply.json["choices"][0]["message"]["content"]


@pytest.mark.covers("S2-62", "S2-63", "S2-64")
def test_the_same_question_is_answered_from_what_is_kept_and_marked() -> None:
    model = FakeModel([spoken(), spoken('{"name":"Bob","age":1}')])
    with proxied({"fake": model}, ON) as address:
        first, second = chat(address), chat(address)
        other = chat(address, messages=[{"role": "user", "content": "Bob is 1"}])
    assert content(first) == content(second) == ADA
    assert "x-slipform-cache" not in first.headers
    assert second.headers["x-slipform-cache"] == "hit"
    assert second.json["usage"] == first.json["usage"]
    assert json.loads(content(other))["name"] == "Bob"
    assert len(model.requests) == 2


def test_it_is_off_unless_asked_for() -> None:
    model = FakeModel([ADA])
    with proxied({"fake": model}) as address:
        chat(address)
        chat(address)
    assert len(model.requests) == 2


@pytest.mark.covers("S2-21")
@pytest.mark.parametrize(
    "change",
    [
        {"top_p": 0.5},
        {"temperature": 0.5},
        {"model": "fake/other"},
        {"seed": 3},
        {"max_tokens": 77},
        {"messages": [*ASK, *ASK]},
        {"response_format": {"type": "json_object"}},
        {"response_format": {**FORMAT, "json_schema": {**FORMAT["json_schema"], "schema": {**PERSON, "title": "x"}}}},
        {"unknown_field": [1]},
    ],
)
def test_whatever_may_change_the_answer_makes_it_another_question(change: dict[str, Any]) -> None:
    model = FakeModel([ADA])
    with proxied({"fake": model}, ON) as address:
        chat(address)
        assert "x-slipform-cache" not in chat(address, **change).headers
    assert len(model.requests) == 2


OTHER_REQUESTS: dict[str, Any] = {
    "messages": (Message.user("Who else?"),),
    "response_format": ResponseFormat(JsonSchemaSpec("other", {"type": "object"})),
    "json_mode": True,
    "tools": (Tool("look", {}),),
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "sampling": Sampling(temperature=0.5),
    "max_tokens": 7,
    "reasoning": {"effort": "high"},
    "extra": {"new": 1},
    "extra_for": "anthropic",
    "logprobs": 2,
}
"""One other value for every field of a request that may change its answer."""
SAME_ANSWER = {"model", "metadata", "timeout", "calls", "tells_schema", "frame", "cache_prefix"}
"""The fields that do not: the key has the model's full name instead, the others are not sent or only mark what is."""
SET_LATER = {"continues", "can_split", "beside"}
"""The fields that are set while a call is answered, when the key is there already."""


def test_every_field_of_a_request_belongs_to_the_cache_key_or_is_listed_as_one_that_does_not() -> None:
    router = Router({"fake": FakeModel([ADA])})
    cache = AnswerCache(Settings.model_validate(ON), router, Options())
    request = ModelRequest("fake/m", (Message.user("Who?"),))

    def key(request: ModelRequest) -> str | None:
        call = Inbound(find_api("openai-chat"), ServedRequest(request), CallRecord("r"), ("fake/m",))
        return cache._key(call, ["fake/m"], "")

    assert {*OTHER_REQUESTS, *SAME_ANSWER, *SET_LATER} == {*ModelRequest.__struct_fields__}
    changed = {name: key(request.replace(**{name: value})) for name, value in OTHER_REQUESTS.items()}
    assert None not in changed.values()
    assert [name for name, other in changed.items() if other == key(request)] == []


def test_every_switch_declares_whether_it_changes_the_answer() -> None:
    assert [each.name for each in fields(RequestSwitches) if "changes_answer" not in each.metadata] == []
    model = FakeModel([ADA])
    with proxied({"fake": model}, ON) as address:
        chat(address)
        assert "x-slipform-cache" in chat(address, slipform={"max_attempts": 2}).headers
        assert "x-slipform-cache" not in chat(address, slipform={"strategy": "prompted"}).headers
    assert len(model.requests) == 2


def test_only_shaped_and_valid_answers_are_kept() -> None:
    model = FakeModel(["plain words"])
    with proxied({"fake": model}, {**ON, "enforcement": {"on_failure": "raw"}}, attempts=1) as address:
        for _ in range(2):
            assert chat(address, response_format=None).status == 200
        for _ in range(2):
            assert content(chat(address)) == "plain words"
    assert len(model.requests) == 4


def test_the_caller_may_ask_afresh_or_leave_no_trace() -> None:
    model = FakeModel([ADA])
    with proxied({"fake": model}, ON) as address:
        chat(address, {"cache-control": "no-store"})
        chat(address)
        assert len(model.requests) == 2
        assert "x-slipform-cache" not in chat(address, {"cache-control": "max-age=0, no-cache"}).headers
        assert "x-slipform-cache" not in chat(address, {"cache-control": "No-Store"}).headers
        assert len(model.requests) == 4
        assert chat(address).headers["x-slipform-cache"] == "hit"


@pytest.mark.covers("C11")
def test_streams_and_whole_answers_share_what_is_kept_in_every_api() -> None:
    model = FakeModel([spoken()])
    with (
        proxied({"fake": model}, ON) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client,
        anthropic.Anthropic(base_url=address, api_key="-", max_retries=0) as claude,
    ):
        asked: Any = {"model": "fake/m", "messages": ASK, "response_format": FORMAT}
        for _ in range(2):
            stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked)
            chunks = list(stream)
            assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == ADA
            assert [each.usage.total_tokens for each in chunks if each.usage] == [12]
        assert client.chat.completions.create(**asked).choices[0].message.content == ADA
        assert len(model.requests) == 1
        shape: Any = {"format": {"type": "json_schema", "schema": PERSON}}
        with claude.messages.stream(model="fake/m", max_tokens=99, messages=ASK, output_config=shape) as events:
            assert events.get_final_text() == ADA
        with claude.messages.stream(model="fake/m", max_tokens=99, messages=ASK, output_config=shape) as events:
            assert events.get_final_text() == ADA
            assert events.response.headers["x-slipform-cache"] == "hit"
    assert len(model.requests) == 2


@pytest.mark.covers("S2-72", "C11")
def test_a_stream_is_still_refused_where_streams_are_switched_off() -> None:
    with proxied({"fake": FakeModel([ADA])}, {**ON, "enforcement": {"stream_mode": "reject"}}) as address:
        assert chat(address).status == 200
        assert chat(address, stream=True).status == 400


def test_tool_calls_are_kept_too() -> None:
    tools = [{"type": "function", "function": {"name": "save", "parameters": PERSON}}]
    model = FakeModel([ModelResponse(tool_calls=(ToolCall("c1", "save", ADA),), finish="tool_calls")])
    with proxied({"fake": model}, ON) as address:
        replies = [chat(address, response_format=None, tools=tools) for _ in range(2)]
        streamed = chat(address, response_format=None, tools=tools, stream=True)
    calls = [reply.json["choices"][0]["message"]["tool_calls"][0]["function"] for reply in replies]
    assert calls[0] == calls[1] == {"name": "save", "arguments": ADA}
    assert b'"save"' in streamed.body
    assert len(model.requests) == 1


def over(vendor: FakeVendor) -> HttpProvider:
    row = load_catalog({"mine": {"extends": "openai", "base_url": vendor.base_url}}).vendor("mine")
    return HttpProvider(row, api_key="k-000000")


def test_the_same_question_at_the_same_time_is_asked_once() -> None:
    with (
        FakeVendor([Answer(ADA, latency=0.5)]) as vendor,
        proxied({"mine": over(vendor)}, ON) as address,
        ThreadPoolExecutor(8) as pool,
    ):
        replies = list(pool.map(lambda number: chat(address, model="mine/m", stream=number % 2 == 1), range(8)))
    assert [each.status for each in replies] == [200] * 8
    assert len(vendor.requests) == 1
    assert sum("x-slipform-cache" in each.headers for each in replies) == 7


def test_when_the_first_of_them_fails_the_others_ask_for_themselves() -> None:
    failing = Raw((b'{"error": {"message": "no"}}',), 400, {"content-type": "application/json"}, latency=0.5)
    with FakeVendor([failing, ADA]) as vendor, proxied({"mine": over(vendor)}, ON) as address:
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda _: chat(address, model="mine/m"), range(4)))
        assert chat(address, model="mine/m").headers["x-slipform-cache"] == "hit"
    assert sorted(each.status for each in replies) == [200, 200, 200, 400]


def test_an_alias_that_points_elsewhere_is_another_question() -> None:
    model = FakeModel([ADA], models=["a", "b"])
    with proxied({"fake": model}, {**ON, "model_aliases": {"one": "fake/a", "two": "fake/b"}}) as address:
        chat(address, model="one")
        assert chat(address, model="fake/a").headers["x-slipform-cache"] == "hit"
        assert "x-slipform-cache" not in chat(address, model="two").headers


def test_an_answer_is_kept_for_so_long_and_no_longer() -> None:
    now = 0.0
    settings = Settings.model_validate({"cache": {"enabled": True, "ttl_seconds": 5}})
    with closing(asyncio.Runner()) as runner:
        model = FakeModel([ADA, '{"name":"Eve","age":2}'])
        client = AsyncClient(router=Router({"fake": model}, default="fake/m"))
        cache = AnswerCache(settings, client.router, client.options, clock=lambda: now)
        answers = []
        for moment in (0.0, 4.9, 5.1):
            now = moment
            answers.append(runner.run(asked_once(cache, client)))
    assert answers == [ADA, ADA, '{"name":"Eve","age":2}']


async def asked_once(cache: AnswerCache, client: AsyncClient) -> str:
    """What the cache, or the model behind it, answers to the usual question."""
    api = api_at("/v1/chat/completions")
    assert api is not None
    served = api.decode_request({"model": "fake/m", "messages": ASK, "response_format": FORMAT})
    call = Inbound(api, served, CallRecord("r", enforced=True), ("m",))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def work() -> None:
        await answer(call, "fake/m", client.router, client.options, RecordingSend(send, call.record))

    await cache.answer(call, ["fake/m"], "", b"", work, send)
    body = b"".join(message.get("body", b"") for message in sent)
    return str(json.loads(body)["choices"][0]["message"]["content"])


def keyed(tmp_path: Path, *names: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Settings with a key for each name, and the headers that present them."""
    path = keys_path(tmp_path)
    return {"server": {"keys_file": str(path)}}, [{"x-api-key": add_key(path, name)[1]} for name in names]


def test_a_hit_tells_a_caller_nothing_of_what_others_asked(tmp_path: Path) -> None:
    settings, (ada, bob) = keyed(tmp_path, "ada", "bob")
    model = FakeModel([ADA])
    with proxied({"fake": model}, {**ON, **settings}) as address:
        replies = [chat(address, key) for key in (ada, bob, ada, bob)]
    assert ["x-slipform-cache" in each.headers for each in replies] == [False, False, True, True]
    assert len(model.requests) == 2


def test_keys_share_answers_where_the_operator_says_so(tmp_path: Path) -> None:
    settings, (ada, bob) = keyed(tmp_path, "ada", "bob")
    model = FakeModel([ADA])
    with proxied({"fake": model}, {**settings, "cache": {"enabled": True, "shared": True}}) as address:
        replies = [chat(address, key) for key in (ada, bob)]
    assert ["x-slipform-cache" in each.headers for each in replies] == [False, True]


def test_callers_with_different_keys_do_not_wait_for_each_others_answer(tmp_path: Path) -> None:
    settings, keys = keyed(tmp_path, "ada", "bob")
    with (
        FakeVendor([Answer(ADA, latency=0.5)]) as vendor,
        proxied({"mine": over(vendor)}, {**ON, **settings}) as address,
        ThreadPoolExecutor(4) as pool,
    ):
        replies = list(pool.map(lambda number: chat(address, keys[number % 2], model="mine/m"), range(4)))
    assert [each.status for each in replies] == [200] * 4
    assert len(vendor.requests) == 2


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


def test_machines_share_what_they_keep_and_go_on_without_redis(redis: RedisServer) -> None:
    settings = {**ON, "redis": {"url": redis.url, "prefix": "cache-test:"}}
    first, second = FakeModel([spoken()]), FakeModel([spoken('{"name":"Eve","age":2}')])
    with proxied({"fake": first}, settings) as one, proxied({"fake": second}, settings) as two:
        assert content(chat(one)) == ADA
        _wait_for_a_key(redis)
        hit = chat(two)
        assert content(hit) == ADA
        assert hit.headers["x-slipform-cache"] == "hit"
        assert second.requests == []
        redis.kill()
        assert chat(two).headers["x-slipform-cache"] == "hit"  # from its own memory now
        assert chat(two, seed=1).status == 200
        assert call(two, "/healthz").status == 200
        redis.start()
    assert len(second.requests) == 1


def _wait_for_a_key(server: RedisServer) -> None:
    """What was kept reaches Redis a moment after the answer has left."""
    with closing(redis_py.Redis(port=server.port)) as client:
        assert until(lambda: client.keys("cache-test:answer:*"))


def kept_in(server: RedisServer, prefix: str) -> tuple[bytes, dict[str, Any]]:
    """The one answer that Redis keeps: its name there, and what it says."""
    with closing(redis_py.Redis(port=server.port)) as client:
        assert until(lambda: client.keys(f"{prefix}answer:*")), "nothing was kept"
        (name, *_) = client.keys(f"{prefix}answer:*")
        assert isinstance(name, bytes)
        return name, json.loads(client.get(name) or "null")


@pytest.mark.parametrize(
    "change",
    [
        {"text": '{"b":12}'},
        {"text": "Here it is: " + ADA},
        {"text": ADA[:-1]},
        {"text": 12},
        {"text": "", "calls": [["1", "delete_everything", "{}"]]},
        {"calls": [["1"]]},
        {"usage": [1]},
        {"usage": [-1, 1, None, None, None]},
        {"usage": ["1", 1, None, None, None]},
        {"finish": "exploded"},
        {"strategy": "magic"},
        {"provider": "x status=200"},
        {"until": "tomorrow"},
        {"until": 1e300},
        {"until": 0.0},
        {"surprise": 1},
        None,
    ],
    ids=str,
)
def test_an_answer_in_redis_that_does_not_fit_is_a_miss(redis: RedisServer, change: dict[str, Any] | None) -> None:
    prefix = f"spoiled-{time.monotonic_ns()}:"
    settings = {**ON, "redis": {"url": redis.url, "prefix": prefix}}
    with proxied({"fake": FakeModel([spoken()])}, settings) as address:
        chat(address)
        name, fields = kept_in(redis, prefix)
    with closing(redis_py.Redis(port=redis.port)) as client:
        client.set(name, b"\xff\x00 garbage" if change is None else json.dumps({**fields, **change}))
    model = FakeModel([spoken()])
    with proxied({"fake": model}, settings) as address:
        reply = chat(address)
    assert (reply.status, content(reply)) == (200, ADA)
    assert "x-slipform-cache" not in reply.headers
    assert len(model.requests) == 1


def test_a_list_or_a_huge_text_in_the_place_of_an_answer_is_a_miss(redis: RedisServer) -> None:
    prefix = f"huge-{time.monotonic_ns()}:"
    settings = {"cache": {"enabled": True, "max_bytes": 4096}, "redis": {"url": redis.url, "prefix": prefix}}
    with proxied({"fake": FakeModel([spoken()])}, settings) as address:
        chat(address)
        name, fields = kept_in(redis, prefix)
    with closing(redis_py.Redis(port=redis.port)) as client:
        for spoil in (
            lambda: client.rpush(name, "x"),
            lambda: client.set(name, json.dumps({**fields, "reasoning": "x" * 5000})),
        ):
            client.delete(name)
            spoil()
            model = FakeModel([spoken()])
            with proxied({"fake": model}, settings) as address:
                assert content(chat(address)) == ADA
            assert len(model.requests) == 1

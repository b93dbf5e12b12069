"""Answers kept for the same question."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import anthropic
import openai
import pytest
import redis as redis_py

from slipform.ir import ModelResponse, ToolCall, Usage
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.server.cache import Kept
from slipform.testing import Answer, FakeModel, FakeVendor, Raw
from tests.conftest import PERSON
from tests.server.proxying import ADA, ASK, FORMAT, RedisServer, Reply, call, chat, proxied, running_redis

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


def test_what_is_kept_is_bounded_in_number_size_and_time() -> None:
    now = 0.0
    kept = Kept(entries=3, size=10, clock=lambda: now)
    for name in "abc":
        kept.put(name, b"12", 5)
    assert kept.get("a") == b"12"
    kept.put("d", b"1", 5)
    assert [kept.get(name) for name in "abcd"] == [b"12", None, b"12", b"1"]
    kept.put("e", b"12345678", 5)
    assert kept.get("e") == b"12345678"
    assert kept.get("a") is None
    kept.put("f", b"x" * 11, 5)
    assert kept.get("f") is None
    now = 5.0
    assert kept.get("e") is None
    assert kept._used <= 1


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
        for _ in range(500):
            if client.keys("cache-test:answer:*"):
                return
            time.sleep(0.01)

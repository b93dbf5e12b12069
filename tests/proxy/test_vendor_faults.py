"""Whatever a vendor does to an enforced call: the caller's status and answer, and what the vendor was sent."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.config import Settings, read_settings
from slipform.enforce import Budget
from slipform.engine.setup import Options
from slipform.ir import ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import (
    FakeVendor,
    Raw,
    Step,
    garbage_body,
    hang_up,
    rate_limited,
    rejected,
    reset,
    server_error,
)
from tests.conftest import PERSON, serving
from tests.proxy.wire import before, post, provider_of

CHAT = "/v1/chat/completions"
GOOD = '{"name":"Ada","age":36}'
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
BODY: dict[str, Any] = {
    "model": "fast",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ada is 36"}],
    "response_format": FORMAT,
}
PROPERTIES: Any = PERSON["properties"]
SPENT = Usage(input=7, output=5, total=12)
JSON = {"content-type": "application/json"}

KINDS: dict[str, tuple[tuple[Step, ...], int, int]] = {
    "good": ((GOOD,), 200, 1),
    "spaced": (('{"name": "Ada",\n "age": 36}',), 200, 1),
    "fenced": ((f"```json\n{GOOD}\n```",), 200, 1),
    "patched": (('{"name":"Ada","age":"36"}',), 200, 1),
    "a key twice": (('{"name":"Ada","name":"Ada","age":36}',), 200, 1),
    "a key with two values": (('{"name":"Bob","name":"Ada","age":36}',), 200, 2),
    "asked again": (('{"name":"Ada"}', GOOD), 200, 2),
    "never good": (("no", "no"), 422, 2),
    "nothing": (("", GOOD), 200, 2),
    "thinks": ((ModelResponse(text=GOOD, reasoning="hm", usage=SPENT),), 200, 1),
    "counts nothing": ((ModelResponse(text=GOOD),), 200, 1),
    "not its shape": ((Raw((b'{"choices": 3}',), headers=JSON),), 502, 1),
    "web page": ((garbage_body(),), 502, 1),
    "down": ((server_error(503), server_error(503)), 502, 2),
    "down, then good": ((server_error(503), GOOD), 200, 2),
    "waits": ((rate_limited(retry_after_ms=1.0), GOOD), 200, 2),
    "hangs up": ((hang_up(), hang_up()), 502, 1),
    "resets": ((reset(), reset()), 502, 1),
    "cuts its answer": ((Raw((b'{"id":', b'"1"}'), headers=JSON, cut_after=1, ending="cut"),), 200, 2),
}
"""What the vendor does, the caller's status, and how many requests the vendor saw."""
IGNORED = ("fenced", "never good")
"""The model was not held to the schema that its native mode was given: from then on the prompt shows it."""


@contextlib.contextmanager
def proxy(vendor: FakeVendor, *, settings: Settings | None = None, repeats: int = 0) -> Iterator[str]:
    provider = provider_of(vendor, retries=RetryPolicy(attempts=repeats, base=0.001))
    router = Router({"up": provider}, aliases={"fast": "up/gpt-6-luna"}, default="fast")
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
    with serving(App(client, settings or Settings())) as address:
        yield address


@pytest.mark.covers("S2-24", "S2-25", "C31")
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_vendor_does_is_told_and_the_next_call_is_none_the_worse(kind: str) -> None:
    steps, status, requests = KINDS[kind]
    with FakeVendor([*steps, GOOD]) as vendor, proxy(vendor, repeats=1) as address:
        reply = post(address, CHAT, BODY)
        assert (reply.status, len(vendor.requests)) == (status, requests)
        if status == 200:
            choice = reply.json()["choices"][0]
            assert json.loads(choice["message"]["content"]) == {"name": "Ada", "age": 36}
            assert choice["finish_reason"] == "stop"
        while len(vendor.requests) < len(steps):
            post(address, CHAT, BODY)
        assert post(address, CHAT, BODY).status == 200
        first, last = vendor.requests[0].json(), vendor.requests[-1].json()
    if kind in IGNORED:
        told = last["messages"].pop(0)["content"]
        assert "matching this schema" in told
        assert told.endswith(first["messages"].pop(0)["content"])
    assert first == last


OTHERS: dict[str, dict[str, Any]] = {
    "sampling": {"temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["x"], "max_tokens": 9},
    "effort": {"reasoning_effort": "low", "max_completion_tokens": 9},
    "the vendor's own": {"user": "u-1", "service_tier": "auto", "new_field": {"x": [1.5]}},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_vendor_is_sent_what_the_caller_said(kind: str) -> None:
    with FakeVendor([GOOD]) as vendor, proxy(vendor) as address:
        assert post(address, CHAT, {**BODY, **OTHERS[kind]}).status == 200
        sent = vendor.requests[0].json()
    said = {**OTHERS[kind]}
    if "max_tokens" in said:  # the name that newer models want
        said["max_completion_tokens"] = said.pop("max_tokens")
    assert {name: sent.get(name) for name in said} == said


def test_a_keyword_that_the_vendor_has_not_is_left_out_and_held_to_all_the_same() -> None:
    schema = {**PERSON, "properties": {**PROPERTIES, "name": {"type": "string", "minLength": 4}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": schema}}
    longer = '{"name":"Ada L","age":36}'
    with FakeVendor([GOOD, longer]) as vendor, proxy(vendor) as address:
        reply = post(address, CHAT, {**BODY, "response_format": wanted})
        assert len(vendor.requests) == 2
    assert reply.json()["choices"][0]["message"]["content"] == longer


@pytest.mark.parametrize("text", ['quote " in it', "line\nend", "\\", "Ж 🎈", ""])
def test_messages_arrive_as_they_were_said(text: str) -> None:
    messages = [{"content": text, "role": "user"}, {"role": "system", "content": text}]
    with FakeVendor([GOOD]) as vendor, proxy(vendor) as address:
        assert post(address, CHAT, {**BODY, "messages": messages}).status == 200
        assert vendor.requests[0].json()["messages"] == messages


@pytest.mark.covers("S2-30")
def test_what_a_refusal_teaches_is_learned_and_kept_to() -> None:
    no = rejected("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.")
    with FakeVendor([GOOD, GOOD, no, GOOD, GOOD]) as vendor, before(vendor) as address:
        replies = [post(address, CHAT, BODY) for _ in range(4)]
        sent = [each.json() for each in vendor.requests]
    assert [reply.status for reply in replies] == [200] * 4
    assert json.loads(replies[2].json()["choices"][0]["message"]["content"]) == {"name": "Ada", "age": 36}
    assert len(sent) == 5  # what was refused is not asked again in the same way
    assert sent[2] == sent[1]
    assert all(each.get("response_format", {}).get("type") != "json_schema" for each in sent[3:])


def test_a_request_that_is_wrong_is_told_so_however_often_it_comes() -> None:
    with FakeVendor([GOOD]) as vendor, before(vendor) as address:
        replies = [post(address, CHAT, {**BODY, "temperature": "hot"}) for _ in range(3)]
    assert {reply.status for reply in replies} == {400}
    assert all("temperature" in str(reply.json()) for reply in replies)


def test_repeated_calls_use_the_cache_and_are_logged_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    with FakeVendor([GOOD] * 3) as vendor, proxy(vendor, settings=read_settings("cache: {enabled: true}")) as address:
        assert [post(address, CHAT, BODY).status for _ in range(3)] == [200] * 3
        assert len(vendor.requests) == 1
    with (
        caplog.at_level(logging.INFO, "slipform.calls"),
        FakeVendor([GOOD] * 3) as vendor,
        before(vendor) as address,
    ):
        assert [post(address, CHAT, BODY).status for _ in range(3)] == [200] * 3
    assert len([each for each in caplog.records if each.name == "slipform.calls"]) == 3

"""Calls of a known frame take no decisions; they answer, log and count exactly as those that take all of them."""

from __future__ import annotations

import logging
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.addons.server.calls import routes
from slipform.addons.server.calls.routes import CallRouter
from slipform.addons.server.deployment import Deployment, client_of, deploy
from slipform.config import ConfigReading, Settings
from slipform.ir import ModelResponse, ToolCall, Usage
from slipform.providers.endpoint import Endpoint
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.testing import FakeVendor, Raw
from slipform.testing.vendor import Received
from tests.proxy.asgi import post
from tests.proxy.proxying import ADA, ASK, FORMAT, Reply, chat, proxied

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "required": ["at"]}}}
CALL = ModelResponse(tool_calls=(ToolCall("call_1", "look", '{"at": 3}'),), finish="tool_calls", usage=Usage(7, 5))
BAD_CALL = ModelResponse(tool_calls=(ToolCall("call_1", "look", "{}"),), finish="tool_calls", usage=Usage(7, 5))
CUT = ModelResponse(text='{"name":"Ad', finish="length", usage=Usage(7, 5))
REFUSED = ModelResponse(refusal="I will not.", usage=Usage(7, 5))
BUSY = Raw((b'{"error":{"message":"busy"}}',), status=503)
LIMITED = Raw((b'{"error":{"message":"slow down"}}',), status=429)
WRONG = Raw((b'{"error":{"message":"no such field"}}',), status=400)
NOT_JSON = Raw((b"<html>",), headers={"content-type": "text/html"})

CASES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "valid": ([ADA], {}),
    "in a fence": ([f"```json\n{ADA}\n```"], {}),
    "patched": (['{"name":"Ada","age":"36"}'], {}),
    "with text around": ([f"Here it is: {ADA}"], {}),
    "invalid, then valid": (["no", ADA], {}),
    "never valid": (["no", "no"], {}),
    "empty": (["", ADA], {}),
    "refused": ([REFUSED], {}),
    "cut off": ([CUT, CUT], {}),
    "the vendor is busy once": ([BUSY, ADA], {}),
    "the vendor stays busy": ([BUSY, BUSY], {}),
    "the vendor limits": ([LIMITED, LIMITED], {}),
    "the vendor refuses": ([WRONG], {}),
    "the vendor answers with a page": ([NOT_JSON], {}),
    "the connection breaks": ([Raw((b'{"choices":', b"[]}"), cut_after=1, ending="reset"), ADA], {}),
    "a call of a tool": ([CALL], {"tools": [TOOL], "response_format": None}),
    "a wrong call, then a right one": ([BAD_CALL, CALL], {"tools": [TOOL], "response_format": None}),
    "tools and a schema": ([ADA], {"tools": [TOOL]}),
    "several choices": ([ADA, ADA], {"n": 2}),
    "a stream": ([ADA], {"stream": True}),
    "a list of models": ([ADA], {"model": ["up/m", "up/o"]}),
    "a system turn": ([ADA], {"messages": [{"role": "system", "content": "é"}, {"role": "user", "content": "?"}]}),
    "passed through": (["hello"], {"response_format": None}),
    "passed through, refused": ([WRONG], {"response_format": None}),
    "passed through, broken": ([Raw((b'{"a":', b"1}"), cut_after=1, ending="reset")], {"response_format": None}),
    "passed through as a stream": (["hello"], {"response_format": None, "stream": True}),
}  # fmt: skip
"""What the vendor answers, and the fields of the call."""

FIRST_CALLS = 2
"""Calls after which the frame is known."""
_VARYING = re.compile(rb'"(id|created|x-request-id)": ?("[^"]*"|\d+)')
_TIMES = ("latency_ms", "first_byte_ms", "overhead_ms", "id")
_HEADERS = ("date", "x-request-id", "x-slipform-request-id", "x-slipform-overhead-ms", "content-length")


class Lines(logging.Handler):
    """The fields of the lines of calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = record.__dict__["slipform"]
        self.fields.append({name: value for name, value in fields.items() if name not in _TIMES})


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger = logging.getLogger("slipform.requests")
    handler = Lines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def comparable(reply: Reply) -> tuple[Any, ...]:
    """A reply without ids, dates and durations."""
    headers = {name: value for name, value in reply.headers.items() if name not in _HEADERS}
    return reply.status, headers, _VARYING.sub(b"", reply.body)


def counts(address: str) -> list[str]:
    """The counters of the metrics."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    return sorted(line for line in page.splitlines() if line.startswith("slipform_") and "_total" in line)


class Script:
    """What the vendor answers: first what makes the frame known, then the case's own steps, the last of them again."""

    def __init__(self) -> None:
        self.steps: list[Any] = [ADA]

    def __call__(self, _received: Received) -> Any:
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


UNSUPPORTED = Raw((b'{"error":{"message":"This model does not support response format json_schema"}}',), status=400)


def test_a_downgrade_that_a_bound_call_learns_holds_for_the_next_one() -> None:
    script = Script()
    with FakeVendor(script) as vendor:
        provider = HttpProvider("openai", name="up", base_url=vendor.base_url, api_key="sk-1234567890")
        with proxied({"up": provider}, {"default_model": "up/m"}) as address:
            for _ in range(FIRST_CALLS):
                assert chat(address, model="up/m").status == 200
            vendor.requests.clear()
            script.steps = [UNSUPPORTED, ADA]
            replies = [chat(address, model="up/m") for _ in range(3)]
            strategies = [reply.headers["x-slipform-strategy"] for reply in replies]
            formats = ["response_format" in each.json() for each in vendor.requests]
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert formats == [True, False, False, False]
    assert strategies[1:] == ["tool", "tool"]


def test_bound_calls_use_a_key_that_was_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-before-1234")
    with FakeVendor(Script()) as vendor:
        provider = HttpProvider("openai", name="up", base_url=vendor.base_url)
        with proxied({"up": provider}, {"default_model": "up/m"}) as address:
            assert [chat(address, model="up/m").status for _ in range(FIRST_CALLS)] == [200] * FIRST_CALLS
            monkeypatch.setenv("OPENAI_API_KEY", "sk-after-1234")
            for fields in ({}, {"response_format": None}):
                assert chat(address, model="up/m", **fields).status == 200
        keys = [each.headers["authorization"] for each in vendor.requests]
    assert keys == ["Bearer sk-before-1234"] * FIRST_CALLS + ["Bearer sk-after-1234"] * 2


async def test_bound_calls_go_where_the_reloaded_configuration_says() -> None:
    with FakeVendor(Script()) as before, FakeVendor(Script()) as after:
        app = App(client_of(settings_of(before)), settings_of(before), load=lambda now: reloaded(now, after))
        for _ in range(FIRST_CALLS):
            assert (await post(app, "/v1/chat/completions", CHAT)).status == 200
        assert await app.reload()
        assert (await post(app, "/v1/chat/completions", CHAT)).status == 200
        assert (len(before.requests), len(after.requests)) == (FIRST_CALLS, 1)


CHAT = {"model": "up/m", "messages": ASK, "response_format": FORMAT}


def settings_of(vendor: FakeVendor) -> Settings:
    provider = {"kind": "openai", "base_url": vendor.base_url, "api_key_env": "PATH"}
    return Settings.model_validate({"default_model": "up/m", "providers": {"up": provider}})


def reloaded(current: Deployment, vendor: FakeVendor) -> Deployment:
    settings = settings_of(vendor)
    return deploy(client_of(settings), ConfigReading(settings), current.generation + 1)


def run(name: str, traces: str, lines: Lines) -> tuple[Any, ...]:
    """The reply to a call of a known frame, its log lines, what the vendor was sent for it, and all counters."""
    steps, changes = CASES[name]
    fields = {"model": "up/m", **changes}
    script = Script()
    lines.fields.clear()
    with FakeVendor(script) as vendor:
        provider = HttpProvider(
            "openai", name="up", base_url=vendor.base_url, api_key="sk-1234567890", retries=RetryPolicy(1, base=0.001)
        )
        settings = {"default_model": "up/m", "server": {"traces": traces}}
        with proxied({"up": provider}, settings) as address:
            for _ in range(FIRST_CALLS):
                assert chat(address, **fields).status == 200
            vendor.requests.clear()
            script.steps = list(steps)
            reply = chat(address, **fields)
            sent = [each.json() for each in vendor.requests]
            page = counts(address)
        # Lines are written in batches, the last of them when the server has stopped.
        return comparable(reply), lines.fields[FIRST_CALLS:], sent, page


@pytest.mark.parametrize("traces", ["off", "on"])
@pytest.mark.parametrize("name", CASES)
def test_a_bound_call_does_what_the_general_path_does(
    name: str, traces: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = run(name, traces, lines)
    monkeypatch.setattr(CallRouter, "answer", CallRouter._answer_general)
    monkeypatch.setattr(CallRouter, "bind", lambda *_: None)
    monkeypatch.setattr(Endpoint, "find_prepared", lambda *_, **__: None)
    assert bound == run(name, traces, lines)


@pytest.mark.parametrize(("name", "path"), [("valid", "answer_bound"), ("passed through", "forward")])
def test_a_call_takes_the_bound_path_from_the_first_on(
    name: str, path: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    usual = getattr(routes, path)
    general = CallRouter._answer_general

    def bound_path(*arguments: Any) -> Any:
        calls.append("bound")
        return usual(*arguments)

    def general_path(*arguments: Any) -> Any:
        calls.append("general")
        return general(*arguments)

    monkeypatch.setattr(routes, path, bound_path)
    monkeypatch.setattr(CallRouter, "_answer_general", general_path)
    run(name, "off", lines)
    assert calls == ["bound"] * (FIRST_CALLS + 1)

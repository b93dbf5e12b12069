"""The straight way: whatever the vendor does, the caller gets what the general way would have given."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from slipform.config import Settings, read_settings
from slipform.enforce import Budget
from slipform.engine import tracing
from slipform.engine.setup import Options
from slipform.ir import ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.proxy import App
from slipform.proxy.calls import routes as gate
from slipform.proxy.calls import straight as straight_way
from slipform.testing import (
    Answer,
    FakeVendor,
    Raw,
    Step,
    garbage_body,
    hang_up,
    rate_limited,
    refusal,
    rejected,
    reset,
    server_error,
)
from tests.conftest import PERSON, serving
from tests.proxy.wire import Reply, before, post, provider_of

CHAT = "/v1/chat/completions"
GOOD = '{"name":"Ada","age":36}'
FRESH = Answer(GOOD, headers={"connection": "close"})
"""After which the next call has a new connection: one that is kept and breaks is a reason to ask once more."""
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
BODY: dict[str, Any] = {
    "model": "fast",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ada is 36"}],
    "response_format": FORMAT,
}
PROPERTIES: Any = PERSON["properties"]
SPENT = Usage(input=7, output=5, total=12)

KINDS: dict[str, tuple[Step, ...]] = {
    "good": (GOOD,),
    "spaced": ('{"name": "Ada",\n "age": 36}',),
    "fenced": (f"```json\n{GOOD}\n```",),
    "patched": ('{"name":"Ada","age":"36"}',),
    "a key twice": ('{"name":"Bob","name":"Ada","age":36}',),
    "asked again": ('{"name":"Ada"}', GOOD),
    "never good": ("no", "no"),
    "cut off": (ModelResponse(text='{"name":"A', finish="length", usage=SPENT), GOOD),
    "refused": (refusal(),),
    "nothing": ("", GOOD),
    "thinks": (ModelResponse(text=GOOD, reasoning="hm", usage=SPENT),),
    "counts nothing": (ModelResponse(text=GOOD),),
    "not its shape": (Raw((b'{"choices": 3}',), headers={"content-type": "application/json"}), GOOD),
    "web page": (garbage_body(),),
    "down": (server_error(503),),
    "down, then good": (server_error(503), GOOD),
    "waits": (rate_limited(retry_after_ms=1.0), GOOD),
    "hangs up": (hang_up(),),
    "resets": (reset(),),
    "cuts its answer": (
        Raw((b'{"id":', b'"1"}'), headers={"content-type": "application/json"}, cut_after=1, ending="cut"),
    ),
}  # fmt: skip


@contextlib.contextmanager
def proxy(vendor: FakeVendor, *, settings: Settings | None = None, repeats: int = 0) -> Iterator[str]:
    provider = provider_of(vendor, retries=RetryPolicy(attempts=repeats, base=0.001))
    router = Router({"up": provider}, aliases={"fast": "up/gpt-6-luna"}, default="fast")
    client = AsyncClient(router=router, options=Options(budget=Budget(attempts=2)))
    with serving(App(client, settings or Settings())) as address:
        yield address


def told(reply: Reply) -> Any:
    """What a caller can tell apart, but for names and times of one call."""
    said = {name: value for name, value in reply.headers.items() if name.startswith(("x-slipform", "retry"))}
    for name in ("x-slipform-request-id", "x-slipform-overhead-ms"):
        said.pop(name, None)
    body = reply.json()
    if reply.status == 200:
        choice, usage = body["choices"][0], body.get("usage")
        kept = {name: choice["message"].get(name) for name in ("role", "content", "refusal")}
        body = [body["id"], body["model"], len(body["choices"]), kept, choice["finish_reason"], usage]
    return reply.status, said, body


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests load what loads OpenTelemetry, and calls that are traced do not go straight."""
    monkeypatch.setattr(tracing, "loaded_trace", lambda: None)


@pytest.fixture
def straight(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What went straight."""
    seen: list[Any] = []
    really = straight_way.go_straight

    async def go_straight(*given: Any) -> Any:
        seen.append(given)
        return await really(*given)

    monkeypatch.setattr(gate, "go_straight", go_straight)
    return seen


def both_ways(steps: Sequence[Step], body: Any, repeats: int = 0) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """What the caller and the vendor get to see, in general and straight."""
    with FakeVendor([*steps, GOOD]) as vendor, proxy(vendor, repeats=repeats) as address:
        general = told(post(address, CHAT, body))
        general_sent = [each.json() for each in vendor.requests]
    with FakeVendor([FRESH, FRESH, *steps, GOOD]) as vendor, proxy(vendor, repeats=repeats) as address:
        assert [post(address, CHAT, body).status for _ in range(2)] == [200, 200]
        quick = told(post(address, CHAT, body))
        quick_sent = [each.json() for each in vendor.requests[2:]]
    return (general, general_sent), (quick, quick_sent)


@pytest.mark.covers("S2-24", "S2-25", "C31")
@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_what_the_general_way_gives(kind: str, straight: list[Any]) -> None:
    general, quick = both_ways(KINDS[kind], BODY, repeats=1)
    assert quick == general
    assert len(straight) == 2  # the second that was seen, and the one that counts


OTHERS: dict[str, tuple[dict[str, Any], bool]] = {
    "sampling": ({"temperature": 0, "top_p": 0.5, "seed": 7, "stop": ["x"], "max_tokens": 9}, True),
    "effort": ({"reasoning_effort": "low", "max_completion_tokens": 9}, True),
    "the vendor's own": ({"user": "u-1", "service_tier": "auto", "new_field": {"x": [1.5]}}, True),
    "no stream": ({"stream": False, "n": 1}, True),
    "another role": ({"messages": [{"role": "developer", "content": "Be brief."}]}, False),
    "a turn with a name": ({"messages": [{"role": "user", "name": "A", "content": "Ada is 36"}]}, False),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Ada is 36"}]}]}, False),
    "any object": ({"response_format": {"type": "json_object"}}, False),
    "tools": ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}, False),
    "a switch": ({"slipform": {"max_attempts": 1}}, False),
    "a keyword that the vendor has not": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": {
            **PERSON, "properties": {**PROPERTIES, "name": {"type": "string", "minLength": 2}}}}}},
        True,
    ),
    "a shape that is sent in another": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": {
            "type": "object", "properties": {"name": {"type": "string"}},
            "additionalProperties": {"type": "integer"}}}}},
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OTHERS)
def test_the_vendor_is_sent_what_the_general_way_sends(kind: str, straight: list[Any]) -> None:
    more, goes = OTHERS[kind]
    general, quick = both_ways([GOOD], {**BODY, **more})
    assert quick == general
    assert bool(straight) is goes


@pytest.mark.parametrize(
    "text", ['quote " in it', "line\nend", "\\", "Ж 🎈", "", "What is said here is of no account."]
)
def test_messages_arrive_as_they_were_said(text: str, straight: list[Any]) -> None:
    messages = [{"content": text, "role": "user"}, {"role": "system", "content": text}]
    general, quick = both_ways([GOOD], {**BODY, "messages": messages})
    assert quick == general
    assert quick[1][0]["messages"] == messages
    assert straight


def test_a_good_answer_comes_back_byte_for_byte() -> None:
    answer = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 5, "model": "gpt-6-luna-2026", "service_tier": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": GOOD, "refusal": None, "annotations": []},
                     "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"x": 1}},
    }  # fmt: skip
    odd = json.dumps(answer, indent=1).encode()
    step = Raw((odd,), headers={"content-type": "application/json"})
    with FakeVendor([GOOD, step]) as vendor, before(vendor) as address:
        post(address, CHAT, BODY)
        reply = post(address, CHAT, BODY)
    assert reply.body == odd
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.covers("S2-30")
def test_what_a_refusal_teaches_is_learned_and_kept_to(straight: list[Any]) -> None:
    no = rejected("Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.")
    with FakeVendor([GOOD, GOOD, no, GOOD, GOOD]) as vendor, before(vendor) as address:
        replies = [post(address, CHAT, BODY) for _ in range(4)]
        sent = [each.json() for each in vendor.requests]
    assert [reply.status for reply in replies] == [200] * 4
    assert json.loads(replies[2].json()["choices"][0]["message"]["content"]) == {"name": "Ada", "age": 36}
    assert len(sent) == 5  # what was refused is not asked again in the same way
    assert sent[2] == sent[1]
    assert all(each.get("response_format", {}).get("type") != "json_schema" for each in sent[3:])
    assert len(straight) == 2


def test_a_shape_of_its_own_for_every_call_is_not_kept(straight: list[Any]) -> None:
    named = [{**FORMAT, "json_schema": {**FORMAT["json_schema"], "name": f"p{at}"}} for at in range(4)]  # type: ignore[dict-item]
    with FakeVendor([GOOD] * 4) as vendor, before(vendor) as address:
        for each in named:
            assert post(address, CHAT, {**BODY, "response_format": each}).status == 200
    assert not straight


def test_a_request_that_is_wrong_is_told_so_however_often_it_comes(straight: list[Any]) -> None:
    wrong = {**BODY, "temperature": "hot"}
    with FakeVendor([GOOD]) as vendor, before(vendor) as address:
        replies = [post(address, CHAT, wrong) for _ in range(3)]
    assert {reply.status for reply in replies} == {400}
    assert all("temperature" in reply.json()["error"]["message"] + str(reply.json()) for reply in replies)
    assert not straight


def test_nothing_goes_straight_past_a_cache_a_trace_or_a_log_of_calls(
    straight: list[Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    trace = pytest.importorskip("opentelemetry.trace")
    monkeypatch.setattr(tracing, "loaded_trace", lambda: trace)
    with FakeVendor([GOOD] * 3) as vendor, before(vendor) as address:
        assert [post(address, CHAT, BODY).status for _ in range(3)] == [200] * 3
    assert not straight

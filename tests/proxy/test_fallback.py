"""Several models for one request."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from slipform import Budget, Options
from slipform.addons.server.calls.enforced import answer
from slipform.addons.server.calls.inbound import Inbound
from slipform.addons.server.http_server.asgi import RecordingSend
from slipform.addons.server.observability.call_record import CallRecord
from slipform.codecs import ServedRequest, find_api
from slipform.engine.fallback import should_try_next
from slipform.errors import (
    AuthenticationError,
    LocalModelError,
    RateLimitError,
    RequestError,
    SlipformError,
    UpstreamError,
    UpstreamRequestError,
    UpstreamTimeout,
)
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor, Interrupted, Raw, rate_limited, rejected, server_error
from tests.proxy.proxying import ADA, ASK, FORMAT, call, chat, proxied

LIST = {"model_aliases": {"fast": ["bad/m", "good/m"], "slow": ["fast", "last/m"]}}


def models(*script: Any) -> dict[str, FakeModel]:
    return {"bad": FakeModel(list(script)), "good": FakeModel([ADA], name="good"), "last": FakeModel(["no"])}


@pytest.mark.covers("S2-01", "S2-29")
@pytest.mark.parametrize("model", ["fast", ["bad/m", "good/m"], "slow", ["bad/m", "fast"]])
@pytest.mark.parametrize("schema", [FORMAT, None])
@pytest.mark.parametrize("stream", [False, True])
def test_the_next_model_answers_for_one_that_fails(model: Any, schema: Any, stream: bool) -> None:
    made = models(UpstreamError("down"))
    with proxied(made, LIST) as address:
        reply = chat(address, model=model, response_format=schema, stream=stream)
    assert reply.status == 200
    assert reply.headers["x-slipform-fallbacks"] == "1"
    assert reply.headers["x-slipform-provider"] == "good"
    assert len(made["bad"].requests) == len(made["good"].requests) == 1
    assert made["last"].requests == []
    assert b"Ada" in reply.body


@pytest.mark.parametrize(
    ("error", "moved"),
    [
        (UpstreamError("down"), True),
        (UpstreamTimeout("slow"), True),
        (RateLimitError("busy"), True),
        (AuthenticationError("key"), True),
        (LocalModelError("gone"), True),
        (UpstreamRequestError("no such model", details={"category": "not_found"}), True),
        (UpstreamRequestError("too long", details={"category": "context_length"}), True),
        (UpstreamRequestError("not allowed", details={"category": "content_filter"}), True),
        (UpstreamRequestError("too large", status=413), True),
        (UpstreamRequestError("malformed"), False),
        (RequestError("ours"), False),
    ],
)
def test_what_another_model_cannot_mend_is_told_at_once(error: SlipformError, moved: bool) -> None:
    made = models(error)
    assert should_try_next(error) is moved
    with proxied(made, LIST) as address:
        reply = chat(address, model="fast")
    assert (reply.status == 200) is moved
    assert len(made["good"].requests) == moved


@pytest.mark.covers("S2-68")
def test_an_answer_that_cannot_be_made_valid_moves_on_and_a_refusal_does_not() -> None:
    made = models("not JSON at all")
    with proxied(made, LIST) as address:
        reply = chat(address, model="fast")
        assert reply.json["choices"][0]["message"]["content"] == ADA
        assert reply.headers["x-slipform-attempts"] == "1"
    assert len(made["bad"].requests) == 2  # its own attempts first
    made = models(ModelResponse(refusal="I will not", finish="refusal"))
    with proxied(made, LIST) as address:
        assert chat(address, model="fast").json["choices"][0]["message"]["refusal"] == "I will not"
    assert made["good"].requests == []


@pytest.mark.covers("C31")
@pytest.mark.parametrize("stream", [False, True])
def test_when_all_fail_the_last_error_names_them_all(stream: bool) -> None:
    made = {"bad": FakeModel([UpstreamError("down")]), "good": FakeModel([UpstreamTimeout("slow")])}
    with proxied(made, LIST | {"model_aliases": {"fast": ["bad/m", "good/m"]}}) as address:
        reply = chat(address, model="fast", stream=stream)
    assert reply.status == 504
    told = reply.json["error"]["details"]["models"]
    assert [(each["model"], each["code"]) for each in told] == [
        ("bad/m", "upstream_error"),
        ("good/m", "upstream_timeout"),
    ]
    assert "slow" in reply.json["error"]["message"]


async def test_logs_and_metrics_count_what_the_models_that_failed_have_spent() -> None:
    bad = FakeModel([ModelResponse(text="not JSON", usage=Usage(input=10, output=1))])
    good = FakeModel([ModelResponse(text=ADA, usage=Usage(input=20, output=2))])
    client = AsyncClient(router=Router({"bad": bad, "good": good}), options=Options(budget=Budget(attempts=1)))
    served = ServedRequest(ModelRequest("fast", (Message.user("Ada is 36"),), json_mode=True))
    record = CallRecord("r1", enforced=True)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    call_in = Inbound(find_api("openai-chat"), served, record, ("m",))
    await answer(call_in, ["bad/m", "good/m"], client.router, client.options, RecordingSend(send, record))
    assert record.report is not None
    assert [attempt.model for attempt in record.report.attempts] == ["bad/m", "good/m"]
    assert record.report.usage.input == 30
    assert b'"prompt_tokens":20' in sent[-1]["body"]


def test_a_stream_moves_on_only_while_nothing_has_left() -> None:
    made = models(Interrupted("Hello there", UpstreamError("cut"), after=1))
    with (
        proxied(made, LIST) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client,
        pytest.raises(openai.APIError, match="cut"),
    ):
        list(client.chat.completions.create(model="fast", messages=ASK, stream=True))
    assert made["good"].requests == []
    made = models(Interrupted("Hello there", UpstreamError("cut"), after=0))
    with proxied(made, LIST) as address:
        assert b"Ada" in chat(address, model="fast", response_format=None, stream=True).body


def test_the_official_sdks_send_lists_and_aliases() -> None:
    made = models(UpstreamError("down"))
    with (
        proxied(made, LIST) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="-", max_retries=0) as client,
        anthropic.Anthropic(base_url=address, api_key="-", max_retries=0) as claude,
    ):
        names: Any = ["bad/m", "good/m"]
        done = client.chat.completions.create(model="x", messages=ASK, extra_body={"model": names})
        assert done.choices[0].message.content == ADA
        assert client.responses.create(model=names, input="Ada is 36").output_text == ADA
        said = claude.messages.create(model="x", max_tokens=9, messages=ASK, extra_body={"model": names})
        assert said.content[0].type == "text"
        gemini = call(address, "/v1beta/models/fast:generateContent", {"contents": [{"parts": [{"text": "hi"}]}]})
        assert gemini.headers["x-slipform-fallbacks"] == "1"


@pytest.mark.parametrize(
    ("model", "status"),
    [
        ([], 400),
        ([1], 400),
        (["bad/m", None], 400),
        ({"a": 1}, 400),
        ([f"bad/{number}" for number in range(9)], 400),
        (["bad/m", "nowhere/m"], 404),
        (["bad/m", "good"], 404),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(model: Any, status: int) -> None:
    made = models(ADA)
    with proxied(made, LIST) as address:
        assert chat(address, model=model).status == status
    assert made["bad"].requests == []


@pytest.mark.parametrize(
    "failure",
    [
        server_error(500),
        rate_limited(),
        rejected("Invalid key", 401),
        rejected("The model `m` does not exist", 404, "model_not_found"),
        Raw(ending="reset", cut_after=0),
    ],
    ids=["500", "429", "401", "404", "reset"],
)
def test_real_failures_of_vendors_move_on_after_their_repeats(failure: Raw) -> None:
    quick = RetryPolicy(attempts=1, base=0.001, cap=0.002)
    with FakeVendor([failure]) as bad, FakeVendor([ADA]) as good:
        rows = load_catalog(
            {
                "bad": {"extends": "openai", "base_url": bad.base_url},
                "good": {"extends": "openai", "base_url": good.base_url},
            }
        )
        made = {
            name: HttpProvider(rows.vendor(name), api_key=f"key-of-{name}", retries=quick) for name in ("bad", "good")
        }
        with proxied(made, {"model_aliases": {"fast": ["bad/m", "good/m"]}}) as address:
            for schema in (FORMAT, None):
                reply = chat(address, model="fast", response_format=schema)
                assert reply.status == 200
                assert reply.json["choices"][0]["message"]["content"] == ADA
        assert len(good.requests) == 2
        assert all("key-of-bad" not in str(request.headers) for request in good.requests)

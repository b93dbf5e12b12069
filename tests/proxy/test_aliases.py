"""Aliases with defaults and weights, and providers with a limit of requests in a minute."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from slipform.config import read_settings
from slipform.engine.setup import alias_targets
from slipform.errors import ConfigError
from slipform.ir import ModelResponse
from slipform.providers.concurrency import throttled
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import Timeouts
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.providers.vendor_limits import MinuteLimits, VendorBudget
from slipform.testing import FakeModel, FakeVendor, server_error
from tests.proxy.proxying import ADA, ASK, call, chat, proxied
from tests.proxy.wire import KEY, provider_of

DEFAULTS: Any = {
    "temperature": 0.25,
    "max_tokens": 77,
    "stop": ["END"],
    "reasoning_effort": "low",
    "extra_body": {"chat_template_kwargs": {"thinking": False}},
}
ALIASES: Any = {"warm": {"model": "openai/m", "defaults": DEFAULTS}, "plain": "openai/m"}


def test_an_aliass_defaults_fill_what_a_request_leaves_open() -> None:
    settings = {"model_aliases": ALIASES}
    with FakeVendor(lambda _: "hello") as vendor, proxied({"openai": provider_of(vendor)}, settings) as address:
        assert call(address, "/v1/chat/completions", {"model": "warm", "messages": ASK}).status == 200
        own = {"temperature": 0.75, "max_tokens": 5, "stop": "NOW", "reasoning_effort": "high"}
        assert call(address, "/v1/chat/completions", {"model": "warm", "messages": ASK, **own}).status == 200
        body = {"model": "warm", "max_tokens": 9, "messages": ASK}
        assert call(address, "/v1/messages", body).status == 200
        assert call(address, "/v1/chat/completions", {"model": "plain", "messages": ASK}).status == 200
    first, second, third, plain = (received.json() for received in vendor.requests)
    assert (first["temperature"], first["max_completion_tokens"], first["stop"]) == (0.25, 77, ["END"])
    assert (first["reasoning_effort"], first["chat_template_kwargs"]) == ("low", {"thinking": False})
    assert (second["temperature"], second["max_completion_tokens"], second["stop"]) == (0.75, 5, ["NOW"])
    assert second["reasoning_effort"] == "high"
    assert (third["temperature"], third["max_completion_tokens"]) == (0.25, 9)
    assert third["chat_template_kwargs"] == {"thinking": False}
    assert "temperature" not in plain


def test_answers_with_other_defaults_are_not_taken_from_the_cache() -> None:
    model = FakeModel([ModelResponse(text=ADA)])
    aliases = {"cold": {"model": "fake/m", "defaults": {"temperature": 0}}, "same": "fake/m"}
    with proxied({"fake": model}, {"model_aliases": aliases, "cache": {"enabled": True}}) as address:
        hits = [chat(address, model=name).headers.get("x-slipform-cache") for name in ("cold", "same", "cold")]
    assert hits == [None, None, "hit"]


def test_models_with_weights_take_turns_and_fall_back_on_each_other() -> None:
    aliases: Any = {
        "shared": [
            {"model": "a/m", "weight": 3, "defaults": {"max_tokens": 7}},
            {"model": "b/m", "weight": 1},
            "last/m",
        ]
    }
    models = {name: FakeModel([ADA], name=name) for name in ("a", "b", "last")}
    router = Router(models, aliases=alias_targets(read_settings(f"model_aliases: {aliases}")))
    orders = Counter(tuple(target.model for target in router.targets("shared")) for _ in range(2000))
    assert set(orders) == {("a/m", "b/m", "last/m"), ("b/m", "a/m", "last/m")}
    assert 1350 < orders["a/m", "b/m", "last/m"] < 1650
    assert router.candidates("shared") == ("a/m", "b/m", "last/m")
    with proxied(models, {"model_aliases": aliases}) as address:
        for _ in range(40):
            assert chat(address, model="shared").status == 200
    assert {request.max_tokens for request in models["a"].requests} == {7}
    assert {request.max_tokens for request in models["b"].requests} == {None}
    assert not models["last"].requests


def test_an_alias_within_a_list_keeps_its_defaults_under_those_of_the_list() -> None:
    text = """
model_aliases:
  inner: {model: fake/m, defaults: {temperature: 0.1, max_tokens: 5}}
  outer: {model: [{model: inner, weight: 1}, {model: fake/n, weight: 0.000001}], defaults: {temperature: 0.9}}
"""
    model = FakeModel([ADA])
    with proxied({"fake": model}, {"model_aliases": read_settings(text).model_dump()["model_aliases"]}) as address:
        chat(address, model="outer")
    assert (model.requests[0].sampling.temperature, model.requests[0].max_tokens) == (0.9, 5)


@pytest.mark.parametrize(
    ("defaults", "said"),
    [
        ("{messages: []}", "`messages` is the request's own"),
        ("{temperature: hot}", "temperature"),
        ("{extra_body: 3}", "extra_body"),
    ],
)
def test_defaults_that_make_no_sense_are_an_error_with_their_place(defaults: str, said: str) -> None:
    settings = read_settings(f"model_aliases: {{a: {{model: b/c, defaults: {defaults}}}}}")
    with pytest.raises(ConfigError, match=said) as caught:
        alias_targets(settings)
    assert (caught.value.where or "").startswith("model_aliases.a.defaults")


def test_a_provider_is_sent_no_more_than_its_requests_per_minute() -> None:
    with FakeVendor(lambda _: "hello") as vendor:
        transport = throttled(HttpTransport(), None, VendorBudget(MinuteLimits(requests=2)))
        provider = HttpProvider(
            "openai",
            base_url=vendor.base_url,
            api_key=KEY,
            retries=RetryPolicy(attempts=0),
            timeouts=Timeouts(total=5),
            transport=transport,
        )
        other = FakeModel(["from the other"], name="other")
        config = {"model_aliases": {"both": ["openai/m", "other/m"]}}
        with proxied({"openai": provider, "other": other}, config) as address:
            replies = [call(address, "/v1/chat/completions", {"model": "both", "messages": ASK}) for _ in range(3)]
    assert [reply.headers["x-slipform-provider"] for reply in replies] == ["openai", "openai", "other"]
    assert len(vendor.requests) == 2


def test_a_weighted_list_moves_on_from_a_server_that_is_down() -> None:
    with FakeVendor(lambda _: server_error(503)) as vendor:
        good = FakeModel([ADA], name="good")
        aliases: Any = {"both": [{"model": "openai/m", "weight": 1000}, {"model": "good/m", "weight": 0.001}]}
        with proxied({"openai": provider_of(vendor), "good": good}, {"model_aliases": aliases}) as address:
            assert chat(address, model="both").headers["x-slipform-provider"] == "good"

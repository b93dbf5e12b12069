"""What calls cost: by the settings, by the list that ships with slipform, with cached, tiered and batch tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slipform import Budget, Client, ConfigError, Options, Price
from slipform.addons.server.console.rows import entry_of, named, row_of
from slipform.addons.server.observability.call_record import CallRecord
from slipform.ir import Usage
from slipform.prices import ListedPrice, PriceTier, cost_of, find_price
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor, Raw
from tests.conftest import PERSON
from tests.proxy.proxying import ADA, chat, proxied

MILLION = 1_000_000
LISTED = (
    ("openai", "gpt-5-mini"),
    ("azure", "gpt-4o"),
    ("anthropic", "claude-sonnet-4-5"),
    ("gemini", "gemini-2.5-pro"),
    ("vertex", "gemini-2.5-pro"),
    ("vertex-anthropic", "claude-sonnet-4-5"),
    ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
    ("openrouter", "anthropic/claude-sonnet-4.5"),
    ("deepseek", "deepseek-chat"),
    ("zai", "glm-4.6"),
    ("moonshot", "kimi-k2-0905-preview"),
    ("mistral", "mistral-large-latest"),
    ("groq", "llama-3.3-70b-versatile"),
    ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo"),
    ("xai", "grok-4"),
    ("cerebras", "llama3.1-8b"),
    ("cohere", "command-a-03-2025"),
)


def test_the_list_has_a_price_for_a_model_of_every_vendor_that_it_names() -> None:
    missing = []
    for vendor, model in LISTED:
        price = ListedPrice(load_catalog().vendor(vendor).price_list, model).resolve()
        if price is None or price.input <= 0 or price.output <= 0:
            missing.append((vendor, model))
    assert missing == []


@pytest.mark.parametrize("name", ["openai/no-such-model", "ollama/qwen3", "fake/gpt-5-mini"])
def test_a_model_that_nobody_prices_has_no_cost(name: str) -> None:
    vendor = load_catalog().vendors.get(name.partition("/")[0])
    price = find_price({}, name, "" if vendor is None else vendor.price_list)
    assert cost_of(price, Usage(10, 10)) is None


def test_the_callers_own_price_comes_before_the_list() -> None:
    own = {"work/*": Price(1, 2)}
    assert find_price(own, "work/gpt-5-mini", "openai") == Price(1, 2)
    assert find_price(own, "home/gpt-5-mini", "openai") == ListedPrice("openai", "gpt-5-mini")


TIERED = Price(3, 15, cached=0.3, cache_write=3.75, tiers=(PriceTier(200_000, 6, 22.5, 0.6, 7.5),))


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        (Usage(input=100_000, output=10_000), 0.3 + 0.15),
        (Usage(input=100_000, output=0, cached=100_000), 0.03),
        (Usage(input=100_000, output=0, cached=50_000, cache_write=50_000), 0.015 + 0.1875),
        (Usage(input=200_000, output=0), 0.6),
        (Usage(input=300_000, output=10_000, cached=100_000), 1.2 + 0.06 + 0.225),
        (Usage(input=10, output=0, cached=99), 10 * 0.3 / MILLION),
    ],
)
def test_cached_written_and_long_prompts_have_their_own_price(usage: Usage, cost: float) -> None:
    assert cost_of(TIERED, usage) == pytest.approx(cost)


def test_flex_priority_and_batch_calls_have_their_own_price_in_the_list() -> None:
    model = ListedPrice("openai", "gpt-5-mini")
    usual, flex, batch, priority = [
        cost_of(model, Usage(MILLION, MILLION, service_tier=tier)) or 0 for tier in (None, "flex", "batch", "priority")
    ]
    assert flex == pytest.approx(usual / 2)
    assert batch == pytest.approx(usual / 2)
    assert priority > usual


def test_a_budget_of_money_holds_by_the_prices_that_ship() -> None:
    with FakeVendor([Answer('{"name": "Ada"}'), Answer('{"name": "Ada"}')]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        client = Client("openai/gpt-5-mini", router=Router({"openai": provider}))
        with pytest.raises(Exception, match="budget of money") as caught:
            client.ask(PERSON, "Who?", options=Options(budget=Budget(9, money=1e-9)))
    assert caught.value.report.cost > 0  # type: ignore[attr-defined]


def test_a_budget_of_money_for_a_model_without_a_price_is_refused_before_anything_is_sent() -> None:
    with FakeVendor([Answer(ADA)]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        client = Client("openai/unknown", router=Router({"openai": provider}))
        with pytest.raises(ConfigError, match="no price for openai/unknown"):
            client.ask(PERSON, "Who?", options=Options(budget=Budget(money=1.0)))
        assert vendor.requests == []


def _chat_answer(tier: str | None = None, text: str = ADA) -> Raw:
    body: dict[str, Any] = {
        "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-5-mini",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100,
            "prompt_tokens_details": {"cached_tokens": 400},
        },
    }  # fmt: skip
    if tier is not None:
        body["service_tier"] = tier
    return Raw((json.dumps(body).encode(),), headers={"content-type": "application/json"})


@pytest.mark.parametrize("tier", [None, "default", "flex", "priority"])
@pytest.mark.parametrize("enforced", [True, False])
def test_the_proxy_says_what_a_call_cost_enforced_or_passed_through(tier: str | None, enforced: bool) -> None:
    paid = tier if tier in ("flex", "priority") else None
    usage = Usage(1_000, 100, cached=400, service_tier=paid)
    cost = cost_of(ListedPrice("openai", "gpt-5-mini"), usage)
    with FakeVendor([_chat_answer(tier)]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        with proxied({"openai": provider}) as address:
            more = {} if enforced else {"response_format": None}
            reply = chat(address, model="openai/gpt-5-mini", **more)
    assert float(reply.headers["x-slipform-cost"]) == pytest.approx(cost, abs=1e-9)


def test_the_console_shows_the_cost_of_a_call_that_passed_through() -> None:
    record = CallRecord("r", cost=0.25)
    assert named(row_of(entry_of(record, "1")))["cost"] == 0.25


def test_a_call_that_failed_costs_what_its_attempts_cost() -> None:
    with FakeVendor([_chat_answer(text="no"), _chat_answer(text="no")]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        with proxied({"openai": provider}) as address:
            reply = chat(address, model="openai/gpt-5-mini")
    assert reply.status == 422
    single = cost_of(ListedPrice("openai", "gpt-5-mini"), Usage(1_000, 100, cached=400))
    assert float(reply.headers["x-slipform-cost"]) == pytest.approx(2 * (single or 0), abs=1e-9)


def test_a_settings_file_prices_cached_tokens(tmp_path: Path) -> None:
    prices = {"openai/*": {"input": 1_000, "output": 2_000, "cached": 100}}
    with FakeVendor([_chat_answer()]) as vendor:
        provider = HttpProvider("openai", base_url=vendor.base_url, api_key="k")
        with proxied({"openai": provider}, {"prices": prices}) as address:
            reply = chat(address, model="openai/gpt-5-mini")
    assert float(reply.headers["x-slipform-cost"]) == pytest.approx(0.6 + 0.04 + 0.2)

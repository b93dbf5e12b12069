"""What one request may cost in all: fallbacks, attempts and transport retries together."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from slipform import AsyncClient, Budget, Client, Options
from slipform.errors import SchemaViolationError, UpstreamError
from slipform.providers.catalog import load_catalog
from slipform.providers.http import HttpProvider
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from slipform.testing import FakeModel, FakeVendor, Raw
from tests.proxy.proxying import ADA, chat, proxied

DOWN = Raw((b'{"error": {"message": "down"}}',), 503, {"content-type": "application/json"})
WRONG = '{"name": 1}'


def provider(vendor: FakeVendor, name: str) -> HttpProvider:
    row = load_catalog({name: {"extends": "openai", "base_url": vendor.base_url}}).vendor(name)
    return HttpProvider(row, api_key="k-000000", retries=RetryPolicy(attempts=2, base=0.001))


def asked(limit: int, scripts: list[list[Any]], **more: Any) -> tuple[Any, list[int]]:
    """The reply to a request with as many models as there are scripts, and how often each vendor was called."""
    with ExitStack() as stack:
        vendors = [stack.enter_context(FakeVendor(script)) for script in scripts]
        made = {f"v{number}": provider(vendor, f"v{number}") for number, vendor in enumerate(vendors)}
        models = [f"{name}/m" for name in made]
        settings = {"enforcement": {"max_calls": limit}}
        with proxied(made, settings, attempts=3) as address:
            reply = chat(address, model=models[0] if len(models) == 1 else models, **more)
        return reply, [len(vendor.requests) for vendor in vendors]


@pytest.mark.parametrize("stream", [False, True])
def test_retries_and_fallbacks_together_stop_at_the_limit(stream: bool) -> None:
    reply, calls = asked(5, [[DOWN] * 9] * 4, stream=stream)
    assert calls == [3, 2, 0, 0]
    assert reply.status == 502
    message = reply.json["error"]["message"]
    assert "limit of 5 calls" in message
    assert "enforcement.max_calls" in message
    assert "3 to v0/m, 2 to v1/m" in message


@pytest.mark.parametrize("stream", [False, True])
def test_attempts_and_fallbacks_together_stop_at_the_limit(stream: bool) -> None:
    reply, calls = asked(4, [[WRONG] * 9] * 4, stream=stream)
    assert calls == [3, 1, 0, 0]
    assert reply.status == 422
    assert "limit of 4 calls" in reply.json["error"]["message"]


def test_calls_without_a_schema_are_counted_too() -> None:
    reply, calls = asked(4, [[DOWN] * 9] * 4, response_format=None)
    assert calls == [3, 1, 0, 0]
    assert "limit of 4 calls" in reply.json["error"]["message"]


def test_repeats_of_a_call_that_goes_through_are_counted_too() -> None:
    with FakeVendor([ADA]) as vendor:
        gone = provider(vendor, "v0")  # nobody listens there any more when it is called
    with proxied({"v0": gone}, {"enforcement": {"max_calls": 2}}) as address:
        reply = chat(address, model="v0/m", response_format=None)
    assert reply.status == 502
    assert "limit of 2 calls" in reply.json["error"]["message"]
    assert "2 to v0/m" in reply.json["error"]["message"]


def test_attempts_and_retries_of_one_model_stop_at_the_limit() -> None:
    reply, calls = asked(4, [[DOWN, DOWN, WRONG, DOWN, DOWN, ADA]])
    assert calls == [4]
    assert reply.status == 502
    assert "4 to v0/m" in reply.json["error"]["message"]


def test_what_stays_within_the_limit_is_answered() -> None:
    reply, calls = asked(6, [[DOWN] * 9, [WRONG, DOWN, ADA]])
    assert (reply.status, calls) == (200, [3, 3])


def test_a_list_of_eight_models_costs_no_more_than_24_calls_by_default() -> None:
    with FakeVendor([DOWN] * 99) as vendor:
        made = {f"v{number}": provider(vendor, f"v{number}") for number in range(8)}
        with proxied(made, attempts=3) as address:
            reply = chat(address, model=[f"{name}/m" for name in made])
            assert (reply.status, len(vendor.requests)) == (502, 24)
            assert "calls" not in reply.json["error"]["message"]  # all had their turn
    with FakeVendor([WRONG, DOWN, DOWN] * 99) as vendor:
        made = {f"v{number}": provider(vendor, f"v{number}") for number in range(8)}
        with proxied(made, attempts=3) as address:
            reply = chat(address, model=[f"{name}/m" for name in made])
            assert len(vendor.requests) == 24
            assert "limit of 24 calls" in reply.json["error"]["message"]


async def test_a_call_of_the_library_is_counted_in_the_same_way() -> None:
    options = Options(budget=Budget(attempts=9, calls=3))
    shape = {"type": "integer"}
    with FakeVendor([DOWN, DOWN, '"x"', DOWN]) as vendor:
        with Client(router=Router({"v": provider(vendor, "v")}), options=options) as client:
            with pytest.raises(SchemaViolationError, match="limit of 3 calls") as caught:
                client.ask(shape, "How many?", model="v/m")
            assert caught.value.details["calls"] == {"limit": 3, "v/m": 3}
        vendor.requests.clear()
    with FakeVendor([DOWN] * 9) as vendor:
        tight = Options(budget=Budget(attempts=9, calls=2))
        async with AsyncClient(router=Router({"v": provider(vendor, "v")}), options=tight) as client_async:
            with pytest.raises(UpstreamError, match="limit of 2 calls"):
                await client_async.ask(shape, "How many?", model="v/m")
        assert len(vendor.requests) == 2


def test_models_that_are_not_called_over_http_are_counted_too() -> None:
    model = FakeModel([WRONG] * 9)
    with proxied({"fake": model}, {"enforcement": {"max_calls": 2}}, attempts=5) as address:
        reply = chat(address)
    assert (reply.status, len(model.requests)) == (422, 2)
    assert "limit of 2 calls" in reply.json["error"]["message"]

"""What a vendor takes in a minute is one budget, of this process or of all that share a Redis."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipform.config import read_settings
from slipform.engine.setup import router_of
from slipform.errors import UpstreamTimeout
from slipform.ir import Message, ModelRequest
from slipform.providers.network.transport import HttpRequest, Timeouts
from slipform.providers.router import Router
from slipform.providers.vendor_limits import LocalBudget, MinuteLimits, SharedBudget, VendorBudget, token_estimate
from slipform.testing import FakeVendor, Raw
from tests.proxy.proxying import RedisServer, running_redis

ASKED = ModelRequest("m", (Message.user("hi"),))
SMALL = HttpRequest("http://x", {}, b"x" * 40, Timeouts(total=5.0))
"""Ten tokens."""
PATIENT = SMALL._replace(timeouts=Timeouts(total=1000.0))


@pytest.fixture(autouse=True)
def vendor_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KEY", "k-000000")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_requests_and_tokens_each_have_their_minute() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(requests=2, tokens=600), clock)
    assert [budget.reserve(100, None), budget.reserve(100, None)] == [0.0, 0.0]
    assert budget.reserve(100, 30.0) is None
    assert budget.reserve(100, None) == 60.0
    clock.time += 120
    assert budget.reserve(600, None) == 0.0
    assert budget.reserve(100, None) == pytest.approx(10.0)  # 600 in a minute are 10 in a second
    assert LocalBudget(MinuteLimits(tokens=10), clock).reserve(99_999, 1.0) == 0.0  # no call is too large for ever


def test_a_pause_holds_for_all_and_a_shorter_one_does_not_end_it() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(), clock)
    budget.pause(9.0)
    budget.pause(2.0)
    clock.time += 4
    assert budget.reserve(0, None) == 5.0


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b"x" * 40, 10),
        (b'{"max_completion_tokens": 50}', 57),
        (b'{"maxOutputTokens":7}', 12),
        (b'{"max_output_tokens":7}', 12),
        (b"", 0),
    ],
)
def test_the_tokens_of_a_request_are_judged_by_its_size_and_what_it_allows(body: bytes, tokens: int) -> None:
    assert token_estimate(HttpRequest("", {}, body)) == tokens


def shared(redis: RedisServer, name: str, limits: MinuteLimits) -> VendorBudget:
    return VendorBudget(limits, SharedBudget(redis.url, "limits:", name, limits))


def test_machines_draw_on_one_budget_of_requests(redis: RedisServer) -> None:
    limits = MinuteLimits(requests=30)
    machines = [shared(redis, "many", limits) for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        waits = list(pool.map(lambda number: machines[number % 3].reserve(SMALL), range(60)))
    assert waits.count(0.0) == 30
    assert waits.count(None) == 30
    for each in machines:
        each.close()


def test_machines_draw_on_one_budget_of_tokens_and_wait_together(redis: RedisServer) -> None:
    limits = MinuteLimits(tokens=20)  # of which 3 seconds give one back
    here, there = (shared(redis, "tokens", limits) for _ in range(2))
    waits = [each.reserve(PATIENT) for each in (here, there) * 2]
    assert waits[:2] == [0.0, 0.0]
    assert 0.0 < (waits[2] or 0.0) < (waits[3] or 0.0) <= 60.0
    assert there.reserve(SMALL) is None
    here.heed(429, {"retry-after": "250"})
    assert 200.0 < (there.reserve(PATIENT) or 0.0) <= 250.0
    here.close()
    there.close()


def test_without_redis_each_counts_alone_and_goes_on() -> None:
    limits = MinuteLimits(requests=1)
    budget = VendorBudget(limits, SharedBudget("redis://127.0.0.1:1/0", "x:", "away", limits))
    assert [budget.reserve(SMALL), budget.reserve(SMALL)] == [0.0, None]
    budget.heed(200, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2m"})
    budget.close()


def router(vendor: FakeVendor, redis: RedisServer, prefix: str, more: str = "") -> Router:
    provider = f"{{kind: openai, base_url: '{vendor.base_url}', timeout_seconds: 5, api_key_env: FAKE_KEY{more}}}"
    return router_of(
        read_settings(f"providers: {{mine: {provider}}}\nredis: {{url: '{redis.url}', prefix: '{prefix}'}}"), {}
    )


async def test_two_processes_of_the_same_settings_share_what_a_minute_holds(redis: RedisServer) -> None:
    with FakeVendor(["hello"] * 9) as vendor:
        routers = [router(vendor, redis, "both:", ", requests_per_minute: 3") for _ in range(2)]
        asked = [each.resolve("mine/m")[0] for each in routers]
        for number in range(3):
            assert (await asked[number % 2].complete_async(ASKED)).text == "hello"
        for each in asked:
            with pytest.raises(UpstreamTimeout):
                await each.complete_async(ASKED)
        assert len(vendor.requests) == 3
        for made in routers:
            made.close()


async def test_a_limit_that_one_process_reads_in_a_response_stops_the_others(redis: RedisServer) -> None:
    used_up = {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2m0s"}
    whole = b'{"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}'
    with FakeVendor([Raw((whole,), headers=used_up)]) as vendor:
        here, there = (router(vendor, redis, "headers:") for _ in range(2))
        assert (await here.resolve("mine/m")[0].complete_async(ASKED)).text == "hello"
        with pytest.raises(UpstreamTimeout):
            await there.resolve("mine/m")[0].complete_async(ASKED)
        assert len(vendor.requests) == 1
        here.close()
        there.close()

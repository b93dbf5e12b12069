"""Rate limits: the buckets, and how callers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anthropic
import openai
import pytest
import redis as redis_py

from slipform.addons.server.admission.keys import add_key
from slipform.addons.server.admission.rate_limits import LocalRates, SharedRates, lease_size
from slipform.addons.server.admission.shared_state import SharedState
from slipform.config import Redis
from slipform.testing import FakeModel
from tests.proxy.proxying import ADA, ASK, RedisServer, chat, keys_path, proxied, running_redis


def test_a_bucket_lets_a_minutes_calls_go_at_once_and_refills_evenly() -> None:
    now = 1000.0
    rates = LocalRates(clock=lambda: now)
    first = [rates.take("ada", 60) for _ in range(60)]
    assert all(each.ok for each in first)
    assert (first[0].remaining, first[-1].remaining) == (59, 0)
    refused = rates.take("ada", 60)
    assert not refused.ok
    assert refused.wait == pytest.approx(1.0)
    assert refused.reset == pytest.approx(60.0)
    assert rates.take("bob", 60).ok
    now += refused.wait
    assert rates.take("ada", 60).ok
    assert not rates.take("ada", 60).ok
    now += 3600
    assert sum(rates.take("ada", 60).ok for _ in range(100)) == 60


def test_the_buckets_of_those_who_have_gone_are_forgotten() -> None:
    now = 0.0
    rates = LocalRates(clock=lambda: now, most=10)
    for number in range(10):
        rates.take(f"caller {number}", 1)
    now += 61
    rates.take("new", 1)
    assert len(rates._full_at) == 1
    for number in range(1000):
        rates.take(f"caller {number}", 1)
    assert len(rates._full_at) <= 10


@pytest.mark.covers("C31")
def test_the_official_sdks_raise_their_rate_limit_errors_and_hear_when_to_come_back(tmp_path: Path) -> None:
    path = keys_path(tmp_path)
    _, one = add_key(path, "one", requests_per_minute=1)
    _, many = add_key(path, "many")
    settings = {"server": {"keys_file": str(path), "requests_per_minute": 100}}
    with proxied({"fake": FakeModel([ADA])}, settings) as address:
        first = chat(address, {"authorization": f"Bearer {one}"})
        assert first.status == 200
        assert first.headers["x-ratelimit-limit-requests"] == "1"
        assert first.headers["x-ratelimit-remaining-requests"] == "0"
        with openai.OpenAI(base_url=f"{address}/v1", api_key=one, max_retries=0) as client:
            with pytest.raises(openai.RateLimitError) as caught:
                client.chat.completions.create(model="fake/m", messages=ASK)
            assert 50 <= int(caught.value.response.headers["retry-after"]) <= 60
            assert caught.value.response.headers["x-ratelimit-remaining-requests"] == "0"
            assert caught.value.code == "rate_limit_exceeded"
        with anthropic.Anthropic(base_url=address, api_key=one, max_retries=0) as claude:
            with pytest.raises(anthropic.RateLimitError) as said:
                claude.messages.create(model="fake/m", max_tokens=9, messages=ASK)
            assert said.value.response.headers["anthropic-ratelimit-requests-remaining"] == "0"
            assert said.value.response.headers["anthropic-ratelimit-requests-reset"].endswith("Z")
        other = chat(address, {"x-api-key": many})
        assert other.headers["x-ratelimit-limit-requests"] == "100"


def test_without_keys_each_address_has_a_limit_and_without_a_limit_nothing_is_said() -> None:
    with proxied({"fake": FakeModel([ADA])}, {"server": {"requests_per_minute": 1}}) as address:
        assert [chat(address).status for _ in range(2)] == [200, 429]
    with proxied({"fake": FakeModel([ADA])}) as address:
        assert not [name for name in chat(address).headers if "ratelimit" in name]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


async def _taken(rates: SharedRates, name: str, limit: int, times: int) -> int:
    allowed = 0
    for _ in range(times):
        allowance = rates.take(name, limit) or await rates.fetch(name, limit)
        allowed += allowance.ok
    return allowed


async def test_several_processes_share_one_limit(redis: RedisServer) -> None:
    settings = Redis(url=redis.url, prefix="share:")
    shared = [SharedState(settings) for _ in range(3)]
    workers = [SharedRates(each) for each in shared]
    counts = await asyncio.gather(*(_taken(worker, "ada", 4, 4) for worker in workers))
    assert sum(counts) == 4
    refused = await workers[0].fetch("ada", 4)
    assert not refused.ok
    assert 0 < refused.wait <= 15
    assert await _taken(workers[0], "bob", 4, 3) == 3
    for each in shared:
        await each.close()


async def test_most_calls_ask_nobody(redis: RedisServer) -> None:
    shared = SharedState(Redis(url=redis.url, prefix="few:"))
    asked = 0
    permits = shared.permits

    async def counted(name: str, limit: int, want: int) -> tuple[int, int, float] | None:
        nonlocal asked
        asked += 1
        return await permits(name, limit, want)

    shared.permits = counted  # type: ignore[method-assign]
    rates = SharedRates(shared)
    limit = 6000
    assert await _taken(rates, "ada", limit, 1000) == 1000
    assert asked <= 1000 // (lease_size(limit) // 2)
    together = await asyncio.gather(*(rates.fetch("bob", 60) for _ in range(5)))
    assert all(each.ok for each in together)
    await shared.close()


async def test_without_redis_each_process_counts_alone_and_shares_again_when_it_is_back() -> None:
    with running_redis() as own:
        now = 0.0
        shared = SharedState(Redis(url=own.url), clock=lambda: now)
        rates = SharedRates(shared, clock=lambda: now)
        assert await _taken(rates, "ada", 10, 10) == 10
        own.kill()
        now += 3
        assert await _taken(rates, "ada", 10, 11) == 10
        states = [shared.down]
        own.start()
        now += 3
        assert await _taken(rates, "ada", 10, 11) == 10
        states.append(shared.down)
        assert states == [True, False]
        await shared.close()


@pytest.mark.parametrize("spoil", ["list", "words", "never full"])
async def test_where_redis_holds_no_bucket_under_its_name_this_process_counts_alone(
    redis: RedisServer, spoil: str
) -> None:
    prefix = f"odd-{spoil}:"
    with closing(redis_py.Redis(port=redis.port)) as client:
        if spoil == "list":
            client.rpush(f"{prefix}rate:ada", "x")
        else:
            client.set(f"{prefix}rate:ada", "soon" if spoil == "words" else "9e99")
    shared = SharedState(Redis(url=redis.url, prefix=prefix))
    try:
        rates = SharedRates(shared)
        taken = [await rates.fetch("ada", 2) for _ in range(3)]
    finally:
        await shared.close()
    assert [each.ok for each in taken] == [True, True, False]
    assert not shared.down

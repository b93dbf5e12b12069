"""What a vendor takes in a minute is one budget, of this process or of all that share a Redis."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
import pytest

from slipform.addons.server import App
from slipform.config import Settings, read_settings
from slipform.engine.setup import router_of
from slipform.errors import SlipformError, UpstreamTimeout
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.catalog import load_catalog
from slipform.providers.concurrency import ThrottledTransport, throttled
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault
from slipform.providers.router import Router
from slipform.providers.vendor_limits import (
    LocalBudget,
    MinuteLimits,
    Reservation,
    SharedBudget,
    VendorBudget,
    token_estimate,
)
from slipform.testing import Answer, FakeVendor, Raw, Step, cut_stream, rejected, server_error
from slipform.testing.wire_formats import Api
from tests.conftest import serving
from tests.proxy.proxying import RedisServer, call, running_redis
from tests.waiting import until

ASKED = ModelRequest("m", (Message.user("hi"),))
SMALL = HttpRequest("http://x", {}, b"x" * 40, Timeouts(total=5.0))
"""Ten tokens."""
PATIENT = msgspec.structs.replace(SMALL, timeouts=Timeouts(total=1000.0))


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


def wait(held: Reservation | None) -> float | None:
    return None if held is None else held.seconds


def test_requests_and_tokens_each_have_their_minute() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(requests=2, tokens=600), clock)
    assert [wait(budget.reserve(100, None)), wait(budget.reserve(100, None))] == [0.0, 0.0]
    assert budget.reserve(100, 30.0) is None
    assert wait(budget.reserve(100, None)) == 62.0
    clock.time += 130
    assert wait(budget.reserve(600, None)) == 0.0
    assert wait(budget.reserve(100, None)) == 62.0
    huge = LocalBudget(MinuteLimits(tokens=10), clock).reserve(99_999, 1.0)
    assert wait(huge) == 0.0  # no call is too large for ever


@pytest.mark.parametrize(
    ("reserved", "used", "next_wait"),
    [
        (600, 100, 0.0),  # what was not used is there again
        (600, 600, 62.0),
        (100, 600, 62.0),  # what was used beyond it is gone
        (100, 99_999, 62.0),  # but no more than a minute holds
        (99_999, 300, 0.0),
        (600, 0, 0.0),
    ],
)
def test_what_a_call_used_takes_the_place_of_what_was_reserved(reserved: int, used: int, next_wait: float) -> None:
    budget = LocalBudget(MinuteLimits(tokens=600), Clock())
    held = budget.reserve(reserved, None)
    assert held is not None
    budget.settle(held, used)
    assert wait(budget.reserve(300, None)) == pytest.approx(next_wait)


def test_who_waits_for_tokens_starts_sooner_when_others_took_less() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(tokens=600), clock)
    first, second, third = (budget.reserve(tokens, None) for tokens in (600, 300, 600))
    assert first is not None
    assert second is not None
    assert third is not None
    assert [first.seconds, second.seconds, third.seconds] == [0.0, 62.0, 124.0]
    clock.time += 1
    budget.settle(first, 400)
    assert budget.remaining(second) == 61.0  # 400 and 300 are still too many
    budget.settle(first._replace(tokens=400), 300)
    assert [budget.remaining(second), budget.remaining(third)] == [0.0, 62.0]
    clock.time += 9
    budget.settle(second, 600)  # a call that used more delays no call that knows when to start
    assert budget.remaining(third) == 53.0
    assert wait(budget.reserve(1, None)) == 115.0  # but those that come after


def _worst_minute(arrivals: Sequence[tuple[float, int]]) -> tuple[int, int]:
    """The most requests, and the most tokens, that arrive within any 60 seconds."""
    windows = [[each for each in arrivals if start <= each[0] < start + 60.0] for start, _ in arrivals]
    return max(map(len, windows)), max(sum(tokens for _, tokens in window) for window in windows)


@pytest.mark.parametrize("seed", range(8))
def test_the_vendor_sees_no_more_in_any_minute_than_the_limits_from_the_first_on(seed: int) -> None:
    draw = random.Random(seed)
    clock = Clock()
    budget = LocalBudget(MinuteLimits(requests=120, tokens=30_000), clock)
    waiting: list[tuple[Reservation, int]] = []
    running: list[tuple[float, Reservation, int]] = []
    arrivals: list[tuple[float, int]] = []
    for _ in range(4_000):
        clock.time += draw.choice((0.0, 0.01, 0.1))
        reserved = draw.choice((50, 500, 1_500, 4_000))
        if len(waiting) < 100 and (reservation := budget.reserve(reserved, None)) is not None:
            waiting.append((reservation, draw.randrange(reserved + 1)))
        for each in [each for each in waiting if budget.remaining(each[0]) <= 0.0]:
            waiting.remove(each)
            arrivals.append((clock.time + draw.random(), each[1]))  # it takes up to a second to get there
            running.append((clock.time + 5 * draw.random(), *each))
        for ended in [each for each in running if each[0] <= clock.time]:
            running.remove(ended)
            budget.settle(ended[1], ended[2])
    requests, tokens = _worst_minute(arrivals)
    assert requests <= 120
    assert 20_000 <= tokens <= 30_000


def test_who_waits_for_its_request_does_not_start_sooner_for_tokens() -> None:
    budget = LocalBudget(MinuteLimits(requests=1, tokens=600), Clock())
    first, second = budget.reserve(600, None), budget.reserve(600, None)
    assert first is not None
    assert second is not None
    budget.settle(first, 0)
    assert budget.remaining(second) == 62.0


def test_tokens_that_come_back_late_are_not_there_twice() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(tokens=600), clock)
    held = budget.reserve(600, None)
    assert held is not None
    clock.time += 3600
    budget.settle(held, 0)
    assert [wait(budget.reserve(600, None)), wait(budget.reserve(60, None))] == [0.0, 62.0]


def test_a_call_that_was_never_sent_is_no_request_and_those_before_it_still_are() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(requests=2), clock)
    first, _ = budget.reserve(0, None), budget.reserve(0, None)
    waiting = budget.reserve(0, None)
    assert first is not None
    assert waiting is not None
    assert waiting.seconds == 62.0
    budget.cancel(waiting)
    assert wait(budget.reserve(0, None)) == 62.0
    budget.cancel(first)
    assert wait(budget.reserve(0, 90.0)) == 62.0  # behind the second and the one that waits
    clock.time += 125
    assert wait(budget.reserve(0, None)) == 0.0


def test_a_pause_holds_for_all_and_a_shorter_one_does_not_end_it() -> None:
    clock = Clock()
    budget = LocalBudget(MinuteLimits(), clock)
    budget.pause(9.0)
    budget.pause(2.0)
    clock.time += 4
    assert wait(budget.reserve(0, None)) == 5.0


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
        waits = list(pool.map(lambda number: wait(machines[number % 3].reserve(SMALL)), range(60)))
    assert waits.count(0.0) == 30
    assert waits.count(None) == 30
    for each in machines:
        each.close()


def test_machines_draw_on_one_budget_of_tokens_and_wait_together(redis: RedisServer) -> None:
    limits = MinuteLimits(tokens=20)
    here, there = (shared(redis, "tokens", limits) for _ in range(2))
    waits = [wait(each.reserve(PATIENT)) for each in (here, there) * 2]
    assert waits[:2] == [0.0, 0.0]
    assert all(60.0 < (each or 0.0) <= 62.0 for each in waits[2:])
    assert there.reserve(SMALL) is None
    here.apply_pause(429, {"retry-after": "250"})
    assert 200.0 < (wait(there.reserve(PATIENT)) or 0.0) <= 250.0
    here.close()
    there.close()


@pytest.mark.parametrize("seed", range(5))
def test_redis_counts_as_one_process_does(redis: RedisServer, seed: int) -> None:
    draw = random.Random(seed)
    limits = MinuteLimits(requests=20, tokens=3_000)
    alone = LocalBudget(limits)
    machine = SharedBudget(redis.url, "limits:", f"alike-{seed}", limits)
    pairs: list[tuple[Reservation, Reservation]] = []
    for _ in range(30):
        reserved = draw.choice((50, 300, 900))
        one, other = alone.reserve(reserved, None), machine.reserve(reserved, None)
        assert one is not None
        assert other is not None
        assert one.seconds == pytest.approx(other.seconds, abs=2.0)
        pairs.append((one, other))
    for one, other in draw.sample(pairs[:8], 5):
        used = draw.randrange(300)
        alone.settle(one, used)
        machine.settle(other, used)
    machine.close()  # has written it
    machine = SharedBudget(redis.url, "limits:", f"alike-{seed}", limits)
    for one, other in pairs:
        assert machine.remaining(other) == pytest.approx(alone.remaining(one), abs=2.0)
    machine.close()


def test_what_a_call_used_on_one_machine_counts_on_the_other(redis: RedisServer) -> None:
    limits = MinuteLimits(tokens=6000)
    here, there = (SharedBudget(redis.url, "limits:", "settled", limits) for _ in range(2))
    first = here.reserve(6000, 1.0)
    assert first is not None
    assert there.reserve(3000, 1.0) is None
    waiting = there.reserve(3000, 90.0)
    assert waiting is not None
    assert 50.0 < waiting.seconds <= 62.0
    here.settle(first, 600)
    here.close()  # has written it
    assert there.remaining(waiting) == 0.0
    there.settle(waiting, 0)
    there.close()
    there = SharedBudget(redis.url, "limits:", "settled", limits)
    second = there.reserve(3000, 0.0)
    assert second is not None
    there.settle(second, 6000)
    there.close()
    third = SharedBudget(redis.url, "limits:", "settled", limits)
    assert third.reserve(3000, 1.0) is None, "what was used beyond the reserved is gone"
    third.close()


def test_a_call_that_one_machine_never_sent_is_no_request_for_the_other(redis: RedisServer) -> None:
    limits = MinuteLimits(requests=1)
    here, there = (SharedBudget(redis.url, "limits:", "unsent", limits) for _ in range(2))
    sent, unsent = here.reserve(0, 1.0), here.reserve(0, 90.0)
    assert sent is not None
    assert unsent is not None
    assert 0.0 < unsent.seconds <= 62.0
    assert there.reserve(0, 90.0) is None
    here.settle(unsent, 0, unsent=True)
    here.close()
    assert 0.0 < (wait(there.reserve(0, 90.0)) or 0.0) <= 62.0
    there.close()


def test_without_redis_each_counts_alone_and_goes_on() -> None:
    limits = MinuteLimits(requests=1)
    budget = VendorBudget(limits, SharedBudget("redis://127.0.0.1:1/0", "x:", "away", limits))
    assert [wait(budget.reserve(SMALL)), wait(budget.reserve(SMALL))] == [0.0, None]
    budget.apply_pause(200, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2m"})
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


LONG = ModelRequest("m", (Message.user("hi"),), max_tokens=50_000)
"""A request for which most of the minute's tokens below are reserved."""
SPEAKING: tuple[tuple[str, Api], ...] = (
    ("openai", "openai"),
    ("openai-responses", "openai-responses"),
    ("anthropic", "anthropic"),
    ("gemini", "gemini"),
    ("bedrock", "bedrock"),
    ("cohere", "cohere"),
    ("ollama", "ollama"),
)


def metered(kind: str, vendor: FakeVendor) -> HttpProvider:
    budget = VendorBudget(MinuteLimits(tokens=60_000), None, load_catalog().vendor(kind).codec)
    transport = throttled(HttpTransport(), None, budget)
    waits = Timeouts(total=5.0)
    return HttpProvider(kind, base_url=vendor.base_url, api_key="k-000000", transport=transport, timeouts=waits)


async def asked(provider: HttpProvider, how: str) -> str:
    """What the vendor answers to `LONG`, each way that a call can go."""
    if how == "whole":
        return (await provider.complete_async(LONG)).text
    if how == "streamed":
        return "".join([chunk.text async for chunk in provider.stream_async(LONG)])
    if how == "blocking":
        return (await asyncio.to_thread(provider.complete, LONG)).text
    return "".join(await asyncio.to_thread(lambda: [chunk.text for chunk in provider.stream(LONG)]))


@pytest.mark.parametrize("how", ["whole", "streamed", "blocking", "streamed blocking"])
@pytest.mark.parametrize(("kind", "api"), SPEAKING)
async def test_tokens_that_an_answer_did_not_take_are_there_for_the_next_call(kind: str, api: Api, how: str) -> None:
    with FakeVendor(["hello"], api=api) as vendor, metered(kind, vendor) as provider:
        for _ in range(3):  # each of which reserves five sixths of the minute
            assert await asked(provider, how) == "hello"


@pytest.mark.parametrize(
    ("step", "fails_next"),
    [
        (rejected("no"), False),  # a refused request takes no tokens
        (cut_stream("hello there", after=2), True),  # nobody knows what these took
        (Raw((b'{"choices": [{"message": {"content": "hello"}}]}',)), True),
        (server_error(501), True),
        (Answer(ModelResponse("hello", usage=Usage(50_000, 9_000, total=59_000))), True),
    ],
    ids=["refused", "cut", "not told", "failed", "used"],
)
async def test_what_is_not_known_to_be_unused_counts_as_reserved(step: Step, fails_next: bool) -> None:
    with FakeVendor([step, "hello"]) as vendor, metered("openai", vendor) as provider:
        with contextlib.suppress(SlipformError):
            await asked(provider, "streamed" if isinstance(step, Answer) and step.cut_after else "whole")
        if fails_next:
            with pytest.raises(UpstreamTimeout):
                await asked(provider, "whole")
        else:
            assert await asked(provider, "whole") == "hello"
        assert len(vendor.requests) == (1 if fails_next else 2)


async def test_what_was_reserved_for_a_vendor_that_cannot_be_reached_is_given_back() -> None:
    with FakeVendor(["hello"]) as vendor:
        address = vendor.base_url
    budget = VendorBudget(MinuteLimits(requests=1, tokens=60_000))
    transport = throttled(HttpTransport(), None, budget)
    request = msgspec.structs.replace(SMALL, url=address)
    for _ in range(3):
        with pytest.raises(TransportFault) as fault:
            await transport.open_async(request)
        assert fault.value.limit is None, "it is the connection that fails, not the budget"
    transport.close()


async def test_forwarded_bytes_are_settled_over_redis_for_both_proxies(redis: RedisServer) -> None:
    """Two proxies, one Redis: the tokens of a call which goes through one unread are there for the other."""
    limit = ", tokens_per_minute: 60000"
    body = {"model": "mine/m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50_000}
    with FakeVendor(["hello"]) as vendor, contextlib.ExitStack() as stack:
        routers = [router(vendor, redis, "forwarded:", limit) for _ in range(2)]
        apps = [App(AsyncClient(router=each), Settings()) for each in routers]
        here, there = (stack.enter_context(serving(app)) for app in apps)
        for address in (here, there, here, there):
            assert until(lambda to=address: call(to, "/v1/chat/completions", body).status == 200)  # type: ignore[misc]
        for each in routers:
            each.close()


class Opened:
    """A transport that answers at once, with a stream that has only a head."""

    status, headers = 200, dict[str, str]()

    def open(self, request: HttpRequest) -> Any:
        return self

    async def open_async(self, request: HttpRequest) -> Any:
        return self


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "async"])
@pytest.mark.parametrize("over", ["this process", "redis"])
async def test_a_call_that_waits_looks_again_and_starts_when_others_took_less(
    monkeypatch: pytest.MonkeyPatch, redis: RedisServer, over: str, blocking: bool
) -> None:
    limits = MinuteLimits(tokens=10)
    budget = shared(redis, f"look-{blocking}", limits) if over == "redis" else VendorBudget(limits)
    first = budget.reserve(PATIENT)
    assert first is not None
    slept: list[float] = []

    def pass_time(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            budget.cancel(first)
            if over == "redis":
                assert until(lambda: budget.remaining(waiting[0], 60.0) < 1)

    async def pass_time_async(seconds: float) -> None:
        pass_time(seconds)

    waiting: list[Reservation] = []
    reserve = budget.reserve

    def reserve_and_note(request: HttpRequest) -> Reservation | None:
        if (held := reserve(request)) is not None:
            waiting.append(held)
        return held

    monkeypatch.setattr(budget, "reserve", reserve_and_note)
    transport = ThrottledTransport(cast("Any", Opened()), None, budget)
    if blocking:
        monkeypatch.setattr("slipform.providers.concurrency.time.sleep", pass_time)
        transport.open(PATIENT)
    else:
        monkeypatch.setattr("slipform.providers.concurrency.asyncio.sleep", pass_time_async)
        await transport.open_async(PATIENT)
    assert slept[0] == pytest.approx(15, abs=1), "a quarter of the minute that it was told"
    assert sum(slept[1:]) < 2

"""How many calls a provider gets at a time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipform.config import read_settings
from slipform.engine.setup import router_of
from slipform.errors import UpstreamTimeout
from slipform.ir import Message, ModelRequest
from slipform.providers.catalog import load_catalog
from slipform.providers.concurrency import ConcurrencyLimit, ThrottledTransport
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import Timeouts
from slipform.testing import Answer, FakeVendor, Received
from tests.waiting import turns, until

ASKED = ModelRequest("m", (Message.user("hi"),))


def limited(vendor: FakeVendor, limit: int, total: float = 30.0) -> HttpProvider:
    row = load_catalog({"mine": {"extends": "openai", "base_url": vendor.base_url}}).vendor("mine")
    transport = ThrottledTransport(HttpTransport(), limit)
    return HttpProvider(row, api_key="k-000000", transport=transport, timeouts=Timeouts(total=total))


class Counting:
    """A vendor's script that sees how many requests are there at once."""

    def __init__(self, latency: float = 0.05) -> None:
        self.vendor: FakeVendor | None = None
        self.most = 0
        self._latency = latency

    def __call__(self, received: Received) -> Answer:
        assert self.vendor is not None
        under_way = sum(not each.answered and not each.aborted for each in self.vendor.requests)
        self.most = max(self.most, under_way)
        return Answer("hello", latency=self._latency)


async def test_no_more_than_the_limit_are_under_way_whole_or_streamed() -> None:
    script = Counting()
    with FakeVendor(script) as vendor, limited(vendor, 2) as provider:
        script.vendor = vendor

        async def streamed() -> str:
            return "".join([chunk.text async for chunk in provider.stream_async(ASKED)])

        async def whole() -> str:
            return (await provider.complete_async(ASKED)).text

        texts = await asyncio.gather(*(streamed() if number % 2 else whole() for number in range(8)))
    assert texts == ["hello"] * 8
    assert script.most == 2


def test_threads_and_event_loops_share_the_places() -> None:
    script = Counting()
    with FakeVendor(script) as vendor, limited(vendor, 1) as provider, ThreadPoolExecutor(4) as pool:
        script.vendor = vendor
        blocking = [pool.submit(provider.complete, ASKED) for _ in range(2)]
        looped = [pool.submit(lambda: asyncio.run(_one(provider))) for _ in range(2)]
        assert [each.result().text for each in (*blocking, *looped)] == ["hello"] * 4
    assert script.most == 1


async def _one(provider: HttpProvider):  # type: ignore[no-untyped-def]
    return await provider.complete_async(ASKED)


async def test_who_waits_and_is_cancelled_takes_nothing_from_those_behind() -> None:
    slots = ConcurrencyLimit(1)
    assert await slots.acquire_async()
    order: list[int] = []

    async def turn(number: int) -> None:
        await slots.acquire_async()
        order.append(number)
        slots.release()

    tasks = [asyncio.create_task(turn(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    slots.release()
    tasks[0].cancel()  # its place has been given to it, and it never gets to use it
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [2, 3, 4]
    assert slots.acquire(timeout=0)
    assert not slots.acquire(timeout=0)


async def test_first_come_first_served() -> None:
    slots = ConcurrencyLimit(2)
    order: list[int] = []

    async def turn(number: int) -> None:
        await slots.acquire_async()
        order.append(number)
        await turns()
        slots.release()

    await asyncio.gather(*(turn(number) for number in range(10)))
    assert order == list(range(10))


def test_a_thread_waits_for_its_turn_and_not_for_ever() -> None:
    slots = ConcurrencyLimit(1)
    assert slots.acquire()
    assert not slots.acquire(timeout=0.01)
    waiting = threading.Thread(target=slots.acquire)
    waiting.start()
    assert until(lambda: slots._waiting)
    slots.release()
    waiting.join(5)
    assert not waiting.is_alive()


async def test_a_place_is_given_back_whatever_happens() -> None:
    script = [Answer("hello there", pace=0.02), Answer("x", latency=9), Answer("hello")]
    with FakeVendor(script) as vendor, limited(vendor, 1) as provider:
        stream = provider.stream_async(ASKED)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        task = asyncio.create_task(provider.complete_async(ASKED))
        assert await asyncio.to_thread(vendor.wait_until, lambda each: len(each.requests) == 2)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert (await provider.complete_async(ASKED)).text == "hello"


async def test_waiting_for_a_turn_counts_towards_the_time_limit() -> None:
    with FakeVendor([Answer("hello", latency=9)]) as vendor, limited(vendor, 1, total=0.3) as provider:
        slow = asyncio.create_task(provider.complete_async(ASKED))
        assert await asyncio.to_thread(vendor.wait_until, lambda each: len(each.requests) == 1)
        with pytest.raises(UpstreamTimeout):
            await provider.complete_async(ASKED)
        with pytest.raises(UpstreamTimeout):
            await slow


def test_the_configuration_sets_the_limit() -> None:
    script = Counting()
    with FakeVendor(script) as vendor:
        script.vendor = vendor
        provider = f"{{kind: openai, base_url: '{vendor.base_url}', max_concurrent: 3, api_key_env: NOT_SET}}"
        router = router_of(
            read_settings(
                f"providers: {{mine: {provider}, free: {provider.replace('max_concurrent: 3', 'max_concurrent: 50')}}}"
            ),
            {},
        )
        made, _ = router.resolve("mine/m")
        assert isinstance(made, HttpProvider)
        assert isinstance(made.transport, ThrottledTransport)
        router.close()

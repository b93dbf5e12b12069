"""Cancelling a call and closing a stream end the vendor's work at once; nothing is left open."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from pathlib import Path

import pytest
import uvloop

from slipform.errors import TruncatedError, UpstreamError
from slipform.ir import CompletionChunk
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Transport
from slipform.testing import Answer, FakeVendor, Received, Step, cut_stream, hang, rate_limited, reset, trickle
from tests.conftest import THOROUGH
from tests.providers.chat import ChatCodec, ask
from tests.providers.conftest import QUICK
from tests.waiting import DEADLINE, until_async


def provider_for(vendor: FakeVendor, transport: Transport | None = None) -> HttpProvider:
    return HttpProvider(
        "openai", base_url=vendor.base_url, api_key="k-123456", codec=ChatCodec, retries=QUICK, transport=transport
    )


def all_gone(vendor: FakeVendor) -> bool:
    return vendor.open_connections == 0


def test_closing_a_blocking_stream_closes_the_connection(transport: Transport) -> None:
    with FakeVendor([trickle("x" * 1000, pace=0.01)]) as vendor:
        stream = provider_for(vendor, transport).stream(ask())
        assert isinstance(next(stream), CompletionChunk)
        stream.close()  # type: ignore[attr-defined]
        assert vendor.wait_until(all_gone)
    assert vendor.requests[0].aborted


async def test_closing_an_async_stream_closes_the_connection(transport: Transport) -> None:
    with FakeVendor([trickle("x" * 1000, pace=0.01)]) as vendor:
        stream = provider_for(vendor, transport).stream_async(ask())
        assert isinstance(await anext(stream), CompletionChunk)
        await stream.aclose()  # type: ignore[attr-defined]
        assert await asyncio.to_thread(vendor.wait_until, all_gone)
    assert vendor.requests[0].aborted


async def test_cancelling_a_stream_closes_the_connection(transport: Transport) -> None:
    with FakeVendor([cut_stream("hello", after=2, ending="hang")]) as vendor:
        provider = provider_for(vendor, transport)

        has_begun = asyncio.Event()

        async def read() -> None:
            async for _ in provider.stream_async(ask()):
                has_begun.set()

        task = asyncio.create_task(read())
        await asyncio.wait_for(has_begun.wait(), DEADLINE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(vendor.wait_until, all_gone)
    assert vendor.requests[0].aborted


async def test_cancelling_a_call_before_its_answer_closes_the_connection() -> None:
    with FakeVendor([hang()]) as vendor:
        task = asyncio.create_task(provider_for(vendor).complete_async(ask()))
        assert await asyncio.to_thread(vendor.wait_until, lambda v: bool(v.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(vendor.wait_until, all_gone)
    assert vendor.requests[0].aborted


async def test_cancelling_while_waiting_for_a_repeat_sends_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with FakeVendor([rate_limited(retry_after=3)]) as vendor:
        task = asyncio.create_task(provider_for(vendor).complete_async(ask()))
        assert await until_async(lambda: "retry=1" in caplog.text)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(vendor.requests) == 1


def test_closing_the_provider_closes_idle_connections() -> None:
    with FakeVendor(["x"]) as vendor:
        with provider_for(vendor) as provider:
            provider.complete(ask())
            assert vendor.open_connections == 1
        assert vendor.wait_until(all_gone)


def test_threads_share_connections_and_each_event_loop_has_its_own() -> None:
    with FakeVendor(["x"]) as vendor:
        provider = provider_for(vendor)
        provider.complete(ask())
        asyncio.run(_complete_twice(provider))
        asyncio.run(_complete_twice(provider))
        worker = threading.Thread(target=provider.complete, args=(ask(),))
        worker.start()
        worker.join()
        assert [request.connection for request in vendor.requests] == [1, 2, 2, 3, 3, 1]
        assert vendor.wait_until(lambda v: v.open_connections == 1), "a loop's connections go with it"
        provider.close()


async def _complete_twice(provider: HttpProvider) -> None:
    await provider.complete_async(ask())
    await provider.complete_async(ask())


def test_a_connection_that_the_server_dropped_while_idle_is_not_used() -> None:
    with FakeVendor(["x"]) as vendor:
        provider = provider_for(vendor)
        provider.complete(ask())
        vendor.hang_up()
        assert provider.complete(ask()).text == "x"
        assert vendor.connections_made == 2
        provider.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts file descriptors by /proc")
def test_thousands_of_calls_leak_no_socket_and_lose_no_request() -> None:
    """Good answers, streams, cut streams, resets and streams given up half-way, eight at a time."""
    calls, workers = 10_000 if THOROUGH else 4_000, 8

    def script(received: Received) -> Step:
        name = received.json()["messages"][0]["content"]
        number = int(name)
        if number % 50 == 7:
            return reset()
        if number % 50 == 10:
            return cut_stream("hello", after=2)
        return Answer("hello", chunk_size=5)

    async def one(provider: HttpProvider, number: int) -> None:
        request = ask(str(number))
        try:
            if number % 5 == 0:
                stream = provider.stream_async(request)
                async for _ in stream:
                    if number % 100 == 0:
                        break
                await stream.aclose()  # type: ignore[attr-defined]
            else:
                await provider.complete_async(request)
        except (UpstreamError, TruncatedError):
            assert number % 50 in (7, 10)

    async def run(provider: HttpProvider) -> None:
        async def work(start: int) -> None:
            for number in range(start, calls, workers):
                await one(provider, number)

        await asyncio.gather(*(work(start) for start in range(workers)))

    with FakeVendor(script) as vendor:
        before = descriptors()
        provider = provider_for(vendor)
        asyncio.run(run(provider))
        assert vendor.open_connections <= workers
        provider.close()
        assert vendor.wait_until(lambda v: all_gone(v) and descriptors() <= before)
    asked = [request.json()["messages"][0]["content"] for request in vendor.requests]
    assert len(set(asked)) == calls
    # Where a kept connection breaks before any byte of an answer, the request is sent once more.
    repeated = {name: count for name, count in Counter(asked).items() if count > 1}
    assert all(int(name) % 50 == 7 and count == 2 for name, count in repeated.items())


def test_it_works_on_uvloop_as_well() -> None:
    async def run(provider: HttpProvider, vendor: FakeVendor) -> str:
        task = asyncio.create_task(provider.complete_async(ask()))
        assert await asyncio.to_thread(vendor.wait_until, lambda v: bool(v.requests))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(vendor.wait_until, all_gone)
        return "".join([chunk.text async for chunk in provider.stream_async(ask())])

    with FakeVendor([hang(), "hello"]) as vendor, provider_for(vendor) as provider:
        assert uvloop.run(run(provider, vendor)) == "hello"

"""Connections on event loops: watched at rest, kept by loop, held back when nobody reads, closed from anywhere."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from slipform.providers.network.async_connection import _READ_AHEAD, ClientConnection, ResponseStream
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault
from slipform.testing import FakeVendor, Raw
from tests.providers.network.test_on_body import HEAD, framed
from tests.waiting import for_ever, steady_async, turns, until_async

WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """A server that does this with every connection: its address."""
    tasks: list[asyncio.Task[None] | None] = []

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


def request(url: str, body: bytes = b"{}", timeouts: Timeouts | None = None) -> HttpRequest:
    return HttpRequest(url, {}, body, timeouts or Timeouts(total=10))


async def body_of(transport: HttpTransport, asked: HttpRequest) -> bytes:
    stream = await transport.open_async(asked)
    body = b""
    while data := await stream.read():
        body += data
    return body


def at_rest(transport: HttpTransport) -> list[ClientConnection]:
    idle = transport._loops[asyncio.get_running_loop()].idle._idle
    return [connection for queue in idle.values() for _, connection in queue]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 408 Request Timeout\r\n\r\n"], ids=["hangs up", "speaks unasked"])
async def test_a_connection_at_rest_is_closed_as_soon_as_its_server(said: bytes) -> None:
    connections = 0
    is_resting = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"{}")
        writer.write(WHOLE)
        if connections > 1:
            await for_ever()
        await is_resting.wait()
        writer.write(said)

    async with listening(serve) as url:
        transport = HttpTransport(proxy="none")
        assert await body_of(transport, request(url)) == b"hi"
        (resting,) = at_rest(transport)
        is_resting.set()
        assert await until_async(lambda: not resting.is_usable())
        assert await body_of(transport, request(url)) == b"hi"
        assert connections == 2
        transport.close()


async def test_a_server_that_hung_up_while_the_loop_was_busy_is_asked_over_a_new_connection() -> None:
    with FakeVendor(["x"]) as vendor:
        transport = HttpTransport(proxy="none")
        await body_of(transport, request(vendor.base_url))
        vendor.hang_up()  # this loop stands still meanwhile, and so hears nothing
        await body_of(transport, request(vendor.base_url))
        assert vendor.connections_made == 2
        transport.close()


async def test_while_nobody_reads_the_server_has_to_wait() -> None:
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"{}")
        writer.write(HEAD)
        while written < 64 << 20:
            writer.write(framed(b"x" * 65536))
            await writer.drain()
            written += 65536
        writer.write(b"0\r\n\r\n")

    async with listening(serve) as url:
        transport = HttpTransport(proxy="none")
        stream = await transport.open_async(request(url))
        assert await stream.read()
        assert await steady_async(lambda: written) < 48 << 20, "only what the kernel buffers"
        rest = 0
        while data := await stream.read():
            rest += len(data)
        assert written == 64 << 20
        assert len(at_rest(transport)) == 1
        transport.close()


async def test_a_large_request_arrives_whole_at_a_server_that_reads_slowly() -> None:
    body = bytes(range(256)) * (32 << 10)
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while len(got) < len(body):
            got.extend(await reader.read(1 << 20))
            await turns()
        writer.write(WHOLE)

    async with listening(serve) as url:
        transport = HttpTransport(proxy="none")
        assert await body_of(transport, request(url, body)) == b"hi"
        assert got == body
        transport.close()


async def test_a_server_that_takes_nothing_runs_out_of_time_while_the_request_is_sent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader, writer
        await for_ever()

    async with listening(serve) as url:
        transport = HttpTransport(proxy="none")
        with pytest.raises(TransportFault) as caught:
            await body_of(transport, request(url, b"x" * (64 << 20), Timeouts(first_byte=0.1)))
        assert (caught.value.phase, caught.value.limit, caught.value.unsent) == ("send", "first_byte", True)


@pytest.mark.parametrize(
    ("timeouts", "limit"),
    [(Timeouts(between_chunks=0.2), "between_chunks"), (Timeouts(total=1.0), "total")],
)
async def test_each_wait_has_its_own_limit_though_a_timer_is_kept(timeouts: Timeouts, limit: str) -> None:
    goes_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(HEAD + framed(b"first"))
        await goes_on.wait()
        writer.write(framed(b"second") + b"0\r\n\r\n")

    async with listening(serve) as url:
        transport = HttpTransport(proxy="none")
        patient = asyncio.create_task(body_of(transport, request(url)))
        with pytest.raises(TransportFault) as caught:
            await body_of(transport, request(url, timeouts=timeouts))
        assert (caught.value.phase, caught.value.limit) == ("body", limit)
        goes_on.set()
        assert await patient == b"firstsecond"
        transport.close()


async def test_the_limit_of_the_first_byte_is_over_with_it() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(HEAD + framed(b"first"))
        await asyncio.sleep(1.1)  # longer than the limit that must be over
        writer.write(framed(b"second") + b"0\r\n\r\n")

    async with listening(serve) as url:
        transport = HttpTransport(proxy="none")
        assert await body_of(transport, request(url, timeouts=Timeouts(first_byte=1.0))) == b"firstsecond"
        transport.close()


def test_a_transport_is_closed_from_another_thread_than_its_loop() -> None:
    with FakeVendor(["x"]) as vendor:
        transport = HttpTransport(proxy="none")

        async def run() -> None:
            await body_of(transport, request(vendor.base_url))
            assert vendor.open_connections == 1
            await asyncio.to_thread(transport.close)
            assert await asyncio.to_thread(vendor.wait_until, lambda v: v.open_connections == 0)

        uvloop.run(run())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_loops_that_come_and_go_leave_no_descriptor(run: Callable[[Awaitable[bytes]], bytes]) -> None:
    with FakeVendor(["x"]) as vendor:
        transport = HttpTransport(proxy="none")
        run(body_of(transport, request(vendor.base_url)))
        assert vendor.wait_until(lambda v: v.open_connections == 0)
        before = descriptors()
        for _ in range(5):
            run(body_of(transport, request(vendor.base_url)))
        assert vendor.connections_made == 6
        assert vendor.wait_until(lambda v: v.open_connections == 0 and descriptors() <= before)


def test_what_its_loop_could_not_close_any_more_is_closed_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(url: str) -> None:
        transport = HttpTransport(proxy="none")
        await body_of(transport, request(url))
        with monkeypatch.context() as patched:  # word is left with the loop, which ends before it heeds it
            patched.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda *_: None)
            closing = threading.Thread(target=transport.close)
            closing.start()
            closing.join()

    with FakeVendor(["x"]) as vendor:
        asyncio.run(run(vendor.base_url))
        gc.collect()
        assert vendor.wait_until(lambda v: v.open_connections == 0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_transport_that_goes_in_a_cycle_with_its_loop_gives_no_warning(
    run: Callable[[Awaitable[None]], None],
) -> None:
    async def use(url: str) -> None:
        transport = HttpTransport(proxy="none")
        await body_of(transport, request(url))
        loop_and_all: list[object] = [asyncio.get_running_loop(), transport, *at_rest(transport)]
        loop_and_all.append(loop_and_all)

    with FakeVendor(["x"]) as vendor:
        for _ in range(5):
            run(use(vendor.base_url))
        gc.collect()
        assert vendor.wait_until(lambda v: v.open_connections == 0)


async def test_an_answers_head_stays_its_own_when_its_connection_serves_the_next_call() -> None:
    with FakeVendor([Raw((b"one",), 201, {"x-which": "first"}), Raw((b"two",), 202, {"x-which": "second"})]) as vendor:
        transport = HttpTransport()
        try:
            first = await transport.open_async(HttpRequest(f"{vendor.base_url}/chat/completions", {}, b"{}"))
            while await first.read():
                pass
            second = await transport.open_async(HttpRequest(f"{vendor.base_url}/chat/completions", {}, b"{}"))
            assert (second.status, second.headers["x-which"]) == (202, "second")
            assert (first.status, first.headers["x-which"]) == (201, "first")
            await second.close()
        finally:
            transport.close()


async def test_a_connection_whose_answer_was_held_back_hears_the_next_one() -> None:
    large = b"x" * (4 * _READ_AHEAD)
    with FakeVendor([Raw((large,)), Raw((b"two",))]) as vendor:
        transport = HttpTransport()
        request = HttpRequest(f"{vendor.base_url}/chat/completions", {}, b"{}")
        try:
            first = await transport.open_async(request)
            assert isinstance(first, ResponseStream)
            while not first._is_paused:  # noqa: ASYNC110 — nobody reads, so what has come is enough at some point
                await asyncio.sleep(0)
            body = b""
            while data := await first.read():
                body += data
            assert body == large
            second = await transport.open_async(request)
            assert await second.read() == b"two"
            await second.close()
            assert vendor.connections_made == 1
        finally:
            transport.close()

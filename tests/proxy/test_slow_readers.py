"""Clients that do not read what is sent to them: cut off in time, and not at the cost of others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.addons.server.http_server.connection import ServerConnection
from slipform.addons.server.http_server.state import ServerLimits, ServerState
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor
from tests.conftest import serving
from tests.proxy.proxying import ADA
from tests.proxy.talking import LOOPS, MemoryTransport, Wire, echo, logged, talking, whole
from tests.proxy.wire import provider_of

GET = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"
SMALL = 4096
MUCH = 32_000_000
"""More than the system keeps for a client that does not read."""
IMPATIENT = ServerLimits(write_seconds=0.3, tick_seconds=0.05)
PATIENT = ServerLimits(write_seconds=600, tick_seconds=0.05)


@LOOPS
def test_a_stream_that_nobody_reads_is_cut_and_what_writes_it_is_cancelled(loop: Any) -> None:
    ended = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"]["slipform"].ends_with_client(True)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x" * 32768, "more_body": True})
        except asyncio.CancelledError:
            ended.set()
            raise

    with talking(app, loop=loop, limits=IMPATIENT) as connect:
        connect(room=SMALL).say(GET)
        assert ended.wait(20)


@LOOPS
@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="a system that takes as much as it likes")
def test_the_system_keeps_little_for_a_client_that_does_not_read(loop: Any) -> None:
    taken: list[int] = []
    stopped = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        exchange = scope["extensions"]["slipform"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while exchange.push(b"x" * 16384):
            taken.append(16384)
            await asyncio.sleep(0)
        stopped.set()

    with talking(app, loop=loop) as connect:
        connect(room=SMALL).say(GET)
        assert stopped.wait(20)
        assert sum(taken) < 1_000_000


@LOOPS
def test_a_whole_answer_that_nobody_reads_is_cut(loop: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, b"x" * MUCH)

    with (
        logged("they read nothing, clients=1, seconds=0.3") as cut,
        talking(app, loop=loop, limits=IMPATIENT) as connect,
    ):
        wire = connect(room=SMALL)
        wire.say(GET)
        assert cut.wait(20)
        assert 0 < len(wire.hear_all()) < MUCH


@LOOPS
def test_a_stream_that_waits_for_its_own_next_piece_is_not_cut(loop: Any) -> None:
    go = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        if scope["path"] == "/slow":
            await asyncio.to_thread(go.wait)
        await send({"type": "http.response.body", "body": b"x" * MUCH if scope["path"] == "/b" else b"two"})

    with logged("read nothing") as cut, talking(app, loop=loop, limits=IMPATIENT) as connect:
        slow, deaf = connect(), connect(room=SMALL)
        slow.say(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        deaf.say(GET)
        assert cut.wait(20)  # the other one, meanwhile
        go.set()
        assert b"two" in slow.hear(b"0\r\n\r\n")


async def test_a_byte_that_leaves_is_progress_and_one_that_is_added_is_not() -> None:
    door = ServerState(echo)
    connection, transport = ServerConnection(door), MemoryTransport()
    connection.connection_made(transport)
    connection.write(b"x" * 100)
    transport.unsent = 100
    assert [connection.seconds_stalled(now) for now in (5.0, 6.0, 14.0)] == [0, 1, 9]
    transport.unsent = 99
    assert connection.seconds_stalled(15.0) == 0
    connection.write(b"x" * 100)
    transport.unsent = 199
    assert connection.seconds_stalled(25.0) == 10
    transport.unsent = 0
    assert connection.seconds_stalled(26.0) == 0
    connection.write(b"x" * 100)
    transport.unsent = 100
    assert connection.seconds_stalled(1000.0) == 0  # nothing was waiting before
    door.close()


def _asking(content: str = "x", *, stream: bool) -> bytes:
    body = json.dumps({"model": "up/m", "messages": [{"role": "user", "content": content}], "stream": stream}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def _proxy(vendor: FakeVendor, limits: ServerLimits, **server: Any) -> Iterator[str]:
    router = Router({"up": provider_of(vendor)}, default="up/m")
    settings = Settings.model_validate({"default_model": "up/m", "server": server})
    with serving(App(AsyncClient(router=router), settings), limits=limits) as address:
        yield address


def _status(address: str, source: str = "127.0.0.1") -> bytes:
    wire = Wire(address, source)
    wire.say(_asking(stream=False))
    try:
        return wire.answer()[0].split(b" ")[1]
    finally:
        wire.close()


ENDLESS = Answer("x" * MUCH, chunk_size=65536, ending="hang")


def test_a_call_whose_answer_nobody_reads_gives_its_place_back_and_the_vendor_stops() -> None:
    with (
        FakeVendor([ENDLESS, ADA]) as vendor,
        _proxy(vendor, IMPATIENT, max_concurrent=1) as address,
        logged("read nothing") as cut,
    ):
        deaf = Wire(address, room=SMALL)
        deaf.say(_asking(stream=True))
        assert cut.wait(30)
        assert vendor.wait_until(lambda each: each.requests[0].aborted)
        assert vendor.wait_until(lambda _: _status(address) == b"200")
        deaf.close()


def test_callers_who_do_not_read_give_way_to_others_when_the_server_is_full() -> None:
    with FakeVendor([ENDLESS, ENDLESS, ADA]) as vendor, _proxy(vendor, PATIENT, max_concurrent=2) as address:
        deaf = [Wire(address, "127.0.0.2", room=SMALL) for _ in range(2)]
        for wire in deaf:
            wire.say(_asking(stream=True))
        assert vendor.wait_until(lambda each: len(each.requests) == 2)
        assert vendor.wait_until(lambda _: _status(address) == b"200")
        assert vendor.wait_until(lambda each: sum(request.aborted for request in each.requests) == 1)
        for wire in deaf:
            wire.close()


def test_callers_who_read_do_not_give_way() -> None:
    with FakeVendor([Answer(ADA, latency=60)]) as vendor, _proxy(vendor, PATIENT, max_concurrent=2) as address:
        waiting = [Wire(address, "127.0.0.2") for _ in range(2)]
        for wire in waiting:
            wire.say(_asking(stream=True))
        assert vendor.wait_until(lambda each: len(each.requests) == 2)
        assert _status(address) == b"503"
        for wire in waiting:
            wire.close()


@pytest.mark.parametrize(("server", "most"), [({}, 9), ({"max_concurrent_per_key": 3}, 3)])
def test_one_caller_cannot_take_all_the_places(server: dict[str, int], most: int) -> None:
    script = [Answer(ADA, latency=60)] * most + [Answer(ADA)]
    with FakeVendor(script) as vendor, _proxy(vendor, PATIENT, max_concurrent=10, **server) as address:
        waiting = [Wire(address, "127.0.0.2") for _ in range(most)]
        for wire in waiting:
            wire.say(_asking(stream=False))
        assert vendor.wait_until(lambda each: len(each.requests) == most)
        refused = Wire(address, "127.0.0.2")
        refused.say(_asking(stream=False))
        line, headers, body = refused.answer()
        refused.close()
        assert (line.split(b" ")[1], headers[b"retry-after"]) == (b"429", b"1")
        assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
        assert _status(address, "127.0.0.1") == b"200"
        waiting.pop().close()
        assert vendor.wait_until(lambda each: any(request.aborted for request in each.requests))
        assert vendor.wait_until(lambda _: _status(address, "127.0.0.2") == b"200")
        for wire in waiting:
            wire.close()

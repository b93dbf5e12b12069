"""Many connections at once: of one address, of one client behind a balancer, and in all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from slipform.addons.server.http_server.state import ServerLimits, Trusted
from slipform.addons.server.serve import limits_of
from slipform.config import ServerSettings
from tests.proxy.talking import LOOPS, Wire, echo, talking, whole

GET = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"


def _served(wire: Wire, request: bytes = GET) -> Wire:
    """A connection whose request was answered, and which rests now."""
    wire.say(request)
    assert wire.answer()[2] == b"/b "
    return wire


@LOOPS
def test_an_address_has_only_so_many_connections_and_others_are_served(loop: Any) -> None:
    with talking(echo, loop=loop, limits=ServerLimits(connections_per_address=2)) as connect:
        first, second = (_served(connect("127.0.0.2")) for _ in range(2))
        line, headers, body = connect("127.0.0.2").answer()
        assert line == b"HTTP/1.1 429 Too Many Requests"
        assert (headers[b"retry-after"], headers[b"connection"]) == (b"1", b"close")
        assert b"rate_limit_error" in body
        _served(connect("127.0.0.1"))
        first.socket.shutdown(1)
        assert first.hear_all() == b""  # the server knows that it is gone
        _served(connect("127.0.0.2"))
        _served(second)


def test_behind_a_balancer_it_is_its_clients_requests_that_are_counted() -> None:
    go, came = threading.Event(), threading.Semaphore(0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            came.release()
            await asyncio.to_thread(go.wait)
        await whole(send, scope["client"][0].encode())

    def of(client: bytes, path: bytes = b"/b") -> bytes:
        return b"GET %b HTTP/1.1\r\nhost: x\r\nx-forwarded-for: %b\r\n\r\n" % (path, client)

    limits = ServerLimits(connections_per_address=2)
    with talking(app, limits=limits, trusted=Trusted("127.0.0.1")) as connect:
        slow = [connect() for _ in range(2)]
        for wire in slow:
            wire.say(of(b"203.0.113.9", b"/slow"))
            assert came.acquire(timeout=20)
        wire = connect()
        wire.say(of(b"203.0.113.9"))
        line, headers, _ = wire.answer()
        assert line == b"HTTP/1.1 429 Too Many Requests"
        assert b"connection" not in headers  # which belongs to others as well
        wire.say(of(b"203.0.113.10"))
        assert wire.answer()[2] == b"203.0.113.10"
        go.set()
        for each in slow:
            assert each.answer()[2] == b"203.0.113.9"
        wire.say(of(b"203.0.113.9"))
        assert wire.answer()[2] == b"203.0.113.9"


@LOOPS
def test_beyond_the_limit_idle_connections_are_closed_for_new_ones_the_silent_first(loop: Any) -> None:
    go, came = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            came.set()
            await asyncio.to_thread(go.wait)
        await echo(scope, receive, send)

    with talking(app, loop=loop, limits=ServerLimits(connections=3)) as connect:
        busy = connect()
        busy.say(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert came.wait(20)
        resting = _served(connect())
        silent = connect()
        silent.say(b"GET /")  # and no more
        newest = _served(connect())
        assert silent.hear_all() == b""
        _served(resting)
        go.set()
        assert busy.answer()[2] == b"/slow "
        _served(newest)


def test_with_nobody_idle_a_new_connection_is_served_all_the_same() -> None:
    go, came = threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            came.set()
            await asyncio.to_thread(go.wait)
        await echo(scope, receive, send)

    with talking(app, limits=ServerLimits(connections=1)) as connect:
        busy = connect()
        busy.say(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        assert came.wait(20)
        _served(connect())
        go.set()
        assert busy.answer()[2] == b"/slow "


def test_the_settings_are_the_limits() -> None:
    limits = limits_of(ServerSettings(write_seconds=7, max_connections=20, max_connections_per_address=3))
    assert (limits.write_seconds, limits.connections, limits.connections_per_address) == (7, 20, 3)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of open files there")
@pytest.mark.parametrize(("soft", "hard", "expected"), [(200, 200, 68), (200, 464, 200), (200, 4096, 500)])
def test_connections_leave_files_for_vendors_and_the_limit_of_files_is_raised(
    soft: int, hard: int, expected: int
) -> None:
    script = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from slipform.config import ServerSettings\n"
        "from slipform.addons.server.serve import limits_of\n"
        "print(limits_of(ServerSettings(max_connections=500)).connections)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == expected

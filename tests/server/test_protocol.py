"""The limits of a request's head: they count for the head, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from slipform.server.protocol import HEAD_SECONDS, MAX_HEAD_BYTES, LimitedProtocol

HEAD = b"POST /x HTTP/1.1\r\nhost: a\r\n"


class Wire(asyncio.Transport):
    """The client's end: what was written to it, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...


class Clock:
    """The event loop as the protocol sees it, with the timers it has set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.timers: list[tuple[float, asyncio.TimerHandle]] = []

    def call_later(self, seconds: float, *call: Any) -> asyncio.TimerHandle:
        timer = self._loop.call_later(seconds, *call)
        self.timers.append((seconds, timer))
        return timer

    def runs(self) -> bool:
        """Whether the limit of a head is running."""
        return any(seconds == HEAD_SECONDS and not timer.cancelled() for seconds, timer in self.timers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Connection:
    """A protocol with its wire, and an application that answers when it is let."""

    def __init__(self) -> None:
        self.allowed = asyncio.Event()
        self.bodies: list[bytes] = []
        config = uvicorn.Config(self._app, interface="asgi3", lifespan="off", log_config=None)
        config.load()
        self.wire = Wire()
        self.clock = Clock(asyncio.get_running_loop())
        self.protocol = LimitedProtocol(config, ServerState(), {}, self.clock)
        self.protocol.connection_made(self.wire)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        del scope
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await self.allowed.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def answered(self, count: int = 1) -> None:
        """Let the application answer, and wait for it."""
        self.allowed.set()
        for _ in range(100):
            if self.wire.written.count(b"\r\n\r\nok") == count:
                return
            await asyncio.sleep(0)
        raise AssertionError(self.wire.written)


def on_a_connection(talk: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        connection = Connection()
        await talk(connection)
        connection.protocol.connection_lost(None)
        assert not connection.clock.runs()

    asyncio.run(run())


def test_a_client_that_says_nothing_is_timed_and_one_whose_answer_takes_long_is_not() -> None:
    async def talk(connection: Connection) -> None:
        assert connection.clock.runs()
        connection.protocol.data_received(HEAD + b"content-length: 2\r\n\r\nhi")
        assert not connection.clock.runs()
        await connection.answered()
        assert not connection.clock.runs()  # an idle connection is uvicorn's business

    on_a_connection(talk)


@pytest.mark.covers("S2-70")
def test_a_large_body_is_no_large_head() -> None:
    body = b"x" * (3 * MAX_HEAD_BYTES)

    async def talk(connection: Connection) -> None:
        head = HEAD + b"content-length: %d\r\n\r\n" % len(body)
        connection.protocol.data_received(head + body)
        await connection.answered()
        connection.protocol.data_received(head)
        connection.protocol.data_received(body)
        await connection.answered(2)
        assert connection.bodies == [body, body]
        assert not connection.wire.closed

    on_a_connection(talk)


@pytest.mark.parametrize("before", ["nothing", "a request", "half a request"])
def test_a_head_past_the_limit_is_refused_wherever_it_begins(before: str) -> None:
    async def talk(connection: Connection) -> None:
        if before == "a request":
            connection.protocol.data_received(HEAD + b"\r\n")
            await connection.answered()
        elif before == "half a request":
            connection.protocol.data_received(HEAD + b"content-length: 100000\r\n\r\n")
            connection.protocol.data_received(b"x" * 100_000 + HEAD)
            await connection.answered()
        connection.wire.written = b""
        connection.protocol.data_received((b"" if before == "half a request" else HEAD) + b"x-filler: ")
        for _ in range(MAX_HEAD_BYTES // 1024 - 1):
            connection.protocol.data_received(b"a" * 1024)
        await asyncio.sleep(0)
        assert not connection.wire.written
        assert connection.clock.runs()
        connection.protocol.data_received(b"a" * 2048)
        await asyncio.sleep(0)
        assert connection.wire.written.startswith(b"HTTP/1.1 431 ")
        assert connection.wire.closed

    on_a_connection(talk)


def test_blank_lines_do_not_hold_an_idle_connection() -> None:
    async def talk(connection: Connection) -> None:
        connection.protocol.data_received(HEAD + b"\r\n")
        await connection.answered()
        connection.protocol.data_received(b"\r\n")
        assert connection.clock.runs()
        connection.protocol.data_received(HEAD + b"\r\n")
        assert not connection.clock.runs()
        await connection.answered(2)

    on_a_connection(talk)

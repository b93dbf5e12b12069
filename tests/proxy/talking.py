"""Bare sockets for the tests of the HTTP server: small applications, and clients that say what they are told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop

from slipform.addons.server.http_server.state import ServerLimits
from tests.conftest import serving

LOOPS = pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
QUICK = ServerLimits(head_seconds=0.4, idle_seconds=1.2, tick_seconds=0.05)
Handler = Callable[[Any, Any, Any], Awaitable[None]]


class Wire:
    """A client's end of a connection."""

    def __init__(self, address: str, source: str = "127.0.0.1", *, room: int | None = None) -> None:
        """From this address of loopback; with as little `room` for what is not read yet."""
        where = urlsplit(address)
        self.socket = socket.socket()
        self.socket.settimeout(20)
        if room is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        try:
            self.socket.bind((source, 0))
            self.socket.connect((where.hostname, where.port))
        except OSError:
            self.socket.close()
            raise
        self._rest = b""

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def say_until_stopped(self, piece: bytes, most: int) -> int:
        """Send this again and again while it is taken, and no more than so much; gives how much was."""
        before = self.socket.gettimeout()
        self.socket.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < most:
                sent += self.socket.send(piece)
        self.socket.settimeout(before)
        return sent

    def drip(self, drop: bytes, times: int = 100) -> None:
        """Send this so many times, slowly, unless the server hangs up."""
        with contextlib.suppress(OSError):
            for _ in range(times):
                self.say(drop)
                time.sleep(0.02)

    def hear(self, until: bytes) -> bytes:
        """All up to and with these bytes."""
        while until not in self._rest:
            data = self.socket.recv(65536)
            assert data, f"closed after {self._rest!r}"
            self._rest += data
        heard, found, self._rest = self._rest.partition(until)
        return heard + found

    def hear_all(self) -> bytes:
        """All until the server closes."""
        heard, self._rest = self._rest, b""
        with contextlib.suppress(ConnectionResetError):
            while data := self.socket.recv(65536):
                heard += data
        return heard

    def answer(self) -> tuple[bytes, dict[bytes, bytes], bytes]:
        """One answer with a length: its status line, headers and body."""
        line, *lines = self.hear(b"\r\n\r\n")[:-4].split(b"\r\n")
        headers = dict(each.split(b": ", 1) for each in lines)
        wanted = int(headers[b"content-length"])
        while len(self._rest) < wanted:
            data = self.socket.recv(65536)
            assert data
            self._rest += data
        body, self._rest = self._rest[:wanted], self._rest[wanted:]
        return line, headers, body

    def close(self) -> None:
        self.socket.close()


def with_life(handle: Handler) -> Handler:
    """An application that starts and stops, and handles requests so."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await handle(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    return app


@contextlib.contextmanager
def talking(handle: Handler, **options: Any) -> Iterator[Callable[..., Wire]]:
    """A server with this application; gives what connects to it."""
    wires: list[Wire] = []
    with serving(with_life(handle), **options) as address:

        def connect(source: str = "127.0.0.1", *, room: int | None = None) -> Wire:
            wires.append(Wire(address, source, room=room))
            return wires[-1]

        yield connect
        for wire in wires:
            wire.close()


class MemoryTransport:
    """The server's end of a connection without a socket: keeps what is written, of which `unsent` has not left."""

    def __init__(self) -> None:
        self.written = b""
        self.unsent = 0
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else self

    def setsockopt(self, level: int, option: int, value: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None: ...

    def write_eof(self) -> None:
        """Nothing more is written; what arrives is still read."""

    resume_reading = pause_reading


@contextlib.contextmanager
def logged(text: str) -> Iterator[threading.Event]:
    """What is set when the server logs a line with this text."""
    seen = threading.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                seen.set()

    handler, logger = Handler(), logging.getLogger("slipform.server")
    logger.addHandler(handler)
    try:
        yield seen
    finally:
        logger.removeHandler(handler)


async def body_of(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    return body


async def whole(send: Any, body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    head = [(b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path and the body."""
    await whole(send, scope["path"].encode() + b" " + await body_of(receive))

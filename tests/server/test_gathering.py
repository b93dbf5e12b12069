"""The HTTP/1.1 protocol that the proxy is served with."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from slipform.server.gathering import GatheringProtocol


@contextmanager
def served(app: Any) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, http=GatheringProtocol, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()
        server.should_exit = True
        thread.join()


def asked(address: tuple[str, int]) -> socket.socket:
    client = socket.create_connection(address, timeout=10)
    client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    return client


async def start(send: Any, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


def test_head_and_body_leave_in_one_piece() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, (b"content-length", b"5"))
        await send({"type": "http.response.body", "body": b"hello"})

    with served(app) as address, asked(address) as client:
        first = client.recv(65536)
        assert first.startswith(b"HTTP/1.1 200")
        assert first.endswith(b"hello")


def test_a_connection_that_ends_has_sent_all_before() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await start(send, (b"content-length", b"5"), (b"connection", b"close"))
        await send({"type": "http.response.body", "body": b"hello"})

    with served(app) as address, asked(address) as client:
        data = b""
        while piece := client.recv(65536):
            data += piece
        assert data.endswith(b"hello")


def test_who_does_not_read_stops_who_writes() -> None:
    written = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal written
        await start(send)
        for _ in range(2000):
            await send({"type": "http.response.body", "body": b"x" * 32768, "more_body": True})
            written += 32768

    with served(app) as address, asked(address) as client:
        client.recv(10)
        last = -1
        while written != last:
            last = written
            time.sleep(0.3)
        assert written < 32_000_000

"""The server's beginning and end, and the application under servers of others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.http_server.server import HttpServer
from tests.proxy.talking import Wire, echo, whole, with_life
from tests.waiting import for_ever, turns

GET = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"


def run(app: Any, talk: Callable[[HttpServer, str], Awaitable[None]]) -> None:
    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            server = HttpServer(app)
            assert await server.start([listening])
            await talk(server, address)

    asyncio.run(serve())


def test_the_end_waits_for_answers_under_way_and_for_nobody_else() -> None:
    go = asyncio.Event()
    asked = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await go.wait()
        await whole(send, b"done")

    async def talk(server: HttpServer, address: str) -> None:
        idle, busy = await asyncio.to_thread(Wire, address), await asyncio.to_thread(Wire, address)
        busy.say(GET + GET)
        await asked.wait()
        stopping = asyncio.ensure_future(server.stop(20))
        assert await asyncio.to_thread(idle.hear_all) == b""
        with pytest.raises(OSError, match="refused"):
            await asyncio.to_thread(Wire, address)
        assert not stopping.done()
        go.set()
        said = await asyncio.to_thread(busy.hear_all)
        assert said.count(b"HTTP/1.1 200 OK") == 1  # the second is for somebody else to answer
        assert b"connection: close" in said
        await stopping
        idle.close()
        busy.close()

    run(with_life(app), talk)


@pytest.mark.parametrize("way", ["time is over", "hurried"])
def test_what_does_not_end_is_cut_off(way: str) -> None:
    asked = asyncio.Event()
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await with_life(echo)(scope, receive, send)
            ended.append("life")
            return
        asked.set()
        try:
            await for_ever()
        except asyncio.CancelledError:
            await whole(send, b"late", status=503)
            ended.append("answer")

    async def talk(server: HttpServer, address: str) -> None:
        wire = await asyncio.to_thread(Wire, address)
        wire.say(GET)
        await asked.wait()
        if way == "hurried":
            stopping = asyncio.ensure_future(server.stop(100))
            await turns()
            server.hurry()
            await stopping
            assert ended == ["answer"]
        else:
            await server.stop(0.1)
            assert ended == ["answer", "life"]
        assert (await asyncio.to_thread(wire.hear_all)).startswith(b"HTTP/1.1 503 ")
        wire.close()

    run(app, talk)


async def _cannot(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no model"})


async def _breaks(scope: Any, receive: Any, send: Any) -> None:
    raise LookupError("no model")


async def _returns(scope: Any, receive: Any, send: Any) -> None: ...


@pytest.mark.parametrize("app", [_cannot, _breaks, _returns])
def test_an_application_that_does_not_start_is_not_served(app: Any) -> None:
    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = HttpServer(app)
            assert not await server.start([listening])
            await server.stop(0)

    asyncio.run(serve())


def test_unix_sockets_are_served_beside_others(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await whole(send, repr(scope["client"]).encode())

    def ask(path: str) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(10)
            client.connect(path)
            client.sendall(GET)
            return client.recv(65536)

    async def serve() -> None:
        path = str(tmp_path / "s")
        with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_UNIX) as other:
            other.bind(path)
            server = HttpServer(with_life(app))
            assert await server.start([one, other])
            assert (await asyncio.to_thread(ask, path)).endswith(b"\r\n\r\nNone")
            await server.stop(5)

    asyncio.run(serve())

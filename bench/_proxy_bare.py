"""Run the smallest possible proxy: `python -m bench._proxy_bare UPSTREAM (slipform|uvicorn) (slipform|pyreqwest) PORT`.

For `bench.proxy`. Bare ASGI on slipform's server or on uvicorn, with slipform's client or with pyreqwest. The request,
the answer, the JSON in it and every event are parsed and written again, and nothing else is done with them.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvicorn
import uvloop

from slipform.addons.server.http_server.server import HttpServer
from slipform.codecs.framing import SseDecoder
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest, Timeouts

_HEADERS = {"content-type": "application/json", "authorization": "Bearer bench-key-0000"}


class Own:
    """slipform's client."""

    def __init__(self) -> None:
        self._transport = HttpTransport()

    async def open(self, url: str, body: bytes, streamed: bool) -> Callable[[], Awaitable[bytes]]:
        """Ask, and give what reads the answer."""
        return (await self._transport.open_async(HttpRequest(url, _HEADERS, body, Timeouts(), streamed))).read


class Rust:
    """pyreqwest."""

    def __init__(self) -> None:
        from pyreqwest.client import ClientBuilder  # of the extra `bench`

        self._client = ClientBuilder().http2(False).build()

    async def open(self, url: str, body: bytes, streamed: bool) -> Callable[[], Awaitable[Any]]:  # noqa: ARG002
        """Ask, and give what reads the answer."""
        asked = self._client.post(url).headers(_HEADERS).body_bytes(body).streamed_read_buffer_limit(0)
        return (await asked.build_streamed().__aenter__()).body_reader.read_chunk


class Bare:
    """The application."""

    def __init__(self, upstream: str, client: Own | Rust) -> None:
        self._upstream = upstream
        self._client = client

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET":
            await self._send(send, b"{}")
            return
        asked = orjson.loads(body)
        provider, _, asked["model"] = asked["model"].partition("/")
        url = f"{self._upstream}{'/paced' if provider == 'slow' else ''}/v1/chat/completions"
        streamed = bool(asked.get("stream"))
        read = await self._client.open(url, orjson.dumps(asked), streamed)
        if streamed:
            await self._stream(read, send)
        else:
            await self._whole(read, send)

    async def _whole(self, read: Any, send: Any) -> None:
        parts = []
        while data := await read():
            parts.append(data)
        answer = orjson.loads(b"".join(parts))
        message = answer["choices"][0]["message"]
        if message["content"].startswith("{"):
            message["content"] = orjson.dumps(orjson.loads(message["content"])).decode()
        await self._send(send, orjson.dumps(answer))

    async def _stream(self, read: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        decoder = SseDecoder()
        while data := await read():
            for event in decoder.feed(bytes(data)):
                said = event.data if event.data == b"[DONE]" else orjson.dumps(orjson.loads(event.data))
                await send({"type": "http.response.body", "body": b"data: " + said + b"\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Any, body: bytes) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _serve(app: Bare, port: int) -> None:
    await HttpServer(app).start([socket.create_server(("127.0.0.1", port), backlog=1024)])
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    upstream, server, client, port = sys.argv[1:]
    if server == "uvicorn":
        app = Bare(upstream, Rust() if client == "pyreqwest" else Own())
        uvicorn.run(app, port=int(port), log_level="error", access_log=False, lifespan="off")
    else:
        uvloop.run(_serve(Bare(upstream, Own()), int(port)))

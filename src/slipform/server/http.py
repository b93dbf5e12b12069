"""The little of HTTP that the handlers need, on bare ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableMapping
from typing import Any, TypeAlias

import orjson

from slipform.errors import RequestError, TooLargeError
from slipform.server.record import Header

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The request's body, within the size limit."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client went away before the request was whole")
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise TooLargeError(f"The request is larger than {max_bytes:,} bytes", hint="Send less in one request.")
        if not message.get("more_body"):
            return bytes(body)


async def send_json(send: Send, status: int, content: Any) -> None:
    """A whole JSON response."""
    await send_bytes(send, status, orjson.dumps(content))


async def send_bytes(send: Send, status: int, body: bytes, headers: Iterable[Header] = ()) -> None:
    """A whole JSON response that is already bytes."""
    length = (b"content-length", str(len(body)).encode())
    await send_start(send, status, b"application/json", (length, *headers))
    await send({"type": "http.response.body", "body": body})


async def send_start(send: Send, status: int, content_type: bytes, headers: Iterable[Header] = ()) -> None:
    """The head of a response."""
    head = [(b"content-type", content_type), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Run `work`, cancelling it when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

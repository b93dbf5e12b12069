"""The little of HTTP that the handlers need, on bare ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import orjson

from slipform.errors import RequestError, TooLargeError
from slipform.server.exchange import Exchange
from slipform.server.outgoing import Outgoing
from slipform.server.record import Header

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_NOTHING: Mapping[str, Any] = {}
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def exchange_of(scope: Scope, send: Send) -> Exchange | None:
    """The request on our own server, if it is ours and nobody stands in between: some things go quicker there."""
    found = scope.get("extensions", _NOTHING).get("slipform")
    return found if isinstance(found, Exchange) and send == found.send else None


async def read_body(
    receive: Receive, max_bytes: int, exchange: Exchange | None = None, declared: bytes | None = None
) -> bytes:
    """The request's body, within the size limit; `exchange` may have it at hand, `declared` is its content-length."""
    if exchange is not None and (body := exchange.take()) is not None:
        _check_size(len(body), max_bytes)
        return body
    if (
        declared is not None and declared.isdigit() and len(declared) < 20
    ):  # before a client that asks is told to send it
        _check_size(int(declared), max_bytes)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client went away before the request was whole")
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        _check_size(size, max_bytes)
        more = message.get("more_body", False)
    return part if len(parts) == 1 else b"".join(parts)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise TooLargeError(f"The request is larger than {most:,} bytes", hint="Send less in one request.")


async def send_json(send: Send, status: int, content: Any) -> None:
    """A whole JSON response."""
    await send_bytes(send, status, orjson.dumps(content))


def send_bytes(send: Send, status: int, body: bytes, headers: Iterable[Header] = ()) -> Coroutine[Any, Any, None]:
    """A whole JSON response that is already bytes."""
    return send_page(send, status, body, b"application/json", headers)


def send_page(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Iterable[Header] = ()
) -> Coroutine[Any, Any, None]:
    """A whole response of any kind."""
    length = (b"content-length", b"%d" % len(body))
    head = [(b"content-type", content_type), (b"cache-control", b"no-store"), length, *headers]
    return send_whole(send, status, head, body)


async def send_start(send: Send, status: int, content_type: bytes, headers: Iterable[Header] = ()) -> None:
    """The head of a response."""
    head = [(b"content-type", content_type), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})


async def send_whole(send: Send, status: int, head: Sequence[Header], body: bytes) -> None:
    """A head and the whole body after it: at once, where nobody has to be waited for."""
    if not isinstance(send, Outgoing) or not send.answer(status, head, body):
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})


async def send_stream_start(send: Send, content_type: bytes, headers: Iterable[Header] = ()) -> None:
    """The head of a stream: nobody on the way is to keep it back."""
    head = [
        (b"content-type", content_type),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": head})


def until_gone(
    work: Coroutine[Any, Any, None], receive: Receive, exchange: Exchange | None = None
) -> Coroutine[Any, Any, None]:
    """Run `work`, cancelling it when the client goes away. `exchange` tells of that where the server is ours."""
    return _while_received(work, receive) if exchange is None else _while_there(work, exchange)


async def _while_there(work: Coroutine[Any, Any, None], exchange: Exchange) -> None:
    task = exchange.task
    exchange.ends_with_client(True)
    try:
        await work
    except asyncio.CancelledError:
        if task is None or not exchange.gone:
            raise
        task.uncancel()
    finally:
        exchange.ends_with_client(False)


async def _while_received(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    task = asyncio.current_task()
    if task is None:  # an event loop that is not asyncio's
        await work
        return
    watch = _Watch(receive, task)
    try:
        await work
    except asyncio.CancelledError:
        if not watch.gone:
            raise
        task.uncancel()
    finally:
        watch.close()


class _Watch:
    """Cancels a task when another's `receive` says that the client has gone.

    `receive` is stepped by hand instead of in a task of its own: a task for every request costs more than all the rest
    of what is done here.
    """

    __slots__ = ("_receive", "_receiving", "_task", "gone")

    def __init__(self, receive: Receive, task: asyncio.Task[Any]) -> None:
        self.gone = False
        self._task: asyncio.Task[Any] | None = task
        self._receive = receive
        self._receiving = receive()
        self._step(None)

    def _step(self, _: object) -> None:
        while self._task is not None:
            try:
                waited = self._receiving.send(None)  # type: ignore[attr-defined]
            except StopIteration as done:
                if done.value["type"] == "http.disconnect":
                    self.gone = True
                    self._task.cancel()
                    self._task = None
                    return
                self._receiving = self._receive()
                continue
            if not isinstance(waited, asyncio.Future):
                return  # nothing to wait for that could be watched: the send that fails will tell
            waited._asyncio_future_blocking = False  # noqa: SLF001 — what a task does with a future it is given
            waited.add_done_callback(self._step)
            return

    def close(self) -> None:
        """Stop watching."""
        self._task = None
        self._receiving.close()  # type: ignore[attr-defined]

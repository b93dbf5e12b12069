"""Reading and writing on bare ASGI; CORS; client gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias

import orjson

from slipform.errors import RequestError, TooLargeError
from slipform.proxy.http_server.request_cycle import RequestCycle
from slipform.proxy.observability.call_record import CallRecord, Header

_MAX_KEPT = 64 * 1024


class RecordingSend:
    """An ASGI `send` that notes the status, the first byte and the end; with `keep`, also the first of the body.

    `exchange` is there where the server is ours and nobody stands between: for what need not be waited for.
    """

    __slots__ = ("_record", "_send", "begun", "exchange", "extra", "kept", "whole")

    def __init__(
        self, send: Send, record: CallRecord, *, exchange: RequestCycle | None = None, keep: bool = False
    ) -> None:
        self.exchange = exchange
        self._send = send
        self._record = record
        self.begun = False
        """Whether the head has left."""
        self.extra: Sequence[Header] = ()
        """Headers that the answer has whatever it is."""
        self.whole = False
        """Whether the last byte has been handed over."""
        self.kept = bytearray() if keep else None

    def __call__(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        """Send, and note."""
        if message["type"] == "http.response.body":
            if self._record.first_byte is None:
                self._record.first_byte = time.monotonic()
            if not message.get("more_body"):
                self.whole = True
                self._record.ended = time.monotonic()
            self._keep(message.get("body", b""))
        else:
            self.begun = True
            if self.extra:
                message = {**message, "headers": [*message["headers"], *self.extra]}
            self._record.status = message["status"]
        return self._send(message)

    def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """Write a whole answer at once; False, and nothing was written, as with `push`."""
        exchange = self.exchange
        if exchange is None or not exchange.answer(status, [*headers, *self.extra] if self.extra else headers, body):
            return False
        record = self._record
        self.begun = self.whole = True
        record.status = status
        record.first_byte = record.ended = time.monotonic()
        self._keep(body)
        return True

    @property
    def can_push(self) -> bool:
        """Whether `push` would write now."""
        return self.exchange is not None and self.exchange.can_push

    def push(self, data: bytes) -> bool:
        """Write one more piece of a begun stream at once.

        False: nothing was written, because the client does not keep up or the server is another's; `send` it instead.
        """
        if self.exchange is None or not self.exchange.push(data):
            return False
        if self._record.first_byte is None:
            self._record.first_byte = time.monotonic()
        self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        if self.kept is not None and len(self.kept) <= _MAX_KEPT:
            self.kept += data


Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
_NOTHING: Mapping[str, Any] = {}
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def exchange_of(scope: Scope, send: Send) -> RequestCycle | None:
    """The request on our own server, if it is ours and nobody stands in between: some things go quicker there."""
    found = scope.get("extensions", _NOTHING).get("slipform")
    return found if isinstance(found, RequestCycle) and send == found.send else None


async def read_body(
    receive: Receive, max_bytes: int, exchange: RequestCycle | None = None, declared: bytes | None = None
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
    if not isinstance(send, RecordingSend) or not send.answer(status, head, body):
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


def run_until_disconnected(
    work: Coroutine[Any, Any, None], receive: Receive, out: RecordingSend
) -> Coroutine[Any, Any, None]:
    """Run `work`, cancelling it when the client goes away before the last byte has been handed to `out`."""
    return _run_watching(work, receive, out) if out.exchange is None else _run_hooked(work, out.exchange)


async def _run_hooked(work: Coroutine[Any, Any, None], exchange: RequestCycle) -> None:
    """Our own server cancels the task of the request itself, so that no other task has to wait for news."""
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


async def _run_watching(work: Coroutine[Any, Any, None], receive: Receive, out: RecordingSend) -> None:
    """Another server tells of a client that has gone only to who waits for `receive`: a task of its own does."""
    task, gone = asyncio.current_task(), False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        if task is not None and not out.whole:  # servers say the same once the response is complete
            gone = True
            task.cancel()

    watching = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if task is None or not gone:
            raise
        task.uncancel()
    finally:
        watching.cancel()


_DAY = b"86400"
_EXPOSED = (
    b"x-request-id, x-slipform-request-id, x-slipform-provider, x-slipform-model, x-slipform-strategy, "
    b"x-slipform-attempts, x-slipform-repaired, x-slipform-patched, x-slipform-warnings, x-slipform-cache, "
    b"x-slipform-fallbacks, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests"
)


class Cors:
    """Answers browsers that ask whether a page may call, and marks what such a page may read."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def marks(self, scope: Scope) -> list[Header]:
        """The headers that let the page read the answer, streams included."""
        return self._marks(dict(scope["headers"]))

    async def preflight(self, scope: Scope, send: Send) -> bool:
        """Answer a browser's question before the call; False when it is not one."""
        headers = dict(scope["headers"])
        if scope["method"] != "OPTIONS" or b"access-control-request-method" not in headers:
            return False
        marks = self._marks(headers)
        if any(name == b"access-control-allow-origin" for name, _ in marks):
            marks += [
                (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
                (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
                (b"access-control-max-age", _DAY),
            ]
        await send({"type": "http.response.start", "status": 204, "headers": marks})
        await send({"type": "http.response.body", "body": b""})
        return True

    def _marks(self, headers: dict[bytes, bytes]) -> list[Header]:
        origin = headers.get(b"origin")
        marks: list[Header] = [] if self._any else [(b"vary", b"origin")]
        if origin is not None and (self._any or origin in self._origins):
            allowed = b"*" if self._any else origin
            marks += [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED)]
        return marks


def with_headers(send: Send, headers: Sequence[Header]) -> Send:
    """The same `send`, adding these to the head of the response."""
    if not headers:
        return send

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return sending

"""Read requests and write responses over ASGI, add CORS headers, cancel when the client disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import msgspec
import orjson

from slipform.addons.server.http_server.request_cycle import RequestCycle
from slipform.addons.server.observability.call_record import CallRecord, Header
from slipform.errors import RequestError, TooLargeError
from slipform.providers.network.content_encoding import decoder_for
from slipform.providers.network.transport import ProtocolError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_MAX_CAPTURED = 64 * 1024
JSON_LINES = b"\r\ncontent-type: application/json\r\ncache-control: no-store"
"""The lines of a head that says what `send_bytes` does."""
_MAX_QUERY_FIELDS = 64
_LARGE = 64 * 1024
"""Bytes from which decompression leaves the event loop."""


class UnknownEncodingError(RequestError):
    """The body is compressed in a way that is not read here."""

    code = "unsupported_encoding"
    http_status = 415


class RecordingSend(msgspec.Struct):
    """An ASGI `send` that records status, first byte and end."""

    send: Send
    record: CallRecord
    cycle: RequestCycle | None = None
    """Set where the server is ours and no middleware is in between: it writes without waiting."""
    extra: Sequence[Header] = ()
    """Headers added to any response."""
    captured: bytearray | None = None
    """The first 64 KB of the body, where they are wanted."""
    head_sent: bool = False
    """Whether the head has been sent."""
    complete: bool = False
    """Whether the last byte has been sent."""

    def __call__(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        """Send a message and record it."""
        if message["type"] == "http.response.body":
            if self.record.first_byte is None:
                self.record.first_byte = time.monotonic()
            if not message.get("more_body"):
                self.complete = True
                self.record.ended = time.monotonic()
            self._capture(message.get("body", b""))
        else:
            self.head_sent = True
            if self.extra:
                message = {**message, "headers": [*message["headers"], *self.extra]}
            self.record.status = message["status"]
        return self.send(message)

    def answer(self, status: int, headers: Sequence[Header], body: bytes, lines: bytes = b"") -> bool:
        """Write a whole response at once; return False when nothing was written, as with `push`.

        `lines` are further headers, encoded as in the head; with them, the length is added here.
        """
        cycle = self.cycle
        if cycle is None or not cycle.answer(status, [*headers, *self.extra] if self.extra else headers, body, lines):
            return False
        record = self.record
        self.head_sent = self.complete = True
        record.status = status
        record.first_byte = record.ended = time.monotonic()
        if self.captured is not None:
            self._capture(body)
        return True

    def push(self, data: bytes) -> bool:
        """Write one more piece of a started stream at once.

        Returns False when nothing was written, because the client reads too slowly or the server is not ours; use
        `send` then.
        """
        if self.cycle is None or not self.cycle.push(data):
            return False
        if self.record.first_byte is None:
            self.record.first_byte = time.monotonic()
        if self.captured is not None:
            self._capture(data)
        return True

    def _capture(self, data: bytes) -> None:
        if self.captured is not None and len(self.captured) <= _MAX_CAPTURED:
            self.captured += data


_NO_EXTENSIONS: Mapping[str, Any] = {}


def cycle_of(scope: Scope, send: Send) -> RequestCycle | None:
    """Return the request cycle of our own server, if no middleware wraps `send`; else None."""
    cycle = scope.get("extensions", _NO_EXTENSIONS).get("slipform")
    if isinstance(cycle, RequestCycle) and send == cycle.send:
        return cycle
    return None


def client_address(scope: Scope) -> str:
    """Return the address of the client, as reported by the socket or a trusted balancer."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def local_host(scope: Scope) -> str:
    """The address of this machine at which a request came in."""
    server = scope.get("server")
    return str(server[0]) if server else ""


def read_query(scope: Scope) -> dict[str, str]:
    """Return the fields of the query, of each the last value; raises `RequestError` for very many."""
    try:
        fields = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError:
        raise RequestError(f"The query has more than {_MAX_QUERY_FIELDS} fields") from None
    return {name: values[-1] for name, values in fields.items()}


async def read_body(
    receive: Receive, max_bytes: int, cycle: RequestCycle | None = None, content_length: bytes | None = None
) -> bytes:
    """Return the request's body; raises `TooLargeError` beyond the limit, `RequestError` after a disconnect."""
    if cycle is not None and (body := cycle.take()) is not None:
        check_size(len(body), max_bytes)
        return body
    # Before a client that expects `100 Continue` is told to send it.
    if content_length is not None and content_length.isdigit() and len(content_length) < 20:
        check_size(int(content_length), max_bytes)
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client went away before the request was whole")
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        check_size(size, max_bytes)
        more = message.get("more_body", False)
    return part if len(parts) == 1 else b"".join(parts)


async def decompressed(body: bytes, encoding: bytes, max_bytes: int) -> bytes:
    """Return a compressed body as it was; raises `TooLargeError` once it exceeds the limit."""
    name = encoding.decode("latin-1").strip().lower()
    if name in ("", "identity") or not body:
        return body
    if len(body) > _LARGE:
        return await asyncio.to_thread(_decompress, body, name, max_bytes)
    return _decompress(body, name, max_bytes)


def _decompress(body: bytes, name: str, max_bytes: int) -> bytes:
    try:
        decoder = decoder_for(name)
    except ProtocolError:
        hint = "Send it as gzip, deflate, br or zstd, or uncompressed."
        raise UnknownEncodingError(f"The content encoding {name[:40]!r} is not read here", hint=hint) from None
    parts: list[bytes] = []
    size = 0
    decoder.feed(body)
    try:
        while (part := decoder.decode()) is not None:
            parts.append(part)
            size += len(part)
            check_size(size, max_bytes)
        decoder.finish()
    except ProtocolError as error:
        if error.reason == "too_large":
            raise TooLargeError("The body unfolds to far more than it is", hint="Send it uncompressed.") from None
        raise RequestError(f"The body is not valid {name}", where="content-encoding") from None
    return b"".join(parts)


def check_size(size: int, max_bytes: int) -> None:
    """Raise `TooLargeError` for a body beyond the limit."""
    if size > max_bytes:
        raise TooLargeError(f"The request is larger than {max_bytes:,} bytes", hint="Send less in one request.")


async def send_json(send: Send, status: int, content: Any) -> None:
    """Send a whole JSON response."""
    await send_bytes(send, status, orjson.dumps(content))


def send_bytes(send: Send, status: int, body: bytes, headers: Iterable[Header] = ()) -> Coroutine[Any, Any, None]:
    """Send a whole JSON response that is encoded already."""
    return send_page(send, status, body, b"application/json", headers)


def send_page(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Iterable[Header] = ()
) -> Coroutine[Any, Any, None]:
    """Send a whole response of any content type."""
    length = (b"content-length", b"%d" % len(body))
    head = [(b"content-type", content_type), (b"cache-control", b"no-store"), length, *headers]
    return send_whole(send, status, head, body)


async def send_start(send: Send, status: int, content_type: bytes, headers: Iterable[Header] = ()) -> None:
    """Send the head of a response."""
    head = [(b"content-type", content_type), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})


async def send_whole(send: Send, status: int, head: Sequence[Header], body: bytes) -> None:
    """Send a head and the whole body, in one write where possible."""
    if not isinstance(send, RecordingSend) or not send.answer(status, head, body):
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})


async def send_stream_start(send: Send, content_type: bytes, headers: Iterable[Header] = ()) -> None:
    """Send the head of a stream, with headers that keep proxies from buffering it."""
    head = [
        (b"content-type", content_type),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        *headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": head})


async def run_until_disconnected(work: Coroutine[Any, Any, None], receive: Receive, out: RecordingSend) -> None:
    """Run `work`, and cancel it when the client disconnects before the last byte was sent to `out`."""
    if out.cycle is None:
        await _run_with_watcher(work, receive, out)
    else:
        with out.cycle:
            await work


async def _run_with_watcher(work: Coroutine[Any, Any, None], receive: Receive, out: RecordingSend) -> None:
    """Run `work` on another server, which reports a disconnect only through `receive`: a second task waits for it."""
    task = asyncio.current_task()
    disconnected = False

    async def watch() -> None:
        nonlocal disconnected
        while (await receive())["type"] != "http.disconnect":
            pass
        if task is not None and not out.complete:  # servers send the same message after a complete response
            disconnected = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await work
    except asyncio.CancelledError:
        if task is None or not disconnected:
            raise
        task.uncancel()
    finally:
        watcher.cancel()


_DAY = b"86400"
_EXPOSED = (
    b"x-request-id, x-slipform-request-id, x-slipform-provider, x-slipform-model, x-slipform-strategy, "
    b"x-slipform-attempts, x-slipform-repaired, x-slipform-patched, x-slipform-warnings, x-slipform-cache, "
    b"x-slipform-fallbacks, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests"
)


class Cors:
    """Answers preflight requests of browsers, and adds the headers that let a page read responses."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def cors_headers(self, scope: Scope) -> list[Header]:
        """Return the headers that let the page read the response, streams included."""
        return self._headers_for(dict(scope["headers"]))

    async def preflight(self, scope: Scope, send: Send) -> bool:
        """Answer a preflight request; return False when it is not one."""
        headers = dict(scope["headers"])
        if scope["method"] != "OPTIONS" or b"access-control-request-method" not in headers:
            return False
        cors_headers = self._headers_for(headers)
        if any(name == b"access-control-allow-origin" for name, _ in cors_headers):
            cors_headers += [
                (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
                (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
                (b"access-control-max-age", _DAY),
            ]
        await send({"type": "http.response.start", "status": 204, "headers": cors_headers})
        await send({"type": "http.response.body", "body": b""})
        return True

    def _headers_for(self, headers: dict[bytes, bytes]) -> list[Header]:
        origin = headers.get(b"origin")
        cors_headers: list[Header] = [] if self._any else [(b"vary", b"origin")]
        if origin is not None and (self._any or origin in self._origins):
            allowed = b"*" if self._any else origin
            cors_headers += [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED)]
        return cors_headers


def with_headers(send: Send, headers: Sequence[Header]) -> Send:
    """Return a `send` that adds these headers to the response."""
    if not headers:
        return send

    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return send_with_headers

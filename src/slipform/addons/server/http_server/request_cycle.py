"""Handle one request and its response as an ASGI cycle, and encode response heads."""

from __future__ import annotations

import asyncio
import http
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from slipform.addons.server.observability.call_record import Header

if TYPE_CHECKING:
    from slipform.addons.server.http_server.connection import ServerConnection

_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROLS = bytes([*range(9), *range(10, 32), 127])
"""Not allowed in a value: a line end could start another header, or a body."""
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_BODYLESS = frozenset({204, 304})
_END = b"\r\n\r\n"
_LAST_END = b"\r\nconnection: close\r\n\r\n"


class Head(msgspec.Struct, frozen=True):
    """An encoded head, and the framing of its body: a length, chunks, or everything until the end."""

    data: bytes
    length: int | None
    chunked: bool
    keep_alive: bool


def encode_head(
    status: int,
    headers: Iterable[Header],
    *,
    lines: bytes = b"",
    keep_alive: bool = True,
    is_http11: bool = True,
    is_head_request: bool = False,
) -> Head:
    r"""Return the encoded head of a response; raises `ValueError` for headers that would break its framing.

    `lines` are headers that are encoded already.

    >>> encode_head(200, [(b"content-length", b"2")]).data
    b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n'
    >>> encode_head(200, [(b"x-name", b"a\r\nset-cookie: b")])
    Traceback (most recent call last):
    ValueError: A header of the answer holds a line end or another control character
    """
    headers = tuple(headers)
    parts = [_status_line(status), lines, encode_lines(headers)]
    length, chunked, closes = _framing(headers)
    keep_alive = keep_alive and not closes
    if status in _BODYLESS:
        chunked = False
        length = None
    elif length is not None:
        if chunked:
            raise ValueError("The answer's head says both how long the body is and that it comes in chunks")
        parts.append(b"\r\ncontent-length: %d" % length)
    elif not is_head_request:
        chunked = is_http11
        keep_alive = keep_alive and is_http11
        if is_http11:
            parts.append(b"\r\ntransfer-encoding: chunked")
    parts.append(_END if keep_alive else _LAST_END)
    if is_head_request or status in _BODYLESS:
        return Head(b"".join(parts), 0, chunked=False, keep_alive=keep_alive)
    return Head(b"".join(parts), length, chunked, keep_alive)


def encode_lines(headers: Iterable[Header]) -> bytes:
    r"""Return headers, but for those of the framing, as lines; raises `ValueError` for those that would end a line.

    >>> encode_lines([(b"X-Name", b"Ada"), (b"content-length", b"2")])
    b'\r\nx-name: Ada'
    """
    parts: list[bytes] = []
    values = []
    for name, value in headers:
        line = _header_line(name)
        if line is not None:
            parts += (line, value)
            values.append(value)
    joined = b"".join(values)
    if joined and len(joined.translate(None, _CONTROLS)) != len(joined):
        raise ValueError("A header of the answer holds a line end or another control character")
    return b"".join(parts)


def _framing(headers: Iterable[Header]) -> tuple[int | None, bool, bool]:
    """Return the framing that the headers declare: the length, whether it is chunked, whether the connection closes."""
    length = None
    chunked = False
    closes = False
    for name, value in headers:
        if _header_line(name) is not None:  # not a framing header; cached, so faster than comparing names in lower case
            continue
        lower_name = name.lower()
        if lower_name == b"content-length":
            length = _length(value, length)
        elif lower_name == b"connection":
            closes = closes or b"close" in value.lower()
        else:  # transfer-encoding
            chunked = _is_chunked(value)
    return length, chunked, closes


def date_line() -> bytes:
    """Return the `date` header line; the server builds it once a second."""
    return b"\r\ndate: " + formatdate(time.time(), usegmt=True).encode()


def refusal(
    status: int, body: bytes, content_type: bytes = b"text/plain; charset=utf-8", more: Iterable[Header] = ()
) -> bytes:
    """Return the bytes of a response after which the connection is closed."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *more]
    return encode_head(status, headers, keep_alive=False).data + body


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    if not 200 <= status <= 999:
        raise ValueError(f"An answer cannot have the status {status}")
    return f"HTTP/1.1 {status} {phrase}".encode()


@lru_cache(maxsize=1024)
def _header_line(name: bytes) -> bytes | None:
    """Return a header's line up to its value; None for framing headers, which the server writes itself."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is not a valid header name")
    lower_name = name.lower()
    if lower_name in _FRAMING:
        return None
    return b"\r\n%b: " % lower_name


def _length(value: bytes, previous: int | None) -> int:
    if not value.isdigit() or previous is not None:
        raise ValueError("The response has two content-lengths, or one that is not a number")
    return int(value)


def _is_chunked(value: bytes) -> bool:
    if value.lower() != b"chunked":
        raise ValueError("A response's transfer-encoding can only be chunked")
    return True


_log = logging.getLogger("slipform.server")
_FAILED = refusal(500, b"Internal Server Error")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MAX_JOINED_BODY = 64 * 1024
"""A body up to this size is written together with its head."""
App = Callable[[MutableMapping[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[None]]], Any]


class RequestCycle:
    """One request and its response: ASGI's `receive` and `send`, and shortcuts for our own application.

    The shortcuts are in the scope, as `scope["extensions"]["slipform"]`: `ends_with_client`, `push` and `answer`.
    """

    __slots__ = (
        "_body_delivered", "_buffer", "_chunked", "_connection", "_expects", "_head", "_is_head", "_is_http11",
        "_remaining", "_wake_event", "body_complete", "complete", "counted_network", "disconnected", "head_written",
        "is_cancelled_with_client", "keep_alive", "scope", "task",
    )  # fmt: skip

    def __init__(
        self,
        connection: ServerConnection,
        scope: MutableMapping[str, Any],
        *,
        keep_alive: bool,
        is_http11: bool,
        expects: bool,
    ) -> None:
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        """Whether another request may follow on the connection."""
        self._is_http11 = is_http11
        self._expects = expects
        """Whether the client waits for `100 Continue` before it sends the body."""
        self._is_head = scope["method"] == "HEAD"
        self._buffer: bytes | bytearray = b""
        self.body_complete = False
        """Whether the request's last byte has arrived."""
        self._body_delivered = False
        self.head_written = False
        """Whether the response's head is encoded."""
        self.complete = False
        """Whether the response's last byte is written."""
        self.disconnected = False
        """Whether the client disconnected before that."""
        self._head = b""
        """The encoded head, until it is written with what follows it."""
        self._chunked = False
        self._remaining: int | None = None
        self._wake_event: asyncio.Event | None = None
        self.is_cancelled_with_client = False
        """Whether the task is cancelled when the client disconnects."""
        self.counted_network: str | None = None
        """The key under which the request is counted, see `ServerState.count_address`."""
        self.task: asyncio.Task[None] | None = None

    async def run(self, app: App) -> None:
        """Run the application on the request."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._abandon()
            raise
        except Exception:  # noqa: BLE001 — whatever it was, this connection only
            _log.exception("server: unexpected error in the application")
            self._abandon(_FAILED)
        else:
            if not self.head_written and not self.disconnected:
                _log.error("server: the application ended without a response")
                self._abandon(_FAILED)
            elif not self.complete:
                self._abandon()
        finally:
            self.scope = {}  # it refers to this cycle, as does the task
            self.task = None
            self._connection.cycle_ended(self)

    def _abandon(self, fallback_response: bytes = b"") -> None:
        """Close the connection after an unfinished response, so that the client notices."""
        if not self.complete and not self.disconnected:
            self.complete = True
            self._flush()
            self._connection.abandon(b"" if self.head_written else fallback_response)

    # The request.

    def add(self, data: bytes) -> int:
        """Add the next piece of the body; return how many bytes of it the application has not read."""
        if self.complete:
            return 0
        buffered = self._buffer
        if not buffered:
            self._buffer = data
        elif isinstance(buffered, bytearray):
            buffered += data
        else:
            self._buffer = bytearray(buffered) + data
        if self._wake_event is not None:
            self.wake()
        return len(self._buffer)

    def end(self) -> None:
        """End the body."""
        self.body_complete = True
        if self._wake_event is not None:
            self.wake()

    @property
    def buffered(self) -> int:
        """Bytes of the body received but not yet read by the application."""
        return 0 if self.complete else len(self._buffer)

    def wake(self) -> None:
        """Wake the task that waits in `receive`."""
        if self._wake_event is not None:
            self._wake_event.set()

    def on_disconnect(self) -> None:
        """Handle the disconnect of the client."""
        if not self.complete:
            self.disconnected = True
            self.ends_with_client(self.is_cancelled_with_client)
        self.wake()

    def ends_with_client(self, cancels: bool) -> None:
        """Set whether the task is cancelled when the client disconnects, or already has, before the response's end."""
        self.is_cancelled_with_client = cancels
        if cancels and self.disconnected and self.task is not None:
            self.task.cancel()

    def __enter__(self) -> Self:
        """Cancel the task, from now on, when the client disconnects, or where it already has."""
        self.is_cancelled_with_client = True
        if self.disconnected:
            self.ends_with_client(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End what was cancelled because the client disconnected; any other cancellation continues."""
        self.is_cancelled_with_client = False
        if kind is not asyncio.CancelledError or not self.disconnected or self.task is None:
            return False
        self.task.uncancel()
        return True

    def make_room(self) -> bool:
        """Abort another request, whose client does not read, in favour of this one; return False without one."""
        return self._connection.state.cut_stalled()

    def take(self) -> bytes | None:
        """Return the whole body if it has arrived and none of it was received; else None: use `receive`."""
        if not self.body_complete or self._body_delivered or self.disconnected or self.complete:
            return None
        data = self._buffer
        self._buffer = b""
        self._body_delivered = True
        if self._connection.is_paused:
            self._connection.update_reading()
        return bytes(data)

    async def receive(self) -> MutableMapping[str, Any]:
        """Return ASGI's next message: a piece of the body, or the disconnect."""
        while not (self.disconnected or self.complete):
            if self._buffer or (self.body_complete and not self._body_delivered):
                data = self._buffer
                self._buffer = b""
                self._body_delivered = self.body_complete
                self._connection.update_reading()
                return {"type": "http.request", "body": bytes(data), "more_body": not self.body_complete}
            if self._expects and not self.body_complete and not self.head_written:
                self._expects = False
                self._connection.write(_CONTINUE)
            if self._wake_event is None:
                self._wake_event = asyncio.Event()
            self._wake_event.clear()
            await self._wake_event.wait()
        return {"type": "http.disconnect"}

    # The response.

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Write ASGI's next message: the head, then pieces of the body; waits while the client does not read."""
        if self._connection.full:
            await self._connection.writable()
        if self.disconnected:
            return
        kind = message["type"]
        if self.complete or kind != ("http.response.body" if self.head_written else "http.response.start"):
            raise RuntimeError(f"The application sent {kind} out of order")
        if self.head_written:
            self._write(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))
            self._connection.call_soon(self._flush)

    @property
    def can_push(self) -> bool:
        """Whether the response has started and its client is connected and reads fast enough."""
        return self.head_written and not (self._connection.full or self.disconnected or self.complete)

    def push(self, data: bytes) -> bool:
        """Write one more piece of a started response without waiting.

        Returns False when nothing was written, because the client reads too slowly or disconnected; use `send` then.
        """
        connection = self._connection
        if not self.head_written or connection.full or self.disconnected or self.complete:
            return False
        if self._head:
            self._write(data, more=True)
        elif self._chunked and data:
            connection.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            connection.write(self._framed(data, more=True))
        return True

    def answer(self, status: int, headers: Iterable[Header], body: bytes, lines: bytes = b"") -> bool:
        """Write a whole response at once; return False when nothing was written, as with `push`.

        `lines` are further headers, as they are in the head; with them, the length is added here.
        """
        connection = self._connection
        if connection.full or self.disconnected or self.head_written:
            return False
        is_joined = lines and len(body) <= _MAX_JOINED_BODY
        if not is_joined or self._is_head or status in _BODYLESS:
            if lines:
                headers = (*headers, (b"content-length", b"%d" % len(body)))
            self._begin(status, headers, lines)
            self._write(body, more=False)
            return True
        if headers:
            lines += encode_lines(headers)
        self.keep_alive = self._can_keep_alive()
        end = _END if self.keep_alive else _LAST_END
        head = (_status_line(status), connection.state.date, lines, len(body), end, body)
        self.head_written = self.complete = True
        self._buffer = b""
        if self._wake_event is not None:
            self.wake()
        connection.write(b"%b%b%b\r\ncontent-length: %d%b%b" % head)
        connection.response_complete(self)
        return True

    def _can_keep_alive(self) -> bool:
        """Return whether another request may follow: a client without its `100 Continue` may send the body or not."""
        return self.keep_alive and (not self._expects or self.body_complete)

    def _begin(self, status: int, headers: Iterable[Header], lines: bytes = b"") -> None:
        head = encode_head(
            status,
            headers,
            lines=self._connection.state.date + lines,
            keep_alive=self._can_keep_alive(),
            is_http11=self._is_http11,
            is_head_request=self._is_head,
        )
        self.head_written = True
        self._head = head.data
        self._remaining = head.length
        self._chunked = head.chunked
        self.keep_alive = head.keep_alive

    def _write(self, body: bytes, *, more: bool) -> None:
        data = self._framed(body, more=more)
        head = self._head
        if head:
            self._head = b""
            if len(data) <= _MAX_JOINED_BODY:
                data = head + data
            else:
                self._connection.write(head)
        if data:
            self._connection.write(data)
        if not more:
            self.complete = True
            self._head = self._buffer = b""
            if self._wake_event is not None:
                self.wake()
            self._connection.response_complete(self)

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if self._chunked:
            if more:
                if body:
                    return b"%x\r\n%b\r\n" % (len(body), body)
                return b""
            if body:
                return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            return b"0\r\n\r\n"
        if self._is_head or self._remaining is None:
            return b"" if self._is_head else body
        self._remaining -= len(body)
        if self._remaining < 0 or (self._remaining and not more):
            raise RuntimeError("The answer is longer or shorter than its content-length says")
        return body

    def _flush(self) -> None:
        """Write a head that was not followed by a body within this turn of the event loop."""
        if self._head and not self.disconnected:
            data = self._head
            self._head = b""
            self._connection.write(data)

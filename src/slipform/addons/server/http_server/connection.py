"""Parse the requests of one client's connection, and start them one after the other."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

import httptools

from slipform.addons.server.http_server.request_cycle import App, RequestCycle, refusal
from slipform.addons.server.http_server.state import ServerState
from slipform.addons.server.observability.call_record import Header

_log = logging.getLogger("slipform.server")
_FAILED = refusal(500, b"Internal Server Error")
_INVALID = refusal(400, b"Invalid HTTP request received.")
_OTHER_VERSION = refusal(505, b"Only HTTP/1.1 and HTTP/1.0 are spoken here.")
_TOO_LARGE = refusal(
    431,
    b'{"error":{"message":"The request\'s headers are larger than 64 KB","type":"invalid_request_error"}}',
    b"application/json",
)
_TOO_MANY = refusal(
    431,
    b'{"error":{"message":"The request has too many headers","type":"invalid_request_error"}}',
    b"application/json",
)
_TOO_MANY_CONNECTIONS_BODY = b'{"error":{"message":"Too many connections of this address","type":"rate_limit_error"}}'
_TOO_MANY_CONNECTIONS = refusal(429, _TOO_MANY_CONNECTIONS_BODY, b"application/json", [(b"retry-after", b"1")])
_BLANKS = b" \t"
_UNSENT_BYTES = 128 * 1024
"""Unsent bytes that the system buffers for a client that does not read: its default is megabytes per connection."""
_UNSENT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_CHECKED_HEADERS = frozenset({b"expect", b"transfer-encoding", b"host"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class ServerConnection(asyncio.Protocol):
    """One client's connection: the asyncio protocol that parses requests and starts them one after the other.

    One request is answered at a time. A client that pipelines more is not read from until the responses catch up.
    """

    __slots__ = (
        "_bytes_without_progress", "_counted_network", "_counts_requests", "_current", "_expects", "_headers", "_hosts",
        "_ignores_input", "_in_head", "_incoming", "_made_progress", "_parser", "_queue", "_read_size",
        "_refusal", "_resuming", "_scope_base", "_sent_before", "_transport", "_url", "_waiters", "_written", "due",
        "full", "is_paused", "stalled_since", "state",
    )  # fmt: skip

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.due = math.inf
        """The time at which the client has taken too long."""
        self.full = False
        """Whether the write buffer is full because the client does not read."""
        self._waiters: list[asyncio.Future[None]] = []
        self._transport: Any = None
        self._scope_base: dict[str, Any] = {}
        self._current: RequestCycle | None = None
        """The request that is being answered."""
        self._queue: deque[RequestCycle] = deque()
        """The pipelined requests after it."""
        self._incoming: RequestCycle | None = None
        """The request whose body is being read, or was last."""
        self._ignores_input = False
        """Whether further bytes are ignored."""
        self._refusal = b""
        """The error response to write after the last response."""
        self.is_paused = False
        """Whether nothing is read from the client for now."""
        self._written = 0
        """Bytes written to the transport."""
        self._sent_before = -1
        """Bytes that had left the transport at the last check; `stalled_since` is when they first had."""
        self.stalled_since = 0.0
        self._counted_network: str | None = None
        """The key under which the connection is counted, see `ServerState.count_address`."""
        self._counts_requests = False
        """Whether the peer is a trusted balancer, whose requests are counted by the client it names."""
        self._parser: Any = self._new_parser()
        self._url = b""
        self._headers: list[Header] = []
        self._hosts = 0
        self._expects = False
        self._in_head = False
        self._resuming = False
        self._made_progress = False
        self._read_size = 0
        """The size of the current read; `_bytes_without_progress` is what earlier reads brought without progress."""
        self._bytes_without_progress = 0

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Data after the last request is ignored, and must not fail that request.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # Callbacks of the event loop.

    def connection_made(self, transport: Any) -> None:
        """Register a new connection, and start the limit on its first head."""
        self._transport = transport
        self._scope_base = {
            "type": "http",
            "asgi": _ASGI,
            "scheme": "http",
            "root_path": "",
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }
        if _UNSENT_OPTION is not None and self._scope_base["client"] is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)
        state = self.state
        if len(state.connections) >= state.limits.connections:
            state.evict_idle()
        state.connections.add(self)
        self.due = state.loop.time() + state.limits.head_seconds
        if state.closing:
            transport.close()
        elif state.limits.connections_per_address is not None:
            self._count_connection()

    def _count_connection(self) -> None:
        """Count the connection for its address, unless it is a trusted balancer's, and refuse it beyond the limit."""
        peer = self._scope_base["client"]
        trusted = self.state.trusted
        if trusted is not None and trusted.believes(peer[0] if peer else ""):
            self._counts_requests = True
        elif peer is not None:  # a Unix socket has no address
            self._counted_network = self.state.count_address(peer[0])
            if self._counted_network is None:
                self._refuse(_TOO_MANY_CONNECTIONS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the end of the connection."""
        del exc
        self.state.connections.discard(self)
        if self._counted_network is not None:
            self.state.release_address(self._counted_network)
            self._counted_network = None
        self._ignores_input = True
        self.due = math.inf
        if self._current is not None:
            self._current.on_disconnect()
        self._current = self._incoming = None  # they refer to this connection, as does the parser
        self._queue.clear()
        self._parser = None
        self.resume_writing()

    def eof_received(self) -> None:
        """Treat a half-closed connection as closed."""

    def pause_writing(self) -> None:
        """Note that the write buffer is full."""
        self.full = True

    def resume_writing(self) -> None:
        """Wake the tasks that wait to write."""
        self.full = False
        waiters = self._waiters
        self._waiters = []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes of a request, or of several; refuse what is malformed or over a limit."""
        if self._ignores_input:
            return
        self._read_size = len(data)
        self._made_progress = False
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._refuse(_error_response(error))
            return
        if rest is not None:  # outside the `except`, so that later errors are not chained to this one
            self._not_upgraded(rest)
            return
        if self._made_progress:
            self._bytes_without_progress = 0
            if not self._in_head:
                return
        limits = self.state.limits
        if not self._made_progress:
            self._bytes_without_progress += len(data)
            if self._bytes_without_progress > limits.head_bytes:
                self._refuse(_TOO_LARGE)
                return
        if self._in_head:
            self.due = min(self.due, self.state.loop.time() + limits.head_seconds)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Begin a head."""
        if not self._resuming:
            self._in_head = True
            self._url = b""
            self._headers = []
            self._expects = False
            self._hosts = 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the request target."""
        if self._in_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; trailers are ignored."""
        if self._in_head:
            name = name.lower()
            if name in _CHECKED_HEADERS:
                self._check_header(name, value)
            self._headers.append((name, value))

    def _check_header(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self._expects = value.strip(_BLANKS).lower() == b"100-continue"
        elif name == b"host":
            self._hosts += 1
            if self._hosts > 1:
                raise _RefusedError(_INVALID)
        elif value.strip(_BLANKS).lower() != b"chunked":  # any other encoding would have to be decoded
            raise _RefusedError(_INVALID)

    def on_headers_complete(self) -> None:
        """Check the head, and start or queue its request."""
        self._made_progress = True
        if self._resuming:
            self._resuming = False
            return
        self._in_head = False
        limits = self.state.limits
        parser = self._parser
        if self._bytes_without_progress + self._read_size > limits.head_bytes:
            self._check_size(limits.head_bytes)
        if len(self._headers) > limits.headers:
            raise _RefusedError(_TOO_MANY)
        version = parser.get_http_version()
        is_http11 = version == "1.1"
        if not is_http11:
            self._check_version(version)
            self._expects = False
        elif not self._hosts:
            raise _RefusedError(_INVALID)
        scope = self._scope_base.copy()
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["headers"] = self._headers
        scope["path"], scope["raw_path"], scope["query_string"] = _split(self._url)
        if (trusted := self.state.trusted) is not None:
            scope["scheme"] = trusted.scheme(scope["client"], self._headers)
            scope["client"] = trusted.client(scope["client"], self._headers)
        keep_alive = is_http11 and parser.should_keep_alive()
        cycle = RequestCycle(self, scope, keep_alive=keep_alive, is_http11=is_http11, expects=self._expects)
        scope["extensions"] = {"slipform": cycle}
        self._incoming = cycle
        if self._current is None:
            self._start(cycle)
            return
        previous = self._queue[-1] if self._queue else self._current
        if previous.keep_alive and len(self._queue) < limits.queued:
            self._queue.append(cycle)
            self.update_reading()
        else:
            previous.keep_alive = False  # its response says that no other will follow
            self._incoming = None

    def _check_size(self, limit: int) -> None:
        size = len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])
        if size > limit:
            raise _RefusedError(_TOO_LARGE)

    def _check_version(self, version: str) -> None:
        if version != "1.0":
            raise _RefusedError(_OTHER_VERSION)
        if any(name == b"transfer-encoding" for name, _ in self._headers):  # HTTP/1.0 has no chunks
            raise _RefusedError(_INVALID)

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body."""
        self._made_progress = True
        incoming = self._incoming
        if incoming is not None and incoming.add(body) > self.state.limits.held_bytes:
            self.update_reading()

    def on_message_complete(self) -> None:
        """End the body."""
        self._made_progress = True
        if self._incoming is not None:
            self._incoming.end()
            if self._incoming.complete and self._current is None:  # answered before its body had arrived
                self._become_idle()

    def _not_upgraded(self, rest: bytes) -> None:
        """Ignore a request to upgrade to another protocol: the parser stops there, and a new one reads the rest.

        The rest is the request's body and what follows it, so the new parser gets the framing headers only.
        """
        incoming = self._incoming
        if incoming is None:
            return
        incoming.body_complete = False
        framing = [(name, value) for name, value in incoming.scope["headers"] if name in _FRAMING]
        lines = b"".join([b"%b: %b\r\n" % header for header in framing])
        self._parser = self._new_parser()
        self._resuming = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + lines + b"\r\n")
        if rest:
            self.data_received(rest)

    # The life of requests.

    def _start(self, cycle: RequestCycle) -> None:
        self._current = cycle
        self.due = math.inf
        self.state.running.add(cycle)
        app = self._counted_app(cycle) if self._counts_requests else self.state.app
        cycle.task = self.state.loop.create_task(cycle.run(app))

    def _counted_app(self, cycle: RequestCycle) -> App:
        """Return the application for a balancer's request, or `_too_many_requests` beyond its client's limit."""
        client = cycle.scope["client"]
        cycle.counted_network = self.state.count_address(client[0] if client else "")
        if cycle.counted_network is None:
            return _too_many_requests
        return self.state.app

    def cycle_ended(self, cycle: RequestCycle) -> None:
        """Unregister a request whose task has ended."""
        self.state.running.discard(cycle)
        if cycle.counted_network is not None:
            self.state.release_address(cycle.counted_network)

    def response_complete(self, cycle: RequestCycle) -> None:
        """Continue after the last byte of a response: close, start the next request, or become idle."""
        self._current = None
        if not cycle.keep_alive:
            self._refusal = b""
            self._end()
        elif self._queue:
            self._start(self._queue.popleft())
            self.update_reading()
        else:
            self._become_idle()

    def _become_idle(self) -> None:
        """Wait for the next request."""
        if self._refusal:
            self._end()
            return
        limits = self.state.limits
        incoming = self._incoming
        if self.is_paused:
            self.update_reading()
        if not self._in_head:
            is_complete = incoming is None or incoming.body_complete
            self.due = self.state.loop.time() + (limits.idle_seconds if is_complete else limits.head_seconds)

    def _refuse(self, response: bytes) -> None:
        """Write an error response after those of earlier requests, and ignore further bytes."""
        self._ignores_input = True
        self._refusal = response
        incoming = self._incoming
        if incoming is not None and not incoming.body_complete:  # the error is in the body
            if incoming is self._current:
                self._current = None
                if incoming.head_written:
                    self._refusal = b""
                incoming.on_disconnect()
            elif incoming in self._queue:
                self._queue.remove(incoming)
        if self._current is None:
            self._end()

    def _end(self) -> None:
        self._ignores_input = True
        if self._refusal:
            self.write(self._refusal)
        self._queue.clear()
        if self._incoming is not None and not self._incoming.body_complete and not self.state.closing:
            self._close_after_body()
        else:
            self._transport.close()
        self.due = self.state.loop.time() + self.state.limits.head_seconds

    def _close_after_body(self) -> None:
        """Close for writing, and read on without looking until the client closes or its time is up.

        Closing with unread bytes resets the connection, and many clients that are still sending then never see the
        response (https://httpwg.org/specs/rfc9112.html#persistent.tear-down).
        """
        if self._transport.is_closing():
            return
        if self.is_paused:
            self.is_paused = False
            self._transport.resume_reading()
        self._transport.write_eof()

    def finish(self) -> None:
        """Close after the current response, or now when there is none."""
        self._queue.clear()
        if self._current is None:
            self._end()
        else:
            self._current.keep_alive = False
            self.due = math.inf

    def overdue(self) -> None:
        """Close a connection whose client was too slow; one that still reads the last response is waited for."""
        if self._current is not None:
            self.finish()
        elif not self.unsent():
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self._current is None

    def unsent(self) -> int:
        """Return the bytes in the transport's write buffer."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def seconds_stalled(self, now: float) -> float:
        """Return for how long nothing has left the write buffer, as seen by the calls of this method."""
        unsent = self.unsent()
        if not unsent:
            return 0.0
        if (sent := self._written - unsent) != self._sent_before:
            self._sent_before = sent
            self.stalled_since = now
        return now - self.stalled_since

    def cut_if_stalled(self) -> bool:
        """Abort the current request if its client still reads nothing and it is cancelled with its client."""
        current = self._current
        if current is None or not current.is_cancelled_with_client:
            return False
        if not self.seconds_stalled(self.state.loop.time()):
            return False
        self._transport.abort()
        return True

    def abandon(self, response: bytes) -> None:
        """Close after an unfinished response, with this response if none was started."""
        self._current = None
        self._refusal = response
        self._end()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # Services for request cycles.

    def write(self, data: bytes) -> None:
        """Write to the client, unless the connection is closing."""
        if not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call this on the next turn of the event loop."""
        self.state.loop.call_soon(call)

    async def writable(self) -> None:
        """Wait until the write buffer has room, or the connection is closed."""
        while self.full:
            waiter: asyncio.Future[None] = self.state.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def update_reading(self) -> None:
        """Pause reading while requests are queued or the body buffer is full; resume it otherwise."""
        incoming = self._incoming
        pause = bool(self._queue) or (incoming is not None and incoming.buffered > self.state.limits.held_bytes)
        if pause is not self.is_paused and not self._transport.is_closing():
            self.is_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


async def _too_many_requests(
    scope: MutableMapping[str, Any], receive: Any, send: Callable[..., Awaitable[None]]
) -> None:
    """Answer 429 in place of the application, to a client with too many running requests."""
    del scope, receive
    length = (b"content-length", b"%d" % len(_TOO_MANY_CONNECTIONS_BODY))
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), length]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_MANY_CONNECTIONS_BODY})


class _RefusedError(Exception):
    """Raised in a callback of the parser, with the error response for the client."""

    def __init__(self, response: bytes) -> None:
        super().__init__()
        self.response = response


def _error_response(error: httptools.HttpParserError) -> bytes:
    reason = error.__context__
    if isinstance(reason, _RefusedError):
        return reason.response
    if reason is not None and not isinstance(reason, httptools.HttpParserError):
        _log.error("server: unexpected error while reading a request", exc_info=reason)
        return _FAILED
    return _INVALID


def _split(url: bytes) -> tuple[str, bytes, bytes]:
    """Return the decoded path, the raw path and the query of a request target."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        raw = parsed.path or b"/"
        query = parsed.query or b""
    else:
        raw, _, query = url.partition(b"#")[0].partition(b"?")
    path = raw.decode("ascii")
    return (unquote(path) if "%" in path else path), raw, query


def _address(address: Any) -> tuple[str, int] | None:
    """Return a host and its port; None for sockets that have none."""
    if isinstance(address, (tuple, list)) and len(address) >= 2:
        return (str(address[0]), int(address[1]))
    return None

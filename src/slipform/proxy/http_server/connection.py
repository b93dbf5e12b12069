"""One client's connection: bytes → requests."""

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

from slipform.proxy.http_server.request_cycle import App, RequestCycle, refusal
from slipform.proxy.http_server.state import ServerState
from slipform.proxy.observability.call_record import Header

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
_CROWDED_BODY = b'{"error":{"message":"Too many connections of this address","type":"rate_limit_error"}}'
_CROWDED = refusal(429, _CROWDED_BODY, b"application/json", [(b"retry-after", b"1")])
_BLANKS = b" \t"
_UNSENT_BYTES = 128 * 1024
"""What the system takes for a client that does not read: its own choice is some megabytes, for every connection."""
_UNSENT_OPTION: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_WATCHED = frozenset({b"expect", b"transfer-encoding", b"host"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class ServerConnection(asyncio.Protocol):
    """Reads requests, and starts them one after the other.

    One request is answered at a time. Who sends more before that is not read from until the answers have caught up.
    """

    __slots__ = (
        "_base", "_broken", "_counted", "_counts_requests", "_expects", "_headers", "_hosts", "_in_head",
        "_incoming", "_moved", "_now", "_parser", "_paused", "_queue", "_reading", "_refusal", "_resuming", "_sent",
        "_silent", "_transport", "_url", "_waiters", "_written", "door", "due", "full", "stuck_since",
    )  # fmt: skip

    def __init__(self, door: ServerState) -> None:
        self.door = door
        self.due = math.inf
        """When the client has taken too long."""
        self.full = False
        """Whether the client does not read what is written to it."""
        self._waiters: list[asyncio.Future[None]] = []
        self._transport: Any = None
        self._base: dict[str, Any] = {}
        self._now: RequestCycle | None = None
        """The request that is being answered."""
        self._queue: deque[RequestCycle] = deque()
        """Those after it."""
        self._incoming: RequestCycle | None = None
        """The one whose body is being read, or was last."""
        self._broken = False
        """Whether nothing that comes in is looked at any longer."""
        self._refusal = b""
        """What is said after the last answer."""
        self._paused = False
        self._written = 0
        """Bytes handed to the transport."""
        self._sent = -1
        """Those of them that had left it when that was last looked at; and when they were first seen to have."""
        self.stuck_since = 0.0
        self._counted: str | None = None
        """The network among whose connections this one is counted."""
        self._counts_requests = False
        """Whether a balancer is at the other end, whose requests are counted by the client it names."""
        self._parser: Any = self._new_parser()
        self._url = b""
        self._headers: list[Header] = []
        self._hosts = 0
        self._expects = False
        self._in_head = False
        self._resuming = False
        self._moved = False
        self._reading = 0
        """How much is being read now, and how much was read before it in which no request has come any further."""
        self._silent = 0

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # What follows the last request is not answered; that is no reason not to answer the request.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # What the event loop tells.

    def connection_made(self, transport: Any) -> None:
        """A client is there, and has to say what it wants."""
        self._transport = transport
        self._base = {
            "type": "http",
            "asgi": _ASGI,
            "scheme": "http",
            "root_path": "",
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }
        if _UNSENT_OPTION is not None and self._base["client"] is not None:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)
        door = self.door
        if len(door.connections) >= door.limits.connections:
            door.evict_idle()
        door.connections.add(self)
        self.due = door.loop.time() + door.limits.head_seconds
        if door.closing:
            transport.close()
        elif door.limits.connections_per_address is not None:
            self._count()

    def _count(self) -> None:
        """Count the connection for its address, unless it is a balancer's, and refuse it when there are too many."""
        peer, trusted = self._base["client"], self.door.trusted
        if trusted is not None and trusted.believes(peer[0] if peer else ""):
            self._counts_requests = True
        elif peer is not None:  # a socket of this machine has no address
            self._counted = self.door.take_address(peer[0])
            if self._counted is None:
                self._refuse(_CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        del exc
        self.door.connections.discard(self)
        if self._counted is not None:
            self.door.leave_address(self._counted)
            self._counted = None
        self._broken = True
        self.due = math.inf
        if self._now is not None:
            self._now.lose()
        self._now = self._incoming = None  # which hold this connection in turn, as does the parser
        self._queue.clear()
        self._parser = None
        self.resume_writing()

    def eof_received(self) -> None:
        """The client will say no more, which is taken for its having gone."""

    def pause_writing(self) -> None:
        """The client does not read."""
        self.full = True

    def resume_writing(self) -> None:
        """It does again."""
        self.full = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of several."""
        if self._broken:
            return
        self._reading = len(data)
        self._moved = False
        rest: bytes | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            self._refuse(_said_of(error))
            return
        if rest is not None:  # not where it was caught: an error of what follows would say it came of this one
            self._not_upgraded(rest)
            return
        if self._moved:
            self._silent = 0
            if not self._in_head:
                return
        limits = self.door.limits
        if not self._moved:
            self._silent += len(data)
            if self._silent > limits.head_bytes:
                self._refuse(_TOO_LARGE)
                return
        if self._in_head:
            self.due = min(self.due, self.door.loop.time() + limits.head_seconds)

    # What the parser finds.

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        if not self._resuming:
            self._in_head = True
            self._url = b""
            self._headers = []
            self._expects = False
            self._hosts = 0

    def on_url(self, url: bytes) -> None:
        """What is asked for, or a part of its name."""
        if self._in_head:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; those that come after the body are nobody's."""
        if self._in_head:
            name = name.lower()
            if name in _WATCHED:
                self._watch(name, value)
            self._headers.append((name, value))

    def _watch(self, name: bytes, value: bytes) -> None:
        if name == b"expect":
            self._expects = value.strip(_BLANKS).lower() == b"100-continue"
        elif name == b"host":
            self._hosts += 1
            if self._hosts > 1:
                raise _RefusedError(_INVALID)
        elif value.strip(_BLANKS).lower() != b"chunked":  # an encoding that would have to be undone
            raise _RefusedError(_INVALID)

    def on_headers_complete(self) -> None:
        """The head is whole: its request can begin. Its body is at hand when it came along."""
        self._moved = True
        if self._resuming:
            self._resuming = False
            return
        self._in_head = False
        limits, parser = self.door.limits, self._parser
        if self._silent + self._reading > limits.head_bytes:
            self._check_size(limits.head_bytes)
        if len(self._headers) > limits.headers:
            raise _RefusedError(_TOO_MANY)
        version = parser.get_http_version()
        modern = version == "1.1"
        if not modern:
            self._check_version(version)
            self._expects = False
        elif not self._hosts:
            raise _RefusedError(_INVALID)
        scope = self._base.copy()
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["headers"] = self._headers
        scope["path"], scope["raw_path"], scope["query_string"] = _split(self._url)
        if (trusted := self.door.trusted) is not None:
            scope["scheme"] = trusted.scheme(scope["client"], self._headers)
            scope["client"] = trusted.client(scope["client"], self._headers)
        keep_alive = modern and parser.should_keep_alive()
        made = RequestCycle(self, scope, keep_alive=keep_alive, modern=modern, expects=self._expects)
        scope["extensions"] = {"slipform": made}
        self._incoming = made
        if self._now is None:
            self._start(made)
            return
        before = self._queue[-1] if self._queue else self._now
        if before.keep_alive and len(self._queue) < limits.queued:
            self._queue.append(made)
            self.read_on()
        else:
            before.keep_alive = False  # the client is told, with that answer, that there will be no others
            self._incoming = None

    def _check_size(self, limit: int) -> None:
        size = len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])
        if size > limit:
            raise _RefusedError(_TOO_LARGE)

    def _check_version(self, version: str) -> None:
        if version != "1.0":
            raise _RefusedError(_OTHER_VERSION)
        if any(name == b"transfer-encoding" for name, _ in self._headers):  # chunks, in a version that has none
            raise _RefusedError(_INVALID)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._moved = True
        incoming = self._incoming
        if incoming is not None:
            incoming.add(body)
            if incoming.held > self.door.limits.held_bytes:
                self.read_on()

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._moved = True
        if self._incoming is not None:
            self._incoming.end()
            if self._incoming.complete and self._now is None:  # answered before it was whole
                self._rest()

    def _not_upgraded(self, rest: bytes) -> None:
        """Another protocol was asked for, which is not spoken here. The parser takes what follows for that protocol's.

        It is the request's body, and what follows that: another parser reads it, which is told only how long it is.
        """
        incoming = self._incoming
        if incoming is None:
            return
        incoming.whole = False
        framing = [(name, value) for name, value in incoming.scope["headers"] if name in _FRAMING]
        lines = b"".join([b"%b: %b\r\n" % header for header in framing])
        self._parser = self._new_parser()
        self._resuming = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + lines + b"\r\n")
        if rest:
            self.data_received(rest)

    # What becomes of requests.

    def _start(self, exchange: RequestCycle) -> None:
        self._now = exchange
        self.due = math.inf
        self.door.running.add(exchange)
        app = self._counted_app(exchange) if self._counts_requests else self.door.app
        exchange.task = self.door.loop.create_task(exchange.run(app))

    def _counted_app(self, exchange: RequestCycle) -> App:
        """What answers a balancer's request: the application, unless its client has too many under way."""
        client = exchange.scope["client"]
        exchange.counted = self.door.take_address(client[0] if client else "")
        return _crowded if exchange.counted is None else self.door.app

    def over(self, exchange: RequestCycle) -> None:
        """The application has done with this one."""
        self.door.running.discard(exchange)
        if exchange.counted is not None:
            self.door.leave_address(exchange.counted)

    def answered(self, exchange: RequestCycle) -> None:
        """The last byte of an answer is written."""
        self._now = None
        if not exchange.keep_alive:
            self._refusal = b""
            self._end()
        elif self._queue:
            self._start(self._queue.popleft())
            self.read_on()
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing is being answered."""
        if self._refusal:
            self._end()
            return
        limits, incoming = self.door.limits, self._incoming
        self.read_on()
        if not self._in_head:
            whole = incoming is None or incoming.whole
            self.due = self.door.loop.time() + (limits.idle_seconds if whole else limits.head_seconds)

    def _refuse(self, said: bytes) -> None:
        """What came in is no request: say so after the answers to those before it, and hear no more."""
        self._broken, self._refusal = True, said
        incoming = self._incoming
        if incoming is not None and not incoming.whole:  # it is the body that is bad
            if incoming is self._now:
                self._now = None
                if incoming.begun:
                    self._refusal = b""
                incoming.lose()
            elif incoming in self._queue:
                self._queue.remove(incoming)
        if self._now is None:
            self._end()

    def _end(self) -> None:
        self._broken = True
        if self._refusal:
            self.write(self._refusal)
        self._queue.clear()
        self._transport.close()
        self.due = self.door.loop.time() + self.door.limits.head_seconds

    def finish(self) -> None:
        """End after the answer that is under way, or now when there is none."""
        self._queue.clear()
        if self._now is None:
            self._end()
        else:
            self._now.keep_alive = False
            self.due = math.inf

    def overdue(self) -> None:
        """The client has taken too long to say what it wants; one that still reads the last answer is waited for."""
        if self._now is not None:
            self.finish()
        elif not self.unsent():
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self._now is None

    def unsent(self) -> int:
        """How much the client has still to read, beside what the system keeps for it."""
        size: int = self._transport.get_write_buffer_size()
        return size

    def stuck(self, now: float) -> float:
        """For how long nothing has left of what is to be written, as far as was looked: since another `stuck`."""
        unsent = self.unsent()
        if not unsent:
            return 0.0
        if (sent := self._written - unsent) != self._sent:
            self._sent, self.stuck_since = sent, now
        return now - self.stuck_since

    def cut_if_stalled(self) -> bool:
        """Cut the request under way if its client still reads nothing, and the request is of no use without it."""
        if self._now is None or not self._now.ends or not self.stuck(self.door.loop.time()):
            return False
        self._transport.abort()
        return True

    def break_off(self, instead: bytes) -> None:
        """An answer was left unfinished: close, after saying this."""
        self._now = None
        self._refusal = instead
        self._end()

    def abort(self) -> None:
        """Close, whatever is still to be written."""
        self._transport.abort()

    # What requests need.

    def write(self, data: bytes) -> None:
        """Write to the client, if it is there."""
        if not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def soon(self, call: Callable[[], None]) -> None:
        """Call this on the next turn of the event loop."""
        self.door.loop.call_soon(call)

    async def writable(self) -> None:
        """Wait until the client reads, or is gone."""
        while self.full:
            waiter: asyncio.Future[None] = self.door.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def read_on(self) -> None:
        """Read, unless more is here than is being worked on."""
        incoming = self._incoming
        pause = bool(self._queue) or (incoming is not None and incoming.held > self.door.limits.held_bytes)
        if pause is not self._paused and not self._transport.is_closing():
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


async def _crowded(scope: MutableMapping[str, Any], receive: Any, send: Callable[..., Awaitable[None]]) -> None:
    """Answers, in place of the application, a client that has too many requests under way."""
    del scope, receive
    length = (b"content-length", b"%d" % len(_CROWDED_BODY))
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"1"), length]
    await send({"type": "http.response.start", "status": 429, "headers": headers})
    await send({"type": "http.response.body", "body": _CROWDED_BODY})


class _RefusedError(Exception):
    """Raised where the parser finds what we do not take; with what the client is told."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self.said = said


def _said_of(error: httptools.HttpParserError) -> bytes:
    reason = error.__context__
    if isinstance(reason, _RefusedError):
        return reason.said
    if reason is not None and not isinstance(reason, httptools.HttpParserError):
        _log.error("an unexpected error while a request was read", exc_info=reason)
        return _FAILED
    return _INVALID


def _split(url: bytes) -> tuple[str, bytes, bytes]:
    """A request's target → the path, the path as it was sent, the query."""
    if not url.startswith(b"/"):
        parsed = httptools.parse_url(url)
        raw, query = parsed.path or b"/", parsed.query or b""
    else:
        raw, _, query = url.partition(b"#")[0].partition(b"?")
    path = raw.decode("ascii")
    return (unquote(path) if "%" in path else path), raw, query


def _address(found: Any) -> tuple[str, int] | None:
    """A host and its port; None for sockets that have none."""
    return (str(found[0]), int(found[1])) if isinstance(found, (tuple, list)) and len(found) >= 2 else None

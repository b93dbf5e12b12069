"""Define the HTTP transport interface: `HttpRequest`, `Timeouts`, `ByteStream`, `Transport`.

slipform has one transport, `client.HttpTransport`; anything with the methods of `Transport` can replace it.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

Phase: TypeAlias = Literal["connect", "send", "head", "body"]
Limit: TypeAlias = Literal["connect", "first_byte", "between_chunks", "total"]
Reason: TypeAlias = Literal["broken", "setup", "malformed", "too_large"]
Push: TypeAlias = Callable[[bytes], bool]

_CLOCK_SLACK = 0.005
"""Event loops round the time of their timers; this many seconds too early still count as a timeout."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait; None has no limit.

    `first_byte` runs from the sending of the request until the first byte of the body, so for a response that is not
    streamed it covers the model's whole work. `total` covers one call with its retries.

    >>> Timeouts(total=30).connect
    10.0
    """

    connect: float | None = 10.0
    first_byte: float | None = 300.0
    between_chunks: float | None = 120.0
    total: float | None = 900.0


class Upload(NamedTuple):
    """A request's body that is sent as it arrives, no faster than the server accepts it; it can be sent only once."""

    pieces: AsyncIterator[bytes]
    length: int | None = None
    """The length of all pieces together; without it, chunked framing is used."""


class HttpRequest(msgspec.Struct, frozen=True):
    """One request, ready to send. Its repr never shows headers and query: they may hold keys."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeouts: Timeouts = Timeouts()
    streamed: bool = False
    """Whether the response is streamed; then no compression is offered, since servers buffer for it."""
    method: str = "POST"
    upload: Upload | None = None
    """Replaces `body`; for `open_async` only."""
    max_answer_bytes: int | None = None
    """Replaces the transport's own limit, for responses that are never held whole."""

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url.partition('?')[0]}, {len(self.body)} bytes)"


class ProtocolError(Exception):
    """The bytes received are not a usable HTTP response. Transports raise it as a `TransportFault`."""

    def __init__(self, message: str, reason: Reason = "malformed") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class TransportFault(Exception):  # noqa: N818 — an `Error` of ours is one that users see; this one is always translated
    """The network failed. `phase` says how far the request had come, `limit` which time limit ran out, if any.

    Phases: `connect`: there was no connection. `send`: the request was not sent to its last byte. `head`: it was, and
    no usable head came back. `body`: the response had begun.

    Reasons: `broken`: the connection failed or ended early, and a retry may succeed. `setup`: an address, a proxy or a
    certificate is wrong, and a retry cannot help. `malformed`: the server breaks the rules of HTTP. `too_large`: the
    response is larger than allowed.

    >>> TransportFault("refused", phase="connect").unsent
    True
    """

    def __init__(self, message: str, *, phase: Phase, limit: Limit | None = None, reason: Reason = "broken") -> None:
        super().__init__(message)
        self.message = message
        self.phase = phase
        self.limit = limit
        self.reason = reason

    @property
    def unsent(self) -> bool:
        """Whether the server cannot have received the whole request, so that a retry is safe."""
        return self.phase in ("connect", "send")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.message, self.phase, self.limit, self.reason)


def _rebuild(message: str, phase: Phase, limit: Limit | None, reason: Reason) -> TransportFault:
    return TransportFault(message, phase=phase, limit=limit, reason=reason)


class Deadlines:
    """The time limits of one exchange, counted from its construction.

    >>> clock = iter((100.0, 103.0)).__next__
    >>> Deadlines(Timeouts(connect=10), clock).remaining("connect")
    7.0
    """

    __slots__ = ("_clock", "_first_byte_at", "_started", "_timeouts", "_total_at")

    def __init__(self, timeouts: Timeouts, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timeouts = timeouts
        self._started = clock()
        self._total_at = None if timeouts.total is None else self._started + timeouts.total
        self._first_byte_at: float | None = None

    def request_sent(self) -> None:
        """Start the limit on the first byte of the response."""
        wait = self._timeouts.first_byte
        self._first_byte_at = None if wait is None else self._clock() + wait

    def remaining(self, limit: Limit, waited: float = 0.0) -> float | None:
        """Return the seconds until this limit or the total one, None if neither is set; raises `TimeoutError`.

        `waited` is how long the wait for the next chunk has lasted; it counts for `between_chunks` only.
        """
        now = self._clock()
        deadline = self._first_byte_at if limit == "first_byte" else self._limit_at(limit, now - waited)
        total = self._total_at
        if deadline is None or (total is not None and total < deadline):
            deadline = total
        if deadline is None:
            return None
        if deadline <= now:
            raise TimeoutError
        return deadline - now

    def deadline(self, limit: Limit) -> float | None:
        """Return the time on the monotonic clock at which this limit or the total one expires."""
        remaining = self.remaining(limit)
        if remaining is None:
            return None
        return self._clock() + remaining

    def fault(self, error: OSError | ProtocolError, phase: Phase, limit: Limit) -> TransportFault:
        """Return the error as a `TransportFault`; `limit` is the one that was running."""
        if isinstance(error, TimeoutError):
            is_total = self._total_at is not None and self._clock() >= self._total_at - _CLOCK_SLACK
            return TransportFault("time ran out", phase=phase, limit="total" if is_total else limit)
        reason: Reason = "broken"
        if isinstance(error, ProtocolError):
            reason = error.reason
        elif isinstance(error, ssl.SSLCertVerificationError):
            reason = "setup"
        # An OSError's text may be as bare as "[Errno 104]"; its class says more.
        return TransportFault(f"{error}" or type(error).__name__, phase=phase, reason=reason)

    def _limit_at(self, limit: Limit, since: float) -> float | None:
        if limit == "connect":
            if self._timeouts.connect is None:
                return None
            return self._started + self._timeouts.connect
        if limit == "between_chunks":
            if self._timeouts.between_chunks is None:
                return None
            return since + self._timeouts.between_chunks
        return self._total_at


class ByteStream(Protocol):
    """A response whose head has arrived; header names are lower case."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""

    def read(self) -> bytes:
        """Return the next bytes of the body, decompressed; empty at its end. Raises `TransportFault` if cut short."""

    def close(self) -> None:
        """Stop; closes the connection if the body was not read to its end. Harmless when repeated."""
        ...


class AsyncByteStream(Protocol):
    """`ByteStream`, for `async` callers."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""

    async def read(self) -> bytes:
        """Return the next bytes of the body, decompressed; empty at its end. Raises `TransportFault` if cut short."""

    async def on_body(self, push: Push) -> None:
        """Call `push` with the bytes of the body as they arrive, with b"" at its end, until it returns False.

        At the end of the body it must return False. Raises what `push` raises, and `TransportFault` as `read` does.
        """

    async def close(self) -> None:
        """Stop; closes the connection if the body was not read to its end. Harmless when repeated."""
        ...


class Transport(Protocol):
    """Sends requests; safe to share between threads and event loops. Redirects are never followed."""

    def open(self, request: HttpRequest) -> ByteStream:
        """Send, and wait for the response's head. Raises `TransportFault`."""

    async def open_async(self, request: HttpRequest) -> AsyncByteStream:
        """Send, and wait for the response's head. Raises `TransportFault`; cancelling closes the connection."""

    def close(self) -> None:
        """Close idle connections; those in use close when their response ends."""
        ...

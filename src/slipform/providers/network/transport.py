"""The seam: HttpRequest, Timeouts, ByteStream, Transport, TransportFault.

slipform brings one transport, `client.HttpTransport`; anything with the methods of `Transport` can stand in its place.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

Phase: TypeAlias = Literal["connect", "send", "head", "body"]
Limit: TypeAlias = Literal["connect", "first_byte", "between_chunks", "total"]
Reason: TypeAlias = Literal["broken", "setup", "malformed", "too_large"]
Push: TypeAlias = Callable[[bytes], bool]

_CLOCK_SLACK = 0.005
"""Event loops round the time of their timers; this much too early still counts as run out."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait; None waits for ever.

    `first_byte` runs from the moment the request is sent until the first byte of the answer's body, so for a whole
    (not streamed) answer it covers the model's thinking. `total` covers one call with its retries.

    >>> Timeouts(total=30).connect
    10.0
    """

    connect: float | None = 10.0
    first_byte: float | None = 300.0
    between_chunks: float | None = 120.0
    total: float | None = 900.0


class HttpRequest(NamedTuple):
    """One request, ready to send. Headers and query never show in its repr: they may hold keys."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    timeouts: Timeouts = Timeouts()
    streamed: bool = False
    """Whether the answer is wanted piece by piece; compression is not offered then, since servers buffer for it."""
    method: str = "POST"

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url.partition('?')[0]}, {len(self.body)} bytes)"


class ProtocolError(Exception):
    """The bytes received are not an HTTP answer that can be used. Transports turn it into a `TransportFault`."""

    def __init__(self, message: str, reason: Reason = "malformed") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class TransportFault(Exception):  # noqa: N818 — an `Error` of ours is one that users see; this one is always translated
    """The network failed. `phase` says how far the request had come, `limit` which time limit ran out, if one did.

    Phases: `connect`: there was no connection. `send`: the request was not handed over to its last byte. `head`: it
    was, and nothing or nothing sensible came back. `body`: the answer had begun.

    Reasons: `broken`: the connection failed or ended early, another may do better. `setup`: an address, a proxy or a
    certificate is wrong, and trying again cannot help. `malformed`: the server breaks the rules of HTTP. `too_large`:
    the answer is larger than allowed.

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
        """True when the server cannot have seen the whole request, so that repeating it is safe."""
        return self.phase in ("connect", "send")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.message, self.phase, self.limit, self.reason)


def _rebuild(message: str, phase: Phase, limit: Limit | None, reason: Reason) -> TransportFault:
    return TransportFault(message, phase=phase, limit=limit, reason=reason)


class Deadlines:
    """The time limits of one exchange, from now on.

    >>> clock = iter((100.0, 103.0)).__next__
    >>> Deadlines(Timeouts(connect=10), clock).left("connect")
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
        """The wait for the first byte of the answer begins."""
        wait = self._timeouts.first_byte
        self._first_byte_at = None if wait is None else self._clock() + wait

    def left(self, limit: Limit, waited: float = 0.0) -> float | None:
        """Seconds until this limit or the total one runs out, None when neither is set; `TimeoutError` when past.

        `waited` is how long the wait for the next chunk has lasted; it counts for `between_chunks` only.
        """
        now = self._clock()
        end, total = self._end(limit, now - waited), self._total_at
        if end is None or (total is not None and total < end):
            end = total
        if end is None:
            return None
        if end <= now:
            raise TimeoutError
        return end - now

    def end(self, limit: Limit) -> float | None:
        """The moment on the monotonic clock when `left` will be nothing."""
        left = self.left(limit)
        return None if left is None else self._clock() + left

    def fault(self, error: OSError | ProtocolError, phase: Phase, limit: Limit) -> TransportFault:
        """What went wrong, in the terms of this seam; `limit` is the one that ran when it did."""
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

    def _end(self, limit: Limit, since: float) -> float | None:
        if limit == "first_byte":
            return self._first_byte_at
        if limit == "connect":
            return None if self._timeouts.connect is None else self._started + self._timeouts.connect
        if limit == "between_chunks":
            return None if self._timeouts.between_chunks is None else since + self._timeouts.between_chunks
        return self._total_at


class ByteStream(Protocol):
    """An answer whose head has arrived; header names are lower case."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""
        ...

    def read(self) -> bytes:
        """The next bytes of the body, decompressed; empty at its end. Raises `TransportFault` when it is cut."""
        ...

    def close(self) -> None:
        """Stop: the connection is closed if the body was not read to its end. Harmless when repeated."""
        ...


class AsyncByteStream(Protocol):
    """`ByteStream`, for `async` callers."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""
        ...

    async def read(self) -> bytes:
        """The next bytes of the body, decompressed; empty at its end. Raises `TransportFault` when it is cut."""
        ...

    async def on_body(self, push: Push) -> None:
        """Call `push` with each piece of the body as it arrives, with nothing at its end, until it returns False.

        At the end of the body it must return False. Raises what `push` raises, and `TransportFault` as `read` does.
        """
        ...

    async def close(self) -> None:
        """Stop: the connection is closed if the body was not read to its end. Harmless when repeated."""
        ...


class Transport(Protocol):
    """Sends requests; safe to share between threads and event loops. Redirects are never followed."""

    def open(self, request: HttpRequest) -> ByteStream:
        """Send, and wait for the answer's head. Raises `TransportFault`."""
        ...

    async def open_async(self, request: HttpRequest) -> AsyncByteStream:
        """Send, and wait for the answer's head. Raises `TransportFault`; cancelling it closes the connection."""
        ...

    def close(self) -> None:
        """Close idle connections; those in use close when their answer ends."""
        ...

"""The seam between providers and the network: what a transport is given, gives back and raises.

slipform brings `SocketTransport` (the default) and `PyreqwestTransport` (HTTP/2); anything with these methods can be
put in their place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from slipform.ir.quick import quick

Phase: TypeAlias = Literal["connect", "send", "head", "body"]
Limit: TypeAlias = Literal["connect", "first_byte", "between_chunks", "total"]


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


@quick
@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request, ready to send. Headers and query never show in its repr: they may hold keys."""

    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    streamed: bool = False
    """Whether the answer is wanted piece by piece; a transport may read it whole when not."""
    method: str = "POST"

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url.partition('?')[0]}, {len(self.body)} bytes)"


class TransportFault(Exception):  # noqa: N818 — an `Error` of ours is one that users see; this one is always translated
    """The network failed. `phase` says how far the request had come, `limit` which time limit ran out, if one did.

    `connect`: there was no connection. `send`: the request was not handed over to its last byte. `head`: it was, and
    nothing or nothing sensible came back. `body`: the answer had begun.

    >>> TransportFault("refused", phase="connect").unsent
    True
    """

    def __init__(self, message: str, *, phase: Phase, limit: Limit | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.phase = phase
        self.limit = limit

    @property
    def unsent(self) -> bool:
        """True when the server cannot have seen the whole request, so that repeating it is safe."""
        return self.phase in ("connect", "send")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.message, self.phase, self.limit)


def _rebuild(message: str, phase: Phase, limit: Limit | None) -> TransportFault:
    return TransportFault(message, phase=phase, limit=limit)


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
        """The next bytes of the body; empty at its end. Raises `TransportFault` when it is cut."""
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
        """The next bytes of the body; empty at its end. Raises `TransportFault` when it is cut."""
        ...

    async def close(self) -> None:
        """Stop: the connection is closed if the body was not read to its end. Harmless when repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Begun:
    """An exchange that is under way: the answer as far as it was read, and when the request was sent."""

    stream: AsyncByteStream
    body: bytes
    """All of it, where the status tells of success."""
    sent: float


async def each(stream: AsyncByteStream, take: Callable[[bytes], bool]) -> None:
    """Hand what arrives of a body to `take` at once, nothing at its end, until that answers False, as it then must.

    A stream with an `each` of its own calls `take` where the bytes come in, without waking who waits here.
    """
    own: Callable[[Callable[[bytes], bool]], Awaitable[None]] | None = getattr(stream, "each", None)
    if own is not None:
        await own(take)
        return
    while take(await stream.read()):
        pass


class Transport(Protocol):
    """Sends requests; safe to share between threads and event loops. Redirects are never followed."""

    def open(self, request: HttpRequest) -> ByteStream:
        """Send, and wait for the answer's head. Raises `TransportFault`."""
        ...

    async def open_async(self, request: HttpRequest) -> AsyncByteStream:
        """Send, and wait for the answer's head. Raises `TransportFault`; cancelling it closes the connection."""
        ...

    def close(self) -> None:
        """Let go of pooled connections."""
        ...

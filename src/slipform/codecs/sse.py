"""Server-sent events from bytes split anywhere, and the names every byte-stream decoder shares."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from slipform.errors import UpstreamError

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""How big one event may grow before the stream is given up."""


class Event(NamedTuple):
    """One event of a stream: its name, when it has one, and its data as it came."""

    name: str | None
    data: bytes


class Framing(Protocol):
    """Cuts a stream of bytes into events."""

    @property
    def between(self) -> bool:
        """Whether the next bytes begin an event, and what they say depends on them alone, string by string."""
        ...

    def feed(self, data: bytes) -> list[Event]:
        """The events completed by these bytes."""
        ...

    def finish(self) -> list[Event]:
        """What is left when the stream ends."""
        ...


class SseDecoder:
    r"""Reads `text/event-stream`: LF, CRLF or CR, a byte order mark, comments, a last event without its blank line.

    >>> decoder = SseDecoder()
    >>> decoder.feed(b": hello\n\nevent: ping\ndata: {")
    []
    >>> decoder.feed(b"}\r\n\r\n")
    [Event(name='ping', data=b'{}')]
    """

    __slots__ = ("_after_cr", "_limit", "_pending", "_scanned", "_started")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()
        self._scanned = 0
        self._after_cr = False
        self._started = False

    @property
    def between(self) -> bool:
        """Whether the next bytes begin an event."""
        return self._started and not self._pending and not self._after_cr

    def feed(self, data: bytes) -> list[Event]:
        """The events completed by these bytes."""
        if self._after_cr or b"\r" in data:
            data = self._without_cr(data)
        if self._pending:
            self._pending += data
            # Only new bytes are searched, so that an event that trickles in costs what it weighs.
            if self._pending.find(b"\n\n", max(self._scanned - 1, 0)) < 0:
                self._scanned = len(self._pending)
                self._check(self._scanned)
                return []
            data = bytes(self._pending)
            self._pending.clear()
        elif self._started and data[:6] == b"data: " and data.find(b"\n\n") == data.find(b"\n") == len(data) - 2:
            return [Event(None, data[6:-2])]  # one whole event, as most servers send them
        *blocks, rest = data.split(b"\n\n")
        if rest:
            self._check(len(rest))
            self._pending += rest
        self._scanned = len(rest)
        return self._events(blocks) if blocks else []

    def finish(self) -> list[Event]:
        """The last event, when the stream ended without the blank line that should close it."""
        rest = bytes(self._pending)
        self._pending.clear()
        return self._events([rest]) if rest else []

    def _events(self, blocks: list[bytes]) -> list[Event]:
        if not self._started:
            self._started = True
            blocks[0] = blocks[0].removeprefix(b"\xef\xbb\xbf")
        events = []
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block:
                events.append(Event(None, block[6:]))
            else:
                event = _read_block(block)
                if event is not None:
                    events.append(event)
        return events

    def _without_cr(self, data: bytes) -> bytes:
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            if not data:
                self._after_cr = False
                return data
        if data:
            self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise event_too_big(self._limit)


def _read_block(block: bytes) -> Event | None:
    name: str | None = None
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace")
    return Event(name, b"\n".join(data)) if data else None


def event_too_big(limit: int) -> UpstreamError:
    """The error for an event over the size limit."""
    return UpstreamError(
        f"One event of the model's stream is over {limit} bytes",
        hint="Raise the limit, or ask the model for less at a time.",
        details={"category": "too_large", "limit": limit},
    )

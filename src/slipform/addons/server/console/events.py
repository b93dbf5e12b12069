"""Collect the events that an open console has not received yet, and encode them in batches as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import orjson

from slipform.addons.server.observability.call_record import CallRecord

_MAX_WAITING: Final = 512 * 1024
"""The most bytes of pending events for one client; further ones become a gap, after which the page reads its list."""


class Growth:
    """How far one stream has come: characters of the attempt received, released and pending, and all that were sent."""

    __slots__ = ("attempt", "pending", "received", "released", "sent")

    def __init__(self) -> None:
        self.attempt = 0
        self.received = self.released = self.pending = self.sent = 0

    def add(self, attempt: int, received: int, released: int, pending: int) -> None:
        """Count a piece of the stream."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.received = self.released = 0
        self.received += received
        self.released += released
        self.sent += released
        self.pending = pending


class Subscriber:
    """One open event stream: the events since its last batch; too many become a gap."""

    def __init__(self, watched: str = "") -> None:
        self._watched = watched
        self._position = 0
        """The number of pieces of the watched call that have been sent."""
        self._events: deque[bytes] = deque()
        self._size = 0
        self._missed = 0
        self._started: dict[str, None] = {}
        self._grown: set[str] = set()
        self.positions: dict[str, int] = {}
        """The number of ended calls by worker when the last batch was taken: together, the id of its last event."""
        self.wake = asyncio.Event()

    def put(self, kind: str, data: bytes) -> None:
        """Add an event, or count it as missed."""
        self.relay(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))

    def relay(self, event: bytes) -> None:
        """Add an encoded event; one of another worker has that worker's event id."""
        if event.startswith(b"id: "):
            identity, _, event = event.removeprefix(b"id: ").partition(b"\n")
            self.positions |= positions_of(identity.decode())
        if not event.startswith(b"event: ") or event.startswith(b"event: hello"):
            return
        if self._size + len(event) > _MAX_WAITING:
            self._missed += 1
        else:
            self._events.append(event)
            self._size += len(event)
        self.wake.set()

    def call_started(self, identity: str) -> None:
        """Record that a call began; the next batch reports it, unless it has ended by then."""
        self._started[identity] = None
        self.wake.set()

    def call_ended(self, identity: str, row: bytes, growth: Growth | None, record: CallRecord) -> None:
        """Report that a call ended; nothing is encoded where the event would be missed anyway."""
        self._started.pop(identity, None)
        if self._size + len(row) > _MAX_WAITING:
            self._missed += 1
            return
        self.put_growth(identity, growth, record)
        self.put("end", row)

    def stream_grown(self, identity: str) -> None:
        """Record that a stream grew; the next batch reports how far."""
        self._grown.add(identity)
        self.wake.set()

    def take_changes(self) -> tuple[Iterable[str], Iterable[str]]:
        """Return the calls that began, and the streams that grew, since the last batch."""
        started = self._started
        self._started = {}
        grown = self._grown
        self._grown = set()
        return started, grown

    def put_growth(self, identity: str, growth: Growth | None, record: CallRecord) -> None:
        """Report how far a stream has come, and the new text of the watched call, where it is recorded."""
        if growth is None or not growth.attempt:
            return
        fields: dict[str, Any] = {
            "id": identity,
            "attempt": growth.attempt,
            "received": growth.received,
            "released": growth.released,
            "held": growth.pending,
            "sent": growth.sent,
            "ms": round(record.seconds * 1000, 1),
        }
        if identity == self._watched and record.trace is not None and record.trace.only is None:
            fields["pieces"] = record.trace.pieces[self._position :]
            self._position = len(record.trace.pieces)
        self.put("pour", orjson.dumps(fields))

    def take(self) -> bytes:
        """Return the pending events, and a gap for those that were missed."""
        self.wake.clear()
        events = list(self._events)
        if self._missed:
            events.append(b'event: gap\ndata: {"missed":%d}\n\n' % self._missed)
        self._events.clear()
        self._size = self._missed = 0
        if events:
            events[-1] = self.id_line() + events[-1]
        return b"".join(events)

    def position(self) -> str:
        """Return the id of the next event: a client that reconnects with it receives the events that followed."""
        return ",".join(f"{run}.{ended}" for run, ended in self.positions.items())

    def id_line(self) -> bytes:
        """Return the `id:` line of the next event."""
        return b"id: %s\n" % self.position().encode()


def positions_of(identity: str) -> dict[str, int]:
    """Parse an event id: the number of ended calls by worker; empty for a text that is not an event id.

    >>> positions_of("a1.5,b2.7"), positions_of("nonsense")
    ({'a1': 5, 'b2': 7}, {})
    """
    parts = (part.partition(".") for part in identity.split(",")[:256])
    return {run: int(ended) for run, _, ended in parts if ended.isascii() and ended.isdigit() and len(ended) < 16}

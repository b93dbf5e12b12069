"""Collect what an open console has not received yet, and write it as server-sent events in batches."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import orjson

from slipform.addons.server.observability.call_record import CallRecord

_MAX_WAITING: Final = 512 * 1024
"""Bytes of events that wait for one client; what comes beyond is a gap, which the page fills by asking."""


class Growth:
    """How far one stream has come: characters of its attempt received, released and held back, and sent in all."""

    __slots__ = ("attempt", "pending", "received", "released", "sent")

    def __init__(self) -> None:
        self.attempt = 0
        self.received = self.released = self.pending = self.sent = 0

    def add(self, attempt: int, received: int, released: int, pending: int) -> None:
        """Count a piece."""
        if attempt != self.attempt:
            self.attempt = attempt
            self.received = self.released = 0
        self.received += received
        self.released += released
        self.sent += released
        self.pending = pending


class Subscriber:
    """One open event stream: what has happened since it last looked; too much at once is a gap."""

    def __init__(self, watched: str = "") -> None:
        self._watched = watched
        self._position = 0
        """How many pieces of the watched call have been sent."""
        self._events: deque[bytes] = deque()
        self._size = 0
        self._missed = 0
        self._started: dict[str, None] = {}
        self._grown: set[str] = set()
        self.positions: dict[str, int] = {}
        """How many calls of every worker had ended when the last batch was taken: the id of its last event."""
        self.wake = asyncio.Event()

    def put(self, kind: str, data: bytes) -> None:
        """Hand over an event, or count it as missed."""
        self.relay(b"event: %s\ndata: %s\n\n" % (kind.encode(), data))

    def relay(self, event: bytes) -> None:
        """Hand over an event that is written already, another worker's with the id that it goes by there."""
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
        """Note that a call began; the next batch reports it, unless it has ended by then."""
        self._started[identity] = None
        self.wake.set()

    def ended(self, identity: str, row: bytes, growth: Growth | None, record: CallRecord) -> None:
        """Hand over that a call ended. Nothing is made of it for a client that is not told anyway."""
        self._started.pop(identity, None)
        if self._size + len(row) > _MAX_WAITING:
            self._missed += 1
            return
        self.grown(identity, growth, record)
        self.put("end", row)

    def grew(self, identity: str) -> None:
        """A stream grew; by how much is looked up with the next batch."""
        self._grown.add(identity)
        self.wake.set()

    def taken(self) -> tuple[Iterable[str], Iterable[str]]:
        """The calls that began, and the streams that grew, since the last batch."""
        started = self._started
        self._started = {}
        grown = self._grown
        self._grown = set()
        return started, grown

    def grown(self, identity: str, growth: Growth | None, record: CallRecord) -> None:
        """Report how far a stream has come, and the new text of the watched call, where it is recorded."""
        if growth is None or not growth.attempt:
            return
        fields: dict[str, Any] = {
            "id": identity, "attempt": growth.attempt, "received": growth.received, "released": growth.released,
            "held": growth.pending, "sent": growth.sent, "ms": round(record.seconds * 1000, 1),
        }  # fmt: skip
        if identity == self._watched and record.trace is not None and record.trace.only is None:
            fields["pieces"] = record.trace.pour[self._position :]
            self._position = len(record.trace.pour)
        self.put("pour", orjson.dumps(fields))

    def take(self) -> bytes:
        """All events so far."""
        self.wake.clear()
        lines = list(self._events)
        if self._missed:
            lines.append(b'event: gap\ndata: {"missed":%d}\n\n' % self._missed)
        self._events.clear()
        self._size = self._missed = 0
        if lines:
            lines[-1] = self.mark() + lines[-1]
        return b"".join(lines)

    def position(self) -> str:
        """Return the id of the next event: a client that sends it later gets what came after."""
        return ",".join(f"{run}.{ended}" for run, ended in self.positions.items())

    def mark(self) -> bytes:
        """Return the line of the next event that has its id."""
        return b"id: %s\n" % self.position().encode()


def positions_of(identity: str) -> dict[str, int]:
    """How many calls of every worker had ended, by an event's id; what is not one says nothing.

    >>> positions_of("a1.5,b2.7"), positions_of("nonsense")
    ({'a1': 5, 'b2': 7}, {})
    """
    parts = (part.partition(".") for part in identity.split(",")[:256])
    return {run: int(ended) for run, _, ended in parts if ended.isascii() and ended.isdigit() and len(ended) < 16}

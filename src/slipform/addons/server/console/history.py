"""Store recent calls for the console within a limit of bytes: figures of all calls, text only of traced ones.

Every worker stores its own calls, and its archive, where one is configured, writes them to disk. Only the row of a call
that has ended is stored, as names and figures: reports and answers contain text of models. A row with details is packed
as a JSON array, half the size of an object; a plain row is built when a page shows it.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, TypeAlias

import orjson

from slipform.addons.server.console.archive import CallArchive
from slipform.addons.server.console.conversations import Conversations, read_call
from slipform.addons.server.console.events import Growth, Subscriber, positions_of
from slipform.addons.server.console.rows import Entry, detail_of, entry_of, named, pack, row_of
from slipform.addons.server.observability.call_record import MAX_TRACE_BYTES, CallRecord, CallTrace
from slipform.addons.server.observability.logs import redact

MOST_PINNED: Final = 20
_MOST_RESUMED: Final = 500
"""The most calls that a reconnecting page is sent one by one; after more of them it reads its list again."""


_StoredRow: TypeAlias = bytes | Entry
"""A packed row, or the entry of a plain call, from which its row is built when a page shows it."""
_StoredText: TypeAlias = bytes | tuple[CallTrace, CallRecord]
"""The packed text of a call, or the records of a plain call, which are packed when a page shows them."""
_PLAIN_ROW_BYTES: Final = 700
"""The size of a plain call's entry, its strings and numbers included (measured: 580 to 660)."""


def _row_bytes(row: _StoredRow) -> int:
    if isinstance(row, bytes):
        return len(row)
    return _PLAIN_ROW_BYTES


def _packed_row(row: _StoredRow) -> bytes:
    return row if isinstance(row, bytes) else pack(row_of(row))


def _row_fields(row: _StoredRow) -> dict[str, Any]:
    return named(orjson.loads(row) if isinstance(row, bytes) else row_of(row))


def _packed_text(trace: CallTrace, record: CallRecord) -> bytes:
    """Return the text of a call as JSON, keys masked."""
    report = record.report
    fields = {
        "request": _excerpt_of(trace.request),
        "response": _excerpt_of(trace.response),
        "pour": trace.pieces,
        "waits": record.waits,
        "report": None if report is None else report.to_dict(),
        "texts": [] if report is None else [attempt.text or attempt.candidate for attempt in report.attempts],
        "calls": [] if report is None else [[each.to_dict() for each in attempt.calls] for attempt in report.attempts],
    }
    return redact(orjson.dumps(fields, default=str).decode()).encode()


def _excerpt_of(data: bytes) -> dict[str, Any]:
    """Return the text of a body and its length; of a body that is too long, only the beginning and the end."""
    if len(data) <= MAX_TRACE_BYTES:
        return {"text": data.decode("utf-8", "replace"), "bytes": len(data), "cut": False}
    half = MAX_TRACE_BYTES // 2
    text = f"{data[:half].decode('utf-8', 'replace')}\n…\n{data[-half:].decode('utf-8', 'replace')}"
    return {"text": text, "bytes": len(data), "cut": True}


class CallHistory:
    """The last calls of one worker."""

    def __init__(self, max_bytes: int, max_trace_bytes: int, archive: CallArchive | None = None) -> None:
        self._max_bytes = max_bytes
        self._max_trace_bytes = max_trace_bytes
        self.archive = archive
        self._rows: deque[_StoredRow] = deque()
        self._size = 0
        self._traces: OrderedDict[str, tuple[_StoredText, int]] = OrderedDict()
        """The text of calls and its size, by call."""
        self._trace_size = 0
        self.conversations = Conversations()
        self._pinned: dict[str, tuple[bytes, bytes | None]] = {}
        self.subscribers: set[Subscriber] = set()
        """The open event streams."""
        self._under_way: dict[str, CallRecord] = {}
        self._growth: dict[str, Growth] = {}
        """How far the watched streams have come, by call."""
        self.dropped = 0
        """The number of rows that were replaced by newer ones."""
        self._ended = 0
        self._run = f"{random.getrandbits(48):012x}"
        """Identifies this worker's run in event ids."""

    # -- calls ------------------------------------------------------------------------------------

    def begin(self, record: CallRecord) -> str:
        """Store a call that came in, and return the id of its page, which callers cannot choose."""
        identity = f"{random.getrandbits(128):032x}"
        self._under_way[identity] = record
        return identity

    def announce(self, identity: str, record: CallRecord, body: bytes) -> None:
        """Report a parsed call to all subscribers: its start, and the growth of its stream."""
        if record.trace is not None:
            record.trace.request = body
        if self.subscribers:
            for subscriber in self.subscribers:
                subscriber.call_started(identity)
            if record.stream:
                self._watch(identity, record)

    def end(self, identity: str, record: CallRecord, trace: CallTrace | None = None) -> None:
        """Store the row and the text of a call that has ended, and report it to all subscribers."""
        self._under_way.pop(identity, None)
        entry = entry_of(record, identity)
        if trace is None and not record.has_detail and self.archive is None and not self.subscribers:
            self._store_row(entry, _PLAIN_ROW_BYTES)
        else:
            self._end_in_full(entry, record, trace)

    def _end_in_full(self, entry: Entry, record: CallRecord, trace: CallTrace | None) -> None:
        """Store a call that may have details or text, a subscriber, or a place in the archive."""
        identity = entry.id
        if trace is not None and trace.only is not None and not trace.only(record):
            trace = None
        if trace is not None:
            record.words = "kept"
            entry = entry_of(record, identity)
            self.conversations.add((entry, trace, record))
        row = row_of(entry, detail_of(record))
        has_readers = self.archive is not None or bool(self.subscribers)
        packed = b""
        if has_readers or row.detail is not None:
            packed = bytes(memoryview(pack(row)))  # a copy: orjson's result holds 4 KB
            self._store_row(packed, len(packed))
        else:
            self._store_row(entry, _PLAIN_ROW_BYTES)
        text = None
        if trace is not None and trace.is_small and not has_readers:
            self._store_text(identity, (trace, record), trace.size)
        elif trace is not None:
            text = _packed_text(trace, record)
            self.conversations.keep({identity: read_call((entry, trace, record))})  # now: packed text may be cut
            self._store_text(identity, text, len(text))
        if self.archive is not None:
            is_archived = trace is not None and trace.is_archived
            self.archive.add(identity, entry.began, packed, text if is_archived else None)
        if self.subscribers:
            growth = self._growth.pop(identity, None)
            for subscriber in self.subscribers:
                subscriber.call_ended(identity, packed, growth, record)

    def _store_row(self, row: _StoredRow, size: int) -> None:
        self._rows.append(row)
        self._ended += 1
        self._size += size
        while self._size > self._max_bytes:
            self._size -= _row_bytes(self._rows.popleft())
            self.dropped += 1

    def _store_text(self, identity: str, text: _StoredText, size: int) -> None:
        self._traces[identity] = (text, size)
        self._trace_size += size
        while self._trace_size > self._max_trace_bytes:
            removed, (_, size_of_removed) = self._traces.popitem(last=False)
            self._trace_size -= size_of_removed
            self.conversations.discard_text(removed)

    def _text_of(self, identity: str) -> bytes | None:
        """Return the text of a call as JSON; None where it is not stored."""
        text, _ = self._traces.get(identity, (None, 0))
        return _packed_text(*text) if isinstance(text, tuple) else text

    # -- events -----------------------------------------------------------------------------------

    def _watch(self, identity: str, record: CallRecord) -> None:
        if identity not in self._growth:
            self._growth[identity] = Growth()
            record.observe_growth(partial(self._add_growth, identity))

    def _add_growth(self, identity: str, attempt: int, received: int, released: int, pending: int) -> None:
        """Record how much a stream has grown; the next batch reports it to the subscribers."""
        growth = self._growth.get(identity)
        if growth is not None:
            growth.add(attempt, received, released, pending)
            for subscriber in self.subscribers:
                subscriber.stream_grown(identity)

    def subscribe(self, watched: str = "", after: str = "") -> Subscriber:
        """Add a subscriber to all events, and to the text of the call whose id is `watched`, where it is recorded.

        `after` is the id of the last event that the page received: later events are sent first, or a gap.
        """
        subscriber = Subscriber(watched)
        self.subscribers.add(subscriber)
        if after:
            self._resume(subscriber, positions_of(after).get(self._run))
        if (record := self._under_way.get(watched)) is not None:
            self._watch(watched, record)
            subscriber.stream_grown(watched)
        return subscriber

    def _resume(self, subscriber: Subscriber, position: int | None) -> None:
        """Send the calls that ended and began since a position; a gap where that is unknown, or too much."""
        missed = 0 if position is None else self._ended - position
        if position is None or not 0 <= missed <= min(len(self._rows), _MOST_RESUMED):
            subscriber.put("gap", b"{}")
            return
        for index in range(len(self._rows) - missed, len(self._rows)):
            subscriber.put("end", _packed_row(self._rows[index]))
        for identity in self._under_way:
            subscriber.call_started(identity)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self.subscribers.discard(subscriber)
        if not self.subscribers:
            self._growth.clear()

    def take(self, subscriber: Subscriber) -> bytes:
        """Return all events since the subscriber's last batch, as server-sent events."""
        started, grown = subscriber.take_changes()
        for identity in started:
            if (record := self._under_way.get(identity)) is not None:
                subscriber.put("begin", pack(row_of(entry_of(record, identity), under_way=True)))
        for identity in grown:
            if (record := self._under_way.get(identity)) is not None:
                subscriber.put_growth(identity, self._growth.get(identity), record)
        subscriber.positions[self._run] = self._ended
        return subscriber.take()

    def publish(self, kind: str, data: bytes) -> None:
        """Send an event to all subscribers."""
        for subscriber in self.subscribers:
            subscriber.put(kind, data)

    # -- reading ----------------------------------------------------------------------------------

    def rows(self, *, newest_first: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the rows, with their details."""
        for row in reversed(self._rows) if newest_first else tuple(self._rows):
            yield _row_fields(row)

    def under_way(self) -> list[dict[str, Any]]:
        """Return the rows of the calls in progress."""
        entries = [entry_of(record, identity) for identity, record in self._under_way.items()]
        return [named(row_of(entry, under_way=True)) for entry in entries]

    def find(self, identity: str) -> dict[str, Any] | None:
        """Return the row of a call, with its text where it is stored; of a call in progress, as it is now."""
        if (record := self._under_way.get(identity)) is not None:
            row = named(row_of(entry_of(record, identity), under_way=True))
            row["trace"] = None
            if record.trace is not None and record.trace.only is None:
                row["trace"] = orjson.loads(_packed_text(record.trace, record))
            return row
        if (stored := self._lookup(identity)) is None:
            return None
        return self._full_row(identity, stored)

    def find_archived(self, identity: str) -> dict[str, Any] | None:
        """Return the row of a call from disk, with its text; blocks."""
        stored = None if self.archive is None else self.archive.find(identity)
        if stored is None:
            return None
        return self._full_row(identity, stored)

    def _full_row(self, identity: str, stored: tuple[bytes, bytes | None]) -> dict[str, Any]:
        packed, text = stored
        trace = None if text is None else orjson.loads(text)
        return {**named(orjson.loads(packed)), "pinned": identity in self._pinned, "trace": trace}

    def _lookup(self, identity: str) -> tuple[bytes, bytes | None] | None:
        if identity in self._pinned:
            return self._pinned[identity]
        prefix = b'["%s",' % identity.encode("ascii", "replace")
        for row in reversed(self._rows):
            is_call = row.startswith(prefix) if isinstance(row, bytes) else row.id == identity
            if is_call:
                return _packed_row(row), self._text_of(identity)
        return None

    def pin(self, identity: str) -> bool | None:
        """Store a call until it is unpinned; return False when too many are pinned, None when it is unknown."""
        if identity in self._pinned:
            return True
        stored = self._lookup(identity)
        if stored is None and self.archive is not None:
            stored = self.archive.find(identity)
        if stored is None:
            return None
        if len(self._pinned) >= MOST_PINNED:
            return False
        self._pinned[identity] = stored
        if self.archive is not None:
            self.archive.pin(identity, pinned=True)
        return True

    def unpin(self, identity: str) -> None:
        """Store a call no longer than any other."""
        if self._pinned.pop(identity, None) is not None and self.archive is not None:
            self.archive.pin(identity, pinned=False)

    def pinned(self) -> list[dict[str, Any]]:
        """Return the rows of the pinned calls, the latest pinned first."""
        return [named(orjson.loads(packed)) for packed, _ in reversed(self._pinned.values())]

    def sizes(self) -> dict[str, int]:
        """Return how many rows, traces and pinned calls are stored, and their sizes."""
        return {
            "rows": len(self._rows),
            "bytes": self._size,
            "traces": len(self._traces),
            "trace_bytes": self._trace_size,
            "dropped": self.dropped,
            "pinned": len(self._pinned),
        }

    def clear(self) -> None:
        """Delete all calls that are not pinned."""
        self._rows.clear()
        self._traces.clear()
        self.conversations.clear()
        self._size = self._trace_size = 0
        if self.archive is not None:
            self.archive.clear()

"""Remember recent calls for the console, within a limit of bytes: figures always, words only of traced calls.

Every worker keeps its own, and its archive, where one is set, keeps them on disk. Of a call that has ended only its row
stays, as names and figures: reports and answers hold the words of models. A row with details is packed as a JSON array,
half of an object's size; a plain one is made when a page shows it.
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
"""Calls that a page which comes back is told one by one; after more of them it reads its list anew."""


_Row: TypeAlias = bytes | Entry
_Words: TypeAlias = bytes | tuple[CallTrace, CallRecord]
"""Packed, or, of a plain call, as they were recorded: they are packed when somebody looks at them."""
_PLAIN_ROW_BYTES: Final = 700
"""What a tuple of a plain call takes, its strings and numbers included (measured: 580 to 660)."""


def _row_bytes(row: _Row) -> int:
    if isinstance(row, bytes):
        return len(row)
    return _PLAIN_ROW_BYTES


def _row_text(row: _Row) -> bytes:
    return row if isinstance(row, bytes) else pack(row_of(row))


def _row_fields(row: _Row) -> dict[str, Any]:
    return named(orjson.loads(row) if isinstance(row, bytes) else row_of(row))


def _packed(trace: CallTrace, record: CallRecord) -> bytes:
    """The words of a call as JSON, keys masked."""
    report = record.report
    fields = {
        "request": _excerpt_of(trace.request),
        "response": _excerpt_of(trace.response),
        "pour": trace.pour,
        "waits": record.waits,
        "report": None if report is None else report.to_dict(),
        "texts": [] if report is None else [attempt.text or attempt.candidate for attempt in report.attempts],
        "calls": [] if report is None else [[each.to_dict() for each in attempt.calls] for attempt in report.attempts],
    }
    return redact(orjson.dumps(fields, default=str).decode()).encode()


def _excerpt_of(data: bytes) -> dict[str, Any]:
    """The beginning and, of what is too long, the end of some bytes, with their true number."""
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
        self._rows: deque[_Row] = deque()
        self._size = 0
        self._traces: OrderedDict[str, tuple[_Words, int]] = OrderedDict()
        """The words of calls, with their size."""
        self._trace_size = 0
        self.conversations = Conversations()
        self._pinned: dict[str, tuple[bytes, bytes | None]] = {}
        self.subscribers: set[Subscriber] = set()
        """Who is told of calls."""
        self._under_way: dict[str, CallRecord] = {}
        self._growth: dict[str, Growth] = {}
        """By how much the watched streams grew."""
        self.dropped = 0
        """Rows that made way for newer ones."""
        self._ended = 0
        self._run = f"{random.getrandbits(48):012x}"

    # -- calls ------------------------------------------------------------------------------------

    def begin(self, record: CallRecord) -> str:
        """A call came in; returns the id that links to it, which callers cannot choose."""
        identity = f"{random.getrandbits(128):032x}"
        self._under_way[identity] = record
        return identity

    def announce(self, identity: str, record: CallRecord, body: bytes) -> None:
        """Report a parsed call to all subscribers: that it began, and how its stream grows."""
        if record.trace is not None:
            record.trace.request = body
        if self.subscribers:
            for subscriber in self.subscribers:
                subscriber.call_started(identity)
            if record.stream:
                self._look(identity, record)

    def end(self, identity: str, record: CallRecord, trace: CallTrace | None = None) -> None:
        """A call is over."""
        self._under_way.pop(identity, None)
        entry = entry_of(record, identity)
        if trace is None and not record.has_detail and self.archive is None and not self.subscribers:
            self._keep_row(entry, _PLAIN_ROW_BYTES)
        else:
            self._end_in_full(entry, record, trace)

    def _end_in_full(self, entry: Entry, record: CallRecord, trace: CallTrace | None) -> None:
        """Keep a call that has more than its row, or that somebody watches or keeps on disk."""
        identity = entry[0]
        if trace is not None and trace.only is not None and not trace.only(record):
            trace = None
        elif trace is not None:
            record.words = "kept"
            entry = entry_of(record, identity)
            self.conversations.add((entry, trace, record))
        row = row_of(entry, detail_of(record))
        has_readers = self.archive is not None or bool(self.subscribers)
        packed = b""
        if has_readers or row[-1] is not None:
            packed = bytes(memoryview(pack(row)))  # orjson's own bytes keep the 4 KB that it wrote them into
            self._keep_row(packed, len(packed))
        else:
            self._keep_row(entry, _PLAIN_ROW_BYTES)
        words = None
        if trace is not None and trace.is_small and not has_readers:
            self._keep_trace(identity, (trace, record), trace.size)
        elif trace is not None:
            words = _packed(trace, record)
            self.conversations.keep({identity: read_call((entry, trace, record))})  # what is packed may be cut
            self._keep_trace(identity, words, len(words))
        if self.archive is not None:
            is_archived = trace is not None and trace.is_archived
            self.archive.add(identity, entry[2], packed, words if is_archived else None)
        if self.subscribers:
            growth = self._growth.pop(identity, None)
            for subscriber in self.subscribers:
                subscriber.ended(identity, packed, growth, record)

    def _keep_row(self, row: _Row, size: int) -> None:
        self._rows.append(row)
        self._ended += 1
        self._size += size
        while self._size > self._max_bytes:
            self._size -= _row_bytes(self._rows.popleft())
            self.dropped += 1

    def _keep_trace(self, identity: str, words: _Words, size: int) -> None:
        self._traces[identity] = (words, size)
        self._trace_size += size
        while self._trace_size > self._max_trace_bytes:
            removed, (_, size_of_removed) = self._traces.popitem(last=False)
            self._trace_size -= size_of_removed
            self.conversations.forget_words(removed)

    def _words_of(self, identity: str) -> bytes | None:
        """The words of a call as JSON, if they are kept."""
        words, _ = self._traces.get(identity, (None, 0))
        return _packed(*words) if isinstance(words, tuple) else words

    # -- events -----------------------------------------------------------------------------------

    def _look(self, identity: str, record: CallRecord) -> None:
        if identity not in self._growth:
            self._growth[identity] = Growth()
            record.look(partial(self._note_growth, identity))

    def _note_growth(self, identity: str, attempt: int, received: int, released: int, pending: int) -> None:
        """Note how much a stream has grown; the next batch reports it to its subscribers."""
        growth = self._growth.get(identity)
        if growth is not None:
            growth.add(attempt, received, released, pending)
            for subscriber in self.subscribers:
                subscriber.grew(identity)

    def subscribe(self, watched: str = "", after: str = "") -> Subscriber:
        """Begin to receive events; of the call that is `watched` also its words, where they are kept.

        `after` is the id of the last event that an earlier subscriber saw: what came since comes first, or a gap.
        """
        subscriber = Subscriber(watched)
        self.subscribers.add(subscriber)
        if after:
            self._resume(subscriber, positions_of(after).get(self._run))
        if (record := self._under_way.get(watched)) is not None:
            self._look(watched, record)
            subscriber.grew(watched)
        return subscriber

    def _resume(self, subscriber: Subscriber, position: int | None) -> None:
        """Hand over what ended and began since a position; a gap where that is not known, or too much."""
        missed = 0 if position is None else self._ended - position
        if position is None or not 0 <= missed <= min(len(self._rows), _MOST_RESUMED):
            subscriber.put("gap", b"{}")
            return
        for at in range(len(self._rows) - missed, len(self._rows)):
            subscriber.put("end", _row_text(self._rows[at]))
        for identity in self._under_way:
            subscriber.call_started(identity)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Receive no more."""
        self.subscribers.discard(subscriber)
        if not self.subscribers:
            self._growth.clear()

    def take(self, subscriber: Subscriber) -> bytes:
        """All that has happened since a subscriber last looked, as server-sent events."""
        started, grown = subscriber.taken()
        for identity in started:
            if (record := self._under_way.get(identity)) is not None:
                subscriber.put("begin", pack(row_of(entry_of(record, identity), under_way=True)))
        for identity in grown:
            if (record := self._under_way.get(identity)) is not None:
                subscriber.grown(identity, self._growth.get(identity), record)
        subscriber.positions[self._run] = self._ended
        return subscriber.take()

    def tell(self, kind: str, data: bytes) -> None:
        """Send an event to all subscribers."""
        for subscriber in self.subscribers:
            subscriber.put(kind, data)

    # -- reading ----------------------------------------------------------------------------------

    def rows(self, *, newest_first: bool = True) -> Iterator[dict[str, Any]]:
        """The rows, with their details."""
        for row in reversed(self._rows) if newest_first else tuple(self._rows):
            yield _row_fields(row)

    def under_way(self) -> list[dict[str, Any]]:
        """The calls that are not over."""
        entries = [entry_of(record, identity) for identity, record in self._under_way.items()]
        return [named(row_of(entry, under_way=True)) for entry in entries]

    def find(self, identity: str) -> dict[str, Any] | None:
        """One call by its id, with its words if they are kept; of a call in progress, as far as it has come."""
        if (record := self._under_way.get(identity)) is not None:
            row = named(row_of(entry_of(record, identity), under_way=True))
            trace = None
            if record.trace is not None and record.trace.only is None:
                trace = record.trace
            row["trace"] = orjson.loads(_packed(trace, record)) if trace is not None else None
            return row
        if (entry := self._lookup(identity)) is None:
            return None
        return self._full_row(identity, entry)

    def find_archived(self, identity: str) -> dict[str, Any] | None:
        """One call by its id, from disk; may take a moment."""
        entry = None if self.archive is None else self.archive.find(identity)
        if entry is None:
            return None
        return self._full_row(identity, entry)

    def _full_row(self, identity: str, entry: tuple[bytes, bytes | None]) -> dict[str, Any]:
        packed, words = entry
        trace = None if words is None else orjson.loads(words)
        return {**named(orjson.loads(packed)), "pinned": identity in self._pinned, "trace": trace}

    def _lookup(self, identity: str) -> tuple[bytes, bytes | None] | None:
        if identity in self._pinned:
            return self._pinned[identity]
        marked = b'["%s",' % identity.encode("ascii", "replace")
        for row in reversed(self._rows):
            has_identity = row[0] == identity if isinstance(row, tuple) else row.startswith(marked)
            if has_identity:
                return _row_text(row), self._words_of(identity)
        return None

    def pin(self, identity: str) -> bool | None:
        """Keep a call until it is unpinned: False when too many are kept, None when it is not known."""
        if identity in self._pinned:
            return True
        entry = self._lookup(identity) or (self.archive.find(identity) if self.archive is not None else None)
        if entry is None:
            return None
        if len(self._pinned) >= MOST_PINNED:
            return False
        self._pinned[identity] = entry
        if self.archive is not None:
            self.archive.pin(identity, pinned=True)
        return True

    def unpin(self, identity: str) -> None:
        """Let a call go as any other."""
        if self._pinned.pop(identity, None) is not None and self.archive is not None:
            self.archive.pin(identity, pinned=False)

    def pinned(self) -> list[dict[str, Any]]:
        """The calls that are kept."""
        return [named(orjson.loads(packed)) for packed, _ in reversed(self._pinned.values())]

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"rows": len(self._rows), "bytes": self._size, "traces": len(self._traces),
                "trace_bytes": self._trace_size, "dropped": self.dropped, "pinned": len(self._pinned)}  # fmt: skip

    def clear(self) -> None:
        """Forget everything but what is pinned."""
        self._rows.clear()
        self._traces.clear()
        self.conversations.clear()
        self._size = self._trace_size = 0
        if self.archive is not None:
            self.archive.clear()

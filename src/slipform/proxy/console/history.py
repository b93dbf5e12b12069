"""Remember recent calls for the console, within a limit of bytes: figures always, words only of traced calls.

Every worker keeps its own. A row is packed when its call ends, as a JSON array (half of an object's time and size), so
that nothing of the call stays alive: reports and answers hold the words of models.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from slipform.enforce import Report
from slipform.enforce.plan import Attempt
from slipform.proxy.observability.call_record import MAX_TRACE_BYTES, CallRecord, CallTrace
from slipform.proxy.observability.logs import redact

_MAX_WAITING: Final = 2000
_FIELDS: Final = (
    "id", "request_id", "at", "api", "model", "provider", "upstream_model", "schema", "strategy", "stream", "caller",
    "status", "outcome", "stage", "attempts", "fallbacks", "warnings", "cached", "input", "output", "cost", "ms",
    "first_ms", "overhead_ms", "traced", "detail",
)  # fmt: skip


def _packed(trace: CallTrace, record: CallRecord) -> bytes:
    """The words of a call as JSON, keys masked."""
    report = record.report
    fields = {
        "request": _shown(trace.request),
        "response": _shown(trace.response),
        "pour": trace.pour,
        "report": None if report is None else report.to_dict(),
        "texts": [] if report is None else [attempt.text for attempt in report.attempts],
    }
    return redact(orjson.dumps(fields, default=str).decode()).encode()


def _shown(data: bytes) -> dict[str, Any]:
    text = data[:MAX_TRACE_BYTES].decode("utf-8", "replace")
    return {"text": text, "bytes": len(data), "cut": len(data) > MAX_TRACE_BYTES}


class Subscriber:
    """One open event stream: what has happened since it last looked; too much at once is a gap."""

    def __init__(self) -> None:
        self._events: deque[tuple[str, bytes]] = deque()
        self._missed = 0
        self.wake = asyncio.Event()

    def put(self, kind: str, data: bytes) -> None:
        """Hand over an event, or count it as missed."""
        if len(self._events) >= _MAX_WAITING:
            self._missed += 1
        else:
            self._events.append((kind, data))
        self.wake.set()

    def take(self) -> bytes:
        """All events so far, as server-sent events."""
        self.wake.clear()
        lines = [b"event: %s\ndata: %s\n\n" % (kind.encode(), data) for kind, data in self._events]
        if self._missed:
            lines.append(b'event: gap\ndata: {"missed":%d}\n\n' % self._missed)
        self._events.clear()
        self._missed = 0
        return b"".join(lines)


class CallHistory:
    """The last calls of one worker."""

    def __init__(self, max_bytes: int, max_trace_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_trace_bytes = max_trace_bytes
        self._rows: deque[bytes] = deque()
        self._size = 0
        self._traces: OrderedDict[str, bytes] = OrderedDict()
        self._trace_size = 0
        self._subscribers: set[Subscriber] = set()
        self._under_way: dict[str, CallRecord] = {}
        self.dropped = 0
        """Rows that made way for newer ones."""

    def begin(self, record: CallRecord) -> str:
        """A call came in; gives the id that links to it, which callers cannot choose."""
        identity = f"{random.getrandbits(128):032x}"
        self._under_way[identity] = record
        return identity

    def known(self, identity: str) -> None:
        """What was asked is known now: whoever looks sees the call begin, and its stream grow."""
        if self._subscribers and (record := self._under_way.get(identity)) is not None:
            record.watch = partial(self._poured, identity)
            self._tell("begin", orjson.dumps(_named(_row(record, identity, under_way=True))))

    def end(self, identity: str, record: CallRecord, trace: CallTrace | None = None) -> None:
        """A call is over."""
        self._under_way.pop(identity, None)
        if trace is not None and trace.only_failures and record.outcome == "ok":
            trace = None
        row = _row(record, identity, traced=trace is not None)
        if self._subscribers:
            self._tell("end", orjson.dumps(_named((*row[:-1], None))))
        packed = bytes(memoryview(orjson.dumps(row)))  # orjson's own bytes keep the 4 KB that it wrote them into
        self._rows.append(packed)
        self._size += len(packed)
        while self._size > self._max_bytes:
            self._size -= len(self._rows.popleft())
            self.dropped += 1
        if trace is not None:
            self._keep_trace(identity, _packed(trace, record))

    def _keep_trace(self, identity: str, packed: bytes) -> None:
        self._traces[identity] = packed
        self._trace_size += len(packed)
        while self._trace_size > self._max_trace_bytes:
            _, oldest = self._traces.popitem(last=False)
            self._trace_size -= len(oldest)

    def _poured(self, identity: str, attempt: int, received: int, released: int, held: int) -> None:
        """A stream has grown: whoever looks is told by how much, without its words."""
        grown = {"id": identity, "attempt": attempt, "received": received, "released": released, "held": held}
        self._tell("pour", orjson.dumps(grown))

    def subscribe(self) -> Subscriber:
        """Begin to receive events."""
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Receive no more."""
        self._subscribers.discard(subscriber)

    def _tell(self, kind: str, data: bytes) -> None:
        for subscriber in self._subscribers:
            subscriber.put(kind, data)

    def rows(self, *, newest_first: bool = True) -> Iterator[dict[str, Any]]:
        """The rows, with their details."""
        for packed in reversed(self._rows) if newest_first else tuple(self._rows):
            yield _named(orjson.loads(packed))

    def under_way(self) -> list[dict[str, Any]]:
        """The calls that are not over."""
        return [_named(_row(record, identity, under_way=True)) for identity, record in self._under_way.items()]

    def find(self, identity: str) -> dict[str, Any] | None:
        """One call by its id, with its trace if there is one."""
        marked = b'["%s",' % identity.encode("ascii", "replace")
        for packed in reversed(self._rows):
            if packed.startswith(marked):
                trace = self._traces.get(identity)
                return {**_named(orjson.loads(packed)), "trace": orjson.loads(trace) if trace is not None else None}
        return None

    def sizes(self) -> dict[str, int]:
        """How much is kept."""
        return {"rows": len(self._rows), "bytes": self._size, "traces": len(self._traces),
                "trace_bytes": self._trace_size, "dropped": self.dropped}  # fmt: skip

    def clear(self) -> None:
        """Forget everything."""
        self._rows.clear()
        self._traces.clear()
        self._size = self._trace_size = 0


def _row(record: CallRecord, identity: str, *, under_way: bool = False, traced: bool = False) -> tuple[Any, ...]:
    """What the list shows of a call, in the order of `_FIELDS`: the figures and names of its log line."""
    seconds, report, usage, overhead = record.seconds, record.report, record.tokens, record.overhead
    attempts = warnings = 0
    cost = detail = None
    if report is not None:
        attempts, warnings, cost = len(report.attempts), len(report.warnings), report.cost
        detail = None if under_way or _is_plain(report) else _detail(report)
    first = record.first_byte
    return (
        identity,
        record.request_id,
        round(time.time() - seconds, 3),
        record.api,
        record.model[:200],
        record.provider[:200],
        record.upstream_model[:200],
        record.schema[:64],
        record.strategy,
        record.stream,
        record.caller[:200],
        record.status,
        "under_way" if under_way else record.outcome,
        "under_way" if under_way else stage_of(record),
        attempts,
        record.fallbacks,
        warnings,
        record.cached,
        usage.input,
        usage.output,
        cost,
        round(seconds * 1000, 1),
        None if first is None else round((first - record.started) * 1000, 1),
        None if overhead is None else round(overhead * 1000, 2),
        traced,
        detail,
    )


def _named(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_FIELDS, row, strict=True))


def stage_of(record: CallRecord) -> str:
    """Where an answer became valid: `first`, `repaired`, `reasked`; or `failed`, `passed` (nothing to enforce)."""
    if record.outcome != "ok":
        return "failed"
    report = record.report
    if report is None or not record.enforced:
        return "cached" if record.cached else "passed"
    if len(report.attempts) > 1:
        return "reasked"
    return "repaired" if report.repaired or report.patched else "first"


def _is_plain(report: Report) -> bool:
    """Whether a report says no more than the row: one attempt, whose answer was valid as it came."""
    if len(report.attempts) != 1 or report.warnings:
        return False
    attempt = report.attempts[0]
    is_touched = attempt.repairs or attempt.patched or attempt.violations or attempt.stream
    return not is_touched and attempt.outcome == "ok"


def _detail(report: Report) -> dict[str, Any]:
    """What is kept of a report: kinds, reasons and places in the schema; no piece of an answer."""
    return {
        "attempts": [_attempt(attempt) for attempt in report.attempts],
        "warnings": [warning.code for warning in report.warnings],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    usage = attempt.usage
    fields: dict[str, Any] = {
        "outcome": attempt.outcome,
        "strategy": attempt.strategy.value,
        "model": attempt.model,
        "seconds": attempt.seconds,
        "input": usage.input,
        "output": usage.output,
        "cost": attempt.cost,
    }
    if attempt.repairs:
        kinds = Counter((edit.kind, edit.certain) for edit in attempt.repairs)
        fields["repairs"] = [{"kind": kind, "certain": sure, "count": count} for (kind, sure), count in kinds.items()]
    if attempt.patches:
        fields["patches"] = [{"op": edit.op, "reason": edit.reason, "risk": edit.risk} for edit in attempt.patches]
    if attempt.stream is not None:
        # Its place in the schema is told by the violation; the path may hold a key of the answer.
        fault = attempt.stream.fault
        fields["stream"] = {
            **attempt.stream.to_dict(),
            "fault": None if fault is None else {"at": fault.at, "byte": fault.byte},
        }
    if attempt.violations:
        found = Counter((each.keyword, each.schema_path) for each in attempt.violations)
        fields["violations"] = [
            {"keyword": keyword, "schema_path": at, "count": n} for (keyword, at), n in found.items()
        ]
    return fields


def matches(row: Mapping[str, Any], words: Iterable[tuple[str, str]]) -> bool:
    """Whether a row fits a query's words: see `parse_query`."""
    for name, wanted in words:
        if not name:
            shown = (row["id"], row["request_id"], row["model"], row["upstream_model"], row["schema"], row["caller"])
            if not any(wanted in str(value).lower() for value in shown):
                return False
        elif wanted[:1] in "<>":
            value = row.get(name)
            if not isinstance(value, int | float) or not _compares(value, wanted):
                return False
        elif not _fits(str(row.get(name, "")).lower(), wanted):
            return False
    return True


def _compares(value: float, wanted: str) -> bool:
    try:
        limit = float(wanted[1:])
    except ValueError:
        return False
    return value > limit if wanted[0] == ">" else value < limit


def _fits(value: str, wanted: str) -> bool:
    """Whether a value is the wanted one; `*` at its ends stands for anything."""
    core = wanted.strip("*")
    if wanted.startswith("*") and wanted.endswith("*"):
        return core in value
    if wanted.endswith("*"):
        return value.startswith(core)
    return value.endswith(core) if wanted.startswith("*") else value == wanted


_NAMES = {"ms": "ms", "tokens": "output", "key": "caller"}


def parse_query(text: str) -> list[tuple[str, str]]:
    """A query as field and value: `model:gpt* outcome:failed ms:>2000`; a bare word is looked for in all names.

    >>> parse_query("model:GPT* ms:>2000 ada")
    [('model', 'gpt*'), ('ms', '>2000'), ('', 'ada')]
    """
    words = []
    for word in text.lower().split()[:20]:
        name, colon, value = word.partition(":")
        words.append((_NAMES.get(name, name), value) if colon and value else ("", word))
    return words

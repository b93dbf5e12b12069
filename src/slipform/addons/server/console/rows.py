"""Convert calls to rows for the console, names and figures only, and filter rows by a query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from slipform.addons.server.observability.call_record import CallRecord, SharedFields
from slipform.enforce import Report
from slipform.enforce.plan import Attempt
from slipform.providers.call import VENDOR_RETRIED

_MAX_NAME: Final = 200


class CallRow(NamedTuple):
    """The fields of a call that the console shows, in the order in which they are sent."""

    id: str
    request_id: str
    at: float
    api: str
    model: str
    provider: str
    upstream_model: str
    schema: str
    strategy: str
    stream: bool
    caller: str
    status: int
    outcome: str
    stage: str
    attempts: int
    fallbacks: int
    warnings: int
    cached: bool
    input: int | None
    output: int | None
    cost: float | None
    ms: float
    first_ms: float | None
    overhead_ms: float | None
    upstream_status: int | None
    words: str
    detail: Mapping[str, Any] | None


FIELDS: Final = CallRow._fields
_DECIMALS: Final = {"at": 3, "ms": 1, "first_ms": 1, "overhead_ms": 2}
_ROUNDED: Final = tuple((FIELDS.index(name), decimals) for name, decimals in _DECIMALS.items())


class Entry(NamedTuple):
    """The figures and names of a call, stored until a page shows it: `row_of` builds its row."""

    id: str
    request_id: str
    began: float
    """When the call began, in seconds since the epoch."""
    shared: SharedFields
    warnings: int
    cost: float | None
    cached: bool
    fallbacks: int
    input: int | None
    output: int | None
    seconds: float
    first_byte: float | None
    """Seconds from the beginning of the call to the first byte of the answer."""
    overhead: float | None
    words: str
    """Whether the text of the call is kept, or why not: see `CallRecord.words`."""


def entry_of(record: CallRecord, identity: str) -> Entry:
    """Return the figures and names of a call's log line, not rounded; no piece of an answer."""
    usage, seconds, overhead = record.final_totals or record.totals()
    report = record.report
    warnings = record.warnings
    cost = record.cost
    if report is not None:
        warnings = len(report.warnings)
        cost = report.cost if cost is None else cost
    return Entry(
        identity,
        record.request_id,
        time.time() - seconds,
        record.final_fields or record.shared_fields(),
        warnings,
        cost,
        record.cached,
        record.fallbacks,
        usage.input,
        usage.output,
        seconds,
        None if record.first_byte is None else record.first_byte - record.started,
        overhead,
        record.words,
    )


def row_of(entry: Entry, detail: Mapping[str, Any] | None = None, *, under_way: bool = False) -> CallRow:
    """Return the row of a call, not rounded; `under_way` for a call that has not ended."""
    shared = entry.shared
    return CallRow(
        entry.id,
        entry.request_id,
        entry.began,
        shared.api,
        shared.model[:_MAX_NAME],
        shared.provider[:_MAX_NAME],
        shared.upstream_model[:_MAX_NAME],
        shared.schema,
        shared.strategy,
        shared.stream,
        shared.caller[:_MAX_NAME],
        shared.status,
        "under_way" if under_way else shared.outcome,
        "under_way" if under_way else _stage_of(entry, detail),
        shared.attempts,
        entry.fallbacks,
        entry.warnings,
        entry.cached,
        entry.input,
        entry.output,
        entry.cost,
        entry.seconds * 1000,
        None if entry.first_byte is None else entry.first_byte * 1000,
        None if entry.overhead is None else entry.overhead * 1000,
        shared.upstream_status,
        entry.words,
        detail,
    )


def _stage_of(entry: Entry, detail: Mapping[str, Any] | None) -> str:
    """Return how the answer of a call that has ended became valid, or why it was not validated."""
    shared = entry.shared
    if shared.outcome != "ok":
        return "failed"
    if not shared.attempts or not shared.enforced:
        return "cached" if entry.cached else "passed"
    if shared.attempts > 1 or entry.fallbacks or _has_waited(detail):
        return "reasked"
    return "repaired" if shared.is_repaired else "first"


def _has_waited(detail: Mapping[str, Any] | None) -> bool:
    return detail is not None and VENDOR_RETRIED in detail.get("notes", ())


def detail_of(record: CallRecord) -> dict[str, Any] | None:
    """Return the details of an ended call's report; None where the row already says everything."""
    if not record.has_detail:
        return None
    report = record.report
    detail = {} if report is None else _detail(report)
    if record.waits:
        detail["notes"] = [VENDOR_RETRIED] * len(record.waits)
    if record.retry_after is not None:
        detail["retry_after"] = record.retry_after
    return detail


def pack(row: Sequence[Any]) -> bytes:
    """Encode a row as a JSON array, rounded: rounding takes a third of the time, so rows are stored without it."""
    return orjson.dumps(_rounded(row))


def named(row: Sequence[Any]) -> dict[str, Any]:
    """Return the rounded fields of a row by their names."""
    return dict(zip(FIELDS, _rounded(row), strict=True))


def _rounded(row: Sequence[Any]) -> list[Any]:
    values = list(row)
    for index, decimals in _ROUNDED:
        if values[index] is not None:
            values[index] = round(values[index], decimals)
    return values


def _detail(report: Report) -> dict[str, Any]:
    """Return the kinds, reasons and schema locations of a report; no piece of an answer."""
    return {
        "attempts": [_attempt(attempt) for attempt in report.attempts],
        "warnings": [warning.code for warning in report.warnings],
        "notes": [note.code for note in report.notes],
        "fallbacks": [{"model": each.get("model"), "code": each.get("code")} for each in report.fallback_errors],
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
        counts = Counter((edit.kind, edit.certain) for edit in attempt.repairs)
        fields["repairs"] = [
            {"kind": kind, "certain": is_certain, "count": count} for (kind, is_certain), count in counts.items()
        ]
    if attempt.patches:
        fields["patches"] = [{"op": edit.op, "reason": edit.reason, "risk": edit.risk} for edit in attempt.patches]
    if attempt.stream is not None:
        # The violation names the place in the schema; the fault's path may contain a key of the answer.
        fault = attempt.stream.fault
        fields["stream"] = {
            **attempt.stream.to_dict(),
            "fault": None if fault is None else {"at": fault.at, "byte": fault.byte},
        }
    if attempt.violations:
        violations = Counter((each.keyword, each.schema_path) for each in attempt.violations)
        fields["violations"] = [
            {"keyword": keyword, "schema_path": schema_path, "count": count}
            for (keyword, schema_path), count in violations.items()
        ]
    return fields


_SEARCHED: Final = ("id", "request_id", "model", "upstream_model", "schema", "caller")
"""The fields that a bare word of a query is searched in."""


def matches(row: Mapping[str, Any], terms: Iterable[tuple[str, str]]) -> bool:
    """Return whether a row fits all terms of a query: see `parse_query`."""
    for name, term in terms:
        if not name:
            if not any(term in str(row[field]).lower() for field in _SEARCHED):
                return False
        elif term[:1] in "<>":
            value = row.get(name)
            if not isinstance(value, int | float) or not _compares(value, term):
                return False
        elif not _fits(str(row.get(name, "")).lower(), term):
            return False
    return True


def narrowest(rows: Callable[[], Iterable[Mapping[str, Any]]], terms: list[tuple[str, str]]) -> dict[str, Any] | None:
    """Return the term of a query without which most rows match, and how many do; for a query without matches."""
    best: dict[str, Any] | None = None
    for index, (name, term) in enumerate(terms):
        count = sum(matches(row, [*terms[:index], *terms[index + 1 :]]) for row in rows())
        if count and (best is None or count > best["without"]):
            best = {"word": f"{name}:{term}" if name else term, "without": count}
    return best


def _compares(value: float, term: str) -> bool:
    try:
        limit = float(term[1:])
    except ValueError:
        return False
    return value > limit if term[0] == ">" else value < limit


def _fits(value: str, term: str) -> bool:
    """Return whether a value equals the term; `*` at either end matches any text."""
    text = term.strip("*")
    if term.startswith("*") and term.endswith("*"):
        return text in value
    if term.endswith("*"):
        return value.startswith(text)
    if term.startswith("*"):
        return value.endswith(text)
    return value == term


_FIELD_OF = {"tokens": "output", "key": "caller"}


def parse_query(text: str) -> list[tuple[str, str]]:
    """Split a query such as `model:gpt* outcome:failed ms:>2000` into fields and values; a bare word has no field.

    >>> parse_query("model:GPT* ms:>2000 ada")
    [('model', 'gpt*'), ('ms', '>2000'), ('', 'ada')]
    """
    terms = []
    for word in text.lower().split()[:20]:
        name, colon, value = word.partition(":")
        terms.append((_FIELD_OF.get(name, name), value) if colon and value else ("", word))
    return terms

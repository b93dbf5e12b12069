"""Project calls to rows for the console, names and figures only, and filter rows by a query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import orjson

from slipform.addons.server.observability.call_record import CallRecord
from slipform.enforce import Report
from slipform.enforce.plan import Attempt
from slipform.providers.call import VENDOR_RETRIED

FIELDS: Final = (
    "id", "request_id", "at", "api", "model", "provider", "upstream_model", "schema", "strategy", "stream", "caller",
    "status", "outcome", "stage", "attempts", "fallbacks", "warnings", "cached", "input", "output", "cost", "ms",
    "first_ms", "overhead_ms", "upstream_status", "words", "detail",
)  # fmt: skip
"""What a row has, in its order."""


_DECIMALS: Final = {"at": 3, "ms": 1, "first_ms": 1, "overhead_ms": 2}
_ROUNDED: Final = tuple((FIELDS.index(name), decimals) for name, decimals in _DECIMALS.items())


Entry: TypeAlias = tuple[Any, ...]
"""What is kept of a call until a page shows it: `row_of` makes its row."""


def entry_of(record: CallRecord, identity: str) -> Entry:
    """Return the figures and names of a call's log line, not rounded; no piece of an answer."""
    usage, seconds, overhead = record.final_totals or record.totals()
    report = record.report
    warnings = record.warnings
    cost = record.cost
    if report is not None:
        warnings = len(report.warnings)
        cost = report.cost if cost is None else cost
    first = record.first_byte
    shared = record.final_fields or record.shared_fields()
    return (identity, record.request_id, time.time() - seconds, shared, warnings, cost, record.cached,
            record.fallbacks, usage.input, usage.output, seconds,
            None if first is None else first - record.started, overhead, record.words)  # fmt: skip


def row_of(entry: Entry, detail: Mapping[str, Any] | None = None, *, under_way: bool = False) -> tuple[Any, ...]:
    """What the list shows of a call, in the order of `FIELDS`, not rounded."""
    (identity, request_id, at, shared, warnings, cost, cached, fallbacks, prompt, answer, seconds, first, overhead,
     words) = entry  # fmt: skip
    (api, caller, model, provider, upstream, strategy, enforced, schema, stream, _, attempts, is_repaired, status,
     outcome, upstream_status, _) = shared  # fmt: skip
    if under_way:
        outcome = stage = "under_way"
    elif outcome != "ok":
        stage = "failed"
    elif not attempts or not enforced:
        stage = "cached" if cached else "passed"
    elif attempts > 1 or fallbacks or _has_waited(detail):
        stage = "reasked"
    else:
        stage = "repaired" if is_repaired else "first"
    return (identity, request_id, at, api, model[:200], provider[:200], upstream[:200], schema, strategy, stream,
            caller[:200], status, outcome, stage, attempts, fallbacks, warnings, cached, prompt, answer, cost,
            seconds * 1000, None if first is None else first * 1000, None if overhead is None else overhead * 1000,
            upstream_status, words, detail)  # fmt: skip


def _has_waited(detail: Mapping[str, Any] | None) -> bool:
    return detail is not None and VENDOR_RETRIED in detail.get("notes", ())


def detail_of(record: CallRecord) -> dict[str, Any] | None:
    """What a page shows of the report of a call that has ended; None where the row has it all."""
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
    """A row as a JSON array, rounded; rounding costs a third of a row, so it waits until a page shows it."""
    return orjson.dumps(_rounded(row))


def named(row: Sequence[Any]) -> dict[str, Any]:
    """A row's fields by name, rounded."""
    return dict(zip(FIELDS, _rounded(row), strict=True))


def _rounded(row: Sequence[Any]) -> list[Any]:
    values = list(row)
    for index, decimals in _ROUNDED:
        if values[index] is not None:
            values[index] = round(values[index], decimals)
    return values


def _detail(report: Report) -> dict[str, Any]:
    """What is kept of a report: kinds, reasons and places in the schema; no piece of an answer."""
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
        counts = Counter((each.keyword, each.schema_path) for each in attempt.violations)
        fields["violations"] = [
            {"keyword": keyword, "schema_path": at, "count": n} for (keyword, at), n in counts.items()
        ]
    return fields


def matches(row: Mapping[str, Any], words: Iterable[tuple[str, str]]) -> bool:
    """Whether a row fits a query's words: see `parse_query`."""
    for name, term in words:
        if not name:
            shown = (row["id"], row["request_id"], row["model"], row["upstream_model"], row["schema"], row["caller"])
            if not any(term in str(value).lower() for value in shown):
                return False
        elif term[:1] in "<>":
            value = row.get(name)
            if not isinstance(value, int | float) or not _compares(value, term):
                return False
        elif not _fits(str(row.get(name, "")).lower(), term):
            return False
    return True


def narrowest(rows: Callable[[], Iterable[Mapping[str, Any]]], words: list[tuple[str, str]]) -> dict[str, Any] | None:
    """Of a query that nothing fits, the word without which most rows fit, and how many those are."""
    best: dict[str, Any] | None = None
    for at, (name, term) in enumerate(words):
        without = sum(matches(row, [*words[:at], *words[at + 1 :]]) for row in rows())
        if without and (best is None or without > best["without"]):
            best = {"word": f"{name}:{term}" if name else term, "without": without}
    return best


def _compares(value: float, term: str) -> bool:
    try:
        limit = float(term[1:])
    except ValueError:
        return False
    return value > limit if term[0] == ">" else value < limit


def _fits(value: str, term: str) -> bool:
    """Whether a value is the wanted one; `*` at its ends stands for anything."""
    core = term.strip("*")
    if term.startswith("*") and term.endswith("*"):
        return core in value
    if term.endswith("*"):
        return value.startswith(core)
    if term.startswith("*"):
        return value.endswith(core)
    return value == term


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

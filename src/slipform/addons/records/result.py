"""Represent what an extraction returns: records with their places, and everything that is missing or in doubt."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from slipform.errors import IncompleteExtraction
from slipform.files.document import Box
from slipform.ir import Usage
from slipform.ir.evidence import FieldEvidence

T_co = TypeVar("T_co", covariant=True)
_MOST_LISTED = 5
_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class Record:
    """A record and its place: `source[start:end]`."""

    value: Any
    start: int
    end: int
    page: int | None = None
    evidence: Mapping[str, FieldEvidence] = field(default_factory=dict)
    """The place of each value in the source, by JSON Pointer."""
    calls: int = 1
    """How many calls its lines were part of."""
    pointer: str = ""
    """The list that it belongs to, where the shape has several."""
    boxes: tuple[Box, ...] = ()
    """Where it is on the page, for files whose reader knows that."""
    grounded: bool = True
    """Whether its values are in the source; records that are not are only kept with `ungrounded="keep"`."""

    @property
    def asked(self) -> int:
        """How many calls its lines were part of."""
        return self.calls

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON; the value unchanged."""
        places = {pointer: [span[:2] for span in each.spans] for pointer, each in self.evidence.items()}
        return {"value": self.value, "start": self.start, "end": self.end, "page": self.page, "places": places}


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch that looks like a record, and that no answer has one for."""

    start: int
    end: int
    page: int | None
    text: str
    reason: str
    """`empty`: no answer had a record here; `crowded`: more records than answers had; `outside`: between records;
    `invalid`: no answer fits the schema."""
    calls: int
    """How many calls it was part of."""


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A record some of whose values are not in its place; it is part of the result."""

    start: int
    end: int
    page: int | None
    fields: tuple[str, ...]
    value: Any


@dataclass(frozen=True, slots=True)
class Unread:
    """A long stretch that belongs to no record and is not repeated from page to page."""

    start: int
    end: int
    page: int | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the source the records account for."""

    records: int = 0
    gaps: tuple[Gap, ...] = ()
    doubtful: tuple[Doubtful, ...] = ()
    unread: tuple[Unread, ...] = ()
    share: float = 1.0
    """The part of the characters that are in records or repeated from page to page."""

    @property
    def found(self) -> int:
        """The number of records."""
        return self.records


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that the source states twice, differently."""

    pointer: str
    chosen: Any
    other: Any
    places: tuple[tuple[int, int], ...]
    """The places of the two values."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record of an answer that is not part of the result."""

    value: Any
    reason: str
    times: int = 1
    """How often answers had it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A stretch whose calls failed."""

    start: int
    end: int
    page: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class ExtractionReport:
    """What the extraction took."""

    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    seconds: float = 0.0
    resumed: int = 0
    """Answers that came from the journal, not from a call."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """About what an extraction will take; nothing was called."""

    pieces: int
    records: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    """None when no price is known for the model."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an extraction is."""

    done: int
    """Questions that are answered."""
    pieces: int
    """Questions so far, answered or not."""
    records: int
    suspects: int
    """Stretches that have to be asked about again."""
    cost: float | None
    eta: float | None
    """Seconds until the questions so far are answered."""


@dataclass(frozen=True, slots=True)
class Extraction(Generic[T_co]):
    """The value, and everything that is known about it; `print` it for a summary."""

    value: T_co
    records: tuple[Record, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    conflicts: tuple[Conflict, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    failures: tuple[Failure, ...] = ()
    report: ExtractionReport = field(default_factory=ExtractionReport)
    stopped: str | None = None
    """Which budget was spent before everything was asked."""
    source: str = "text"
    pages: int = 1

    @property
    def complete(self) -> bool:
        """Whether nothing is missing or in doubt: no gap, no doubtful record, no failure, every record grounded."""
        if self.coverage.gaps or self.coverage.doubtful or self.failures or self.stopped:
            return False
        return all(record.grounded for record in self.records)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the value as plain data."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        del fields["value"]
        plain: dict[str, Any] = {name: _plain(value) for name, value in fields.items()}
        plain["records"] = [record.to_dict() for record in self.records]
        return {"complete": self.complete, **plain}

    def __str__(self) -> str:
        return "\n".join([_first_line(self), *_problems(self)])


def _plain(value: Any) -> Any:
    if isinstance(value, Usage):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


def _first_line(extraction: Extraction[Any]) -> str:
    report = extraction.report
    pages = f" ({extraction.pages:,} pages)" if extraction.pages > 1 else ""
    parts = [f"{_count(len(extraction.records), 'record')} from {extraction.source}{pages}"]
    parts.append(_count(report.calls, "call"))
    tokens = (report.usage.input or 0) + (report.usage.output or 0)
    if tokens:
        parts.append(f"{tokens / 1000:,.0f}k tokens" if tokens >= 1000 else _count(tokens, "token"))
    if report.cost is not None:
        parts.append(f"${report.cost:,.2f}")
    return ", ".join(parts)


def _problems(extraction: Extraction[Any]) -> list[str]:
    coverage = extraction.coverage
    lines = []
    grounded = sum(record.grounded for record in extraction.records)
    if extraction.records:
        all_or_some = "all of them" if grounded == len(extraction.records) else f"{grounded:,} of them"
        lines.append(f"{all_or_some} grounded{_rejected_text(len(extraction.rejected))}")
    elif extraction.rejected:
        lines.append(_rejected_text(len(extraction.rejected)).lstrip("; "))
    lines += _listed(coverage.gaps, "gap", _gap_text)
    lines += _listed(coverage.doubtful, "doubtful record", _doubtful_text)
    lines += _listed(extraction.failures, "failed stretch", lambda each: f"{_place(each)}: {each.reason}")
    lines += _listed(extraction.conflicts, "conflict", _conflict_text)
    if coverage.unread:
        lines.append(f"{_count(len(coverage.unread), 'long stretch')} without a record, see coverage.unread")
    if extraction.stopped:
        lines.append(f"stopped: {extraction.stopped}")
    return lines


def _listed(items: tuple[Any, ...], name: str, text: Any) -> list[str]:
    """Return a line for each of the first few items, and how many there are."""
    if not items:
        return []
    lines = [text(item) for item in items[:_MOST_LISTED]]
    lines[0] = f"{_count(len(items), name)}: {lines[0]}"
    if len(items) > _MOST_LISTED:
        lines.append(f"and {len(items) - _MOST_LISTED:,} more")
    return lines


def _count(number: int, name: str) -> str:
    if number == 1:
        return f"1 {name}"
    plural = f"{name}es" if name.endswith("ch") else f"{name}s"
    return f"{number:,} {plural}"


def _rejected_text(count: int) -> str:
    if not count:
        return ""
    if count == 1:
        return "; 1 record the model made up was rejected"
    return f"; {count:,} records the model made up were rejected"


def _place(item: Any) -> str:
    page = "" if item.page is None else f"page {item.page:,}, "
    return f"{page}characters {item.start:,}-{item.end:,}"


def _gap_text(gap: Gap) -> str:
    if gap.reason == "crowded":
        return f"{_place(gap)} looks like several records, and answers contained fewer (asked {gap.calls} times)"
    times = "once" if gap.calls == 1 else f"{gap.calls} times"
    if gap.reason == "invalid":
        return f"{_place(gap)} has a record, and no answer for it fits the schema (asked {times})"
    return f"{_place(gap)} looks like a record, and no answer contained it (asked {times})"


def _doubtful_text(doubtful: Doubtful) -> str:
    return f"{_place(doubtful)}: {', '.join(doubtful.fields) or 'a value'} not in the text"


def _conflict_text(conflict: Conflict) -> str:
    return f"{conflict.pointer}: {conflict.chosen!r:.{_LONGEST_VALUE}} or {conflict.other!r:.{_LONGEST_VALUE}}"


def incomplete(extraction: Extraction[Any]) -> IncompleteExtraction:
    """Return the error for an extraction with something missing; it carries the extraction."""
    summary = "; ".join(_problems(extraction)) or "the result does not fit its schema"
    error = IncompleteExtraction(
        f"The extraction is not complete: {summary}",
        hint="See `extraction` of this error: its coverage, failures and value.",
    )
    error.extraction = extraction
    return error

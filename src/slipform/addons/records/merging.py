"""Combine the answers of an extraction into one value: records in source order, scalar fields with their conflicts."""

from __future__ import annotations

import dataclasses
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slipform.addons.evidence.comparison import same_value
from slipform.addons.evidence.occurrences import Lookup
from slipform.addons.evidence.source_index import LookupBudget, SourceIndex
from slipform.addons.records.coverage import between
from slipform.addons.records.learning import RecordCandidate
from slipform.addons.records.lines import LineTable
from slipform.addons.records.numbered import lines_span
from slipform.addons.records.placing import Claim, RecordBlock, record_span, tight_span
from slipform.addons.records.result import (
    Conflict,
    Coverage,
    Doubtful,
    Extraction,
    Failure,
    Gap,
    Record,
    Rejected,
    Unread,
)
from slipform.addons.records.segments import Question
from slipform.addons.records.session import ExtractionSession, PieceAnswer
from slipform.addons.records.shapes import RecordShape
from slipform.errors import SchemaViolationError
from slipform.files.document import Document
from slipform.ir.evidence import FieldEvidence, Span
from slipform.schema import Schema
from slipform.schema.document import join_pointer
from slipform.text.strict import compact_json

_LONGEST_GAP_TEXT = 400
_LONG_STRETCH = 1_000
_FURNITURE_TIMES = 3
_DIGITS = re.compile(r"\d+")
_UNGROUNDED = "its values are not in the source"


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """How records are combined."""

    unique_by: tuple[str, ...] = ()
    keep_ungrounded: bool = False


class ExtractedPart(NamedTuple):
    """A finished session, and the shape that it asked for."""

    shape: RecordShape
    session: ExtractionSession
    pages: Mapping[int, PieceAnswer] = {}
    """What models read on the images of scanned pages."""


def typed_value(item: Schema[Any] | None, value: Any) -> Any:
    """Return a record as an object of its Python type, if it has one."""
    return value if item is None else item.to_python(value)


def final_records(part: ExtractedPart, source: Document, lines: Sequence[int]) -> list[Record]:
    """Return the records of blocks that begin at these lines and do not change any more."""
    session = part.session
    blocks = session.blocks_by_line()
    records: list[Record] = []
    for line in sorted(lines):
        own = _block_records(session.final[line], blocks[line], part, source)
        records += [_with_value(record, typed_value(part.shape.item, record.value)) for record in own]
    return records


def _with_value(record: Record, value: Any) -> Record:
    return Record(
        value, record.start, record.end, record.page, record.evidence, record.calls, record.pointer, record.boxes,
        record.grounded,
    )  # fmt: skip


def _block_records(claim: Claim, block: RecordBlock, part: ExtractedPart, source: Document) -> list[Record]:
    """Return the records of a block: usually one, with the span of its lines, else each with that of its values."""
    candidates = part.session.candidates
    table = part.session.table
    if candidates[claim.candidate].lines is not None:
        named = [candidates[each.candidate] for each in (claim, *claim.others)]
        records = [_record(each, block, lines_span(table, each.lines or (0, 1)), part, source) for each in named]
        return [_with_ground(record) for record in records]
    if not claim.others:
        candidate = candidates[claim.candidate]
        return [_record(candidate, block, record_span(table, candidate, block), part, source)]
    residents = [candidates[each.candidate] for each in (claim, *claim.others)]
    records = [_record(each, block, tight_span(each, block, part.session.model), part, source) for each in residents]
    return sorted(records, key=lambda record: record.start)


def _with_ground(record: Record) -> Record:
    """Return a record that has the lines which the model named: grounded where one of its values is in them."""
    spans = [span for each in record.evidence.values() for span in each.spans]
    inside = any(record.start <= span.start < record.end for span in spans)
    return dataclasses.replace(record, grounded=inside)


def _record(
    candidate: RecordCandidate, block: RecordBlock, span: tuple[int, int], part: ExtractedPart, source: Document
) -> Record:
    session = part.session
    start, end = span
    evidence = {leaf.pointer: _evidence(leaf.value, leaf.places, block, source.text) for leaf in candidate.leaves}
    pointer = f"/{part.shape.list_name}" if part.shape.list_name else ""
    calls = session.times_shown[block.line]
    boxes = source.boxes(start, end)
    return Record(candidate.value, start, end, source.page_at(start), evidence, calls, pointer, boxes)


def _evidence(value: Any, places: Sequence[tuple[int, int]], block: RecordBlock, text: str) -> FieldEvidence:
    first = bisect_left(places, (block.start, 0))
    last = bisect_left(places, (block.end, 0), first)
    chosen = places[first:last] or places[max(0, first - 1) : first]  # in the block, else carried from above it
    spans = [Span(start, end, "exact" if text[start:end] == str(value) else "normalised") for start, end in chosen]
    return FieldEvidence(tuple(spans))


def merge(parts: Sequence[ExtractedPart], source: Document, options: MergeOptions) -> Extraction[Any]:
    """Return the whole value with its records, coverage, conflicts and failures."""
    whole = parts[0].shape.whole
    records: list[Record] = []
    rejected: list[Rejected] = []
    failures = list(_unread_pages(parts, source))
    fields: dict[str, Any] = {}
    conflicts: list[Conflict] = []
    for part in parts:
        own, own_rejected = _records_of(part, source, options)
        own = sorted([*own, *_page_records(part, source)], key=lambda record: record.start)
        records += own
        rejected += own_rejected
        failures += _failures_of(part.session, source)
        if part.shape.list_name:
            fields[part.shape.list_name] = [record.value for record in own]
        rests = [(Question(0, "", (), ()), answer.rest) for answer in part.pages.values() if answer.rest]
        scalars, own_conflicts = merge_scalars([*part.session.rests, *rests], source.text)
        fields = {**scalars, **fields}
        conflicts += own_conflicts
    is_list = not parts[0].shape.list_name and parts[0].shape.item is not None
    plain: Any = [record.value for record in records] if is_list else _in_order(fields, whole)
    value, problem = _typed_whole(whole, plain)
    if problem:
        failures.append(Failure(0, len(source.text), None, problem))
    if is_list and isinstance(value, list) and len(value) == len(records):
        records = [_with_value(record, each) for record, each in zip(records, value, strict=True)]
    coverage = _coverage(parts, source, records)
    return Extraction(
        value, tuple(records), coverage, tuple(conflicts), tuple(rejected), tuple(failures), source=source.name,
        pages=max(1, len(source.page_starts)),
    )  # fmt: skip


def _in_order(fields: Mapping[str, Any], whole: Schema[Any]) -> dict[str, Any]:
    """Return fields in the order of the schema."""
    order = list(whole.document.get("properties", ()))
    return dict(sorted(fields.items(), key=lambda each: order.index(each[0]) if each[0] in order else len(order)))


def _typed_whole(whole: Schema[Any], plain: Any) -> tuple[Any, str | None]:
    """Return the value as an object of its type; plain and with the reason where it does not fit."""
    violations = whole.validate(plain)
    if violations:
        return plain, f"the result does not fit the schema: {violations[0].message}, at {violations[0].json_path}"
    try:
        return whole.to_python(plain), None
    except SchemaViolationError as error:
        return plain, f"the result does not fit the schema: {error.message}"


def _records_of(part: ExtractedPart, source: Document, options: MergeOptions) -> tuple[list[Record], list[Rejected]]:
    session = part.session
    if part.shape.item is None:
        return [], []
    if session.is_unplaced:
        return _without_places(part, source), []
    blocks = session.blocks_by_line()
    records = [
        record
        for line, claim in sorted(session.placement.claims.items())
        if line in blocks
        for record in _block_records(claim, blocks[line], part, source)
    ]
    rejected = _distinct(Rejected(candidate.value, reason) for candidate, reason in session.rejected)
    rejected = _without_right_readings(rejected, records)
    if options.keep_ungrounded:
        records += [_ungrounded(candidate, part, source) for candidate, _ in session.rejected]
        records.sort(key=lambda record: record.start)
        rejected = []
    if options.unique_by:
        records, repeats = _unique(records, options.unique_by)
        rejected += repeats
    return records, rejected


def _without_right_readings(rejected: list[Rejected], records: Sequence[Record]) -> list[Rejected]:
    """Leave out rejected records that are in the result anyway."""
    values = {json.dumps(record.value, sort_keys=True) for record in records}
    return [each for each in rejected if json.dumps(each.value, sort_keys=True) not in values]


def _without_places(part: ExtractedPart, source: Document) -> list[Record]:
    """Return all records in the order of their pieces, where too few values are literal to place them."""
    return [_ungrounded(candidate, part, source) for candidate in part.session.candidates]


def _ungrounded(candidate: RecordCandidate, part: ExtractedPart, source: Document) -> Record:
    start, end = _stretch(part.session.table, part.session.questions[candidate.question - 1])
    pointer = f"/{part.shape.list_name}" if part.shape.list_name else ""
    return Record(candidate.value, start, end, source.page_at(start), {}, 1, pointer, grounded=False)


def _stretch(table: LineTable, question: Question) -> tuple[int, int]:
    return table.lines[question.ranges[0][0]].start, table.lines[question.ranges[-1][1] - 1].end


def _unique(records: Sequence[Record], fields: Sequence[str]) -> tuple[list[Record], list[Rejected]]:
    """Return the first record of each identity, and the others as rejected."""
    first: dict[str, Record] = {}
    repeats: list[Rejected] = []
    for record in records:
        values = [record.value.get(name) if isinstance(record.value, Mapping) else None for name in fields]
        key = json.dumps(values, sort_keys=True)
        if key in first and any(value is not None for value in values):
            repeats.append(Rejected(record.value, f"{', '.join(fields)} is that of the record at {first[key].start:,}"))
        else:
            first[key if key not in first else f"{key} {record.start}"] = record
    return list(first.values()), repeats


def _failures_of(session: ExtractionSession, source: Document) -> Iterator[Failure]:
    lines = session.table.lines
    for each in session.unanswered:
        start = lines[each.lines[0]].start
        yield Failure(start, lines[each.lines[1] - 1].end, source.page_at(start), each.reason)


def _page_records(part: ExtractedPart, source: Document) -> Iterator[Record]:
    """Yield the records of scanned pages, which have no place but their page."""
    pointer = f"/{part.shape.list_name}" if part.shape.list_name else ""
    for page, answer in part.pages.items():
        start = source.page_starts[page - 1]
        for value in answer.values:
            yield Record(value, start, start, page, pointer=pointer, grounded=False)


def _unread_pages(parts: Sequence[ExtractedPart], source: Document) -> Iterator[Failure]:
    """Yield the pages that are images and that no model could read, or whose records do not fit the schema."""
    for page in source.scanned_pages:
        start = source.page_starts[page - 1]
        end = source.page_starts[page] if page < len(source.page_starts) else len(source.text)
        for part in parts:
            reason = _page_failure(part.pages.get(page))
            if reason:
                yield Failure(start, end, page, f"the page is an image without text{reason}")
                break


def _page_failure(answer: PieceAnswer | None) -> str:
    if answer is None:
        return ", and was not rendered"
    if answer.failure:
        return f": {answer.failure}"
    return f": {len(answer.invalid):,} of its records do not fit the schema" if answer.invalid else ""


def _distinct(rejected: Iterable[Rejected]) -> list[Rejected]:
    """Return each rejected record once, with how often answers had it."""
    by_value: dict[str, Rejected] = {}
    for each in rejected:
        key = compact_json([each.value, each.reason])
        before = by_value.get(key)
        by_value[key] = each if before is None else dataclasses.replace(before, times=before.times + 1)
    return list(by_value.values())


def _coverage(parts: Sequence[ExtractedPart], source: Document, records: Sequence[Record]) -> Coverage:
    gaps: list[Gap] = []
    doubtful: list[Doubtful] = []
    for part in parts:
        session = part.session
        if part.shape.item is None or session.is_unplaced:
            continue
        for suspect in session.suspects:
            page = source.page_at(suspect.start)
            text = source.text[suspect.start : suspect.end].rstrip()
            end = suspect.start + len(text)
            claim = session.placement.claims.get(suspect.line)
            if suspect.reason == "misfit" and claim is not None:
                value = session.candidates[claim.candidate].value
                doubtful.append(Doubtful(suspect.start, end, page, claim.missing, value))
            else:
                calls = session.times_shown[suspect.line]
                gaps.append(Gap(suspect.start, end, page, text[:_LONGEST_GAP_TEXT], suspect.reason, calls))
    session = parts[0].session
    if session.is_unplaced or parts[0].shape.item is None:
        return Coverage(len(records), tuple(gaps), tuple(doubtful), share=0.0)
    unread, share = _unread(session, source)
    return Coverage(len(records), tuple(gaps), tuple(doubtful), unread, share)


def _unread(session: ExtractionSession, source: Document) -> tuple[tuple[Unread, ...], float]:
    """Return the long stretches outside records, and the share of characters in records or repeated lines."""
    table = session.table
    blocks = [block for block in session.placement.blocks if block.line in session.placement.claims]
    times = Counter(_DIGITS.sub("", line.text).strip() for line in table.lines)
    total = sum(len(line.text.strip()) for line in table.lines) or 1
    outside = 0
    unread: list[Unread] = []
    for start, end in between(source.text, blocks):
        first = table.line_at(start)
        last = table.line_at(max(start, end - 1))
        own = [
            len(line.text.strip())
            for line in table.lines[first : last + 1]
            if line.features and times[_DIGITS.sub("", line.text).strip()] < _FURNITURE_TIMES
        ]
        outside += sum(own)
        if sum(own) > _LONG_STRETCH:
            unread.append(Unread(start, end, source.page_at(start)))
    return tuple(unread), round(max(0.0, 1 - outside / total), 4)


class _Statement(NamedTuple):
    """A value that some answers have for a field, and its places in the source."""

    value: Any
    places: list[tuple[int, int]]
    answers: int


def merge_scalars(
    rests: Sequence[tuple[Question, Mapping[str, Any]]], text: str
) -> tuple[dict[str, Any], list[Conflict]]:
    """Return the fields that answers agree on or that have the best grounds, and where the source states two values.

    A grounded value beats one that is not in the source, then the one with more places, then the first.
    """
    statements: dict[tuple[str, ...], list[_Statement]] = {}
    lists: dict[tuple[str, ...], list[Any]] = {}
    for question, rest in rests:
        lookup = Lookup(SourceIndex(question.text), LookupBudget(len(question.text), 100))
        for path, value in _scalar_leaves(rest):
            if isinstance(value, list):
                own = lists.setdefault(path, [])
                own += [each for each in value if each not in own]
                continue
            _add_statement(statements.setdefault(path, []), value, _value_places(lookup, question, value))
    merged: dict[str, Any] = {}
    conflicts: list[Conflict] = []
    for path, candidates in statements.items():
        ranked = sorted(candidates, key=lambda each: (not each.places, -len(each.places), -each.answers))
        _put(merged, path, ranked[0].value)
        if len(ranked) > 1 and ranked[1].places:
            places = (ranked[0].places[0], ranked[1].places[0])
            conflicts.append(Conflict(join_pointer(path), ranked[0].value, ranked[1].value, places))
    for path, values in lists.items():
        _put(merged, path, values)
    del text
    return merged, conflicts


def _scalar_leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of an answer; lists are whole, null means that the piece does not state the field."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _scalar_leaves(child, (*path, key))
    elif value is not None and value != "":
        yield path, value


def _value_places(lookup: Lookup, question: Question, value: Any) -> list[tuple[int, int]]:
    if isinstance(value, bool):
        return []
    occurrences = lookup.find(value, is_listed=False) or ()
    places = (question.in_source(each.start, each.end) for each in occurrences if each.how != "partial")
    return [place for place in places if place is not None]


def _add_statement(statements: list[_Statement], value: Any, places: list[tuple[int, int]]) -> None:
    for number, each in enumerate(statements):
        if each.value == value or same_value(each.value, value):
            joined = sorted({*each.places, *places})
            statements[number] = _Statement(each.value, joined, each.answers + 1)
            return
    statements.append(_Statement(value, places, 1))


def _put(target: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        target = target.setdefault(key, {})
    target[path[-1]] = value

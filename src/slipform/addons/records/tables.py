"""Lay out extractions as the rows of a table, and what is missing or in doubt as lines of JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from slipform.addons.records.result import Extraction, Record
from slipform.files.document import Document
from slipform.files.tables import flatten

PLACE_COLUMNS = ("_start", "_end", "_boxes", "_ungrounded", "_doubtful")


def record_rows(file: str, extraction: Extraction[Any], *, evidence: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each record: the file, the page, the fields, then places and doubts."""
    doubts = {doubtful.start: list(doubtful.fields) for doubtful in extraction.coverage.doubtful}
    for record in extraction.records:
        row: dict[str, Any] = {"file": file, "page": record.page, **flatten(record.value)}
        if evidence:
            row |= _places(record, doubts)
        yield row


def _places(record: Record, doubts: Mapping[int, list[str]]) -> dict[str, Any]:
    ungrounded = [pointer for pointer, each in record.evidence.items() if not each.spans]
    boxes = [list(box) for box in record.boxes]
    return dict(
        zip(
            PLACE_COLUMNS,
            (record.start, record.end, boxes or None, ungrounded or None, doubts.get(record.start)),
            strict=True,
        )
    )


def file_row(file: str, extraction: Extraction[Any]) -> dict[str, Any]:
    """Return the row of a file whose schema is one object."""
    return {"file": file, **flatten(extraction.value)}


def problem_lines(file: str, extraction: Extraction[Any], document: Document) -> Iterator[dict[str, Any]]:
    """Yield what is missing or in doubt, each with its place and text."""
    coverage = extraction.coverage
    for kind, items in (
        ("gap", coverage.gaps),
        ("doubtful", coverage.doubtful),
        ("failure", extraction.failures),
        ("unread", coverage.unread),
    ):
        for item in items:
            fields = dataclasses.asdict(item)
            fields.setdefault("text", document.text[item.start : item.end][:400])
            yield {"file": file, "kind": kind, **fields}
    for conflict in extraction.conflicts:
        yield {"file": file, "kind": "conflict", **dataclasses.asdict(conflict)}
    for rejected in extraction.rejected:
        yield {"file": file, "kind": "rejected", **dataclasses.asdict(rejected)}

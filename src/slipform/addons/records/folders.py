"""Extract records from many files into one table, with one budget and one journal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.records.drive import CallJournal, Driver, ExtractionTally, Limits, all_at_once
from slipform.addons.records.result import Extraction, ExtractionReport, Progress
from slipform.addons.records.running import Extractor
from slipform.addons.records.source import document_of
from slipform.addons.records.tables import PLACE_COLUMNS, file_row, problem_lines, record_rows
from slipform.errors import ConfigError
from slipform.files.replacing import replacing
from slipform.files.tables import columns_of, write_table, writer_for


@dataclass(frozen=True, slots=True)
class FilesJob:
    """Which files are read, and where their records go."""

    extractor: Extractor
    files: tuple[Path, ...]
    out: Path
    limits: Limits
    evidence: bool = True
    batches: BatchPolicy | None = None
    """When to wait for the vendor's batches; None for live calls."""

    @property
    def journal_path(self) -> Path:
        """The file that answers are written to."""
        return self.out.with_name(f"{self.out.name}.journal")

    @property
    def gaps_path(self) -> Path:
        """The file of what is missing or in doubt."""
        return self.out.with_name(f"{self.out.name}.gaps.jsonl")

    @property
    def is_list(self) -> bool:
        """Whether a row is a record, and not a file."""
        shape = self.extractor.shapes[0]
        return shape.item is not None and not shape.list_name


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """What an extraction of files gave."""

    rows: int
    files: int
    problems: int
    """Lines in the gaps file."""
    is_complete: bool
    report: ExtractionReport
    stopped: str | None


async def extract_files(job: FilesJob, on_progress: Callable[[Progress], None] | None = None) -> FilesSummary:
    """Extract the records of all files, and write the table and what is missing.

    A file that cannot be read is a failure in the gaps file, and does not stop the others.
    """
    writer_for(job.out)
    _refuse_foreign_table(job)
    journal = CallJournal(job.journal_path, job.extractor.identity())
    try:
        if job.batches is None:
            return await _extract_all(job, journal, on_progress)
        from slipform.addons.records.batched import BatchedExtraction, in_batches

        folder = job.out.with_name(f"{job.out.name}.batches")
        batched = BatchedExtraction(job.batches, folder, job.limits.concurrency)
        async with in_batches(job.extractor, journal, batched) as extractor:
            batched_job = replace(job, extractor=extractor, limits=all_at_once(job.limits))
            return await _extract_all(batched_job, journal, on_progress)
    finally:
        journal.close()


async def _extract_all(
    job: FilesJob, journal: CallJournal, on_progress: Callable[[Progress], None] | None
) -> FilesSummary:
    driver = Driver(ExtractionTally(job.limits, first_cost=job.extractor.first_cost), journal, on_progress)
    limit = asyncio.Semaphore(job.limits.concurrency)
    results: dict[Path, _FileResult] = {}

    async def extract(path: Path) -> None:
        async with limit:
            results[path] = await _extract_file(job, path, driver)

    try:
        async with asyncio.TaskGroup() as group:
            for path in job.files:
                group.create_task(extract(path))
    except BaseExceptionGroup as error_group:
        raise error_group.exceptions[0] from None
    return _write(job, [results[path] for path in job.files], driver.tally)


def _refuse_foreign_table(job: FilesJob) -> None:
    """Raise for a table that no extraction wrote here: it would be replaced."""
    if job.out.exists() and not job.journal_path.exists():
        raise ConfigError(
            "This file exists, and was not written by this command",
            where=str(job.out),
            hint="Give another --out, or delete it.",
        )


@dataclass(frozen=True, slots=True)
class _FileResult:
    """The rows of a file, and its lines in the gaps file."""

    rows: list[dict[str, Any]]
    problems: list[dict[str, Any]]
    is_complete: bool


async def _extract_file(job: FilesJob, path: Path, driver: Driver) -> _FileResult:
    name = str(path)
    try:
        document = await asyncio.to_thread(document_of, path)
    except ConfigError as error:
        return _FileResult([], [{"file": name, "kind": "failure", "reason": str(error)}], is_complete=False)
    extraction = await job.extractor.extract(document, driver)
    problems = list(problem_lines(name, extraction, document))
    return _FileResult(_rows(job, name, extraction), problems, is_complete=extraction.complete)


def _rows(job: FilesJob, name: str, extraction: Extraction[Any]) -> list[dict[str, Any]]:
    if job.is_list:
        return list(record_rows(name, extraction, evidence=job.evidence))
    return [file_row(name, extraction)]


def _write(job: FilesJob, results: Sequence[_FileResult], tally: ExtractionTally) -> FilesSummary:
    rows = [row for result in results for row in result.rows]
    problems = [problem for result in results for problem in result.problems]
    write_table(job.out, rows, _columns(job, rows))
    if problems:
        with replacing(job.gaps_path) as file:
            for problem in problems:
                file.write(json.dumps(problem, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
    else:
        job.gaps_path.unlink(missing_ok=True)
    return FilesSummary(
        len(rows),
        len(results),
        len(problems),
        all(result.is_complete for result in results),
        tally.report(),
        tally.stopped,
    )


def _columns(job: FilesJob, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the columns in their order: file and page, the fields of the schema, places."""
    shape = job.extractor.shapes[0]
    described = shape.item if job.is_list and shape.item is not None else shape.whole
    fields = described.document.get("properties", ())
    names: dict[str, None] = dict.fromkeys(("file", "page") if job.is_list else ("file",))
    in_rows = columns_of(rows)
    for name in fields:
        own = dict.fromkeys(each for each in in_rows if each == name or each.startswith(f"{name}."))
        names.update(own or {name: None})
    names.update(dict.fromkeys(name for name in in_rows if name not in PLACE_COLUMNS))
    if job.is_list and job.evidence:
        names.update(dict.fromkeys(PLACE_COLUMNS))
    return list(names)

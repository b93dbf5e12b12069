"""Describe a batch job, check its whole input before the first call, and estimate its cost."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import orjson

from slipform.addons.batch.file_rows import FILE_COLUMNS, file_rows, read_row
from slipform.addons.batch.journal import JournalEntry, KeySet, content_hash, row_key
from slipform.addons.batch.rows import Row, Template, column_list, rows_of
from slipform.config import Settings
from slipform.engine.planning import named_price
from slipform.engine.setup import Options, router_of
from slipform.errors import ConfigError
from slipform.ir import Usage
from slipform.ir.response import guess_tokens
from slipform.prices import BATCH_TIER, AnyPrice, cost_of
from slipform.schema import OutputStrategy, Schema
from slipform.schema.examples import example
from slipform.schema.summary import summarize

_WINDOW = 65_536
KEEP_ALL = "*"
DAY = 24 * 3600.0
Via: TypeAlias = Literal["live", "batch"]
_MAX_COLUMNS = 10_000
"""Rows of JSONL may each have columns of their own; more names than these are not collected."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row that waits for its answer; rows are counted from 1."""

    number: int
    key: str
    row: Row
    content: str = ""
    """A hash of the row's content, where the key is a column's value."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One batch, with everything that identifies it when it is resumed."""

    input: Path
    out: Path
    schema: Schema[Any]
    template: Template
    model: str
    options: Options
    settings: Settings
    key: str | None = None
    concurrency: int = 16
    limit: int | None = None
    max_tokens: int | None = None
    failures: Path | None = None
    format: str | None = None
    shape: Any = None
    """The schema as the caller passed it, from which Ray's workers find the Python type."""
    fallbacks: tuple[str, ...] = ()
    """Models to try for a row when `model` cannot answer; estimates are those of `model`."""
    strategy: OutputStrategy = OutputStrategy.AUTO
    source: str | None = None
    """The column with the text that evidence is looked for in; the prompt by default."""
    schema_column: str | None = None
    """The column with the schema of each row, in place of `schema`."""
    asked_only: bool = False
    """Whether a row is the same one as long as what is asked is: other columns (labels) may change."""
    figures: bool = False
    """Whether each result says what it took: calls, tokens, cost, seconds."""
    files: tuple[Path, ...] = ()
    """The files that are a row each, in place of the rows of `input`."""
    keep: tuple[str, ...] = ()
    """The columns of the input that each result repeats; `*` for all of them."""
    via: Via = "live"
    """Whether rows are asked live, or through the vendor's batch API."""
    deadline: float = DAY
    """Seconds after the first batch, at which every row has a result."""

    @property
    def models(self) -> tuple[str, ...]:
        """The models to try for a row, in their order."""
        return (self.model, *self.fallbacks)

    @property
    def window(self) -> int:
        """How far rows may be ahead of the slowest one: a bound on memory, of about 100 bytes a row."""
        return max(_WINDOW, 64 * self.concurrency)

    @property
    def journal_path(self) -> Path:
        """The file that records the job's progress."""
        return self.out.with_name(f"{self.out.name}.journal")

    @property
    def failures_path(self) -> Path:
        """The file of failed rows."""
        return self.failures or self.out.with_name(f"{self.out.name}.failures.jsonl")

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same when the job is resumed."""
        evidence = self.options.evidence
        optional = {
            "strategy": None if self.strategy is OutputStrategy.AUTO else self.strategy.value,
            "source": self.source,
            "schema_column": self.schema_column,
            "keep": list(self.keep) or None,
            "via": None if self.via == "live" else self.via,
            "evidence": None if evidence is None else orjson.loads(orjson.dumps(evidence)),
        }
        return {
            "version": 1,
            "input": "files" if self.files else str(self.input),
            "schema": self.schema.fingerprint,
            "prompt": [list(self.template.pieces), list(self.template.columns)],
            "model": [self.model, *self.fallbacks] if self.fallbacks else self.model,
            "key": self.key,
        } | {name: value for name, value in optional.items() if value is not None}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the job reads."""
        named = (self.source, self.schema_column)
        return (*self.template.columns, *(each for each in named if each is not None))

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Return the rows with their numbers, up to the limit."""
        rows = file_rows(self.files) if self.files else rows_of(self.input)
        return enumerate(islice(rows, self.limit), 1)

    def tasks(self) -> Iterator[Task]:
        """Return the rows with their numbers and keys."""
        return (
            Task(number, self.key_of(number, row), row, "" if self.key is None else content_hash(self.content(row)))
            for number, row in self.rows()
        )

    def key_of(self, number: int, row: Row) -> str:
        """Return the key of a row."""
        return row_key(number, row if self.key is not None else self.content(row), self.key)

    def prompt(self, row: Row) -> str:
        """Return what is asked about a row; the file of a row is read for it."""
        return self.template.fill(read_row(row) if self.files else row)

    def content(self, row: Row) -> Row:
        """Return the part of a row that makes it the row it is."""
        if self.asked_only:
            return {name: row.get(name) for name in self.columns}
        return row


@dataclass(frozen=True, slots=True)
class PendingRows:
    """The rows to do, in order: all but those up to `frontier` and those `ahead`, or only the `selected` ones."""

    frontier: int = 0
    ahead: frozenset[int] = frozenset()
    selected: array[int] | None = None

    def of(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """Return the tasks to do, out of all tasks.

        >>> tasks = [Task(number, "", {}) for number in range(1, 6)]
        >>> [task.number for task in PendingRows(2, frozenset({4})).of(iter(tasks))]
        [3, 5]
        """
        if self.selected is None:
            return (each for each in tasks if each.number > self.frontier and each.number not in self.ahead)
        return self._select(tasks, self.selected)

    def _select(self, tasks: Iterator[Task], numbers: array[int]) -> Iterator[Task]:
        at = 0
        for task in tasks:
            if at == len(numbers):
                return
            if task.number == numbers[at]:
                at += 1
                yield task


@dataclass(slots=True)
class Survey:
    """What the whole input holds, and how much of it is still to do."""

    rows: int = 0
    pending: int = 0
    failed: int = 0
    """Rows that were tried before and failed."""
    changed: array[int] = field(default_factory=lambda: array("Q"))
    """Rows whose content changed since they were done, under the same key."""
    missing: dict[str, int] = field(default_factory=dict)
    """In how many rows a column of the prompt has no value."""
    prompt_tokens: int = 0
    """An estimate, for the pending rows."""


def _survey_row(job: BatchJob, survey: Survey, row: Mapping[str, Any]) -> None:
    """Count the columns that a row lacks; raise for bytes that are not text. Files are read when they are asked."""
    if job.files:
        return
    for column in job.columns:
        value = row.get(column)
        if value is None:
            survey.missing[column] = survey.missing.get(column, 0) + 1
        elif isinstance(value, bytes):
            _check_text(value, column, survey.rows, job)


def _check_columns(job: BatchJob, columns: Mapping[str, None]) -> None:
    if job.files:
        columns = dict.fromkeys(FILE_COLUMNS)
    job.template.check(columns)
    for name in (job.source, job.schema_column, *job.keep):
        if name is not None and name != KEEP_ALL and name not in columns:
            raise ConfigError(
                f"The input has no column {name!r}",
                where=str(job.input),
                hint=f"The columns are: {column_list(columns)}.",
            )


def survey_input(
    job: BatchJob, entries: Iterator[JournalEntry], *, count_tokens: bool = False, retry: bool = False
) -> Survey:
    """Return what the whole input holds, read before the first call so that mistakes do not show up after an hour.

    Raises `ConfigError` for rows that cannot be read, missing columns and keys, duplicate keys, and keys that changed
    since the job began.
    """
    survey = Survey()
    columns: dict[str, None] = {}
    for row, entry in _with_entries(job, entries):
        survey.rows += 1
        if not columns.keys() >= row.keys() and len(columns) < _MAX_COLUMNS:
            columns.update(dict.fromkeys(row))
        _survey_row(job, survey, row)
        if entry is not None and entry.content and entry.content != content_hash(job.content(row)):
            survey.changed.append(survey.rows)
            entry = entry if retry else None
        if entry is not None:
            survey.failed += not entry.ok
        if (retry and not entry.ok) if entry is not None else not retry:
            survey.pending += 1
            if count_tokens:
                survey.prompt_tokens += guess_tokens(job.prompt(row))
    if survey.rows:
        _check_columns(job, columns)
        survey.missing = _missing_cells(survey, columns)
    return survey


def _missing_cells(survey: Survey, columns: Collection[str]) -> dict[str, int]:
    """Return how many rows lack each column, without names that the input does not have."""
    return {name: count for name, count in survey.missing.items() if count < survey.rows or name in columns}


def _check_text(value: bytes, column: str, number: int, job: BatchJob) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"Row {number} has bytes that are not text in the column {column!r}",
            where=str(job.input),
            hint="Decode the column first, or leave it out of the prompt.",
        ) from error


def _with_entries(job: BatchJob, entries: Iterator[JournalEntry]) -> Iterator[tuple[Row, JournalEntry | None]]:
    """Yield every row with its journal entry, if any; keys are built only where they are compared."""
    keys = KeySet() if job.key is not None else None
    next_entry = next(entries, None)
    number = 0
    for number, row in job.rows():
        entry = None
        if next_entry is not None and next_entry.row == number:
            entry = next_entry
        if entry is not None or keys is not None:
            key = job.key_of(number, row)
            if keys is not None and not keys.add(key):
                raise ConfigError(
                    f"The key {key!r:.80} comes twice in the column {job.key!r}, the second time in row {number}",
                    where=str(job.input),
                    hint="Keys tell rows apart: choose another column, or leave --key out.",
                )
            if entry is not None and entry.key != key:
                raise ConfigError(
                    f"Row {number} is not what it was when this job began: its key was {entry.key!r:.80}",
                    where=str(job.input),
                    hint="Give back the input the job began with, or another --out.",
                )
        yield row, entry
        if entry is not None:
            next_entry = next(entries, None)
    if next_entry is not None and job.limit is None:
        raise ConfigError(
            f"The input has {number} rows now, and row {next_entry.row} is done already",
            where=str(job.input),
            hint="Give back the input the job began with, or another --out.",
        )


@dataclass(frozen=True, slots=True)
class BatchEstimate:
    """The estimated size of a job, at about four bytes of text for a token."""

    rows: int
    pending: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    """None when no price is known for the model."""
    live_cost: float | None = None
    """What live calls would cost, where the job goes through batches."""


def estimate(job: BatchJob, survey: Survey) -> BatchEstimate:
    """Return the estimate: the prompts, the schema with each of them, an example for each answer."""
    schema_tokens = guess_tokens(summarize(job.schema.document).text)
    instance = example(job.schema.document)
    answer = guess_tokens(instance.text) if instance is not None else schema_tokens
    usage = Usage(input=survey.prompt_tokens + survey.pending * schema_tokens, output=survey.pending * answer)
    router = router_of(job.settings, keyless=True)
    price = named_price(job.settings.own_prices, router, router.aliases.get(job.model, job.model))
    cost = _cost_of_rows(price, usage, survey.pending)
    live_cost = None
    if job.via == "batch":
        live_cost = cost
        cost = _cost_of_rows(price, usage.replace(service_tier=BATCH_TIER), survey.pending)
    return BatchEstimate(survey.rows, survey.pending, usage.input or 0, usage.output or 0, cost, live_cost)


def _cost_of_rows(price: AnyPrice | None, usage: Usage, rows: int) -> float | None:
    """Return what rows cost that take this much together: a price may depend on the size of each prompt."""
    if not rows:
        return cost_of(price, usage)
    mean = usage.replace(input=round((usage.input or 0) / rows), output=round((usage.output or 0) / rows), total=None)
    cost = cost_of(price, mean)
    return None if cost is None else cost * rows

"""What a batch is to do."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from slipform.config import Settings
from slipform.engine.setup import Options, cost_of, guess_tokens, price_of
from slipform.errors import ConfigError
from slipform.ir import Usage
from slipform.runner.journal import JournalEntry, SeenKeys, content_hash, row_key
from slipform.runner.rows import Row, Template, rows_of
from slipform.schema import Schema
from slipform.schema.examples import example
from slipform.schema.summary import summarize

_WINDOW = 64
_LEAST_WINDOW = 1024
_MOST_COLUMNS = 10_000
"""Rows of JSONL may each have columns of their own; so many names are enough to know."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row that waits for its answer; rows are counted from 1."""

    number: int
    key: str
    row: Row
    content: str = ""
    """A hash of what the row holds, where the key does not tell."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One batch, with everything that makes it the same batch the next time."""

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
    """The schema as it was given, for processes elsewhere that have to find its Python type."""
    fallbacks: tuple[str, ...] = ()
    """Who is asked for a row when `model` cannot answer; estimates are the first one's."""

    @property
    def window(self) -> int:
        """How far rows may be ahead of the slowest one: what bounds memory, and what a slow row holds up."""
        return max(_LEAST_WINDOW, _WINDOW * self.concurrency)

    @property
    def journal_path(self) -> Path:
        """Where the job's progress is kept."""
        return self.out.with_name(f"{self.out.name}.journal")

    @property
    def failures_path(self) -> Path:
        """Where rows go that could not be done."""
        return self.failures or self.out.with_name(f"{self.out.name}.failures.jsonl")

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same when the job goes on."""
        return {
            "version": 1,
            "input": str(self.input),
            "schema": self.schema.fingerprint,
            "prompt": [list(self.template.pieces), list(self.template.columns)],
            "model": [self.model, *self.fallbacks] if self.fallbacks else self.model,
            "key": self.key,
        }

    def rows(self) -> Iterator[tuple[int, Row]]:
        """The rows with their numbers, as far as the limit goes."""
        return enumerate(islice(rows_of(self.input), self.limit), 1)

    def tasks(self) -> Iterator[Task]:
        """The rows with their numbers and keys."""
        return (
            Task(number, row_key(number, row, self.key), row, "" if self.key is None else content_hash(row))
            for number, row in self.rows()
        )


@dataclass(frozen=True, slots=True)
class PendingRows:
    """Which rows are to be done: all but those up to a row and some beyond it, or the chosen ones, in order."""

    frontier: int = 0
    ahead: frozenset[int] = frozenset()
    chosen: array[int] | None = None

    def of(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """The tasks to be done, of all tasks.

        >>> tasks = [Task(number, "", {}) for number in range(1, 6)]
        >>> [task.number for task in PendingRows(2, frozenset({4})).of(iter(tasks))]
        [3, 5]
        """
        if self.chosen is None:
            return (each for each in tasks if each.number > self.frontier and each.number not in self.ahead)
        return self._chosen(tasks, self.chosen)

    def _chosen(self, tasks: Iterator[Task], numbers: array[int]) -> Iterator[Task]:
        at = 0
        for task in tasks:
            if at == len(numbers):
                return
            if task.number == numbers[at]:
                at += 1
                yield task


@dataclass(slots=True)
class Survey:
    """What the whole input looks like, and what is left to do of it."""

    rows: int = 0
    left: int = 0
    failed: int = 0
    """Rows that were tried before and failed."""
    changed: array[int] = field(default_factory=lambda: array("Q"))
    """Rows that are done, but held something else then; their key is the same."""
    missing: dict[str, int] = field(default_factory=dict)
    """In how many rows a column of the prompt has no value."""
    prompt_tokens: int = 0
    """A guess, for the rows that are left."""


def survey(job: BatchJob, known: Iterator[JournalEntry], *, count_tokens: bool = False, retry: bool = False) -> Survey:
    """Read the whole input once, before the first call: every mistake in it is found now, not after an hour.

    Raises `ConfigError` for what cannot be read, columns and keys that are missing, keys that come twice, and rows that
    are not what they were when the job began.
    """
    found = Survey()
    columns: dict[str, None] = {}
    for row, done in _with_known(job, known):
        found.rows += 1
        if not columns.keys() >= row.keys() and len(columns) < _MOST_COLUMNS:
            columns.update(dict.fromkeys(row))
        for column in job.template.columns:
            value = row.get(column)
            if value is None:
                found.missing[column] = found.missing.get(column, 0) + 1
            elif isinstance(value, bytes):
                _check_text(value, column, found.rows, job)
        if done is not None and done.content and done.content != content_hash(row):
            found.changed.append(found.rows)
            done = done if retry else None
        if done is not None:
            found.failed += not done.ok
        if (retry and not done.ok) if done is not None else not retry:
            found.left += 1
            if count_tokens:
                found.prompt_tokens += guess_tokens(job.template.fill(row))
    if found.rows:
        job.template.check(columns)
        found.missing = {name: count for name, count in found.missing.items() if count < found.rows or name in columns}
    return found


def _check_text(value: bytes, column: str, number: int, job: BatchJob) -> None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"Row {number} has bytes that are no text in the column {column!r}",
            where=str(job.input),
            hint="Decode the column first, or leave it out of the prompt.",
        ) from error


def _with_known(job: BatchJob, known: Iterator[JournalEntry]) -> Iterator[tuple[Row, JournalEntry | None]]:
    """Every row with what became of it before; keys are made only where there is something to hold them against."""
    seen = SeenKeys() if job.key is not None else None
    entry = next(known, None)
    number = 0
    for number, row in job.rows():
        done = entry if entry is not None and entry.row == number else None
        if done is not None or seen is not None:
            key = row_key(number, row, job.key)
            if seen is not None and not seen.add(key):
                raise ConfigError(
                    f"The key {key!r:.80} comes twice in the column {job.key!r}, the second time in row {number}",
                    where=str(job.input),
                    hint="Keys tell rows apart: choose another column, or leave --key out.",
                )
            if done is not None and done.key != key:
                raise ConfigError(
                    f"Row {number} is not what it was when this job began: its key was {done.key!r:.80}",
                    where=str(job.input),
                    hint="Give back the input the job began with, or another --out.",
                )
        yield row, done
        if done is not None:
            entry = next(known, None)
    if entry is not None and job.limit is None:
        raise ConfigError(
            f"The input has {number} rows now, and row {entry.row} is done already",
            where=str(job.input),
            hint="Give back the input the job began with, or another --out.",
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job may take, guessed without calling anything: about four bytes of text for a token."""

    rows: int
    left: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    """None when the settings have no price for the model."""


def estimate(job: BatchJob, found: Survey) -> Estimate:
    """Guess tokens and cost: the prompts as they are, the schema with each of them, an example for each answer."""
    told = guess_tokens(summarize(job.schema.document).text)
    shown = example(job.schema.document)
    answer = guess_tokens(shown.text) if shown is not None else told
    usage = Usage(input=found.prompt_tokens + found.left * told, output=found.left * answer)
    cost = cost_of(price_of(job.settings.prices, job.model), usage)
    return Estimate(found.rows, found.left, usage.input or 0, usage.output or 0, cost)

"""Write finished rows to their files in order, and show the progress of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from slipform.addons.batch.call import FinishedRow
from slipform.addons.batch.journal import Journal, JournalEntry
from slipform.addons.batch.parquet import ParquetResults
from slipform.addons.batch.table_results import TABLE_FORMATS, TableResults
from slipform.errors import ConfigError
from slipform.files.replacing import part_of, unwritable, writing
from slipform.ir import Usage
from slipform.prices import amount_text

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from slipform.addons.batch.batched_rows import BatchTotals

_BUFFER_BYTES = 1 << 16


class Results(Protocol):
    """A file of results: rewritten from the journal, put in place of the older one, then appended to."""

    def begin(self) -> None:
        """Start a new file; the older one stays until `publish`."""

    def write(self, line: bytes) -> None:
        """Add a line."""

    def publish(self) -> None:
        """Put the lines so far in place of the older file."""

    def flush(self) -> None:
        """Make the lines so far visible to other processes."""

    def close(self, *, complete: bool) -> None:
        """Close the file; `complete` when no row is missing."""


class JsonLinesFile:
    """A file of JSON lines, readable at any time; when `sparse`, an empty one does not exist."""

    def __init__(self, path: Path, *, sparse: bool = False) -> None:
        self.path = path
        self._sparse = sparse
        self._file: IO[bytes] | None = None
        self._buffer = bytearray()
        self._lock = threading.RLock()  # rows are written on the event loop, and flushed beside it

    def begin(self) -> None:
        """Start a new file; the older one stays until `publish`."""
        with writing(self.path):
            self._file = part_of(self.path).open("wb", buffering=0)

    def write(self, line: bytes) -> None:
        """Add a line."""
        with self._lock:
            self._buffer += line + b"\n"
            if len(self._buffer) >= _BUFFER_BYTES:
                self.flush()

    def publish(self) -> None:
        """Put the lines so far in place of the older file; later ones are appended."""
        if self._file is None:
            return
        with writing(self.path):
            self.flush()
            os.fsync(self._file.fileno())
            if self._sparse and self._file.tell() == 0:
                self.close(complete=False)
                part_of(self.path).unlink()
                self.path.unlink(missing_ok=True)
            else:
                part_of(self.path).replace(self.path)

    def flush(self) -> None:
        """Write the buffered lines; if the disk is full, cut the file back to its last whole line and raise."""
        with self._lock:
            lines = bytes(self._buffer)
            written = 0
            self._buffer.clear()
            try:
                if lines and self._file is None:
                    self._file = self.path.open("ab", buffering=0)
                while self._file is not None and written < len(lines):
                    written += self._file.write(lines[written:])
            except OSError as error:
                if self._file is not None and (partial := written - lines.rfind(b"\n", 0, written) - 1):
                    with contextlib.suppress(OSError):
                        self._file.truncate(self._file.seek(0, os.SEEK_END) - partial)
                raise unwritable(self.path, error) from error

    def close(self, *, complete: bool) -> None:  # noqa: ARG002 — an incomplete file is readable too
        """Flush and close the file."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                file = self._file
                self._file = None
                with writing(self.path):
                    file.close()


def format_of(path: Path) -> str | None:
    """Return the format of results that a file's suffix names.

    >>> format_of(Path("out.csv"))
    'csv'
    """
    suffix = path.suffix.lower().removeprefix(".")
    name = {"ndjson": "jsonl"}.get(suffix, suffix)
    return name if name in {"jsonl", "parquet", *TABLE_FORMATS} else None


def results_for(
    path: Path, kind: str | None, document: dict[str, Any], *, evidence: bool = False, keeps_input: bool = False
) -> Results:
    """Return the writer of a file of results, by `kind` or by the suffix; raises `ConfigError` for others."""
    name = kind or format_of(path)
    if name == "jsonl":
        return JsonLinesFile(path)
    if name == "parquet":
        return ParquetResults(path, document, evidence=evidence, keeps_input=keeps_input)
    if name in TABLE_FORMATS:
        return TableResults(path, name)
    raise ConfigError(
        f"The results cannot be written as {name!r}" if name else "Unsupported output format",
        where=str(path),
        hint="End the name in .jsonl, .csv, .xlsx or .parquet, or give --format.",
    )


class OrderedWriter:
    """Takes finished rows in any order: writes each to the journal at once, and to its file in the order of rows."""

    def __init__(self, journal: Journal, results: Results, failures: Results) -> None:
        self._journal = journal
        self._results = results
        self._failures = failures
        self._ahead: dict[int, JournalEntry] = {}
        self.frontier = 0
        """All rows up to this one are done."""

    def begin(self, entries: Iterable[JournalEntry]) -> None:
        """Rewrite both files from the journal's entries, which come in the order of rows."""
        for file in (self._results, self._failures):
            file.begin()
        for entry in entries:
            if entry.row == self.frontier + 1:
                self._write_entry(entry)
            else:
                self._ahead[entry.row] = entry
        for file in (self._results, self._failures):
            file.publish()

    @property
    def ahead(self) -> frozenset[int]:
        """Finished rows that wait for an earlier one."""
        return frozenset(self._ahead)

    def finish(self, entry: JournalEntry) -> None:
        """Record a finished row."""
        self._journal.finish(entry)
        if entry.row != self.frontier + 1:
            self._ahead[entry.row] = entry
            return
        self._write_entry(entry)
        while (next_entry := self._ahead.pop(self.frontier + 1, None)) is not None:
            self._write_entry(next_entry)

    def flush(self) -> None:
        """Flush both files, and sync the journal to disk."""
        self._results.flush()
        self._failures.flush()
        self._journal.sync()

    def close(self, *, complete: bool) -> None:
        """Close both files, even when one fails; `complete` when no row is missing."""
        try:
            self._results.close(complete=complete)
        finally:
            self._failures.close(complete=complete)

    def _write_entry(self, entry: JournalEntry) -> None:
        self.frontier = entry.row
        (self._results if entry.ok else self._failures).write(entry.line)


LINE_SECONDS = 5.0
FRAME_SECONDS = 0.25
SYNC_SECONDS = 1.0


@dataclass(slots=True)
class Tally:
    """The progress of one run."""

    pending: int
    """Rows to do when the run began."""
    done_before: int = 0
    """Rows done by earlier runs."""
    done: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    started: float = field(default_factory=time.monotonic)
    batches: BatchTotals | None = None
    """What the vendor's batches took, once they are done."""
    waits_for: str = ""
    """The batch at the vendor that the run waits for."""

    def wait_for(self, text: str) -> None:
        """Say what the run waits for."""
        self.waits_for = text

    def add(self, row: FinishedRow) -> None:
        """Count a finished row."""
        self.done += 1
        self.failed += not row.entry.ok
        self.usage += row.usage
        if row.cost is not None:
            self.cost = row.cost + (self.cost or 0.0)

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.started

    def describe(self) -> str:
        """Return one line: rows, failures, rate, cost and the remaining time.

        >>> Tally(10, done_before=2, done=5, failed=1, cost=0.25, started=time.monotonic() - 5).describe()
        '7 of 12 rows, 1 failed, 1.0 rows/s, cost 0.25, 0:00:05 to go'
        """
        rate = self.done / max(self.seconds, 1e-9)
        parts = [f"{self.done_before + self.done:,} of {self.done_before + self.pending:,} rows"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        parts.append(f"{rate:,.1f} rows/s")
        if self.cost is not None:
            parts.append(f"cost {amount_text(self.cost)}")
        if self.done and self.done < self.pending:
            parts.append(f"{_format_seconds((self.pending - self.done) / rate)} to go")
        if self.waits_for:
            parts.append(self.waits_for)
        return ", ".join(parts)


def _format_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Display:
    """Shows a tally on a terminal as a bar, elsewhere as lines; nothing when `quiet`."""

    def __init__(self, tally: Tally, *, quiet: bool = False, stream: IO[str] | None = None) -> None:
        self._tally = tally
        self._out = stream or sys.stderr
        self._quiet = quiet
        self._last_line_at = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(file=self._out), transient=True)
            self._task = self._bar.add_task("", total=self._tally.done_before + self._tally.pending)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self) -> None:
        """Show the tally now; lines are written every few seconds only."""
        tally = self._tally
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=tally.done_before + tally.done, description=tally.describe())
        elif not self._quiet and time.monotonic() - self._last_line_at >= LINE_SECONDS:
            self._last_line_at = time.monotonic()
            print(f"slipform: {tally.describe()}", file=self._out, flush=True)


async def show(display: Display, flush: Callable[[], None]) -> None:
    """Show the tally until cancelled, and call `flush` about once a second."""
    last_sync = time.monotonic()
    with display:
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            display.step()
            if time.monotonic() - last_sync >= SYNC_SECONDS:
                await asyncio.to_thread(flush)
                last_sync = time.monotonic()

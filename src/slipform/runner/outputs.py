"""Where finished rows go; progress."""

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

from slipform.errors import ConfigError
from slipform.ir import Usage
from slipform.runner.call import FinishedRow
from slipform.runner.journal import Journal, JournalEntry, part_of, unwritable, writing
from slipform.runner.parquet import ParquetResults

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SENT_AT_ONCE = 1 << 16


class Results(Protocol):
    """A file of results: written anew, put in place of an older one, and then added to."""

    def begin(self) -> None:
        """Start anew; the older file stays until `publish`."""
        ...

    def write(self, line: bytes) -> None:
        """Add a line."""
        ...

    def publish(self) -> None:
        """Put what is written so far in place."""
        ...

    def flush(self) -> None:
        """Let others see what is there."""
        ...

    def close(self, *, complete: bool) -> None:
        """Stop; `complete` when nothing is missing."""
        ...


class JsonLinesFile:
    """A file of JSON lines, of use as far as it goes; when `sparse`, it is not there while it would be empty."""

    def __init__(self, path: Path, *, sparse: bool = False) -> None:
        self.path = path
        self._sparse = sparse
        self._file: IO[bytes] | None = None
        self._waiting = bytearray()
        self._lock = threading.RLock()  # rows are written on the event loop, and flushed beside it

    def begin(self) -> None:
        """Start anew; the older file stays until `publish`."""
        with writing(self.path):
            self._file = part_of(self.path).open("wb", buffering=0)

    def write(self, line: bytes) -> None:
        """Add a line."""
        with self._lock:
            self._waiting += line + b"\n"
            if len(self._waiting) >= _SENT_AT_ONCE:
                self.flush()

    def publish(self) -> None:
        """Put what is written so far in place; what is written from now on is added to it."""
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
        """Let others see what is there. Where the disk is full, the file is brought back to its last whole line."""
        with self._lock:
            lines, written = bytes(self._waiting), 0
            self._waiting.clear()
            try:
                if lines and self._file is None:
                    self._file = self.path.open("ab", buffering=0)
                while self._file is not None and written < len(lines):
                    written += self._file.write(lines[written:])
            except OSError as error:
                if self._file is not None and (torn := written - lines.rfind(b"\n", 0, written) - 1):
                    with contextlib.suppress(OSError):
                        self._file.truncate(self._file.seek(0, os.SEEK_END) - torn)
                raise unwritable(self.path, error) from error

    def close(self, *, complete: bool) -> None:  # noqa: ARG002 — lines are good as far as they go
        """Stop."""
        try:
            self.flush()
        finally:
            if self._file is not None:
                file, self._file = self._file, None
                with writing(self.path):
                    file.close()


def results_for(path: Path, kind: str | None, document: dict[str, Any]) -> Results:
    """What writes this file: `jsonl` or `parquet`, by name or by the file's ending."""
    named = kind or {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(path.suffix.lower())
    if named == "jsonl":
        return JsonLinesFile(path)
    if named == "parquet":
        return ParquetResults(path, document)
    raise ConfigError(
        f"The results cannot be written as {named!r}" if named else "The kind of the results is not known",
        where=str(path),
        hint="End the name in .jsonl or .parquet, or give --format jsonl or --format parquet.",
    )


class OrderedWriter:
    """Takes finished rows in any order: each goes to the journal at once, and to its file when its turn comes."""

    def __init__(self, journal: Journal, results: Results, failures: Results) -> None:
        self._journal = journal
        self._results = results
        self._failures = failures
        self._ahead: dict[int, JournalEntry] = {}
        self.frontier = 0
        """The row up to which everything is done."""

    def begin(self, known: Iterable[JournalEntry]) -> None:
        """Start from what the journal knows, in order of rows: both files are written anew."""
        for file in (self._results, self._failures):
            file.begin()
        for entry in known:
            if entry.row == self.frontier + 1:
                self._settle(entry)
            else:
                self._ahead[entry.row] = entry
        for file in (self._results, self._failures):
            file.publish()

    @property
    def ahead(self) -> frozenset[int]:
        """Rows that are finished and wait for an earlier one."""
        return frozenset(self._ahead)

    def finish(self, entry: JournalEntry) -> None:
        """A row is finished."""
        self._journal.finish(entry)
        if entry.row != self.frontier + 1:
            self._ahead[entry.row] = entry
            return
        self._settle(entry)
        while (following := self._ahead.pop(self.frontier + 1, None)) is not None:
            self._settle(following)

    def housekeep(self) -> None:
        """Let others see what is there, and wait until the disk has the journal."""
        self._results.flush()
        self._failures.flush()
        self._journal.sync()

    def close(self, *, complete: bool) -> None:
        """Close both files, also when one of them fails; `complete` when nothing is missing."""
        try:
            self._results.close(complete=complete)
        finally:
            self._failures.close(complete=complete)

    def _settle(self, entry: JournalEntry) -> None:
        self.frontier = entry.row
        (self._results if entry.ok else self._failures).write(entry.line)


EVERY_LINE = 5.0
EVERY_FRAME = 0.25
EVERY_SYNC = 1.0


@dataclass(slots=True)
class Tally:
    """What has happened so far in this run."""

    left: int
    """Rows that were to be done when the run began."""
    before: int = 0
    """Rows that were done before."""
    done: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    began: float = field(default_factory=time.monotonic)

    def add(self, answered: FinishedRow) -> None:
        """One more row is finished."""
        self.done += 1
        self.failed += not answered.entry.ok
        self.usage += answered.usage
        if answered.cost is not None:
            self.cost = answered.cost + (self.cost or 0.0)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - self.began

    def describe(self) -> str:
        """One line: rows, failures, rate, cost and the time that is left.

        >>> Tally(left=10, before=2, done=5, failed=1, cost=0.25, began=time.monotonic() - 5).describe()
        '7 of 12 rows, 1 failed, 1.0 rows/s, cost 0.25, 0:00:05 to go'
        """
        rate = self.done / max(self.seconds, 1e-9)
        parts = [f"{self.before + self.done:,} of {self.before + self.left:,} rows"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        parts.append(f"{rate:,.1f} rows/s")
        if self.cost is not None:
            parts.append(f"cost {self.cost:,.4g}")
        if self.done and self.done < self.left:
            parts.append(f"{_clock((self.left - self.done) / rate)} to go")
        return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Display:
    """Shows a tally while it is entered; nothing when `quiet`."""

    def __init__(self, tally: Tally, *, quiet: bool = False, stream: IO[str] | None = None) -> None:
        self._tally = tally
        self._out = stream or sys.stderr
        self._quiet = quiet
        self._said = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(file=self._out), transient=True)
            self._task = self._bar.add_task("", total=self._tally.before + self._tally.left)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self) -> None:
        """Show how it stands now; a line comes every few seconds only."""
        tally = self._tally
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=tally.before + tally.done, description=tally.describe())
        elif not self._quiet and time.monotonic() - self._said >= EVERY_LINE:
            self._said = time.monotonic()
            print(f"slipform: {tally.describe()}", file=self._out, flush=True)


async def show(display: Display, housekeep: Callable[[], None]) -> None:
    """Show the tally until cancelled, and keep house about once a second."""
    kept = time.monotonic()
    with display:
        while True:
            await asyncio.sleep(EVERY_FRAME)
            display.step()
            if time.monotonic() - kept >= EVERY_SYNC:
                await asyncio.to_thread(housekeep)
                kept = time.monotonic()

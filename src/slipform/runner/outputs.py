"""Where finished rows go: results and failures, each in the order of the input."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Protocol

from slipform.errors import ConfigError
from slipform.runner.atomic import part_of, unwritable, writing
from slipform.runner.journal import Entry, Journal
from slipform.runner.parquet import ParquetResults

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


class Lines:
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
        return Lines(path)
    if named == "parquet":
        return ParquetResults(path, document)
    raise ConfigError(
        f"The results cannot be written as {named!r}" if named else "The kind of the results is not known",
        where=str(path),
        hint="End the name in .jsonl or .parquet, or give --format jsonl or --format parquet.",
    )


class Ledger:
    """Takes finished rows in any order: each goes to the journal at once, and to its file when its turn comes."""

    def __init__(self, journal: Journal, results: Results, failures: Results) -> None:
        self._journal = journal
        self._results = results
        self._failures = failures
        self._ahead: dict[int, Entry] = {}
        self.frontier = 0
        """The row up to which everything is done."""

    def begin(self, known: Iterable[Entry]) -> None:
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

    def finish(self, entry: Entry) -> None:
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

    def _settle(self, entry: Entry) -> None:
        self.frontier = entry.row
        (self._results if entry.ok else self._failures).write(entry.line)

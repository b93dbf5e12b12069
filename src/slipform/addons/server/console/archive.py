"""Store the console's calls in a SQLite file, where one is configured: rows for weeks, text for days, within a size.

One thread writes, several workers share the file. Calls that cannot be written are dropped and counted, because the
proxied calls must not wait for the disk. A damaged file is renamed.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from slipform.addons.server.console.rows import named

_log = logging.getLogger("slipform.server")
_VERSION: Final = 1
_MOST_WAITING: Final = 10_000
_MAX_BATCH: Final = 256
_MOST_SCANNED: Final = 50_000
_DAY: Final = 86_400.0
_PRUNE_SECONDS: Final = 600.0
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS calls(
    id TEXT PRIMARY KEY, at REAL NOT NULL, row BLOB NOT NULL, words BLOB, pinned INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_at ON calls(at);
"""
_Job = Callable[[sqlite3.Connection], object]


class CallArchive:
    """The file and the thread that writes it; both start when the first call ends."""

    def __init__(self, path: Path, days: float = 14, text_days: float = 2, max_bytes: int = 1 << 30) -> None:
        self.path = path
        self.days = days
        self.text_days = text_days
        self.max_bytes = max_bytes
        self.dropped = 0
        """Calls that could not be written."""
        self.problem = ""
        """Why the file cannot be used at present; empty if it can."""
        self._jobs: queue.Queue[_Job | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def add(self, identity: str, at: float, row: bytes, words: bytes | None) -> None:
        """Queue a call to be written."""
        self._put(
            lambda db: db.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?, ?, 0)", (identity, at, row, words))
        )

    def pin(self, identity: str, *, pinned: bool) -> None:
        """Store a call regardless of its age, or no longer."""
        self._put(lambda db: db.execute("UPDATE calls SET pinned = ? WHERE id = ?", (int(pinned), identity)))

    def clear(self) -> None:
        """Delete all calls that are not pinned."""
        self._put(lambda db: db.execute("DELETE FROM calls WHERE NOT pinned"))

    def flush(self, seconds: float = 10.0) -> bool:
        """Wait until all queued jobs have run; return False after a timeout."""
        done = threading.Event()
        self._put(lambda _: done.set())
        return done.wait(seconds)

    def close(self) -> None:
        """Run the queued jobs and close the file; blocks until that is done."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def find(self, identity: str) -> tuple[bytes, bytes | None] | None:
        """Return a call's row, and its text where it is stored."""
        rows = self._read("SELECT row, words FROM calls WHERE id = ?", (identity,))
        return (rows[0][0], rows[0][1]) if rows else None

    def rows(self, before: float, since: float = 0.0) -> Iterator[dict[str, Any]]:
        """Yield the calls that began between two times, newest first."""
        scanned = 0
        last = "~"
        while scanned < _MOST_SCANNED:
            page = self._read(
                "SELECT row, at, id FROM calls WHERE (at, id) < (?, ?) AND at >= ? ORDER BY at DESC, id DESC LIMIT 500",
                (before, last, since),
            )
            for row, at, identity in page:
                before = at
                last = identity
                yield named(orjson.loads(row))
            scanned += len(page)
            if len(page) < 500:
                return

    def sizes(self) -> dict[str, Any]:
        """Return how many calls are stored, for how long, and why the file cannot be used, if so."""
        counts = self._read("SELECT count(*), count(words) FROM calls", ())
        rows, words = counts[0] if counts else (0, 0)
        return {
            "path": str(self.path),
            "rows": rows,
            "words": words,
            "bytes": self.path.stat().st_size if self.path.exists() else 0,
            "days": self.days,
            "text_days": self.text_days,
            "max_bytes": self.max_bytes,
            "dropped": self.dropped,
            "problem": self.problem or None,
        }

    def _read(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if not self.path.exists():
            return []
        try:
            connection = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True, timeout=1)
            try:
                return connection.execute(statement, values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error as error:
            self._report(error)
            return []

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="slipform-history", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self.dropped += 1

    def _work(self) -> None:
        """Run the queued jobs in batches until the archive is closed."""
        connection: sqlite3.Connection | None = None
        pruned = 0.0
        is_open = True
        while is_open:
            is_open, jobs = self._next_batch()
            try:
                if connection is None:
                    connection = self._open_or_replace()
                with connection:
                    for job in jobs:
                        job(connection)
                if not pruned or time.monotonic() - pruned > _PRUNE_SECONDS:
                    self._prune(connection, time.time())
                    pruned = time.monotonic()
                self.problem = ""
            except (sqlite3.Error, OSError) as error:
                self.dropped += len(jobs)
                self._report(error)
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()

    def _next_batch(self) -> tuple[bool, list[_Job]]:
        """Wait for jobs, and return whether the archive stays open after them, and the jobs."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _MAX_BATCH:
                return True, jobs
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return True, jobs
        return False, jobs

    def _open_or_replace(self) -> sqlite3.Connection:
        try:
            return _open(self.path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, full, not permitted: may be temporary
                raise
        damaged = self.path.with_name(f"{self.path.name}.damaged-{int(time.time())}")
        self.path.replace(damaged)
        _log.error("history: not a file of calls, started a new one, file=%s, renamed_to=%s", self.path, damaged.name)
        return _open(self.path)

    def _prune(self, connection: sqlite3.Connection, now: float) -> None:
        """Delete calls and text that are too old, and the oldest calls where the file is too large."""
        with connection:
            connection.execute("DELETE FROM calls WHERE at < ? AND NOT pinned", (now - self.days * _DAY,))
            connection.execute(
                "UPDATE calls SET words = NULL WHERE at < ? AND words IS NOT NULL AND NOT pinned",
                (now - self.text_days * _DAY,),
            )
        while _size(connection) > self.max_bytes:
            with connection:
                deleted = connection.execute(
                    "DELETE FROM calls WHERE id IN (SELECT id FROM calls WHERE NOT pinned ORDER BY at LIMIT 100)"
                ).rowcount
            connection.execute("PRAGMA incremental_vacuum").fetchall()
            if not deleted:
                return

    def _report(self, error: Exception) -> None:
        if self.problem != str(error):
            self.problem = str(error)
            _log.error(
                "history: cannot be used, the console continues from memory, file=%s, error=%s; see `server.history`",
                self.path,
                error,
            )


def _open(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # not for other users
    connection = sqlite3.connect(path, timeout=5)
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise sqlite3.OperationalError(f"it was written by a newer slipform (version {version} of the file)")
        if not version:
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version={_VERSION}")
    except BaseException:
        connection.close()
        raise
    return connection


def _size(connection: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return (pages - free) * size

"""Store entries by a caller's key and an id for a limited time: in memory, in a SQLite file, or in Redis.

The entries are signed parts, by the ids of calls, and the answers that Responses clients refer to later. Each key has
a separate limit in bytes, so that no caller can displace another's entries; the oldest of a key are dropped first. A
lost entry costs a turn its thinking, or a client a reference, so stores do not raise: failed reads return nothing.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol, TypeVar

from slipform.addons.server.admission.shared_state import SharedState
from slipform.config import Signatures

T = TypeVar("T")

_log = logging.getLogger("slipform.server")
_OVERHEAD = 200
"""Bytes of an entry besides its data."""
_WAIT_SECONDS = 1.0


class SignatureStore(Protocol):
    """Stores entries of callers by their ids."""

    async def get(self, caller: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the stored entries with these ids of a caller."""
        ...

    async def put(self, caller: str, entries: Mapping[str, bytes]) -> None:
        """Store entries of a caller."""
        ...

    async def replace(self, caller: str, expected: tuple[str, bytes], entries: Mapping[str, bytes]) -> bool:
        """Store these entries; return False, and store nothing, where the expected entry has other data by now."""
        ...

    async def remove(self, caller: str, ids: Sequence[str]) -> None:
        """Delete these entries of a caller."""
        ...


def find_store(
    settings: Signatures, shared: SharedState | None, folder: Path | None, name: str = "signatures"
) -> SignatureStore:
    """Return the store that is configured: Redis if there is one, else a file, which workers share, else memory.

    `folder` is shared by the workers of one server; None where there is one process. `name` separates the entries of
    one purpose from those of another.
    """
    if shared is not None:
        return RedisSignatures(settings, shared, name)
    if settings.file is not None:
        return SqliteSignatures(settings, Path(settings.file).expanduser())
    if folder is None:
        return MemorySignatures(settings)
    return SqliteSignatures(settings, folder / f"{name}.sqlite")


class MemorySignatures:
    """Stores entries in the memory of one process."""

    def __init__(self, settings: Signatures, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._callers: dict[str, dict[str, tuple[float, bytes]]] = {}
        """The entries of each caller and when they were stored, oldest first; callers by their last entry."""
        self._sizes: dict[str, int] = {}
        self._total_size = 0
        """Bytes of all entries."""

    async def get(self, caller: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the stored entries with these ids of a caller."""
        entries = self._callers.get(caller, {})
        oldest = self._clock() - self._settings.ttl_seconds
        return {each: entries[each][1] for each in ids if each in entries and entries[each][0] >= oldest}

    async def put(self, caller: str, entries: Mapping[str, bytes]) -> None:
        """Store entries of a caller."""
        stored = self._callers.pop(caller, {})
        self._callers[caller] = stored
        size = self._sizes.pop(caller, 0)
        self._total_size -= size
        now = self._clock()
        oldest = self._clock() - self._settings.ttl_seconds
        for key, data in entries.items():
            if key in stored:
                size -= _size(key, stored.pop(key)[1])
            stored[key] = (now, data)
            size += _size(key, data)
        while stored and (size > self._settings.max_bytes_per_key or next(iter(stored.values()))[0] < oldest):
            key = next(iter(stored))
            size -= _size(key, stored.pop(key)[1])
        self._sizes[caller] = size
        self._total_size += size
        while self._total_size > self._settings.max_bytes:
            first = next(iter(self._callers))
            del self._callers[first]
            self._total_size -= self._sizes.pop(first)

    async def replace(self, caller: str, expected: tuple[str, bytes], entries: Mapping[str, bytes]) -> bool:
        """Store these entries; return False, and store nothing, where the expected entry has other data by now."""
        name, data = expected
        stored = await self.get(caller, [name])
        if stored.get(name) != data:
            return False
        await self.put(caller, entries)  # nothing has been awaited since that could change the entry
        return True

    async def remove(self, caller: str, ids: Sequence[str]) -> None:
        """Delete these entries of a caller."""
        stored = self._callers.get(caller, {})
        for key in ids:
            if key in stored:
                size = _size(key, stored.pop(key)[1])
                self._sizes[caller] -= size
                self._total_size -= size


def _size(key: str, data: bytes) -> int:
    return _OVERHEAD + len(key) + len(data)


_TABLE = """
CREATE TABLE IF NOT EXISTS signatures (
  caller TEXT NOT NULL, call TEXT NOT NULL, data BLOB NOT NULL, size INTEGER NOT NULL, kept_at REAL NOT NULL,
  PRIMARY KEY (caller, call)
) WITHOUT ROWID
"""
_INDEX = "CREATE INDEX IF NOT EXISTS signatures_by_age ON signatures (caller, kept_at, size)"
_TOO_MANY = """
DELETE FROM signatures WHERE (caller, call) IN (
  SELECT caller, call FROM (
    SELECT caller, call, SUM(size) OVER ({part} ORDER BY kept_at DESC, call) AS newer FROM signatures {where}
  ) WHERE newer > ?
)
"""
"""Deletes the entries beyond a number of bytes, counted from the newest."""


class SqliteSignatures:
    """Stores entries in a file that the workers of one machine share, opened for each use: it may be removed."""

    def __init__(self, settings: Signatures, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._path = path
        self._clock = clock
        self._failing = False

    async def get(self, caller: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the stored entries with these ids of a caller."""
        return await asyncio.to_thread(self._run_in_database, lambda file: self._select(file, caller, ids)) or {}

    async def put(self, caller: str, entries: Mapping[str, bytes]) -> None:
        """Store entries of a caller."""
        await asyncio.to_thread(self._run_in_database, lambda file: self._insert(file, caller, entries))

    async def replace(self, caller: str, expected: tuple[str, bytes], entries: Mapping[str, bytes]) -> bool:
        """Store these entries; return False, and store nothing, where the expected entry has other data by now."""
        result = await asyncio.to_thread(
            self._run_in_database, lambda file: self._insert(file, caller, entries, expected)
        )
        return result is not False

    async def remove(self, caller: str, ids: Sequence[str]) -> None:
        """Delete these entries of a caller."""
        await asyncio.to_thread(self._run_in_database, lambda file: self._delete(file, caller, ids))

    def _select(self, file: sqlite3.Connection, caller: str, ids: Sequence[str]) -> dict[str, bytes]:
        oldest = self._clock() - self._settings.ttl_seconds
        entries: dict[str, bytes] = {}
        for each in dict.fromkeys(ids):
            query = "SELECT data FROM signatures WHERE caller = ? AND call = ? AND kept_at >= ?"
            row = file.execute(query, (caller, each, oldest)).fetchone()
            if row is not None:
                entries[each] = bytes(row[0])
        return entries

    def _insert(
        self,
        file: sqlite3.Connection,
        caller: str,
        entries: Mapping[str, bytes],
        expected: tuple[str, bytes] | None = None,
    ) -> bool:
        now = self._clock()
        rows = [(caller, key, data, _size(key, data), now) for key, data in entries.items()]
        with file:
            file.execute("BEGIN IMMEDIATE")
            if expected is not None and self._select(file, caller, expected[:1]).get(expected[0]) != expected[1]:
                return False
            file.executemany("INSERT OR REPLACE INTO signatures VALUES (?, ?, ?, ?, ?)", rows)
            file.execute("DELETE FROM signatures WHERE kept_at < ?", (now - self._settings.ttl_seconds,))
            own = "SELECT COALESCE(SUM(size), 0) FROM signatures WHERE caller = ?"
            (own_size,) = file.execute(own, (caller,)).fetchone()
            if own_size > self._settings.max_bytes_per_key:
                self._delete_beyond(file, "WHERE caller = ?", (caller, self._settings.max_bytes_per_key))
            (total_size,) = file.execute("SELECT COALESCE(SUM(size), 0) FROM signatures").fetchone()
            if total_size > self._settings.max_bytes:
                self._delete_beyond(file, "", (self._settings.max_bytes,))
        return True

    def _delete(self, file: sqlite3.Connection, caller: str, ids: Sequence[str]) -> None:
        rows = [(caller, each) for each in ids]
        with file:
            file.executemany("DELETE FROM signatures WHERE caller = ? AND call = ?", rows)

    def _delete_beyond(self, file: sqlite3.Connection, where: str, values: tuple[object, ...]) -> None:
        file.execute(_TOO_MANY.format(part="", where=where), values)

    def _run_in_database(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_WAIT_SECONDS, isolation_level=None)) as file:
                self._path.chmod(0o600)
                file.execute("PRAGMA journal_mode = WAL")
                file.execute("PRAGMA synchronous = OFF")  # a crash loses at most the thinking of some turns
                file.execute(_TABLE)
                file.execute(_INDEX)
                result = work(file)
        except (sqlite3.Error, OSError) as error:
            if not self._failing:
                _log.warning("signatures: cannot be stored, file=%s, error=%s", self._path, error)
            self._failing = True
            return None
        self._failing = False
        return result


class RedisSignatures:
    """Stores entries in Redis for all machines; the limit of all keys together is Redis's own (`maxmemory`)."""

    def __init__(self, settings: Signatures, shared: SharedState, name: str = "signatures") -> None:
        self._settings = settings
        self._shared = shared
        self._name = name

    async def get(self, caller: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Return the stored entries with these ids of a caller."""
        place = (self._name, caller)
        return await self._shared.entries(place, list(dict.fromkeys(ids)), self._settings.max_bytes_per_key)

    async def put(self, caller: str, entries: Mapping[str, bytes]) -> None:
        """Store entries of a caller."""
        settings = self._settings
        place = (self._name, caller)
        await self._shared.keep_entries(place, entries, settings.max_bytes_per_key, settings.ttl_seconds)

    async def replace(self, caller: str, expected: tuple[str, bytes], entries: Mapping[str, bytes]) -> bool:
        """Store these entries; return False, and store nothing, where the expected entry has other data by now."""
        settings = self._settings
        place = (self._name, caller)
        return await self._shared.keep_entries(
            place, entries, settings.max_bytes_per_key, settings.ttl_seconds, expected
        )

    async def remove(self, caller: str, ids: Sequence[str]) -> None:
        """Delete these entries of a caller."""
        await self._shared.remove_entries((self._name, caller), ids)

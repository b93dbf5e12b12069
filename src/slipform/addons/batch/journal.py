"""Record the finished rows of a batch in a journal, from which a stopped job is resumed.

A line is written whole by one call and carries a checksum. After a crash, everything after the last good line is cut
off, and a damaged line between good ones is skipped; their rows are done again. The head names the job; a `pass` line
begins another pass, for instance over the rows that failed. Where a column is the key, a line also has the hash of the
row's content (`of`), by which a changed row is noticed.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import msgspec
import orjson

from slipform.addons.batch.rows import Row, as_text, column_list
from slipform.errors import ConfigError
from slipform.files.replacing import unwritable, writing
from slipform.files.tables import as_json
from slipform.text.strict import parse

_LINE = b'{"crc":"%08x","%s":%s}\n'
_LINE_WITH_HASH = b'{"crc":"%08x","of":"%s","%s":%s}\n'
_HASH_FIELD = b'of":"'
_NAMES = (b"head", b"pass", b"done", b"call")
_CRC = slice(8, 16)
_MOST_HELD: Final = 1_024
"""Rows out of order that are held in memory while a journal is read in the order of its rows."""
_BODY = 19
"""Where the name of a line's content begins."""


class JournalEntry(msgspec.Struct, frozen=True):
    """A finished row: its number, counted from 1, its key, whether it succeeded, and its line of the results."""

    row: int
    key: str
    ok: bool
    line: bytes
    content: str = ""
    """A hash of the row's content, where the key is a column's value."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The lines of one pass in the file. The first pass has no window: its rows follow each other."""

    start: int
    end: int
    window: int | None = None
    damaged: int = 0
    """Lines in it that cannot be read."""


class Journal:
    """A journal open for appending, locked by this process."""

    def __init__(self, path: Path, descriptor: int, segments: tuple[Segment, ...], size: int, cut: int) -> None:
        self.path = path
        self.cut = cut
        """Bytes of a torn or damaged end that were cut off."""
        self.damaged = sum(segment.damaged for segment in segments)
        """Lines before that which cannot be read."""
        self._descriptor = descriptor
        self._segments = segments
        self._size = size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The passes so far; the last one ends at the end of the file."""
        *earlier, last = self._segments
        return (*earlier, replace(last, end=self._size))

    @property
    def is_empty(self) -> bool:
        """Whether no row was ever finished."""
        return not _has_rows(self.segments)

    def entries(self) -> Iterator[JournalEntry]:
        """Yield the last entry of each finished row, by row."""
        return final_entries(self.path, self.segments)

    @classmethod
    def open(cls, path: Path, job: Mapping[str, Any]) -> Self:
        """Open the journal of this job, or create it; raises `ConfigError` with the differences for another job's.

        A journal without a finished row is taken over.
        """
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(descriptor, path)
            size, segments, head = _scan(path)
            cut = os.fstat(descriptor).st_size - size
            if head and (cut or _has_rows(segments)):
                _refuse_other_job(path, head, job)
            elif head != job:
                size = 0
            with writing(path):
                os.ftruncate(descriptor, size)
            journal = cls(path, descriptor, segments, size, cut)
            if size == 0:
                journal._write(b"head", orjson.dumps(job))
                journal._segments = (Segment(journal._size, journal._size),)
        except BaseException:
            os.close(descriptor)
            raise
        return journal

    def begin_pass(self, window: int) -> None:
        """Begin another pass, whose rows are out of order by `window` at most."""
        before = self.segments
        self._write(b"pass", orjson.dumps({"window": window}))
        self._segments = (*before, Segment(self._size, self._size, window))

    def finish(self, entry: JournalEntry) -> None:
        """Append a finished row; an error leaves the file unchanged."""
        self._write(b"done", entry.line, entry.content.encode())

    def add_call(self, body: bytes) -> None:
        """Append the answer to a call, as JSON; an error leaves the file unchanged."""
        self._write(b"call", body)

    def calls(self) -> Iterator[bytes]:
        """Yield the answers to calls, as JSON; damaged lines are left out."""
        return _calls(self.path, self.segments)

    def _write(self, name: bytes, body: bytes, content: bytes = b"") -> None:
        crc = zlib.crc32(content + body)
        line = _LINE_WITH_HASH % (crc, content, name, body) if content else _LINE % (crc, name, body)
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise unwritable(self.path, error) from error
        self._size += len(line)

    def sync(self) -> None:
        """Sync to disk: a kill needs no sync, a power cut does."""
        with writing(self.path):
            os.fsync(self._descriptor)

    def discard(self) -> None:
        """Delete the file and close it."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Sync and close the file."""
        if self._descriptor >= 0:
            descriptor = self._descriptor
            self._descriptor = -1
            try:
                with writing(self.path):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)


def job_of(path: Path) -> dict[str, Any] | None:
    """Return what a journal says of its job, without opening it for writing; None without a journal."""
    try:
        with path.open("rb") as file:
            name, body, _ = _parse_line(file.readline())
    except OSError:
        return None
    return orjson.loads(body) if name == b"head" else None


def read_calls(path: Path) -> Iterator[bytes]:
    """Yield the lines of calls of a journal, which another process may be writing."""
    return _calls(path, _scan(path)[1])


def read_entries(path: Path) -> Iterator[JournalEntry]:
    """Yield the last entry of each finished row of a journal, which another process may be writing."""
    return final_entries(path, _scan(path)[1])


def _calls(path: Path, segments: tuple[Segment, ...]) -> Iterator[bytes]:
    for segment in segments:
        for _, line in _lines(path, segment):
            name, body, _ = _parse_line(line)
            if name == b"call":
                yield body


def final_entries(path: Path, segments: tuple[Segment, ...]) -> Iterator[JournalEntry]:
    """Yield the last entry of each finished row, by row; memory holds only what is out of order."""
    streams = (_tagged(_sorted(path, segment), -index) for index, segment in enumerate(segments))
    merged = heapq.merge(*streams, key=lambda each: (each[0].row, each[1]))
    for _, versions in groupby(merged, key=lambda each: each[0].row):
        yield next(versions)[0]


def _tagged(entries: Iterator[JournalEntry], tag: int) -> Iterator[tuple[JournalEntry, int]]:
    return ((entry, tag) for entry in entries)


def missing_rows(entries: Iterator[JournalEntry]) -> Iterator[int]:
    """Yield the rows that are missing before the last one.

    >>> list(missing_rows(iter([JournalEntry(2, "", True, b""), JournalEntry(5, "", True, b"")])))
    [1, 3, 4]
    """
    expected = 1
    for entry in entries:
        yield from range(expected, entry.row)
        expected = entry.row + 1


def _sorted(path: Path, segment: Segment) -> Iterator[JournalEntry]:
    if segment.damaged:
        yield from _sorted_by_offset(path, segment)
        return
    heap: list[tuple[int, int, JournalEntry | None]] = []
    expected = 1
    with path.open("rb") as file:
        for offset, line in _lines(path, segment):
            entry = _entry(line)
            if entry is None:
                continue
            # Of rows far ahead of a slow one only the place is held: they are read again in their turn.
            heapq.heappush(heap, (entry.row, offset, entry if len(heap) < _MOST_HELD else None))
            if segment.window is None:
                while heap and heap[0][0] <= expected:
                    expected = max(expected, heap[0][0] + 1)
                    yield _popped(heap, file)
            elif len(heap) > segment.window:
                yield _popped(heap, file)
        while heap:
            yield _popped(heap, file)


def _popped(heap: list[tuple[int, int, JournalEntry | None]], file: BinaryIO) -> JournalEntry:
    """Take the first entry off the heap; read it again where only its place is held."""
    _, offset, entry = heapq.heappop(heap)
    if entry is None:
        file.seek(offset)
        entry = _entry(file.readline())
        assert entry is not None  # noqa: S101 — as it was when its place was noted
    return entry


def _sorted_by_offset(path: Path, segment: Segment) -> Iterator[JournalEntry]:
    """Yield the entries by sorting their offsets: where lines are lost, no window bounds the disorder.

    The lost line may have begun a pass: of a row that comes twice, the last entry counts.
    """
    rows = array("Q")
    offsets = array("Q")
    for offset, line in _lines(path, segment):
        if (entry := _entry(line)) is not None:
            rows.append(entry.row)
            offsets.append(offset)
    order = sorted(range(len(rows)), key=lambda number: (rows[number], -offsets[number]))
    with path.open("rb") as file:
        for _, versions in groupby(order, key=rows.__getitem__):
            file.seek(offsets[next(versions)])
            if (entry := _entry(file.readline())) is not None:
                yield entry


def _entries(path: Path, segment: Segment) -> Iterator[JournalEntry]:
    for _, line in _lines(path, segment):
        if (entry := _entry(line)) is not None:
            yield entry


def _lines(path: Path, segment: Segment) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        file.seek(segment.start)
        offset = segment.start
        while offset < segment.end:
            line = file.readline()
            yield offset, line
            offset += len(line)


def _entry(line: bytes) -> JournalEntry | None:
    """Return the finished row of a line; None when it is damaged."""
    name, body, content = _parse_line(line)
    if name != b"done":
        return None
    fields = read_line(body)
    return JournalEntry(fields["row"], fields["key"], "error" not in fields, body, content.decode())


def read_line(line: bytes) -> dict[str, Any]:
    """Return a parsed line of results, with all digits of integers; escapes of lone surrogates are accepted."""
    try:
        fields: dict[str, Any] = parse(line.decode())
    except ValueError:
        fields = json.loads(line)
    return fields


def _scan(path: Path) -> tuple[int, tuple[Segment, ...], dict[str, Any]]:
    """Return the length of the good part of the file, its passes, and the job it names."""
    segments: list[Segment] = []
    head: dict[str, Any] = {}
    good = start = offset = damaged = unreadable = 0
    window: int | None = None
    with path.open("rb") as file:
        for line in file:
            name, body, _ = _parse_line(line)
            if good == 0 and name != b"head":
                break
            before = offset
            offset = offset + len(line)
            if name is None:
                unreadable += 1
                continue
            good = offset
            damaged = damaged + unreadable
            unreadable = 0
            if name == b"head":
                head = orjson.loads(body)
                start = offset
            elif name == b"pass":
                segments.append(Segment(start, before, window, damaged))
                window = int(orjson.loads(body)["window"])
                start = offset
                damaged = 0
    if good == 0 and path.stat().st_size > 0:
        _check_torn_head(path)
    return good, (*segments, Segment(start, good, window, damaged)), head


def _has_rows(segments: tuple[Segment, ...]) -> bool:
    return any(segment.start < segment.end for segment in segments)


def _parse_line(line: bytes) -> tuple[bytes | None, bytes, bytes]:
    """Return the name of a line, its body, and the hash of the row's content; the name is None when it is damaged."""
    start = _BODY
    content = b""
    if line.startswith(_HASH_FIELD, _BODY):
        content = line[_BODY + len(_HASH_FIELD) : line.find(b'"', _BODY + len(_HASH_FIELD))]
        start += len(_HASH_FIELD) + len(content) + len(b'","')
    end = line.find(b'":', start)
    if not line.startswith(b'{"crc":"') or not line.endswith(b"}\n") or end < 0:
        return None, b"", b""
    name = line[start:end]
    body = line[end + 2 : -2]
    if line[_CRC] != b"%08x" % zlib.crc32(content + body) or name not in _NAMES:
        return None, b"", b""
    return name, body, content


def _check_torn_head(path: Path) -> None:
    """Raise unless the file is only the beginning of a first line: then nothing was done yet."""
    with path.open("rb") as file:
        line = file.readline()
        rest = file.read(1)
    if not b'{"crc":"'.startswith(line[:8]):
        raise ConfigError("This file is not a journal of a batch", where=str(path), hint="Give another --out.")
    if rest or line.endswith(b"\n"):  # going on would ask for, and pay, every row again
        raise ConfigError(
            "The first line of the journal, which says what job it belongs to, is damaged",
            where=str(path),
            hint="Restore it from a copy, or delete the journal and the results to start afresh.",
        )


def _refuse_other_job(path: Path, fields: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    names = dict.fromkeys((*job, *fields))
    differences = [name for name in names if name != "input" and fields.get(name) != job.get(name)]
    if differences:
        raise ConfigError(
            f"This output belongs to another job: its {' and its '.join(differences)} differed",
            where=str(path),
            hint="Give another --out, or delete this file and the results to start afresh.",
        )


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            "Another batch is writing this output", where=str(path), hint="Wait for it, or give another --out."
        ) from error


def row_key(number: int, row: Row, column: str | None = None) -> str:
    """Return the key of a row: the column's value, else the row's number and a hash of its content.

    >>> row_key(1, {"id": 7, "name": "Ada"}, "id")
    '7'
    >>> row_key(1, {"id": 7, "name": "Ada"})
    '1-7d70fdddd54757a8'
    """
    if column is None:
        return f"{number}-{content_hash(row)}"
    value: Any = row.get(column)
    if value is None or value == "":
        raise ConfigError(
            f"Row {number} has no value in the key column {column!r}",
            hint=f"Its columns are: {column_list(row)}. Give every row a key, or leave --key out: rows are then told "
            "apart by place and content.",
        )
    return as_text(value, column)


def content_hash(row: Row) -> str:
    """Return a short hash of a row's content."""
    return blake2b(as_json(row), digest_size=8).hexdigest()


class KeySet:
    """A set of keys that needs 16 to 32 bytes for each: a table of 64-bit hashes.

    Two different keys have the same hash about once in thirty million datasets of a million rows.

    >>> keys = KeySet()
    >>> [keys.add(key) for key in ("a", "b", "a")]
    [True, True, False]
    """

    __slots__ = ("_count", "_slots")

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0

    def add(self, key: str) -> bool:
        """Add a key; return False when it was there."""
        digest = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1
        if not _insert(self._slots, digest):
            return False
        self._count += 1
        if 2 * self._count > len(self._slots):
            larger = array("Q", bytes(16 * len(self._slots)))
            for each in self._slots:
                if each:
                    _insert(larger, each)
            self._slots = larger
        return True


def _insert(slots: array[int], digest: int) -> bool:
    mask = len(slots) - 1
    slot = digest & mask
    while slots[slot]:
        if slots[slot] == digest:
            return False
        slot = (slot + 1) & mask
    slots[slot] = digest
    return True

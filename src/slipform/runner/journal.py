"""What was finished; keys of rows.

It is the truth of a job. A line is written whole by one call and carries a checksum. Whatever follows the last good
line after a crash is cut off; a damaged line between good ones is passed over. The rows of both are asked for again.
The head says which job it is; a `pass` line begins another pass, for one over the rows that failed. Where rows are told
apart by a column, a line also has the hash of the row's content (`of`), by which a changed row is noticed.
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
from secrets import token_hex
from typing import IO, Any, Self

import msgspec
import orjson

from slipform.errors import ConfigError
from slipform.runner.rows import Row, as_json, as_text, listed
from slipform.text.strict import parse


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when the block ends well; until then the old one stays.

    It is written beside it, synced and renamed, so a crash at any moment leaves the old file or the new one.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{token_hex(4)}.part")
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        _sync_folder(path.parent)


def part_of(path: Path) -> Path:
    """Where a file is written that only one process writes at a time, so that a kill leaves one part behind at most."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the disk says no to inside the block into a `ConfigError` that names the file."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error for a file that cannot be written."""
    return ConfigError(
        f"This file cannot be written: {error.strerror or error}",
        where=str(path),
        hint="Check the folder, its permissions and the space left, then run the same command again.",
    )


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some filesystems cannot sync a folder; the rename stands all the same
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_FORM = b'{"crc":"%08x","%s":%s}\n'
_HASHED = b'{"crc":"%08x","of":"%s","%s":%s}\n'
_OF = b'of":"'
_NAMES = (b"head", b"pass", b"done")
_CRC = slice(8, 16)
_BODY = 19
"""Where the name of what a line holds begins."""


class JournalEntry(msgspec.Struct, frozen=True):
    """A finished row: its number, counted from 1, its key, whether it went well, and the line for the results."""

    row: int
    key: str
    ok: bool
    line: bytes
    content: str = ""
    """A hash of what the row held, where the key does not tell."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A pass over rows: where its lines stand in the file. The first pass has no window: its rows follow each other."""

    start: int
    end: int
    window: int | None = None
    damaged: int = 0
    """How many lines in it cannot be read."""


class Journal:
    """A journal open for appending; only one process can have it."""

    def __init__(self, path: Path, descriptor: int, segments: tuple[Segment, ...], size: int, cut: int) -> None:
        self.path = path
        self.cut = cut
        """How many bytes of a torn or damaged end were cut off."""
        self.damaged = sum(segment.damaged for segment in segments)
        """How many lines before that cannot be read."""
        self._descriptor = descriptor
        self._segments = segments
        self._size = size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The passes so far; the last one ends where the file does now."""
        *whole, last = self._segments
        return (*whole, replace(last, end=self._size))

    @property
    def is_empty(self) -> bool:
        """Whether no row was ever finished."""
        return not _has_rows(self.segments)

    @classmethod
    def open(cls, path: Path, job: Mapping[str, Any]) -> Self:
        """Open the journal of this job, or begin one; another job's is a `ConfigError` that says what differs.

        One in which no row was finished holds nothing worth keeping: it becomes this job's.
        """
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(descriptor, path)
            size, segments, head = _scan(path)
            cut = os.fstat(descriptor).st_size - size
            if head and (cut or _has_rows(segments)):
                _compare(path, head, job)
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
        """Begin another pass; its rows come in order but for what the window allows."""
        before = self.segments
        self._write(b"pass", orjson.dumps({"window": window}))
        self._segments = (*before, Segment(self._size, self._size, window))

    def finish(self, entry: JournalEntry) -> None:
        """A row is finished; an error leaves the file as it was before."""
        self._write(b"done", entry.line, entry.content.encode())

    def _write(self, name: bytes, body: bytes, content: bytes = b"") -> None:
        crc = zlib.crc32(content + body)
        line = _HASHED % (crc, content, name, body) if content else _FORM % (crc, name, body)
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
        """Wait until the disk has it: a kill needs no sync, a power cut does."""
        with writing(self.path):
            os.fsync(self._descriptor)

    def discard(self) -> None:
        """Delete the file, and let go."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()

    def close(self) -> None:
        """Sync and let go."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                with writing(self.path):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)


def settled(path: Path, segments: tuple[Segment, ...]) -> Iterator[JournalEntry]:
    """What became of each row in the end, by row; memory holds what is out of order, never the whole.

    Numbers are missing where the first pass has not come to an end.
    """
    streams = (_tagged(_sorted(path, segment), -at) for at, segment in enumerate(segments))
    merged = heapq.merge(*streams, key=lambda each: (each[0].row, each[1]))
    for _, same in groupby(merged, key=lambda each: each[0].row):
        yield next(same)[0]


def _tagged(entries: Iterator[JournalEntry], tag: int) -> Iterator[tuple[JournalEntry, int]]:
    return ((entry, tag) for entry in entries)


def gaps(known: Iterator[JournalEntry]) -> Iterator[int]:
    """The rows that are missing before the last one that is known.

    >>> list(gaps(iter([JournalEntry(2, "", True, b""), JournalEntry(5, "", True, b"")])))
    [1, 3, 4]
    """
    following = 1
    for entry in known:
        yield from range(following, entry.row)
        following = entry.row + 1


def _sorted(path: Path, segment: Segment) -> Iterator[JournalEntry]:
    if segment.damaged:
        yield from _sorted_by_place(path, segment)
        return
    held: list[tuple[int, int, JournalEntry]] = []
    following = 1
    for at, entry in enumerate(_entries(path, segment)):
        heapq.heappush(held, (entry.row, at, entry))
        if segment.window is None:
            while held and held[0][0] <= following:
                following = max(following, held[0][0] + 1)
                yield heapq.heappop(held)[2]
        elif len(held) > segment.window:
            yield heapq.heappop(held)[2]
    while held:
        yield heapq.heappop(held)[2]


def _sorted_by_place(path: Path, segment: Segment) -> Iterator[JournalEntry]:
    """Where lines are lost, no window says how far a row may be from its place: so the places are sorted.

    The lost line may have begun a pass: of a row that comes twice, the last word counts.
    """
    rows, places = array("Q"), array("Q")
    for at, line in _lines(path, segment):
        if (entry := _entry(line)) is not None:
            rows.append(entry.row)
            places.append(at)
    order = sorted(range(len(rows)), key=lambda number: (rows[number], -places[number]))
    with path.open("rb") as file:
        for _, same in groupby(order, key=rows.__getitem__):
            file.seek(places[next(same)])
            if (entry := _entry(file.readline())) is not None:
                yield entry


def _entries(path: Path, segment: Segment) -> Iterator[JournalEntry]:
    for _, line in _lines(path, segment):
        if (entry := _entry(line)) is not None:
            yield entry


def _lines(path: Path, segment: Segment) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as file:
        file.seek(segment.start)
        at = segment.start
        while at < segment.end:
            line = file.readline()
            yield at, line
            at += len(line)


def _entry(line: bytes) -> JournalEntry | None:
    """The finished row of a line; None when it is damaged."""
    name, body, content = _checked(line)
    if name != b"done":
        return None
    found = read_line(body)
    return JournalEntry(found["row"], found["key"], "error" not in found, body, content.decode())


def read_line(line: bytes) -> dict[str, Any]:
    """A line of results: every digit of an integer is kept, and escapes of half a character are let pass."""
    try:
        found: dict[str, Any] = parse(line.decode())
    except ValueError:
        found = json.loads(line)
    return found


def _scan(path: Path) -> tuple[int, tuple[Segment, ...], dict[str, Any]]:
    """How far the file is good, its passes, and the job it names."""
    segments: list[Segment] = []
    head: dict[str, Any] = {}
    good = start = at = damaged = unread = 0
    window: int | None = None
    with path.open("rb") as file:
        for line in file:
            name, body, _ = _checked(line)
            if good == 0 and name != b"head":
                break
            before, at = at, at + len(line)
            if name is None:
                unread += 1
                continue
            good, damaged, unread = at, damaged + unread, 0
            if name == b"head":
                head, start = orjson.loads(body), at
            elif name != b"done":
                segments.append(Segment(start, before, window, damaged))
                window, start, damaged = int(orjson.loads(body)["window"]), at, 0
    if good == 0 and path.stat().st_size > 0 and not _torn_head(path):
        raise ConfigError("This file is no journal of a batch", where=str(path), hint="Give another --out.")
    return good, (*segments, Segment(start, good, window, damaged)), head


def _has_rows(segments: tuple[Segment, ...]) -> bool:
    return any(segment.start < segment.end for segment in segments)


def _checked(line: bytes) -> tuple[bytes | None, bytes, bytes]:
    """What a line holds, its body, and the hash of the row's content; None when it is torn or damaged."""
    start, content = _BODY, b""
    if line.startswith(_OF, _BODY):
        content = line[_BODY + len(_OF) : line.find(b'"', _BODY + len(_OF))]
        start += len(_OF) + len(content) + len(b'","')
    end = line.find(b'":', start)
    if not line.startswith(b'{"crc":"') or not line.endswith(b"}\n") or end < 0:
        return None, b"", b""
    name, body = line[start:end], line[end + 2 : -2]
    if line[_CRC] != b"%08x" % zlib.crc32(content + body) or name not in _NAMES:
        return None, b"", b""
    return name, body, content


def _torn_head(path: Path) -> bool:
    with path.open("rb") as file:
        begun = file.read(8)
    return b'{"crc":"'.startswith(begun) and begun != b""


def _compare(path: Path, found: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    differs = [name for name in job if name != "input" and found.get(name) != job[name]]
    if differs:
        raise ConfigError(
            f"This output belongs to another job: its {' and its '.join(differs)} differed",
            where=str(path),
            hint="Give another --out, or delete this file and the results to start afresh.",
        )


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks here
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(
            "Another batch is writing this output", where=str(path), hint="Wait for it, or give another --out."
        ) from error


def row_key(number: int, row: Row, column: str | None = None) -> str:
    """The key of a row: the column's value, else the row's number and a hash of its content.

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
            hint=f"Its columns are: {listed(row)}. Give every row a key, or leave --key out: rows are then told apart "
            "by place and content.",
        )
    return as_text(value)


def content_hash(row: Row) -> str:
    """A short hash of what a row holds."""
    return blake2b(as_json(row), digest_size=8).hexdigest()


class SeenKeys:
    """Which keys were there before, in 16 to 32 bytes for each: a table of 64-bit hashes.

    Two different keys have the same hash about once in thirty million datasets of a million rows.

    >>> seen = SeenKeys()
    >>> [seen.add(key) for key in ("a", "b", "a")]
    [True, True, False]
    """

    __slots__ = ("_count", "_slots")

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0

    def add(self, key: str) -> bool:
        """Remember a key; False when it was there."""
        digest = int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()) or 1
        if not _put(self._slots, digest):
            return False
        self._count += 1
        if 2 * self._count > len(self._slots):
            grown = array("Q", bytes(16 * len(self._slots)))
            for each in self._slots:
                if each:
                    _put(grown, each)
            self._slots = grown
        return True


def _put(slots: array[int], digest: int) -> bool:
    mask = len(slots) - 1
    at = digest & mask
    while slots[at]:
        if slots[at] == digest:
            return False
        at = (at + 1) & mask
    slots[at] = digest
    return True

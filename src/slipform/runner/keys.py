"""What tells one row from another: its place and content, or a column of the caller's."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Any

from slipform.errors import ConfigError
from slipform.runner.rows import Row
from slipform.runner.template import as_json, as_text, listed


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

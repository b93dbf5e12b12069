"""Write results as a spreadsheet or CSV table: the input's columns, then a column for each field of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from slipform.addons.batch.journal import read_line
from slipform.files.replacing import part_of, writing
from slipform.files.tables import columns_of, flatten, writer_for

TABLE_FORMATS: Final = frozenset({"csv", "tsv", "xlsx"})
_BESIDE_VALUE: Final = ("model", "warnings", "confidence", "ungrounded", "evidence")


class TableResults:
    """A table that appears when the job is complete; until then its rows are collected in a hidden part beside it.

    Its columns are those of all rows, so they are known at the end only. A stopped job's part is discarded: the
    journal has it all.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._write_table = writer_for(Path(f"results.{kind}"))
        self._part = part_of(path).with_suffix(".rows")
        self._file: IO[bytes] | None = None

    def begin(self) -> None:
        """Start a new table."""
        with writing(self.path):
            self._file = self._part.open("wb")

    def write(self, line: bytes) -> None:
        """Add a row."""
        if self._file is not None:
            self._file.write(line + b"\n")

    def publish(self) -> None:
        """Do nothing: the table appears in `close`."""

    def flush(self) -> None:
        """Do nothing: the table appears in `close`."""

    def close(self, *, complete: bool) -> None:
        """Put the complete table in place, or discard the rows."""
        if self._file is None:
            return
        with writing(self.path):
            self._file.close()
            self._file = None
            if complete:
                self._write_table(self.path, columns_of(self._rows()), self._rows())
            self._part.unlink()

    def _rows(self) -> Iterator[dict[str, Any]]:
        with self._part.open("rb") as file:
            for line in file:
                yield table_row(read_line(line))


def table_row(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a result as columns; a field with the name of an input's column becomes `value.<name>`.

    >>> table_row({"row": 1, "key": "a", "value": {"name": "Ada", "age": 36}, "input": {"name": "ada.txt"}})
    {'name': 'ada.txt', 'value.name': 'Ada', 'age': 36}
    """
    columns: dict[str, Any] = dict(fields.get("input") or {"key": fields["key"]})
    for name, value in flatten(fields["value"]).items():
        columns[f"value.{name}" if name in columns else name] = value
    for name in _BESIDE_VALUE:
        if name in fields:
            columns[f"_{name}"] = fields[name]
    return columns

"""Write rows as tables: CSV, Excel, JSON Lines and Parquet."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import orjson

from slipform.errors import ConfigError
from slipform.files.replacing import part_of, replacing, writing

TableRow: TypeAlias = Mapping[str, Any]
_Write: TypeAlias = Callable[[Path, Sequence[str], Iterable[TableRow]], None]

_log = logging.getLogger("slipform.files")
_EXCEL_ROWS: Final = 1_048_576
_EXCEL_CELL: Final = 32_767
_EXACT_IN_EXCEL: Final = 2**53
"""Excel's numbers are doubles: larger integers lose digits, so they are written as text."""


def write_table(path: Path | str, rows: Iterable[TableRow], columns: Sequence[str] | None = None) -> None:
    """Write rows to a `.csv`, `.tsv`, `.xlsx`, `.jsonl` or `.parquet` file, whole or not at all.

    Without `columns`, the table has those of the rows, in the order in which they first appear. Nested values are
    written as JSON; `flatten` makes columns of them. Raises `ConfigError` for another suffix.

    ::

        write_table("people.csv", [{"name": "Ada", "age": 36}])
    """
    path = Path(path)
    write = writer_for(path)
    if columns is None:
        rows = list(rows)
        columns = columns_of(rows)
    write(path, columns, rows)


def writer_for(path: Path) -> _Write:
    """Return the function that writes a table with this suffix; raises `ConfigError` if there is none, or it cannot."""
    suffix = path.suffix.lower()
    write = _WRITERS.get(suffix)
    if suffix in _LIBRARIES:
        _LIBRARIES[suffix]()
    if write is None:
        raise ConfigError(
            "Tables of this kind cannot be written", where=str(path), hint=f"The endings are: {', '.join(_WRITERS)}."
        )
    return write


def columns_of(rows: Iterable[TableRow]) -> list[str]:
    """Return the names of all columns, in the order in which they first appear.

    >>> columns_of([{"a": 1}, {"b": 2, "a": 3}])
    ['a', 'b']
    """
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return a value as columns: members of nested objects as `buyer.name`, anything else under its own name.

    >>> flatten({"buyer": {"name": "Ada"}, "tags": ["a", "b"]})
    {'buyer.name': 'Ada', 'tags': ['a', 'b']}
    >>> flatten(3)
    {'value': 3}
    """
    if not isinstance(value, Mapping) or not value:
        return {prefix or "value": value}
    columns: dict[str, Any] = {}
    for name, member in value.items():
        columns |= flatten(member, f"{prefix}.{name}" if prefix else name)
    return columns


def unflatten(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns with dots as nested objects, the inverse of `flatten`.

    >>> unflatten({"buyer.name": "Ada", "tags": ["a", "b"]})
    {'buyer': {'name': 'Ada'}, 'tags': ['a', 'b']}
    """
    whole: dict[str, Any] = {}
    for name, value in columns.items():
        *parents, last = name.split(".")
        inner = whole
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = value
    return whole


def cell_text(value: Any) -> str:
    """Return a cell as text: empty for a missing value, JSON for anything that is not text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return as_json(value).decode()


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[TableRow], delimiter: str = ",") -> None:
    with replacing(path) as file:
        writer = csv.writer(_Utf8(file), delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([cell_text(row.get(name)) for name in columns])


def _write_tsv(path: Path, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    _write_csv(path, columns, rows, delimiter="\t")


class _Utf8:
    """Encodes the output of `csv`; an unpaired surrogate becomes its escape."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        self._file.write(text.encode("utf-8", "backslashreplace"))


def _write_jsonl(path: Path, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    with replacing(path) as file:
        for row in rows:
            file.write(as_json({name: row.get(name) for name in columns}) + b"\n")


def _write_xlsx(path: Path, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    xlsxwriter = _load_xlsxwriter()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    cut = 0
    # Text stays text: a value that begins with "=" is not a formula.
    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    with writing(path), xlsxwriter.Workbook(part, options) as workbook:
        sheet = workbook.add_worksheet("Results")
        bold = workbook.add_format({"bold": True})
        sheet.freeze_panes(1, 0)
        for column, name in enumerate(columns):
            sheet.write_string(0, column, name, bold)
        for number, row in enumerate(rows, 1):
            if number >= _EXCEL_ROWS:
                raise ConfigError(
                    f"Excel holds {_EXCEL_ROWS - 1:,} rows at most", where=str(path), hint="Write a .csv file."
                )
            for column, name in enumerate(columns):
                cut += _write_excel_cell(sheet, number, column, row.get(name))
    with writing(path):
        part.replace(path)
    if cut:
        _log.warning("%s: cells cut at %d characters, Excel's limit, cells=%d", path, _EXCEL_CELL, cut)


def _write_excel_cell(sheet: Any, row: int, column: int, value: Any) -> bool:
    """Write a cell; return whether it had to be cut."""
    if value is None:
        return False
    if isinstance(value, bool):
        sheet.write_boolean(row, column, value)
        return False
    if isinstance(value, int | float) and abs(value) <= _EXACT_IN_EXCEL:
        sheet.write_number(row, column, value)
        return False
    text = cell_text(value)
    sheet.write_string(row, column, text[:_EXCEL_CELL])
    return len(text) > _EXCEL_CELL


def _write_parquet(path: Path, columns: Sequence[str], rows: Iterable[TableRow]) -> None:
    arrow, parquet = load_arrow()
    listed = list(rows)
    arrays = [_arrow_column(arrow, [row.get(name) for row in listed]) for name in columns]
    part = part_of(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.Table.from_arrays(arrays, names=list(columns)), part)
        part.replace(path)


def _arrow_column(arrow: Any, values: list[Any]) -> Any:
    """Return a column of its values' type, or of JSON text when they have several."""
    try:
        return arrow.array(values)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError):
        return arrow.array([None if value is None else cell_text(value) for value in values])


_WRITERS: Final[Mapping[str, _Write]] = {
    ".csv": _write_csv,
    ".tsv": _write_tsv,
    ".xlsx": _write_xlsx,
    ".jsonl": _write_jsonl,
    ".ndjson": _write_jsonl,
    ".parquet": _write_parquet,
}


def _load_xlsxwriter() -> Any:
    try:
        import xlsxwriter
    except ImportError:
        raise ConfigError("Excel files need xlsxwriter", hint="Run `pip install 'slipform[files]'`.") from None
    return xlsxwriter


def load_arrow() -> tuple[Any, Any]:
    """Return `pyarrow` and `pyarrow.parquet`, which are an extra; raises `ConfigError` without them."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("Parquet needs pyarrow", hint="Run `pip install 'slipform[batch]'`.") from None
    return pa, pq


_LIBRARIES: Final[Mapping[str, Callable[[], object]]] = {".xlsx": _load_xlsxwriter, ".parquet": load_arrow}
"""Loads the library of a format, so that a missing one is reported before the first row."""


def as_json(value: Any) -> bytes:
    """Return a cell or a row as compact JSON, with dates and the like as strings."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(value, default=str, separators=(",", ":")).encode()

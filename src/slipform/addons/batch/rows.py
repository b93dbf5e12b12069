"""Read the rows of JSONL, CSV, Excel and Parquet files, and fill prompt templates from them."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, TypeAlias

from slipform.errors import ConfigError
from slipform.files.tables import as_json, load_arrow
from slipform.text.strict import parse

Row: TypeAlias = Mapping[str, Any]
RowReader: TypeAlias = Callable[[Path], Iterator[Row]]
_BATCH = 1024


def rows_of(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, by its suffix, without blank lines; raises `ConfigError` with the line or row."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        suffixes = ", ".join(READERS)
        raise ConfigError("This kind of file is not known", where=str(path), hint=f"The endings are: {suffixes}.")
    try:
        yield from reader(path)
    except ConfigError as error:
        error.where = error.where or str(path)
        raise
    except OSError as error:
        raise ConfigError(f"The input cannot be read: {error.strerror or error}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The input is not UTF-8 text", where=str(path), hint="Convert it to UTF-8.") from error


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                row = parse(line.decode().rstrip())
            except UnicodeDecodeError:
                raise
            except ValueError as error:
                raise ConfigError(f"This line is not JSON: {_reason(error)}", where=f"{path}:{number}") from error
            if not isinstance(row, dict):
                raise ConfigError(
                    "This line is JSON but no object",
                    where=f"{path}:{number}",
                    hint='Each row is an object: {"column": value, …}.',
                )
            yield row


def _reason(error: ValueError) -> str:
    """Return the parser's message without its line number, which is always 1 here."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.colno}"
    return str(error)


def _read_csv(path: Path, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses a cell of 128 KiB, which is a long article
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(lines, None)
            if header is None:
                return
            if len(set(header)) < len(header):
                duplicate = next(name for name in header if header.count(name) > 1)
                raise ConfigError(f"Two columns are named {duplicate!r}", where=f"{path}:1", hint="Rename one of them.")
            if len(header) == 1 and ";" in header[0]:
                raise ConfigError(
                    "The cells of this file seem to be separated by semicolons",
                    where=f"{path}:1",
                    hint="Put commas between them, or tabs and name the file .tsv.",
                )
            for cells in lines:
                if not cells:
                    continue
                if len(cells) > len(header):
                    raise ConfigError(
                        f"This row has {len(cells)} cells and the header {len(header)}",
                        where=f"{path}:{lines.line_num}",
                        hint="Put cells that hold commas in double quotes.",
                    )
                cells += [""] * (len(header) - len(cells))
                yield {name: cell or None for name, cell in zip(header, cells, strict=True)}
        except csv.Error as error:
            raise ConfigError(f"This is not CSV: {error}", where=f"{path}:{lines.line_num}") from error


def _read_tsv(path: Path) -> Iterator[Row]:
    return _read_csv(path, "\t")


def _read_parquet(path: Path) -> Iterator[Row]:
    arrow, parquet = load_arrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except arrow.ArrowInvalid as error:
        reason = str(error).partition(".")[0]
        raise ConfigError(f"This is not a Parquet file: {reason}", where=str(path)) from error


def _read_spreadsheet(path: Path) -> Iterator[Row]:
    from slipform.files.spreadsheets import spreadsheet_rows

    return spreadsheet_rows(path)


READERS: Mapping[str, RowReader] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
    ".xlsx": _read_spreadsheet,
    ".xls": _read_spreadsheet,
    ".ods": _read_spreadsheet,
}
"""The reader of each kind of file, by suffix."""


_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_MAX_LISTED = 30


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with placeholders: pieces of text, and the column after each piece.

    Placeholders are names of columns only: no attributes, no indexes, no formats.

    >>> Template.read("Sort {title} as {{news}}").fill({"title": "Rain"})
    'Sort Rain as {news}'
    """

    pieces: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Template:
        """Parse a template; raises `ConfigError` with the position of a stray brace."""
        pieces = [""]
        columns = list[str]()
        end = 0
        for match in _BRACES.finditer(text):
            pieces[-1] += text[end : match.start()]
            end = match.end()
            if match[1] is not None:
                if not match[1]:
                    raise _brace_error(text, match.start(), "names no column")
                columns.append(match[1])
                pieces.append("")
            elif len(match[0]) == 2:
                pieces[-1] += match[0][0]
            else:
                raise _brace_error(text, match.start(), "stands alone")
        pieces[-1] += text[end:]
        return cls(tuple(pieces), tuple(columns))

    def check(self, columns: Collection[str]) -> None:
        """Raise `ConfigError` for the first column that the dataset does not have."""
        names = set(columns)
        for column in self.columns:
            if column not in names:
                raise ConfigError(
                    f"The prompt names a column {column!r} that the input does not have",
                    hint=f"The columns are: {column_list(columns)}. To write a literal brace, double it: {{{{ }}}}.",
                )

    def fill(self, row: Mapping[str, Any]) -> str:
        """Return the prompt for a row; a missing value is empty."""
        if not self.pieces:
            return as_json(row).decode()
        parts = [self.pieces[0]]
        for column, piece in zip(self.columns, self.pieces[1:], strict=True):
            parts += (as_text(row.get(column), column), piece)
        return "".join(parts)


def column_list(columns: Iterable[str]) -> str:
    """Return the names of columns for a message, cut to 30.

    >>> column_list(["id", "name"])
    'id, name'
    """
    names = list(columns)
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "") or "none"


WHOLE_ROW = Template((), ())
"""The default template: the row itself, as JSON."""


def as_text(value: Any, column: str) -> str:
    """Return a column's cell as text: strings unchanged, empty for a missing value, JSON for the rest."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    try:
        if isinstance(value, bytes):
            return value.decode()
        return as_json(value).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The column {column!r} holds bytes that are not text",
            where=column,
            hint="Decode it, or name another column.",
        ) from error


def _brace_error(text: str, position: int, what: str) -> ConfigError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return ConfigError(
        f"A brace in the prompt {what}",
        where=f"line {line}, character {column}",
        hint="Write {column} for a column's value, and {{ or }} for a brace.",
    )

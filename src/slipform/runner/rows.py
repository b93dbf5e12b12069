"""Rows and prompt templates."""

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

import orjson

from slipform.errors import ConfigError
from slipform.text.strict import parse

Row: TypeAlias = Mapping[str, Any]
Reader: TypeAlias = Callable[[Path], Iterator[Row]]
_BATCH = 1024


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file, by its ending; what cannot be read is a `ConfigError` with its line or row.

    Blank lines of JSONL and CSV are no rows.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(READERS)
        raise ConfigError("This kind of file is not known", where=str(path), hint=f"The endings are: {known}.")
    try:
        yield from reader(path)
    except OSError as error:
        raise ConfigError(f"The input cannot be read: {error.strerror or error}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError("The input is not UTF-8 text", where=str(path), hint="Convert it to UTF-8.") from error


def _jsonl(path: Path) -> Iterator[Row]:
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
                raise ConfigError(f"This line is not JSON: {_said(error)}", where=f"{path}:{number}") from error
            if not isinstance(row, dict):
                raise ConfigError(
                    "This line is JSON but no object",
                    where=f"{path}:{number}",
                    hint='Each row is an object: {"column": value, …}.',
                )
            yield row


def _said(error: ValueError) -> str:
    """What a parser found, without the line: it was given one."""
    return f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _csv(path: Path, delimiter: str = ",") -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses a cell of 128 KiB, which is a long article
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(lines, None)
            if header is None:
                return
            if len(set(header)) < len(header):
                twice = next(name for name in header if header.count(name) > 1)
                raise ConfigError(f"Two columns are named {twice!r}", where=f"{path}:1", hint="Rename one of them.")
            if len(header) == 1 and ";" in header[0]:
                raise ConfigError(
                    "The cells of this file seem to stand between semicolons",
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
            raise ConfigError(f"This is no CSV: {error}", where=f"{path}:{lines.line_num}") from error


def _tsv(path: Path) -> Iterator[Row]:
    return _csv(path, "\t")


def _parquet(path: Path) -> Iterator[Row]:
    arrow, parquet = load_arrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                yield from batch.to_pylist()
    except arrow.ArrowInvalid as error:
        said = str(error).partition(".")[0]
        raise ConfigError(f"This is no Parquet file: {said}", where=str(path)) from error


READERS: Mapping[str, Reader] = {
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".tsv": _tsv,
    ".parquet": _parquet,
}
"""How each kind of file is read, by its ending."""


def load_arrow() -> tuple[Any, Any]:
    """The Parquet library, which is an extra."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError("Parquet needs pyarrow", hint="Run `pip install 'slipform[batch]'`.") from None
    return pa, pq


_MARK = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_SHOWN = 30


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with blanks: pieces of text, and the column that stands after each piece.

    Nothing but names of columns is looked up: no attributes, no indexes, no formats.

    >>> Template.read("Sort {title} as {{news}}").fill({"title": "Rain"})
    'Sort Rain as {news}'
    """

    pieces: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> Template:
        """Read a template; a brace that belongs to nothing is a `ConfigError` with its place."""
        pieces, columns, at = [""], list[str](), 0
        for found in _MARK.finditer(text):
            pieces[-1] += text[at : found.start()]
            at = found.end()
            if found[1] is not None:
                if not found[1]:
                    raise _misplaced(text, found.start(), "names no column")
                columns.append(found[1])
                pieces.append("")
            elif len(found[0]) == 2:
                pieces[-1] += found[0][0]
            else:
                raise _misplaced(text, found.start(), "stands alone")
        pieces[-1] += text[at:]
        return cls(tuple(pieces), tuple(columns))

    def check(self, known: Collection[str]) -> None:
        """Raise a `ConfigError` for the first column that the dataset does not have."""
        names = set(known)
        for column in self.columns:
            if column not in names:
                raise ConfigError(
                    f"The prompt names a column {column!r} that the input does not have",
                    hint=f"The columns are: {listed(known)}. Write a brace that is meant as one twice.",
                )

    def fill(self, row: Mapping[str, Any]) -> str:
        """The prompt for a row; a value that is missing leaves its place empty."""
        if not self.pieces:
            return as_text(row)
        parts = [self.pieces[0]]
        for column, piece in zip(self.columns, self.pieces[1:], strict=True):
            parts += (as_text(row.get(column)), piece)
        return "".join(parts)


def listed(columns: Iterable[str]) -> str:
    """The names of columns for a person, not too many of them.

    >>> listed(["id", "name"])
    'id, name'
    """
    names = list(columns)
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "") or "none"


WHOLE_ROW = Template((), ())
"""The template of those who give none: the row itself, as JSON."""


def as_text(value: Any) -> str:
    """A cell as the model reads it: text as it is, nothing for a missing value, JSON for the rest."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return _decoded(value)
    return as_json(value).decode()


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("A column of the prompt holds bytes that are no text", hint="Decode it first.") from error


def as_json(value: Any) -> bytes:
    """Compact JSON of what a cell or a row may hold, dates and the like as text."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        return json.dumps(value, default=str, separators=(",", ":")).encode()


def _misplaced(text: str, at: int, what: str) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return ConfigError(
        f"A brace in the prompt {what}",
        where=f"line {line}, character {column}",
        hint="Write {column} for a column's value, and {{ or }} for a brace.",
    )

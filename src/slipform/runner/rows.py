"""Rows of a dataset, one after another: JSONL, CSV and Parquet, in memory that does not grow with the file."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

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

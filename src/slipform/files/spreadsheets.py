"""Read the rows of spreadsheets: XLSX, XLS and ODS."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slipform.errors import ConfigError
from slipform.files.archives import check_archive
from slipform.files.document import Document

_LETTERS = 26


def read_spreadsheet(data: bytes) -> Document:
    """Return every sheet under a heading with its name, its rows as lines with tabs between the cells."""
    parts: list[str] = []
    cells: list[tuple[int, str]] = []
    length = 0

    def write(text: str) -> None:
        nonlocal length
        parts.append(text)
        length += len(text)

    for name, rows in sheets(data):
        write(f"# {name}\n")
        for number, row in enumerate(rows, 1):
            for column, value in enumerate(row):
                write("\t" if column else "")
                cells.append((length, f"{name}!{column_name(column)}{number}"))
                write(cell_text(value))
            write("\n")
        write("\n")
    return Document("".join(parts), cells=tuple(cells))


def sheets(data: bytes) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the name and the rows of each sheet; raises `ConfigError` for a file that is damaged or encrypted."""
    import python_calamine

    try:
        workbook = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        for name in workbook.sheet_names:
            yield name, workbook.get_sheet_by_name(name).to_python(skip_empty_area=False)
    except python_calamine.PasswordError as error:
        raise ConfigError("The spreadsheet is encrypted", hint="Save a copy without a password.") from error
    except (python_calamine.CalamineError, ValueError) as error:
        raise ConfigError("This is not a spreadsheet, or it is damaged", hint="Open it and save it anew.") from error


def spreadsheet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the first sheet that has any, under the names of its first row; empty rows are left out."""
    if find_spec("python_calamine") is None:
        raise ConfigError("Spreadsheets need python-calamine", hint="Run `pip install 'slipform[files]'`.")
    data = path.read_bytes()
    check_archive(data)
    rows = next((rows for _, rows in sheets(data) if rows), [])
    if not rows:
        return
    header = [cell_text(name) or column_name(index) for index, name in enumerate(rows[0])]
    if len(set(header)) < len(header):
        duplicate = next(name for name in header if header.count(name) > 1)
        raise ConfigError(f"Two columns are named {duplicate!r}", where=f"{path}:1", hint="Rename one of them.")
    for row in rows[1:]:
        cells = [plain_cell(value) for value in row]
        if any(cell is not None for cell in cells):
            yield dict(zip(header, cells, strict=True))


def plain_cell(value: Any) -> Any:
    """Return a cell as a plain value: an empty one as None, whole floats as integers, dates as ISO text.

    >>> plain_cell(3.0), plain_cell(""), plain_cell(date(2026, 11, 18))
    (3, None, '2026-11-18')
    """
    if value == "":
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    return value


def cell_text(value: Any) -> str:
    """Return a cell as text without tabs and line ends."""
    plain = plain_cell(value)
    if plain is None:
        return ""
    return " ".join(str(plain).split())


def column_name(index: int) -> str:
    """Return the letters of a column, counted from 0.

    >>> column_name(0), column_name(27)
    ('A', 'AB')
    """
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, _LETTERS)
        letters = chr(ord("A") + letter) + letters
    return letters

"""Read the text of a Word document: headings, paragraphs and tables, in their order."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any
from zipfile import BadZipFile

from slipform.errors import ConfigError
from slipform.files.document import Document

_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_BLANKS = re.compile(r"\s+")
_HEAD_EVERY = 50
"""Rows of a long table after which its first row is repeated, so that parts of the text have column names."""


def read_docx(data: bytes) -> Document:
    """Return the text of a DOCX file: headings as `#` lines, tables as lines with tabs between the cells.

    Raises `ConfigError` for a file that is damaged.
    """
    import docx
    from docx.opc.exceptions import PackageNotFoundError

    try:
        document = docx.Document(io.BytesIO(data))
    except (BadZipFile, PackageNotFoundError, KeyError, ValueError) as error:
        raise ConfigError("This is not a DOCX file, or it is damaged", hint="Open it and save it anew.") from error
    return Document("\n".join(_lines(document)))


def _lines(document: Any) -> Iterator[str]:
    from docx.table import Table

    for block in document.iter_inner_content():
        if isinstance(block, Table):
            yield ""
            yield from _table_lines(block)
            yield ""
            continue
        heading = _HEADING.match(block.style.name or "") if block.style is not None else None
        if heading is not None:
            yield f"{'#' * int(heading[1])} {block.text}"
        else:
            yield block.text


def _table_lines(table: Any) -> Iterator[str]:
    head = ""
    for number, row in enumerate(table.rows):
        line = "\t".join(_cells(row))
        if number == 0:
            head = line
        elif number % _HEAD_EVERY == 0:
            yield head
        yield line


def _cells(row: Any) -> Iterator[str]:
    """Yield the text of each cell once; a merged cell is listed for every column it covers."""
    previous = None
    for cell in row.cells:
        if cell._tc is previous:  # noqa: SLF001 — the element is the only identity that cells have
            continue
        previous = cell._tc  # noqa: SLF001
        yield _BLANKS.sub(" ", cell.text).strip()

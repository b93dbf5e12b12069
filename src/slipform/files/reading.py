"""Read a file of any supported format as a document, within limits of size, memory and time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from slipform.errors import ConfigError
from slipform.files.archives import check_archive
from slipform.files.document import Document

MAX_BYTES: Final = 200_000_000
_SECONDS: Final = 300


class FileFormat(NamedTuple):
    """How a file format is read."""

    module: str
    """The module that must be installed, from the extra `files`."""
    reader: str
    """`module:function` below `slipform.files`, called with the bytes in a separate process."""


_PDF = FileFormat("pypdfium2", "pdf:read_pdf")
_DOCX = FileFormat("docx", "docx:read_docx")
_HTML = FileFormat("selectolax", "html:read_html")
_SPREADSHEET = FileFormat("python_calamine", "spreadsheets:read_spreadsheet")
FORMATS: Final[Mapping[str, FileFormat]] = {
    ".pdf": _PDF,
    ".docx": _DOCX,
    ".html": _HTML,
    ".htm": _HTML,
    ".xlsx": _SPREADSHEET,
    ".xls": _SPREADSHEET,
    ".ods": _SPREADSHEET,
}
"""The formats that are not plain text, by suffix."""


def read_file(path: Path | str) -> Document:
    """Return the text of a file with its pages and places, by its suffix; anything unknown is read as UTF-8 text.

    PDF, DOCX, HTML and spreadsheets need the extra `files`. They are parsed in a separate process with limits of
    memory and time: 200 MB, 5,000 pages, five minutes. Raises `ConfigError` for a file that cannot be read.

    ::

        read_file("statement.pdf").page_at(0)
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"This file has more than {MAX_BYTES:,} bytes", where=str(path), hint="Split it first.")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"This file cannot be read: {error.strerror or error}", where=str(path)) from error
    try:
        return read_bytes(data, path.name)
    except ConfigError as error:
        error.where = error.where or str(path)
        raise


def read_bytes(data: bytes, name: str) -> Document:
    """Return the document in these bytes, by the suffix of `name` or the first bytes."""
    kind = format_of(data, name)
    if kind is None:
        return Document(decode_text(data), name=name)
    if find_spec(kind.module) is None:
        raise ConfigError(
            f"To read {Path(name).suffix or 'this'} files, the module {kind.module} is needed",
            hint="Run `pip install 'slipform[files]'`.",
        )
    check_archive(data)
    return msgspec.structs.replace(_parse_apart(data, kind), name=name)


def format_of(data: bytes, name: str) -> FileFormat | None:
    """Return the format of a file, or None for plain text.

    >>> format_of(b"%PDF-1.7", "scan").reader
    'pdf:read_pdf'
    """
    if data.startswith(b"%PDF-"):
        return _PDF
    return FORMATS.get(Path(name).suffix.lower())


def decode_text(data: bytes) -> str:
    """Return UTF-8 text without its byte order mark; raises `ConfigError` for anything else."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ConfigError(
            "This file is not UTF-8 text", hint=f"Convert it first; text and {', '.join(FORMATS)} are read."
        )
    return text


def render_pages(data: bytes, numbers: Sequence[int], dots_per_inch: int = 100) -> Mapping[int, bytes]:
    """Return pages of a PDF, counted from 1, as PNG images; raises `ConfigError` for a file that cannot be read."""
    arguments = [str(dots_per_inch), *map(str, numbers)]
    return _run_worker(data, "pdf:render_pages", arguments).images


def _parse_apart(data: bytes, kind: FileFormat) -> Document:
    document = _run_worker(data, kind.reader).document
    if document is None:
        raise ConfigError("The reader of this file returned nothing")
    return document


def _run_worker(data: bytes, reader: str, arguments: Sequence[str] = ()) -> ReadOutcome:
    """Parse the bytes in a separate process, because PDFium and the like are C++ on untrusted input."""
    command = [sys.executable, "-m", "slipform.files.worker", reader, *arguments]
    try:
        worker = subprocess.run(command, input=data, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"This file took more than {_SECONDS} s to read", hint="Split it first.") from error
    if worker.returncode != 0:
        raise ConfigError(
            f"The reader of this file failed (exit code {worker.returncode})",
            hint="The file may be damaged: open it and save it anew.",
        )
    outcome = msgspec.msgpack.decode(worker.stdout, type=ReadOutcome)
    if outcome.error:
        raise ConfigError(outcome.error, hint=outcome.hint)
    return outcome


class ReadOutcome(msgspec.Struct, frozen=True):
    """The result of the process that reads a file: the document, images of its pages, or an error."""

    document: Document | None = None
    images: dict[int, bytes] = {}
    error: str = ""
    hint: str | None = None

"""Read the text of a PDF with the box of every word, and render its pages."""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from slipform.errors import ConfigError
from slipform.files.document import Box, Document, Word

MAX_PAGES = 5_000
_SCANNED_BELOW = 20
"""A page with fewer characters than this, and an image, is a scan."""
_WIDE_GAP = 1.6
"""A gap of this many character widths separates columns; justified text stays below it."""
_MAX_BLANKS = 40
_PARAGRAPH_GAP = 1.7
"""A distance of this many line heights between two lines is an empty line."""
_PASSWORD_ERROR = 4
"""FPDF_ERR_PASSWORD of PDFium."""


@dataclass(slots=True)
class _Run:
    """Characters without a blank between them, on one line of a page."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2


def read_pdf(data: bytes) -> Document:
    """Return the text of a PDF; columns of tables are separated by two or more blanks.

    Raises `ConfigError` for a file that is encrypted, damaged, or longer than 5,000 pages.
    """
    document = _open(data)
    if len(document) > MAX_PAGES:
        raise ConfigError(f"The PDF has {len(document):,} pages, more than {MAX_PAGES:,}", hint="Split it first.")
    writer = _PageWriter()
    scanned = []
    for index in range(len(document)):
        page = document[index]
        runs = list(_runs(page))
        if sum(len(run.text) for run in runs) < _SCANNED_BELOW and _has_image(page):
            scanned.append(index + 1)
        writer.add_page(_lines(runs))
        page.close()
    return Document(
        "".join(writer.parts),
        page_starts=tuple(writer.page_starts),
        words=tuple(writer.words),
        scanned_pages=tuple(scanned),
    )


def render_pages(data: bytes, numbers: Sequence[int], dots_per_inch: int = 100) -> dict[int, bytes]:
    """Return pages, counted from 1, as PNG images."""
    document = _open(data)
    images = {}
    for number in numbers:
        page = document[number - 1]
        bitmap = page.render(scale=dots_per_inch / 72, rev_byteorder=True, prefer_bgrx=False)
        channels: int = bitmap.n_channels
        images[number] = _png(bytes(bitmap.buffer), bitmap.width, bitmap.height, bitmap.stride, channels)
        page.close()
    return images


def _open(data: bytes) -> Any:
    import pypdfium2

    try:
        return pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        if getattr(error, "err_code", None) == _PASSWORD_ERROR:
            raise ConfigError("The PDF is encrypted", hint="Save a copy without a password.") from error
        raise ConfigError(
            "This is not a PDF, or it is damaged", hint="Open it in a viewer and save it anew."
        ) from error


def _has_image(page: Any) -> bool:
    import pypdfium2.raw as raw

    return any(True for _ in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=3))


def _runs(page: Any) -> Iterator[_Run]:
    """Yield the words of a page in the order of its content."""
    import pypdfium2.raw as raw

    text_page = page.get_textpage()
    left, right, bottom, top = (ctypes.c_double() for _ in range(4))
    run: _Run | None = None
    for index in range(text_page.count_chars()):
        character = chr(raw.FPDFText_GetUnicode(text_page, index))
        if character.isspace() or character in "\0\ufffe":
            if run is not None:
                yield run
            run = None
            continue
        raw.FPDFText_GetCharBox(text_page, index, left, right, bottom, top)
        if run is not None and _continues(run, left.value, bottom.value, top.value):
            run.text += character
            run.x1 = right.value
            run.y0 = min(run.y0, bottom.value)
            run.y1 = max(run.y1, top.value)
            continue
        if run is not None:
            yield run
        run = _Run(character, left.value, bottom.value, right.value, top.value)
    if run is not None:
        yield run
    text_page.close()


def _continues(run: _Run, x0: float, y0: float, y1: float) -> bool:
    """Return whether a character follows the run without a gap.

    Boxes are those of the ink: a comma or a dash lies beside the middle of the line, so lines only need to overlap.
    """
    height = max(run.y1 - run.y0, y1 - y0, 1.0)
    is_same_line = y0 < run.y1 + height / 2 and y1 > run.y0 - height / 2
    return is_same_line and -height < x0 - run.x1 < height


def _lines(runs: list[_Run]) -> list[list[_Run]]:
    """Return the words as lines, from the top of the page down, each from left to right."""
    lines: list[list[_Run]] = []
    for run in sorted(runs, key=lambda run: -run.middle):
        line = lines[-1] if lines else None
        if line is not None and _shares_line(line, run):
            line.append(run)
        else:
            lines.append([run])
    for line in lines:
        line.sort(key=lambda run: run.x0)
    return lines


def _shares_line(line: list[_Run], run: _Run) -> bool:
    y0 = min(each.y0 for each in line[-3:])
    y1 = max(each.y1 for each in line[-3:])
    overlap = min(y1, run.y1) - max(y0, run.y0)
    return overlap > 0.4 * min(y1 - y0, run.y1 - run.y0) or y0 <= run.middle <= y1


class _PageWriter:
    """Writes lines as text, and records the place of each word on its page."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.page_starts: list[int] = []
        self.words: list[Word] = []
        self._length = 0

    def add_page(self, lines: list[list[_Run]]) -> None:
        """Write a page; gaps between its words become blanks in proportion."""
        if self.page_starts:
            self._write("\f")
        self.page_starts.append(self._length)
        if not lines:
            return
        width = _character_width(run for line in lines for run in line)
        height = median(max(run.y1 for run in line) - min(run.y0 for run in line) for line in lines)
        margin = min(line[0].x0 for line in lines)
        previous: list[_Run] | None = None
        for line in lines:
            if previous is not None:
                distance = min(run.y0 for run in previous) - max(run.y1 for run in line)
                self._write("\n\n" if distance > _PARAGRAPH_GAP * height else "\n")
            indent = round((line[0].x0 - margin) / width)
            self._write(" " * min(indent, _MAX_BLANKS))
            self._write_line(line, width)
            previous = line

    def _write_line(self, line: list[_Run], width: float) -> None:
        self._write_word(line[0])
        for before, run in pairwise(line):
            gap = (run.x0 - before.x1) / width
            blanks = 1 if gap < _WIDE_GAP else max(2, round(gap))
            self._write(" " * min(blanks, _MAX_BLANKS))
            self._write_word(run)

    def _write_word(self, run: _Run) -> None:
        box = Box(len(self.page_starts), round(run.x0, 2), round(run.y0, 2), round(run.x1, 2), round(run.y1, 2))
        self.words.append(Word(self._length, self._length + len(run.text), box))
        self._write(run.text)

    def _write(self, text: str) -> None:
        self.parts.append(text)
        self._length += len(text)


def _character_width(runs: Iterable[_Run]) -> float:
    widths = [(run.x1 - run.x0) / len(run.text) for run in runs if len(run.text) > 1]
    return max(median(widths), 0.5) if widths else 5.0


def _png(pixels: bytes, width: int, height: int, stride: int, channels: int) -> bytes:
    """Return the pixels as a PNG file: https://www.w3.org/TR/png-3/."""
    rows = b"".join(b"\0" + pixels[at * stride : at * stride + width * channels] for at in range(height))
    color_type = {1: 0, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, body) for kind, body in chunks)


def _png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

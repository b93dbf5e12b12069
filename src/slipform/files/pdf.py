"""Read the text of a PDF with the box of every word, and render its pages."""

from __future__ import annotations

import ctypes
import math
import struct
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any, TypeAlias

from slipform.errors import ConfigError
from slipform.files.document import Box, Document, Word

MAX_PAGES = 5_000
_SCANNED_BELOW = 20
"""A page with fewer characters than this, and an image, is a scan."""
_WIDE_GAP = 1.6
"""A gap of this many character widths separates columns; justified text stays below it."""
_MAX_BLANKS = 40
_LEAST_COLUMN_LINES = 8
_LEAST_COLUMN_WORDS = 4
_COLUMN_FILL = 0.7
"""Most lines of prose in a column are nearly as wide as it is; cells of tables differ more."""
_PARAGRAPH_GAP = 1.7
"""A distance of this many line heights between two lines is an empty line."""
_QUARTER_TURN = math.pi / 2
_PASSWORD_ERROR = 4
"""FPDF_ERR_PASSWORD of PDFium."""


_Rectangle: TypeAlias = tuple[float, float, float, float]
"""The left, lower, right and upper edge."""


@dataclass(slots=True)
class _Run:
    """Characters without a blank between them, on one line of a page that is turned until they are upright."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    turns: int = 0
    """Quarter turns against the clock from upright text to this one."""

    @property
    def middle(self) -> float:
        return (self.y0 + self.y1) / 2


def _turned(box: _Rectangle, turns: int) -> _Rectangle:
    """Return a rectangle after quarter turns of the plane with the clock.

    >>> _turned((1, 2, 3, 4), 1), _turned(_turned((1, 2, 3, 4), 1), -1)
    ((2, -3, 4, -1), (1, 2, 3, 4))
    """
    x0, y0, x1, y1 = box
    match turns % 4:
        case 1:
            return y0, -x1, y1, -x0
        case 2:
            return -x1, -y1, -x0, -y0
        case 3:
            return -y1, x0, -y0, x1
        case _:
            return box


@dataclass(frozen=True, slots=True)
class _View:
    """How a page is shown: which part of it, and after how many quarter turns with the clock."""

    turns: int
    left: float
    bottom: float

    @classmethod
    def of(cls, page: Any) -> _View:
        turns = page.get_rotation() // 90
        left, bottom, _, _ = _turned(page.get_cropbox(), turns)
        return cls(turns, left, bottom)

    def box(self, number: int, run: _Run) -> Box:
        """Return the place of a run on the page as it is shown."""
        upright = (run.x0, run.y0, run.x1, run.y1)
        x0, y0, x1, y1 = _turned(upright, self.turns - run.turns)
        values = (x0 - self.left, y0 - self.bottom, x1 - self.left, y1 - self.bottom)
        return Box(number, *(round(value, 2) for value in values))


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
        writer.add_page(runs, _View.of(page))
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
    """Yield the words of a page in the order of its content, each turned until it is upright."""
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
        box = (left.value, bottom.value, right.value, top.value)
        if run is not None:
            x0, y0, x1, y1 = _turned(box, run.turns) if run.turns else box
            if _continues(run, (x0, y0, x1, y1)):
                run.text += character
                run.x0 = min(run.x0, x0)
                run.x1 = max(run.x1, x1)
                run.y0 = min(run.y0, y0)
                run.y1 = max(run.y1, y1)
                continue
            yield run
        turns = round(raw.FPDFText_GetCharAngle(text_page, index) / _QUARTER_TURN) % 4
        run = _Run(character, *_turned(box, -turns), -turns % 4)
    if run is not None:
        yield run
    text_page.close()


def _continues(run: _Run, box: _Rectangle) -> bool:
    """Return whether a character follows the run without a gap.

    Boxes are those of the ink: a comma or a dash lies beside the middle of the line, so lines only need to overlap.
    """
    x0, y0, x1, y1 = box
    height = max(run.y1 - run.y0, y1 - y0, 1.0)
    is_same_line = y0 < run.y1 + height / 2 and y1 > run.y0 - height / 2
    if not is_same_line or -height < x0 - run.x1 < height:
        return is_same_line
    return -height < run.x0 - x1 < height and _is_right_to_left(run.text)


def _is_right_to_left(text: str) -> bool:
    """Whether most letters of a text are of a script that is written from right to left."""
    directions = [unicodedata.bidirectional(sign) for sign in text]
    return 2 * sum(direction in {"R", "AL"} for direction in directions) > sum(map(str.isalpha, text))


def _lines(runs: list[_Run]) -> list[list[_Run]]:
    """Return the words as lines, from the top of the page down, each in the direction of its script."""
    lines: list[list[_Run]] = []
    for run in sorted(runs, key=lambda run: -run.middle):
        line = lines[-1] if lines else None
        if line is not None and _shares_line(line, run):
            line.append(run)
        else:
            lines.append([run])
    for line in lines:
        line.sort(key=_left_edge)
        if _is_right_to_left("".join(run.text for run in line)):
            line.reverse()
    return lines


def _in_reading_order(lines: list[list[_Run]]) -> list[list[list[_Run]]]:
    """Return lines as blocks that are read one after the other: those of prose in two columns are column by column."""
    gutter = _gutter(lines)
    if gutter is None:
        return [lines]
    blocks: list[list[list[_Run]]] = []
    for is_divided, band in groupby(lines, key=lambda line: _is_divided(line, gutter)):
        own = list(band)
        blocks += [_side(own, gutter, is_left=True), _side(own, gutter, is_left=False)] if is_divided else [own]
    return [block for block in blocks if block]


def _side(lines: Sequence[list[_Run]], gutter: float, *, is_left: bool) -> list[list[_Run]]:
    """Return the lines on one side of a gutter."""
    sides = ([run for run in line if (run.x1 <= gutter) is is_left] for line in lines)
    return [side for side in sides if side]


def _is_divided(line: list[_Run], gutter: float) -> bool:
    """Whether a line has a wide gap at the gutter, or lies on one side of it."""
    if any(run.x0 < gutter < run.x1 for run in line):
        return False
    least = _WIDE_GAP * _character_width(line)
    gaps = [(before.x1, run.x0) for before, run in pairwise(sorted(line, key=_left_edge))]
    return not any(low <= gutter <= high and high - low < least for low, high in gaps)


def _gutter(lines: list[list[_Run]]) -> float | None:
    """Return where prose in two columns is divided; None for other pages, whose rows are read across."""
    width = _character_width(run for line in lines for run in line)
    gaps = [_wide_gaps(line, width) for line in lines]
    single = [own[0] for own in gaps if len(own) == 1]
    if len(single) < max(_LEAST_COLUMN_LINES, len(lines) / 2):
        return None
    low = sorted(before for before, _ in single)[int(len(single) * 0.95)]
    high = sorted(after for _, after in single)[int(len(single) * 0.05)]
    gutter = (low + high) / 2
    is_prose = low < high and all(_is_column(_side(lines, gutter, is_left=is_left)) for is_left in (True, False))
    return gutter if is_prose else None


def _is_column(lines: Sequence[list[_Run]]) -> bool:
    """Whether most lines have several words and are nearly as wide as the widest."""
    extents = [max(run.x1 for run in line) - min(run.x0 for run in line) for line in lines]
    if median(map(len, lines)) < _LEAST_COLUMN_WORDS:
        return False
    return median(extents) >= _COLUMN_FILL * max(extents)


def _wide_gaps(line: list[_Run], width: float) -> list[tuple[float, float]]:
    return [(before.x1, run.x0) for before, run in pairwise(line) if run.x0 - before.x1 >= _WIDE_GAP * width]


def _left_edge(run: _Run) -> float:
    return run.x0


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

    def add_page(self, runs: Sequence[_Run], view: _View) -> None:
        """Write a page: the direction that most of its text has, then others such as that of a stamp at the side."""
        if self.page_starts:
            self._write("\f")
        self.page_starts.append(self._length)
        lengths: Counter[int] = Counter()
        for run in runs:
            lengths[run.turns] += len(run.text)
        for number, (turns, _) in enumerate(lengths.most_common()):
            if number:
                self._write("\n\n")
            lines = _lines([run for run in runs if run.turns == turns])
            for at, block in enumerate(_in_reading_order(lines)):
                if at:
                    self._write("\n")
                self._add_lines(block, view)

    def _add_lines(self, lines: list[list[_Run]], view: _View) -> None:
        """Write lines; gaps between their words become blanks in proportion."""
        width = _character_width(run for line in lines for run in line)
        height = median(max(run.y1 for run in line) - min(run.y0 for run in line) for line in lines)
        margin = min(run.x0 for line in lines for run in line)
        previous: list[_Run] | None = None
        for line in lines:
            if previous is not None:
                distance = min(run.y0 for run in previous) - max(run.y1 for run in line)
                self._write("\n\n" if distance > _PARAGRAPH_GAP * height else "\n")
            indent = round((min(run.x0 for run in line) - margin) / width)
            self._write(" " * min(indent, _MAX_BLANKS))
            self._write_line(line, width, view)
            previous = line

    def _write_line(self, line: list[_Run], width: float, view: _View) -> None:
        self._write_word(line[0], view)
        for before, run in pairwise(line):
            gap = max(run.x0 - before.x1, before.x0 - run.x1) / width
            blanks = 1 if gap < _WIDE_GAP else max(2, round(gap))
            self._write(" " * min(blanks, _MAX_BLANKS))
            self._write_word(run, view)

    def _write_word(self, run: _Run, view: _View) -> None:
        box = view.box(len(self.page_starts), run)
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

"""Hold the text of a document with the place of every word on its page."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec


class Box(NamedTuple):
    """A rectangle on a page, in points from the lower left corner; pages are counted from 1."""

    page: int
    x0: float
    y0: float
    x1: float
    y1: float


class Word(NamedTuple):
    """A word of a page: its place in the text, and its box."""

    start: int
    end: int
    box: Box


class Document(msgspec.Struct, frozen=True):
    r"""The text of a file. Pages are separated by form feeds; headings begin with `#`, cells of tables with a tab.

    >>> Document("one\ftwo", page_starts=(0, 4)).page_at(5)
    2
    """

    text: str
    name: str = ""
    page_starts: tuple[int, ...] = ()
    """Where each page begins in the text; empty for formats without pages."""
    words: tuple[Word, ...] = ()
    """The words with their boxes, in the order of the text; only for PDF."""
    cells: tuple[tuple[int, str], ...] = ()
    """Where each cell of a spreadsheet begins in the text, and its name, such as `Sheet1!B17`."""
    scanned_pages: tuple[int, ...] = ()
    """The pages that hold an image and hardly any text."""
    images: Mapping[int, bytes] = {}
    """The images of such pages, where they were rendered."""

    def page_at(self, offset: int) -> int | None:
        """Return the page of a character, counted from 1; None for formats without pages."""
        if not self.page_starts:
            return None
        return bisect_right(self.page_starts, offset)

    def cell_at(self, offset: int) -> str | None:
        """Return the name of the cell of a character; None outside of spreadsheets."""
        at = bisect_right(self.cells, offset, key=_start) - 1
        return self.cells[at][1] if at >= 0 else None

    def boxes(self, start: int, end: int) -> tuple[Box, ...]:
        """Return a box for each line of text that this stretch covers."""
        lines: list[Box] = []
        for word in self._words_between(start, end):
            if lines and _on_one_line(lines[-1], word.box):
                lines[-1] = _union(lines[-1], word.box)
            else:
                lines.append(word.box)
        return tuple(lines)

    def _words_between(self, start: int, end: int) -> Iterator[Word]:
        first = bisect_right(self.words, start, key=_end)
        last = bisect_left(self.words, end, key=_start)
        yield from self.words[first:last]


def _start(place: tuple[int, *tuple[object, ...]]) -> int:
    return place[0]


def _end(word: Word) -> int:
    return word.end


def _on_one_line(line: Box, word: Box) -> bool:
    middle = (word.y0 + word.y1) / 2
    return line.page == word.page and line.y0 <= middle <= line.y1 and word.x0 >= line.x0


def _union(line: Box, word: Box) -> Box:
    return Box(line.page, min(line.x0, word.x0), min(line.y0, word.y0), max(line.x1, word.x1), max(line.y1, word.y1))

"""Find the head of a place's column in Markdown, CSV, tabs, HTML rows or columns made of blanks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_BLANKS = re.compile(r" {2,}")
_CELL_TAG = re.compile(r"<t[dh]\b[^<>]*+>", re.IGNORECASE)
_RULE = re.compile(r"[\s|:+=-]+")
_NO_HEAD = re.compile(r"\d")
_LONGEST_HEAD = 30
_MOST_CELLS = 256
"""A line with more separators is not a row of a table."""
_SEPARATORS = ("|", "\t", ";", "<t", ",")


class _Row(NamedTuple):
    """A line of a table."""

    kind: int
    """Which separator it has: a place in `_SEPARATORS`, or -1 for blanks."""
    cells: tuple[tuple[int, int], ...]
    """Where its cells begin and end, in the line."""


class TableHeads:
    """The heads of a text's tables; a line is read when somebody asks for it or for one below it."""

    def __init__(self, text: str, line_starts: Sequence[int]) -> None:
        self._text = text
        self._starts = line_starts
        self._tops: dict[int, int] = {}
        self._rows: dict[int, _Row | None] = {}

    def head(self, line: int, start: int, end: int) -> str:
        """What stands over a place of a line; empty outside a table."""
        row = self._row(line)
        top = self._top(line) if row is not None else line
        head = self._row(top)
        if top == line or row is None or head is None or not self._is_head(head, self._line(top)):
            return ""
        start -= self._starts[line]
        end -= self._starts[line]
        if row.kind >= 0:
            column = next((at for at, (low, high) in enumerate(row.cells) if low <= start <= high), None)
            cell = None
            if column is not None and column < len(head.cells):
                cell = head.cells[column]
        else:
            cell = max(head.cells, key=lambda each: (min(end, each[1]) - max(start, each[0]), -abs(each[1] - end)))
        if cell is None:
            return ""
        return self._line(top)[cell[0] : cell[1]]

    def _line(self, number: int) -> str:
        end = self._starts[number + 1] - 1 if number + 1 < len(self._starts) else len(self._text)
        return self._text[self._starts[number] : end]

    def _top(self, line: int) -> int:
        """The first line of the table that a line is in."""
        row = self._row(line)
        top = line
        passed = []
        while top not in self._tops:
            passed.append(top)
            above = top - 1
            while above >= 0 and above > top - 3 and _RULE.fullmatch(self._line(above)):
                above -= 1  # |---|---|
            other = self._row(above) if above >= 0 else None
            if row is None or other is None or (other.kind, len(other.cells)) != (row.kind, len(row.cells)):
                break
            top = above
        top = self._tops.get(top, top)
        self._tops.update(dict.fromkeys(passed, top))
        return top

    def _is_head(self, row: _Row, line: str) -> bool:
        cells = [line[start:end].strip() for start, end in row.cells]
        return not _NO_HEAD.search(line) and any(cells) and max(map(len, cells)) <= _LONGEST_HEAD

    def _row(self, number: int) -> _Row | None:
        if number not in self._rows:
            self._rows[number] = _row_of(self._line(number))
        return self._rows[number]


def _row_of(line: str) -> _Row | None:
    """The cells of a line; None for one that is not a row of three or more."""
    if _RULE.fullmatch(line):
        return None
    for kind, sign in enumerate(_SEPARATORS):
        if (count := line.count(sign)) >= 2:
            if count > _MOST_CELLS:
                return None
            separator = _CELL_TAG if sign == "<t" else re.compile(re.escape(sign))
            return _Row(kind, _gaps_between([match.span() for match in separator.finditer(line)], len(line)))
    if line.count("  ") < 2:
        return None
    line = line.rstrip()
    gaps = [match.span() for match in _BLANKS.finditer(line)]
    if 2 <= len(gaps) <= _MOST_CELLS:
        return _Row(-1, _gaps_between(gaps, len(line)))
    return None


def _gaps_between(separators: Sequence[tuple[int, int]], length: int) -> tuple[tuple[int, int], ...]:
    return tuple((one[1], other[0]) for one, other in pairwise([(0, 0), *separators, (length, length)]))

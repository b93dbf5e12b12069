"""Cut a source into pieces, and build the text of a question about some of its lines."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from slipform.addons.records.learning import RecordModel
from slipform.addons.records.lines import HEADING, LineSignature, LineTable, cell_spans, cells_of, form_of

LineRange: TypeAlias = tuple[int, int]
"""The number of the first line, and that after the last."""
_DIGIT = re.compile(r"\d")
_UNDERLINE = re.compile(r"\s*([-=~^*_])\1{2,}\s*")
_LEFT_OUT = "[...]\n"


class Question(msgspec.Struct, frozen=True):
    """A text to extract records from, and where its parts are in the source."""

    number: int
    text: str
    ranges: tuple[LineRange, ...]
    offsets: tuple[tuple[int, int, int], ...]
    """For each part of the source: its offset in the text, its offset in the source, and its length."""
    repeat: int = 0
    """How many questions with the same text came before."""
    depth: int = 0
    """How often the piece was halved."""
    is_limited: bool = False
    """Whether it was halved because it was too long for the model."""
    image: bytes = b""
    """The page that is shown in place of a text."""

    def in_source(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the offset in the source of an offset in the text; None for text that is not from the source."""
        part = bisect_right(self.offsets, start, key=lambda offset: offset[0]) - 1
        if part < 0:
            return None
        in_text, in_source, length = self.offsets[part]
        if start >= in_text + length:
            return None
        return start - in_text + in_source, end - in_text + in_source


class Context:
    """What the lines below depend on: table heads, headings, and lines or cells that carry values."""

    def __init__(self, table: LineTable, model: RecordModel) -> None:
        self._table = table
        self._model = model

    @cached_property
    def _heads(self) -> list[int]:
        """The lines that look like the head of a table: three or more cells without a digit."""
        begins = self._model.begins
        return [
            number
            for number, line in enumerate(self._table.lines)
            if line.features
            and not _DIGIT.search(line.text)
            and line.text.strip("-=+| ")
            and len(cells_of(line.text)) >= 3
            and not begins(number, line.features)
        ]

    @cached_property
    def _headings(self) -> list[int]:
        return [number for number, line in enumerate(self._table.lines) if HEADING.match(line.text)]

    @cached_property
    def _carrier_lines(self) -> dict[LineSignature, list[int]]:
        lines: dict[LineSignature, list[int]] = defaultdict(list)
        for number, line in enumerate(self._table.lines):
            if self._model.is_carrier(line):
                lines[line.signature].append(number)
        return lines

    @cached_property
    def _all_carriers(self) -> list[int]:
        return sorted(number for numbers in self._carrier_lines.values() for number in numbers)

    @cached_property
    def _cells(self) -> dict[str, list[tuple[int, int]]]:
        cells: dict[str, list[tuple[int, int]]] = {name: [] for name in self._model.carried_cells}
        for line in self._table.lines if cells else ():
            for start, end in cell_spans(line):
                form = form_of(self._table.text[start:end])
                for name, forms in self._model.carried_cells.items():
                    if form in forms:
                        cells[name].append((start, end))
        return cells

    def lines_above(self, line: int) -> list[int]:
        """Return the lines that are shown before a stretch that begins at this line."""
        nearest = (_last_before(numbers, line) for numbers in (self._heads, self._headings))
        carriers = [_last_before(numbers, line) for numbers in self._carrier_lines.values()]
        below = [number + 1 for number in carriers if number is not None and number + 1 < line]
        underlines = (number for number in below if _UNDERLINE.fullmatch(self._table.lines[number].text))
        return sorted({number for number in (*nearest, *carriers, *underlines) if number is not None})

    def carrier_above(self, line: int) -> str | None:
        """Return the text of the nearest carrier line above this one."""
        number = _last_before(self._all_carriers, line)
        return None if number is None else self._table.lines[number].text

    def cell_above(self, name: str, line: int) -> tuple[int, int] | None:
        """Return the place of the nearest cell of a carried field, on this line or above it."""
        places = self._cells[name]
        index = bisect_left(places, (self._table.lines[line].end, 0)) - 1
        return places[index] if index >= 0 else None


def _last_before(numbers: Sequence[int], line: int) -> int | None:
    index = bisect_left(numbers, line) - 1
    return numbers[index] if index >= 0 else None


class TextBuilder:
    """Builds the text of a question part by part, with the table of its offsets."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._parts: list[str] = []
        self._length = 0
        self.offsets: list[tuple[int, int, int]] = []

    def add_source(self, start: int, end: int) -> None:
        """Add a part of the source."""
        self.offsets.append((self._length, start, end - start))
        self.add(self._source[start:end])

    def add(self, text: str) -> None:
        """Add text that is not from the source."""
        self._parts.append(text)
        self._length += len(text)

    @property
    def text(self) -> str:
        """Everything that was added."""
        return "".join(self._parts)


def build_text(
    table: LineTable, context: Context, model: RecordModel, ranges: Iterable[LineRange], *, numbered: bool = False
) -> TextBuilder:
    """Return the text of a question about these lines: each stretch with what it depends on before it, once.

    With `numbered`, each line of a stretch has its number, from 1, and `|` before it.
    """
    builder = TextBuilder(table.text)
    shown: set[object] = set()
    last: int | None = None
    for first, stop in ranges:
        for number in context.lines_above(first):
            if number not in shown:
                shown.add(number)
                line = table.lines[number]
                builder.add_source(line.start, line.end)
                if not table.text[line.start : line.end].endswith(("\n", "\r")):
                    builder.add("\n")
        for name in model.carried_cells:
            place = context.cell_above(name, first)
            if place is not None and place not in shown and place[0] < table.lines[first].start:
                shown.add(place)
                builder.add_source(*place)
                builder.add("\n")
        if last is not None and last != first:
            builder.add(_LEFT_OUT)
        if numbered:
            _add_numbered(builder, table, range(first, stop))
        else:
            builder.add_source(table.lines[first].start, table.lines[stop - 1].end)
        shown.update(range(first, stop))
        last = stop
    return builder


def _add_numbered(builder: TextBuilder, table: LineTable, numbers: range) -> None:
    for number in numbers:
        line = table.lines[number]
        builder.add(f"{number + 1}| ")
        builder.add_source(line.start, line.end)
        if not table.text[line.start : line.end].endswith(("\n", "\r")):
            builder.add("\n")


def cut_lines(table: LineTable, lines: LineRange, size: int, anchors: Sequence[int]) -> Iterator[LineRange]:
    """Yield ranges of about `size` characters that begin where records begin, else after blank lines."""
    first, last = lines
    while first < last:
        limit = table.lines[first].start + size
        stop = max(first + 1, bisect_right(table.starts, limit, first + 1, last) - 1)
        if table.lines[last - 1].end <= limit:
            stop = last
        if stop < last:
            stop = _best_cut(table, first, stop, anchors)
        yield first, stop
        first = stop


def _best_cut(table: LineTable, first: int, stop: int, anchors: Sequence[int]) -> int:
    """Return a line in the second half of the range that begins a record, else one after a blank line."""
    middle = first + (stop - first) // 2
    index = bisect_right(anchors, stop) - 1
    if index >= 0 and anchors[index] > middle:
        return anchors[index]
    for number in range(stop, max(first + 1, middle), -1):
        if table.lines[number - 1].is_blank and not table.lines[number].is_blank:
            return number
    return stop


class Stretch(NamedTuple):
    """Lines to show again, and how many characters they have."""

    lines: LineRange
    size: int


def group_ranges(stretches: Iterable[Stretch], size: int) -> Iterator[tuple[LineRange, ...]]:
    """Yield groups of stretches of at most `size` characters together."""
    group: list[LineRange] = []
    length = 0
    for stretch in stretches:
        if group and length + stretch.size > size:
            yield tuple(group)
            group = []
            length = 0
        group.append(stretch.lines)
        length += stretch.size
    if group:
        yield tuple(group)

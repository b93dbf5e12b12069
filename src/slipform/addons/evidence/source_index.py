"""Index a source text for lookups: folded text, numbers, dates, times, words.

Also find the column head above a place in Markdown, CSV, tabs, HTML rows or columns separated by blanks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from slipform.addons.evidence.dates import FoundDate, FoundTime, find_dates, find_times
from slipform.addons.evidence.folding import FoldedText, SourceRange, all_words, fold, is_word_character, strip_marks
from slipform.addons.evidence.quantities import Number, find_numbers, with_ascii_digits
from slipform.ir.evidence import How

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
    """The index of its separator in `_SEPARATORS`, or -1 for blanks."""
    cells: tuple[tuple[int, int], ...]
    """The spans of its cells within the line."""


class TableHeads:
    """The column heads of a text's tables; a line is parsed when it or a later one is needed."""

    def __init__(self, text: str, line_starts: Sequence[int]) -> None:
        self._text = text
        self._starts = line_starts
        self._tops: dict[int, int] = {}
        self._rows: dict[int, _Row | None] = {}

    def head(self, line: int, start: int, end: int) -> str:
        """Return the column head above a place of a line; empty outside a table."""
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
        """Return the first line of the table that a line is in."""
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
    """Return the cells of a line; None for one that is not a row of three or more."""
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


WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_SENTENCE_END = re.compile(r"[.!?。](?<![A-Z].)(?:\s+(?=[^\W\d_a-z])|(?<=。))")
_LINE_LEAD = re.compile(r"[ \t|*#>-]*+")
_WEB_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s<>()]+")
_BEFORE_AT = re.compile(r"[^\s<>()\[\],;@]{1,64}$")
_AFTER_AT = re.compile(r"[^\s<>()\[\],;]{1,255}")


Spot: TypeAlias = tuple[int, int, int]
"""A place, the number of its line, and that of its sentence."""


class Occurrence(NamedTuple):
    """A possible place of a value, and the kind of match."""

    start: int
    end: int
    how: How


_BASE_WORK = 5_000_000
_WORK_PER_CHARACTER = 50
_WORK_PER_LEAF = 1_000
_MAX_WORK = 50_000_000
_SCANNED = 100
"""Characters of a text that are searched in one unit of work."""


class LookupBudget:
    """The budget of work for looking up one answer's values; a unit is about 0.1 µs, on any machine the same count."""

    __slots__ = ("left",)

    def __init__(self, text: int, leaves: int) -> None:
        self.left = min(_BASE_WORK + _WORK_PER_CHARACTER * text + _WORK_PER_LEAF * leaves, _MAX_WORK)

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is looked up."""
        return self.left <= 0

    def spend(self, units: int) -> None:
        """Count work."""
        self.left -= units


class SourceIndex:
    """A source text, indexed once for all lookups of values."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.folded = FoldedText(text)
        self._by_sound: dict[bool, dict[str, list[int]]] = {}
        self._content_starts: dict[int, int] = {}
        self.occurrences: dict[tuple[type, Any, bool], list[Occurrence]] = {}
        """The places of values that were looked up, by type, value and whether they are listed."""

    @cached_property
    def plain(self) -> str:
        """The text with ASCII digits; all positions stay the same."""
        return with_ascii_digits(self.text)

    @property
    def scan_work(self) -> int:
        """The units of work for searching the text for a string."""
        return len(self.text) // _SCANNED

    @cached_property
    def lowered(self) -> str:
        """The text in lower case."""
        return self.text.lower()

    @cached_property
    def line_starts(self) -> list[int]:
        """The positions at which lines begin."""
        return [0, *(match.end() for match in re.finditer(r"\n", self.text))]

    def line_end(self, at: int) -> int:
        """Return the end of the line that contains a place."""
        line = self.line_of(at)
        if line + 1 < len(self.line_starts):
            return self.line_starts[line + 1] - 1
        return len(self.text)

    def content_start(self, line: int) -> int:
        """Return the start of a line's content, after blanks and the signs of lists, headings and tables."""
        if line not in self._content_starts:
            self._content_starts[line] = _LINE_LEAD.match(self.text, self.line_starts[line]).end()  # type: ignore[union-attr]
        return self._content_starts[line]

    @cached_property
    def tables(self) -> TableHeads:
        """The column heads of the text's tables."""
        return TableHeads(self.text, self.line_starts)

    def line_of(self, at: int) -> int:
        """Return the number of the line that a place is on."""
        return bisect_right(self.line_starts, at) - 1

    @cached_property
    def _sentence_starts(self) -> list[int]:
        """The positions at which lines and sentences begin."""
        return sorted({*self.line_starts, *(match.end() for match in _SENTENCE_END.finditer(self.text))})

    def sentence_of(self, at: int) -> int:
        """Return the number of the sentence that contains a place; a line break ends a sentence."""
        return bisect_right(self._sentence_starts, at) - 1

    def spot(self, at: int) -> Spot:
        """Return a place with the numbers of its line and its sentence."""
        return at, self.line_of(at), self.sentence_of(at)

    @cached_property
    def _vocabulary(self) -> set[str]:
        return all_words(self.text)

    @cached_property
    def dates(self) -> list[FoundDate]:
        """The dates of the text."""
        return find_dates(self.plain, self._vocabulary)

    @cached_property
    def dates_by_day(self) -> dict[tuple[int, int], list[FoundDate]]:
        """The dates of the text by month and day."""
        by_day: dict[tuple[int, int], list[FoundDate]] = defaultdict(list)
        for date in self.dates:
            by_day[date.month, date.day].append(date)
        return by_day

    @cached_property
    def times(self) -> list[FoundTime]:
        """The times of day of the text."""
        return list(find_times(self.plain))

    @cached_property
    def times_by_minute(self) -> dict[tuple[int, int], list[FoundTime]]:
        """The times of day of the text by hour and minute, in order."""
        by_minute: dict[tuple[int, int], list[FoundTime]] = defaultdict(list)
        for time in self.times:
            by_minute[time.hour, time.minute].append(time)
        return by_minute

    @cached_property
    def _time_starts(self) -> list[int]:
        return [time.start for time in self.times]

    def is_in_time(self, place: Occurrence) -> bool:
        """Return whether a place is part of a time of day."""
        at = bisect_right(self._time_starts, place.start) - 1
        if at < 0:
            return False
        time = self.times[at]
        return place.end <= time.end and place.end - place.start < time.end - time.start

    @cached_property
    def numbers(self) -> dict[Decimal, list[Number]]:
        """The numbers of the text by value."""
        taken = _merge_overlaps([(date.start, date.end) for date in self.dates if date.year and date.day])
        numbers: dict[Decimal, list[Number]] = {}
        for number in find_numbers(self.text, self.plain, self._vocabulary, taken):
            same_value = numbers.setdefault(number.value, [])
            # Equal numbers share one value, because a text may have very many of them.
            same_value.append(number._replace(value=same_value[0].value) if same_value else number)
        return numbers

    @cached_property
    def words(self) -> list[tuple[int, int]]:
        """The spans of the words of the text, in order."""
        return [match.span() for match in WORD.finditer(self.text)]

    @cached_property
    def words_by_text(self) -> dict[str, list[int]]:
        """The numbers of the words with each folded spelling, without accents."""
        places: dict[str, list[int]] = defaultdict(list)
        for number, word in enumerate(WORD.findall(self.text)):
            places[word].append(number)
        by_text: dict[str, list[int]] = defaultdict(list)
        for word, numbers in places.items():
            by_text[folded_word(word)] += numbers
        return {word: sorted(numbers) for word, numbers in by_text.items()}

    def words_by_sound(
        self, sound: Callable[[str], str], script: re.Pattern[str], *, is_other: bool
    ) -> dict[str, list[int]]:
        """Return the numbers of the words by their sound, of one script or of all others."""
        if is_other not in self._by_sound:
            places: dict[str, list[int]] = defaultdict(list)
            for number in range(len(self.words)) if not is_other or script.search(self.text) else ():
                word = self.word(number)
                if bool(script.search(word)) == is_other:
                    places[sound(word)].append(number)
            self._by_sound[is_other] = places
        return self._by_sound[is_other]

    def word(self, number: int) -> str:
        """Return a word of the text, unchanged."""
        start, end = self.words[number]
        return self.text[start:end]

    @cached_property
    def addresses(self) -> list[tuple[int, int]]:
        """The e-mail and web addresses of the text."""
        spans = [match.span() for match in _WEB_ADDRESS.finditer(self.text)]
        for at in re.finditer("@", self.text):  # several patterns: a single one would try every word up to its end
            name = _BEFORE_AT.search(self.text, max(0, at.start() - 64), at.start())
            host = _AFTER_AT.match(self.text, at.end())
            if name and host:
                spans.append((name.start(), host.end()))
        return sorted(spans)

    def is_in_address(self, place: Occurrence) -> bool:
        """Return whether a place is part of an e-mail or web address, whose words do not state values."""
        at = bisect_right(self.addresses, (place.start, len(self.text))) - 1
        return at >= 0 and place.end < self.addresses[at][1]

    def whole_words(self, place: SourceRange) -> SourceRange:
        """Return a place extended to the whole words in which it begins and ends."""
        text = self.text
        start, end = place
        if is_word_character(text[start]):
            while start and is_word_character(text[start - 1]):
                start -= 1
        if is_word_character(text[end - 1]):
            while end < len(text) and is_word_character(text[end]):
                end += 1
        return SourceRange(start, end)


def folded_word(word: str) -> str:
    """Return a word in one case and without accents."""
    return strip_marks(fold(word))


def folded_words(value: str) -> list[str]:
    """Return the words of a text in one case and without accents."""
    return [folded_word(word) for word in WORD.findall(value)]


def _merge_overlaps(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places with overlapping ones merged."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined

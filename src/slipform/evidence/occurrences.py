"""Find every place of a source where one value of an answer may stand.

A `SourceIndex` reads the source once: folded text, numbers, dates, times, words. Looking a value up in it costs what
is found, not what is read.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

from slipform.evidence.dates import FoundDate, FoundTime, Moment, find_dates, find_times, moments_of
from slipform.evidence.folding import (
    FoldedText,
    SourceRange,
    fold,
    is_unspaced,
    is_word_character,
    strip_marks,
)
from slipform.evidence.quantities import Number, find_numbers, with_ascii_digits
from slipform.ir.evidence import How

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_NUMERIC = re.compile(r"[-+]?\d[\d.,' ]*")
_IN_WORDS = re.compile(r"[^@/\\\\0-9]+")
"""Values whose parts mean something by themselves: no address, no identifier, nothing with numbers."""
_SPELLED_OUT = ({"ae": "ä", "oe": "ö", "ue": "ü"}, {"aa": "å", "ae": "æ", "oe": "ø"})
"""Letters as those write them who do not have them, German and Danish ones."""
_ADDRESSES = re.compile(r"[^\s<>()\[\],;]+@[^\s<>()\[\],;]+|(?:https?://|www\.)[^\s<>()]+")
_NAME_AFTER = re.compile(r" (?:[A-Z]\. )?[^\W\d_a-z][^\W\d_]*[^\W\d_A-Z]")
_NAME_BEFORE = re.compile(r"(?<![.!?:] )(?<!\w)[^\W\d_a-z][^\W\d_]*[^\W\d_A-Z] $")
_SHORTEST_FUZZY = 9
"""Letters that a value needs before one of them may be wrong: shorter words that differ in one are other words."""
_SHORTEST_DIFFERENT = 7
"""Letters of a word in a name before one of them may be wrong."""
_MOST_EDITS = 0.12
_MOST_EDITS_IN_SENTENCES = 0.25
_MOST_SEEDS = 40


class Occurrence(NamedTuple):
    """A place where a value may stand, and how much it takes to see the value in it."""

    start: int
    end: int
    how: How


class SourceIndex:
    """A source text, read once for all that values are looked up by."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.folded = FoldedText(text)

    @cached_property
    def plain(self) -> str:
        """The text with ASCII digits, every character in its place."""
        return with_ascii_digits(self.text)

    @cached_property
    def line_starts(self) -> list[int]:
        """Where the lines begin."""
        return [0, *(match.end() for match in re.finditer(r"\n", self.text))]

    def line_of(self, at: int) -> int:
        """The number of the line that a place is on."""
        return bisect_right(self.line_starts, at) - 1

    @cached_property
    def dates(self) -> list[FoundDate]:
        """The dates of the text."""
        return find_dates(self.plain)

    @cached_property
    def dates_by_day(self) -> dict[tuple[int, int], list[FoundDate]]:
        """The dates of the text by month and day."""
        by_day: dict[tuple[int, int], list[FoundDate]] = defaultdict(list)
        for found in self.dates:
            by_day[found.month, found.day].append(found)
        return by_day

    @cached_property
    def times(self) -> list[FoundTime]:
        """The times of day of the text."""
        return list(find_times(self.plain))

    @cached_property
    def numbers(self) -> dict[Decimal, list[Number]]:
        """The numbers of the text by value."""
        taken = _joined([(found.start, found.end) for found in self.dates if found.year and found.day])
        numbers: dict[Decimal, list[Number]] = defaultdict(list)
        for number in find_numbers(self.text, self.plain, taken):
            numbers[number.value].append(number)
        return numbers

    @cached_property
    def words(self) -> list[SourceRange]:
        """The words of the text in order."""
        return [SourceRange(*match.span()) for match in _WORD.finditer(self.text)]

    @cached_property
    def words_by_text(self) -> dict[str, list[int]]:
        """Which words (by their number) have a folded spelling, accents left out."""
        places: dict[str, list[int]] = defaultdict(list)
        for number, word in enumerate(self.words):
            places[strip_marks(fold(self.text[word.start : word.end]))].append(number)
        return places

    @cached_property
    def addresses(self) -> list[tuple[int, int]]:
        """The e-mail and web addresses of the text."""
        return [match.span() for match in _ADDRESSES.finditer(self.text)]

    def find(self, value: Any, *, is_listed: bool = False) -> list[Occurrence]:
        """Every place where a value may stand, the better ways of standing there only.

        Values that a schema lists (`is_listed`) are words of the schema's: nothing similar will do for them.
        """
        if isinstance(value, bool):
            return _unique(self._literally("true" if value else "false"))
        if isinstance(value, int | float):
            return self._numbers(value)
        if isinstance(value, str) and value.strip():
            return self._texts(value.strip(), is_listed=is_listed)
        return []

    def _literally(self, word: str) -> Iterator[Occurrence]:
        for place in self.folded.find(word):
            is_exact = self.text[place.start : place.end] == word
            yield Occurrence(*place, "exact" if is_exact else "normalised")

    # -- numbers ----------------------------------------------------------------------------------

    def _numbers(self, value: float) -> list[Occurrence]:
        if isinstance(value, float) and not math.isfinite(value):
            return []
        spelled = (
            str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else repr(value)
        )
        found = self.numbers.get(Decimal(repr(value)).normalize(), [])
        chosen = [number for number in found if not number.is_weak] or found
        return _unique(
            Occurrence(
                number.start,
                number.end,
                "exact" if self.text[number.start : number.end] in (spelled, repr(value)) else "normalised",
            )
            for number in chosen
        )

    # -- texts ------------------------------------------------------------------------------------

    def _texts(self, value: str, *, is_listed: bool) -> list[Occurrence]:
        found = [Occurrence(*place, "exact") for place in self.folded.find_exactly(value)]
        moments = self._moments(value)
        found += moments
        if _NUMERIC.fullmatch(value):
            found += self._as_number(value)
        if not any(each.how != "partial" for each in moments):  # 2024-0317 is a number where 17.03.2024 stands, too
            found += self._folded(value)
        if found and any(each.how != "partial" for each in found):
            whole = [each for each in found if each.how != "partial"]
            return _unique([each for each in whole if not self._is_half_a_name(each)] or whole)
        if found or is_listed:
            return _unique(found)
        for search in (self._same_words, self._similar, self._parts):
            found = list(search(value))
            if found:
                return _unique(found)
        return []

    def _is_half_a_name(self, place: Occurrence) -> bool:
        """Whether a hyphen joins a place to another word, as in Smith-Jones."""
        text = self.text
        after, before = text[place.end : place.end + 2], text[max(0, place.start - 2) : place.start]
        return (after[:1] == "-" and after[1:].isalpha()) or (before[1:] == "-" and before[:1].isalpha())

    def _as_number(self, value: str) -> list[Occurrence]:
        readings = {number.value for number in find_numbers(value, value) if number.end - number.start == len(value)}
        found = (number for reading in readings for number in self.numbers.get(reading, ()) if not number.is_weak)
        return [Occurrence(number.start, number.end, "normalised") for number in found]

    def _folded(self, value: str) -> list[Occurrence]:
        needle = fold(value)
        if not needle:
            return []
        is_one_short_word = len(needle) < 6 and not any(each.isspace() or is_unspaced(each) for each in value)
        for spelling in _spellings(needle):
            places = (
                self.folded.find(spelling)
                if spelling is not None
                else self.folded.find(strip_marks(needle), marks=False)
            )
            kept = [
                Occurrence(*place, "normalised")
                for place in places
                if not (is_one_short_word and any(map(str.isspace, self.text[place.start : place.end])))
            ]
            if kept:
                return [place for place in kept if not self._is_in_address(place)] or kept
        return []

    def _is_in_address(self, place: Occurrence) -> bool:
        """Whether a place is a part of an e-mail or web address: what stands there is not said of anybody."""
        at = bisect_right(self.addresses, (place.start, len(self.text))) - 1
        return at >= 0 and place.end < self.addresses[at][1]

    def _moments(self, value: str) -> list[Occurrence]:
        return [found for moment in moments_of(value) for found in self._moment(moment)]

    def _moment(self, moment: Moment) -> Iterator[Occurrence]:
        if moment.day is None:
            for time in self._times_of(moment):
                yield Occurrence(time.start, time.end, "normalised")
            return
        year, month, day = moment.day
        for found in self.dates_by_day.get((month, day), ()):
            if found.year not in (year, 0):
                continue
            if moment.time is None or not found.year:
                yield Occurrence(found.start, found.end, "normalised" if found.year else "partial")
                continue
            near = [
                time
                for time in self._times_of(moment)
                if 0 <= time.start - found.end <= 12 or 0 <= found.start - time.end <= 12
            ]
            if near:
                yield Occurrence(min(found.start, near[0].start), max(found.end, near[0].end), "normalised")
            else:
                yield Occurrence(found.start, found.end, "partial")

    def _times_of(self, moment: Moment) -> Iterator[FoundTime]:
        if moment.time is not None:
            hour, minute, second = moment.time
            for time in self.times:
                if (time.hour, time.minute) == (hour, minute) and time.second in (second, 0):
                    yield time

    # -- what only resembles ----------------------------------------------------------------------

    def _same_words(self, value: str) -> Iterator[Occurrence]:
        """The words of a name in another order, or with an initial between them."""
        words = _folded_words(value)
        if not 2 <= len(words) <= 5 or any(word.isdigit() for word in words):
            return
        index = self.words_by_text
        rarest = min(words, key=lambda word: len(index.get(word, ())))
        for seed in index.get(rarest, [])[:_MOST_SEEDS]:
            window = range(max(0, seed - len(words) - 1), min(len(self.words), seed + len(words) + 2))
            spelled = {number: strip_marks(fold(self._word(number))) for number in window}
            chosen = [
                min((n for n in window if spelled[n] == word), key=lambda n: abs(n - seed), default=None)
                for word in words
            ]
            numbers = [number for number in chosen if number is not None]
            if len(set(numbers)) < len(words) or max(numbers) - min(numbers) >= len(words) + 1:
                continue
            start, end = self.words[min(numbers)].start, self.words[max(numbers)].end
            between = [number for number in range(min(numbers), max(numbers) + 1) if number not in numbers]
            if any(len(self._word(number)) > 2 for number in between) or "\n\n" in self.text[start:end]:
                continue
            yield Occurrence(start, end, "fuzzy" if between else "normalised")

    def _word(self, number: int) -> str:
        word = self.words[number]
        return self.text[word.start : word.end]

    def _similar(self, value: str) -> Iterator[Occurrence]:
        """Places that differ from a value in a few letters; numbers inside have to be the same."""
        needle = strip_marks(fold(value))
        words = _folded_words(value)
        is_sentence = len(words) >= 5
        if (
            len(needle) < _SHORTEST_FUZZY
            or re.search(r"[@/\\]", value)
            or (not is_sentence and re.search(r"\d", value))
        ):
            return
        most = int(len(needle) * (_MOST_EDITS_IN_SENTENCES if is_sentence else _MOST_EDITS))
        haystack, best = self.folded.unmarked, most + 1
        found: list[tuple[int, Occurrence]] = []
        for low, high in self._windows(needle, most):
            for edits, start, end in best_matches(needle, haystack[low:high], min(best, most)):
                found_at = self.folded.place_of(low + start, low + end)
                place = self._whole_words(found_at)
                edits += (found_at.start - place.start) + (place.end - found_at.end)
                spelled = self.text[place.start : place.end]
                if edits <= most and _same_numbers(value, spelled) and (is_sentence or _may_be_typo(words, spelled)):
                    best = min(best, edits)
                    found.append((edits, Occurrence(*place, "fuzzy")))
                    break
        yield from (occurrence for edits, occurrence in found if edits == best)

    def _whole_words(self, place: SourceRange) -> SourceRange:
        """A place with the rest of the words that it begins and ends in."""
        text, (start, end) = self.text, place
        if is_word_character(text[start]):
            while start and is_word_character(text[start - 1]):
                start -= 1
        if is_word_character(text[end - 1]):
            while end < len(text) and is_word_character(text[end]):
                end += 1
        return SourceRange(start, end)

    def _windows(self, needle: str, most: int) -> list[tuple[int, int]]:
        """Stretches of the folded source that share a rare piece with the needle."""
        haystack = self.folded.unmarked
        size = max(4, min(8, len(needle) // (most + 1)))
        seeds: set[int] = set()
        for offset in range(0, len(needle) - size + 1, size):
            piece, at, count = needle[offset : offset + size], -1, 0
            places = []
            while (at := haystack.find(piece, at + 1)) >= 0 and count <= _MOST_SEEDS:
                places.append(max(0, at - offset - most))
                count += 1
            if count <= _MOST_SEEDS:
                seeds.update(places)
        windows: list[tuple[int, int]] = []
        for low in sorted(seeds):
            if not windows or low > windows[-1][0] + most:
                windows.append((low, low + len(needle) + 3 * most + 1))
            if len(windows) >= 2 * _MOST_SEEDS:
                break
        return windows

    def _parts(self, value: str) -> Iterator[Occurrence]:
        """The longest run of a value's words that stands in the source, if that is at least half of the value."""
        words = [match.span() for match in _WORD.finditer(value)]
        total = sum(end - start for start, end in words)
        if not 2 <= len(words) <= 12 or not _IN_WORDS.fullmatch(value) or moments_of(value):
            return
        for count in range(len(words) - 1, 0, -1):
            for first in range(len(words) - count + 1):
                run = words[first : first + count]
                if sum(end - start for start, end in run) * 2 < total or (count == 1 and run[0][1] - run[0][0] < 5):
                    continue
                places = self.folded.find(fold(value[run[0][0] : run[-1][1]]))
                found = [
                    Occurrence(*place, "partial")
                    for place in places
                    if not self._goes_on_otherwise(place, after=first + count < len(words), before=first > 0)
                ]
                found = [place for place in found if not self._is_in_address(place)]
                if found:
                    yield from found
                    return

    def _goes_on_otherwise(self, place: SourceRange, *, after: bool, before: bool) -> bool:
        """Whether another name stands where the rest of the value should: Anna Nowak is not Anna Kowalska."""
        follows = after and _NAME_AFTER.match(self.text, place.end)
        return bool(follows or (before and _NAME_BEFORE.search(self.text[max(0, place.start - 40) : place.start])))


def _spellings(needle: str) -> Iterator[str | None]:
    """A folded value as it is, with its umlauts drawn together or spelled out, and (None) without accents."""
    spellings = [needle]
    for table in _SPELLED_OUT:
        drawn = spelled = needle
        for plain, letter in table.items():
            drawn, spelled = drawn.replace(plain, letter), spelled.replace(letter, plain)
        spellings += [drawn, spelled]
    yield from dict.fromkeys(spellings)
    yield None


def _folded_words(value: str) -> list[str]:
    return [strip_marks(fold(word)) for word in _WORD.findall(value)]


def _may_be_typo(words: list[str], found: str) -> bool:
    """Whether words that differ are long, or have the same letters: Meyer is not a misspelled Meier."""
    others = _folded_words(found)
    if len(others) != len(words):
        return True
    differing = [(one, other) for one, other in zip(words, others, strict=True) if one != other]
    return all(
        min(len(one), len(other)) >= _SHORTEST_DIFFERENT or sorted(one) == sorted(other) for one, other in differing
    )


def _same_numbers(value: str, found: str) -> bool:
    return sorted(re.findall(r"(?<!\w)\d+(?!\w)", value)) == sorted(re.findall(r"(?<!\w)\d+(?!\w)", found))


def _joined(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places that overlap as one."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


_RANK = {"exact": 0, "normalised": 1, "fuzzy": 2, "partial": 3}


def _unique(found: Iterator[Occurrence] | list[Occurrence]) -> list[Occurrence]:
    """Occurrences in order; of those that overlap the one seen best, then the longest."""
    kept: list[Occurrence] = []
    for each in sorted(found, key=lambda one: (one.start, _RANK[one.how], -one.end)):
        if kept and each.start < kept[-1].end:
            last = kept[-1]
            if (_RANK[each.how], last.end - last.start) < (_RANK[last.how], each.end - each.start):
                kept[-1] = each
        else:
            kept.append(each)
    return kept


def best_matches(needle: str, haystack: str, most: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a haystack that differ from a needle in the fewest characters: edits, start, end.

    Myers' bit-parallel search: one step a character of the haystack, whatever the needle's length.

    >>> list(best_matches("copenhagen", "tocopenhagntoday", 2))
    [(1, 2, 11)]
    """
    edits, ends = _best_ends(needle, haystack, most)
    for end in ends:
        backwards = haystack[max(0, end - len(needle) - edits) : end][::-1]
        _, sizes = _best_ends(needle[::-1], backwards, edits, is_anchored=True)
        yield from ((edits, end - size, end) for size in sizes)


def _best_ends(needle: str, haystack: str, most: int, *, is_anchored: bool = False) -> tuple[int, list[int]]:
    """The fewest edits and where such matches end; an anchored match begins at the haystack's beginning."""
    masks: dict[str, int] = defaultdict(int)
    for at, character in enumerate(needle):
        masks[character] |= 1 << at
    size = len(needle)
    full, last = (1 << size) - 1, 1 << (size - 1)
    up, down, edits = full, 0, size
    best, ends = most, list[int]()
    for at, character in enumerate(haystack, 1):
        equal = masks.get(character, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        plus, minus = (down | ~(diagonal | up)) & full, up & diagonal
        if plus & last:
            edits += 1
        elif minus & last:
            edits -= 1
        plus, minus = (plus << 1 | is_anchored) & full, (minus << 1) & full
        up, down = (minus | ~(diagonal | plus)) & full, plus & diagonal
        if edits < best or (edits == best and not ends):
            best, ends = edits, [at]
        elif edits == best:
            ends.append(at)
    return best, ends

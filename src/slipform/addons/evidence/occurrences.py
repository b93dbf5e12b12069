"""Find every possible place of a value in a source; the cost grows with the matches, not with the source."""

from __future__ import annotations

import html
import math
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from slipform.addons.evidence.dates import FoundDate, FoundTime, Moment, moments_of
from slipform.addons.evidence.differences import has_negating_prefix, same_negations
from slipform.addons.evidence.folding import SourceRange, all_words, fold, is_unspaced, strip_marks
from slipform.addons.evidence.quantities import CURRENCIES, PERCENT, Number, find_numbers
from slipform.addons.evidence.resemblance import is_of_two_names, parts, same_words, shortened, similar
from slipform.addons.evidence.source_index import LookupBudget, Occurrence, SourceIndex
from slipform.addons.evidence.transliteration import transliterated

_NUMERIC = re.compile(r"[-+]?\d[\d.,' ]*")
_EXPANSIONS = ({"ae": "ä", "oe": "ö", "ue": "ü"}, {"aa": "å", "ae": "æ", "oe": "ø"})
"""Spellings of letters on keyboards without them, in German and in Danish."""
_GROUPED = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{3})+(?![\d.])")
_AND = ("and", "und", "et", "y", "e", "og", "och", "en", "и")
_WEB_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?([\w-]+(?:\.[\w-]+)+(?:/\S*?[^\s/])?)/?", re.IGNORECASE)
_COMPARED = re.compile(r"[<>≤≥≠]")
_DASH_AT_END = re.compile(r"\w[-−–]$")
_DASH_AFTER = re.compile(r"-(?!\w)")
_DECIMALS_AT_END = re.compile(r"\d[.,]\d{1,2}$")
_DECIMALS = re.compile(r"[.,]\d{1,2}(?!\d)")
_CURRENCIES = CURRENCIES - {"no", "nr"}
_WORD_OR_SIGN = re.compile(r"[^\W\d_]+|[^\w\s]")
_CURRENCY_BEFORE = re.compile(r"(\S|&\w{2,8};)\s?$")


class Lookup:
    """Finds the places of values in a source; equal values are looked up once."""

    def __init__(self, source: SourceIndex, budget: LookupBudget) -> None:
        self._source = source
        self._budget = budget

    def find(self, value: Any, *, is_listed: bool) -> list[Occurrence] | None:
        """Return every possible place of a value, the best kinds of match only; None when the budget is spent.

        Values that a schema lists (`is_listed`) are the schema's words: similar text does not match.
        """
        if not isinstance(value, str | int | float):
            return []
        key = (type(value), value, is_listed)
        places = self._source.occurrences.get(key)
        if places is None:
            places = self._search(value, is_listed=is_listed)
            if places is None:
                return None
            self._source.occurrences[key] = places
        return places

    def _search(self, value: Any, *, is_listed: bool) -> list[Occurrence] | None:
        """Return the places of a scalar; None when the budget of work is spent."""
        source = self._source
        budget = self._budget
        if budget.is_spent:
            return None
        budget.spend(_LOOKUP_WORK)
        if isinstance(value, bool):
            places = _unique(_literal_places(source, "true" if value else "false"))
        elif isinstance(value, int | float):
            places = _numbers(source, value)
        else:
            text = value.strip()
            occurrences = _texts(source, text, is_listed=is_listed, budget=budget) if text else []
            if occurrences is None:
                return None
            places = occurrences
        budget.spend(_PLACE_WORK * len(places))
        return places


_LOOKUP_WORK = 200
_PLACE_WORK = 20


def _literal_places(source: SourceIndex, word: str) -> Iterator[Occurrence]:
    for place in source.folded.find(word):
        is_exact = source.text[place.start : place.end] == word
        yield Occurrence(*place, "exact" if is_exact else "normalised")


def _numbers(source: SourceIndex, value: float) -> list[Occurrence]:
    """Return the places of a number, in any notation."""
    numbers = _readings(source, value)
    chosen = [number for number in numbers if not number.is_weak] or numbers
    if not chosen:
        return []
    number_text = repr(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        whole_digits = str(int(value))
    else:
        whole_digits = number_text
    return _unique(
        Occurrence(
            number.start,
            number.end,
            "exact" if source.text[number.start : number.end] in (whole_digits, number_text) else "normalised",
        )
        for number in chosen
    )


def _readings(source: SourceIndex, value: float) -> Sequence[Number]:
    """Return the places that may be read as a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return ()
    try:
        return source.numbers.get(Decimal(repr(value)).normalize(), ())
    except ValueError:  # an integer with more digits than Python formats
        return ()


def percentages(source: SourceIndex, value: float) -> Iterator[Occurrence]:
    """Yield the places where a number is that of a percentage, whatever other places it has."""
    for number in _readings(source, value):
        if PERCENT.match(source.plain, number.end):
            yield Occurrence(number.start, number.end, "normalised")


def _texts(source: SourceIndex, value: str, *, is_listed: bool, budget: LookupBudget) -> list[Occurrence] | None:
    """Return the places of a text; None when the budget is spent before all forms were tried."""
    occurrences = [
        Occurrence(*place, "exact")
        for place in source.folded.find_exactly(value)
        if not (_DASH_AT_END.search(value) and source.text[place.end : place.end + 1].isalnum())
    ]
    moments = _moments(source, value)
    occurrences += moments
    if _NUMERIC.fullmatch(value):
        occurrences += _as_number(source, value)
    if not any(each.how != "partial" for each in moments):  # 2024-0317 is a number in a text with 17.03.2024, too
        occurrences += _folded(source, value)
    budget.spend(8 * source.scan_work + 10 * len(value) + _PLACE_WORK * len(occurrences))
    whole = [each for each in occurrences if each.how != "partial"]
    if whole:
        return _unique(_preferred(source, value, whole))
    if occurrences or is_listed or _COMPARED.match(value):
        return _unique(occurrences)
    return _searched(source, value, budget)


def _searched(source: SourceIndex, value: str, budget: LookupBudget) -> list[Occurrence] | None:
    """Return the places that the first successful search finds; None when the budget is spent before."""
    for search in (_other_spellings, same_words, transliterated, shortened, similar, parts):
        if budget.is_spent:
            return None
        occurrences = list(search(source, value, budget))
        if occurrences:
            return _unique(occurrences)
    return None if budget.is_spent else []


def _is_part_of_longer(source: SourceIndex, place: Occurrence) -> bool:
    """Return whether a place is part of something else: non-refundable, or two names in a list."""
    if has_negating_prefix(source, place.start):
        return True
    return is_of_two_names(source, SourceRange(place.start, place.end), is_literal=True)


def _is_half_a_name(source: SourceIndex, place: Occurrence) -> bool:
    """Return whether a hyphen joins a place to another word, as in Smith-Jones."""
    text = source.text
    after = text[place.end : place.end + 2]
    before = text[max(0, place.start - 2) : place.start]
    return (after[:1] == "-" and after[1:].isalpha()) or (before[1:] == "-" and before[:1].isalpha())


def _as_number(source: SourceIndex, value: str) -> list[Occurrence]:
    """Return the places of the number that a text expresses; one with decimals only matches amounts."""
    readings = {
        number.value
        for number in find_numbers(value, value, all_words(value))
        if number.end - number.start == len(value)
    }
    numbers = (number for reading in readings for number in source.numbers.get(reading, ()) if not number.is_weak)
    places = [Occurrence(number.start, number.end, "normalised") for number in numbers]
    if _DECIMALS_AT_END.search(value):  # 7.00 is an amount, and not any 7
        places = [place for place in places if _is_amount(source, place)]
    return places


def _is_amount(source: SourceIndex, place: Occurrence) -> bool:
    """Return whether a number has decimals, or a currency beside it."""
    if _DECIMALS.search(source.plain, place.start, place.end):
        return True
    before = source.text[max(0, place.start - 8) : place.start]
    after = source.text[place.end : place.end + 8]
    neighbours = [*_WORD_OR_SIGN.findall(before)[-1:], *_WORD_OR_SIGN.findall(after)[:1]]
    return any(unicodedata.category(each[0]) == "Sc" or each.lower() in _CURRENCIES for each in neighbours)


def _preferred(source: SourceIndex, value: str, occurrences: list[Occurrence]) -> list[Occurrence]:
    """Return the occurrences with their currencies, without those that belong to a longer value or name."""
    whole = [_with_currency(source, value, each) for each in occurrences]
    whole = [each for each in whole if not _is_part_of_longer(source, each)]
    return [each for each in whole if not _is_half_a_name(source, each)] or whole


def _folded(source: SourceIndex, value: str) -> list[Occurrence]:
    """Return the places of a text by its letters and digits, in the first spelling that occurs."""
    needle = fold(value)
    if not needle or (len(needle) == 1 and needle.isalpha() and len(unicodedata.normalize("NFC", value)) > 1):
        return []
    is_one_short_word = len(needle) < 6 and not any(each.isspace() or is_unspaced(each) for each in value)
    for places in _places_by_spelling(source, needle):
        occurrences = []
        for place in places:
            is_same = _has_same_meaning(source, value, place, in_one_word=is_one_short_word)
            if is_same and (end := _end_with_sign(source, value, place)):
                occurrences.append(Occurrence(place.start, end, "normalised"))
        if occurrences:
            return [place for place in occurrences if not source.is_in_address(place)] or occurrences
    return []


def _places_by_spelling(source: SourceIndex, needle: str) -> Iterator[Iterator[SourceRange]]:
    """Yield the places of each spelling of a folded value, and those without accents last."""
    for spelling in _spellings(needle):
        yield source.folded.find(spelling)
    yield source.folded.find(strip_marks(needle), with_diacritics=False)


def _has_same_meaning(source: SourceIndex, value: str, place: SourceRange, *, in_one_word: bool) -> bool:
    source_text = source.text[place.start : place.end]
    if in_one_word and any(map(str.isspace, source_text)):
        return False
    return source_text.lower() == value.lower() or same_negations(value, source_text)


def _end_with_sign(source: SourceIndex, value: str, place: SourceRange) -> int:
    """Return the end of a place, including the sign at the end of its value (40%, A-).

    0 if the place lacks the sign, or has another comparison sign before it.
    """
    if (compared := _COMPARED.match(value)) and compared[0] not in html.unescape(
        source.text[max(0, place.start - 6) : place.start]
    ):
        return 0
    if value.endswith("%"):
        percent = PERCENT.match(source.plain, place.end)
        return percent.end() if percent else 0
    if _DASH_AT_END.search(value):
        dash = _DASH_AFTER.match(source.plain, place.end)
        return dash.end() if dash else 0
    return place.end


def _with_currency(source: SourceIndex, value: str, place: Occurrence) -> Occurrence:
    """Return a place including the currency sign before it, if the value has the same."""
    if place.how == "exact" or unicodedata.category(value[0]) != "Sc":
        return place
    sign = _CURRENCY_BEFORE.search(source.text, max(0, place.start - 10), place.start)
    if sign and html.unescape(sign[1]) == value[0]:
        return place._replace(start=sign.start())
    return place


def _other_spellings(source: SourceIndex, value: str, budget: LookupBudget) -> Iterator[Occurrence]:
    """Yield places with "&" for "and", "and" for "&", or a web address without scheme and `www`."""
    budget.spend(10 * source.scan_work)
    if address := _WEB_ADDRESS.fullmatch(value):
        bare = re.escape(address[1])
        if address[1].lower() in source.lowered:
            whole = rf"(?<![\w.@/-])(?:https?://)?(?:www\.)?{bare}/?(?![\w/-]|\.\w)"
            for match in re.finditer(whole, source.text, re.IGNORECASE):
                yield Occurrence(*match.span(), "normalised")
        return
    if " & " in value:
        for word in _AND:
            places = source.folded.find(fold(value.replace("&", word)))
            yield from (Occurrence(*place, "normalised") for place in places)
    for word in _AND:
        if f" {word} " in value:
            for place in source.folded.find(fold(value.replace(f" {word} ", " "))):
                source_text = source.text[place.start : place.end]
                if source_text.count("&") > value.count("&") or source_text.count("+") > value.count("+"):
                    yield Occurrence(*place, "normalised")


def _moments(source: SourceIndex, value: str) -> list[Occurrence]:
    return [occurrence for moment in moments_of(value) for occurrence in _moment(source, moment)]


def _moment(source: SourceIndex, moment: Moment) -> Iterator[Occurrence]:
    """Yield the places of a date, a time, or both together; a date without the time is `partial`."""
    if moment.day is None:
        for time in _times_of(source, moment):
            yield Occurrence(time.start, time.end, "normalised")
        return
    year, month, day = moment.day
    times = list(_times_of(source, moment))
    for date in source.dates_by_day.get((month, day), ()):
        if date.year not in (year, 0):
            continue
        if moment.time is None or not date.year:
            yield Occurrence(date.start, date.end, "normalised" if date.year else "partial")
            continue
        neighbours = _time_beside(times, date)
        if neighbours is not None:
            yield Occurrence(min(date.start, neighbours.start), max(date.end, neighbours.end), "normalised")
        else:
            yield Occurrence(date.start, date.end, "partial")


def _time_beside(times: list[FoundTime], date: FoundDate) -> FoundTime | None:
    """Return the time directly before or after a date, if there is one."""
    after = bisect_left(times, date.end, key=lambda time: time.start)
    for number in range(bisect_left(times, date.start, key=lambda time: time.start) - 1, after + 1):
        if 0 <= number < len(times):
            time = times[number]
            if 0 <= time.start - date.end <= _BESIDE or 0 <= date.start - time.end <= _BESIDE:
                return time
    return None


_BESIDE = 12
"""Characters that may separate a date from its time."""


def _times_of(source: SourceIndex, moment: Moment) -> Iterator[FoundTime]:
    if moment.time is not None:
        hour, minute, second = moment.time
        for time in source.times_by_minute.get((hour, minute), ()):
            if time.second in (second, 0):
                yield time


def _spellings(needle: str) -> Iterator[str]:
    """Yield spellings of a folded value: unchanged, umlauts contracted or expanded, numbers ungrouped."""
    spellings = [needle]
    for table in _EXPANSIONS:
        contracted = expanded = needle
        for plain, letter in table.items():
            contracted = contracted.replace(plain, letter)
            expanded = expanded.replace(letter, plain)
        spellings += [contracted, expanded]
    spellings.append(_GROUPED.sub(lambda number: number[0].replace(".", ""), needle))
    yield from dict.fromkeys(spellings)


_RANK = {"exact": 0, "normalised": 1, "fuzzy": 2, "partial": 3}


def _unique(occurrences: Iterator[Occurrence] | list[Occurrence]) -> list[Occurrence]:
    """Return occurrences in order; of overlapping ones the best match, then the longest."""
    unique: list[Occurrence] = []
    for each in sorted(occurrences, key=lambda one: (one.start, _RANK[one.how], -one.end)):
        if unique and each.start < unique[-1].end:
            last = unique[-1]
            if (_RANK[each.how], last.end - last.start) < (_RANK[last.how], each.end - each.start):
                unique[-1] = each
        else:
            unique.append(each)
    return unique

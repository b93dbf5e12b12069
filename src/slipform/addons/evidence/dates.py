"""Find the dates and times of day in a text: `2024-03-05`, `March 5th, 2024`, `5 de marzo de 2024`, `2:30 pm`.

A notation with two readings (`03/04/2024`) keeps both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import date
from typing import NamedTuple

from slipform.addons.evidence.folding import VOWEL_SIGNS, all_words, word_table
from slipform.addons.evidence.number_words import HAN_DIGITS, han_value


class FoundDate(NamedTuple):
    """One reading of a date in a text; `day` is 0 if there are only month and year, `year` if it is missing."""

    year: int
    month: int
    day: int
    start: int
    end: int


class FoundTime(NamedTuple):
    """A time of day in a text."""

    hour: int
    minute: int
    second: int
    start: int
    end: int


_MONTHS = {name: int(number) for number, names in word_table("months").items() for name in names}
_MONTH = rf"[^\W\d_](?:[^\W\d_]|[{VOWEL_SIGNS}]){{2,13}}\.?"
"""Any word that may be the name of a month; only its surroundings are searched."""
_MOST_SPELLINGS = 200
"""The most spellings of months' names that are searched in one text."""
_REACH = 32
"""Characters of a date before and after the name of a month."""
_YEAR = r"(?:\d{4}|'?\d{2})(?!\d)"
_DAY = r"\d{1,2}(?:st|nd|rd|th|er|º|ª|e)?\.?(?!\d)"
_FROM_DAY = r"(?:(?P<d0>\d{1,2})\.?(?:\s?[-–]\s?|\s+(?:to|bis|and|au|al|a)\s+))?"
_OF = r"(?:\s+of|\s+de|\s+del)?"
# A pattern that begins with a digit, and only then looks back, is much faster than one that looks back first.
_ALONE = r"(?<![\d.,/-]\d)"
_NUMERIC = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<y>\d{_ALONE}\d{{3}})(?P<sep>[-/.])(?P<m>\d{{1,2}})(?P=sep)(?P<d>\d{{1,2}})(?!\d)",
        rf"(?P<a>\d{_ALONE}\d?)(?P<sep>[-/.]|\. |/ )(?P<b>\d{{1,2}})(?P=sep)(?P<y>\d{{4}}|\d{{2}})(?![\d-]|[.,/]\d)",
        rf"(?P<a>\d{_ALONE}\d?)(?P<sep>\.)(?P<b>\d{{1,2}})\.(?P<y>(?!))?(?!\d)",
        rf"(?P<m>\d{_ALONE}\d?)[/.](?P<y>\d{{4}})(?![\d/.-])",
        rf"(?P<y>\d{_ALONE}\d{{3}})-(?P<m>\d{{2}})(?![\d-])",
    )
)
_EAST_ASIAN = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<y>\d{4})\s?[年년]\s?(?P<m>\d{1,2})\s?[月월]\s?(?P<d>\d{1,2})\s?[日일号號]",
        r"(?P<y>\d{4})\s?[年년]\s?(?P<m>\d{1,2})\s?[月월](?!\s?\d)",
        rf"(?P<y>[{HAN_DIGITS}]{{4}})年(?P<m>[{HAN_DIGITS}]{{1,2}})月(?:(?P<d>[{HAN_DIGITS}]{{1,3}})[日号號])?",
    )
)
_TO_MONTH = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?<![\d.,/]){_FROM_DAY}(?P<d>{_DAY}){_OF}[\s-]{{1,3}}(?P<mon>{_MONTH})(?:,?{_OF}[\s-]{{1,3}}(?P<y>{_YEAR}))?",
        rf"(?<![\d.,/-])(?P<y>\d{{4}})\.?,?\s(?P<mon>{_MONTH})\s(?P<d>{_DAY})(?!\d)",
    )
)
_FROM_MONTH = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?<!\w)(?P<mon>{_MONTH})\s{{1,3}}(?:(?P<d0>\d{{1,2}})\s?[-–]\s?)?(?P<d>{_DAY})(?:,?\s{{1,3}}(?P<y>{_YEAR}))?(?![:\d])",
        rf"(?<!\w)(?P<mon>{_MONTH}),?{_OF}[\s-]{{1,3}}(?P<y>\d{{4}})(?!\d)",
    )
)
_DIGIT = re.compile(r"\d")
_TIME = re.compile(
    r"(?<![\d.,:])(?P<h>\d{1,2})(?:(?P<sep>[:.h])(?P<min>\d{2})(?::(?P<s>\d{2})(?:[.,]\d+)?)?)?(?!\d)"
    r"(?:\s?(?P<half>[ap])\.?\s?m\b\.?|\s?(?P<oclock>uhr|h|hrs|часов)\b)?",
    re.IGNORECASE,
)


_RANGE_START = re.compile(
    rf"(?P<d>\d{_ALONE}\d?)\.(?P<m>\d{{1,2}})\.?(?=(?:\s?[-–]\s?|\s+(?:bis|to|au|al|do|til)\s+)\d{{1,2}}\.\d{{1,2}}\.(?P<y>\d{{4}}))"
)
_VIETNAMESE = re.compile(r"(?P<d>\d{1,2}) tháng (?P<m>\d{1,2})(?:,| năm) (?P<y>\d{4})", re.IGNORECASE)


def find_dates(plain: str, words: Collection[str]) -> list[FoundDate]:
    """Return all dates of a text with ASCII digits; `words` are those of the text."""
    dates: list[FoundDate] = []
    for match in (*_RANGE_START.finditer(plain), *(_VIETNAMESE.finditer(plain) if not plain.isascii() else ())):
        year = int(match["y"])
        month = int(match["m"])
        day = int(match["d"])
        if _is_date(year, month, day):
            dates.append(FoundDate(year, month, day, match.start(), match.end()))
    for pattern in _NUMERIC if plain.isascii() else (*_NUMERIC, *_EAST_ASIAN):
        for match in pattern.finditer(plain):
            dates += _readings(match)
    for start, end in _months_in(plain, words):
        for pattern in _FROM_MONTH:
            if match := pattern.match(plain, start, end + _REACH):
                dates += _readings(match)
        if _DIGIT.search(plain, max(0, start - 12), start):
            for pattern in _TO_MONTH:
                for match in pattern.finditer(plain, max(0, start - _REACH), end + _REACH):
                    dates += _readings(match)
    return list(dict.fromkeys(dates))


def _months_in(plain: str, words: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of months' names, which may be parts of words."""
    names = sorted((word for word in words if _month(word)), key=lambda name: (-len(name), name))[:_MOST_SPELLINGS]
    if names:
        for match in re.finditer("|".join(map(re.escape, names)), plain):
            yield match.span()


def _month(name: str) -> int:
    """Return the number of a month; 0 for any other word."""
    name = name.rstrip(".").lower()
    return _MONTHS.get(name) or _MONTHS.get(name.removeprefix("\N{HEBREW LETTER BET}"), 0)


def _readings(match: re.Match[str]) -> Iterator[FoundDate]:
    """Yield the possible dates of a match; `4/5` has two."""
    groups = match.groupdict()
    years = _years(groups["y"])
    start, end = match.span()
    if "a" in groups:
        first = int(groups["a"])
        second = int(groups["b"])
        orders = [(second, first)] if groups["sep"].strip() == "." else [(second, first), (first, second)]
        pairs = list(dict.fromkeys(orders))
    else:
        name = groups.get("mon")
        month = _month(name) if name else _number_in(groups["m"])
        day = _number_in(groups["d"]) if groups.get("d") else 0
        pairs = [(month, day)]
    for year in years:
        for month, day in pairs:
            if _is_date(year, month, day):
                day_start = match.start("d") if groups.get("d0") and match.start("d") < match.start("mon") else start
                yield FoundDate(year, month, day, day_start, end)
        if groups.get("d0"):
            month = pairs[0][0]
            day = int(groups["d0"])
            if _is_date(year, month, day):
                yield FoundDate(year, month, day, match.start("d0"), match.end("d0"))


def _number_in(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else han_value(text) or 0


def _years(text: str | None) -> list[int]:
    if text is None:
        return [0]
    digits = text.lstrip("'")
    if not digits.isdecimal():
        return [han_value(digits) or 0]
    if len(digits) == 4:
        return [int(digits)]
    return [2000 + int(digits), 1900 + int(digits)]


def _is_date(year: int, month: int, day: int) -> bool:
    if not 1 <= month <= 12:
        return False
    try:
        date(year or 2000, month, day or 1)
    except ValueError:
        return False
    return True


def find_times(plain: str) -> Iterator[FoundTime]:
    """Yield all times of day of a text with ASCII digits."""
    for match in _TIME.finditer(plain):
        hour = int(match["h"])
        minute = int(match["min"] or 0)
        second = int(match["s"] or 0)
        half = match["half"]
        sep = match["sep"]
        if not half and not match["oclock"] and (sep not in (":", "h") or match["min"] is None):
            continue
        if half:
            hour = hour % 12 + (12 if half.lower() == "p" else 0)
        if hour < 24 and minute < 60 and second < 60:
            yield FoundTime(hour, minute, second, match.start(), match.end())


class Moment(NamedTuple):
    """The date, the time or both of a value; None for a part that it does not have."""

    day: tuple[int, int, int] | None
    time: tuple[int, int, int] | None


_MOMENT = re.compile(
    r"(?:(\d{4})-(\d{2})(?:-(\d{2}))?)?(?:(?:[T ]|^)(\d{2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
)


def _iso_moments(match: re.Match[str]) -> list[Moment]:
    """Return the moment of an ISO 8601 date, time or both; none for a date that does not exist."""
    year, month, day, hour, minute, second = match.groups()
    when = (int(year), int(month), int(day or 0)) if year else None
    time = (int(hour), int(minute), int(second or 0)) if hour else None
    if when is None or _is_date(*when):
        return [Moment(when, time)]
    return []


def moments_of(value: str) -> list[Moment]:
    """Return the dates and times that a text value means, in ISO 8601 or a common notation."""
    match = _MOMENT.fullmatch(value)
    if match and value:
        return _iso_moments(match)
    if len(value) > 40 or not any(character.isdigit() for character in value):
        return []
    whole = [
        reading
        for reading in find_dates(value, all_words(value))
        if reading.end - reading.start >= len(value.strip()) and reading.year
    ]
    times = [time for time in find_times(value) if time.end - time.start >= len(value.strip())]
    return [Moment((reading.year, reading.month, reading.day), None) for reading in whole] + [
        Moment(None, (time.hour, time.minute, time.second)) for time in times
    ]

"""Find the numbers in a text, in any notation: `1.234,50`, `(1,200)`, `2.3M`, `15%`, `½`, "forty-two".

A notation with two readings (`1.234`) keeps both. A reading is weak where the text probably has another meaning:
the day of a date, a part of a longer number, a percentage for the bare number.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from slipform.addons.evidence.folding import is_unspaced, replaced, word_table
from slipform.addons.evidence.number_words import find_number_words


class Number(NamedTuple):
    """One reading of a number in a text."""

    value: Decimal
    start: int
    end: int
    is_weak: bool


_SIGNS = dict(zip("−–﹣－＋·٫．，٬’％／：\u00a0\u202f\u2009", "----+...,,'%/:   ", strict=True))


def with_ascii_digits(text: str) -> str:
    """Return the text with digits and number signs of all scripts in ASCII; all positions stay the same."""
    if text.isascii():
        return text
    others = {each for each in set(text) if each > "\x7f"}
    digits = {each: str(value) for each in others if (value := unicodedata.decimal(each, None)) is not None}
    return replaced(text, digits | {each: plain for each, plain in _SIGNS.items() if each in others})


_FIGURE_IN_BRACKETS = re.compile(r"[^\S\n]?\((\d{1,99})\)")
_RUN = re.compile(r"[.\d](?:(?<=\d)|(?<![\w.,]\.)(?=\d))\d*(?:[.,']\d+|[ ]\d{3}(?!\d))*(?:[eE][-+]?\d{1,3}(?![\w.]))?")
CURRENCIES = frozenset(word_table("currencies")["codes"])
_SCALES = {word: int(power) for power, words in word_table("scales").items() for word in words}
_SCALE = re.compile(
    r"[ -]?(" + "|".join(sorted(map(re.escape, _SCALES), key=len, reverse=True)) + r")(?![a-z])", re.IGNORECASE
)
_NAME_BEFORE = re.compile(r"[^\W\d_]-$")
_ORDINAL = re.compile(r"(?:st|nd|rd|th|er|ème|e|º|ª)(?!\w)", re.IGNORECASE)
_AFTER = re.compile(r"[^\W\d_]{1,4}(?!\w)")
_FRACTION_SIGN = re.compile(r"[¼-¾⅐-⅞]")
_WHOLE_BEFORE = re.compile(r"(?<![\d.,])(\d{1,9})[ ]?$")
_FRACTION = re.compile(r"(?:(\d{1,3}) )?(\d(?<![\d/.,]\d)\d?)[/⁄](\d{1,2})(?![\d/])")
_MINUS_AFTER = re.compile(r"(?<=[.,]\d\d)-(?![\w-])")
"""The accounting notation of a negative amount: 1.250,40-."""
_PLAIN_BEFORE = frozenset(" \n\t|:=")
_PLAIN_AFTER = frozenset(["", "\n", "\t", "|", ";"])
_POWER = re.compile(r"\s?[×x*.]\s?10(?:\^\(?(?P<figure>[-+]?\d{1,3})\)?|(?P<raised>[⁻⁺]?[⁰¹²³⁴-⁹]{1,3}))")
_RAISED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
PERCENT = re.compile(r" ?(?:%|per ?cent\b|Prozent\b|procent\b|por ciento\b|pour cent\b|per cento\b|por cento\b)")


def find_numbers(
    text: str, plain: str, words: Collection[str], taken: Sequence[tuple[int, int]] = ()
) -> Iterator[Number]:
    """Yield all numbers of a text, given also with ASCII digits; those inside the places `taken` (dates) are weak.

    `words` are those of the text, as `all_words` has them.
    """
    worded_numbers = [
        (*word_number, _figure_after(plain, word_number[0], word_number[2]))
        for word_number in find_number_words(text, words)
    ]
    inside = _Inside([*taken, *((start, both) for _, start, end, both in worded_numbers if both > end)])
    for run in _runs(text, plain):
        if run[0].isdecimal() and _stands_alone(plain, run.start(), run.end()):
            is_weak = inside.covers(run.start(), run.end())
            yield Number(Decimal(run[0]).normalize(), run.start(), run.end(), is_weak)
            continue
        if _is_in_word(text, plain, run.start(), run.end()):
            continue
        is_name = _is_after_name(plain, run.start())
        for number in _readings(plain, run.start(), run.end()):
            if not (is_name and number.start == run.start()):
                is_weak = number.is_weak or inside.covers(number.start, number.end)
                yield number if is_weak == number.is_weak else number._replace(is_weak=True)
    yield from _fractions(plain)
    for value, start, end, both in worded_numbers:
        yield Number(Decimal(value).normalize(), start, both, both == end)


def _runs(text: str, plain: str) -> Iterator[re.Match[str]]:
    """Digits with separators of numbers between them; those of an identifier (M8 120) are not joined."""
    for run in _RUN.finditer(plain):
        blank = run[0].find(" ")
        if blank >= 0 and (_is_after_name(plain, run.start()) or _goes_on_a_word(text, plain, run.start())):
            yield from _RUN.finditer(plain, run.start() + blank + 1, run.end())
        else:
            yield run


def _is_after_name(plain: str, start: int) -> bool:
    """Return whether a letter and a hyphen precede some digits: A-2, INV-7."""
    return _NAME_BEFORE.search(plain, max(0, start - 2), start) is not None


def _stands_alone(plain: str, start: int, end: int) -> bool:
    """Return whether digits stand alone, so that nothing around them changes their value: the fast path."""
    after = plain[end : end + 2]
    return plain[max(0, start - 1) : start] in _PLAIN_BEFORE and (
        after[:1] in _PLAIN_AFTER or after in (" |", ".\n", ". ")
    )


def _figure_after(plain: str, value: int, end: int) -> int:
    """Return the end of a number in words together with its figure in brackets: fourteen (14)."""
    figure = _FIGURE_IN_BRACKETS.match(plain, end)
    if figure and figure[1] == str(value):
        return figure.end()
    return end


class _Inside:
    """Return whether a place lies within one of some sorted places that do not overlap."""

    def __init__(self, places: Sequence[tuple[int, int]]) -> None:
        self._places = sorted(places)
        self._at = 0

    def covers(self, start: int, end: int) -> bool:
        places = self._places
        while self._at < len(places) and places[self._at][1] <= start:
            self._at += 1
        return self._at < len(places) and places[self._at][0] <= start and end <= places[self._at][1]


def _is_in_word(text: str, plain: str, start: int, end: int) -> bool:
    """Return whether digits are part of an identifier: `A7`, `9f2c1ab`; not `EUR5`, `5kg`, `25円`."""
    if _goes_on_a_word(text, plain, start):
        return True
    after = plain[end : end + 1]
    if not after or not (after.isalnum() or after == "_") or is_unspaced(text[end]):
        return False
    return not (_AFTER.match(plain, end) or _SCALE.match(plain, end))


def _goes_on_a_word(text: str, plain: str, start: int) -> bool:
    """Return whether digits belong to the preceding characters: `A7`, `1.2.3`, `x_5`; not `EUR5`."""
    if start and plain[start - 1].isalnum() and not is_unspaced(text[start - 1]):
        begin = start
        while begin and plain[begin - 1].isalpha():
            begin -= 1
        prefix = plain[begin:start]
        if (prefix != "x" and prefix.lower() not in CURRENCIES) or (begin and plain[begin - 1].isalnum()):
            return True
    if start > 1 and plain[start - 1] in "._" and plain[start - 2].isalnum():
        return plain[start - 1] == "_" or plain[start - 2].isdigit()
    return False


def _readings(plain: str, start: int, end: int) -> Iterator[Number]:
    """Yield the possible readings of a run of digits and separators: one number, or several side by side."""
    run = plain[start:end]
    values = _values_of(run)
    signed = _sign_before(plain, start)
    for value in values:
        yield from _with_surroundings(plain, value, start, end, signed)
    if not values or (not _is_amount(plain, run, start, end) and ("," in run or run.count(".") > 1 or " " in run)):
        yield from _parts(run, start, is_weak=bool(values))


def _is_amount(plain: str, run: str, start: int, end: int) -> bool:
    """Return whether a run has groups and decimals like an amount (1.234,50), and is not part of a CSV line."""
    beside = plain[max(0, start - 1) : start] + plain[end : end + 1]
    return "," in run and "." in run and "," not in beside


def _values_of(run: str) -> list[Decimal]:
    """Return the possible values of a run of digits and separators as a whole."""
    if "e" in run.lower():
        return _decimals(run.replace(",", ""))
    separators = [each for each in run if not each.isdigit()]
    kinds = list(dict.fromkeys(separators))
    if not kinds:
        return _decimals(run)
    values: list[Decimal] = []
    last = separators[-1]
    if last in ".," and separators.count(last) == 1:
        whole, decimals = run.rsplit(last, 1)
        if not kinds[:-1]:
            values += _decimals(f"{whole}.{decimals}")
        elif len(kinds) == 2 and _is_grouped(whole, kinds[0]):
            values += _decimals(f"{whole.replace(kinds[0], '')}.{decimals}")
    if len(kinds) == 1 and _is_grouped(run, last):
        values += _decimals(run.replace(last, ""))
    return values


def _is_grouped(run: str, separator: str) -> bool:
    """Return whether a separator is between groups of three digits, or of two and three as in India."""
    first, *groups = run.split(separator)
    if not groups or len(groups[-1]) != 3 or not 1 <= len(first) <= 3 or first.startswith("0"):
        return False
    middle = {len(group) for group in groups[:-1]}
    return middle <= {3} or (separator == "," and middle <= {2} and len(first) <= 2)


def _decimals(text: str) -> list[Decimal]:
    try:
        return [Decimal(text).normalize()]
    except InvalidOperation:
        return []


def _parts(run: str, start: int, *, is_weak: bool) -> Iterator[Number]:
    """Yield the numbers of a run that is not one number: fields of a CSV line, parts of a date or version."""
    for field in re.finditer(r"[^, ]+", run):
        values = _values_of(field[0]) if field[0] != run else []
        for value in values:
            yield Number(value, start + field.start(), start + field.end(), is_weak)
        if not values:
            for digits in re.finditer(r"\d+", field[0]):
                at = start + field.start()
                yield Number(Decimal(digits[0]).normalize(), at + digits.start(), at + digits.end(), True)


def _sign_before(plain: str, start: int) -> str:
    sign = plain[start - 1 : start]
    if sign in ("-", "+") and not (start > 1 and (plain[start - 2].isalnum() or plain[start - 2] in ")%")):
        return sign
    return ""


def _with_surroundings(plain: str, value: Decimal, start: int, end: int, sign: str) -> Iterator[Number]:
    """Yield a value with its sign, brackets, scale, ordinal suffix or per cent sign."""
    begin = start - len(sign)
    if sign == "-":
        yield Number(-value, begin, end, False)
        yield Number(value, start, end, True)  # "Discount: -5": placing decides by the key beside it
    elif _MINUS_AFTER.match(plain, end):
        yield Number(-value, start, end + 1, False)
        yield Number(value, start, end, True)
    elif plain[start - 1 : start] == "(" and plain[end : end + 1] == ")" and start:
        yield Number(-value, start - 1, end + 1, False)
        yield Number(value, start, end, False)
    else:
        value_start = begin if sign else start
        ordinal = _ORDINAL.match(plain, end)
        is_share = plain[end : end + 2].strip()[:1] == "%"
        yield Number(value, value_start, ordinal.end() if ordinal else end, is_share)
    signed = -value if sign == "-" else value
    if scale := _SCALE.match(plain, end):
        yield Number((signed * 10 ** _SCALES[scale[1].lower()]).normalize(), begin, scale.end(), False)
    if power := _POWER.match(plain, end):
        exponent = int(power["figure"] or power["raised"].translate(_RAISED))
        yield Number(signed.scaleb(exponent).normalize(), begin, power.end(), False)
    if percent := PERCENT.match(plain, end):
        yield Number((signed / 100).normalize(), begin, percent.end(), False)


def _fractions(plain: str) -> Iterator[Number]:
    """Yield fractions: ½, 3/4, and with an integer before them."""
    if not plain.isascii():
        for match in _FRACTION_SIGN.finditer(plain):
            before = _WHOLE_BEFORE.search(plain, max(0, match.start() - 10), match.start())
            value = Decimal(str(round(unicodedata.numeric(match[0]), 6))) + (Decimal(before[1]) if before else 0)
            yield Number(value.normalize(), before.start() if before else match.start(), match.end(), False)
    if "/" in plain or "⁄" in plain:
        for match in _FRACTION.finditer(plain):
            whole = match[1]
            above = int(match[2])
            below = int(match[3])
            if below:
                yield Number((Decimal(above) / below).normalize(), match.start(2), match.end(), True)
            if whole and 0 < above < below:
                yield Number((int(whole) + Decimal(above) / below).normalize(), match.start(), match.end(), False)

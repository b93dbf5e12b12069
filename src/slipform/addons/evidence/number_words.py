"""Find numbers that a text spells in words: "forty-two", "fünfundzwanzig", "soixante-douze", "三十八".

Numbers are English ones of any size, those of other languages below a hundred (and the round ones of `words.toml`),
and Han ones up to hundreds of millions. Ambiguous words ("on", "once", "en") only count inside longer numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cache
from itertools import product

from slipform.addons.evidence.folding import each_word, strip_marks, word_table

_BELOW_TWENTY = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ENGLISH = {word: value for value, word in enumerate(_BELOW_TWENTY.split())} | {
    word: value * 10 for value, word in enumerate(_TENS.split(), 2)
}
_ENGLISH_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_WORD = re.compile(r"[^\W\d_]+")
_IN_WORD = re.compile(r"\w")
_LONGEST_HAN = 30
_GAP = r"(?:-\s*|[^\S\n]|\n(?!\n))"
"""Separators between the words of one number, which may include a line break."""
_MORE_ENGLISH = re.compile(
    rf"(?:(?:{_GAP}|,?{_GAP}and{_GAP})(?:{'|'.join([*_ENGLISH, *_ENGLISH_SCALES])})\b){{0,24}}", re.IGNORECASE
)
"""The rest of an English number; a longer run of such words is several numbers."""
_MORE_WORDS = re.compile(rf"(?:{_GAP}[^\W\d_]+){{0,4}}")

HAN_DIGITS = "〇零一二三四五六七八九十两兩"
_HAN = {sign: value for value, sign in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "兩": 2}
_HAN_UNITS = {"十": 10, "百": 100, "千": 1000}
_HAN_SCALES = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_HAN_NUMBER = re.compile(rf"[{HAN_DIGITS}百千](?<!\d.)[{HAN_DIGITS}百千万萬亿億]*")


def find_number_words(text: str, words: Collection[str]) -> Iterator[tuple[int, int, int]]:
    """Yield the value, start and end of every number in words; `words` are those of the text."""
    phrases = _phrases()
    number_words = {word for word in words if _plain(word) in phrases}
    if number_words:
        done = 0
        for match in each_word(text):
            if match.start() < done or match[0] not in number_words or not _stands_alone(text, match):
                continue
            if (parsed := _number_at(text, match, phrases)) is not None:
                value, done = parsed
                yield value, match.start(), done
    if not text.isascii():
        for han in _HAN_NUMBER.finditer(text):
            if (number := han_value(han[0])) is not None:
                yield number, han.start(), han.end()


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    before = text[match.start() - 1 : match.start()]
    after = text[match.end() : match.end() + 1]
    return not (_IN_WORD.match(before) or _IN_WORD.match(after))


def _number_at(
    text: str, match: re.Match[str], phrases: dict[str, dict[tuple[str, ...], int]]
) -> tuple[int, int] | None:
    """Return the value and the end of the longest number that begins with a word."""
    word = match[0].lower()
    if word in _ENGLISH or word in _ENGLISH_SCALES:
        more = _MORE_ENGLISH.match(text, match.end())
        end = more.end() if more else match.end()
        return _english_value(text[match.start() : end]), end
    following = _MORE_WORDS.match(text, match.end())
    ends = [match.end()]
    if following:
        ends += [each.end() for each in _WORD.finditer(text, match.end(), following.end())]
    words = tuple(_plain(each) for each in _WORD.findall(text[match.start() : ends[-1]]))
    for count in range(len(ends), 0, -1):
        value = phrases[words[0]].get(words[1:count])
        if value is not None:
            return value, ends[count - 1]
    return None


def _english_value(text: str) -> int:
    total = part = 0
    for word in _WORD.findall(text.lower()):
        if word in _ENGLISH:
            part += _ENGLISH[word]
        elif word == "hundred":
            part = max(part, 1) * 100
        elif word in _ENGLISH_SCALES:
            total += max(part, 1) * _ENGLISH_SCALES[word]
            part = 0
    return total + part


def _plain(word: str) -> str:
    return strip_marks(word.casefold())


@cache
def _phrases() -> dict[str, dict[tuple[str, ...], int]]:
    """Numbers of all languages by their first word, then by the following words."""
    phrases: dict[str, dict[tuple[str, ...], int]] = {}
    for word in (*_ENGLISH, *_ENGLISH_SCALES):
        phrases[word] = {}
    for value, words in word_table("numbers").items():
        for word in words:
            phrases.setdefault(_plain(word), {})[()] = int(value)
    for phrase, number in _below_a_hundred():
        first, *rest = _plain(phrase).split()
        phrases.setdefault(first, {}).setdefault(tuple(rest), number)
    return phrases


def _below_a_hundred() -> Iterator[tuple[str, int]]:
    """Yield the numbers from 10 to 99 in the languages of `words.toml`."""
    tables = [word_table(f"numbers_{part}") for part in ("ones", "teens", "tens", "joined")]
    for language, ones in tables[0].items():
        teens, tens, joined = (table[language] for table in tables[1:])
        for number, word in enumerate(teens, 10):
            if len(word) > 4:
                yield word.replace("_", " "), number
        for ten, word in enumerate(tens, 2):
            word = word.replace("_", " ")
            if len(word) > 3:
                yield word, ten * 10
            after = [*enumerate(ones, 1), *(enumerate(teens, 10) if language == "french" else ())]
            for one, forms in after:
                for other, form in product(forms.split("/"), joined):
                    stem = word[:-1] if language == "italian" and other[0] in "uo" else word
                    yield form.format(ten=stem, one=other).replace("_", " "), ten * 10 + one


def is_number_word(word: str) -> bool:
    """Return whether a number in words may begin with this folded word."""
    return word in _phrases()


def han_value(signs: str) -> int | None:
    """Return the value of a number in Han signs; None for other text.

    >>> han_value("二百零五"), han_value("二〇二四"), han_value("三万五千")
    (205, 2024, 35000)
    """
    if len(signs) > _LONGEST_HAN:
        return None
    if all(sign in _HAN for sign in signs):
        if len(signs) <= 9:
            return int("".join(str(_HAN[sign]) for sign in signs))
        return None
    total = section = digit = 0
    for sign in signs:
        if sign in _HAN:
            digit = _HAN[sign]
        elif sign in _HAN_UNITS:
            section += (digit or 1) * _HAN_UNITS[sign]
            digit = 0
        else:
            total = (total + section + digit) * _HAN_SCALES[sign]
            section = 0
            digit = 0
    return total + section + digit

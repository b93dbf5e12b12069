"""Reduce a text to its letters and digits, and find words in it despite small differences in spelling.

Case, accents' composition, ligatures, quotes, dashes, blanks, soft hyphens, hyphens at line ends, HTML entities and
Markdown signs do not count; every folded character has its place in the original.
"""

from __future__ import annotations

import html
import re
import tomllib
import unicodedata
from array import array
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import compress
from typing import NamedTuple

_ASCII_RUN = re.compile(r"[A-Za-z0-9]+")
_POINT = re.compile(r"[.,](?<=[0-9].)(?=[0-9])")
_SIGN = re.compile(r"(?<=[A-Za-z0-9])[#+]+(?![A-Za-z0-9])")
_KEPT_SIGNS = {".": "\x01", "+": "\x02", "#": "\x03"}
"""Signs that are not removed, each mapped to a private character meanwhile."""
_DROPPED = "\\x00\\x04-/:-`{-\\x7f"
_FEW = 48
"""Characters that are replaced one by one, which is faster than a table while they are few."""
_TURKISH_I = ("ı", "İ", "I\u0307", "i\u0307")
"""Letters whose other case is i or I in one language only, where case must not distinguish them."""
_MORE_DECIMALS = re.compile(r"\.\d+(?![.\d])")
_SIGNED = re.compile(r"[#+]+(?![A-Za-z0-9])")
_ENTITY = re.compile(r"&[^;\s]{2,9};")
_ENTITIES = r"&(?:[A-Za-z]{2,8}|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});"
_UNPOINTED = re.compile(r"[\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u0652\u0670]")
"""Vowel points of Hebrew and Arabic, which most texts omit, and the stroke that lengthens a word."""
_FOOTNOTES = "¹²³⁰⁴⁵⁶⁷⁸⁹"
"""Raised digits: they refer to a note, and are not part of the word."""
_STROKED = str.maketrans("đłøħŧıɨ", "dlohtii")
"""Letters without a decomposition that are written as if they had an accent."""
VOWEL_SIGNS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u0652\u0900-\u0d7f\u0e30-\u0e4f"
_WORD = re.compile(rf"[^\W\d_][^\W\d_{VOWEL_SIGNS}]*(?:[{VOWEL_SIGNS}]+[^\W\d_]*)*")
MOST_PLACES = 2000
"""The most occurrences of one value that are checked: a single letter occurs in every line of a long text."""


def all_words(text: str) -> set[str]:
    """Return the different words of a text, with the vowel signs of scripts that have them."""
    return set(_WORD.findall(text))


def each_word(text: str) -> Iterator[re.Match[str]]:
    """Yield the words of a text in order, in the form of `all_words`."""
    return _WORD.finditer(text)


@cache
def word_table(name: str) -> dict[str, list[str]]:
    """Return a table of `words.toml`: meanings and their words."""
    tables = tomllib.loads((files("slipform.addons.evidence") / "words.toml").read_text(encoding="utf-8"))
    return {meaning: words.split() for meaning, words in tables[name].items()}


def is_word_character(character: str) -> bool:
    """Return whether a character belongs to a word of a script that separates its words with blanks."""
    return (character.isalnum() or is_mark(character)) and not is_unspaced(character) and character not in _FOOTNOTES


def is_mark(character: str) -> bool:
    """Return whether a character only modifies the previous one: an accent, a vowel sign."""
    return unicodedata.category(character)[0] == "M" or character in "\uff9e\uff9f"  # of half-width kana


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script without blanks between words."""
    return (
        "\u3040" <= character <= "\u30ff"  # kana
        or "\u3400" <= character <= "\u9fff"  # Han
        or "\u0e00" <= character <= "\u0eff"  # Thai, Lao
        or "\u1000" <= character <= "\u109f"  # Burmese
        or "\u1780" <= character <= "\u17ff"  # Khmer
        or "\uac00" <= character <= "\ud7a3"  # Hangul: particles follow a word without a blank
        or "\U00020000" <= character <= "\U0003ffff"
    )


@lru_cache(maxsize=4096)
def fold_character(character: str) -> str:
    """Return the folded form of a character, letters and digits in one case; empty for everything else."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold())
    if character in _TURKISH_I:
        plain = "i"
    return "".join(_digit(each) for each in _UNPOINTED.sub("", plain) if each.isalnum() or is_mark(each))


def _digit(character: str) -> str:
    value = unicodedata.decimal(character, None)
    return character if value is None else str(value)


def strip_marks(folded: str) -> str:
    """Return folded text without accents, of the same length."""
    if folded.isascii():
        return folded
    others = [each for each in set(folded) if each > "\x7f" and not is_unspaced(each)]
    bare = {each: unicodedata.normalize("NFD", each)[0].translate(_STROKED) for each in others}
    return replaced(folded, {each: plain for each, plain in bare.items() if each != plain})


def replaced(text: str, table: Mapping[str, str]) -> str:
    """Return a text with characters replaced; `str.translate` is slow for texts beyond ASCII."""
    if len(table) > _FEW:
        return text.translate({ord(each): other for each, other in table.items()})
    for each, other in table.items():
        text = text.replace(each, other)
    return text


class SourceRange(NamedTuple):
    """A span of the source, in characters."""

    start: int
    end: int


class FoldedText:
    """The letters and digits of a text, with the place of each in the original."""

    def __init__(self, text: str) -> None:
        self.text = text
        pieces: list[str] = []
        places = array("L")
        for piece, start, is_run in _pieces(text):
            if is_run:
                places.extend(compress(range(start, start + len(piece)), piece.encode("latin-1", "replace")))
                pieces.append(_without_gaps(piece))
            else:
                places.extend([start] * len(piece))
                pieces.append(piece)
        self.folded = "".join(pieces)
        self._places = places

    @cached_property
    def unmarked(self) -> str:
        """The folded text without accents."""
        return strip_marks(self.folded)

    def place_of(self, start: int, end: int) -> SourceRange:
        """Return the place of the folded characters from `start` to `end`, including the accents of the last one."""
        return SourceRange(self._places[start], self._end_of(end - 1))

    def _end_of(self, at: int) -> int:
        text = self.text
        end = self._places[at] + 1
        if text[end - 1] == "&" and (entity := _ENTITY.match(text, end - 1)):
            return entity.end()
        return _after_marks(text, end)

    def find(self, needle: str, *, with_diacritics: bool = True) -> Iterator[SourceRange]:
        """Yield every place of a folded text that begins and ends at word edges."""
        haystack = self.folded if with_diacritics else self.unmarked
        at = haystack.find(needle)
        hits = 0
        while at >= 0 and hits < MOST_PLACES:
            place = self.place_of(at, at + len(needle))
            if self.has_word_edges(place):
                yield place
            hits += 1
            at = haystack.find(needle, at + 1)

    def has_word_edges(self, place: SourceRange) -> bool:
        """Return whether no word continues before or after a place; texts without blanks have no word edges."""
        text = self.text
        start, end = place
        before = text[max(0, start - 1) : start]
        after = text[end : end + 1]
        continues_before = before and is_word_character(before) and is_word_character(text[start])
        if (
            continues_before
            and before in "vV"
            and text[start].isdigit()
            and not text[max(0, start - 2) : start - 1].isalnum()
        ):
            continues_before = False  # v2.1 is 2.1
        continues_after = after and is_word_character(after) and is_word_character(text[end - 1])
        if after == "." and text[end - 1].isdigit() and _MORE_DECIMALS.match(text, end):
            return False  # version 2 is not version 2.1
        if after and after in "+#" and text[end - 1].isalpha() and _SIGNED.match(text, end):
            return False  # C++ and C# are not C
        return not continues_before and not continues_after

    def find_exactly(self, value: str) -> Iterator[SourceRange]:
        """Yield every place with the exact text of a value at word edges."""
        at = self.text.find(value)
        hits = 0
        while at >= 0 and hits < MOST_PLACES:
            place = SourceRange(at, at + len(value))
            if self.has_word_edges(place):
                yield place
            hits += 1
            at = self.text.find(value, at + 1)


def fold(text: str) -> str:
    """Return the letters and digits of a text, in one case and composed: what `FoldedText` keeps of a source."""
    if text.isascii() and _ASCII_RUN.fullmatch(text):
        return text.lower()
    return "".join(_without_gaps(piece) if is_run else piece for piece, _start, is_run in _pieces(text))


def _pieces(text: str) -> Iterator[tuple[str, int, bool]]:
    """Yield folded pieces with their places: runs of unchanged characters, and the characters in between.

    A run has NUL for each character that does not count, and private characters for `_KEPT_SIGNS`. In between are
    characters that fold to another length: entities, letters followed by accents.
    """
    others = {each: fold_character(each) for each in set(text) if each > "\x7f"}
    run = _run_of(text, others)
    at = 0
    for start, end, folded in _longer_or_shorter(text, others):
        yield run[at:start], at, True
        yield folded, start, False
        at = end
    yield run[at:], at, True


def _run_of(text: str, others: Mapping[str, str]) -> str:
    """Return a text of the same length with NUL for characters that do not count."""
    text = replaced(text, {each: "\x04" for each in "\x01\x02\x03" if each in text})
    text = replaced(text, {each: plain for each, plain in others.items() if len(plain) == 1 and plain != each})
    text = _POINT.sub(_KEPT_SIGNS["."], text)
    if "+" in text or "#" in text:
        text = _SIGN.sub(lambda signs: replaced(signs[0], _KEPT_SIGNS), text)
    gone = "".join(each for each, plain in others.items() if not plain and each not in "\uff9e\uff9f")
    return re.sub(f"[{_DROPPED}{re.escape(gone)}]", "\0", text.lower())


def _longer_or_shorter(text: str, others: Mapping[str, str]) -> Iterator[tuple[int, int, str]]:
    """Yield characters that fold to another length: their place, and their folded form."""
    diacritics = re.escape("".join(each for each in others if is_mark(each)))
    longer = re.escape("".join(each for each, plain in others.items() if len(plain) > 1))
    kinds = [_ENTITIES] if "&" in text else []
    kinds += [f"[^{diacritics}]?[{diacritics}]+"] if diacritics else []
    kinds += [f"[{longer}]"] if longer else []
    for match in re.finditer("|".join(kinds), text) if kinds else ():
        meaning = html.unescape(match[0]) if match[0][0] == "&" else match[0]
        if meaning != match[0] or match[0][0] != "&":
            yield match.start(), match.end(), fold_character(meaning)


def _without_gaps(run: str) -> str:
    run = run.replace("\0", "")
    for sign, placeholder in _KEPT_SIGNS.items():
        run = run.replace(placeholder, sign)
    return run


def _after_marks(text: str, at: int) -> int:
    while at < len(text) and text[at] > "\x7f" and is_mark(text[at]):
        at += 1
    return at

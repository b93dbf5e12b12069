"""Reduce a text to its letters and digits, and find words in it wherever they are spelled a little differently.

Case, accents' composition, ligatures, quotes, dashes, blanks, soft hyphens, hyphens at line ends, HTML entities and
Markdown signs do not count; every folded character knows the place it came from.
"""

from __future__ import annotations

import html
import re
import tomllib
import unicodedata
from array import array
from collections.abc import Iterator
from functools import cache, cached_property
from importlib.resources import files
from typing import NamedTuple

_ASCII_RUN = re.compile(r"[A-Za-z0-9]+")
_UNIT = re.compile(
    r"(?P<run>[A-Za-z0-9]+)|(?P<entity>&(?:[A-Za-z]{2,8}|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)|(?P<point>(?<=[0-9])[.,](?=[0-9]))"
    r"|(?P<sign>(?<=[A-Za-z0-9])[#+]+(?![A-Za-z0-9]))|(?P<other>[^\x00-\x7f])"
)
_TURKISH_I = ("ı", "İ", "I\u0307", "i\u0307")
"""Letters whose other case is i or I in one language only: case must not tell them apart."""
_SIGNED = re.compile(r"[#+]+(?![A-Za-z0-9])")
_ENTITY = re.compile(r"&[^;\s]{2,9};")
MOST_PLACES = 2000
"""Occurrences of one value that are looked at: a single letter in a long text would be at every line."""


@cache
def word_table(name: str) -> dict[str, list[str]]:
    """A table of `words.toml`: what is meant, and the words for it."""
    tables = tomllib.loads((files("slipform.evidence") / "words.toml").read_text(encoding="utf-8"))
    return {meaning: words.split() for meaning, words in tables[name].items()}


def is_word_character(character: str) -> bool:
    """Whether a character belongs to a word of a script that puts blanks between its words."""
    return (character.isalnum() or is_mark(character)) and not is_unspaced(character)


def is_mark(character: str) -> bool:
    """Whether a character only changes the one before it: an accent, a vowel sign."""
    return unicodedata.category(character)[0] == "M"


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script that writes words without blanks between them."""
    return (
        "\u3040" <= character <= "\u30ff"  # kana
        or "\u3400" <= character <= "\u9fff"  # Han
        or "\u0e00" <= character <= "\u0eff"  # Thai, Lao
        or "\u1000" <= character <= "\u109f"  # Burmese
        or "\u1780" <= character <= "\u17ff"  # Khmer
        or "\uac00" <= character <= "\ud7a3"  # Hangul: particles follow a word without a blank
        or "\U00020000" <= character <= "\U0003ffff"
    )


def fold_character(character: str) -> str:
    """The letters and digits that a character stands for, in one case; empty for everything else."""
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold())
    if character in _TURKISH_I:
        plain = "i"
    return "".join(_digit(each) for each in plain if each.isalnum() or is_mark(each))


def _digit(character: str) -> str:
    value = unicodedata.decimal(character, None)
    return character if value is None else str(value)


def strip_marks(folded: str) -> str:
    """Folded text without accents, character by character: its length stays."""
    if folded.isascii():
        return folded
    return "".join(unicodedata.normalize("NFD", each)[0] for each in folded)


class SourceRange(NamedTuple):
    """Where something stands in the source, in characters."""

    start: int
    end: int


class FoldedText:
    """A text as its letters and digits, with the place of each in the original."""

    def __init__(self, text: str) -> None:
        self.text = text
        pieces: list[str] = []
        places = array("L")
        for piece, start, is_run in _pieces(text):
            pieces.append(piece)
            if is_run:
                places.extend(range(start, start + len(piece)))
            else:
                places.extend([start] * len(piece))
        self.folded = "".join(pieces)
        self._places = places

    @cached_property
    def unmarked(self) -> str:
        """The folded text without accents."""
        return strip_marks(self.folded)

    def place_of(self, start: int, end: int) -> SourceRange:
        """Where the folded characters from `start` to `end` stand, with the accents that follow the last of them."""
        return SourceRange(self._places[start], self._end_of(end - 1))

    def _end_of(self, at: int) -> int:
        text, end = self.text, self._places[at] + 1
        if text[end - 1] == "&" and (entity := _ENTITY.match(text, end - 1)):
            return entity.end()
        return _after_marks(text, end)

    def find(self, needle: str, *, marks: bool = True) -> Iterator[SourceRange]:
        """Every place of a folded text that begins and ends where words do."""
        haystack = self.folded if marks else self.unmarked
        at, seen = haystack.find(needle), 0
        while at >= 0 and seen < MOST_PLACES:
            place = self.place_of(at, at + len(needle))
            if self.has_word_edges(place):
                yield place
            seen += 1
            at = haystack.find(needle, at + 1)

    def has_word_edges(self, place: SourceRange) -> bool:
        """Whether no word goes on before or after a place; a text without blanks has no edges to respect."""
        text, (start, end) = self.text, place
        before, after = text[start - 1 : start], text[end : end + 1]
        opens = before and is_word_character(before) and is_word_character(text[start])
        goes_on = after and is_word_character(after) and is_word_character(text[end - 1])
        if after and after in "+#" and text[end - 1].isalpha() and _SIGNED.match(text, end):
            return False  # C++ and C# are not C
        return not opens and not goes_on

    def find_exactly(self, value: str) -> Iterator[SourceRange]:
        """Every place where a value stands to the letter, word edges kept."""
        at, seen = self.text.find(value), 0
        while at >= 0 and seen < MOST_PLACES:
            place = SourceRange(at, at + len(value))
            if self.has_word_edges(place):
                yield place
            seen += 1
            at = self.text.find(value, at + 1)


def fold(text: str) -> str:
    """The letters and digits of a text, in one case and composed: what `FoldedText` keeps of a source."""
    if text.isascii() and _ASCII_RUN.fullmatch(text):
        return text.lower()
    return "".join(piece for piece, _start, _is_run in _pieces(text))


def _pieces(text: str) -> Iterator[tuple[str, int, bool]]:
    """Folded pieces with their places; of a run every character stands for itself."""
    skip_to, length = 0, len(text)
    for unit in _UNIT.finditer(text):
        start = unit.start()
        if start < skip_to:
            continue
        kind = unit.lastgroup
        if kind == "run":
            end = unit.end()
            if end == length or text[end] < "\x80" or (end := _after_marks(text, end)) == unit.end():
                yield unit[0].lower(), start, True
                continue
            skip_to = end
            yield unit[0][:-1].lower(), start, True
            yield fold_character(text[unit.end() - 1 : end]), unit.end() - 1, False
        elif kind == "point":
            yield ".", start, True
        elif kind == "sign":
            yield unit[0], start, True
        elif kind == "entity":
            meaning = html.unescape(unit[0])
            if meaning != unit[0]:
                yield fold_character(meaning), start, False
            else:
                yield re.sub(r"\W", "", unit[0]).lower(), start + 1, True
        else:
            skip_to = _after_marks(text, start + 1)
            yield fold_character(text[start:skip_to]), start, False


def _after_marks(text: str, at: int) -> int:
    while at < len(text) and text[at] > "\x7f" and is_mark(text[at]):
        at += 1
    return at

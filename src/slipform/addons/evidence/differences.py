"""Decide whether two similar texts mean the same, or differ in a negation or a word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from slipform.addons.evidence.folding import SourceRange, is_unspaced, word_table
from slipform.addons.evidence.number_words import is_number_word
from slipform.addons.evidence.source_index import SourceIndex, folded_word, folded_words
from slipform.ir.evidence import How

_UNSPACED_NEGATIONS = tuple(word_table("negations")["unspaced"])
NEGATIONS = frozenset(
    folded_word(word) for language, words in word_table("negations").items() if language != "unspaced" for word in words
)
_CONTRACTIONS = {f"{verb}nt": verb for verb in word_table("contractions")["english"]} | {
    "cannot": "can",
    "cant": "can",
    "wont": "will",
    "shant": "shall",
    "aint": "is",
}
"""Folded verbs with "not", and without it."""
_ARTICLES = frozenset(map(folded_word, word_table("small_words")["articles"]))
SMALL_WORDS = _ARTICLES | frozenset(map(folded_word, word_table("small_words")["others"]))
LEGAL_FORMS = frozenset(word_table("legal_forms")["words"])
_DIRECTIONS = frozenset(word_table("small_words")["directions"])
"""Words that have another meaning if the order of the words around them changes."""
_OPPOSITE_BEGINNINGS = (
    ("hyper", "hypo"),
    ("inter", "intra"),
    ("ab", "ad"),
    ("ante", "anti"),
    ("macro", "micro"),
    ("over", "under"),
    ("maxi", "mini"),
    ("pre", "pro"),
    ("im", "ex"),
    ("in", "ex"),
    ("up", "down"),
)
_OPPOSITE_ENDINGS = (("er", "ee"), ("or", "ee"), ("ful", "less"), ("able", "ible"))
_INFLECTIONS = frozenset(["s", "es", "e", "n", "en", "d", "ed"])
_MISREAD = (("rn", "m"), ("vv", "w"), ("cl", "d"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"), ("8", "b"))
_FURTHEST = 4
"""The most words of one text that the other lacks between two common ones."""
_SENTENCE = 5
_LONG_SENTENCE = 8
"""The least words of a value that is compared as a sentence, and of one that may differ by a word."""
_SHORTEST_IN_NAMES = 7
_SHORTEST_IN_SENTENCES = 6
"""The least letters of a word that may have a wrong one: in shorter ones, one letter makes another word."""
_LETTERS_FOR_AN_EDIT = 6
_REACH = 40
_DOUBLED = re.compile(r"(.)\1+")
_PREFIX = re.compile(r"(?<!\w)(?:non|un|not|anti|nicht)[-‐‑]$", re.IGNORECASE)
_HYPHENS = ("-", "‐", "‑")
_WORD_AFTER = re.compile(r"\s+([^\W_]+(?:['’][^\W_]+)?)")
_WORD_BEFORE = re.compile(r"[^\W_]+(?:['’][^\W_]+)?(?=\s+$)")
_BETWEEN = frozenset(word_table("small_words")["after_negations"])
"""Text that may separate a negation from the negated word."""
_NUMBERED = frozenset(word_table("small_words")["numbered"])
"""Words before "no" where it is short for number."""


def as_scanned(folded: str) -> str:
    """Return a folded text in which letters that scanners confuse are the same."""
    for misread, meant in _MISREAD:
        folded = folded.replace(misread, meant)
    return folded


def likeness(value: str, other: str) -> How | None:
    """Return how a text resembles a value: `fuzzy` if its words are the same, misspelled or inflected.

    None if it differs.

    A long value without a few words of the text, or with more, is `partial`: their meaning is unknown.

    >>> likeness("may be terminated", "may be terminatde"), likeness("may be sold", "may not be sold")
    ('fuzzy', None)
    """
    if not same_negations(value, other):
        return None
    one = _plain_words(value)
    two = _plain_words(other)
    shortest = _SHORTEST_IN_SENTENCES if len(one) >= _SENTENCE else _SHORTEST_IN_NAMES
    worst: How = "fuzzy"
    for left, right in _differences(one, two):
        if _is_same(left, right, shortest):
            continue
        if len(one) < _LONG_SENTENCE or not _is_aside(left, right):
            return None
        worst = "partial"
    return worst


def same_negations(value: str, other: str) -> bool:
    """Return whether two texts have the same number of negations.

    >>> same_negations("notable", "not able"), same_negations("it isn't", "it is not")
    (False, True)
    """
    return _negation_count(value) == _negation_count(other)


def has_negation(text: str) -> bool:
    """Return whether a text has a negating word."""
    return _negation_count(text) > 0


def can_be_reordered(words: Sequence[str]) -> bool:
    """Return whether folded words mean the same in another order, as those of a name do."""
    return not any(word in _DIRECTIONS or word in NEGATIONS for word in words)


def is_negated(source: SourceIndex, start: int) -> bool:
    """Return whether a negation directly precedes a place."""
    text = source.text
    if start and is_unspaced(text[start - 1]):
        return text[start - 1] in _UNSPACED_NEGATIONS and is_unspaced(text[start])
    before = text[max(0, start - _REACH) : start]
    if not before[-1:].isspace():
        return has_negating_prefix(source, start)
    word, before = _last_word(before)
    while word in _BETWEEN:
        word, before = _last_word(before)
    return _is_negation(word) and not (word == "no" and _last_word(before)[0] in _NUMBERED)


def has_negating_prefix(source: SourceIndex, start: int) -> bool:
    """Return whether a hyphen joins a place to a negating prefix: non-refundable."""
    return source.text[start - 1 : start] in _HYPHENS and bool(_PREFIX.search(source.text, max(0, start - 8), start))


def word_before(source: SourceIndex, start: int) -> str:
    """Return the folded word directly before a place, separated by blanks only; empty if there is none."""
    return _last_word(source.text[max(0, start - _REACH) : start])[0]


def word_after(source: SourceIndex, end: int) -> str:
    """Return the folded word directly after a place, separated by blanks only; empty if there is none."""
    word = _WORD_AFTER.match(source.text, end)
    return folded_word(word[1]) if word else ""


def is_same_sentence(source: SourceIndex, place: SourceRange, before: str, after: str) -> bool:
    """Return whether the source has half of the value's words before or after a place there, and others."""
    text = source.text
    if before:
        words = folded_words(before)
        there = folded_words(text[max(0, place.start - 2 * len(before) - _REACH) : place.start])
        if _shared(words, there[-len(words) - 1 :]) * 2 >= len(words):
            return True
    if after:
        words = folded_words(after)
        there = folded_words(text[place.end : place.end + 2 * len(after) + _REACH])
        if _shared(words, there[: len(words) + 1]) * 2 >= len(words):
            return True
    return False


def _shared(words: Sequence[str], others: Sequence[str]) -> int:
    return sum([word in others for word in words])


def _last_word(text: str) -> tuple[str, str]:
    """Return the last word of a text that ends with a blank, folded, and the text before it."""
    word = _WORD_BEFORE.search(text)
    if word:
        return (folded_word(word[0]), text[: word.start()])
    return ("", "")


def _is_negation(word: str) -> bool:
    return word in NEGATIONS or word in _CONTRACTIONS


def _negation_count(text: str) -> int:
    spaced = sum([_is_negation(word) for word in folded_words(text)])
    unspaced = 0
    if not text.isascii():
        unspaced = sum([text.count(sign) for sign in _UNSPACED_NEGATIONS])
    # French says "ne … pas", Spanish "no … nunca": two words, and one negation.
    return bool(spaced) + unspaced


def _plain_words(text: str) -> list[str]:
    words: list[str] = []
    for word in folded_words(text):
        verb = _CONTRACTIONS.get(word)
        if verb is None:
            words.append(word)
        else:
            words += [verb, "not"]
    return words


def _differences(one: Sequence[str], two: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the runs of words in which two texts differ, in order."""
    left = right = 0
    while left < len(one) or right < len(two):
        if left < len(one) and right < len(two) and one[left] == two[right]:
            left += 1
            right += 1
            continue
        more_left, more_right = _next_in_common(one[left : left + _FURTHEST + 1], two[right : right + _FURTHEST + 1])
        yield one[left : left + more_left], two[right : right + more_right]
        left += more_left
        right += more_right


def _next_in_common(one: Sequence[str], two: Sequence[str]) -> tuple[int, int]:
    """Return how many words to skip on both sides up to a common one, or all of them."""
    for total in range(1, len(one) + len(two) - 1):
        for left in range(max(0, total - len(two) + 1), min(total, len(one) - 1) + 1):
            if one[left] == two[total - left]:
                return left, total - left
    return len(one), len(two)


def _is_aside(one: Sequence[str], two: Sequence[str]) -> bool:
    """Return whether two texts differ only in words that one of them adds, or in small words; not in a negation."""
    if any(_is_negation(word) for word in (*one, *two)):
        return False
    return not one or not two or all(word in SMALL_WORDS for word in (*one, *two))


def _is_same(one: Sequence[str], two: Sequence[str], shortest: int) -> bool:
    """Return whether two runs of words are the same but for articles, spelling and confused letters."""
    if as_scanned("".join(one)) == as_scanned("".join(two)):
        return True
    if not one or not two:
        return all(word in _ARTICLES for word in (*one, *two))
    if len(one) == len(two):
        return all(_is_misspelled(left, right, shortest) for left, right in zip(one, two, strict=True))
    return _is_misspelled("".join(one), "".join(two), shortest)


@lru_cache(maxsize=4096)
def _is_misspelled(one: str, other: str, shortest: int) -> bool:
    """Return whether two folded words are spellings or forms of the same word."""
    if as_scanned(one) == as_scanned(other):
        return True
    if any(map(is_unspaced, one + other)) or not (one + other).isalpha() or one[0] != other[0]:
        return False
    if is_number_word(one) or is_number_word(other) or _are_opposites(one, other):
        return False
    if sorted(one) == sorted(other) or _DOUBLED.sub(r"\1", one) == _DOUBLED.sub(r"\1", other):
        return True
    short, long = sorted((one, other), key=len)
    if len(short) >= 4 and long.startswith(short) and long[len(short) :] in _INFLECTIONS:
        return True
    return len(short) >= shortest and _edits(one, other) <= max(1, len(short) // _LETTERS_FOR_AN_EDIT)


def _are_opposites(one: str, other: str) -> bool:
    """Return whether two words differ only in prefixes or suffixes that reverse their meaning."""
    for first, second in (*_OPPOSITE_BEGINNINGS, *(pair[::-1] for pair in _OPPOSITE_BEGINNINGS)):
        if one.startswith(first) and other.startswith(second) and one[len(first) :] == other[len(second) :]:
            return True
    for first, second in (*_OPPOSITE_ENDINGS, *(pair[::-1] for pair in _OPPOSITE_ENDINGS)):
        if one.endswith(first) and other.endswith(second) and one[: -len(first)] == other[: -len(second)]:
            return True
    return False


def _edits(one: str, other: str) -> int:
    """Return the number of differing letters of two words; counting stops at one more than a fifth of them."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        diagonal = row[0]
        row[0] = number
        for at, each in enumerate(other, 1):
            replaced = diagonal + (letter != each)
            diagonal = row[at]
            row[at] = min(row[at] + 1, row[at - 1] + 1, replaced)
    return row[-1]

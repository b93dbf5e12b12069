"""Find a name that the source writes in another script: Ivan Petrov for Иван Петров, and the reverse.

Cyrillic and Greek letters are spelled in Latin ones; since there are many ways to do that, their differences are
unified on both sides (`kh` and `h`, `y` and `i`, `ts` and `c`). This finds names, but not words of another language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from slipform.addons.evidence.source_index import WORD, LookupBudget, Occurrence, SourceIndex, folded_word

_LETTERS = {
    **dict(zip("абвгґдеєзиіїйклмнопрстуфыэёў", "abvggdeezиiiiklmnoprstufieeu".replace("и", "i"), strict=True)),
    "ж": "zh",
    "х": "h",
    "ц": "c",
    "ч": "ch",
    "ш": "sh",
    "щ": "sh",
    "ю": "iu",
    "я": "ia",
    "ь": "",
    "ъ": "",
    "ђ": "di",
    "ј": "i",
    "љ": "li",
    "њ": "ni",
    "ћ": "c",
    "џ": "dz",
    "ѓ": "g",
    "ќ": "k",
    "ѕ": "dz",
    **dict(zip("αβγδεζηικλμνξοπρσςτυφχω", "avgdeziiklmnxoprsstifho", strict=True)),
    "θ": "th",
    "ψ": "ps",
}
_SAME = tuple(
    pair.split("=")
    for pair in [
        "ou=u",
        "shch=sh",
        "tsch=ch",
        "tch=ch",
        "sch=sh",
        "kh=h",
        "ph=f",
        "ck=k",
        "tz=c",
        "ts=c",
        "w=v",
        "b=v",
        "mp=b",
        "j=i",
        "y=i",
        "q=k",
        "x=ks",
        "iia=ia",
        "ii=i",
        "ie=e",
        "io=e",
        "ee=e",
        "oo=u",
        "ss=s",
        "ll=l",
        "nn=n",
    ]
)
"""Differences between spellings of the same name, longest first where one is part of another."""
_OTHER_SCRIPT = re.compile(r"[\u0370-\u03ff\u0400-\u04ff]")
_SHORTEST = 4
_MOST_WORDS = 4
_SEED_WORK = 300


def transliterated(source: SourceIndex, value: str, budget: LookupBudget) -> Iterator[Occurrence]:
    """Return the places of a name of up to four words in another script, in this order or the surname first."""
    words = WORD.findall(value)
    if not 1 <= len(words) <= _MOST_WORDS or not value.replace(" ", "").replace("-", "").isalpha():
        return
    is_latin = not _OTHER_SCRIPT.search(value)
    sounds = [_phonetic_form(word) for word in words]
    if sum(map(len, sounds)) < _SHORTEST or not all(sounds):
        return
    index = source.words_by_sound(_phonetic_form, _OTHER_SCRIPT, is_other=is_latin)
    for seed in index.get(sounds[0], [])[:40]:
        budget.spend(_SEED_WORK)
        for first in (seed, seed - len(sounds) + 1):
            numbers = range(first, first + len(sounds))
            if first < 0 or numbers[-1] >= len(source.words):
                continue
            if sorted(_phonetic_form(source.word(number)) for number in numbers) == sorted(sounds):
                yield Occurrence(source.words[numbers[0]][0], source.words[numbers[-1]][1], "normalised")
                break


@lru_cache(maxsize=4096)
def _phonetic_form(word: str) -> str:
    """Return a word in Latin letters, with all spellings of a sound unified."""
    sound = "".join(_LETTERS.get(letter, letter) for letter in folded_word(word).replace("ου", "u"))
    for one, other in _SAME:
        sound = sound.replace(one, other)
    return sound

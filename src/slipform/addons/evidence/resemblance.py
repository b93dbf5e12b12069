"""Find text that resembles a value: words reordered or abbreviated, a few letters changed, a part of it.

Work is bounded: only places around rare pieces in common with the value are checked.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from slipform.addons.evidence.dates import moments_of
from slipform.addons.evidence.differences import (
    LEGAL_FORMS,
    SMALL_WORDS,
    as_scanned,
    can_be_reordered,
    has_negation,
    is_same_sentence,
    likeness,
    word_after,
    word_before,
)
from slipform.addons.evidence.folding import SourceRange, fold, strip_marks
from slipform.addons.evidence.source_index import WORD, LookupBudget, Occurrence, SourceIndex, folded_word, folded_words
from slipform.ir.evidence import How

_IN_WORDS = re.compile(r"[^@/\\\\0-9]+")
"""Values whose parts have a meaning on their own: not addresses, identifiers or numbers."""
_NAME_AFTER = re.compile(r" (?:[A-Z]\. )?[^\W\d_a-z][^\W\d_]*[^\W\d_A-Z]")
_NAME_BEFORE = re.compile(r"(?<![.!?:] )(?<!\w)[^\W\d_a-z][^\W\d_]*[^\W\d_A-Z] $")
_NAMES_APART = re.compile(r"[,;\n]")
_FIELD_START = re.compile(r"(?:^|[\n\t:;|(\"*•-])[ \t]*$")
_INITIAL_BEFORE = re.compile(r"(?<!\w)[^\W\d_a-z]\. ?$")
_SHORTEST_FUZZY = 9
"""The least letters of a value that may have a wrong one: shorter words that differ in one are other words."""
_MOST_EDITS = 0.12
_MOST_EDITS_IN_SENTENCES = 0.25
_MOST_SEEDS = 40
_SEED_WORK = 300
"""Units of work for checking a place."""
_SWAP = 2
"""Edits of a transposition of two letters."""
_MORE_IF_MISREAD = 2
"""Additional edits where all of them are typical of scanners."""
_ONE_GAP = re.compile(r"[\w'’-]+\s[\w'’-]+")
_SHORTENED = re.compile(r"[./]")


def same_words(source: SourceIndex, value: str, budget: LookupBudget) -> Iterator[Occurrence]:
    """Yield the words of a name in another order, or with an initial between them."""
    words = folded_words(value)
    if not 2 <= len(words) <= 5 or any(word.isdigit() for word in words) or not can_be_reordered(words):
        return
    index = source.words_by_text
    rarest = min(words, key=lambda word: len(index.get(word, ())))
    for seed in index.get(rarest, [])[:_MOST_SEEDS]:
        budget.spend(_SEED_WORK)
        numbers = _nearest_words(source, words, seed)
        if len(set(numbers)) < len(words) or max(numbers) - min(numbers) >= len(words) + 1:
            continue
        place = SourceRange(source.words[min(numbers)][0], source.words[max(numbers)][1])
        between = [number for number in range(min(numbers), max(numbers) + 1) if number not in numbers]
        if _is_one_name(source, place, between):
            yield Occurrence(*place, "fuzzy" if between else "normalised")


def _nearest_words(source: SourceIndex, words: Sequence[str], seed: int) -> list[int]:
    """Return the indices of these words around a seed, each the nearest of its kind."""
    window = range(max(0, seed - len(words) - 1), min(len(source.words), seed + len(words) + 2))
    numbers_by_word: dict[str, list[int]] = {}
    for number in window:
        numbers_by_word.setdefault(folded_word(source.word(number)), []).append(number)
    nearest = (min(numbers_by_word.get(word, ()), key=lambda n: abs(n - seed), default=None) for word in words)
    return [number for number in nearest if number is not None]


def _is_one_name(source: SourceIndex, place: SourceRange, between: list[int]) -> bool:
    """Return whether the words of a place are one name: only initials between them, not two adjacent names."""
    source_text = source.text[place.start : place.end]
    if any(len(source.word(number)) > 2 for number in between) or "\n\n" in source_text:
        return False
    if between and ("," in source_text or has_negation(source_text)):  # such as Grade A, B
        return False
    return not is_of_two_names(source, place)


def shortened(source: SourceIndex, value: str, budget: LookupBudget) -> Iterator[Occurrence]:
    """Yield the words of a value with some of them abbreviated (Hauptstr.

    12, 42 Oak Ave), or with a middle name omitted.
    """
    words = folded_words(value)
    index = source.words_by_text
    known_numbers = [number for number, word in enumerate(words) if word in index]
    if not 2 <= len(words) <= 8 or len(known_numbers) < len(words) / 2:
        return
    # The search begins at the rarest word; initials occur everywhere, so they come last.
    rarest = min(known_numbers, key=lambda number: (len(words[number]) == 1, len(index[words[number]])))
    if len(words[rarest]) == 1:
        return
    for seed in index[words[rarest]][:_MOST_SEEDS]:
        budget.spend(_SEED_WORK)
        first = seed - rarest
        if first < 0 or first + len(words) > len(source.words):
            continue
        place = SourceRange(source.words[first][0], source.words[first + len(words) - 1][1])
        matches = all(_is_word_for(source, first + number, word) for number, word in enumerate(words))
        if matches and source.folded.has_word_edges(place):
            yield Occurrence(*place, "fuzzy")
    if 3 <= len(words) <= 4 and words[0] in index and words[-1] in index:
        yield from _without_middle_names(source, words)


def _without_middle_names(source: SourceIndex, words: list[str]) -> Iterator[Occurrence]:
    """Yield the spans in which the first and the last word of a name are next to each other."""
    index = source.words_by_text
    following = index[words[-1]]
    for first in index[words[0]][:_MOST_SEEDS]:
        at = bisect_left(following, first + 1)
        if at < len(following) and following[at] == first + 1:
            start = source.words[first][0]
            end = source.words[first + 1][1]
            if source.text[start:end].istitle() and _ONE_GAP.fullmatch(source.text[start:end]):
                yield Occurrence(start, end, "partial")


def _is_word_for(source: SourceIndex, number: int, value_word: str) -> bool:
    """Return whether a word of the source is a word of a value, or an abbreviation of it."""
    word = folded_word(source.word(number))
    if word == value_word:
        return True
    if not word or len(word) >= len(value_word) or word[0] != value_word[0] or not (word + value_word).isalpha():
        return False
    # "with" does not abbreviate "without"
    if word in SMALL_WORDS or has_negation(value_word) or value_word.endswith("less"):
        return False
    end = source.words[number][1]
    if not _SHORTENED.match(source.text, end):
        return len(word) >= 3 and value_word.startswith(word)
    letters = iter(value_word)
    return all(letter in letters for letter in word)


def similar(source: SourceIndex, value: str, budget: LookupBudget) -> Iterator[Occurrence]:
    """Yield places that differ from a value in a few letters; numbers in it must be the same."""
    needle = strip_marks(fold(value))
    words = folded_words(value)
    is_sentence = len(words) >= 5
    if len(needle) < _SHORTEST_FUZZY or re.search(r"[@/\\]", value) or (not is_sentence and re.search(r"\d", value)):
        return
    most = int(len(needle) * (_MOST_EDITS_IN_SENTENCES if is_sentence else _MOST_EDITS))
    haystack = source.folded.unmarked
    best = most + 1
    occurrences: list[tuple[int, Occurrence]] = []
    # A step is one operation on integers with as many bits as the needle has characters.
    step_work = 10 + len(needle) // 30
    for low, high in _windows(source, needle, most, budget):
        budget.spend(step_work * (high - low))
        if budget.is_spent:
            return
        for edits, start, end in best_matches(needle, haystack[low:high], min(best, most) + _MORE_IF_MISREAD):
            matched_range = source.folded.place_of(low + start, low + end)
            place = source.whole_words(matched_range)
            edits += (matched_range.start - place.start) + (place.end - matched_range.end)
            how = _how_similar(value, needle, source.text[place.start : place.end], edits, most)
            if how is not None:
                best = min(best, edits)
                occurrences.append((edits, Occurrence(*place, how)))
                break
    yield from (occurrence for edits, occurrence in occurrences if edits == best)


def _how_similar(value: str, needle: str, source_text: str, edits: int, most: int) -> How | None:
    folded = strip_marks(fold(source_text))
    if as_scanned(needle) == as_scanned(folded):
        return "fuzzy"
    is_swapped = edits <= _SWAP and sorted(folded) == sorted(needle)
    if (edits <= most or is_swapped) and _same_numbers(value, source_text):
        return likeness(value, source_text)
    return None


def _windows(source: SourceIndex, needle: str, most: int, budget: LookupBudget) -> list[tuple[int, int]]:
    """Return the ranges of the folded source that share a rare piece with the needle."""
    haystack = source.folded.unmarked
    size = max(4, min(8, len(needle) // (most + 1)))
    seeds: list[int] = []
    for offset in range(0, len(needle) - size + 1, size):
        piece = needle[offset : offset + size]
        at = -1
        count = 0
        places = []
        budget.spend(source.scan_work + 1)
        if budget.is_spent:
            return []
        while (at := haystack.find(piece, at + 1)) >= 0 and count <= _MOST_SEEDS:
            places.append(max(0, at - offset - most))
            count += 1
        if count <= _MOST_SEEDS:
            seeds += places
    windows: list[tuple[int, int]] = []
    shared: list[int] = []
    for low in sorted(seeds):
        if windows and low <= windows[-1][0] + most:
            shared[-1] += 1
        else:
            windows.append((low, low + len(needle) + 3 * most + 1))
            shared.append(1)
    enough = max(shared, default=0) / 2  # near matches share far more pieces than texts with only some common words
    return [window for window, count in zip(windows, shared, strict=True) if count >= enough][: 2 * _MOST_SEEDS]


_LEAST_SINGLE_WORD = 5


def parts(source: SourceIndex, value: str, budget: LookupBudget) -> Iterator[Occurrence]:
    """Yield the longest run of a value's words that is in the source, if that is at least half of the value.

    Common parts of companies' names, such as GmbH, do not count.
    """
    if not _IN_WORDS.fullmatch(value) or moments_of(value):
        return
    words = list(WORD.finditer(value))
    if not 2 <= len(words) <= 12:
        return
    for run in _long_runs(words):
        budget.spend(source.scan_work + _SEED_WORK)
        if budget.is_spent:
            return
        places = [
            Occurrence(*place, "partial")
            for place in source.folded.find(fold(value[run.start : run.end]))
            if not _continues_differently(source, place, value, run)
        ]
        places = [place for place in places if not source.is_in_address(place)]
        if places:
            yield from places
            return


def _long_runs(words: Sequence[re.Match[str]]) -> Iterator[SourceRange]:
    """Yield the runs of these words that have half of their letters, the longest first; a single word needs five."""
    lengths = [0 if folded_word(word[0]) in LEGAL_FORMS else len(word[0]) for word in words]
    for count in range(len(words) - 1, 0, -1):
        for first in range(len(words) - count + 1):
            run = lengths[first : first + count]
            least = _LEAST_SINGLE_WORD if sum(map(bool, run)) == 1 else 1
            if sum(run) * 2 >= sum(lengths) and max(run) >= least:
                yield SourceRange(words[first].start(), words[first + count - 1].end())


def _continues_differently(source: SourceIndex, place: SourceRange, value: str, run: SourceRange) -> bool:
    """Return whether another text replaces the rest of a value: Anna Nowak, the right kidney for the left."""
    before = value[: run.start].strip()
    after = value[run.end :].strip()
    if has_negation(before) or has_negation(after) or is_same_sentence(source, place, before, after):
        return True
    if after and (_NAME_AFTER.match(source.text, place.end) or _has_own_meaning(word_after(source, place.end))):
        return True
    if not before:
        return False
    earlier = source.text[max(0, place.start - 40) : place.start]
    return bool(
        _NAME_BEFORE.search(earlier)
        or _INITIAL_BEFORE.search(earlier)
        or _has_own_meaning(word_before(source, place.start))
    )


def _has_own_meaning(word: str) -> bool:
    """Return whether a word beside a place has a meaning of its own in the sentence."""
    return has_negation(word) or (word.isalpha() and word not in SMALL_WORDS)


def is_of_two_names(source: SourceIndex, place: SourceRange, *, is_literal: bool = False) -> bool:
    """Return whether a place is the end of one name in a list and the beginning of the next: Eva Berg, Jan Holm.

    One end of another name is sufficient, unless the place is literally the value.
    """
    text = source.text
    if not _NAMES_APART.search(text, place.start, place.end):
        return False
    earlier = text[max(0, place.start - 40) : place.start]
    begins_before = bool(_INITIAL_BEFORE.search(earlier) or _NAME_BEFORE.search(earlier))
    begins_before = begins_before and word_before(source, place.start) not in SMALL_WORDS
    continues_after = _NAME_AFTER.match(text, place.end) is not None
    if is_literal:
        return begins_before and continues_after
    return begins_before or (continues_after and not _FIELD_START.search(earlier))


def _same_numbers(value: str, source_text: str) -> bool:
    return sorted(re.findall(r"(?<!\w)\d+(?!\w)", value)) == sorted(re.findall(r"(?<!\w)\d+(?!\w)", source_text))


def best_matches(needle: str, haystack: str, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of a haystack that differ from a needle in the fewest characters: edits, start, end.

    Myers' bit-parallel search: one step per character of the haystack, whatever the needle's length.

    >>> list(best_matches("copenhagen", "tocopenhagntoday", 2))
    [(1, 2, 11)]
    """
    edits, ends = _best_ends(needle, haystack, most)
    for end in ends:
        backwards = haystack[max(0, end - len(needle) - edits) : end][::-1]
        _, sizes = _best_ends(needle[::-1], backwards, edits, is_anchored=True)
        yield from ((edits, end - size, end) for size in sizes)


def _best_ends(needle: str, haystack: str, most: int, *, is_anchored: bool = False) -> tuple[int, list[int]]:
    """Return the fewest edits and the ends of such matches; an anchored match begins at the haystack's beginning."""
    masks: dict[str, int] = defaultdict(int)
    for at, character in enumerate(needle):
        masks[character] |= 1 << at
    size = len(needle)
    full = (1 << size) - 1
    last = 1 << (size - 1)
    up = full
    down = 0
    edits = size
    best = most
    ends = list[int]()
    for at, character in enumerate(haystack, 1):
        equal = masks.get(character, 0)
        diagonal = (((equal & up) + up) ^ up) | equal | down
        plus = (down | ~(diagonal | up)) & full
        minus = up & diagonal
        if plus & last:
            edits += 1
        elif minus & last:
            edits -= 1
        plus = (plus << 1 | is_anchored) & full
        minus = (minus << 1) & full
        up = (minus | ~(diagonal | plus)) & full
        down = plus & diagonal
        if edits < best or (edits == best and not ends):
            best = edits
            ends = [at]
        elif edits == best:
            ends.append(at)
    return best, ends

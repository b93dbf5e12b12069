"""Compare two answers value by value, regardless of notation.

Two values are equal where the grounder would find one in the other: `1,234.50` and 1234.5, `March 5, 2024` and
`2024-03-05`, `Kowalska, Anna` and `Anna Kowalska`, whatever the case and the blanks. Items of lists are paired by
meaning, not by position. Similar values are not equal: one more letter makes another value.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

from slipform.addons.evidence.dates import moments_of
from slipform.addons.evidence.folding import all_words, fold
from slipform.addons.evidence.quantities import find_numbers, with_ascii_digits
from slipform.schema.document import PathSteps, join_pointer
from slipform.text.work import WorkBudget, current_budget

ValueVerdict: TypeAlias = Literal["right", "wrong", "missing", "extra"]

_MOST_PAIRS = 10_000
"""Pairs of unequal items of one list that are scored; items of longer lists are paired by position."""
_LEAF_WORK = 100
"""Units of work for comparing a value."""
_DEEPEST = 50
"""Levels of nesting that are compared; anything deeper is one value."""
_LONGEST_NUMBER = 40
_ADDRESS = re.compile(r"[@/\\]")
_MINUS = re.compile(r"(?<![\w)])-(?=[^\w\s]{0,3}\d)")
_WORD_AND_COMMA = re.compile(r"([^,\d]+),([^,\d]+)")


class LeafMatch(NamedTuple):
    """An expected value, a value of the answer, or a pair of both."""

    verdict: ValueVerdict
    """`missing`: expected but not answered; `extra`: answered but not expected."""
    expected_at: str | None
    """Its place in the expected value, as a JSON Pointer."""
    answered_at: str | None
    """Its place in the answer."""
    field: str
    """The pointer with `*` for positions in lists: the same for all items."""
    expected: Any = None
    answered: Any = None


def same_value(one: Any, other: Any) -> bool:
    """Return whether two scalars have the same meaning.

    >>> same_value("EUR 5", "eur 5"), same_value(1234.5, "1,234.50"), same_value("Anna", "Anne"), same_value("-5", "5")
    (True, True, False, False)
    """
    return not _readings(one).isdisjoint(_readings(other))


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal; values too deep to be compared are not."""
    try:
        return bool(one == other)
    except RecursionError:
        return False


def compare(expected: Any, answer: Any) -> list[LeafMatch]:
    """Pair the values of an answer with the expected ones, in their order.

    A key with the value null equals a missing key. An empty list or object counts as a value.

    >>> [match[:3] for match in compare({"tags": ["a", "b"]}, {"tags": ["B"]})]
    [('missing', '/tags/0', None), ('right', '/tags/1', '/tags/0')]
    """
    return list(_compare(expected, (), answer, ()))


def list_pairs(one: Sequence[Any], other: Sequence[Any]) -> list[tuple[int | None, int | None]]:
    """Pair the items of two lists by meaning: equal ones first, then those that share the most values.

    >>> list_pairs(["b", {"x": 1, "y": 2}], [{"x": 1, "y": 3}, "a", "b"])
    [(0, 2), (1, 0), (None, 1)]
    """
    pairs: dict[int, int] = {}
    free = set(range(len(other)))
    by_reading: dict[Hashable, list[int]] = defaultdict(list)
    for number in reversed(range(len(other))):
        for reading in _item_readings(other[number]):
            by_reading[reading].append(number)
    for number, item in enumerate(one):
        for reading in _item_readings(item):
            places = by_reading.get(reading, [])
            while places and places[-1] not in free:
                places.pop()
            if places:
                pairs[number] = places.pop()
                free.discard(pairs[number])
                break
    _pair_similar(one, other, pairs, free)
    matched = [(number, pairs.get(number)) for number in range(len(one))]
    return [*matched, *((None, number) for number in sorted(free))]


def _pair_similar(one: Sequence[Any], other: Sequence[Any], pairs: dict[int, int], free: set[int]) -> None:
    """Pair the remaining items of two lists, the most similar first; by position where there are too many."""
    left = [number for number in range(len(one)) if number not in pairs]
    if len(left) * len(free) > _MOST_PAIRS:
        pairs.update(zip(left, sorted(free), strict=False))
    else:
        budget = current_budget()
        weighed = sorted(
            (-_shared(one[a], other[b], budget), abs(a - b), a, b)
            for a in left
            for b in free
            if _kind(one[a]) == _kind(other[b])
        )
        for shared, distance, a, b in weighed:
            if a not in pairs and b in free and (shared or not distance or not isinstance(one[a], Mapping | list)):
                pairs[a] = b
                free.discard(b)
    free.difference_update(pairs.values())


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, list | tuple):
        return "list"
    return "scalar"


def _shared(one: Any, other: Any, budget: WorkBudget) -> int:
    """Return how many values two items of a list share.

    Scalars at this point share none, and neither do items that take too much work.
    """
    if _kind(one) == "scalar" or not budget.allows_trials:
        return 0
    matches = compare(one, other)
    budget.spend_on_trial(_LEAF_WORK * (1 + len(matches)))
    return sum(match.verdict == "right" for match in matches)


def _compare_items(
    expected: Sequence[Any], at: PathSteps, answer: Sequence[Any], answered_at: PathSteps
) -> Iterator[LeafMatch]:
    """Yield the comparison of two lists, item by item as they were paired."""
    for a, b in list_pairs(expected, answer):
        if a is None and b is not None:
            yield from _one_sided("extra", answer[b], (*answered_at, b))
        elif b is None and a is not None:
            yield from _one_sided("missing", expected[a], (*at, a))
        elif a is not None and b is not None:
            yield from _compare(expected[a], (*at, a), answer[b], (*answered_at, b))


def _compare(expected: Any, at: PathSteps, answer: Any, answered_at: PathSteps) -> Iterator[LeafMatch]:
    """Yield the comparison of two values, leaf by leaf."""
    if len(at) > _DEEPEST:
        verdict: ValueVerdict = "right" if is_equal(expected, answer) else "wrong"
        yield LeafMatch(verdict, join_pointer(at), join_pointer(answered_at), _field(at), expected, answer)
    elif isinstance(expected, Mapping) and isinstance(answer, Mapping) and (expected or answer):
        for key in dict.fromkeys((*expected, *answer)):
            yield from _compare_key(expected, at, answer, answered_at, key)
    elif isinstance(expected, list | tuple) and isinstance(answer, list | tuple) and (expected or answer):
        yield from _compare_items(expected, at, answer, answered_at)
    elif _kind(expected) == _kind(answer):  # scalars, or both empty
        is_same = _kind(expected) != "scalar" or same_value(expected, answer)
        verdict = "right" if is_same else "wrong"
        yield LeafMatch(verdict, join_pointer(at), join_pointer(answered_at), _field(at), expected, answer)
    else:
        yield from _one_sided("missing", expected, at)
        yield from _one_sided("extra", answer, answered_at)


def _compare_key(
    expected: Mapping[str, Any], at: PathSteps, answer: Mapping[str, Any], answered_at: PathSteps, key: str
) -> Iterator[LeafMatch]:
    """Yield the comparison of a key's values; null and absent are the same."""
    expected_value = expected.get(key)
    answered_value = answer.get(key)
    if expected_value is None and answered_value is None:
        if key in expected:
            where = join_pointer((*answered_at, key)) if key in answer else None
            yield LeafMatch("right", join_pointer((*at, key)), where, _field((*at, key)))
    elif answered_value is None:
        yield from _one_sided("missing", expected_value, (*at, key))
    elif expected_value is None:
        yield from _one_sided("extra", answered_value, (*answered_at, key))
    else:
        yield from _compare(expected_value, (*at, key), answered_value, (*answered_at, key))


def _one_sided(verdict: Literal["missing", "extra"], value: Any, path: PathSteps) -> Iterator[LeafMatch]:
    """Yield every value of a part that the other side does not have."""
    stack: list[tuple[PathSteps, Any]] = [(path, value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Mapping) and value:
            stack.extend(((*path, key), each) for key, each in reversed(list(value.items())))
        elif isinstance(value, list | tuple) and value:
            stack.extend(((*path, number), each) for number, each in reversed(list(enumerate(value))))
        elif verdict == "missing":
            yield LeafMatch("missing", join_pointer(path), None, _field(path), value, None)
        else:
            yield LeafMatch("extra", None, join_pointer(path), _field(path), None, value)


def _field(path: PathSteps) -> str:
    return join_pointer(["*" if isinstance(step, int) else step for step in path])


# -- the meanings of a value, in a form that equal values share ---------------------------------------


def _item_readings(item: Any) -> frozenset[Hashable]:
    """Return the meaning of a list item as a whole.

    Only one reading of each value in objects and lists is tried.
    """
    if _kind(item) == "scalar":
        return _readings(item)
    return frozenset({_frozen(item)})


def _frozen(value: Any, depth: int = 0) -> Hashable:
    if depth > _DEEPEST:
        return "deeper"
    if isinstance(value, Mapping):
        return frozenset((key, _frozen(each, depth + 1)) for key, each in value.items() if each is not None)
    if isinstance(value, list | tuple):
        return tuple(_frozen(each, depth + 1) for each in value)
    return min(_readings(value), key=repr)


def _readings(value: Any) -> frozenset[Hashable]:
    """Return all meanings of a scalar: a notation with two readings has both."""
    if value is None or isinstance(value, bool):
        return frozenset({("literally", value)})
    if isinstance(value, int | float):
        return frozenset({_number(Decimal(repr(value)))})
    return _text_readings(str(value).strip())


def _number(value: Decimal) -> Hashable:
    return ("number", value.normalize() if value.is_finite() else repr(value))


def _text_readings(text: str) -> frozenset[Hashable]:
    """Return all meanings of a text: a moment, an address, words, a name with the surname first, a number."""
    if moments := moments_of(text):
        return frozenset(("moment", moment) for moment in moments)
    if _ADDRESS.search(text):  # every sign of an address counts
        return frozenset({("address", re.sub(r"\s+", "", unicodedata.normalize("NFKC", text).casefold()))})
    folded = fold(text)
    plain = with_ascii_digits(text)
    if not folded:
        return frozenset({("signs", text)})
    minuses = len(_MINUS.findall(plain))  # which folding removes
    readings: set[Hashable] = {("words", minuses, folded)}
    if name := _WORD_AND_COMMA.fullmatch(text):  # a name with the surname first
        readings.add(("words", minuses, fold(f"{name[2]} {name[1]}")))
    if len(plain) <= _LONGEST_NUMBER:
        whole = (each for each in find_numbers(text, plain, all_words(text)) if each.end - each.start == len(plain))
        readings.update(_number(each.value) for each in whole)
    return frozenset(readings)

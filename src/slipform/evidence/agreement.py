"""Count how many other answers agree with each value of an answer.

Values agree that mean the same: case, accents' composition, quotes and blanks do not count, nor how a date is written.
Lists are aligned by what is in them, not by place: an answer that lists the same things in another order agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from slipform.evidence.dates import moments_of
from slipform.evidence.folding import fold
from slipform.schema.document import join_pointer

Path: TypeAlias = tuple[str, ...]
_MOST_PAIRS = 40_000
"""Pairs of items that are compared to align two lists; longer lists are compared place by place."""


def votes(value: Any, others: Sequence[Any]) -> dict[str, int]:
    """How many of the other answers have the same value as each leaf, by JSON Pointer.

    >>> votes({"tags": ["new", "red"]}, [{"tags": ["Red"]}, {"tags": ["red", "new"]}])
    {'/tags/0': 1, '/tags/1': 2}
    """
    counted = {join_pointer(path): 0 for path in leaf_paths(value)}
    for other in others:
        for path in _agreeing(value, other):
            counted[join_pointer(path)] += 1
    return counted


def leaf_paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of a value's scalars; an empty object or list has none."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from leaf_paths(each, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from leaf_paths(each, (*path, str(number)))
    else:
        yield path


def _agreeing(value: Any, other: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of the leaves of a value that another one has too."""
    if isinstance(value, Mapping):
        if isinstance(other, Mapping):
            for key in value.keys() & other.keys():
                yield from _agreeing(value[key], other[key], (*path, str(key)))
    elif isinstance(value, list | tuple):
        if isinstance(other, list | tuple):
            for here, there in _aligned(value, other):
                yield from _agreeing(value[here], other[there], (*path, str(here)))
    elif same_value(value, other):
        yield path


def _aligned(items: Sequence[Any], others: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Which items of two lists are the same one: those with the most in common first, then the nearest."""
    if len(items) * len(others) > _MOST_PAIRS:
        yield from ((place, place) for place in range(min(len(items), len(others))))
        return
    pairs = [
        (-common, abs(here - there), here, there)
        for here, item in enumerate(items)
        for there, other in enumerate(others)
        if (common := sum(1 for _ in _agreeing(item, other)))
    ]
    taken_here: set[int] = set()
    taken_there: set[int] = set()
    for _, _, here, there in sorted(pairs):
        if here not in taken_here and there not in taken_there:
            taken_here.add(here)
            taken_there.add(there)
            yield here, there


def same_value(value: Any, other: Any) -> bool:
    """Whether two scalars mean the same.

    >>> same_value("2024-03-05", "March 5, 2024"), same_value(1, True), same_value(2, 2.0)
    (True, False, True)
    """
    if isinstance(value, bool) or isinstance(other, bool) or value is None or other is None:
        return value is other
    if isinstance(value, int | float) and isinstance(other, int | float):
        return Decimal(repr(value)) == Decimal(repr(other))
    if not isinstance(value, str) or not isinstance(other, str):
        return False
    if value == other:
        return True
    folded = fold(value)
    if folded == fold(other):
        return bool(folded) or value.split() == other.split()
    return bool(set(moments_of(value)) & set(moments_of(other)))

"""Map places in the vendor's shape of an answer to places in the caller's shape.

A lift is a function of the whole value, and does not report places. So it is applied to marked values: all strings at
once as instances of `MarkedText`, and every other scalar by lifting the answer again with another value in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from slipform.enforce.judging import lifted

T = TypeVar("T")
FieldPath: TypeAlias = tuple[str, ...]
_MOST_TRIED = 300
_MOST_LIFTED = 300_000
"""The most scalars that are tried one by one, and the most that are lifted in doing so."""
MOST_STEPS = 5_000_000
"""The most keys and indices in all paths of a value: in very deep values every path is long."""


class MarkedText(str):
    """A string that knows its original place."""

    __slots__ = ("path",)
    path: FieldPath


def lifted_paths(
    by_path: Mapping[FieldPath, T], value: Any, lift: Callable[[Any], Any], unknown: T
) -> dict[FieldPath, T]:
    """Return findings by place in a value as findings by place in the lifted value.

    The result is `unknown` for places that cannot be traced.

    >>> lifted_paths({("value", "a"): 1, ("value", "b"): 2}, {"value": {"a": "x", "b": True}}, lambda v: v["value"], 0)
    {('a',): 1, ('b',): 2}
    """
    marked = lifted(_mark_leaves(value, ()), lift)
    plain = dict(scalars(marked))
    origins = {place: leaf.path for place, leaf in plain.items() if isinstance(leaf, MarkedText)}
    others = [(path, leaf) for path, leaf in scalars(value) if not isinstance(leaf, str)]
    for path, leaf in others[: min(_MOST_TRIED, _MOST_LIFTED // (len(plain) + 1))]:
        changed_leaves = dict(scalars(lifted(_replace_leaf(value, path, _different_leaf(leaf)), lift)))
        changed = [place for place in changed_leaves if place in plain and changed_leaves[place] != plain[place]]
        if changed_leaves.keys() == plain.keys() and len(changed) == 1:
            origins[changed[0]] = path
    return {place: by_path.get(origins[place], unknown) if place in origins else unknown for place in plain}


def _different_leaf(leaf: Any) -> Any:
    if leaf is None:
        return "\0"
    return not leaf if isinstance(leaf, bool) else leaf + 1


def _mark_leaves(value: Any, path: FieldPath) -> Any:
    if isinstance(value, dict):
        return {key: _mark_leaves(each, (*path, key)) for key, each in value.items()}
    if isinstance(value, list):
        return [_mark_leaves(each, (*path, str(at))) for at, each in enumerate(value)]
    if not isinstance(value, str):
        return value
    text = MarkedText(value)
    text.path = path
    return text


def _replace_leaf(value: Any, path: FieldPath, leaf: Any) -> Any:
    """Return the value with another leaf at a place."""
    if not path:
        return leaf
    if isinstance(value, dict):
        return {**value, path[0]: _replace_leaf(value[path[0]], path[1:], leaf)}
    at = int(path[0])
    return [*value[:at], _replace_leaf(value[at], path[1:], leaf), *value[at + 1 :]]


def scalars(value: Any, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yield every scalar of a JSON value with its path, in order, up to `MOST_STEPS` steps in all paths."""
    if not isinstance(value, dict | list):
        yield path, value
        return
    steps = list(path)
    stack = [_members(value)]
    left = MOST_STEPS
    while stack and left > 0:
        member = next(stack[-1], None)
        if member is None:
            stack.pop()
            if stack:
                steps.pop()
            continue
        steps.append(str(member[0]))
        if isinstance(member[1], dict | list):
            stack.append(_members(member[1]))
            continue
        left -= len(steps)
        yield tuple(steps), member[1]
        steps.pop()


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return iter(value.items())
    return enumerate(value)

"""Going on from a beginning that has left: the same value, its keys in the order in which they were sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.enforce.judge import dumps

_DECODER = json.JSONDecoder()


class _DiffersError(Exception):
    """The value does not begin like this in any order of its keys."""


def resumed(sent: str, value: Any) -> str | None:
    """The value's compact JSON, beginning with `sent`; None when no order of its keys gives that.

    >>> resumed('{"age":36,', {"name": "Ada", "age": 36})
    '{"age":36,"name":"Ada"}'
    >>> resumed('{"age":3', {"name": "Ada", "age": 40})
    """
    try:
        return sent + _tail(sent, 0, value)
    except (_DiffersError, RecursionError):
        return None


def _tail(sent: str, at: int, value: Any) -> str:
    """What is missing of the value that begins at `at`, and ends after `sent` or with it."""
    rest = sent[at:]
    if rest.startswith("{") and isinstance(value, Mapping):
        return _object_tail(sent, at + 1, dict(value))
    if rest.startswith("[") and isinstance(value, list):
        return _array_tail(sent, at + 1, value)
    text = dumps(value)
    if not text.startswith(rest):
        raise _DiffersError
    return text[len(rest) :]


def _object_tail(sent: str, at: int, left: dict[str, Any]) -> str:
    between = ""
    while at < len(sent):
        if sent[at] == "}":
            _must(not left and at + 1 == len(sent))
            return ""
        if sent[at] == ",":
            at, between = at + 1, ""
            continue
        key, end = _whole(sent, at)
        if end is None:
            key = next((name for name in left if dumps(name).startswith(sent[at:])), None)
        _must(isinstance(key, str) and key in left)
        value = left.pop(key)
        if end is None or end == len(sent):
            return dumps(key)[len(sent) - at :] + ":" + dumps(value) + _closed(",", left)
        at = end + 1
        found, end = _whole(sent, at)
        if end is None or end == len(sent):
            return _tail(sent, at, value) + _closed(",", left)
        _must(_same(found, value))
        at, between = end, ","
    if sent.endswith(","):
        _must(bool(left))
    return _closed(between, left)


def _array_tail(sent: str, at: int, items: Sequence[Any]) -> str:
    between, index = "", 0
    while at < len(sent):
        if sent[at] == "]":
            _must(index == len(items) and at + 1 == len(sent))
            return ""
        if sent[at] == ",":
            at, between = at + 1, ""
            continue
        _must(index < len(items))
        found, end = _whole(sent, at)
        if end is None or end == len(sent):
            return _tail(sent, at, items[index]) + _listed(",", items[index + 1 :])
        _must(_same(found, items[index]))
        at, between, index = end, ",", index + 1
    if sent.endswith(","):
        _must(index < len(items))
    return _listed(between, items[index:])


def _whole(sent: str, at: int) -> tuple[Any, int | None]:
    """The value that is whole in `sent`, and where it ends; no end when it is not whole."""
    try:
        return _DECODER.raw_decode(sent, at)
    except ValueError:
        return None, None


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON; unlike `==`, 1 is neither true nor 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _closed(between: str, left: Mapping[str, Any]) -> str:
    members = ",".join(f"{dumps(key)}:{dumps(value)}" for key, value in left.items())
    return (between + members if members else "") + "}"


def _listed(between: str, items: Sequence[Any]) -> str:
    members = ",".join(map(dumps, items))
    return (between + members if members else "") + "]"


def _must(fact: bool) -> None:
    if not fact:
        raise _DiffersError

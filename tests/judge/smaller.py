"""A failing case made small: whatever can be left out without the failure going away is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tests.judge.answers import Reply
from tests.judge.cases import Case
from tests.judge.proxy import Judge, Verdict

_MOST_TRIES = 600
_PLAIN: dict[str, Any] = {
    "tool": None,
    "cached": False,
    "stream": False,
    "mode": "auto",
    "strategy": "auto",
    "attempts": 1,
}


def smallest(case: Case, verdict: Verdict, judge: Judge) -> tuple[Case, Verdict]:
    """The smallest case found that fails in the same way, and what is wrong with it.

    A case that only fails after others (the proxy remembers) does not fail again alone, and is given back as it is.
    """
    written = dataclasses.replace(case, replies=tuple(verdict.replies) or None)
    found, seen = written, judge.run(written)
    if not seen.problem:
        return case, verdict
    tries, changed = 0, True
    while changed and tries < _MOST_TRIES:
        changed = False
        for smaller in _smaller(found):
            tries += 1
            tried = judge.run(smaller)
            if tried.problem[:20] == verdict.problem[:20]:
                found, seen, changed = smaller, tried, True
                break
            if tries >= _MOST_TRIES:
                break
    return found, seen


def told(case: Case, verdict: Verdict) -> str:
    """A failure, and how to see it again."""
    return (
        f"{verdict.problem}\nseed {case.seed}; to run it again, save this as case.json and run "
        f"`python -m tests.fuzz.fuzz_judge --case case.json`:\n{case.to_json()}\ncame back: {verdict.raw[-2000:]!r}"
    )


def _smaller(case: Case) -> Iterator[Case]:
    for name, value in _PLAIN.items():
        if getattr(case, name) != value:
            yield dataclasses.replace(case, **{name: value})
    if len(case.vendors) > 1:
        yield from (dataclasses.replace(case, vendors=(vendor,)) for vendor in case.vendors)
    replies = case.replies or ()
    for at, reply in enumerate(replies):
        if len(replies) > 1:
            yield dataclasses.replace(case, replies=(*replies[:at], *replies[at + 1 :]))
        for less in _smaller_reply(reply):
            yield dataclasses.replace(case, replies=(*replies[:at], less, *replies[at + 1 :]))
    yield from (dataclasses.replace(case, schema=schema) for schema in _without(case.schema) if schema != {})


def _smaller_reply(reply: Reply) -> Iterator[Reply]:
    plain = Reply(text=reply.text)
    for field in dataclasses.fields(Reply):
        value = getattr(plain, field.name)
        if value != getattr(reply, field.name):
            yield dataclasses.replace(reply, **{field.name: value})
    size = len(reply.text) // 2
    while size:
        for start in range(0, len(reply.text), size):
            yield dataclasses.replace(reply, text=reply.text[:start] + reply.text[start + size :])
        size //= 2


def _without(value: Any) -> Iterator[Any]:
    """The document with one part of it left out, the large parts first."""
    parts: list[tuple[Any, Any, Callable[[Any], Any]]] = []
    if isinstance(value, dict):
        yield from ({name: each for name, each in value.items() if name != gone} for gone in value)
        parts = [(key, part, lambda less, key=key: {**value, key: less}) for key, part in value.items()]  # type: ignore[misc]
    elif isinstance(value, list):
        yield from ([*value[:at], *value[at + 1 :]] for at in range(len(value)))
        parts = [
            (at, part, lambda less, at=at: [*value[:at], less, *value[at + 1 :]])  # type: ignore[misc]
            for at, part in enumerate(value)
        ]
    for _, part, put in parts:
        yield from map(put, _without(part))

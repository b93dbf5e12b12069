"""Read a document whose brackets close it too early, so that the text after it belongs to it.

Every reading tried here only removes or swaps closing brackets near the place where the text continues. One counts if
it is whole: it reads the text to its end, and no bracket is left over or missing there. So no record is ever lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.tokens import LAX_STRING, NUMBER, QUOTED_KEY, SPACE, STRING, RepairEdit, apply_edits

_COMMENTS: Final = rf"{SPACE}(?:(?:(?://|#)[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/){SPACE})*+"
CONTINUES: Final = re.compile(
    rf"{_COMMENTS}(?:{STRING}{SPACE}:{SPACE}(?:[\"{{\[]|{NUMBER}|true|false|null)|[,，]{_COMMENTS}(?:[{{｛]{SPACE}(?:[\"'“}}]|{QUOTED_KEY}{SPACE}[:：])|\[{SPACE}[\"{{\[]"
    rf"|[A-Za-z_$][\w$]{{0,40}}+{SPACE}:{SPACE}(?:[\"{{\[]|(?:{NUMBER}|true|false|null){SPACE}[,}}\]])"
    rf"|{LAX_STRING}{SPACE}(?:[,:=\]}}\"{{\[\d]|\Z)|(?:{NUMBER}|true|false|null){SPACE}[,\]}}]))",
    re.DOTALL,
)
"""After a document: text that looks like the rest of it."""
IS_KEY: Final = re.compile(rf"{SPACE}[:：]{SPACE}[\"{{\[]")
"""After a document: a colon and a value, as if the document were a key."""
REASON: Final = "the text goes on after the JSON as if it were not over"
BRACKET_EDITS: Final = frozenset({"missing_bracket", "wrong_bracket", "extra_bracket"})
_SWAPPED: Final = {"}": "]", "]": "}"}
_MAX_READINGS: Final = 24
_MAX_WORK: Final = 2_000_000
"""Characters read over all readings of one document."""


class Reading(NamedTuple):
    """A whole reading of a document: its edits of the original text, and its place."""

    text: str
    value: Any
    edits: tuple[RepairEdit, ...]
    start: int
    end: int


class RepairPass(NamedTuple):
    """The result of one pass over a changed text."""

    value: Any
    edits: tuple[RepairEdit, ...]
    start: int
    end: int
    first_end: int
    """The end of the first value."""
    values: int
    """The number of values in a row."""


def whole_reading(
    text: str,
    end: int,
    at: int,
    edits: tuple[RepairEdit, ...],
    attempt: Callable[[str], RepairPass],
    check: Callable[[Any], int] | None,
) -> Reading | None:
    """Return the one complete reading of a document that seems to end before `at`; None without one, or with several.

    `edits` are those of the reading that left the rest of the text out. With `check`, a reading must also be the only
    valid one.
    """
    allowed = max(4, min(_MAX_READINGS, _MAX_WORK // max(1, end)))
    readings: list[tuple[int, Reading]] = []
    for changes in islice(_changes(text, at, edits), allowed):
        try:
            attempted = attempt(_with_changes(text, changes))
        except CannotRepair:
            continue
        if not _is_whole(attempted, text, end) or changes[-1][0] >= attempted.end:
            continue
        merged = _merge_edits(text, changes, attempted.edits)
        if merged is not None:
            cost = sum(edit.kind in BRACKET_EDITS for edit in merged)
            start = min(attempted.start, merged[0].position)
            written = apply_edits(text, merged, start, attempted.end)
            readings.append((cost, Reading(written, attempted.value, merged, start, attempted.end)))
    return _only_one(readings, check)


def _only_one(readings: list[tuple[int, Reading]], check: Callable[[Any], int] | None) -> Reading | None:
    """Return the reading that is valid or has the lowest cost, if all such readings have the same value; else None."""
    if check is not None and (valid := [each for each in readings if check(each[1].value) == 0]):
        readings = valid
    least = min((cost for cost, _ in readings), default=0)
    cheapest = [reading for cost, reading in readings if cost == least]
    try:
        is_one = all(each.value == cheapest[0].value for each in cheapest[1:])
    except RecursionError:  # values too deep to compare
        return None
    if cheapest and is_one:
        return cheapest[0]
    return None


def _is_whole(attempted: RepairPass, text: str, end: int) -> bool:
    if attempted.values > 1 or CONTINUES.match(text, attempted.end, end):
        return False
    return not any(
        edit.kind in ("extra_bracket", "missing_bracket") and edit.position >= attempted.first_end
        for edit in attempted.edits
    )


def _changes(text: str, at: int, edits: tuple[RepairEdit, ...]) -> Iterator[tuple[tuple[int, str], ...]]:
    """Yield possible changes: to closing brackets directly before `at`, and to brackets repaired before it."""
    closers = _closers_before(text, at)
    for count in range(1, len(closers) + 1):
        yield tuple((position, " ") for position in closers[-count:])
    repaired = [edit.position for edit in edits if edit.kind in BRACKET_EDITS and edit.position < at]
    singles = dict.fromkeys([*closers, *(each for each in repaired if text[each : each + 1] in _SWAPPED)])
    for position in singles:
        yield ((position, " "),)
        yield ((position, _SWAPPED[text[position]]),)


def _closers_before(text: str, at: int) -> list[int]:
    """Return the positions of the closing brackets right before `at`."""
    while at > 0 and (text[at - 1].isspace() or text[at - 1] in ",，"):
        at -= 1
    closers: list[int] = []
    while at > 0 and (text[at - 1].isspace() or text[at - 1] in _SWAPPED):
        at -= 1
        if text[at] in _SWAPPED:
            closers.append(at)
    return closers[::-1]


def _with_changes(text: str, changes: tuple[tuple[int, str], ...]) -> str:
    """Return the text with other characters at some positions, which are in order."""
    pieces: list[str] = []
    done = 0
    for position, char in changes:
        pieces += (text[done:position], char)
        done = position + 1
    return "".join([*pieces, text[done:]])


def _merge_edits(
    text: str, changes: tuple[tuple[int, str], ...], edits: tuple[RepairEdit, ...]
) -> tuple[RepairEdit, ...] | None:
    """Return the edits with the changed brackets among them; None when an edit covers one."""
    own = [
        RepairEdit("extra_bracket", position, text[position], "")
        if char == " "
        else RepairEdit("wrong_bracket", position, text[position], char)
        for position, char in changes
    ]
    for edit in edits:
        if any(edit.position <= position < edit.position + len(edit.before) for position, _ in changes):
            return None
    return tuple(sorted([*edits, *own], key=lambda edit: (edit.position, bool(edit.before))))

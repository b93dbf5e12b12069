"""How broken JSON becomes JSON: `repair`, `Repaired`, the record of edits.

It never builds a value. It walks the text in long strides where the text is right and notes an edit where it is not;
the text with its edits is then parsed by a strict parser, which has the last word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.text.repair.machine import CannotRepair, RepairState
from slipform.text.repair.tokens import QUOTED_KEY_AHEAD, SPACE, RepairEdit, apply_edits
from slipform.text.repair.values import read
from slipform.text.strict import parse

NanPolicy = Literal["refuse", "null"]
"""What becomes of NaN and Infinity, which JSON cannot say."""
Check = Callable[[Any], int]
"""Counts what is wrong with a value; 0 when it fits."""
MAX_READINGS: Final = 24
"""How many other readings of an ambiguous text are tried against a check."""
_MOST_COUNTED: Final = 3_000
"""Violations counted over all readings of one text, after which no other reading is tried."""
_new: Final = tuple.__new__
_BLANK: Final = re.compile(SPACE)
_SURROGATE: Final = re.compile("[\ud800-\udfff]+")


@dataclass(frozen=True, slots=True)
class Repaired:
    """A document made well-formed: its text and value, where it stood, and each edit in order.

    `text` is the original from `start` to `end` with `edits` made.
    """

    text: str
    value: Any
    edits: tuple[RepairEdit, ...] = ()
    start: int = 0
    end: int = 0
    parts: tuple[tuple[int, int], ...] = ()
    """Where each value stood, when several in a row were made one list."""
    in_string: bool = False
    """Whether the text ended inside a string."""
    hinted: bool = False
    """Whether the check chose this reading over the plain one."""


def repair(text: str, check: Check | None = None, *, nan: NanPolicy = "refuse") -> Repaired:
    """Make `text` well-formed JSON, or raise `JsonEnforcementError` saying where and why that cannot be done.

    The text must be one JSON document, however broken; use `load` to find one among other text. With `check`, a text
    that can be read in several ways is read in the way that the check likes best.

    >>> repaired = repair("{'a': True, b: [1, 2,], }")
    >>> repaired.value
    {'a': True, 'b': [1, 2]}
    >>> [edit.kind for edit in repaired.edits]
    ['wrong_quote', 'literal', 'unquoted_key', 'trailing_comma', 'trailing_comma']
    """
    try:
        return Repaired(text, parse(text), start=0, end=len(text))
    except ValueError:
        pass
    if not text.strip():
        raise EmptyAnswerError("The answer is empty", hint="Ask again.")
    try:
        found = repair_at(text, 0, len(text), nan=nan, check=check)
    except CannotRepair as refusal:
        raise not_json(text, refusal) from None
    rest = _BLANK.match(text, found.end)
    if rest is not None and rest.end() < len(text):
        raise not_json(text, CannotRepair(rest.end(), "there is other text after it"))
    return found


def repair_at(
    text: str, start: int, end: int, *, nan: NanPolicy, check: Check | None = None, many: bool = True
) -> Repaired:
    """Repair the document that begins at `start`; raises `CannotRepair` when there is none."""
    cleaned = _without_surrogates(text)
    first = _BLANK.match(cleaned, start, end)
    begin = first.end() if first else start
    braceless = cleaned[begin : begin + 1] not in ("{", "[") and _lacks_braces(cleaned, begin, end)

    def one(taken: dict[int, int] | None) -> tuple[Repaired, RepairState]:
        m = read(cleaned, begin, end, many=many, nan=nan, taken=taken, braceless=braceless)
        return _build(text, cleaned, begin, m), m

    plain, m = one(None)
    if check is None or not m.choices or (faults := check(plain.value)) == 0:
        return plain
    return _best_reading(plain, faults, m.choices, check, one)


def _best_reading(
    plain: Repaired,
    faults: int,
    choices: list[int],
    check: Check,
    one: Callable[[dict[int, int]], tuple[Repaired, RepairState]],
) -> Repaired:
    """Try the other reading at each doubtful place, keeping what the check likes better."""
    best, taken, counted = plain, dict[int, int](), 0
    for at in sorted(set(choices))[:MAX_READINGS]:
        for reading in (1, 2):
            try:
                other, _ = one({**taken, at: reading})
            except CannotRepair:
                break
            fewer = check(other.value)
            counted += fewer
            if fewer < faults:
                best, faults = other, fewer
                taken[at] = reading
            if faults == 0:
                break
        if faults == 0 or counted > _MOST_COUNTED:
            break
    if best is plain:
        return plain
    return Repaired(best.text, best.value, best.edits, best.start, best.end, best.parts, best.in_string, hinted=True)


def _lacks_braces(text: str, start: int, end: int) -> bool:
    """A document that begins with a quoted key and its colon has lost its braces."""
    return QUOTED_KEY_AHEAD.match(text, start, end) is not None


def _build(text: str, cleaned: str, start: int, m: RepairState) -> Repaired:
    if not m.roots:
        raise CannotRepair(start, "there is no JSON value here")
    edits = [_new(RepairEdit, edit) for edit in m.edits]
    lead = cleaned[:start].lstrip(" \t\r\n")
    if lead and not _BLANK.sub("", lead):
        edits.insert(0, RepairEdit("invisible", 0, cleaned[:start], ""))
    begin = min(m.roots[0][0], edits[0].position) if edits else m.roots[0][0]
    written = apply_edits(cleaned, edits, begin, m.position)
    try:
        value = parse(written)
    except ValueError as error:
        raise CannotRepair(m.roots[0][0], f"it cannot be read even after repair ({error})") from error
    if cleaned is not text:
        edits = _with_surrogates(text, edits, begin, m.position)
    parts = tuple(m.roots) if len(m.roots) > 1 else ()
    return Repaired(written, value, tuple(edits), begin, m.position, parts, m.in_string)


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: "\ufffd" * len(found.group()), text)
    return text


def _with_surrogates(text: str, edits: list[RepairEdit], start: int, end: int) -> list[RepairEdit]:
    """Note the lone surrogates that were replaced between the other edits."""
    noted: list[RepairEdit] = []
    done = start
    for edit in [*edits, RepairEdit("", end, "", "")]:
        noted.extend(
            RepairEdit("lone_surrogate", found.start(), found.group(), "\ufffd" * len(found.group()))
            for found in _SURROGATE.finditer(text, done, edit.position)
        )
        done = edit.position + len(edit.before)
        noted.append(edit._replace(before=text[edit.position : done]))
    return noted[:-1]


def not_json(text: str, refusal: CannotRepair) -> JsonEnforcementError:
    """The error for a text that holds no JSON, with line and column."""
    at = min(refusal.position, len(text))
    line = text.count("\n", 0, at) + 1
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return JsonEnforcementError(
        f"The answer holds no JSON that can be read: {refusal.reason}",
        where=f"line {line}, column {column} (character {at})",
        hint="Ask the model for JSON only.",
        details={"position": at, "line": line, "column": column, "reason": refusal.reason},
    )

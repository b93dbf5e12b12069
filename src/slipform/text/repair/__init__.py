"""Repair broken JSON in one linear pass, and record every edit: `repair`, `Repaired`.

The pass never builds a value. It skips valid parts of the text in long strides and records an edit elsewhere; the text
with its edits is then parsed by a strict parser, which decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal

from slipform.errors import EmptyAnswerError, JsonEnforcementError
from slipform.text.repair.continuation import (
    BRACKET_EDITS,
    CONTINUES,
    IS_KEY,
    REASON,
    Reading,
    RepairPass,
    whole_reading,
)
from slipform.text.repair.layers import Layer, layer_kind, remove_layer
from slipform.text.repair.machine import CannotRepair, RepairState
from slipform.text.repair.tokens import (
    GOES_ON,
    QUOTED_KEY_AHEAD,
    SPACE,
    RepairEdit,
    apply_edits,
    outside_strings,
)
from slipform.text.repair.values import read
from slipform.text.strict import parse
from slipform.text.work import bounded_work, current_budget, spend

NanPolicy = Literal["refuse", "null"]
"""The replacement of NaN and Infinity, which JSON does not have."""
Check = Callable[[Any], int]
"""Counts the violations of a value; 0 when it is valid."""
MAX_READINGS: Final = 24
"""The most ambiguous places of a text that are tried in other readings."""
_MORE: Final = re.compile(r"\s*+[,}\]]")
_MAX_AHEAD: Final = 2_000
"""Characters after a document in which closing brackets are counted."""
_MAX_BRACKETS: Final = 6
"""The most brackets of a text that are tried in their other reading."""
_MAX_COUNTED: Final = 3_000
"""Violations in all readings of one text, after which no other reading is tried."""
_new_tuple: Final = tuple.__new__
_BLANK: Final = re.compile(SPACE)
_COMMENT_AHEAD: Final = re.compile(rf"{SPACE}(?://|#|/\*)")
_KIND: Final = itemgetter(0)
_MAX_DOUBTED: Final = 3
"""With more missing commas than this, the text is written without them."""
_NUMBER_AHEAD: Final = re.compile(r"[ \t]*+[0-9.]")
_LISTED_BEFORE: Final = re.compile(r",\s*[-0-9.]+[ \t]*\Z")
_LISTED_AFTER: Final = re.compile(r"[ \t]*+[0-9.]++\s*+,")
"""A comma before or after two numbers with a blank between them."""
_COMMA_IN_STRING: Final = frozenset({',"', ",'", ",”"})
_MAX_GAP: Final = 40
"""Characters around an inserted comma that are looked at."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]+")


class RepairSource:
    """A text whose documents are repaired, and the state that their repairs share."""

    __slots__ = ("_layers", "cleaned", "first", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.cleaned = _without_surrogates(text)
        """The text with replacement characters for lone surrogates."""
        blanks = _BLANK.match(self.cleaned)
        self.first = blanks.end() if blanks else 0
        """The position of the first character that is not blank."""
        self._layers: dict[str, tuple[Layer, RepairSource]] = {}

    def without_layer(self, at: int, end: int) -> tuple[Layer, RepairSource] | None:
        """Return the text without its outer escapes, if the document at `at` is escaped as a whole; else None."""
        kind = layer_kind(self.cleaned, at, end)
        if not kind:
            return None
        if kind not in self._layers or self._layers[kind][0].start > at:
            layer = remove_layer(self.cleaned, at, kind)
            spend(len(self.cleaned) - at)
            self._layers[kind] = (layer, RepairSource(layer.text))
        return self._layers[kind]


@dataclass(frozen=True, slots=True)
class Repaired:
    """A repaired document: its text and value, its position, and each edit in order.

    `text` is the original from `start` to `end` with `edits` applied.
    """

    text: str
    value: Any
    edits: tuple[RepairEdit, ...] = ()
    start: int = 0
    end: int = 0
    parts: tuple[tuple[int, int], ...] = ()
    """The positions of the values, when several in a row became one list."""
    in_string: bool = False
    """Whether the text ended inside a string."""
    hinted: bool = False
    """Whether the check chose this reading over the first one."""


def repair(text: str, check: Check | None = None, *, nan: NanPolicy = "refuse") -> Repaired:
    """Return `text` as well-formed JSON; raises `JsonEnforcementError` with the position and the reason.

    The text must be one JSON document, however broken; use `load` to find one among other text. With `check`, an
    ambiguous text is read in the way that has the fewest violations.

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
        raise EmptyAnswerError("The answer is empty", hint="Retry the request.")
    try:
        with bounded_work(len(text)):
            repaired = repair_at(RepairSource(text), 0, len(text), nan=nan, check=check)
    except CannotRepair as error:
        raise not_json(text, error) from None
    rest = _BLANK.match(text, repaired.end)
    if rest is not None and rest.end() < len(text):
        raise not_json(text, CannotRepair(rest.end(), "there is other text after it"))
    return repaired


def repair_at(
    source: RepairSource, start: int, end: int, *, nan: NanPolicy, check: Check | None = None, many: bool = True
) -> Repaired:
    """Return the repaired document that begins at `start`; raises `CannotRepair` when there is none.

    Text after the document that continues it is read with it if that can be done in one way, and is an error otherwise.
    """
    cleaned = source.cleaned
    first = _BLANK.match(cleaned, start, end)
    begin = first.end() if first else start
    if (unescaped := _without_layer(source, begin, end, nan, check, many)) is not None:
        return unescaped
    braceless = cleaned[begin : begin + 1] not in ("{", "[") and _lacks_braces(cleaned, begin, end)

    def read_once(readings: dict[int, int] | None) -> tuple[Repaired, RepairState]:
        m = read(cleaned, begin, end, many=many, nan=nan, readings=readings, braceless=braceless)
        return _build(source, cleaned, begin, m), m

    def read_changed(changed: str) -> RepairPass:
        m = read(changed, begin, end, many=False, nan=nan, braceless=braceless)
        repaired = _build(source, changed, begin, m)
        return RepairPass(repaired.value, repaired.edits, repaired.start, repaired.end, m.roots[0][1], len(m.roots))

    try:
        plain, m = read_once(None)
    except CannotRepair as error:
        reading = None if error.final else whole_reading(cleaned, end, error.position, (), read_changed, check)
        if reading is None:
            raise
        return Repaired(*reading[:5])
    plain, m = _with_fewest_bracket_edits(plain, m, read_once)
    at = _continues_at(cleaned, end, plain, m) if plain.end < end or len(m.roots) > 1 else -1
    if at >= 0:
        reading = whole_reading(cleaned, end, at, plain.edits, read_changed, check)
        if reading is None:
            raise CannotRepair(at, REASON)
        return Repaired(*reading[:5])
    if plain.end < end and _may_close_more(cleaned, plain.end, end):
        longer = whole_reading(cleaned, end, plain.end, plain.edits, read_changed, check)
        if longer is not None and not _loses_text(longer, plain.end):
            return Repaired(*longer[:5])
    if check is None or not m.choices or (violations := check(plain.value)) == 0:
        return plain
    return _best_reading(plain, violations, m.choices, check, read_once)


def _without_layer(
    source: RepairSource, start: int, end: int, nan: NanPolicy, check: Check | None, many: bool
) -> Repaired | None:
    """Return a document that was escaped as a whole; None when it was not, or cannot be read without its escapes."""
    outer = source.without_layer(start, end)
    if outer is None:
        return None
    layer, unescaped = outer
    try:
        inner = repair_at(unescaped, layer.decoded(start), layer.decoded(end), nan=nan, check=check, many=many)
    except CannotRepair:
        return None
    stop = layer.original(inner.end)
    edit = RepairEdit(layer.kind, start, source.cleaned[start:stop], inner.text)
    return Repaired(inner.text, inner.value, (edit,), start, stop, (), inner.in_string, inner.hinted)


def _continues_at(text: str, end: int, plain: Repaired, m: RepairState) -> int:
    """Return where the text continues as if the document were not complete; -1 where it does not."""
    if _COMMENT_AHEAD.match(text, plain.end, end):  # which may continue to the end of the text, after each document
        spend(max(0, text.find("\n", plain.end, end) - plain.end) or end - plain.end)
    if isinstance(plain.value, dict) and IS_KEY.match(text, plain.end, end):
        raise CannotRepair(plain.end, REASON)
    if CONTINUES.match(text, plain.end, end):
        return plain.end
    if len(m.roots) > 1 and any(edit[0] == "extra_bracket" and edit[1] >= m.roots[0][1] for edit in m.edits):
        return m.roots[1][0]
    return -1


def _may_close_more(text: str, start: int, end: int) -> bool:
    """Return whether a key and its value follow a document, and may close more brackets than they open."""
    if not GOES_ON.match(text, start, end):
        return False
    depth = 0
    for token in outside_strings(text, start, min(end, start + _MAX_AHEAD)):
        what = token.group()
        if what in "{[":
            depth += 1
        elif what in "}]" and depth:
            depth -= 1
            if depth == 0 and not _MORE.match(text, token.end(), end):
                return False
        else:
            return True
    return end > start + _MAX_AHEAD


def _loses_text(reading: Reading, at: int) -> bool:
    """Return whether a reading omits words after `at`."""
    return any(edit.kind in ("stray_text", "ellipsis", "truncated") and edit.position >= at for edit in reading.edits)


def _bracket_cost(repaired: Repaired) -> int:
    return sum(max(len(edit.before), len(edit.after)) for edit in repaired.edits if edit.kind in BRACKET_EDITS)


def _with_fewest_bracket_edits(
    plain: Repaired,
    plain_state: RepairState,
    read_once: Callable[[dict[int, int] | None], tuple[Repaired, RepairState]],
) -> tuple[Repaired, RepairState]:
    """Return the reading that changes the fewest brackets.

    At each ambiguous bracket, the alternative is tried; of readings with as many changes, the first is returned.
    """
    if not plain_state.bracket_choices or _bracket_cost(plain) <= 1:
        return plain, plain_state
    best = (plain, plain_state)
    least = _bracket_cost(plain)
    readings: dict[int, int] = {}
    budget = current_budget()
    for position in list(dict.fromkeys(plain_state.bracket_choices))[:_MAX_BRACKETS]:
        try:
            with budget.trial():
                other, other_state = read_once({**readings, position: 1})
        except CannotRepair:
            continue
        cost = _bracket_cost(other)
        if cost < least and other.end >= plain.end and len(other_state.roots) <= len(plain_state.roots):
            best = (other, other_state)
            least = cost
            readings[position] = 1
        if least <= 1 or not budget.allows_trials:
            break
    return best


def _best_reading(
    plain: Repaired,
    violations: int,
    choices: list[int],
    check: Check,
    read_once: Callable[[dict[int, int]], tuple[Repaired, RepairState]],
) -> Repaired:
    """Return the reading with the fewest violations; at each ambiguous place, the other readings are tried."""
    best = plain
    readings: dict[int, int] = {}
    total = 0
    budget = current_budget()
    for position in sorted(set(choices))[:MAX_READINGS]:
        for reading in (1, 2):
            try:
                with budget.trial():
                    other, _ = read_once({**readings, position: reading})
                    count = check(other.value)
            except CannotRepair:
                break
            total += count
            if count < violations:
                best = other
                violations = count
                readings[position] = reading
            if violations == 0:
                break
        if violations == 0 or total > _MAX_COUNTED or not budget.allows_trials:
            break
    if best is plain:
        return plain
    return Repaired(best.text, best.value, best.edits, best.start, best.end, best.parts, best.in_string, hinted=True)


def _lacks_braces(text: str, start: int, end: int) -> bool:
    """Return whether a document begins with a quoted key and its colon, without the brace before them."""
    return QUOTED_KEY_AHEAD.match(text, start, end) is not None


def _build(source: RepairSource, cleaned: str, start: int, m: RepairState) -> Repaired:
    """Return the document that a pass over `cleaned` has read: the source's text, or another reading of it."""
    if not m.roots:
        raise CannotRepair(start, "there is no JSON value here")
    edits = [_new_tuple(RepairEdit, edit) for edit in m.edits]
    if 0 < list(map(_KIND, m.edits)).count("missing_comma") <= _MAX_DOUBTED:
        edits = [_doubted(cleaned, edit) if edit.kind == "missing_comma" else edit for edit in edits]
    if start <= source.first and cleaned[:start].lstrip(" \t\r\n"):
        edits.insert(0, RepairEdit("invisible", 0, cleaned[:start], ""))
    begin = min(m.roots[0][0], edits[0].position) if edits else m.roots[0][0]
    repaired_text = apply_edits(cleaned, edits, begin, m.position)
    try:
        value = parse(repaired_text)
    except ValueError as error:
        raise CannotRepair(m.roots[0][0], f"it cannot be read even after repair ({error})") from error
    if cleaned is source.cleaned and cleaned is not source.text:
        edits = _with_surrogates(source.text, edits, begin, m.position)
    parts = tuple(m.roots) if len(m.roots) > 1 else ()
    return Repaired(repaired_text, value, tuple(edits), begin, m.position, parts, m.in_string)


def _doubted(text: str, edit: RepairEdit) -> RepairEdit:
    """Return a missing comma as a guess where a blank may divide a number, or the string before ends in a comma."""
    position = edit.position
    before = text[max(0, position - _MAX_GAP) : position]
    last = before.rstrip()[-2:]
    is_guess = last in _COMMA_IN_STRING
    if last[-1:].isdigit():
        after = text[position : position + _MAX_GAP]
        # `[1 2 3]` has its blanks for commas; `[2 60, 5]` has commas, too.
        is_listed = _LISTED_BEFORE.search(before) is not None or _LISTED_AFTER.match(after) is not None
        is_guess = is_listed and _NUMBER_AHEAD.match(after) is not None and before[-1] not in "\r\n"
    return edit._replace(kind="guessed_comma") if is_guess else edit


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda match: "\ufffd" * len(match.group()), text)
    return text


def _with_surrogates(text: str, edits: list[RepairEdit], start: int, end: int) -> list[RepairEdit]:
    """Return the edits with those of lone surrogates between them."""
    result: list[RepairEdit] = []
    position = start
    for edit in [*edits, RepairEdit("", end, "", "")]:
        result.extend(
            RepairEdit("lone_surrogate", match.start(), match.group(), "\ufffd" * len(match.group()))
            for match in _SURROGATE.finditer(text, position, edit.position)
        )
        position = edit.position + len(edit.before)
        result.append(edit._replace(before=text[edit.position : position]))
    return result[:-1]


def not_json(text: str, error: CannotRepair) -> JsonEnforcementError:
    """Return the error for a text without JSON, with line and column."""
    position = min(error.position, len(text))
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return JsonEnforcementError(
        f"The answer holds no JSON that can be read: {error.reason}",
        where=f"line {line}, column {column} (character {position})",
        hint="Ask the model for JSON only.",
        details={"position": position, "line": line, "column": column, "reason": error.reason},
    )

"""Repair values, one after the other, to the end of a document: the main loop of the pass."""

from __future__ import annotations

import re
from typing import Final

from slipform.text.repair.fast_paths import run
from slipform.text.repair.machine import (
    AT_END,
    AT_KEY,
    AT_VALUE,
    CALL_FRAME,
    DONE,
    INSERTED,
    PARENTHESES,
    CannotRepair,
    RepairState,
)
from slipform.text.repair.scalars import BARE_WORK, call_at, read_scalar
from slipform.text.repair.strings import QuotedSpan, delimiter_at, read_string, requote
from slipform.text.repair.structure import (
    after_root,
    close,
    drop_key,
    finish,
    grouped_number,
    net_closers,
    read_key,
    reopen,
)
from slipform.text.repair.tokens import (
    BLANK,
    CONTAINER,
    EMBEDDED,
    ITEM,
    KEY_AHEAD,
    LAX_THEN,
    PREFIX,
    QUOTED_KEY,
    QUOTED_KEY_AHEAD,
    SCALAR,
    SINGLE_THEN,
    SPACE,
    STRICT_KEY,
    STRICT_THEN,
)
from slipform.text.work import current_budget

_STRUCTURE: Final = re.compile(r"[}\]\"]")
_STEP_WORK: Final = 50
_EDIT_WORK: Final = 20
_MAX_BALANCES: Final = 8
"""How often the brackets of the rest of a text are counted."""
_WORDS_BEFORE: Final = re.compile(
    r"(?!true\b|false\b|null\b)[^\W\d_]++(?:[ \t]++[^\W\d_]++){0,3}+:?+\s++(?=\{\s*+[\"'}])"
)
"""Words between two objects of an array."""
_ASSIGNED: Final = re.compile(rf"{QUOTED_KEY}{SPACE}=>?{SPACE}{SCALAR}{SPACE}[,}}]")
"""A quoted key, an equals sign in place of its colon, and a value."""
_VALUE_STARTS: Final = frozenset("{[-+.0123456789")


def read(
    text: str,
    start: int,
    end: int,
    *,
    many: bool = True,
    nan: str = "refuse",
    readings: dict[int, int] | None = None,
    braceless: bool = False,
) -> RepairState:
    """Return the finished pass over the document that begins at `start`; raises `CannotRepair` without one.

    `many` makes several objects in a row one list; `braceless` inserts the missing opening brace.

    >>> [edit[0] for edit in read("[1,2,", 0, 5).edits]
    ['trailing_comma', 'missing_bracket']
    """
    m = RepairState(text, start, end, many=many, nan=nan, readings=readings or {})
    if braceless:
        m.begin_root(start)
        m.edit("missing_bracket", start, "", "{")
        m.push("{")
    budget = current_budget()
    allowed = budget.left
    try:
        while m.state != DONE and m.work <= allowed:
            m.work += _STEP_WORK
            _step(m)
    finally:
        budget.spend(m.work + m.position - start + _EDIT_WORK * len(m.edits))
    if len(m.roots) > 1:
        first = m.roots[0][0]
        index = next((i for i, edit in enumerate(m.edits) if edit[1] >= first), len(m.edits))
        m.edits.insert(index, ("missing_bracket", first, "", "["))
        last = m.roots[-1][1]
        m.edit_before("missing_bracket", last, "", "]")
    return m


def _step(m: RepairState) -> None:
    if m.state == AT_KEY:
        read_key(m)
    elif m.state == AT_VALUE:
        read_value(m)
    elif m.stack:
        read_after(m)
    else:
        after_root(m)


def read_value(m: RepairState) -> None:
    """Read a value."""
    if not m.stack:
        if m.roots and _another_root(m):
            return
    elif m.stack[-1] == "[":
        run(m)
        if m.state != AT_VALUE or (m.stack[-1] == "{" and not m.colon):
            return
    char = m.peek()
    at = m.position
    if char == "{" or char == "[":
        _open(m, char, at)
    elif char == '"':
        _string(m, at)
    elif char == "'" and (match := SINGLE_THEN[m.where()].match(m.text, at, m.end)):
        m.edit("wrong_quote", at, match.group(), f'"{match.group()[1:-1]}"')
        m.begin_root(at)
        m.end_value(match.end(), at)
    else:
        _odd_value(m, char, at)


def _another_root(m: RepairState) -> bool:
    """Read one more of several documents in a row; return False when it needs repair."""
    match = CONTAINER.match(m.text, m.position, m.end)
    if match is None:
        return False
    m.begin_root(match.start(1))
    m.end_value(match.end())
    m.last_close = match.end() - 1
    return True


def _open(m: RepairState, char: str, at: int) -> None:
    m.begin_root(at)
    m.accept(char)
    m.push(char)


def _string(m: RepairState, at: int) -> None:
    """Read a string, plain ones by one regular expression."""
    where = m.where()
    text = m.text
    end = m.end
    if where == ITEM and _member_among_items(m, at):
        return
    if at not in m.readings:
        if match := STRICT_THEN[where].match(text, at, end):
            m.begin_root(at)
            m.end_value(match.end(), at)
            return
        match = LAX_THEN[where].match(text, at, end)
        if match is not None and not text.startswith('""', at):
            _string_read(m, QuotedSpan(at, at + 1, match.end() - 1, match.end(), '"', True, False))
            return
    _odd_string(m, at)


def _odd_string(m: RepairState, at: int) -> None:
    """Read a string with an irregular end; where that is a guess, record the position for other readings.

    The first guess is that it is JSON in quotes that were not escaped.
    """
    is_first_reading = at not in m.readings
    embedded = EMBEDDED.match(m.text, at, m.end) if is_first_reading else None
    if embedded is not None:
        m.choices.append(at)
        _string_read(m, QuotedSpan(at, at + 1, embedded.end() - 1, embedded.end(), '"', True, True))
        return
    if m.colon and STRICT_KEY.match(m.text, at, m.end) and _lacks_opening_brace(m, at):
        m.edit("missing_bracket", at, "", "{")
        m.push("{")
        return
    span = read_string(m, at, m.where(), skip=m.readings.get(at, 0))
    if span is None:
        raise CannotRepair(at, "a string has no end that can be told from its content")
    if span.guessed:
        m.choices.append(at)
    _string_read(m, span)


def _lacks_opening_brace(m: RepairState, at: int) -> bool:
    """Return whether a key in the place of a value lacks the brace before it: one brace too many follows."""
    m.balances += 1
    if m.balances > _MAX_BALANCES:
        return False
    m.work += m.end - at
    return net_closers(m.text, at, m.end)[0] > m.stack.count("{")


def _string_read(m: RepairState, span: QuotedSpan) -> None:
    m.begin_root(span.start)
    m.edits.extend(requote(m.text, span))
    m.in_string = not span.closed
    m.end_value(span.end, span.start)


def _member_among_items(m: RepairState, at: int) -> bool:
    """Repair the bracket before a key in the place of an item; return whether that was possible."""
    ahead = QUOTED_KEY_AHEAD.match(m.text, at, m.end)
    if ahead is None:
        return False
    if m.comma < 0 and (opening := m.last_before(at, "[")) >= 0:
        m.edit_before("wrong_bracket", opening, "[", "{")
        m.stack[-1] = "{"
    elif m.comma >= 0 and (closing := m.last_before(m.comma, "}")) >= 0:
        if _has_member(m, closing, m.text[at : ahead.end()]):
            m.edit("missing_bracket", at, "", "{")
            m.push("{")
            return True
        if _lacks_closing_bracket(m, at):
            m.edit_before("missing_bracket", m.comma, "", "]")
            m.stack.pop()
        else:
            m.last_close = closing
            reopen(m, m.comma)
    elif m.comma >= 0 and len(m.stack) > 1 and m.stack[-2] == "{":
        m.edit_before("missing_bracket", m.comma, "", "]")
        m.stack.pop()
    elif m.comma < 0 and m.edits and m.edits[-1][0] == "missing_item" and m.stack[-2:-1] == ["{"]:
        _, comma, run, _ = m.edits.pop()
        m.edit("missing_bracket", comma, "", "]")
        if len(run) > 1:
            m.edit("extra_comma", comma + 1, run[1:], "")
        m.comma = comma
        m.stack.pop()
    else:
        return False
    m.state = AT_KEY
    return True


def _lacks_closing_bracket(m: RepairState, at: int) -> bool:
    """Return whether the list around a key lacks its end: the rest closes everything open except one list."""
    m.balances += 1
    if m.balances > _MAX_BALANCES or m.stack[-2:-1] != ["{"]:
        return False
    m.work += m.end - at
    return net_closers(m.text, at, m.end) == (m.stack.count("{"), m.stack.count("[") - 1)


def _has_member(m: RepairState, closing: int, key: str) -> bool:
    """Whether the object that ends at `closing` has a key, written alike, as the text before it shows."""
    start = m.text.rfind(key, max(0, closing - 4_000), closing)
    if start < 0:
        return False
    m.work += closing - start
    return net_closers(m.text, start, closing)[0] == 0


def _odd_value(m: RepairState, char: str, at: int) -> None:
    """Repair the text in the place of a value."""
    if char == "":
        if m.colon:
            drop_key(m, m.key)
        else:
            finish(m)
    elif char in ",}])":
        _value_missing(m, char)
    elif char == ":":
        m.drop("stray_text")
    elif char in "{[":
        _open(m, char, at)
    elif char == "(":
        m.begin_root(at)
        m.edit("wrong_bracket", at, m.text[at], "[")
        m.position += 1
        m.parentheses.append(at)
        m.push(PARENTHESES)
    elif delimiter_at(m.text, at, m.end):
        _odd_string(m, at)
    else:
        _bare_value(m, at)


def _value_missing(m: RepairState, char: str) -> None:
    if m.colon:
        m.edit("missing_value", m.position, "", "null")
        m.end_value(m.position)
    elif not m.stack:
        raise CannotRepair(m.position, "there is no JSON value here")
    elif char == ",":
        m.drop_commas("missing_item")
    else:
        close(m, char)


def _reads_before_value(m: RepairState, at: int) -> bool:
    """Read text that may precede a value: a call around it, a prefix of its quote, words; return False without any."""
    argument = call_at(m.text, at, m.end)
    if argument >= 0 and m.stack:
        m.edit("call", at, m.text[at:argument], "")
        m.position = argument
        m.push(CALL_FRAME)
        return True
    if prefix := PREFIX.match(m.text, at, m.end):
        m.edit("wrong_quote", at, prefix.group(), "")
        m.position = prefix.end()
        return True
    if m.where() == ITEM and m.text[at] == "0" and grouped_number(m, at):
        return True
    if m.where() == ITEM and m.comma >= 0 and (words := _WORDS_BEFORE.match(m.text, at, m.end)):
        m.edit("stray_text", at, words.group(), "")
        m.position = words.end()
        return True
    return False


def _bare_value(m: RepairState, at: int) -> None:
    """Read a value without quotes: a literal, a number, or words."""
    if _reads_before_value(m, at):
        return
    scalar = read_scalar(m.text, at, m.end, m.where(), m.readings.get(at, 0) == 1)
    if scalar is None:
        m.skip_stray(at)
        return
    m.work += BARE_WORK * len(scalar.before)
    kind = scalar.kind
    if kind == "cut":
        _cut_value(m, at)
        return
    if kind in ("literal", "number", "nan"):
        m.choices.append(at)
    if kind == "unquoted_value" and ("{" in scalar.before or "[" in scalar.before):
        raise CannotRepair(at, "there is something other than a JSON value here")
    if kind == "nan" and m.nan == "refuse":
        raise CannotRepair(at, f"{scalar.before} is not a JSON number")
    if kind:
        m.edit(kind, at, scalar.before, scalar.after)
    m.begin_root(at)
    m.end_value(scalar.end)


def _cut_value(m: RepairState, at: int) -> None:
    if m.colon:
        drop_key(m, m.key)
        return
    if not m.stack:
        raise CannotRepair(at, "it ends before its first value is told")
    m.edit("truncated", at, m.text[at : m.end], "")
    m.position = m.end
    finish(m)


def read_after(m: RepairState) -> None:
    """Read the comma or closing bracket after a value, or repair its absence."""
    char = m.peek()
    if char == ",":
        m.comma = m.position
        m.accept(",")
        m.note_comma()
        m.state = AT_KEY if m.stack[-1] == "{" else AT_VALUE
    elif char == "":
        finish(m)
    elif char in "}])":
        close(m, char)
    else:
        _no_comma(m, char, m.position)


def _no_comma(m: RepairState, char: str, at: int) -> None:
    """Repair the place after a value where neither comma nor closing bracket follows."""
    frame = m.stack[-1]
    if char == "+" and _concatenate(m, at):
        return
    if char == ":" and frame != "{":
        raise CannotRepair(at, "there is a colon in an array")
    if frame == "{":
        value_begins = (KEY_AHEAD.match(m.text, at, m.end) or _ASSIGNED.match(m.text, at, m.end)) is not None
    else:
        value_begins = (
            char in _VALUE_STARTS or delimiter_at(m.text, at, m.end) != "" or (char.isalpha() and frame == "[")
        )
    if value_begins and not (frame != "{" and _ends_in_prose(m, at, char)):
        m.edit("missing_comma", at, "", ",")
        m.comma = INSERTED
        m.note_comma()
        m.state = AT_KEY if frame == "{" else AT_VALUE
    elif not value_begins and not _ends_in_prose(m, at, char):
        m.skip_stray(at)


def _ends_in_prose(m: RepairState, at: int, char: str) -> bool:
    """Whether only prose follows, without bracket or quote; if so, end the text there."""
    if not char.isalpha():
        return False
    if not m.searched_from <= at <= m.next_structure:
        structure = _STRUCTURE.search(m.text, at, m.end)
        m.searched_from = at
        m.next_structure = m.end if structure is None else structure.start()
    if m.next_structure < m.end:
        return False
    m.end = at
    return True


def _concatenate(m: RepairState, at: int) -> bool:
    """Join `"a" + "b"` into one string; return whether that was possible."""
    text = m.text
    after = BLANK.match(text, at + 1, m.end).end()  # type: ignore[union-attr]
    if m.last_string < 0 or not delimiter_at(text, after, m.end):
        return False
    span = read_string(m, after, m.where())
    if span is None:
        return False
    first = m.last_string
    closing = at
    while text[closing - 1] in " \t\r\n":
        closing -= 1
    if m.edits and m.edits[-1][1] + len(m.edits[-1][2]) == closing and m.edits[-1][3].endswith('"'):
        kind, where, before, original = m.edits.pop()
        m.edit(kind, where, before, original[:-1])
        m.edit("concatenation", closing, text[closing:after], "")
    else:
        m.edit("concatenation", closing - 1, text[closing - 1 : after], "")
    edits = requote(text, span)
    if edits and edits[0][1] == span.start and edits[0][3].startswith('"'):
        kind, where, before, original = edits[0]
        edits[0] = (kind, where, before, original[1:])
    else:
        m.edit("concatenation", span.start, '"', "")
    m.edits.extend(edits)
    m.state = AT_END
    m.end_value(span.end, first)
    return True

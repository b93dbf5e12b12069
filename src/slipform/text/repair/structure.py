"""Repair keys and brackets."""

from __future__ import annotations

import re
from typing import Final

from slipform.text.repair.fast_paths import run
from slipform.text.repair.machine import (
    AT_END,
    AT_KEY,
    AT_VALUE,
    CALL_FRAME,
    CLOSER,
    DONE,
    PARENTHESES,
    PYTHON_TUPLE,
    CannotRepair,
    RepairState,
)
from slipform.text.repair.scalars import BARE_WORK, read_scalar
from slipform.text.repair.strings import delimiter_at, quoted, read_string, requote
from slipform.text.repair.tokens import (
    ITEM,
    KEY,
    KEY_AHEAD,
    MEMBER,
    NUMBER,
    PREFIX,
    QUOTED_KEY,
    QUOTED_KEY_AHEAD,
    SCALAR,
    SPACE,
    STRICT_KEY,
    outside_strings,
)

_NEXT: Final = re.compile(rf"{SPACE}([,}}\])])?+")
_HALF_QUOTES: Final = ('"', "'", "“", "”", "‘", "’")
"""At the end of a key that has no quote before it."""
_MORE_AHEAD: Final = re.compile(
    rf"{SPACE}(?:(\{{){SPACE}(?:[\"'“}}‘`]|[A-Za-z_$][\w$]*+\s*+:|\\\")"
    rf"|(\[){SPACE}(?:[\"'“{{\[\d\-]|\]|(?:true|false|null)\b))"
)


def close(m: RepairState, char: str) -> None:
    """Step over a closing bracket, repairing a mismatch."""
    frame = m.stack[-1]
    if CLOSER[frame] != char:
        _mismatch(m, char)
        return
    _drop_comma(m)
    at = m.position
    if frame in (PARENTHESES, PYTHON_TUPLE):
        closing = m.end_parentheses(is_tuple=frame == PYTHON_TUPLE or m.state != AT_END)
        m.edit("wrong_bracket", at, m.text[at], closing)
        m.position += 1
    elif frame == CALL_FRAME:
        m.drop("call")
    else:
        m.accept(char)
    _close_frame(m, at)


def _drop_comma(m: RepairState) -> None:
    if m.state != AT_END:
        m.drop_comma()


def _close_frame(m: RepairState, at: int) -> None:
    frame = m.stack.pop()
    m.comma = -1
    m.end_value(m.position)
    m.last_close = at
    if frame == "{" and m.doubled and m.text.startswith("}", m.position):
        m.doubled -= 1
        m.drop("extra_bracket")


def _mismatch(m: RepairState, char: str) -> None:
    """Repair a closing bracket of another kind: brackets before it are missing, or it is wrong or superfluous."""
    at = m.position
    index = len(m.stack) - 1
    while index >= 0 and CLOSER[m.stack[index]] != char:
        index -= 1
    m.work += 3 * (len(m.stack) - index)
    if index < 0:
        _unopened(m, at)
        return
    _drop_comma(m)
    m.state = AT_END
    missing = m.stack[index + 1 :]
    fits_missing = _fits(m, m.stack[max(0, index - 1) : index], at + 1)
    fits_wrong = _fits(m, m.stack[-2:-1], at + 1)
    wrong = fits_wrong and not fits_missing
    if m.choose_bracket(at):
        wrong = not wrong
    if wrong and m.stack[-1] in "{[":
        m.edit("wrong_bracket", at, m.text[at], CLOSER[m.stack[-1]])
        m.position = at + 1
        _close_frame(m, at)
        return
    m.edit("missing_bracket", at, "", _closing(m, missing))
    del m.stack[index + 1 :]
    close(m, char)


def _closing(m: RepairState, frames: list[str]) -> str:
    """Return the brackets that close the innermost open frames."""
    brackets: list[str] = []
    has_value = m.state == AT_END
    for frame in reversed(frames):
        if frame in (PARENTHESES, PYTHON_TUPLE):
            brackets.append(m.end_parentheses(is_tuple=frame == PYTHON_TUPLE or not has_value))
        elif frame != CALL_FRAME:
            brackets.append(CLOSER[frame])
        has_value = True
    return "".join(brackets)


def _unopened(m: RepairState, at: int) -> None:
    """Repair an unmatched closing bracket: it closes the open frame, or is superfluous."""
    match_after = _NEXT.match(m.text, at + 1, m.end)
    char = match_after.group(1) if match_after else None
    expected = CLOSER[m.stack[-1]]
    extra = char == expected or (char == "," and len(m.stack) == 1)
    if m.choose_bracket(at):
        extra = not extra
    if extra or m.stack[-1] not in "{[":
        state = m.state
        m.drop("extra_bracket")
        m.state = state
        return
    _drop_comma(m)
    m.edit("wrong_bracket", at, m.text[at], expected)
    m.position = at + 1
    _close_frame(m, at)


def _fits(m: RepairState, outer: list[str], after: int) -> bool:
    """Whether the text after a closing bracket is valid in the frame that would then be open."""
    match_after = _NEXT.match(m.text, after, m.end)
    char = match_after.group(1) if match_after else None
    if match_after is None or (match_after.end() >= m.end and char is None):
        return True
    if not outer:
        return char is None
    if char == ",":
        return (KEY_AHEAD.match(m.text, match_after.end(), m.end) is not None) == (outer[0] == "{")
    return char is None or CLOSER[outer[0]] == char


def reopen(m: RepairState, comma: int) -> None:
    """Reopen the object that was just closed: it continues after `comma`, and its closing brace was superfluous."""
    at = m.last_close
    first = len(m.edits)
    while first and m.edits[first - 1][1] > at:
        first -= 1
    surplus = [edit for edit in m.edits[first:] if edit[0] == "extra_bracket"]
    m.undo_change(at)
    m.edit("extra_bracket", at, m.text[at], "")
    m.edits.extend(surplus)
    m.stack.append("{")
    m.last_close = -1
    m.comma = comma
    if m.last_before(at, "{") >= 0:
        m.edit("extra_comma", comma, m.text[comma], "")
        m.comma = -1
    elif m.text[comma] != ",":
        m.edit("punctuation", comma, m.text[comma], ",")


def after_root(m: RepairState) -> None:
    """Continue after a whole document if it has more text, or another one follows; else end the pass."""
    position = m.position
    edit_count = len(m.edits)
    char = m.peek()
    if char != "" and char in "}]":
        m.drop("extra_bracket")
        return
    if char == ",":
        after = m.position + 1
        if m.last_close >= 0 and m.text[m.last_close] == "}" and QUOTED_KEY_AHEAD.match(m.text, after, m.end):
            comma = m.position
            reopen(m, comma)
            m.position = comma + 1
            m.state = AT_KEY
            return
        if _another_ahead(m, after):
            m.accept(",")
            m.state = AT_VALUE
            return
        if _NEXT.match(m.text, after, m.end).end() >= m.end:  # type: ignore[union-attr]
            m.drop("trailing_comma")
            m.state = DONE
            return
    elif _another_ahead(m, m.position):
        m.edit("missing_comma", m.position, "", ",")
        m.state = AT_VALUE
        return
    del m.edits[edit_count:]
    m.work += m.position - position
    m.position = position
    m.state = DONE


def _another_ahead(m: RepairState, at: int) -> bool:
    """Whether another document of the same kind follows, as in NDJSON."""
    if not m.many or m.last_close < 0:
        return False
    match = _MORE_AHEAD.match(m.text, at, m.end)
    return match is not None and (match.group(1) == "{") == (m.text[m.last_close] == "}")


def finish(m: RepairState) -> None:
    """Close all open frames at the end of the text."""
    if not m.stack and m.state == AT_VALUE and not m.roots:
        raise CannotRepair(m.position, "it ends before any value begins")
    _drop_comma(m)
    closing = _closing(m, m.stack)
    if closing:
        m.edit("missing_bracket", m.position, "", closing)
    m.stack.clear()
    if m.roots:
        m.roots[-1] = (m.roots[-1][0], m.position)
    m.state = DONE


def drop_key(m: RepairState, at: int) -> None:
    """Remove a key whose value is cut off by the end of the text."""
    cut = m.comma if m.comma >= 0 else at
    if m.comma >= 0:
        m.undo_change(cut)
    else:
        m.undo_from(cut)
    m.edit("truncated", cut, m.text[cut : m.end], "")
    m.position = m.end
    m.comma = -1
    m.colon = False
    m.state = AT_END


_THOUSANDS_BEFORE: Final = re.compile(r"(?:[\[\s:]|\A)[-+]?\d{1,3}(?:,\d{3})*\Z")
_THOUSANDS: Final = re.compile(rf"\d{{3}}(?:\.\d++)?+(?=\s*+(?:[,}}\]\"#]|//|/\*|\Z)|{KEY_AHEAD.pattern})")


def net_closers(text: str, start: int, end: int) -> tuple[int, int]:
    """Return how many more braces, and square brackets, a part of a text closes than it opens.

    >>> net_closers('"}": [1]}', 0, 9)
    (1, 0)
    """
    brackets = [match.group() for match in outside_strings(text, start, end)]
    return brackets.count("}") - brackets.count("{"), brackets.count("]") - brackets.count("[")


def grouped_number(m: RepairState, at: int) -> bool:
    """Whether the comma was inside a number, `1,000`; if so, end the number there."""
    if at != m.comma + 1 or not _THOUSANDS_BEFORE.search(m.text, max(0, m.comma - 20), m.comma):
        return False
    match = _THOUSANDS.match(m.text, at, m.end)
    if match is None:
        return False
    m.edit_before("number", m.comma, ",", "")
    m.end_value(match.end())
    return True


MAX_VALUELESS: Final = 8
_SET: Final = re.compile(rf"\{{\s*+(?:(?:{SCALAR}|'[^'\\\n]*+')\s*+(?:,\s*+|(?=[}}\]])))++[}}\]]")
_COLON_OR_END: Final = re.compile(r"\s*+(?:[:：]|\Z)")
_LACKS_COLON: Final = re.compile(rf"\s*+(?:=|(?:{SCALAR})\s*+[,}}]|[{{\[]\s*+(?:[{{\[\"}}\]]|{NUMBER}\s*+[,\]]))")
"""After a key: a whole value, with its colon missing."""
_STRAY_WORD: Final = re.compile(rf"[^\W\d_]++(?:[ \t\r\n]++[^\W\d_]++){{0,3}}+[ \t\r\n]++(?={QUOTED_KEY}{SPACE}[:：])")
"""Words before a key."""
_COLON_AHEAD: Final = re.compile(r"\s*+[:：]")


def read_key(m: RepairState) -> None:
    """Read a key."""
    run(m)
    if m.state != AT_KEY:
        return
    char = m.peek()
    at = m.position
    if char == '"' and (match := STRICT_KEY.match(m.text, at, m.end)):
        m.key, m.position, m.colon, m.state = at, match.end(), True, AT_VALUE
    else:
        _odd_key(m, char, at)


def _odd_key(m: RepairState, char: str, at: int) -> None:
    """Repair the text in the place of a key."""
    if char == "":
        finish(m)
    elif char in "}])":
        close(m, char)
    elif char == ",":
        m.drop_commas()
    elif char == ":":
        m.skip_stray(at)
    elif char in "{[(":
        _opened_where_key(m, char, at)
    elif delimiter_at(m.text, at, m.end):
        _quoted_key(m, at)
    else:
        _bare_key(m, at)


def _quoted_key(m: RepairState, at: int) -> None:
    """Read a key whose quotes or colon need repair."""
    if m.comma < 0 and _is_set(m, at):
        return
    span = read_string(m, at, KEY)
    if span is None:
        if not _extend_string(m):
            raise CannotRepair(at, "a key has no end that can be told from its content")
    elif not span.closed:
        drop_key(m, at)
    elif (
        _COLON_OR_END.match(m.text, span.end, m.end)
        or _LACKS_COLON.match(m.text, span.end, m.end)
        or not _extend_string(m)
    ):
        m.edits.extend(requote(m.text, span))
        m.position = span.end
        _colon(m, at)


def _is_set(m: RepairState, at: int) -> bool:
    """Whether the object is a Python set, `{"a", "b"}`; if so, make it an array."""
    opening = at - 1
    while opening >= 0 and m.text[opening].isspace():
        opening -= 1
    if opening < 0 or m.text[opening] != "{":
        return False
    match = _SET.match(m.text, opening, m.end)
    if match is None:
        return False
    if "," not in match.group() and match.group()[-1] == "}":
        return False
    m.edit_before("wrong_bracket", opening, "{", "[")
    m.stack[-1] = "["
    closing = match.end() - 1
    m.readings[closing] = 0
    m.state = AT_VALUE
    return True


def _string_before(text: str, comma: int) -> int:
    """Return the start of the value before `comma`, if it was a plain string; else -1."""
    at = comma - 1
    while at > 0 and text[at] in " \t\r\n":
        at -= 1
    if comma < 0 or text[at] != '"':
        return -1
    at = text.rfind('"', 0, at)
    while at > 0 and text[at - 1] == "\\":
        at = text.rfind('"', 0, at)
    before = at - 1
    while before > 0 and text[before] in " \t\r\n":
        before -= 1
    if before > 0 and text[before] == ":":
        return at
    return -1


def _extend_string(m: RepairState) -> bool:
    """Extend the last string past the comma after it: its quote was not its end. Return whether that worked."""
    at = m.last_string if m.last_string >= 0 else _string_before(m.text, m.comma)
    if at < 0:
        return False
    span = read_string(m, at, MEMBER, beyond=m.comma)
    if span is None or span.end <= m.comma or not span.closed:
        return False
    if m.text[span.stop : span.stop + 1] not in ('"', "'", "”"):
        return False
    m.undo_from(at)
    m.choices.append(at)
    m.comma = -1
    m.edits.extend(requote(m.text, span))
    m.end_value(span.end)
    return True


def _bare_key(m: RepairState, at: int) -> None:
    match = KEY_AHEAD.match(m.text, at, m.end)
    if match is None:
        _no_key(m, at)
        return
    name = m.text[at : match.end() - 1].rstrip()
    if name.endswith(_HALF_QUOTES):
        m.edit("missing_quote", at, name, quoted(name[:-1].rstrip()))
    else:
        m.edit("unquoted_key", at, name, quoted(name))
    m.position = at + len(name)
    _colon(m, at)


def _no_key(m: RepairState, at: int) -> None:
    """Repair a word in the place of a key: part of a number or string, a prefix, an unquoted key, or stray text."""
    if grouped_number(m, at) or (m.comma < 0 and _is_set(m, at)):
        return
    if prefix := PREFIX.match(m.text, at, m.end):
        m.edit("wrong_quote", at, prefix.group(), "")
        m.position = prefix.end()
        return
    if word_before := _STRAY_WORD.match(m.text, at, m.end):
        m.edit("stray_text", at, word_before.group(), "")
        m.position = word_before.end()
        return
    scalar = read_scalar(m.text, at, m.end, ITEM)
    if scalar is None:
        m.skip_stray(at)
        return
    m.work += BARE_WORK * len(scalar.before)
    word = scalar.before.partition(":")[0].rstrip() if ":" in scalar.before else scalar.before
    if word and _COLON_AHEAD.match(m.text, at + len(word), m.end):
        is_half_quoted = word.endswith(_HALF_QUOTES)
        m.edit(
            "missing_quote" if is_half_quoted else "unquoted_key",
            at,
            word,
            quoted(word[:-1] if is_half_quoted else word),
        )
        m.position = at + len(word)
        _colon(m, at)
    elif not _extend_string(m):
        if scalar.end < m.end:
            raise CannotRepair(at, "there is a word where a key and its value should be")
        drop_key(m, at)


def _opened_where_key(m: RepairState, char: str, at: int) -> None:
    """Repair an opening bracket in the place of a key."""
    if char == "{" and m.comma >= 0 and len(m.stack) > 1 and m.stack[-2] in "[t":
        m.edit_before("missing_bracket", m.comma, "", "}")
        m.stack.pop()
        m.state = AT_VALUE
    elif char == "{" and m.comma < 0 and (opening := m.last_before(at, "{")) >= 0 and m.choose_bracket(at):
        m.edit_before("wrong_bracket", opening, "{", "[")
        m.stack[-1] = "["
        m.state = AT_VALUE
    elif char == "{" and m.comma < 0 and m.doubled == 0:
        m.doubled += 1
        m.drop("extra_bracket")
    elif not _extend_string(m):
        raise CannotRepair(at, "there is a bracket where a key should be")


def _colon(m: RepairState, at: int) -> None:
    """Step over the colon after a repaired key, or insert one."""
    m.key = at
    char = m.peek()
    if char == ":":
        m.accept(":")
    elif char == "=":
        arrow = "=>" if m.text.startswith("=>", m.position) else "="
        m.edit("punctuation", m.position, arrow, ":")
        m.position += len(arrow)
    elif char == "":
        drop_key(m, at)
        return
    elif char in ",}])":
        m.keys_without_value += 1
        if m.keys_without_value > MAX_VALUELESS:
            raise CannotRepair(at, "too many keys have no value")
        m.edit("missing_value", m.position, "", ":null")
        m.end_value(m.position)
        return
    else:
        m.edit("missing_colon", m.position, "", ":")
    m.colon = True
    m.state = AT_VALUE

"""Repair common mistakes in long strides, many members or items per regular expression.

These mistakes need no context: single and curly quotes, unquoted keys, Python's literals, raw line breaks in strings,
line comments, commas before a closing bracket, commas missing at the end of a line. Anything else is left to the
slower functions.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from slipform.text.repair.machine import AT_END, AT_KEY, AT_VALUE, INSERTED, MAX_DEPTH, RepairState
from slipform.text.repair.strings import QuotedSpan, control_edit, requote
from slipform.text.repair.tokens import BLANK, ITEMS, LAX_STRING, MEMBERS, NUMBER, SCALAR, STRING, WS

_STRIDE_WORK: Final = 15
PLAIN: Final = r"[^'\"“”\\\x00-\x1f]*+"
NAME: Final = r"[A-Za-z_$][\w$]*+"
_GAP: Final = r"[ \t\n\r]*+(?://[^\n\r]*+[ \t\n\r]*+)*+"
_KEY: Final = rf"(?:{STRING}|'{PLAIN}'|{NAME}|[“”]{PLAIN}[“”])"
_INNER: Final = r'"[^"\\\x00-\x1f]*+(?:(?<=[\s(])"(?=\w)[^"\\,:{}\[\]\x00-\x1f]*+"(?=[ .;!?)])[^"\\\x00-\x1f]*+)++"'
"""A string that contains quoted words with unescaped quotes."""
_SCALAR: Final = (
    rf"(?:{STRING}|{NUMBER}|true|false|null|'{PLAIN}'|True|False|None|[“”]{PLAIN}[“”]|{_INNER}|(?!\"\"){LAX_STRING})"
)
_NEXT_KEY: Final = rf"\s++(?={_KEY}{_GAP}:(?!//))"
_NEXT_ITEM: Final = r"\s++(?=[\"'“{\[])"
"""The place of a missing comma."""


def _nested_value(levels: int) -> str:
    """Return the pattern of a value with this many levels of arrays and objects; a comma may be missing."""
    comma = rf"{_GAP},{_GAP}"
    after_item = rf"(?:{comma}|{_GAP}(?=\])|{_NEXT_ITEM})"
    after_member = rf"(?:{comma}|{_GAP}(?=\}})|{_NEXT_KEY})"
    value = _SCALAR
    for _ in range(levels):
        item = rf"{value}{after_item}"
        member = rf"{_KEY}{_GAP}:{_GAP}{value}{after_member}"
        array_or_object = rf"\[{_GAP}(?:{item})*+\]|\{{{_GAP}(?:{member})*+\}}"
        value = rf"(?:{_SCALAR}|{array_or_object})"
    return value


_SINGLE, _CURLY, _BARE_KEY, _WORD, _COMMENT, _COMMA, _RAW_STRING, _MISSING_COMMA = range(1, 9)
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a run of members, a run of items, and the next mistake in them (no group at the end)."""
    value = _nested_value(2)
    members = re.compile(rf"(?:{_GAP}{_KEY}{_GAP}:{_GAP}{value}(?:{_GAP},|{_NEXT_KEY}|{_GAP}(?=\}})))*+", re.DOTALL)
    items = re.compile(rf"(?:{_GAP}{value}(?:{_GAP},|{_NEXT_ITEM}|{_GAP}(?=\])))*+", re.DOTALL)
    valid = (
        rf"(?:,(?!{_GAP}[}}\]])\s*+|[:\[{{]\s*+|[^\"'“”A-Za-z_$/,:\[{{\s]++|\s++(?![\"'“A-Za-z_${{\[])|(?<=\d)[eE]"
        rf"|{STRING}(?={_GAP}[,:}}\]]|\s)|(?:true|false|null)\b(?!{_GAP}:))*+"
    )
    misspelling = re.compile(
        rf"{valid}(?:('{PLAIN}')|([“”]{PLAIN}[“”])|({NAME})(?={_GAP}:)|(True|False|None)"
        rf"|(//[^\n\r]*+)\s*+|(,)|({_INNER}|{LAX_STRING})|(\s++)|\Z)",
        re.DOTALL,
    )
    return members, items, misspelling


def stride(m: RepairState) -> bool:
    """Step over as many members, or items, as have only simple mistakes; return True at the closing bracket."""
    m.work += _STRIDE_WORK
    if m.failed_strides & 7 > 2:
        m.failed_strides += 1
        return False
    members = m.stack[-1] == "{"
    start = m.position
    text = m.text
    at = (MEMBERS if members else ITEMS).match(text, start, m.end).end()  # type: ignore[union-attr]
    comma = at - 1
    while comma >= start and text[comma] in " \t\r\n":
        comma -= 1
    begin = comma + 1 if comma >= start else start
    end = _patterns()[0 if members else 1].match(text, begin, m.end).end()  # type: ignore[union-attr]
    if end > begin:
        _respell(m, begin, end)
        comma = end - 1
        if text[comma] != ",":
            m.failed_strides = 0
            m.position = end
            m.comma = INSERTED
            m.last_close = -1
            m.last_string = -1
            if end < m.end and text[end] == ("}" if members else "]"):
                return True
            m.edits.append(("missing_comma", end, "", ","))
            return False
    if comma < start:
        m.failed_strides += 1
        return False
    m.failed_strides = 0
    m.position = comma + 1
    m.comma = comma
    m.last_close = -1
    m.last_string = -1
    return False


def _respell(m: RepairState, start: int, end: int) -> None:
    """Record the edits of a run of members or items that have simple mistakes only."""
    edits = m.edits
    start = BLANK.match(m.text, start, end).end()  # type: ignore[union-attr]
    for token in _patterns()[2].finditer(m.text, start, end):
        kind = token.lastindex
        if kind is None:
            break
        word = token.group(kind)
        at = token.start(kind)
        if kind == _BARE_KEY:
            edits.append(("unquoted_key", at, word, f'"{word}"'))
        elif kind in (_SINGLE, _CURLY):
            edits.append(("wrong_quote", at, word, f'"{word[1:-1]}"'))
        elif kind == _WORD:
            respell_word(m, at, word)
        elif kind == _COMMENT:
            edits.append(("comment", at, word, ""))
        elif kind == _COMMA:
            edits.append(("trailing_comma", at, ",", ""))
        elif kind == _MISSING_COMMA:
            edits.append(("missing_comma", token.end(), "", ","))
        else:
            respell_string(m, at, word)


def respell_word(m: RepairState, at: int, word: str) -> None:
    """Replace a Python literal or, in its other reading, quote a bare word."""
    if m.choose(at):
        m.edits.append(("unquoted_value", at, word, f'"{word}"'))
    else:
        m.edits.append(("literal", at, word, _WORDS[word]))


def respell_string(m: RepairState, at: int, word: str) -> None:
    """Escape what JSON requires in a string between double quotes."""
    if "\\" not in word and word.find('"', 1) == len(word) - 1:
        for match in _CONTROL.finditer(word):
            m.edits.append(control_edit(at + match.start(), match.group()))
        return
    end = at + len(word)
    m.edits.extend(requote(m.text, QuotedSpan(at, at + 1, end - 1, end, '"', True, False)))


_RUN_NEXT_KEY: Final = rf"(?:{STRING}|'{PLAIN}'|[“”]{PLAIN}[“”]|(?<=\s){NAME}){WS}:(?!//)"
_ODD: Final = rf"('{PLAIN}')|(True|False|None)|([“”]{PLAIN}[“”])|({LAX_STRING})"
_MEMBER: Final = re.compile(
    rf"{WS}({STRING}|'{PLAIN}'|{NAME}|[“”]{PLAIN}[“”]){WS}:{WS}"
    rf"(?:(?:({SCALAR})|{_ODD}){WS}(?=[,}}]|{_RUN_NEXT_KEY})|([{{\[]))",
    re.DOTALL,
)
"""Group 1 the key; 2 a valid scalar, 3 single quotes, 4 a Python literal, 5 curly quotes, 6 a string, 7 a bracket."""
_ITEM: Final = re.compile(
    rf"{WS}()(?:(?:({SCALAR})|{_ODD}){WS}(?=[,\]]|(?<=\s)[\"'“]{PLAIN}[\"'”]{WS}[,\]\"'“])|([{{\[]))", re.DOTALL
)
_RUN_COMMENT: Final = re.compile(rf"{WS}(//[^\n\r]*+)")
_GOOD, _RUN_SINGLE, _RUN_WORD, _RUN_CURLY, _RUN_RAW, _BRACKET = range(2, 8)


def run(m: RepairState) -> None:
    """Read members and items, into brackets and out of them, up to the first uncommon mistake."""
    while m.stack:
        frame = m.stack[-1]
        if frame == "{":
            continues = _run_members(m)
        elif frame == "[":
            continues = _run_items(m)
        else:
            return
        if not continues:
            return


def _run_members(m: RepairState) -> bool:
    """Read members; return True when another bracket was opened or closed, False at an uncommon mistake."""
    text = m.text
    end = m.end
    edits = m.edits
    while True:
        if stride(m):
            return _close_brackets(m, m.position)
        match = _MEMBER.match(text, m.position, end)
        if match is None:
            if _skip_comment(m):
                continue
            return _close_after_comma(m, "}")
        at = match.start(1)
        key = match.group(1)
        kind = match.lastindex or 0
        first = key[0]
        if first != '"':
            if first == "'" or first == "“" or first == "”":
                edits.append(("wrong_quote", at, key, f'"{key[1:-1]}"'))
            else:
                edits.append(("unquoted_key", at, key, f'"{key}"'))
        if kind == _BRACKET:
            return _open(m, match.end() - 1)
        value = match.start(kind)
        if kind != _GOOD and not _respell_run(m, kind, value, match.group(kind)):
            m.key = at
            m.position = value
            m.colon = True
            m.state = AT_VALUE
            return False
        at = match.end()
        char = text[at]
        if char == "," or char == "}":
            m.last_string = value if text[value] != "-" and not text[value].isalnum() else -1
            if char == "}":
                return _close_brackets(m, at)
            m.comma = at
            m.position = at + 1
            m.last_close = -1
        else:
            edits.append(("missing_comma", at, "", ","))
            m.position = at
            m.comma = INSERTED
            m.last_string = -1


def _run_items(m: RepairState) -> bool:
    """Read items; return True when another bracket was opened or closed, False at an uncommon mistake."""
    text = m.text
    end = m.end
    while True:
        if stride(m):
            return _close_brackets(m, m.position)
        match = _ITEM.match(text, m.position, end)
        if match is None:
            if _skip_comment(m):
                continue
            return _close_after_comma(m, "]")
        kind = match.lastindex or 0
        if kind == _BRACKET:
            return _open(m, match.end() - 1)
        at = match.start(kind)
        if kind != _GOOD and not _respell_run(m, kind, at, match.group(kind)):
            return False
        at = match.end()
        if text[at] == ",":
            m.comma = at
            m.position = at + 1
            m.last_close = -1
        elif text[at] == "]":
            return _close_brackets(m, at)
        else:
            m.edits.append(("missing_comma", at, "", ","))
            m.position = at
            m.comma = INSERTED


def _open(m: RepairState, at: int) -> bool:
    m.position = at
    if len(m.stack) >= MAX_DEPTH:
        m.colon = m.stack[-1] == "{"
        m.state = AT_VALUE
        return False
    frame = m.text[at]
    m.stack.append(frame)
    m.position = at + 1
    m.comma = m.last_close = m.last_string = -1
    m.state = AT_KEY if frame == "{" else AT_VALUE
    return True


def _skip_comment(m: RepairState) -> bool:
    start = m.position
    while match := _RUN_COMMENT.match(m.text, m.position, m.end):
        m.edits.append(("comment", match.start(1), match.group(1), ""))
        m.position = match.end()
    return m.position > start


def _close_after_comma(m: RepairState, closer: str) -> bool:
    """Remove the comma before a closing bracket and step over the bracket; return False without one."""
    at = BLANK.match(m.text, m.position, m.end).end()  # type: ignore[union-attr]
    if m.comma < 0 or at >= m.end or m.text[at] != closer:
        return False
    m.drop_comma()
    return _close_brackets(m, at)


def _close_brackets(m: RepairState, at: int) -> bool:
    """Step over closing brackets and the comma after them; return False when something else follows."""
    text = m.text
    end = m.end
    stack = m.stack
    m.comma = -1
    while at < end:
        char = text[at]
        if char == ",":
            m.comma = at
            m.position = at + 1
            m.note_comma()
            m.state = AT_KEY if stack[-1] == "{" else AT_VALUE
            return True
        frame = stack[-1]
        if m.doubled or len(stack) == 1 or not ((char == "}" and frame == "{") or (char == "]" and frame == "[")):
            break
        stack.pop()
        m.last_close = at
        m.last_string = -1
        at = BLANK.match(text, at + 1, end).end()  # type: ignore[union-attr]
    m.position = at
    m.state = AT_END
    return False


def _respell_run(m: RepairState, kind: int, at: int, word: str) -> bool:
    if kind == _RUN_WORD:
        respell_word(m, at, word)
    elif kind == _RUN_RAW:
        if word == '""':
            return False
        respell_string(m, at, word)
    else:
        m.edits.append(("wrong_quote", at, word, f'"{word[1:-1]}"'))
    return True

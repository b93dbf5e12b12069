"""The everyday breakages, taken in long runs: odd quotes, unquoted keys, Python literals, commas forgotten or too many.

Whatever these patterns do not know is left, untouched, to the slower functions.
"""

from __future__ import annotations

import re
from typing import Final

from slipform.text.repair_state import AT_END, AT_KEY, AT_VALUE, MAX_DEPTH, Reading
from slipform.text.scan import BLANK, LAX_STRING, SCALAR, STRING, WS, items, members
from slipform.text.scan_quoting import requote
from slipform.text.scan_strings import Span

_PLAIN: Final = r"[^'\"“”\\\x00-\x1f]*+"
_NAME: Final = r"[A-Za-z_$][\w$]*+"
_NEXT_KEY: Final = rf"(?:{STRING}|'{_PLAIN}'|[“”]{_PLAIN}[“”]|{_NAME}){WS}:"
_ODD: Final = rf"('{_PLAIN}')|(True|False|None)|([“”]{_PLAIN}[“”])|({LAX_STRING})"
_MEMBER: Final = re.compile(
    rf"{WS}({STRING}|'{_PLAIN}'|{_NAME}|[“”]{_PLAIN}[“”]){WS}:{WS}"
    rf"(?:(?:({SCALAR})|{_ODD}){WS}(?=[,}}]|{_NEXT_KEY})|([{{\[]))",
    re.DOTALL,
)
"""Group 1 the key; 2 a good scalar, 3 single quotes, 4 a Python literal, 5 curly quotes, 6 a string, 7 a bracket."""
_ITEM: Final = re.compile(
    rf"{WS}()(?:(?:({SCALAR})|{_ODD}){WS}(?=[,\]]|(?<=\s)[\"'“]{_PLAIN}[\"'”]{WS}[,\]\"'“])|([{{\[]))", re.DOTALL
)
_COMMENT: Final = re.compile(rf"{WS}(//[^\n\r]*+)")
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_GOOD, _SINGLE, _WORD, _CURLY, _RAW, _BRACKET = range(2, 8)


def run(m: Reading) -> None:
    """Read on, into brackets and out of them, until something out of the ordinary comes."""
    while m.stack:
        frame = m.stack[-1]
        if frame == "{":
            going = _run_members(m)
        elif frame == "[":
            going = _run_items(m)
        else:
            return
        if not going:
            return


def _run_members(m: Reading) -> bool:
    """Read members; True when another bracket was opened or closed, False when something odd stands there."""
    text, end, edits = m.text, m.end, m.edits
    while True:
        _stride(m, members())
        found = _MEMBER.match(text, m.position, end)
        if found is None:
            if _skip_comment(m):
                continue
            return _climb_after_comma(m, "}")
        at = found.start(1)
        key = found.group(1)
        kind = found.lastindex or 0
        first = key[0]
        if first != '"':
            if first == "'" or first == "“" or first == "”":
                edits.append(("wrong_quote", at, key, f'"{key[1:-1]}"'))
            else:
                edits.append(("unquoted_key", at, key, f'"{key}"'))
        if kind == _BRACKET:
            return _open(m, found.end() - 1)
        value = found.start(kind)
        if kind != _GOOD and not _respell(m, kind, value, found.group(kind)):
            m.key, m.position, m.colon, m.state = at, value, True, AT_VALUE
            return False
        at = found.end()
        mark = text[at]
        if mark == "," or mark == "}":
            m.last_string = value if text[value] != "-" and not text[value].isalnum() else -1
            if mark == "}":
                return _climb(m, at)
            m.comma, m.position, m.last_close = at, at + 1, -1
        else:
            edits.append(("missing_comma", at, "", ","))
            m.position, m.comma, m.last_string = at, -1, -1


def _run_items(m: Reading) -> bool:
    text, end = m.text, m.end
    while True:
        _stride(m, items())
        found = _ITEM.match(text, m.position, end)
        if found is None:
            if _skip_comment(m):
                continue
            return _climb_after_comma(m, "]")
        kind = found.lastindex or 0
        if kind == _BRACKET:
            return _open(m, found.end() - 1)
        at = found.start(kind)
        if kind != _GOOD and not _respell(m, kind, at, found.group(kind)):
            return False
        at = found.end()
        if text[at] == ",":
            m.comma, m.position, m.last_close = at, at + 1, -1
        elif text[at] == "]":
            return _climb(m, at)
        else:
            m.edits.append(("missing_comma", at, "", ","))
            m.position, m.comma = at, -1


def _stride(m: Reading, pattern: re.Pattern[str]) -> None:
    """Step over all that is good; while that fails, try it only now and then."""
    if m.unlucky & 7 > 2:
        m.unlucky += 1
        return
    start = m.position
    at = pattern.match(m.text, start, m.end).end()  # type: ignore[union-attr]
    comma = at - 1
    text = m.text
    while comma >= start and text[comma] != ",":
        comma -= 1
    if comma < start:
        m.unlucky += 1
        return
    m.unlucky = 0
    m.position = at
    m.comma, m.last_close, m.last_string = comma, -1, -1


def _open(m: Reading, at: int) -> bool:
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


def _skip_comment(m: Reading) -> bool:
    found = _COMMENT.match(m.text, m.position, m.end)
    if found is None:
        return False
    m.edits.append(("comment", found.start(1), found.group(1), ""))
    m.position = found.end()
    return True


def _climb_after_comma(m: Reading, closer: str) -> bool:
    """A closing bracket after a comma: leave the comma out and go on."""
    at = BLANK.match(m.text, m.position, m.end).end()  # type: ignore[union-attr]
    if m.comma < 0 or at >= m.end or m.text[at] != closer:
        return False
    m.edit_before("trailing_comma", m.comma, m.text[m.comma], "")
    return _climb(m, at)


def _climb(m: Reading, at: int) -> bool:
    """Step over closing brackets and the comma after them; False when something else follows."""
    text, end, stack = m.text, m.end, m.stack
    m.comma = -1
    while at < end:
        mark = text[at]
        if mark == ",":
            m.comma = at
            m.position = at + 1
            m.state = AT_KEY if stack[-1] == "{" else AT_VALUE
            return True
        frame = stack[-1]
        if m.doubled or len(stack) == 1 or not ((mark == "}" and frame == "{") or (mark == "]" and frame == "[")):
            break
        stack.pop()
        m.last_close = at
        m.last_string = -1
        at = BLANK.match(text, at + 1, end).end()  # type: ignore[union-attr]
    m.position = at
    m.state = AT_END
    return False


def _respell(m: Reading, kind: int, at: int, word: str) -> bool:
    if kind == _WORD:
        m.choices.append(at)
        m.edits.append(("literal", at, word, _WORDS[word]))
    elif kind == _RAW:
        if word == '""':
            return False
        m.edits.extend(requote(m.text, Span(at, at + 1, at + len(word) - 1, at + len(word), '"', True, False)))
    else:
        m.edits.append(("wrong_quote", at, word, f'"{word[1:-1]}"'))
    return True

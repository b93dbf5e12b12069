"""Long strides over text that is JSON but for its spelling: one match over many members, then one for each edit.

Spelling means what can be told without looking around: single and curly quotes, unquoted keys, Python's literals, raw
line breaks in strings, line comments, commas before a closing bracket, commas forgotten at the end of a line.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from slipform.text.repair_state import PUT_IN, Reading
from slipform.text.scan import BLANK, ITEMS, LAX_STRING, MEMBERS, NUMBER, STRING
from slipform.text.scan_quoting import control_edit, requote
from slipform.text.scan_strings import Span

PLAIN: Final = r"[^'\"“”\\\x00-\x1f]*+"
NAME: Final = r"[A-Za-z_$][\w$]*+"
_GAP: Final = r"[ \t\n\r]*+(?://[^\n\r]*+[ \t\n\r]*+)*+"
_KEY: Final = rf"(?:{STRING}|'{PLAIN}'|{NAME}|[“”]{PLAIN}[“”])"
_INNER: Final = r'"[^"\\\x00-\x1f]*+(?:(?<=[\s(])"(?=\w)[^"\\,:{}\[\]\x00-\x1f]*+"(?=[ .;!?)])[^"\\\x00-\x1f]*+)++"'
"""A string with quoted words in it, their quotes not escaped."""
_SCALAR: Final = (
    rf"(?:{STRING}|{NUMBER}|true|false|null|'{PLAIN}'|True|False|None|[“”]{PLAIN}[“”]|{_INNER}|(?!\"\"){LAX_STRING})"
)


_NEXT_KEY: Final = rf"\s++(?={_KEY}{_GAP}:(?!//))"
_NEXT_ITEM: Final = r"\s++(?=[\"'“{\[])"
"""Where a comma is missing."""


def _nest(levels: int) -> str:
    value = _SCALAR
    for _ in range(levels):
        array = rf"\[{_GAP}(?:{value}(?:{_GAP},{_GAP}|{_GAP}(?=\])|{_NEXT_ITEM}))*+\]"
        record = rf"\{{{_GAP}(?:{_KEY}{_GAP}:{_GAP}{value}(?:{_GAP},{_GAP}|{_GAP}(?=\}})|{_NEXT_KEY}))*+\}}"
        value = rf"(?:{_SCALAR}|{array}|{record})"
    return value


_SINGLE, _CURLY, _NAMED, _WORD, _COMMENT, _COMMA, _RAW, _NOTHING = range(1, 9)
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_WORDS: Final = {"True": "true", "False": "false", "None": "null"}


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A run of members, a run of items, and the way from one misspelling in them to the next (no group at the end)."""
    value = _nest(2)
    members = re.compile(rf"(?:{_GAP}{_KEY}{_GAP}:{_GAP}{value}(?:{_GAP},|{_NEXT_KEY}|{_GAP}(?=\}})))*+", re.DOTALL)
    items = re.compile(rf"(?:{_GAP}{value}(?:{_GAP},|{_NEXT_ITEM}|{_GAP}(?=\])))*+", re.DOTALL)
    right = (
        rf"(?:,(?!{_GAP}[}}\]])\s*+|[:\[{{]\s*+|[^\"'“”A-Za-z_$/,:\[{{\s]++|\s++(?![\"'“A-Za-z_${{\[])|(?<=\d)[eE]"
        rf"|{STRING}(?={_GAP}[,:}}\]]|\s)|(?:true|false|null)\b(?!{_GAP}:))*+"
    )
    misspelt = re.compile(
        rf"{right}(?:('{PLAIN}')|([“”]{PLAIN}[“”])|({NAME})(?={_GAP}:)|(True|False|None)"
        rf"|(//[^\n\r]*+)\s*+|(,)|({_INNER}|{LAX_STRING})|(\s++)|\Z)",
        re.DOTALL,
    )
    return members, items, misspelt


def stride(m: Reading) -> bool:
    """Step over as many members, or items, as need no more than a change of spelling; True at the closing bracket."""
    if m.unlucky & 7 > 2:
        m.unlucky += 1
        return False
    members = m.stack[-1] == "{"
    start, text = m.position, m.text
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
            m.unlucky, m.position = 0, end
            m.comma, m.last_close, m.last_string = PUT_IN, -1, -1
            if end < m.end and text[end] == ("}" if members else "]"):
                return True
            m.edits.append(("missing_comma", end, "", ","))
            return False
    if comma < start:
        m.unlucky += 1
        return False
    m.unlucky = 0
    m.position = comma + 1
    m.comma, m.last_close, m.last_string = comma, -1, -1
    return False


def _respell(m: Reading, start: int, end: int) -> None:
    edits = m.edits
    start = BLANK.match(m.text, start, end).end()  # type: ignore[union-attr]
    for token in _patterns()[2].finditer(m.text, start, end):
        kind = token.lastindex
        if kind is None:
            break
        word = token.group(kind)
        at = token.start(kind)
        if kind == _NAMED:
            edits.append(("unquoted_key", at, word, f'"{word}"'))
        elif kind in (_SINGLE, _CURLY):
            edits.append(("wrong_quote", at, word, f'"{word[1:-1]}"'))
        elif kind == _WORD:
            respell_word(m, at, word)
        elif kind == _COMMENT:
            edits.append(("comment", at, word, ""))
        elif kind == _COMMA:
            edits.append(("trailing_comma", at, ",", ""))
        elif kind == _NOTHING:
            edits.append(("missing_comma", token.end(), "", ","))
        else:
            respell_string(m, at, word)


def respell_word(m: Reading, at: int, word: str) -> None:
    """A Python literal, or, when that reading is asked for, a bare word."""
    if m.choose(at):
        m.edits.append(("unquoted_value", at, word, f'"{word}"'))
    else:
        m.edits.append(("literal", at, word, _WORDS[word]))


def respell_string(m: Reading, at: int, word: str) -> None:
    """A string between double quotes with something in it that JSON wants escaped."""
    if "\\" not in word and word.find('"', 1) == len(word) - 1:
        for found in _CONTROL.finditer(word):
            m.edits.append(control_edit(at + found.start(), found.group()))
        return
    end = at + len(word)
    m.edits.extend(requote(m.text, Span(at, at + 1, end - 1, end, '"', True, False)))

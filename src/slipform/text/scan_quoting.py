"""A string's content, rewritten so that it can stand between double quotes in JSON."""

from __future__ import annotations

import html
import re
from typing import Final

from slipform.text.repair_edits import RawEdit
from slipform.text.scan import ESCAPE, STRICT_STRING
from slipform.text.scan_strings import Span

_SPECIAL: Final = re.compile(
    rf'({ESCAPE})|(\\u[0-9a-fA-F]{{4}})|(\\x[0-9a-fA-F]{{2}}|\\.?)|(["\x00-\x1f\ud800-\udfff])', re.DOTALL
)
_CLEAN: Final = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*+')
_CUT_ESCAPE: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z"
)
_CONTROL: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_PATH: Final = re.compile(r"[A-Za-z]:\\|\\\\[\w.$-]+\\[^\\]")
_ODD: Final = re.compile(r"\\(?:[^\"\\/bfnrtu'`]|u(?![0-9a-fA-F]{4}))", re.DOTALL)
_OVERESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_KIND: Final = {"&quot;": "html_entity", "&#34;": "html_entity", "&apos;": "html_entity", "&#39;": "html_entity"}


def requote(text: str, span: Span) -> list[RawEdit]:
    """The edits that make the string at `span` a JSON string.

    >>> requote("'a'", Span(0, 1, 2, 3, "'", True, False))
    [('wrong_quote', 0, "'a'", '"a"')]
    """
    mark = span.delimiter
    if mark in _KIND:
        content = html.unescape(text[span.body : span.stop])
        return [(_KIND[mark], span.start, text[span.start : span.end], '"' + _encode(content) + '"')]
    if mark == '\\"':
        after = '"' + _OVERESCAPED.sub(r"\1", text[span.body : span.stop]) + '"'
        if STRICT_STRING.fullmatch(after) is None:
            after = '"' + _encode(text[span.body : span.stop]) + '"'
        return [("escaped", span.start, text[span.start : span.end], after)]
    stop = span.stop
    if not span.closed and (cut := _CUT_ESCAPE.search(text, max(span.body, stop - 12), stop)):
        stop = _cut_before(text, span.body, cut.start())
    opening = text[span.start : span.body]
    closing = text[stop : span.end]
    whole = _CLEAN.fullmatch(text, span.body, stop) is not None
    if whole and opening != '"' and closing:
        return [("wrong_quote", span.start, text[span.start : span.end], f'"{text[span.body : stop]}"')]
    edits: list[RawEdit] = []
    if opening != '"':
        edits.append(("wrong_quote" if opening else "missing_quote", span.start, opening, '"'))
    if not whole:
        edits.extend(_content_edits(text, span.body, stop, mark))
    if not span.closed:
        edits.append(("truncated", stop, closing, '"'))
    elif closing != '"':
        edits.append(("wrong_quote" if closing else "missing_quote", stop, closing, '"'))
    return edits


def _cut_before(text: str, body: int, at: int) -> int:
    """`at`, unless the backslash there is itself escaped and so not the start of an escape."""
    run = at
    while run > body and text[run - 1] == "\\":
        run -= 1
    return at if (at - run) % 2 == 0 else at + 1


def _content_edits(text: str, body: int, stop: int, mark: str) -> list[RawEdit]:
    odd = _ODD.search(text, body, stop) is not None and mark == '"'
    path = odd and _PATH.match(text, body, stop) is not None
    edits: list[RawEdit] = []
    for found in _SPECIAL.finditer(text, body, stop):
        which = found.lastindex
        before = found.group()
        if which == 1:
            if odd and _meant_literally(before, path):
                edits.append(("bad_escape", found.start(), before, "\\" + before))
        elif which == 2:
            edits.append(("lone_surrogate", found.start(), before, "\\ufffd"))
        elif which == 3:
            edits.append(("bad_escape", found.start(), before, _escape(before, mark)))
        else:
            edits.append(_character_edit(found.start(), before))
    return edits


def _character_edit(at: int, char: str) -> RawEdit:
    if char == '"':
        return ("unescaped_quote", at, char, '\\"')
    if ord(char) >= 0xD800:
        return ("lone_surrogate", at, char, "\ufffd")
    return control_edit(at, char)


def control_edit(at: int, char: str) -> RawEdit:
    """The escape for a control character that stands raw in a string."""
    return ("control_character", at, char, _CONTROL.get(char) or f"\\u{ord(char):04x}")


def _meant_literally(escape: str, path: bool) -> bool:
    r"""In a string with raw backslashes, `\new` of a Windows path or `\frac` of a formula is no escape either."""
    letter = escape[1]
    if path:
        return letter in "bfnrtu"
    return letter in "bf"


def _escape(before: str, mark: str) -> str:
    """A backslash that starts no JSON escape."""
    char = before[1:]
    if char in ("'", "`") and char:
        return char
    if len(char) == 3 and mark != '"':
        return f"\\u00{char[1:]}"
    return "\\\\" + (_CONTROL.get(char) or char)


def _encode(content: str) -> str:
    """Plain text as the inside of a JSON string; escapes already in it are kept."""
    pieces: list[str] = []
    done = 0
    for _, position, before, after in _content_edits(content, 0, len(content), '"'):
        pieces.append(content[done:position])
        pieces.append(after)
        done = position + len(before)
    pieces.append(content[done:])
    return "".join(pieces)


def quoted(content: str) -> str:
    r"""Any text as a JSON string, raw backslashes and all.

    >>> quoted('say "hi"')
    '"say \\"hi\\""'
    """
    return f'"{content}"' if _CLEAN.fullmatch(content) else '"' + _encode(content) + '"'

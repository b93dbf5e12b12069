"""Where a wrongly quoted string ends, and how it is quoted.

A quote ends a string when what follows it can follow a string there: a colon after a key, a comma and the next key
after an object's value, and so on. Only a bounded stretch is read ahead for each quote, so the cost stays linear.
"""

from __future__ import annotations

import html
import re
from typing import Final, NamedTuple

from slipform.text.repair.tokens import (
    ESCAPE,
    ITEM,
    KEY,
    KEY_AHEAD,
    MEMBER,
    QUOTED_KEY_AHEAD,
    SPACE,
    STRICT_STRING,
    TOP,
    RawEdit,
)

MAX_INNER_QUOTES: Final = 50_000
"""More unescaped quotes than this in one string are not a string."""


class Span(NamedTuple):
    """A string in the text: where it stands, its content, and where reading goes on."""

    start: int
    body: int
    stop: int
    end: int
    delimiter: str
    closed: bool
    """False when the text ended first."""
    guessed: bool
    """True when another quote might have been the end."""


_OPEN: Final = re.compile(r"\"\"\"|'''|\\\"|&quot;|&#34;|&#39;|&apos;|[\"'`“”„‟‘’‚‛«＂＇]")
_NEXT: Final = {
    '"': re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+(")', re.DOTALL),
    "'": re.compile(r"[^'\\]*+(?:\\.[^'\\]*+)*+(')", re.DOTALL),
    "`": re.compile(r"[^`\\]*+(?:\\.[^`\\]*+)*+(`)", re.DOTALL),
    '"""': re.compile(r'(?:[^"]++|"(?!""))*+(""")', re.DOTALL),
    "'''": re.compile(r"(?:[^']++|'(?!''))*+(''')", re.DOTALL),
    '""': re.compile(r'(?:[^"]++|"(?!"))*+("")', re.DOTALL),
    "''": re.compile(r"(?:[^']++|'(?!'))*+('')", re.DOTALL),
    '\\"': re.compile(r"(?:[^\\\"]++|\\\\\\\"|\\\\|\\[^\"\\])*+(\\?\")", re.DOTALL),
    "&quot;": re.compile(r"(?:[^&]++|&(?!quot;|#34;))*+(&quot;|&#34;)", re.DOTALL),
    "&apos;": re.compile(r"(?:[^&]++|&(?!apos;|#39;))*+(&apos;|&#39;)", re.DOTALL),
    "“": re.compile(r'[^“”‟"\\]*+(?:\\.[^“”‟"\\]*+)*+([“”‟"])', re.DOTALL),
    "‘": re.compile(r"[^‘’‛'\\]*+(?:\\.[^‘’‛'\\]*+)*+([‘’‛'])", re.DOTALL),
    "«": re.compile(r"[^»\\]*+(?:\\.[^»\\]*+)*+(»)", re.DOTALL),
    "＂": re.compile(r'[^＂"\\]*+(?:\\.[^＂"\\]*+)*+([＂"])', re.DOTALL),
}
_FAMILY: Final = {
    "”": "“",
    "„": "“",
    "‟": "“",
    "’": "‘",
    "‚": "‘",
    "‛": "‘",
    "＇": "'",
    "&#34;": "&quot;",
    "&#39;": "&apos;",
}
_AFTER_DOUBLED: Final = re.compile(r"\s*+(?:[,:}\])]|\Z)")
NO, WEAK, STRONG = range(3)
_BLANKS: Final = re.compile(SPACE)
_AFTER_CLOSER: Final = re.compile(r"[ \t]*+(?:[,}\])\n\r;<`，｝］]|\Z|//|/\*|#)")
_ITEM_AHEAD: Final = re.compile(
    rf"{SPACE}(?:[-+.]?\d|[{{\[\]｛［]|(?:true|false|null|True|False|None|undefined)\b|\Z|//|/\*|\.\.)"
)
_QUOTE_AHEAD: Final = re.compile(rf"{SPACE}[\"'“‘`＂]")
_CUT_KEY_AHEAD: Final = re.compile(rf"{SPACE}(?:[\"'“][^\"'“”:,]{{0,120}}+[\"'”]?+{SPACE})?+\Z")
_CLOSES_AHEAD: Final = re.compile(rf"{SPACE}(?:[}}\]｝］]|\Z|//|/\*|#|\.\.)")
_COMMENT_AHEAD: Final = re.compile(r"//|/\*|#\s|<!--")
_RESTART: Final = re.compile(r"\"[^\"\\\n]{0,400}+\"\s*+(?:\]|,\s*+[\"{\[\d\-])")
_CUT_KEY: Final = re.compile(r"[\"'“]([A-Za-z_$][\w$ -]{0,60}+)(?=[:：])")
_VALUE_AHEAD: Final = re.compile(rf"{SPACE}(?:[\"'“{{\[,}}=]|-?\d|(?:true|false|null|None|True|False)\b)")
_CONCATENATED: Final = re.compile(r"\+\s*+[\"'`]")


def closes(text: str, at: int, end: int, where: int, depth: int) -> int:
    """How surely a quote that ends just before `at` ends a string that stands `where`."""
    after = _BLANKS.match(text, at, end).end()  # type: ignore[union-attr]
    if after >= end:
        return STRONG
    char = text[after]
    if where == KEY:
        return STRONG if char in ":：" or text.startswith("=>", after) else NO
    if char in ",，":
        return _closes_before_comma(text, after + 1, end, where)
    if char in "}]｝］)":
        return _closes_before_closer(text, after, end, where, depth)
    if _COMMENT_AHEAD.match(text, after, end) or _CONCATENATED.match(text, after, end):
        return STRONG
    return _closes_before_more(text, at, after, end, where)


def _closes_before_comma(text: str, at: int, end: int, where: int) -> int:
    if where == MEMBER:
        if KEY_AHEAD.match(text, at, end) or _CLOSES_AHEAD.match(text, at, end) or _CUT_KEY_AHEAD.match(text, at, end):
            return STRONG
        return NO
    if where == ITEM:
        if _ITEM_AHEAD.match(text, at, end):
            return STRONG
        return WEAK if _QUOTE_AHEAD.match(text, at, end) else NO
    return NO


def _closes_before_closer(text: str, at: int, end: int, where: int, depth: int) -> int:
    char = text[at]
    if where in (MEMBER, ITEM) and char == ")":
        return NO
    if not _AFTER_CLOSER.match(text, at + 1, end):
        return WEAK if depth == 1 else NO
    right = (char in "}｝") if where == MEMBER else (char in "]］") if where == ITEM else True
    return STRONG if right else WEAK


def _closes_before_more(text: str, at: int, after: int, end: int, where: int) -> int:
    newline = "\n" in text[at:after] or "\r" in text[at:after]
    if where == MEMBER:
        if QUOTED_KEY_AHEAD.match(text, after, end) and after > at:
            return STRONG
        if newline and KEY_AHEAD.match(text, after, end):
            return STRONG
    elif where == ITEM and after > at and text[after] in "\"'“{[":
        return STRONG if newline or text[after] in "{[" else WEAK
    if newline and '"' not in text[after:end]:
        return STRONG
    return NO


def delimiter_at(text: str, at: int, end: int) -> str:
    """The opening quote at `at`, or the empty string.

    >>> delimiter_at("“x”", 0, 3)
    '“'
    """
    found = _OPEN.match(text, at, end)
    if found is None:
        return ""
    mark = found.group()
    if mark in ('"""', "'''"):
        closing = text.find(mark, found.end(), end)
        if closing < 0 or _AFTER_DOUBLED.match(text, found.end(), end):
            mark = mark[0]
    if mark in "\"'" and text.startswith(mark, at + 1) and not _AFTER_DOUBLED.match(text, at + 2, end):
        closing = text.find(mark + mark, at + 2, end)
        if closing > 0 and _AFTER_DOUBLED.match(text, closing + 2, end):
            return mark + mark
    return mark


def read_string(text: str, at: int, end: int, where: int, closers: str, skip: int = 0, beyond: int = 0) -> Span | None:
    """The string that opens at `at`; None when no string can be made of it.

    `closers` are the brackets that would close what is open, innermost first. `skip` passes over that many plausible
    ends, `beyond` over all quotes before that position: other readings of the same text.
    """
    mark = delimiter_at(text, at, end)
    body = at + len(mark)
    if where == KEY:
        return _read_key(text, at, body, end, mark)
    return _find_end(text, Span(at, body, end, end, mark, False, False), end, where, closers, skip, beyond)


def _find_end(text: str, span: Span, end: int, where: int, closers: str, skip: int, beyond: int) -> Span | None:
    following = _NEXT[_FAMILY.get(span.delimiter, span.delimiter)]
    at = span.body
    inner = 0
    weak: Span | None = None
    while found := following.match(text, at, end):
        quote, at = found.span(1)
        if quote < beyond:
            inner += 1
            continue
        if where == TOP and at < end:
            return None
        sure = closes(text, at, end, where, len(closers))
        if sure == STRONG or (sure == WEAK and inner % 2 == 0):
            if not skip:
                return span._replace(stop=quote, end=at, closed=True, guessed=inner > 0)
            skip -= 1
        elif sure == WEAK and weak is None:
            weak = span._replace(stop=quote, end=at, closed=True, guessed=True)
        elif (stop := _unclosed_before(text, span.body, quote, end, where, inner)) >= 0:
            return span._replace(stop=stop, end=stop, closed=True, guessed=True)
        inner += 1
        if inner > MAX_INNER_QUOTES:
            return None
    if weak is not None:
        return weak
    stop = after = _before_closers(text, span.body, end, closers)
    if stop < end:
        if text[stop - 1] in "“”" and span.delimiter == '"':
            stop -= 1
        return span._replace(stop=stop, end=after, closed=True, guessed=True)
    return span._replace(guessed=inner > 0)


def _unclosed_before(text: str, body: int, quote: int, end: int, where: int, inner: int) -> int:
    """Where the string should have been closed, when the quote at `quote` opens the next key or item; else -1."""
    before = quote
    while before > body and text[before - 1] in " \t\r\n":
        before -= 1
    comma = before > body and text[before - 1] == ","
    if where == MEMBER and QUOTED_KEY_AHEAD.match(text, quote, end) and (comma or "\n" in text[before:quote]):
        return _trim(text, body, before - comma)
    if where == ITEM and comma and inner == 0 and _RESTART.match(text, quote, end):
        return _trim(text, body, before - 1)
    return -1


def _trim(text: str, body: int, stop: int) -> int:
    while stop > body and text[stop - 1] in " \t\r\n":
        stop -= 1
    return stop


def _before_closers(text: str, body: int, end: int, closers: str) -> int:
    """Where an unclosed string stops if the text ends with just the brackets that are open; else `end`."""
    at = end
    for closer in reversed(closers):
        at = _trim(text, body, at)
        if at <= body or text[at - 1] != closer:
            return end
        at -= 1
    if not closers:
        return end
    opener = "{" if closers[0] == "}" else "["
    if text.count(opener, body, at) > text.count(closers[0], body, at):
        return end
    return _trim(text, body, at)


def _read_key(text: str, at: int, body: int, end: int, mark: str) -> Span | None:
    following = _NEXT[_FAMILY.get(mark, mark)]
    cut = _CUT_KEY.match(text, at, end)
    position = body
    for tries in range(8):
        found = following.match(text, position, end)
        if found is None:
            break
        quote, position = found.span(1)
        if closes(text, position, end, KEY, 0):
            return Span(at, body, quote, position, mark, True, tries > 0)
        if cut and cut.end() < quote:
            return Span(at, body, cut.end(), cut.end(), mark, True, True)
        if tries == 0 and _VALUE_AHEAD.match(text, position, end):
            return Span(at, body, quote, position, mark, True, False)
    else:
        return None
    if cut and text[:end].rstrip()[-1:] in "}]":
        return Span(at, body, cut.end(), cut.end(), mark, True, True)
    return Span(at, body, end, end, mark, False, False) if position == body else None


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

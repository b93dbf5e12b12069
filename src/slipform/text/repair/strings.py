"""Find the end of a wrongly quoted string, and quote it as JSON.

A quote ends a string when the text after it can follow a string there: a colon after a key, a comma and the next key
after an object's value, and so on. Lookahead is bounded for each quote, so the cost stays linear.
"""

from __future__ import annotations

import html
import re
from typing import Final, NamedTuple

from slipform.text.repair.machine import CLOSER, RepairState
from slipform.text.repair.tokens import (
    ESCAPE,
    ITEM,
    KEY,
    KEY_AHEAD,
    MEMBER,
    NUMBER,
    QUOTED_KEY_AHEAD,
    SPACE,
    STRICT_STRING,
    TOP,
    TUPLE,
    RawEdit,
    apply_edits,
)

_QUOTE_WORK: Final = 60
MAX_INNER_QUOTES: Final = 50_000
"""A text with more unescaped quotes than this is not a string."""


class QuotedSpan(NamedTuple):
    """A string in the text: its start, its content from `body` to `stop`, and its end."""

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
    "”": "“", "„": "“", "‟": "“", "’": "‘", "‚": "‘", "‛": "‘", "＇": "'", "&#34;": "&quot;", "&#39;": "&apos;",
}  # fmt: skip
_AFTER_DOUBLED: Final = re.compile(r"\s*+(?:[,:}\])]|\Z)")
NO, WEAK, STRONG = range(3)
_BLANKS: Final = re.compile(SPACE)
_AFTER_CLOSER: Final = re.compile(r"[ \t]*+(?:[,}\])\n\r;<`，、،｝］]|\Z|//|/\*|#)")
_ITEM_AHEAD: Final = re.compile(
    rf"{SPACE}(?:[-+.]?\d|[{{\[\]｛［]|(?:true|false|null|True|False|None|undefined)\b|\Z|//|/\*|\.\.)"
)
_SCALAR_AHEAD: Final = re.compile(rf"(?:{NUMBER}|true|false|null){SPACE}[,\])\"]")
_QUOTE_AHEAD: Final = re.compile(rf"{SPACE}[\"'“‘`＂]")
_CUT_KEY_AHEAD: Final = re.compile(rf"{SPACE}(?:[\"'“][^\"'“”:,]{{0,120}}+[\"'”]?+{SPACE})?+\Z")
_CLOSES_AHEAD: Final = re.compile(rf"{SPACE}(?:[}}\]｝］]|\Z|//|/\*|#|\.\.)")
_COMMENT_AHEAD: Final = re.compile(r"//|/\*|#\s|<!--")
_RESTART: Final = re.compile(r"\"[^\"\\\n]{0,400}+\"\s*+(?:\]|,\s*+[\"{\[\d\-])")
_CUT_KEY: Final = re.compile(r"[\"'“]([\w$][\w$ -]{0,60}+)(?=[:：])")
_VALUE_AHEAD: Final = re.compile(rf"{SPACE}(?:[\"'“{{\[,}}=]|-?\d|(?:true|false|null|None|True|False)\b)")
_CONCATENATED: Final = re.compile(r"\+\s*+[\"'`]")
_VALUE_BEGINS: Final = re.compile(rf"{SPACE}(?:[\"'“{{\[]|[-+.]?\d|(?:true|false|null|None|True|False|NaN)\b|\Z)")
_STRUCTURE: Final = re.compile(r"((?:[}\]]\s*+)*+),\s*+((?:[{\[]\s*+)*+)\Z")
"""Closing brackets, a comma, opening brackets: possible separators of a string and the next key."""
_NOT_IN_KEY: Final = re.compile(r"[\"'”]\s*+[,\]}\[{]|[,{]\s*+[\"'“]")
"""Quotes beside punctuation: more than one string, not one key."""
_NOT_IN_LINE: Final = re.compile(r"[,:][^\n\"]*+\n")
"""Punctuation and a line break: the end of a member, not the inside of a key."""
_MAX_STRUCTURE: Final = 200
_APOSTROPHE: Final = re.compile(r"[^\W\d_]['’][^\W\d_]")


def closes(text: str, at: int, end: int, where: int, depth: int) -> int:
    """Return how certain a quote just before `at` ends a string in the place `where`: NO, WEAK or STRONG."""
    after = _BLANKS.match(text, at, end).end()  # type: ignore[union-attr]
    if after >= end:
        return STRONG
    char = text[after]
    if where == KEY:
        if char in ":：" or text.startswith("=>", after):
            return STRONG
        return NO
    if char in ",，、､،؛;；":
        return _closes_before_comma(text, after + 1, end, where)
    if char in "}]｝］)":
        return _closes_before_closer(text, after, end, where, depth)
    if _COMMENT_AHEAD.match(text, after, end) or _CONCATENATED.match(text, after, end):
        return STRONG
    return _closes_before_more(text, at, after, end, where)


def _closes_before_comma(text: str, at: int, end: int, where: int) -> int:
    """Return how certain a quote ends a string when a comma follows it."""
    if where == MEMBER:
        if KEY_AHEAD.match(text, at, end) or _CLOSES_AHEAD.match(text, at, end) or _CUT_KEY_AHEAD.match(text, at, end):
            return STRONG
        return NO
    if where in (ITEM, TUPLE):
        if _ITEM_AHEAD.match(text, at, end):
            return STRONG
        return WEAK if _QUOTE_AHEAD.match(text, at, end) else NO
    return NO


def _closes_before_closer(text: str, at: int, end: int, where: int, depth: int) -> int:
    """Return how certain a quote ends a string when a closing bracket follows it."""
    char = text[at]
    if where in (MEMBER, ITEM) and char == ")":
        return NO
    if where == TUPLE:
        return STRONG if char == ")" else WEAK
    if not _AFTER_CLOSER.match(text, at + 1, end):
        return WEAK if depth == 1 else NO
    if where == MEMBER:
        return STRONG if char in "}｝" else WEAK
    if where == ITEM and char not in "]］":
        return WEAK
    return STRONG


def _closes_before_more(text: str, at: int, after: int, end: int, where: int) -> int:
    """Return how certain a quote ends a string when something follows that needs a comma before it."""
    newline = "\n" in text[at:after] or "\r" in text[at:after]
    if where == MEMBER:
        if QUOTED_KEY_AHEAD.match(text, after, end) and after > at:
            return STRONG
        if newline and KEY_AHEAD.match(text, after, end):
            return STRONG
    elif where in (ITEM, TUPLE) and after > at:
        if text[after] in "\"'“{[":
            if newline or text[after] in "{[":
                return STRONG
            return WEAK
        if _SCALAR_AHEAD.match(text, after, end):
            return WEAK
    if newline and text.find('"', after, end) < 0:
        return STRONG
    return NO


def delimiter_at(text: str, at: int, end: int) -> str:
    """Return the opening quote at `at`, or the empty string.

    >>> delimiter_at("“x”", 0, 3)
    '“'
    """
    match = _OPEN.match(text, at, end)
    if match is None:
        return ""
    delimiter = match.group()
    if delimiter in ('"""', "'''"):
        closing = text.find(delimiter, match.end(), end)
        if closing < 0 or _AFTER_DOUBLED.match(text, match.end(), end):
            delimiter = delimiter[0]
    if delimiter in "\"'" and text.startswith(delimiter, at + 1) and not _AFTER_DOUBLED.match(text, at + 2, end):
        closing = text.find(delimiter + delimiter, at + 2, end)
        if closing > 0 and _AFTER_DOUBLED.match(text, closing + 2, end):
            return delimiter + delimiter
    return delimiter


def read_string(m: RepairState, at: int, where: int, *, skip: int = 0, beyond: int = 0) -> QuotedSpan | None:
    """Return the string that opens at `at`; None when it has no plausible end.

    `skip` ignores that many plausible ends, `beyond` all quotes before that position: other readings of the same text.
    """
    end = m.end
    delimiter = delimiter_at(m.text, at, end)
    body = at + len(delimiter)
    if where == KEY:
        return _read_key(m, at, body, delimiter)
    return _find_end(m, QuotedSpan(at, body, end, end, delimiter, False, False), where, skip, beyond)


def _find_end(m: RepairState, span: QuotedSpan, where: int, skip: int, beyond: int) -> QuotedSpan | None:
    """Return the string with its end: at the first quote that certainly ends it, else at the first that may."""
    text = m.text
    end = m.end
    depth = len(m.stack)
    next_quote = _NEXT[_FAMILY.get(span.delimiter, span.delimiter)]
    at = span.body
    inner = 0
    weak: QuotedSpan | None = None
    opened = OpenedInside(text, span.body)
    while match := next_quote.match(text, at, end):
        m.work += match.end() - at + _QUOTE_WORK
        quote, at = match.span(1)
        if quote < beyond:
            inner += 1
            continue
        if where == TOP and at < end:
            return None
        certainty = closes(text, at, end, where, depth)
        if certainty == STRONG or (certainty == WEAK and inner % 2 == 0):
            if not skip:
                return span._replace(stop=quote, end=at, closed=True, guessed=inner > 0)
            skip -= 1
        elif certainty == WEAK and weak is None:
            weak = span._replace(stop=quote, end=at, closed=True, guessed=True)
        elif (stop := _unclosed_before(m, quote, where, inner, opened)) >= 0:
            return span._replace(stop=_path_end(text, span.body, stop), end=stop, closed=True, guessed=True)
        elif span.delimiter in "'‘’" and _APOSTROPHE.match(text, quote - 1):
            continue
        inner += 1
        if inner > MAX_INNER_QUOTES:
            return None
    m.work += end - at
    if weak is None:
        return _end_before_closers(m, span, inner)
    return weak


def _end_before_closers(m: RepairState, span: QuotedSpan, inner: int) -> QuotedSpan:
    """Return a string without a closing quote; it ends before the brackets at the end of the text, if any."""
    text = m.text
    stop = after = _before_closers(m, span.body)
    if stop >= m.end:
        return span._replace(guessed=inner > 0)
    if text[stop - 1] in "“”" and span.delimiter == '"':
        stop -= 1
    return span._replace(stop=_path_end(text, span.body, stop), end=after, closed=True, guessed=True)


def _path_end(text: str, body: int, stop: int) -> int:
    r"""Return `stop`, or the place of the quote before it that closes a path, as in `"C:\dir\"`."""
    if text.endswith('\\"', body, stop) and _PATH.match(text, body, stop):
        return stop - 1
    return stop


class OpenedInside:
    """Counts whether a string has more opening than closing brackets up to a position; each character is read once.

    >>> opened = OpenedInside("a {b} [c", 0)
    >>> opened.before(4), opened.before(6), opened.before(8)
    (True, False, True)
    """

    __slots__ = ("_at", "_braces", "_brackets", "_text", "body")

    def __init__(self, text: str, body: int) -> None:
        self._text = text
        self.body = body
        self._at = body
        self._braces = 0
        self._brackets = 0

    def before(self, at: int) -> bool:
        """Whether brackets are open at `at`; positions must not decrease."""
        text = self._text
        done = self._at
        self._braces += text.count("{", done, at) - text.count("}", done, at)
        self._brackets += text.count("[", done, at) - text.count("]", done, at)
        self._at = at
        return self._braces > 0 or self._brackets > 0


def _unclosed_before(m: RepairState, quote: int, where: int, inner: int, opened: OpenedInside) -> int:
    """Return where the string should have been closed, if the quote at `quote` opens the next key or item; else -1."""
    text = m.text
    end = m.end
    body = opened.body
    before = quote
    while before > body and text[before - 1] in " \t\r\n":
        before -= 1
    comma = before > body and text[before - 1] == ","
    if (key := QUOTED_KEY_AHEAD.match(text, quote, end)) and _VALUE_BEGINS.match(text, key.end(), end):
        if (stop := _before_structure(m, quote, opened)) >= 0:
            return _trim(text, body, stop)
        if where == MEMBER and (comma or "\n" in text[before:quote]):
            return _trim(text, body, before - comma)
    if where == ITEM and comma and inner == 0 and _RESTART.match(text, quote, end):
        return _trim(text, body, before - 1)
    return -1


def _before_structure(m: RepairState, quote: int, opened: OpenedInside) -> int:
    """Return where the brackets and the comma begin that lead from an unclosed string to the key at `quote`; else -1.

    The brackets must close frames that are open, and none that the string itself opened.
    """
    text = m.text
    first = quote
    while first > max(opened.body, quote - _MAX_STRUCTURE) and text[first - 1] in " \t\r\n,{}[]":
        first -= 1
    for at in range(first, quote):
        if text[at] not in "}],":
            continue
        run = _STRUCTURE.match(text, at, quote)
        if run is None:
            continue
        closing = "".join(run.group(1).split())
        if (closing or run.group(2)) and m.closed_by(closing) and not opened.before(at):
            return at
    return -1


def _trim(text: str, body: int, stop: int) -> int:
    while stop > body and text[stop - 1] in " \t\r\n":
        stop -= 1
    return stop


def _before_closers(m: RepairState, body: int) -> int:
    """Return where an unclosed string stops if the text ends with just the open brackets; else `end`."""
    text = m.text
    end = m.end
    at = end
    for frame in m.stack:
        at = _trim(text, body, at)
        if at <= body or text[at - 1] != CLOSER[frame]:
            return end
        at -= 1
    if not m.stack:
        return end
    closer = CLOSER[m.stack[-1]]
    opener = "{" if closer == "}" else "["
    if text.count(opener, body, at) > text.count(closer, body, at):
        return end
    return _trim(text, body, at)


def _read_key(m: RepairState, at: int, body: int, delimiter: str) -> QuotedSpan | None:
    """Return a key with its end: at the first quote after which a colon is plausible, within eight tries."""
    text = m.text
    end = m.end
    next_quote = _NEXT[_FAMILY.get(delimiter, delimiter)]
    truncation = _CUT_KEY.match(text, at, end)
    position = body
    for tries in range(8):
        match = next_quote.match(text, position, end)
        if match is None:
            break
        quote, position = match.span(1)
        m.work += position - body
        odd = (_NOT_IN_KEY if tries else _NOT_IN_LINE).search(text, body, quote)
        if closes(text, position, end, KEY, 0) and odd is None:
            return QuotedSpan(at, body, quote, position, delimiter, True, tries > 0)
        if truncation and truncation.end() < quote:
            return QuotedSpan(at, body, truncation.end(), truncation.end(), delimiter, True, True)
        if tries == 0 and _VALUE_AHEAD.match(text, position, end):
            return QuotedSpan(at, body, quote, position, delimiter, True, False)
    else:
        return None
    m.work += end - position
    if truncation and text[position:end].rstrip().endswith(("}", "]")):
        return QuotedSpan(at, body, truncation.end(), truncation.end(), delimiter, True, True)
    if position == body:
        return QuotedSpan(at, body, end, end, delimiter, False, False)
    return None


_SPECIAL: Final = re.compile(
    rf'({ESCAPE})|(\\u[0-9a-fA-F]{{4}})|(\\x[0-9a-fA-F]{{2}}|\\\r\n|\\.?)|(["\x00-\x1f\ud800-\udfff])', re.DOTALL
)
_CLEAN: Final = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*+')
_CUT_ESCAPE: Final = re.compile(
    r"\\(?:u[0-9a-fA-F]{0,3})?\Z|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z"
)
_CONTROL: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_PATH: Final = re.compile(r"[A-Za-z]:\\|\\\\[\w.$-]+\\[^\\]")
_PATH_INSIDE: Final = re.compile(r"(?<![A-Za-z])[A-Za-z]:\\[^\s\"<>|*?]*+")
_COMMAND: Final = re.compile(r"[A-Za-z]++")
_COMMANDS: Final = frozenset({
    "nabla", "natural", "ne", "nearrow", "neg", "neq", "newcommand", "newline", "nexists", "ngeq", "ni", "nleq",
    "nmid", "nolimits", "nonumber", "norm", "not", "notag", "notin", "nparallel", "nprec", "nsubseteq", "nsucc",
    "nu", "nwarrow", "raise", "rangle", "rbrace", "rbrack", "rceil", "ref", "renewcommand", "rfloor", "rho",
    "right", "rightarrow", "rightharpoonup", "rightleftharpoons", "rm", "root", "rtimes", "rule", "tag", "tan",
    "tanh", "tau", "tbinom", "text", "textbf", "textcolor", "textit", "textrm", "textstyle", "texttt", "textup",
    "tfrac", "therefore", "theta", "thickapprox", "thicksim", "tilde", "times", "tiny", "to", "top", "triangle",
    "triangleleft", "triangleright", "twoheadrightarrow",
})  # fmt: skip
"""The commands of formulas that begin like an escape of a newline, a carriage return or a tab."""
_ODD_ESCAPE: Final = re.compile(r"(?:[^\\]++|\\(?:[\"\\/bfnrt'`\n\r]|u[0-9a-fA-F]{4}))*+\\(?=.)", re.DOTALL)
"""A string up to its first escape that JSON does not have."""
_OVERESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_KIND: Final = {"&quot;": "html_entity", "&#34;": "html_entity", "&apos;": "html_entity", "&#39;": "html_entity"}


def requote(text: str, span: QuotedSpan) -> list[RawEdit]:
    """Return the edits that make the string at `span` a JSON string.

    >>> requote("'a'", QuotedSpan(0, 1, 2, 3, "'", True, False))
    [('wrong_quote', 0, "'a'", '"a"')]
    """
    delimiter = span.delimiter
    if delimiter in _KIND:
        content = html.unescape(text[span.body : span.stop])
        return [(_KIND[delimiter], span.start, text[span.start : span.end], '"' + _encode(content) + '"')]
    if delimiter == '\\"':
        after = '"' + _OVERESCAPED.sub(r"\1", text[span.body : span.stop]) + '"'
        if STRICT_STRING.fullmatch(after) is None:
            after = '"' + _encode(text[span.body : span.stop]) + '"'
        return [("escaped", span.start, text[span.start : span.end], after)]
    stop = span.stop
    if not span.closed and (truncation := _CUT_ESCAPE.search(text, max(span.body, stop - 12), stop)):
        stop = _cut_before(text, span.body, truncation.start())
    opening = text[span.start : span.body]
    closing = text[stop : span.end]
    is_clean = _CLEAN.fullmatch(text, span.body, stop) is not None
    # Quotes of this kind inside the string have no edit; the guessed end must still be recorded.
    kind = "unescaped_quote" if span.guessed and span.closed and opening not in ("", '"') else "wrong_quote"
    if is_clean and opening != '"' and closing:
        return [(kind, span.start, text[span.start : span.end], f'"{text[span.body : stop]}"')]
    edits: list[RawEdit] = []
    if opening != '"':
        edits.append((kind if opening else "missing_quote", span.start, opening, '"'))
    if not is_clean:
        edits.extend(_content_edits(text, span.body, stop, delimiter))
    if not span.closed:
        edits.append(("truncated", stop, closing, '"'))
    elif closing != '"':
        edits.append(("wrong_quote" if closing else "missing_quote", stop, closing, '"'))
    return edits


def _cut_before(text: str, body: int, at: int) -> int:
    """Return `at`, or the next position when the backslash at `at` is itself escaped."""
    start = at
    while start > body and text[start - 1] == "\\":
        start -= 1
    return at if (at - start) % 2 == 0 else at + 1


def _content_edits(text: str, body: int, stop: int, delimiter: str) -> list[RawEdit]:
    """Return the edits that a string's content needs: escapes of paths and formulas, surrogates, control characters."""
    has_odd_escapes = _ODD_ESCAPE.match(text, body, stop) is not None and delimiter == '"'
    is_path = has_odd_escapes and _PATH.match(text, body, stop) is not None
    paths = _Paths(text, body, stop) if has_odd_escapes else None
    edits: list[RawEdit] = []
    for match in _SPECIAL.finditer(text, body, stop):
        group = match.lastindex
        before = match.group()
        if group == 1:
            at = match.start()
            in_path = is_path or (paths is not None and paths.cover(at))
            if has_odd_escapes and (in_path or _is_command(text, at, stop)) and before[1] in "bfnrtu":
                edits.append(("bad_escape", match.start(), before, "\\" + before))
        elif group == 2:
            edits.append(("lone_surrogate", match.start(), before, "\\ufffd"))
        elif group == 3:
            is_code = delimiter != '"' or not (is_path or (paths is not None and paths.cover(match.start())))
            edits.append(("bad_escape", match.start(), before, _escape(before, is_code)))
        else:
            edits.append(_character_edit(match.start(), before))
    return edits


class _Paths:
    """The paths inside a string, one after the other."""

    __slots__ = ("_end", "_matches", "_start")

    def __init__(self, text: str, body: int, stop: int) -> None:
        self._matches = _PATH_INSIDE.finditer(text, body, stop)
        self._start = self._end = -1

    def cover(self, at: int) -> bool:
        """Whether `at` is inside a path; positions must not decrease."""
        while self._end <= at:
            match = next(self._matches, None)
            if match is None:
                return False
            self._start, self._end = match.span()
        return self._start < at


def _character_edit(at: int, char: str) -> RawEdit:
    if char == '"':
        return ("unescaped_quote", at, char, '\\"')
    if ord(char) >= 0xD800:
        return ("lone_surrogate", at, char, "\ufffd")
    return control_edit(at, char)


def control_edit(at: int, char: str) -> RawEdit:
    """Return the edit that escapes a control character in a string."""
    return ("control_character", at, char, _CONTROL.get(char) or f"\\u{ord(char):04x}")


def _is_command(text: str, at: int, stop: int) -> bool:
    r"""Whether an escape among others that are none is a command: `\frac`, `\neq` of a formula, `\b` of a pattern."""
    name = _COMMAND.match(text, at + 1, stop)
    return text[at + 1] in "bf" or (name is not None and name.group() in _COMMANDS)


def _escape(before: str, is_code: bool) -> str:
    r"""Return the replacement of a backslash that starts no JSON escape; in code `\x41` is a character."""
    char = before[1:]
    if char in ("\n", "\r", "\r\n"):
        return char.replace("\r", "\\r").replace("\n", "\\n")  # the newline itself was escaped, not its letter
    if char in ("'", "`") and char:
        return char
    if len(char) == 3 and is_code:
        return f"\\u00{char[1:]}"
    return "\\\\" + (_CONTROL.get(char) or char)


def _encode(content: str) -> str:
    """Return text as the inside of a JSON string; escapes already in it are kept."""
    return apply_edits(content, _content_edits(content, 0, len(content), '"'))


def quoted(content: str) -> str:
    r"""Return any text as a JSON string.

    >>> quoted('say "hi"')
    '"say \\"hi\\""'
    """
    if _CLEAN.fullmatch(content):
        return f'"{content}"'
    return '"' + _encode(content) + '"'

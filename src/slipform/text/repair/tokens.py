"""Define the regular expressions of the repair, and the record of one edit.

Every repeat is possessive, so no pattern here can backtrack: each is linear in what it reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

CERTAIN: Final = frozenset({
    "bad_escape", "comment", "control_character", "extra_comma", "invisible", "literal", "missing_comma",
    "number", "punctuation", "trailing_comma", "unquoted_key", "wrong_quote",
})  # fmt: skip
"""Kinds that write the same value as JSON; every other kind is a guess at what was meant."""


_MISSPELT_NUMBER: Final = re.compile(r"[-+]?+(?:0_*+[0-9]|(?!0[xX]).*(?:[.eE+-]\Z|[.][eE]|,))|,")
"""A leading zero, a point or an exponent without digits, commas: not one number and nothing else."""
_PLAIN_KEY: Final = re.compile(r"[\w$.-]++")
_QUOTES_WITHIN: Final = re.compile(r"(?:\"\"(?!\")|''(?!')|[bBfFrR])")
"""The beginning of a string in two quotes, or of one with a letter before it."""


class RepairEdit(NamedTuple):
    """One change: at `position` of the original text, `before` became `after`.

    >>> RepairEdit("trailing_comma", 5, ",", "").certain
    True
    """

    kind: str
    position: int
    before: str
    after: str

    @property
    def certain(self) -> bool:
        """Whether the edit writes the same value as JSON, and is not a guess at what was meant.

        Certain means that there is one reading only. Guesses are: a backslash that JSON has no escape for, or that was
        escaped because of others beside it; a comment with one quote, which may be a string that lost its first one; a
        key that is not a plain name; quotes within quotes; letters before a quote; a number with a leading zero,
        with commas, or with a point or an exponent that no digits follow.
        """
        kind = self.kind
        before = self.before
        if kind == "comment":
            return before.count('"') % 2 == 0
        if kind == "unquoted_key":
            return _PLAIN_KEY.fullmatch(before) is not None
        if kind == "wrong_quote":
            return _QUOTES_WITHIN.match(before) is None or self.after == '""'
        if kind == "bad_escape":
            return before[1:] == self.after
        if kind == "number":
            return _MISSPELT_NUMBER.match(before) is None
        return kind in CERTAIN


RawEdit = tuple[str, int, str, str]
"""An edit during the pass: a plain tuple, because there may be very many."""


def apply_edits(text: str, edits: Iterable[RepairEdit | RawEdit], start: int = 0, end: int | None = None) -> str:
    """Return `text` from `start` to `end` with `edits` (in order of position) applied.

    >>> apply_edits("[1,]", [RepairEdit("trailing_comma", 2, ",", "")])
    '[1]'
    """
    pieces: list[str] = []
    done = start
    for _, position, before, after in edits:
        pieces.append(text[done:position])
        pieces.append(after)
        done = position + len(before)
    pieces.append(text[done:end])
    return "".join(pieces)


WS: Final = r"[ \t\n\r]*+"
_HEX: Final = "[0-9a-fA-F]"
ESCAPE: Final = (
    r'\\(?:["\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F]' + _HEX + r"{3}|[dD][0-7]" + _HEX + r"{2}"
    r"|[dD][89abAB]" + _HEX + r"{2}\\u[dD][c-fC-F]" + _HEX + r"{2}))"
)
STRING: Final = rf'"[^"\\\x00-\x1f]*+(?:{ESCAPE}[^"\\\x00-\x1f]*+)*+"'
LAX_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
NUMBER: Final = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+"
SCALAR: Final = rf"(?:{STRING}|{NUMBER}|true|false|null)"


def _nested_value(levels: int) -> str:
    """Return the pattern of a valid value with this many levels of arrays and objects."""
    after_item = rf"(?:,{WS}(?!\])|(?=\]))"
    after_member = rf"(?:,{WS}(?!\}})|(?=\}}))"
    value = SCALAR
    for _ in range(levels):
        item = rf"{value}{WS}{after_item}"
        member = rf"{STRING}{WS}:{WS}{value}{WS}{after_member}"
        array_or_object = rf"\[{WS}(?:{item})*+\]|\{{{WS}(?:{member})*+\}}"
        value = rf"(?:{SCALAR}|{array_or_object})"
    return value


VALUE: Final = _nested_value(2)
MEMBERS: Final = re.compile(rf"{WS}(?:{STRING}{WS}:{WS}{VALUE}{WS},{WS})*+")
"""As many valid members as possible, each with its comma. (No groups: CPython 3.11 fails on them in such repeats.)"""
ITEMS: Final = re.compile(rf"{WS}(?:{VALUE}{WS},{WS})*+")
"""As many valid items as possible, each with its comma."""
EMBEDDED: Final = re.compile(rf"\"{WS}(?=[{{\[])(?:{_nested_value(3)}){WS}\"(?={WS}[,}}\])])")
"""A string whose content is JSON with its quotes not escaped."""
CONTAINER: Final = re.compile(rf"{WS}(?=[{{\[])({_nested_value(3)})")
COMMAS: Final = re.compile(rf",(?:{WS},)*+")
BLANK: Final = re.compile(WS)
STRICT_KEY: Final = re.compile(rf"{STRING}{WS}:")
STRICT_STRING: Final = re.compile(STRING)
KEY, MEMBER, ITEM, CALL, TOP, TUPLE = range(6)
"""The place of a string: a key, an object's value, an array's item, an argument, the whole document, a tuple's item."""
_FOLLOW: Final = (r":", r"[,}]", r"[,\]]", r"\)", r"\Z", r"[,)]")
STRICT_THEN: Final = tuple(re.compile(rf"{STRING}(?={WS}(?:{c}|\Z))") for c in _FOLLOW)
LAX_THEN: Final = tuple(re.compile(rf"{LAX_STRING}(?={WS}(?:{c}|\Z))", re.DOTALL) for c in _FOLLOW)
SINGLE_THEN: Final = tuple(re.compile(rf"'[^'\"\\\x00-\x1f]*+'(?={WS}(?:{c}|\Z))") for c in _FOLLOW)
SPACE: Final = r"[\s\u200b-\u200f\u2060\ufeff]*+"
_QUOTES: Final = "\"'`“”„‟‘’‚‛«»＂＇"
_MARK: Final = rf"""(?:\\"|&quot;|&#34;|&#x22;|[{_QUOTES}]{{1,3}})"""
_KEY_STRING: Final = rf'"[^"\\\x00-\x1f]*+(?:{ESCAPE}[^"\\\x00-\x1f]*+){{0,40}}+"'
"""A string with few escapes: a search from every quote of a text may not continue to the end of the text each time."""
QUOTED_KEY: Final = rf"""(?:{_KEY_STRING}|{_MARK}(?:[^"'`“”‘’:,{{}}\[\]\n]|[‘’](?!\s*+[:：])){{0,120}}+{_MARK})"""
BARE_KEY: Final = r"[A-Za-z_$\u00aa-\uffff][\w$ .-]{0,60}+"
KEY_AHEAD: Final = re.compile(rf"{SPACE}(?:{QUOTED_KEY}|{BARE_KEY}){SPACE}[:：](?!//)")
"""A key and its colon, recognised within a bounded number of characters."""
QUOTED_KEY_AHEAD: Final = re.compile(rf"{SPACE}{QUOTED_KEY}{SPACE}[:：]")
_ANY_QUOTE: Final = "[\"'“”‘’`]"
GOES_ON: Final = re.compile(
    rf"\s*+[,;]?+\s*+(?:({_ANY_QUOTE}?+[^\W\d][\w$-]{{0,40}}+{_ANY_QUOTE}?+)\s*+(?::(?!//)|=>?)"
    rf"|({_ANY_QUOTE}[^\W\d][\w$-]{{0,40}}+{_ANY_QUOTE}))"
    rf"\s*+(?:[\"'“”‘’{{\[]|[-+.]?\d|(?:true|false|null|True|False|None)\b)[^}}\]]{{0,400}}+[}}\]]"
)
"""After a document: a key and its value, however they are quoted, and a bracket that closes them."""
PREFIX: Final = re.compile(r"(?:[bBuUrRfF]|[=>@$]){1,2}(?=([\"'])[^\"'\n]*+\1\s*+[,:}\])])")
"""What another language writes before a string: b'…', u"…", @"…", and the rest of an assignment by `:=`."""
INVISIBLE: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u0085\u00a0\u00ad\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u2064\u3000\ufeff]++"
)
LINE_COMMENT: Final = re.compile(r"(?://|#)[^\n\r]*+")
BLOCK_COMMENT: Final = re.compile(r"/\*(?:[^*]++|\*(?!/))*+(?:\*/|\Z)")
MARKUP_COMMENT: Final = re.compile(r"<!--(?:[^-]++|-(?!->))*+(?:-->|\Z)")
ELLIPSIS: Final = re.compile(r"\.{2,}+|…++")
STOP: Final = re.compile(r"```|~~~|</[A-Za-z][\w:.-]*\s*>|<\|[^|>\n]{0,40}\|>|\[/[A-Z_]{2,30}\]")
"""Text that can only be outside the JSON: a closing fence or tag."""
_OUTSIDE: Final = re.compile(rf"{LAX_STRING}|([{{}}\[\]]|{STOP.pattern})|(\")", re.DOTALL)
_OUTSIDE_UNQUOTED: Final = re.compile(rf"([{{}}\[\]]|{STOP.pattern})")


def outside_strings(text: str, start: int, end: int) -> Iterator[re.Match[str]]:
    """Yield the brackets, closing fences and closing tags of a part of a text that are not inside strings."""
    for match in _OUTSIDE.finditer(text, start, end):
        if match.lastindex == 1:
            yield match
        elif match.lastindex == 2:  # a quote that is never closed; later quotes are not closed either
            yield from _OUTSIDE_UNQUOTED.finditer(text, match.end(), end)
            return


ESCAPED_BLANK: Final = re.compile(r"(?:\\[nrt])++")
PUNCTUATION: Final = {
    "：": ":", "，": ",", "、": ",", "､": ",", "،": ",", "؛": ",", "；": ",", ";": ",", "｛": "{", "｝": "}",
    "［": "[", "］": "]", "【": "[", "】": "]", "（": "(", "）": ")",
}  # fmt: skip
"""Full-width and foreign punctuation, and its ASCII equivalent."""

"""Read numbers, literals and bare words, and write them as JSON."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from slipform.text.repair.strings import STRONG, closes, quoted
from slipform.text.repair.tokens import ITEM, KEY_AHEAD, MEMBER, QUOTED_KEY_AHEAD, SPACE, TOP, TUPLE

_EDGE: Final = r"(?=[\s,:;}\]){\[\"'，、､،؛｝］`]|</|\\[nrt]|\Z|//|/\*|#|…|\.\.)"
_ATOM: Final = re.compile(
    r"(?P<word>[-+]?[A-Za-z]++)" + _EDGE + r"|(?P<number>[-+]?(?:0[xX][0-9a-fA-F_]++|0[oO][0-7_]++|0[bB][01_]++"
    r"|(?:[0-9][0-9_]*+)?(?:\.(?!\.)[0-9_]*+)?(?:[eE][-+]?[0-9]*+)?)[nL]?)" + _EDGE
)
_AFTER_ATOM: Final = re.compile(
    r"(?:[ \t]|[^\S\n\r](?!\s*+\d))*+(?:[,;}\])\n\r\"'“{\[，、､،؛；｝］<`\\]|\Z|//|/\*|#|\.\.|…"
    r"|[-+.]?\d|(?:true|false|null|True|False|None)\b)"
)
_MORE_DIGITS: Final = re.compile(r"[ \t]++[-+.]?\d")
_BARE: Final = {
    MEMBER: re.compile(r"[^,}\]\n\r\"，、､،｝]*+"),
    ITEM: re.compile(r"[^,}\]\n\r\"，、､،］]*+"),
    TUPLE: re.compile(r"[^,)\n\r\"，、､،）]*+"),
}
_COMMENT: Final = re.compile(r"\s(?://|#\s)|/\*|(?:(?<!\s)\s++)?+(?:```|</[A-Za-z])")
_CALL: Final = re.compile(
    r"(?:new[ \t]+)?[A-Za-z_$][\w$.]*+\(\s*+(?:(?=[{\[])|(?=\"(?:[^\"\\]|\\.)*+\"\s*+\)|'(?:[^'\\]|\\.)*+'\s*+\)"
    r"|[-+]?[0-9][0-9.eE+-]*+\s*+\)))"
)
_LITERALS: Final = {
    "true": "true", "True": "true", "TRUE": "true", "false": "false", "False": "false", "FALSE": "false",
    "null": "null", "Null": "null", "NULL": "null", "None": "null", "NONE": "null", "nil": "null",
    "undefined": "null",
}  # fmt: skip
_NAN: Final = frozenset({"nan", "infinity", "inf"})
_WORDS: Final = ("true", "false", "null", "True", "False", "None", "undefined", "NaN", "Infinity", "-Infinity")
_JSON_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+")

BARE_WORK: Final = 8
"""Units of work for each character of a value without quotes."""


class Scalar(NamedTuple):
    """A value without quotes: its edit (none when `kind` is empty) and its end.

    `kind` is "nan" for what JSON does not have, "cut" for a token that the end of the text leaves undecided.
    """

    kind: str
    before: str
    after: str
    end: int


def call_at(text: str, at: int, end: int) -> int:
    """Return where the argument of a call with one argument begins, as in `ObjectId("…")`; -1 when there is none.

    >>> call_at('Date("x")', 0, 9)
    5
    """
    match = _CALL.match(text, at, end)
    return -1 if match is None else match.end()


def read_scalar(text: str, at: int, end: int, where: int, as_text: bool = False) -> Scalar | None:
    """Return the number, literal or bare word at `at`; None when there is none."""
    if not as_text:
        atom = _ATOM.match(text, at, end)
        if atom is not None and atom.end() > at and _stands_alone(text, atom.end(), end, where):
            scalar = _read_atom(atom.group(), atom.lastgroup == "word", atom.end(), end)
            if scalar is not None:
                return scalar
    if where == TOP:
        return None
    return _read_bare(text, at, end, where)


def _stands_alone(text: str, at: int, end: int, where: int) -> bool:
    """Whether the text after a number or literal shows that the value ends there."""
    if text[at : at + 1] == '"' and at + 1 < end and closes(text, at + 1, end, where, 2) == STRONG:
        return False  # the end of a string without an opening quote
    if where == MEMBER and _MORE_DIGITS.match(text, at, end):
        return False  # for example, a telephone number
    return _AFTER_ATOM.match(text, at, end) is not None or KEY_AHEAD.match(text, at, end) is not None


def _read_atom(token: str, is_word: bool, at: int, end: int) -> Scalar | None:
    """Return a number or literal as JSON; None for any other word."""
    if is_word:
        if token in _LITERALS:
            after = _LITERALS[token]
            return Scalar("" if after == token else "literal", token, after, at)
        if token.lstrip("+-").lower() in _NAN:
            return Scalar("nan", token, "null", at)
        return _complete(token, at) if at == end else None
    after = _number(token)
    if after == token:
        return Scalar("", token, token, at)
    if after:
        cut = at == end and token[-1] in ".eE+-"
        return Scalar("truncated" if cut else "number", token, after, at)
    return Scalar("cut", token, "", at) if at == end else None


def _complete(token: str, at: int) -> Scalar | None:
    """Return the only literal that a token cut off by the end of the text can be; None where it is ambiguous."""
    candidates = [word for word in _WORDS if word.startswith(token)]
    if len(candidates) == 1 and candidates[0] in _LITERALS:
        return Scalar("truncated", token, _LITERALS[candidates[0]], at)
    if candidates:
        return Scalar("cut", token, "", at)
    return None


def _number(token: str) -> str:
    """Return the number as JSON; empty without digits.

    >>> _number("+.50"), _number("007"), _number("0xFF"), _number("1_000")
    ('0.50', '7', '255', '1000')
    """
    if _JSON_NUMBER.fullmatch(token):
        return token
    token = token.replace("_", "").rstrip("nL")
    sign = "-" if token.startswith("-") else ""
    digits = token.lstrip("+-")
    base = digits[:2].lower()
    if base in ("0x", "0o", "0b"):
        if len(digits) > 2 and len(digits) < 1000:
            return f"{sign}{int(digits, 0)}"
        return ""
    candidates = digits
    exponent = ""
    for mark in "eE":
        if mark in candidates:
            candidates, _, power = candidates.partition(mark)
            exponent = f"e{power}" if power.strip("+-") else ""
    if not candidates.strip("."):
        return ""
    integer, _, fraction = candidates.partition(".")
    integer = integer.lstrip("0") or "0"
    return f"{sign}{integer}{'.' + fraction if fraction else ''}{exponent}"


def _read_bare(text: str, at: int, end: int, where: int) -> Scalar | None:
    """Return the words up to where a value without quotes ends; None when there are none."""
    pattern = _BARE.get(where, _BARE[ITEM])
    position = at
    while True:
        position = pattern.match(text, position, end).end()  # type: ignore[union-attr]
        if position >= end or _bare_ends(text, position, end, where):
            break
        if text[position] == '"' and closes(text, position + 1, end, where, 2) == STRONG:
            return _bare(text, at, position, position + 1, "missing_quote")
        position += 1
    scalar = _bare(text, at, position, position, "unquoted_value")
    return scalar if scalar.before else None


def _bare_ends(text: str, at: int, end: int, where: int) -> bool:
    """Whether a value without quotes ends at the character at `at`."""
    char = text[at]
    if char == '"':
        return where == MEMBER and QUOTED_KEY_AHEAD.match(text, at, end) is not None
    if char in ",，、､،" and where == MEMBER:
        return _ENDS_MEMBER.match(text, at + 1, end) is not None or KEY_AHEAD.match(text, at + 1, end) is not None
    if char == "]" and where == MEMBER:
        return _ENDS_MEMBER.match(text, at, end) is not None
    return True


_ENDS_MEMBER: Final = re.compile(rf"{SPACE}(?:[}}\]]|\Z|//|/\*|#|\.\.)")


def _bare(text: str, at: int, stop: int, end: int, kind: str) -> Scalar:
    if comment := _COMMENT.search(text, at, stop):
        stop = end = comment.start()
    if kind == "unquoted_value":
        while stop > at and text[stop - 1].isspace():
            stop -= 1
        end = stop
    content = text[at:stop]
    return Scalar(kind, text[at:end], quoted(content), end)

r"""Extend the scanner with repairs where strict JSON fails.

Only what can be decided without looking ahead is repaired, because what has been shown is not taken back. Every repair
is a note: its code, its place, the original text and what was read instead.

============================  =========================================================================================
``trailing_comma``            ``[1,]``; also a comma too many, ``[1,,2]``
``missing_comma``             ``[1 2]``, ``{"a": 1 "b": 2}``
``missing_colon``             ``{"a" 1}``, ``{"a" = 1}``
``missing_bracket``           ``{"a": [1}``: a bracket further out closes those inside
``extra_bracket``             ``[1}]``
``comment``                   ``//``, ``/* */``, ``#``
``quotes``                    ``'a'``, backticks, curly quotes; an apostrophe before a letter does not close ``'it's'``
``unquoted_key``              ``{a: 1}``
``literal``                   ``True``, ``None``, ``undefined``, ``NaN`` and ``Infinity`` (which become null)
``number``                    ``+1``, ``.5``, ``5.``, ``007``, ``1_000``, ``0xFF``
``control_character``         raw newlines and the like inside a string
``bad_escape``                ``\'`` is read as the quote, any other unknown escape as it stands
``ellipsis``                  ``[1, 2, ...]``
``odd_space``                 byte order marks, zero-width and other exotic spaces between tokens
``leading_text``              prose and reasoning before the JSON; only its beginning is recorded
``trailing_text``             text after the JSON; only its beginning is recorded
``json_in_string``            nothing is changed: the value is a string that seems to hold JSON
============================  =========================================================================================

What is missing is never invented: a key without a value, a bare word, an unfinished text stay errors. So does a word
right after a string (``unescaped_quote``): the quote may have been inside it, and the word no key.
"""

from __future__ import annotations

import re
from typing import Any, Final

from slipform.text.fence import StartFinder
from slipform.text.scanner import (
    AFTER,
    COLON,
    DONE,
    ESCAPE,
    FIRST_KEY,
    ITEM,
    KEY,
    OTHER,
    STRING,
    VALUE,
    JsonScanner,
)
from slipform.text.strict import MAX_INT_DIGITS, NUMBER_ENDS
from slipform.text.tree import Note

TAIL: Final = OTHER
SLASH: Final = OTHER + 1
LINE_COMMENT: Final = OTHER + 2
BLOCK_COMMENT: Final = OTHER + 3
WORD: Final = OTHER + 4
LOOSE_NUMBER: Final = OTHER + 5
MAYBE_END: Final = OTHER + 6

MAX_TEXT: Final = 40

_QUOTES: Final = {"'": "'", "`": "`", "“": "”", "‘": "’", "„": "“"}
_PLAIN_RUNS: Final = {quote: re.compile(rf"[^{quote}\\\x00-\x1f\ud800-\udfff]*") for quote in ("'", "`", "”", "’", "“")}
_WORD: Final = re.compile(r"[\w$]*")
_KEY_WORD: Final = re.compile(r"[\w$-]*")
_LOOSE: Final = re.compile(r"[0-9A-Za-z_.+-]*")
_DECIMAL: Final = re.compile(r"[+-]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\Z", re.ASCII)
_HEX: Final = re.compile(r"([+-]?)0[xX]([0-9a-fA-F]{1,64})\Z")
_ELLIPSIS: Final = re.compile(r"\.{2,}\Z|…\Z")
_WORDS: Final[dict[str, Any]] = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
    "nil": None,
    "undefined": None,
    "nan": None,
    "infinity": None,
}
_INNER_QUOTE: Final = "A word follows a string: the quote before it may be part of the string"
_INVISIBLE: Final = "\ufeff\u200b\u200c\u200d\u2060"


class LenientScanner(JsonScanner):
    """Finds the JSON in the text, then reads it with repairs."""

    __slots__ = ("dots_end", "finder", "resume", "star", "token", "token_start")

    def __init__(self, max_depth: int) -> None:
        super().__init__(max_depth)
        self.finder: StartFinder | None = StartFinder(loose=True)
        self.resume: int = VALUE
        """The state to go back to after a comment, a word or a number."""
        self.token: list[str] = []
        self.token_start: int = 0
        self.star: bool = False
        self.dots_end: int = -1

    def anew(self) -> JsonScanner:
        """Return a scanner like this one that has read nothing."""
        return LenientScanner(self.max_depth)

    def feed(self, text: str) -> int:
        """Take the next piece of text."""
        finder = self.finder
        if finder is not None:
            start = finder.feed(text)
            if start is None:
                return len(text)
            prefix = finder.text
            if prefix.strip():
                self.note(0, "leading_text", prefix[:MAX_TEXT], "")
            self.begin(prefix)
            text = start
        return super().feed(text)

    def begin(self, prefix: str) -> None:
        """Begin the JSON after `prefix`."""
        self.finder = None
        self.offset = len(prefix)
        self.line += prefix.count("\n")
        self.line_start = prefix.rfind("\n") + 1

    def finish(self) -> None:
        """The text ends here. If no bracket opened it may still be a JSON string, number or literal as a whole."""
        finder = self.finder
        if finder is not None and self.error is None:
            start = finder.feed("", last=True)
            text = finder.text
            scalar = JsonScanner(self.max_depth)
            scalar.feed(text)
            scalar.finish()
            if start is None and scalar.complete and scalar.error is None:
                self.begin("")
                super().feed(text)
                value = scalar.top.child(0)
                if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
                    self.notes.append(Note("json_in_string", 0, value[:MAX_TEXT], ""))
            elif start is not None or text.strip():
                self.begin(text)
                self.fail("", 0, "no_json", "There is no JSON in the text")
        super().finish()

    # Where strict JSON fails.

    def unexpected(self, text: str, i: int, c: str) -> int:
        """Repair the character if it is plain what was meant."""
        state = self.state
        if state == DONE:
            self.note(i, "trailing_text", "", "")
            self.state = TAIL
            return i
        if c in _INVISIBLE or c.isspace():
            self.note(i, "odd_space", c, "")
            return i + 1
        if c in "/#":
            self.resume = state
            self.star = False
            self.state = SLASH if c == "/" else LINE_COMMENT
            self.note(i, "comment", c, "")
            return i + 1
        if c in "]}":
            return self.stray_bracket(text, i, c)
        if state == COLON:
            return self.no_colon(text, i, c)
        if state == AFTER:
            return self.no_comma(text, i, c)
        if c == "," and state != VALUE:
            self.note(i, "trailing_comma", ",", "")
            return i + 1
        return self.odd_token(text, i, c)

    def odd_token(self, text: str, i: int, c: str) -> int:
        """Read a key or a value that JSON would spell otherwise."""
        state = self.state
        is_key = state in (KEY, FIRST_KEY)
        closing = _QUOTES.get(c)
        if closing is not None:
            self.note(i, "quotes", c, '"')
            self.open_string(is_key, closing)
            return i + 1
        if c == "…" or (is_key and c == "."):
            return self.ellipsis(i, c)
        if not is_key and c in "+.":
            return self.start_token(text, i, LOOSE_NUMBER)
        if c == "_" or c == "$" or c.isalpha() or (is_key and c.isalnum()):
            return self.start_token(text, i, WORD)
        return super().unexpected(text, i, c)

    def stray_bracket(self, text: str, i: int, c: str) -> int:
        """Repair a closing bracket after a comma, or one that does not match the innermost open one."""
        state = self.state
        if state in (VALUE, COLON):
            return super().unexpected(text, i, c)
        wants_object = c == "}"
        top = self.top
        frame = top
        while frame.parent is not None and frame.is_object != wants_object:
            frame = frame.parent
        if frame.parent is None:
            self.note(i, "extra_bracket", c, "")
            return i + 1
        if state in (ITEM, KEY):
            self.note(i, "trailing_comma", ",", "")
        if frame is not top:
            self.note(i, "missing_bracket", "", "}" if top.is_object else "]")
        # Closes one container, and another at each return, until it fits.
        self.close()
        return i + 1 if frame is top else i

    def no_colon(self, text: str, i: int, c: str) -> int:
        """Repair a key that is not followed by a colon."""
        if c in "=:：":
            self.note(i, "missing_colon", c, ":")
            self.state = VALUE
            return i + 1
        if c in '"{[' or c.isalnum() or c in _QUOTES:
            if self.notes and self.notes[-1].code == "unquoted_key" and self.notes[-1].before == self.key:
                return self.fail(text, i, "unescaped_quote", _INNER_QUOTE)
            self.note(i, "missing_colon", "", ":")
            self.state = VALUE
            return i
        return super().unexpected(text, i, c)

    def no_comma(self, text: str, i: int, c: str) -> int:
        """Repair a child that is not followed by a comma."""
        is_object = self.top.is_object
        if c in ";，":
            self.note(i, "missing_comma", c, ",")
            self.state = KEY if is_object else ITEM
            return i + 1
        if c == "." or c == "…":
            return self.ellipsis(i, c)
        if c.isalnum() and is_object and isinstance(self.top.child(self.top.count - 1), str):
            return self.fail(text, i, "unescaped_quote", _INNER_QUOTE)
        if c == '"' or c in _QUOTES or c.isalnum() or c in "_$" or (not is_object and c in "{[-+"):
            self.note(i, "missing_comma", "", ",")
            self.state = KEY if is_object else ITEM
            return i
        return super().unexpected(text, i, c)

    def ellipsis(self, i: int, c: str) -> int:
        """Skip dots in place of omitted data; one note for all of them."""
        index = self.offset + i
        if index != self.dots_end:
            self.note(i, "ellipsis", c, "")
        self.dots_end = index + 1
        return i + 1

    # Tokens of its own.

    def in_other(self, text: str, i: int) -> int:
        """Read inside something that strict JSON does not have."""
        state = self.state
        if state == TAIL:
            return self.in_tail(text, i)
        if state in (WORD, LOOSE_NUMBER):
            return self.in_token(text, i)
        if state == MAYBE_END:
            return self.maybe_end(text, i)
        return self.in_comment(text, i)

    def in_tail(self, text: str, i: int) -> int:
        """Keep the beginning of what follows the JSON, for the note."""
        note = self.notes[-1]
        if len(note.before) < MAX_TEXT:
            tail = note.before + text[i : i + MAX_TEXT - len(note.before)]
            # Not in place: older snapshots keep the note as it was.
            self.notes = [*self.notes[:-1], Note("trailing_text", note.index, tail, "")]
        return len(text)

    def in_comment(self, text: str, i: int) -> int:
        """Read inside a comment, or after the slash that may begin one."""
        state = self.state
        if state == SLASH:
            if text[i] not in "/*":
                self.state = self.resume
                return super().unexpected(text, i, text[i])
            self.state = LINE_COMMENT if text[i] == "/" else BLOCK_COMMENT
            return i + 1
        if state == LINE_COMMENT:
            end = text.find("\n", i)
            if end < 0:
                return len(text)
            self.state = self.resume
            return end + 1
        if self.star and text[i] == "/":
            self.state = self.resume
            return i + 1
        end = text.find("*", i)
        self.star = end >= 0
        return end + 1 if end >= 0 else len(text)

    def start_token(self, text: str, i: int, state: int) -> int:
        """Begin a word or a number of another grammar."""
        self.resume = self.state
        self.state = state
        self.token = []
        self.token_start = self.offset + i
        return self.in_token(text, i)

    def in_token(self, text: str, i: int) -> int:
        """Read inside a word or a number of another grammar, which ends at the first character it cannot have."""
        if self.state == LOOSE_NUMBER:
            run = _LOOSE.match(text, i)
        else:
            run = (_WORD if self.in_value() else _KEY_WORD).match(text, i)
        end = run.end() if run is not None else i
        self.token.append(text[i:end])
        if end == len(text):
            return end
        token = "".join(self.token)
        if self.state == LOOSE_NUMBER:
            return self.end_loose_number(text, end, token)
        if self.in_value():
            return self.end_word(text, end, token)
        return self.end_bare_key(end, token)

    def in_value(self) -> bool:
        """Whether the current word is a value and not a key."""
        return self.resume != KEY and self.resume != FIRST_KEY

    def end_bare_key(self, i: int, token: str) -> int:
        """End a key without quotes."""
        self.note_token("unquoted_key", token, f'"{token}"')
        self.key = token
        self.end_key(i)
        return i

    def end_word(self, text: str, i: int, token: str) -> int:
        """End a word as a value: one of the literals in another language, or a mistake."""
        word = token.lower()
        if word not in _WORDS:
            self.state = self.resume
            return self.fail(text, i, "bare_word", f"Expected a value, found the bare word {token[:40]!r}")
        value = _WORDS[word]
        self.note_token("literal", token, "null" if value is None else word)
        self.version += 1
        self.add(value)
        return i

    def end_loose_number(self, text: str, i: int, token: str) -> int:
        """End a number in another spelling."""
        if _ELLIPSIS.match(token):
            self.note_token("ellipsis", token, "")
            self.state = self.resume
            return i
        value = loose_number(token)
        if value is None and token.lstrip("+-").lower() not in ("infinity", "nan", "inf"):
            return self.fail(text, i, "bad_number", f"{token[:40]!r} is not a number")
        self.note_token("number" if value is not None else "literal", token, "null" if value is None else repr(value))
        self.version += 1
        self.add(value)
        return i

    def note_token(self, code: str, before: str, after: str) -> None:
        """Record a repair of the whole token that has just ended."""
        self.notes.append(Note(code, self.token_start, before, after))

    # Where the strict scanner gives up inside a token.

    def in_string(self, text: str, i: int) -> int:
        """Read inside a string of any quotes."""
        if self.quote == '"':
            return super().in_string(text, i)
        run = _PLAIN_RUNS[self.quote].match(text, i)
        end = run.end() if run is not None else i
        if end > i:
            self.grow(text[i:end])
        if end == len(text):
            return end
        c = text[end]
        if c == self.quote:
            self.state = MAYBE_END
            return end + 1
        if c == "\\":
            self.state = ESCAPE
            return end + 1
        return self.odd_character(text, end, c)

    def maybe_end(self, text: str, i: int) -> int:
        """End the string at a quote, unless it is an apostrophe before a letter."""
        self.state = STRING
        if text[i].isalnum():
            self.grow(self.quote)
        else:
            self.end_string(i)
        return i

    def control(self, text: str, i: int, c: str) -> int:  # noqa: ARG002
        """Accept a raw control character unchanged."""
        self.note(i, "control_character", c, f"\\u{ord(c):04x}")
        self.grow(c)
        return i + 1

    def bad_escape(self, text: str, i: int, c: str) -> int:  # noqa: ARG002
        """Read an escaped quote of another kind as that quote, anything else as it was written."""
        if self.state == STRING:
            meant = c if c in _PLAIN_RUNS or c in _QUOTES else "\\" + c
            self.note(i, "bad_escape", "\\" + c, meant)
            self.grow(meant)
            return i + 1
        self.flush_high(i)
        self.state = STRING
        self.note(i, "bad_escape", "\\u" + self.hex, "\\u" + self.hex)
        self.grow("\\u" + self.hex)
        return i

    def bad_literal(self, text: str, i: int) -> int:
        """Read on: the word may be a literal in another spelling."""
        self.resume = ITEM
        self.state = WORD
        self.token = [self.word[: self.matched]]
        self.token_start = self.offset + i - self.matched
        return self.in_token(text, i)

    def end_number(self, text: str, i: int) -> int:
        """Read on: the number may continue in another spelling."""
        digits = "".join(self.digits)
        more = _LOOSE.match(text, i)
        goes_on = more is not None and more.end() > i
        if not goes_on and self.number in NUMBER_ENDS:
            return super().end_number(text, i)
        self.resume = ITEM
        self.state = LOOSE_NUMBER
        self.token = [digits]
        self.token_start = self.offset + i - len(digits)
        return self.in_token(text, i)


def loose_number(token: str) -> int | float | None:
    """Return the value of a number as other languages spell it; None when it is none, or too long."""
    hexadecimal = _HEX.match(token)
    if hexadecimal is not None:
        value = int(hexadecimal[2], 16)
        return -value if hexadecimal[1] == "-" else value
    if not _DECIMAL.match(token) or len(token) > MAX_INT_DIGITS:
        return None
    plain = token.replace("_", "")
    if any(c in plain for c in ".eE"):
        return float(plain)
    return int(plain)

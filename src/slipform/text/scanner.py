"""The one incremental JSON scanner: characters in, events out, strict.

It works on decoded text, keeps its own stack, and reports a mistake once, at the character where the text stopped
being the beginning of any JSON. What it builds goes into the frames of `parser_tree`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from slipform.text.tree import ArrayFrame, Frame, Note, ObjectFrame, ParseError

MAX_INT_DIGITS: Final = 4300
"""Python refuses to read or write longer integers, so neither does the parser."""
TOO_LONG: Final = f"An integer of more than {MAX_INT_DIGITS} digits"


def _steps() -> list[dict[str, int]]:
    digits = "0123456789"
    exponent = {"e": 6, "E": 6}
    return [
        {"-": 1, "0": 2, **dict.fromkeys("123456789", 3)},  # 0: at its start
        {"0": 2, **dict.fromkeys("123456789", 3)},  # 1: after the minus
        {".": 4, **exponent},  # 2: after a leading zero
        {".": 4, **exponent, **dict.fromkeys(digits, 3)},  # 3: in the integer
        dict.fromkeys(digits, 5),  # 4: after the point
        {**exponent, **dict.fromkeys(digits, 5)},  # 5: in the fraction
        {"+": 7, "-": 7, **dict.fromkeys(digits, 8)},  # 6: after the e
        dict.fromkeys(digits, 8),  # 7: after its sign
        dict.fromkeys(digits, 8),  # 8: in the exponent
    ]


NUMBER_STEPS: Final = _steps()
"""For each state, the characters that go on with the number and the state they lead to."""
NUMBER_ENDS: Final = frozenset((2, 3, 5, 8))
"""The states in which a number may end."""
LAST_INTEGER: Final = 3
"""A number that ends in this state or an earlier one is an integer."""
INFINITE: Final = (float("inf"), float("-inf"))


def integer_value(digits: str) -> int | None:
    """The integer, with all its digits, or None when it has more than Python takes."""
    if len(digits) > MAX_INT_DIGITS + digits.startswith("-"):
        return None
    try:
        return int(digits)
    except ValueError:  # the interpreter was set to a lower limit
        return None


# Between tokens: what may come next.
VALUE: Final = 0
FIRST_ITEM: Final = 1
ITEM: Final = 2
FIRST_KEY: Final = 3
KEY: Final = 4
COLON: Final = 5
AFTER: Final = 6
DONE: Final = 7

# Inside a token.
STRING: Final = 8
ESCAPE: Final = 9
HEX: Final = 10
HIGH: Final = 11
HIGH_ESCAPE: Final = 12
NUMBER: Final = 13
LITERAL: Final = 14
FAILED: Final = 15

# States from here on belong to the lenient machine.
OTHER: Final = 16
EXPECTED: Final = {
    VALUE: "a value",
    FIRST_ITEM: "a value or ']'",
    ITEM: "a value",
    FIRST_KEY: "a quoted key or '}'",
    KEY: "a quoted key",
    COLON: "':'",
    AFTER: "',' or the closing bracket",
    DONE: "nothing after the JSON",
}
"""What a reader of an error is told was due between two tokens."""
LONG_TEXT: Final = 1024
_RUN: Final = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*').match
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS: Final[dict[str, tuple[str, Any]]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}


class JsonScanner:
    """Strict JSON in pieces: `feed` text, look at `top`, `state`, `complete` and `error`."""

    def __init__(self, max_depth: int) -> None:
        self.max_depth: int = max_depth
        self.root: Frame = ArrayFrame(None, 0, "")
        self.top: Frame = self.root
        self.depth: int = 0
        self.state: int = VALUE
        self.offset: int = 0
        """Characters before the piece at hand."""
        self.line: int = 1
        self.line_start: int = 0
        self.version: int = 0
        """Grows whenever there is more to see."""
        self.complete: bool = False
        self.error: ParseError | None = None
        self.notes: list[Note] = []
        self.key: str = ""
        self.in_key: bool = False
        self.quote: str = '"'
        self.pieces: list[str] = []
        self.length: int = -1
        """Decoded length of the open string value; -1 when none is open."""
        self.text: str = ""
        self.older_text: str = ""
        self.last_piece: str = ""
        self.hex: str = ""
        self.high: int = 0
        self.number: int = 0
        self.digits: list[str] = []
        self.word: str = ""
        self.word_value: Any = None
        self.matched: int = 0

    def feed(self, text: str) -> None:
        """Take the next piece of text."""
        i = 0
        n = len(text)
        while i < n:
            state = self.state
            if state == STRING:
                i = self.in_string(text, i)
            elif state <= DONE:
                i = self.between(text, i)
            elif state == NUMBER:
                i = self.in_number(text, i)
            elif state == LITERAL:
                i = self.in_literal(text, i)
            elif state == FAILED:
                return
            else:
                i = self.in_escape(text, i) if state < OTHER else self.in_other(text, i)
        if "\n" in text:
            self.line += text.count("\n")
            self.line_start = self.offset + text.rindex("\n") + 1
        self.offset += n

    def anew(self) -> JsonScanner:
        """A machine like this one that has read nothing."""
        return JsonScanner(self.max_depth)

    def finish(self) -> None:
        """The text ends here: a number at the root is done, anything else still open is an error."""
        if self.complete or self.error is not None:
            return
        if self.state == NUMBER and self.depth == 0 and self.number in NUMBER_ENDS:
            self.end_number("", 0)
        elif self.state == VALUE and self.depth == 0:
            self.fail("", 0, "empty", "There is no JSON")
        else:
            self.fail("", 0, "unexpected_end", "The text ended before the JSON did")

    def in_other(self, text: str, i: int) -> int:
        """What the lenient machine does in states of its own; strict JSON has no others."""
        return self.fail(text, i, "unexpected_character", "This cannot stand here")

    def fail(self, text: str, i: int, code: str, message: str) -> int:
        """Stop for good at this character; gives the index that ends the loop."""
        index = self.offset + i
        newline = text.rfind("\n", 0, i)
        line = self.line + text.count("\n", 0, i)
        start = self.line_start if newline < 0 else self.offset + newline + 1
        self.error = ParseError(code, message, index, line, index - start + 1)
        self.state = FAILED
        return len(text)

    def note(self, i: int, code: str, before: str, after: str) -> None:
        """Record something at index `i` of the piece at hand."""
        self.notes.append(Note(code, self.offset + i, before, after))

    # Between tokens.

    def between(self, text: str, i: int) -> int:
        """Skip blanks and act on one character between two tokens."""
        n = len(text)
        while i < n:
            c = text[i]
            if c == " " or c == "\n" or c == "\r" or c == "\t":
                i += 1
                continue
            state = self.state
            if c == '"' and state < COLON:
                self.open_string(state >= FIRST_KEY, '"')
                return self.in_string(text, i + 1)
            if state == AFTER:
                if c == ",":
                    self.state = KEY if self.top.is_object() else ITEM
                    i += 1
                    continue
            elif state == COLON:
                if c == ":":
                    self.state = VALUE
                    i += 1
                    continue
            elif state < FIRST_KEY:
                return self.start_value(text, i, c)
            return self.structure(text, i, c)
        return i

    def structure(self, text: str, i: int, c: str) -> int:
        """A closing bracket where one may stand, or a mistake."""
        state = self.state
        if c == "}":
            if state in (AFTER, FIRST_KEY) and self.top.is_object():
                self.close()
                return i + 1
        elif c == "]" and state in (AFTER, FIRST_ITEM) and not self.top.is_object():
            self.close()
            return i + 1
        return self.unexpected(text, i, c)

    def start_value(self, text: str, i: int, c: str) -> int:
        """The first character of a value that is not a string."""
        if c == "{" or c == "[":
            if self.depth == self.max_depth:
                return self.fail(text, i, "too_deep", f"More than {self.max_depth} levels of nesting")
            self.open(c == "{")
            return i + 1
        if c in NUMBER_STEPS[0]:
            self.number = 0
            self.digits = []
            self.state = NUMBER
            return self.in_number(text, i)
        literal = _LITERALS.get(c)
        if literal is not None:
            self.word, self.word_value = literal
            self.matched = 0
            self.state = LITERAL
            return self.in_literal(text, i)
        return self.structure(text, i, c)

    def unexpected(self, text: str, i: int, c: str) -> int:
        """A character that cannot stand here."""
        state = self.state
        code = "trailing_text" if state == DONE else "unexpected_character"
        return self.fail(text, i, code, f"Expected {EXPECTED[state]}, found {c!r}")

    def open(self, is_object: bool) -> None:
        """A container opens."""
        top = self.top
        if is_object:
            self.top = ObjectFrame(top, top.size(), self.key)
            self.state = FIRST_KEY
        else:
            self.top = ArrayFrame(top, top.size(), self.key)
            self.state = FIRST_ITEM
        self.depth += 1
        self.version += 1

    def close(self) -> None:
        """The innermost container closes; nothing new to see in that."""
        frame = self.top
        parent = frame.parent
        if parent is not None:
            self.top = parent
            self.depth -= 1
            self.key = frame.key
            self.add(frame.close())

    def add(self, value: Any) -> None:
        """A value is finished."""
        self.top.add(self.key, value)
        if self.depth == 0:
            self.state = DONE
            self.complete = True
        else:
            self.state = AFTER

    # Strings.

    def open_string(self, in_key: bool, quote: str) -> None:
        """A string opens; as a value it shows at once, empty."""
        self.state = STRING
        self.in_key = in_key
        self.quote = quote
        self.pieces = []
        if not in_key:
            self.length = 0
            self.text = ""
            self.older_text = ""
            self.last_piece = ""
            self.version += 1

    def in_string(self, text: str, i: int) -> int:
        """Inside a string: take all plain characters at once."""
        m = _RUN(text, i)
        j = m.end() if m is not None else i
        if j > i:
            self.grow(text[i:j])
        if j == len(text):
            return j
        c = text[j]
        if c == '"':
            self.end_string(j)
            return j + 1
        if c == "\\":
            self.state = ESCAPE
            return j + 1
        return self.odd_character(text, j, c)

    def grow(self, piece: str) -> None:
        """Add decoded text to the open string."""
        self.pieces.append(piece)
        if not self.in_key:
            self.length += len(piece)
            self.version += 1

    def odd_character(self, text: str, i: int, c: str) -> int:
        """A control character, or half of a surrogate pair that came raw."""
        if c < " ":
            return self.control(text, i, c)
        code = ord(c)
        if code < 0xDC00:
            self.high = code
            self.state = HIGH
        else:
            self.lone_surrogate(i, code)
        return i + 1

    def control(self, text: str, i: int, c: str) -> int:
        """A control character inside a string."""
        return self.fail(text, i, "control_character", f"Control character {c!r} in a string must be escaped")

    def lone_surrogate(self, i: int, code: int) -> None:
        """Keep half a pair as it is, as Python's json does, and say so: it cannot be written as UTF-8."""
        self.note(i, "lone_surrogate", f"\\u{code:04x}", f"\\u{code:04x}")
        self.grow(chr(code))

    def in_escape(self, text: str, i: int) -> int:
        """After a backslash, in the four digits of a code, or after the first half of a surrogate pair."""
        c = text[i]
        state = self.state
        if state == HEX:
            return self.in_hex(text, i, c)
        if state == HIGH:
            if c == "\\":
                self.state = HIGH_ESCAPE
                return i + 1
            self.state = STRING
            if 0xDC00 <= ord(c) <= 0xDFFF:
                self.end_escape(i, ord(c))
                return i + 1
            self.flush_high(i)
            return i
        if c == "u":
            self.hex = ""
            self.state = HEX
            return i + 1
        self.flush_high(i)
        self.state = STRING
        plain = _ESCAPES.get(c)
        if plain is None:
            return self.bad_escape(text, i, c)
        self.grow(plain)
        return i + 1

    def in_hex(self, text: str, i: int, c: str) -> int:
        """One of the four digits of a code."""
        if c not in "0123456789abcdefABCDEF":
            return self.bad_escape(text, i, c)
        self.hex += c
        if len(self.hex) == 4:
            self.state = STRING
            self.end_escape(i, int(self.hex, 16))
        return i + 1

    def end_escape(self, i: int, code: int) -> None:
        """A UTF-16 unit is known: pair it, hold it, or take it."""
        if 0xDC00 <= code <= 0xDFFF:
            if self.high:
                code = 0x10000 + ((self.high - 0xD800) << 10) + (code - 0xDC00)
                self.high = 0
                self.grow(chr(code))
            else:
                self.lone_surrogate(i, code)
            return
        self.flush_high(i)
        if 0xD800 <= code <= 0xDBFF:
            self.high = code
            self.state = HIGH
        else:
            self.grow(chr(code))

    def flush_high(self, i: int) -> None:
        """The second half of a pair did not come."""
        if self.high:
            code = self.high
            self.high = 0
            self.lone_surrogate(i, code)

    def bad_escape(self, text: str, i: int, c: str) -> int:
        """A backslash sequence JSON does not have."""
        return self.fail(text, i, "bad_escape", f"{c!r} cannot stand in an escape sequence")

    def end_string(self, i: int) -> None:
        """The closing quote."""
        if self.in_key:
            self.key = "".join(self.pieces)
            self.end_key(i)
            return
        value = self.open_text()
        self.length = -1
        self.older_text = ""
        self.add(value)

    def end_key(self, i: int) -> None:
        """A key is known; the last one of a name counts."""
        self.state = COLON
        if self.top.has(self.key):
            self.note(i, "duplicate_key", self.key, self.key)

    def open_text(self) -> str:
        """The text of the open string so far; the same object until it grows."""
        pieces = self.pieces
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else "".join(pieces)
            self.pieces = []
            if self.length < LONG_TEXT:
                self.text += piece
            else:
                # The text before last is usually in nobody's hands any more: CPython then extends it in place,
                # so that a long string is not copied for every piece.
                text = self.older_text
                catch_up = self.last_piece + piece if text else self.text + piece
                self.older_text = self.text
                text += catch_up
                self.text = text
                self.last_piece = piece
        return self.text

    # Numbers and literals.

    def in_number(self, text: str, i: int) -> int:
        """Inside a number, which ends at the first character that cannot go on with it."""
        n = len(text)
        start = i
        number = self.number
        while i < n:
            following = NUMBER_STEPS[number].get(text[i], 0)
            if not following:
                break
            number = following
            i += 1
        self.number = number
        if i > start:
            self.digits.append(text[start:i])
        if i == n:
            return i
        return self.end_number(text, i)

    def end_number(self, text: str, i: int) -> int:
        """A character that is not part of the number."""
        if self.number not in NUMBER_ENDS:
            return self.fail(text, i, "bad_number", f"Expected a digit, found {text[i]!r}")
        digits = "".join(self.digits)
        value = integer_value(digits) if self.number <= LAST_INTEGER else float(digits)
        if value is None:
            return self.fail(text, i, "number_too_long", TOO_LONG)
        if value in INFINITE:
            self.note(i, "number_overflow", digits[:40], str(value))
        self.version += 1
        self.add(value)
        return i

    def in_literal(self, text: str, i: int) -> int:
        """Inside true, false or null."""
        n = len(text)
        word = self.word
        matched = self.matched
        while i < n:
            if text[i] != word[matched]:
                self.matched = matched
                return self.bad_literal(text, i)
            matched += 1
            i += 1
            if matched == len(word):
                self.version += 1
                self.add(self.word_value)
                return i
        self.matched = matched
        return i

    def bad_literal(self, text: str, i: int) -> int:
        """A word that began like a literal."""
        return self.fail(text, i, "bad_literal", f"Expected {self.word!r}, found {text[i]!r} in it")

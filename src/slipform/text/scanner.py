"""Scan JSON incrementally and strictly: characters in, events out.

It works on decoded text, keeps its own stack, and reports a mistake once, at the character where the text stopped
being the beginning of any JSON. What it reads goes into the frames of `tree`. A `ScanListener` receives it part by
part, and may stop it; for code that forwards the text there is also where its blanks are, and where its members begin.
"""

from __future__ import annotations

import re
from typing import Any, Final

from slipform.text.strict import LAST_INTEGER, MAX_INT_DIGITS, NUMBER_ENDS, NUMBER_STEPS, integer_value
from slipform.text.tree import Frame, Note, ParseError

TOO_LONG: Final = f"An integer of more than {MAX_INT_DIGITS} digits"
INFINITE: Final = (float("inf"), float("-inf"))

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
# States from here on belong to the lenient scanner.
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
"""The expectation in an error between two tokens."""
LONG_TEXT: Final = 1024
_COMPILED: Final = not __file__.endswith(".py")
SHORT_RUN: Final = 16
"""The first characters of a string are checked one by one, which is faster in compiled code."""
_QUOTE: Final = 34
_COMMA: Final = 44
_COLON_SIGN: Final = 58
_OPEN_BRACKET: Final = 91
_BACKSLASH: Final = 92
_CLOSE_BRACKET: Final = 93
_OPEN_BRACE: Final = 123
_CLOSE_BRACE: Final = 125
_RUN: Final = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*').match
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS: Final[dict[str, tuple[str, Any]]] = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}


def plain_run_end(text: str, i: int) -> int:
    """Return the end of the plain characters of a string that begin at `i`."""
    if _COMPILED:
        n = min(len(text), i + SHORT_RUN)
        while i < n:
            code = ord(text[i])
            if code < 32 or code == 34 or code == 92 or 0xD800 <= code <= 0xDFFF:
                return i
            i += 1
    if i >= len(text):
        return i
    m = _RUN(text, i)
    return m.end() if m is not None else i


class ScanListener:
    """Receives the parts of a text from a scanner; every method returns whether to read on.

    This one takes no notice of anything and reads on. A class and not a `Protocol`: compiled code calls it directly.
    """

    def __init__(self) -> None:
        self.follows_text: bool = False
        """Whether `text` should be called for the open string."""
        self.follows_keys: bool = False
        """Whether `key_text` should be called for an open key."""

    def opened(self, is_object: bool, start: int) -> bool:  # noqa: ARG002
        """Handle an opened container; its member, with comma and key, began at `start` of the text without blanks."""
        return True

    def key_text(self, text: str) -> bool:  # noqa: ARG002
        """Handle the open key at the end of a piece."""
        return True

    def key(self, key: str) -> bool:  # noqa: ARG002
        """Handle the end of a key."""
        return True

    def text_opened(self) -> bool:
        """Handle the start of a string that is a value."""
        return True

    def number_opened(self, is_negative: bool) -> bool:  # noqa: ARG002
        """Handle the start of a number, with or without a minus sign."""
        return True

    def text(self, text: str) -> bool:  # noqa: ARG002
        """Handle the open string at the end of a piece."""
        return True

    def scalar(self, value: Any) -> bool:  # noqa: ARG002
        """Handle the end of a string, number or literal."""
        return True

    def closed(self, container: Any) -> bool:  # noqa: ARG002
        """Handle the end of the innermost container."""
        return True


class JsonScanner:
    """Strict JSON in pieces: `feed` text, look at `top`, `state`, `complete` and `error`.

    With a listener, what follows the value is not read, and `stopped` says that the listener wants no more.
    """

    __slots__ = (
        "blank_count", "blanks", "complete", "depth", "digits", "error", "hex", "high", "high_length", "in_key",
        "key", "last_piece", "length", "line", "line_start", "listener", "matched", "max_depth", "member", "notes",
        "number", "offset", "older_text", "pieces", "quote", "root", "state", "stopped", "stopped_in", "text", "top",
        "version", "word", "word_value",
    )  # fmt: skip

    def __init__(self, max_depth: int, listener: ScanListener | None = None) -> None:
        self.max_depth: int = max_depth
        self.listener: ScanListener | None = listener
        self.stopped: bool = False
        self.stopped_in: int = VALUE
        """The state in which the listener stopped it."""
        self.blanks: list[int] = []
        """The places of blanks between tokens in this piece; the reader that removes them clears the list.

        Only with a listener, like the next two.
        """
        self.blank_count: int = 0
        self.member: int = 0
        """The start, in the text without blanks, of the open or next member, including its comma and key.

        With the first member of a container that is where the container's own member begins.
        """
        self.root: Frame = Frame(None, 0, "", False)
        self.top: Frame = self.root
        self.depth: int = 0
        self.state: int = VALUE
        self.offset: int = 0
        """The number of characters before the current piece."""
        self.line: int = 1
        self.line_start: int = 0
        self.version: int = 0
        """Increases whenever more of the value is visible."""
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
        self.high_length: int = 0
        """The number of characters that spell the first half of a surrogate pair."""
        self.number: int = 0
        self.digits: list[str] = []
        self.word: str = ""
        self.word_value: Any = None
        self.matched: int = 0

    def feed(self, text: str) -> int:
        """Read the next piece of text; return how many characters were read."""
        i = 0
        n = len(text)
        while i < n:
            state = self.state
            if state == STRING:
                i = self.in_string(text, i)
            elif state <= DONE:
                if state == DONE and self.listener is not None:
                    break
                i = self.between(text, i)
            elif state == NUMBER:
                i = self.in_number(text, i)
            elif state == LITERAL:
                i = self.in_literal(text, i)
            elif state == FAILED:
                if not self.stopped:
                    return 0
                break
            else:
                i = self.in_escape(text, i) if state < OTHER else self.in_other(text, i)
        if self.listener is not None:
            self.tell_text(self.listener)
        if "\n" in text:
            self.line += text.count("\n")
            self.line_start = self.offset + text.rindex("\n") + 1
        self.offset += i
        return i

    def in_text(self) -> bool:
        """Whether a string that is a value is open."""
        return STRING <= self.state <= HIGH_ESCAPE and not self.in_key

    def tell_text(self, listener: ScanListener) -> None:
        """Report the growth of the open string or key: at the end of a piece, and before an error."""
        reads_on = True
        if listener.follows_text and self.in_text():
            reads_on = listener.text(self.open_text())
        elif listener.follows_keys and self.in_key and self.state == STRING:
            reads_on = listener.key_text("".join(self.pieces))
        if not reads_on:
            self.stop()

    def stop(self) -> None:
        """Stop, because the listener does not want more."""
        self.stopped = True
        self.stopped_in = self.state
        self.state = FAILED

    def anew(self) -> JsonScanner:
        """Return a scanner with the same options that has read nothing."""
        return JsonScanner(self.max_depth)

    def finish(self) -> None:
        """End the text: a number at the root is complete, anything else still open is an error."""
        if self.complete or self.error is not None:
            return
        if self.state == NUMBER and self.depth == 0 and self.number in NUMBER_ENDS:
            self.end_number("", 0)
        elif self.state == VALUE and self.depth == 0:
            self.fail("", 0, "empty", "There is no JSON")
        else:
            self.fail("", 0, "unexpected_end", "The text ended before the JSON did")

    def in_other(self, text: str, i: int) -> int:
        """Continue in a state of the lenient scanner; strict JSON has no such states."""
        return self.fail(text, i, "unexpected_character", "This cannot stand here")

    def fail(self, text: str, i: int, code: str, message: str) -> int:
        """Stop at this character, permanently; return the index that ends the loop."""
        if self.listener is not None:
            self.tell_text(self.listener)
        if self.stopped:  # the error was in the earlier text, however it was cut into pieces
            return i
        index = self.offset + i
        newline = text.rfind("\n", 0, i)
        line = self.line + text.count("\n", 0, i)
        start = self.line_start if newline < 0 else self.offset + newline + 1
        self.error = ParseError(code, message, index, line, index - start + 1)
        self.state = FAILED
        return len(text)

    def note(self, i: int, code: str, before: str, after: str) -> None:
        """Record a note at index `i` of the current piece."""
        if self.listener is not None:
            self.tell_text(self.listener)
        if not self.stopped:
            self.notes.append(Note(code, self.offset + i, before, after))

    # Between tokens.

    def between(self, text: str, i: int) -> int:
        """Skip blanks and act on one character between two tokens."""
        n = len(text)
        listener = self.listener
        while i < n:
            code = ord(text[i])  # compiled, numbers are compared much faster than characters
            if code <= 32 and code in (9, 10, 13, 32):
                if listener is not None:
                    self.blanks.append(i)
                    self.blank_count += 1
                i += 1
                continue
            state = self.state
            if code == _QUOTE and state < COLON:
                self.open_string(state >= FIRST_KEY, '"')
                if self.stopped:
                    return i + 1
                return self.in_string(text, i + 1)
            if state == AFTER:
                if code == _COMMA:
                    if listener is not None:
                        self.member = self.offset + i - self.blank_count
                    self.state = KEY if self.top.is_object else ITEM
                    i += 1
                    continue
            elif state == COLON:
                if code == _COLON_SIGN:
                    self.state = VALUE
                    i += 1
                    continue
            elif state < FIRST_KEY:
                return self.start_value(text, i, code)
            return self.structure(text, i, code)
        return i

    def structure(self, text: str, i: int, code: int) -> int:
        """Read a closing bracket where one is allowed; anything else is an error."""
        state = self.state
        if code == _CLOSE_BRACE:
            if state in (AFTER, FIRST_KEY) and self.top.is_object:
                self.close()
                return i + 1
        elif code == _CLOSE_BRACKET and state in (AFTER, FIRST_ITEM) and not self.top.is_object:
            self.close()
            return i + 1
        return self.unexpected(text, i, text[i])

    def start_value(self, text: str, i: int, code: int) -> int:
        """Begin a value that is not a string at its first character."""
        is_object = code == _OPEN_BRACE
        if is_object or code == _OPEN_BRACKET:
            if self.depth == self.max_depth:
                return self.fail(text, i, "too_deep", f"More than {self.max_depth} levels of nesting")
            self.open(is_object)
            return i + 1
        if 48 <= code <= 57 or code == 45:  # a digit or a minus
            self.number = 0
            self.digits = []
            self.state = NUMBER
            if self.listener is not None and not self.listener.number_opened(code == 45):
                self.number = NUMBER_STEPS[code]
                self.stop()
                return i + 1
            return self.in_number(text, i)
        literal = _LITERALS.get(text[i])
        if literal is not None:
            self.word, self.word_value = literal
            self.matched = 0
            self.state = LITERAL
            return self.in_literal(text, i)
        return self.structure(text, i, code)

    def unexpected(self, text: str, i: int, c: str) -> int:
        """Fail at a character that is not allowed here."""
        state = self.state
        code = "trailing_text" if state == DONE else "unexpected_character"
        return self.fail(text, i, code, f"Expected {EXPECTED[state]}, found {c!r}")

    def open(self, is_object: bool) -> None:
        """Open a container."""
        top = self.top
        self.top = Frame(top, top.count, self.key, is_object)
        self.state = FIRST_KEY if is_object else FIRST_ITEM
        self.depth += 1
        self.version += 1
        if self.listener is not None and not self.listener.opened(is_object, self.member):
            self.stop()

    def close(self) -> None:
        """Close the innermost container and add it to its parent; `version` stays, as no value is new."""
        frame = self.top
        parent = frame.parent
        if parent is not None:
            self.top = parent
            self.depth -= 1
            self.key = frame.key
            self.add(frame.close(), True)

    def add(self, value: Any, is_container: bool = False) -> None:
        """Add a finished value to its container."""
        self.top.add(self.key, value)
        if self.depth == 0:
            self.state = DONE
            self.complete = True
        else:
            self.state = AFTER
        listener = self.listener
        if listener is not None and not (listener.closed(value) if is_container else listener.scalar(value)):
            self.stop()

    # Strings.

    def open_string(self, in_key: bool, quote: str) -> None:
        """Open a string; as a value it is visible at once, empty."""
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
            if self.listener is not None and not self.listener.text_opened():
                self.stop()

    def in_string(self, text: str, i: int) -> int:
        """Read inside a string: all plain characters at once."""
        j = plain_run_end(text, i)
        if j > i:
            self.grow(text[i:j])
        if j == len(text):
            return j
        code = ord(text[j])
        if code == _QUOTE:
            self.end_string(j)
            return j + 1
        if code == _BACKSLASH:
            plain = _ESCAPES.get(text[j + 1]) if j + 1 < len(text) else None
            if plain is not None:
                self.grow(plain)
                return j + 2
            self.state = ESCAPE
            return j + 1
        return self.odd_character(text, j, text[j])

    def grow(self, piece: str) -> None:
        """Add decoded text to the open string."""
        self.pieces.append(piece)
        if not self.in_key:
            self.length += len(piece)
            self.version += 1

    def odd_character(self, text: str, i: int, c: str) -> int:
        """Fail at a control character; read a raw half of a surrogate pair."""
        if c < " ":
            return self.control(text, i, c)
        code = ord(c)
        if code < 0xDC00:
            self.high = code
            self.high_length = 1
            self.state = HIGH
        else:
            self.lone_surrogate(i, code)
        return i + 1

    def control(self, text: str, i: int, c: str) -> int:
        """Fail at a control character inside a string."""
        return self.fail(text, i, "control_character", f"Control character {c!r} in a string must be escaped")

    def lone_surrogate(self, i: int, code: int) -> None:
        """Keep an unpaired half, as Python's json does, and add a note: it has no UTF-8 encoding."""
        self.note(i, "lone_surrogate", f"\\u{code:04x}", f"\\u{code:04x}")
        self.grow(chr(code))

    def in_escape(self, text: str, i: int) -> int:
        """Read after a backslash, in the four digits of a code, or after the first half of a surrogate pair."""
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
        self.state = STRING
        self.flush_high(i)
        plain = _ESCAPES.get(c)
        if plain is None:
            return self.bad_escape(text, i, c)
        self.grow(plain)
        return i + 1

    def in_hex(self, text: str, i: int, c: str) -> int:
        """Read one of the four digits of a code."""
        if c not in "0123456789abcdefABCDEF":
            return self.bad_escape(text, i, c)
        self.hex += c
        if len(self.hex) == 4:
            self.state = STRING
            self.end_escape(i, int(self.hex, 16))
        return i + 1

    def end_escape(self, i: int, code: int) -> None:
        """Process a complete UTF-16 unit: combine it, keep it for its second half, or write it."""
        if 0xDC00 <= code <= 0xDFFF:
            if self.high:
                code = 0x10000 + ((self.high - 0xD800) << 10) + (code - 0xDC00)
                self.high = 0
                self.grow(chr(code))
            else:
                self.lone_surrogate(i, code)
            return
        self.flush_high(i)
        if self.stopped:
            return
        if 0xD800 <= code <= 0xDBFF:
            self.high = code
            self.high_length = 6
            self.state = HIGH
        else:
            self.grow(chr(code))

    def flush_high(self, i: int) -> None:
        """Write the first half of a pair whose second half is missing."""
        if self.high:
            code = self.high
            self.high = 0
            self.lone_surrogate(i, code)

    def bad_escape(self, text: str, i: int, c: str) -> int:
        """Fail at an escape that JSON does not have."""
        return self.fail(text, i, "bad_escape", f"{c!r} cannot stand in an escape sequence")

    def end_string(self, i: int) -> None:
        """End the string at its closing quote."""
        if self.in_key:
            self.key = "".join(self.pieces)
            self.end_key(i)
            return
        value = self.open_text()
        self.length = -1
        self.older_text = ""
        self.add(value)

    def end_key(self, i: int) -> None:
        """End a key; the last value of a repeated one counts."""
        self.state = COLON
        if self.key in self.top.members:
            self.note(i, "duplicate_key", self.key, self.key)
        if self.listener is not None and not self.listener.key(self.key):
            self.stop()

    def open_text(self) -> str:
        """Return the text of the open string so far; the same object until it grows."""
        pieces = self.pieces
        if pieces:
            piece = pieces[0] if len(pieces) == 1 else "".join(pieces)
            self.pieces = []
            if self.length < LONG_TEXT:
                self.text += piece
            else:
                # The previous text is usually no longer referenced: CPython then extends it in place,
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
        """Read inside a number, which ends at the first character that cannot continue it."""
        n = len(text)
        start = i
        number = self.number
        while i < n:
            code = ord(text[i])
            following = NUMBER_STEPS[number * 128 + code] if code < 128 else 0
            if following == 0:
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
        """End the number at a character that is not part of it."""
        if self.number not in NUMBER_ENDS:
            return self.fail(text, i, "bad_number", f"Expected a digit, found {text[i]!r}")
        digits = "".join(self.digits)
        value: Any = integer_value(digits) if self.number <= LAST_INTEGER else float(digits)
        if value is None:
            return self.fail(text, i, "number_too_long", TOO_LONG)
        if self.listener is not None and i < len(text) and ord(text[i]) not in (9, 10, 13, 32, 44, 93, 125):
            self.state = AFTER  # not a number, so it is not reported
            return self.unexpected(text, i, text[i])
        if self.number > LAST_INTEGER and value in INFINITE:
            self.note(i, "number_overflow", digits[:40], str(value))
        self.version += 1
        self.add(value)
        return i

    def in_literal(self, text: str, i: int) -> int:
        """Read inside true, false or null."""
        word = self.word
        matched = self.matched
        piece = text[i : i + len(word) - matched]
        if not word.startswith(piece, matched):
            while text[i] == word[matched]:
                matched += 1
                i += 1
            self.matched = matched
            return self.bad_literal(text, i)
        self.matched = matched + len(piece)
        if self.matched == len(word):
            self.version += 1
            self.add(self.word_value)
        return i + len(piece)

    def bad_literal(self, text: str, i: int) -> int:
        """Fail at a word that began like a literal."""
        return self.fail(text, i, "bad_literal", f"Expected {self.word!r}, found {text[i]!r} in it")

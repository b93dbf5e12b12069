"""JSON in pieces → the same text without its blanks, and what happened in it. Strict: what is not JSON ends it.

It is read character by character, with numbers for characters and states: most pieces are a few characters long, and
for those that is the quickest once it is compiled.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from slipform.enforce.live_number import BEGUN, INTEGER, NO_NUMBER, number_so_far
from slipform.enforce.live_walk import LiveTracker

_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
_DEEPEST: Final = 256
_LONGEST_WORD: Final = 400

# What may come next where no token is open.
_VALUE: Final = 0
_FIRST_VALUE: Final = 1
_KEY: Final = 2
_FIRST_KEY: Final = 3
_COLON: Final = 4
_END: Final = 5
# The token that is open.
_NONE: Final = 0
_STRING: Final = 1
_NAME: Final = 2
_WORD: Final = 3
# Characters; a compiled module knows only plain numbers beforehand.
_TAB: Final = 9
_LINE_FEED: Final = 10
_RETURN: Final = 13
_SPACE: Final = 32
_QUOTE: Final = 34
_PLUS: Final = 43
_COMMA: Final = 44
_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48
_NINE: Final = 57
_COLON_SIGN: Final = 58
_UPPER_A: Final = 65
_UPPER_Z: Final = 90
_OPEN_BRACKET: Final = 91
_BACKSLASH: Final = 92
_CLOSE_BRACKET: Final = 93
_LOWER_A: Final = 97
_LOWER_U: Final = 117
_LOWER_Z: Final = 122
_OPEN_BRACE: Final = 123
_CLOSE_BRACE: Final = 125
_HEX: Final = frozenset(map(ord, "0123456789abcdefABCDEF"))
_ESCAPES: Final = frozenset(map(ord, '"\\/bfnrtu'))


class Scanner:
    """Follows one JSON text, and tells the walk of its parts. `feed` gives what the chunk adds to it without blanks.

    >>> from slipform.enforce.coercion import Switches
    >>> from slipform.enforce.live_shape import shape_of
    >>> from slipform.schema import Schema
    >>> scanner = Scanner(LiveTracker(shape_of(Schema.of({})), Switches()))
    >>> scanner.feed('{ "a" : [1, '), scanner.closers, scanner.feed(" 2 ] } and"), scanner.complete, scanner.rest
    ('{"a":[1,', ']}', '2]}', True, ' and')
    """

    __slots__ = (
        "_escape", "_escaped", "_expects", "_kind", "_objects", "_shift", "_token", "_walk",
        "complete", "length", "member", "rest", "stopped",
    )  # fmt: skip

    def __init__(self, walk: LiveTracker) -> None:
        self._walk = walk
        self._objects: list[bool] = []
        """Of every container that is open, whether it is an object."""
        self._expects = _VALUE
        self._kind = _NONE
        self._token: list[str] = []
        """What has been read of the open token, without quotes."""
        self._escape = 0
        """How many characters of an escape have been read, if one is open."""
        self._escaped = False
        """Whether the open string has an escape in it."""
        self._shift = 0
        """What to add to a place in the chunk for its place in the text without blanks."""
        self.length = 0
        """How long the text without blanks is."""
        self.member = 0
        """Where the member that is open, or about to come, begins: its comma and key included.

        With the first member of a container that is where the container's own member begins.
        """
        self.complete = False
        self.stopped = False
        """Whether the text is no JSON, or the walk said to stop."""
        self.rest = ""
        """What came in the same chunk after the value had closed."""

    @property
    def in_text(self) -> bool:
        """Whether a string that is a value is open."""
        return self._kind == _STRING

    @property
    def in_member(self) -> bool:
        """Whether a member has begun and not ended, or is announced by a comma or an opening bracket."""
        return self._kind != _NONE or self._expects != _END

    @property
    def half_escape(self) -> int:
        """How many characters at the end are half an escape."""
        return self._escape

    @property
    def closers(self) -> str:
        """What would close the text now: the open string, a key without a value, the brackets."""
        string = '"' if self._kind in (_STRING, _NAME) else ""
        lonely = ":null" if self._kind == _NAME or self._expects == _COLON else ""
        return string + lonely + "".join("}" if is_object else "]" for is_object in reversed(self._objects))

    def feed(self, chunk: str) -> str:
        """Read on."""
        kept: list[str] | None = None
        at, start, end = 0, 0, len(chunk)
        self._shift = self.length
        while at < end and not self.stopped and not self.complete:
            if self._kind == _WORD:
                at = self._read_word(chunk, at)
            elif self._kind != _NONE:
                at = self._read_string(chunk, at)
            elif ord(chunk[at]) in (_SPACE, _LINE_FEED, _RETURN, _TAB):
                kept = kept or []
                kept.append(chunk[start:at])
                at += 1
                start = at
                self._shift -= 1
            else:
                at = self._read_sign(chunk, at)
        self.length = self._shift + at
        if self.complete and not self.stopped:
            self.rest = chunk[at:]
        if kept is None:
            return chunk if at == end else chunk[:at]
        kept.append(chunk[start:at])
        return "".join(kept)

    def finish(self) -> None:
        """The text has ended: a number at the root ends with it."""
        if self._kind == _WORD and not self._objects:
            self._end_word("".join(self._token))

    def _go_on(self, further: bool) -> None:
        if not further:
            self.stopped = True

    def _read_sign(self, chunk: str, at: int) -> int:
        sign, expects = ord(chunk[at]), self._expects
        if sign == _COMMA and expects == _END:
            self.member = self._shift + at
            self._expects = _KEY if self._objects[-1] else _VALUE
        elif sign == _QUOTE and expects in (_KEY, _FIRST_KEY):
            self._begin_string(_NAME)
        elif sign == _COLON_SIGN and expects == _COLON:
            self._expects = _VALUE
        elif sign in (_CLOSE_BRACE, _CLOSE_BRACKET):
            self._close(sign == _CLOSE_BRACE)
        elif expects in (_VALUE, _FIRST_VALUE):
            self._begin_value(sign)
            if self._kind == _WORD:
                return at
        else:
            self.stopped = True
        return at + 1

    def _begin_value(self, sign: int) -> None:
        if sign == _QUOTE:
            self._begin_string(_STRING)
            self._go_on(self._walk.text_begins())
        elif sign in (_OPEN_BRACE, _OPEN_BRACKET):
            is_object = sign == _OPEN_BRACE
            self._go_on(len(self._objects) < _DEEPEST and self._walk.opened(is_object, self.member))
            self._objects.append(is_object)
            self._expects = _FIRST_KEY if is_object else _FIRST_VALUE
        elif _is_in_word(sign):
            self._kind = _WORD
            self._token = []
        else:
            self.stopped = True

    def _close(self, is_object: bool) -> None:
        expects = self._expects
        if not self._objects or self._objects[-1] != is_object or expects in (_VALUE, _KEY, _COLON):
            self.stopped = True
            return
        self._objects.pop()
        self._go_on(self._walk.closed())
        self._ended()

    def _ended(self) -> None:
        """A value has ended."""
        self._expects = _END
        self.complete = not self._objects

    def _read_word(self, chunk: str, at: int) -> int:
        stop, end = at, len(chunk)
        while stop < end and _is_in_word(ord(chunk[stop])):
            stop += 1
        word = chunk[at:stop]
        if self._token or stop == end:
            self._token.append(word)
            word = "".join(self._token)
        if stop < end:
            self._end_word(word)
        elif len(word) > _LONGEST_WORD or (number_so_far(word) == NO_NUMBER and not _begins_literal(word)):
            self.stopped = True
        return stop

    def _end_word(self, word: str) -> None:
        self._kind = _NONE
        found = NO_NUMBER if len(word) > _LONGEST_WORD else number_so_far(word)
        if found > BEGUN:
            self._go_on(self._walk.scalar(int(word) if found == INTEGER else float(word)))
        elif word in _LITERALS:
            self._go_on(self._walk.scalar(_LITERALS[word]))
        else:
            self.stopped = True
            return
        self._ended()

    def _begin_string(self, kind: int) -> None:
        self._kind = kind
        self._token = []
        self._escaped = False

    def _read_string(self, chunk: str, at: int) -> int:
        start, end, escape = at, len(chunk), self._escape
        while at < end:
            sign = ord(chunk[at])
            at += 1
            if escape:
                escape = _escape_after(sign, escape)
                if escape < 0:
                    self.stopped = True
                    return at
            elif sign == _QUOTE:
                self._escape = 0
                self._end_string(chunk[start : at - 1])
                return at
            elif sign == _BACKSLASH:
                self._escaped = True
                escape = 1
            elif sign < _SPACE:
                self.stopped = True
                return at
        self._escape = escape
        piece = chunk[start:] if start else chunk
        self._token.append(piece)
        if self._kind == _STRING:
            self._go_on(self._walk.text_grows(piece))
        return end

    def _end_string(self, piece: str) -> None:
        if self._token:
            self._token.append(piece)
            piece = "".join(self._token)
        if self._escaped:
            try:
                piece = orjson.loads(f'"{piece}"')
            except orjson.JSONDecodeError:  # half a surrogate pair
                self.stopped = True
                return
        kind, self._kind = self._kind, _NONE
        if kind == _NAME:
            self._expects = _COLON
            self._go_on(self._walk.key(piece))
            return
        self._go_on(self._walk.scalar(piece))
        self._ended()


def _escape_after(sign: int, read: int) -> int:
    """How many characters of the escape are read after this one; 0 when it is whole, less when it is none."""
    if read == 1:
        if sign not in _ESCAPES:
            return -1
        return 2 if sign == _LOWER_U else 0
    if sign not in _HEX:
        return -1
    return read + 1 if read < 5 else 0


def _is_in_word(sign: int) -> bool:
    """Whether it can be part of a number or a literal."""
    if _ZERO <= sign <= _NINE or _LOWER_A <= sign <= _LOWER_Z or _UPPER_A <= sign <= _UPPER_Z:
        return True
    return sign in (_MINUS, _POINT, _PLUS)


def _begins_literal(word: str) -> bool:
    return "true".startswith(word) or "false".startswith(word) or "null".startswith(word)

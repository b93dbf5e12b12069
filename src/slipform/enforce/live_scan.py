"""JSON in pieces → the same text without its blanks, and what happened in it. Strict: what is not JSON ends it."""

from __future__ import annotations

import re
from typing import Any, Protocol

import orjson

_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_BLANK = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_NUMBER_BEGINS = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:(?<=[0-9])\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?\Z")
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPES = frozenset('"\\/bfnrtu')
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
_DEEPEST = 256
_LONGEST_WORD = 400


class Follower(Protocol):
    """What is told of a text's parts as they come; an offset is a place in the text without blanks.

    Each answers whether to go on.
    """

    def opened(self, kind: str, offset: int) -> bool:
        """A container has opened; `offset` is where its member begins, the comma and the key before it included."""
        ...

    def closed(self) -> bool:
        """The innermost container has closed."""
        ...

    def key(self, key: str) -> bool:
        """A key has closed."""
        ...

    def scalar(self, value: Any) -> bool:
        """A string, number or literal has ended."""
        ...

    def text(self, piece: str) -> bool:
        """A string that is a value has begun (no piece) or has grown by this much, as it is written."""
        ...


class Scanner:
    """Follows one JSON text. `feed` gives what the chunk adds to the text without blanks.

    >>> class Deaf:
    ...     def opened(self, kind, offset): return True
    ...     def closed(self): return True
    ...     def key(self, key): return True
    ...     def scalar(self, value): return True
    ...     def text(self, piece): return True
    >>> scanner = Scanner(Deaf())
    >>> scanner.feed('{ "a" : [1, '), scanner.closers, scanner.feed(" 2 ] } and"), scanner.complete, scanner.rest
    ('{"a":[1,', ']}', '2]}', True, ' and')
    """

    __slots__ = (
        "_after_escape", "_expects", "_follower", "_kind", "_length", "_member", "_stack", "_token",
        "complete", "rest", "stopped",
    )  # fmt: skip

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._stack: list[str] = []
        self._expects = "value"
        self._kind = ""
        """The token that is open: "string", "key", "word", or none."""
        self._token: list[str] = []
        self._after_escape = ""
        self._length = 0
        self._member = 0
        self.complete = False
        self.stopped = False
        """Whether the text is no JSON, or the follower said to stop."""
        self.rest = ""
        """What came in the same chunk after the value had closed."""

    @property
    def length(self) -> int:
        """How long the text without blanks is."""
        return self._length

    @property
    def member(self) -> int:
        """Where the member that is open, or about to come, begins: its comma and key included.

        With the first member of a container that is where the container's own member begins.
        """
        return self._member

    @property
    def in_text(self) -> bool:
        """Whether a string that is a value is open."""
        return self._kind == "string"

    @property
    def in_member(self) -> bool:
        """Whether a member has begun and not ended, or is announced by a comma or an opening bracket."""
        return self._kind != "" or self._expects != "end"

    @property
    def half_escape(self) -> int:
        """How many characters at the end are half an escape."""
        return len(self._after_escape)

    @property
    def closers(self) -> str:
        """What would close the text now: the open string, a key without a value, the brackets."""
        string = '"' if self._kind in ("string", "key") else ""
        lonely = ":null" if self._kind == "key" or self._expects == "colon" else ""
        return string + lonely + "".join("}" if kind == "{" else "]" for kind in reversed(self._stack))

    def feed(self, chunk: str) -> str:
        """Read on."""
        out: list[str] = []
        at, end = 0, len(chunk)
        while at < end and not self.stopped and not self.complete:
            if self._kind == "word":
                at = self._read_word(chunk, at, out)
            elif self._kind:
                at = self._read_string(chunk, at, out)
            else:
                blank = _BLANK.match(chunk, at)
                at = blank.end() if blank else at
                if at < end:
                    at = self._read_sign(chunk, at, out)
        if self.complete and not self.stopped:
            self.rest = chunk[at:]
        return "".join(out)

    def finish(self) -> None:
        """The text has ended: a number at the root ends with it."""
        if self._kind == "word" and not self._stack:
            self._end_word()

    def _add(self, text: str, out: list[str]) -> None:
        out.append(text)
        self._length += len(text)

    def _stop(self) -> None:
        self.stopped = True

    def _read_sign(self, chunk: str, at: int, out: list[str]) -> int:
        sign, expects = chunk[at], self._expects
        if sign == "," and expects == "end":
            self._member = self._length
            self._expects = "key" if self._stack[-1] == "{" else "value"
        elif sign == ":" and expects == "colon":
            self._expects = "value"
        elif sign == '"' and expects in ("key", "first key"):
            self._kind, self._token = "key", ['"']
        elif sign in "}]":
            self._close(sign)
        elif expects in ("value", "first value"):
            self._begin_value(sign)
            if self._kind == "word":
                return at
        else:
            self._stop()
        self._add(sign, out)
        return at + 1

    def _begin_value(self, sign: str) -> None:
        if sign == '"':
            self._kind, self._token = "string", ['"']
            if not self._follower.text(""):
                self._stop()
        elif sign in "{[":
            if len(self._stack) >= _DEEPEST or not self._follower.opened(sign, self._member):
                self._stop()
            self._stack.append(sign)
            self._expects = "first key" if sign == "{" else "first value"
        elif sign == "-" or sign.isdigit() or sign in "tfn":
            self._kind, self._token = "word", []
        else:
            self._stop()

    def _close(self, sign: str) -> None:
        fits = self._stack and self._stack[-1] == ("{" if sign == "}" else "[")
        if not fits or self._expects not in ("end", "first key", "first value"):
            self._stop()
            return
        self._stack.pop()
        if not self._follower.closed():
            self._stop()
        self._ended()

    def _ended(self) -> None:
        """A value has ended."""
        self._expects = "end"
        self.complete = not self._stack

    def _read_word(self, chunk: str, at: int, out: list[str]) -> int:
        found = _WORD.match(chunk, at)
        stop = found.end() if found else at
        if stop > at:
            self._token.append(chunk[at:stop])
            self._add(chunk[at:stop], out)
            word = "".join(self._token)
            begins = any(each.startswith(word) for each in _LITERALS) or _NUMBER_BEGINS.match(word)
            if not begins or len(word) > _LONGEST_WORD:
                self._stop()
                return stop
        if stop < len(chunk):
            self._end_word()
        return stop

    def _end_word(self) -> None:
        word = "".join(self._token)
        self._kind = ""
        if word in _LITERALS:
            value = _LITERALS[word]
        elif _NUMBER.match(word):
            value = int(word) if word.lstrip("-").isdigit() else float(word)
        else:
            self._stop()
            return
        if not self._follower.scalar(value):
            self._stop()
        self._ended()

    def _read_string(self, chunk: str, at: int, out: list[str]) -> int:
        start, end = at, len(chunk)
        if not self._after_escape and '"' not in chunk and "\\" not in chunk and chunk.isprintable():
            at = end  # nothing in it ends the string or has to be looked at
        while at < end:
            if self._after_escape:
                at = self._read_escape(chunk, at)
                if self.stopped:
                    return at
                continue
            found = _RUN.match(chunk, at)
            at = found.end() if found else at
            if at == end:
                break
            if chunk[at] == '"':
                return self._end_string(chunk, start, at + 1, out)
            if chunk[at] != "\\":
                self._stop()
                return at
            self._after_escape = "\\"
            at += 1
        self._token.append(chunk[start:end])
        self._add(chunk[start:end], out)
        if self._kind == "string" and not self._follower.text(chunk[start:end]):
            self._stop()
        return end

    def _read_escape(self, chunk: str, at: int) -> int:
        """One character of an escape."""
        sign = chunk[at]
        if len(self._after_escape) == 1:
            if sign not in _ESCAPES:
                self._stop()
            self._after_escape = "\\u" if sign == "u" else ""
        elif sign not in _HEX:
            self._stop()
        else:
            self._after_escape += sign
            if len(self._after_escape) == 6:
                self._after_escape = ""
        return at + 1

    def _end_string(self, chunk: str, start: int, stop: int, out: list[str]) -> int:
        self._token.append(chunk[start:stop])
        self._add(chunk[start:stop], out)
        token = "".join(self._token)
        kind, self._kind, self._token = self._kind, "", []
        value = token[1:-1]
        if "\\" in token:
            try:
                value = orjson.loads(token)
            except orjson.JSONDecodeError:  # half a surrogate pair
                self._stop()
                return stop
        if kind == "key":
            self._expects = "colon"
            if not self._follower.key(value):
                self._stop()
            return stop
        if not self._follower.scalar(value):
            self._stop()
        self._ended()
        return stop

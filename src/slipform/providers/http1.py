"""HTTP/1.1 as bytes: spelling a request, reading an answer split anywhere. No I/O."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

_HEAD_LIMIT = 1 << 18
_LINE_LIMIT = 1 << 16
_SHORT = 4096
"""Heads with longer values, which are a caller's, are spelled anew for each call instead of being kept."""
_STATUS = re.compile(r"HTTP/1\.[01] (\d{3})(?: |\r|$)")
_UNSENDABLE = re.compile(r"[\r\n\0]")
_BREAK = re.compile(rb"\r?\n\r?\n")


class ProtocolError(Exception):
    """The bytes are not an HTTP answer, or not a complete one."""


def spell_request(method: str, target: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    r"""The bytes of a request.

    >>> spell_request("POST", "/x", "a", {}, b"{}")
    b'POST /x HTTP/1.1\r\nhost: a\r\naccept-encoding: identity\r\ncontent-length: 2\r\n\r\n{}'
    """
    short = len(target) + sum([len(value) for value in headers.values()]) <= _SHORT
    head = _head if short else _head.__wrapped__
    return b"%bcontent-length: %d\r\n\r\n%b" % (head(method, target, host, *headers.items()), len(body), body)


@lru_cache(maxsize=256)
def _head(method: str, target: str, host: str, *headers: tuple[str, str]) -> bytes:
    """All but the length: what is the same from call to call is spelled once."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", "accept-encoding: identity"]
    for name, value in headers:
        if not name.isascii() or _UNSENDABLE.search(value) or _UNSENDABLE.search(name) or ":" in name:
            raise ProtocolError(f"The header {name!r} cannot be sent: it holds a line break or the like")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "")).encode("latin-1", "replace")


class AnswerReader:
    r"""Reads one answer. `feed` it what arrives (nothing at the end of the connection), `take` what it holds.

    >>> reader = AnswerReader()
    >>> reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    >>> reader.status, reader.take(), reader.take(), reader.reusable
    (200, b'hi', b'', True)
    """

    __slots__ = ("_at", "_body", "_buffer", "_ended", "_left", "_state", "_unzip", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._buffer = b""
        self._at = 0
        """How much of the buffer has been read; it is cut once per `feed`, however many chunks it holds."""
        self._state: Literal["head", "fixed", "size", "data", "gap", "trailer", "open", "done"] = "head"
        self._left = 0
        self._body: list[bytes] = []
        self._unzip: zlib._Decompress | None = None
        self._ended = False

    @property
    def has_head(self) -> bool:
        """Whether status and headers are known."""
        return self._state != "head"

    @property
    def done(self) -> bool:
        """Whether the answer has been read to its end."""
        return self._state == "done"

    @property
    def spent(self) -> bool:
        """Whether all of the body has been taken, and nothing is left to find fault with."""
        return self._state == "done" and not self._body and self._unzip is None

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request: the answer is complete and its end was announced."""
        return self._state == "done" and not self._ended and not self._buffer and self._keeps()

    def feed(self, data: bytes) -> None:
        """Take in what arrived; no bytes mean that the connection has ended."""
        if not data:
            self._ended = True
            if self._state == "open":
                self._state = "done"
            elif self._state != "done":
                when = "in the middle of the answer" if self.has_head else "without an answer"
                raise ProtocolError(f"the server closed the connection {when}")
            return
        self._buffer = self._buffer + data if self._buffer else data
        if self._state == "size":
            self._read_chunks()
            if self._at == len(self._buffer):
                self._buffer, self._at = b"", 0
                return
        while self._step():
            pass
        self._buffer = self._buffer[self._at :]
        self._at = 0

    def take(self) -> bytes | None:
        """The body bytes at hand; empty at the body's end, None when more must be fed first."""
        if self._body:
            data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            if self._unzip is None:
                return data
            try:
                plain = self._unzip.decompress(data)
            except zlib.error as error:
                raise ProtocolError(f"the answer's compression is broken: {error}") from error
            return plain or self.take()
        return b"" if self._state == "done" else None

    def _step(self) -> bool:
        """Move on by one state if the buffer allows it."""
        state = self._state
        if state == "head":
            return self._read_head()
        if state in ("fixed", "data"):
            return self._read_counted()
        if state == "open":
            self._body.append(self._buffer[self._at :])
            self._at = len(self._buffer)
            return False
        if state == "done":
            return False
        line = self._line()
        if line is None:
            return False
        if state == "size":
            self._read_size(line)
        elif state == "gap":
            if line:
                raise ProtocolError("a chunk is longer than it says")
            self._state = "size"
        elif not line:
            self._state = "done"
        return True

    def _read_chunks(self) -> None:
        """Whole chunks in their plain form; what is left is read step by step."""
        buffer, at = self._buffer, self._at
        while (end := buffer.find(b"\r\n", at)) > at:
            start = end + 2
            stop = start + _plain_size(buffer, at, end)
            if stop <= start or buffer[stop : stop + 2] != b"\r\n":
                break
            self._body.append(buffer[start:stop])
            at = stop + 2
        self._at = at

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._at)
        if end < 0:
            if len(self._buffer) - self._at > _LINE_LIMIT:
                raise ProtocolError("a line of the answer is too long")
            return None
        line = self._buffer[self._at : end]
        self._at = end + 1
        return line.rstrip(b"\r")

    def _read_size(self, line: bytes) -> None:
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise ProtocolError("a chunk has no size") from None
        if self._left < 0:
            raise ProtocolError("a chunk has a negative size")
        self._state = "data" if self._left else "trailer"

    def _read_counted(self) -> bool:
        piece = self._buffer[self._at : self._at + self._left]
        if not piece:
            return False
        self._at += len(piece)
        self._left -= len(piece)
        self._body.append(piece)
        if self._left:
            return False
        self._state = "done" if self._state == "fixed" else "gap"
        return True

    def _read_head(self) -> bool:
        if not self._buffer.startswith(b"HTTP/1."[: len(self._buffer)]):
            raise ProtocolError("what came back is not HTTP/1.1")
        found = _BREAK.search(self._buffer)
        if found is None:
            if len(self._buffer) > _HEAD_LIMIT:
                raise ProtocolError("the head of the answer is too long")
            return False
        first, *lines = self._buffer[: found.start()].decode("latin-1").split("\n")
        self._buffer = self._buffer[found.end() :]
        status = _STATUS.match(first)
        if status is None:
            raise ProtocolError("what came back is not HTTP/1.1")
        self.status = int(status[1])
        if 100 <= self.status < 200:
            return True  # an interim answer; the real one follows
        self.headers = {}
        headers = self.headers
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ProtocolError("a header of the answer has no colon")
            key, text = name.strip().lower(), value.strip()
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self._begin_body()
        return True

    def _begin_body(self) -> None:
        if self.headers.get("content-encoding", "identity").lower() in ("gzip", "deflate", "x-gzip"):
            self._unzip = zlib.decompressobj(wbits=47)
        if self.status in (204, 304):
            self._state = "done"
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = "size"
        elif "content-length" in self.headers:
            try:
                self._left = int(self.headers["content-length"].partition(",")[0])
            except ValueError:
                raise ProtocolError("the answer's length is not a number") from None
            self._state = "fixed" if self._left > 0 else "done"
        else:
            self._state = "open"

    def _keeps(self) -> bool:
        framed = "transfer-encoding" in self.headers or "content-length" in self.headers or self.status in (204, 304)
        return framed and "close" not in self.headers.get("connection", "").lower()


def _plain_size(data: bytes, at: int, end: int) -> int:
    """The size of a chunk that is written as nothing but hexadecimal digits; 0 when it is not."""
    size = 0
    for place in range(at, end):
        sign = data[place]
        if 48 <= sign <= 57:  # 0 to 9
            size = size * 16 + sign - 48
        elif 97 <= sign | 32 <= 102:  # a to f, in either case
            size = size * 16 + (sign | 32) - 87
        else:
            return 0
    return size

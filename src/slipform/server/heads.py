"""The head of an answer in bytes, and how its body is framed. What could break the framing never leaves."""

from __future__ import annotations

import http
import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from functools import lru_cache
from typing import NamedTuple

from slipform.server.record import Header

_TOKEN = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROLS = bytes([*range(9), *range(10, 32), 127])
"""What a value must not hold: with a line end in it, it could say another header, or a body."""
_FRAMING = frozenset({b"content-length", b"transfer-encoding", b"connection"})
_BODYLESS = frozenset({204, 304})


class Head(NamedTuple):
    """A head, and what it says of what follows: a body of so many bytes, in chunks, or all until the end."""

    data: bytes
    length: int | None
    chunked: bool
    keep_alive: bool


def spell_head(
    status: int,
    headers: Iterable[Header],
    *,
    date: bytes = b"",
    keep_alive: bool = True,
    modern: bool = True,
    asked_head: bool = False,
) -> Head:
    r"""The head of an answer; `modern` says that the client knows chunks, `asked_head` that it wants no body.

    >>> spell_head(200, [(b"content-length", b"2")]).data
    b'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n'
    >>> spell_head(200, [(b"x-name", b"a\r\nset-cookie: b")])
    Traceback (most recent call last):
    ValueError: A header of the answer holds a line end or another control character
    """
    parts, values = [_status_line(status), date], []
    length: int | None = None
    chunked = False
    for name, value in headers:
        spelled = _spelled(name)
        if spelled is not None:
            parts += (spelled, value)
            values.append(value)
        elif (plain := name.lower()) == b"content-length":
            length = _length(value, length)
        elif plain == b"connection":
            keep_alive = keep_alive and b"close" not in value.lower()
        else:
            chunked = _is_chunked(value)
    said = b"".join(values)
    if len(said.translate(None, _CONTROLS)) != len(said):
        raise ValueError("A header of the answer holds a line end or another control character")
    if status in _BODYLESS:
        chunked, length = False, None
    elif length is not None:
        if chunked:
            raise ValueError("The answer's head says both how long the body is and that it comes in chunks")
        parts.append(b"\r\ncontent-length: %d" % length)
    elif not asked_head:
        chunked = modern
        keep_alive = keep_alive and modern
        if modern:
            parts.append(b"\r\ntransfer-encoding: chunked")
    parts.append(b"\r\n\r\n" if keep_alive else b"\r\nconnection: close\r\n\r\n")
    if asked_head or status in _BODYLESS:
        return Head(b"".join(parts), 0, chunked=False, keep_alive=keep_alive)
    return Head(b"".join(parts), length, chunked, keep_alive)


def date_line() -> bytes:
    """The date as it stands in a head, to be made once a second."""
    return b"\r\ndate: " + formatdate(time.time(), usegmt=True).encode()


def refusal(
    status: int, said: bytes, content_type: bytes = b"text/plain; charset=utf-8", more: Iterable[Header] = ()
) -> bytes:
    """An answer to what is not understood, after which the connection is closed."""
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(said)), *more]
    return spell_head(status, headers, keep_alive=False).data + said


@lru_cache(maxsize=64)
def _status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    if not 200 <= status <= 999:
        raise ValueError(f"An answer cannot have the status {status}")
    return f"HTTP/1.1 {status} {phrase}".encode()


@lru_cache(maxsize=1024)
def _spelled(name: bytes) -> bytes | None:
    """A header's line up to its value; None for those that are ours to say."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is no name of a header")
    plain = name.lower()
    return None if plain in _FRAMING else b"\r\n%b: " % plain


def _length(value: bytes, known: int | None) -> int:
    if not value.isdigit() or known is not None:
        raise ValueError("The answer's content-length is said twice, or is no number")
    return int(value)


def _is_chunked(value: bytes) -> bool:
    if value.lower() != b"chunked":
        raise ValueError("An answer's transfer-encoding can only be chunked")
    return True

"""One request and its answer as ASGI sees them; heads."""

from __future__ import annotations

import asyncio
import http
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from slipform.proxy.observability.call_record import Header

if TYPE_CHECKING:
    from slipform.proxy.http_server.connection import ServerConnection

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


_log = logging.getLogger("slipform.server")
_FAILED = refusal(500, b"Internal Server Error")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ONE_PIECE = 64 * 1024
"""A body up to this size is copied behind its head, to leave with it."""
App = Callable[[MutableMapping[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[None]]], Any]


class RequestCycle:
    """Gives the application a request, and writes its answer: `receive` and `send`, and shorter ways for our own.

    The shorter ways are in the scope, as `scope["extensions"]["slipform"]`: `ends_with_client`, `push` and `answer`.
    """

    __slots__ = (
        "_chunked", "_connection", "_expects", "_head", "_held", "_is_head", "_left", "_modern", "_news",
        "_said_whole", "begun", "complete", "counted", "ends", "gone", "keep_alive", "scope", "task", "whole",
    )  # fmt: skip

    def __init__(
        self,
        connection: ServerConnection,
        scope: MutableMapping[str, Any],
        *,
        keep_alive: bool,
        modern: bool,
        expects: bool,
    ) -> None:
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive
        """Whether another request may follow on the connection."""
        self._modern = modern
        self._expects = expects
        """Whether the client waits for a word before it sends the body."""
        self._is_head = scope["method"] == "HEAD"
        self._held: bytes | bytearray = b""
        self.whole = False
        """Whether the request's last byte is here."""
        self._said_whole = False
        self.begun = False
        """Whether the answer's head is spelled."""
        self.complete = False
        """Whether the answer's last byte is written."""
        self.gone = False
        """Whether the client has gone before."""
        self._head = b""
        """The answer's head until something follows it."""
        self._chunked = False
        self._left: int | None = None
        self._news: asyncio.Event | None = None
        self.ends = False
        """Whether the task is of no use without the client."""
        self.counted: str | None = None
        """The network among whose requests this one is counted."""
        self.task: asyncio.Task[None] | None = None

    async def run(self, app: App) -> None:
        """Let the application answer."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._break_off()
            raise
        except Exception:  # noqa: BLE001 — whatever it was, this connection only
            _log.exception("an unexpected error in the application")
            self._break_off(_FAILED)
        else:
            if not self.begun and not self.gone:
                _log.error("the application has not answered")
                self._break_off(_FAILED)
            else:
                self._break_off()
        finally:
            self.scope = {}  # which holds this exchange in turn, as does the task
            self.task = None
            self._connection.over(self)

    def _break_off(self, instead: bytes = b"") -> None:
        """Leave an answer that was not finished visibly so."""
        if not self.complete and not self.gone:
            self.complete = True
            self._flush()
            self._connection.break_off(b"" if self.begun else instead)

    # What comes in.

    def add(self, data: bytes) -> None:
        """The next piece of the body."""
        if self.complete:
            return
        held = self._held
        if not held:
            self._held = data
        elif isinstance(held, bytearray):
            held += data
        else:
            self._held = bytearray(held) + data
        self.wake()

    def end(self) -> None:
        """The body is whole."""
        self.whole = True
        self.wake()

    @property
    def held(self) -> int:
        """How much of the body is here that nobody has taken."""
        return 0 if self.complete else len(self._held)

    def wake(self) -> None:
        """There is something to receive."""
        if self._news is not None:
            self._news.set()

    def lose(self) -> None:
        """The client has gone."""
        if not self.complete:
            self.gone = True
            self.ends_with_client(self.ends)
        self.wake()

    def ends_with_client(self, ends: bool) -> None:
        """Whether the task is cancelled when the client goes before its answer is complete, or has gone already."""
        self.ends = ends
        if ends and self.gone and self.task is not None:
            self.task.cancel()

    def make_room(self) -> bool:
        """Cut another request, whose client does not read, in favour of this one; False when all clients read."""
        return self._connection.door.cut_stalled()

    def take(self) -> bytes | None:
        """The whole body, where it is here and nobody has received any of it; None: `receive` it."""
        if not self.whole or self._said_whole or self.gone or self.complete:
            return None
        data, self._held = self._held, b""
        self._said_whole = True
        self._connection.read_on()
        return bytes(data)

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI's: a piece of the body, or that the client has gone."""
        while not (self.gone or self.complete):
            if self._held or (self.whole and not self._said_whole):
                data, self._held = self._held, b""
                self._said_whole = self.whole
                self._connection.read_on()
                return {"type": "http.request", "body": bytes(data), "more_body": not self.whole}
            if self._expects and not self.whole and not self.begun:
                self._expects = False
                self._connection.write(_CONTINUE)
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        return {"type": "http.disconnect"}

    # What goes out.

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI's: the head, then pieces of the body; waits while the client does not read."""
        if self._connection.full:
            await self._connection.writable()
        if self.gone:
            return
        kind = message["type"]
        if self.complete or kind != ("http.response.body" if self.begun else "http.response.start"):
            raise RuntimeError(f"The application sent {kind} where it cannot stand")
        if self.begun:
            self._write(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))
            self._connection.soon(self._flush)

    @property
    def can_push(self) -> bool:
        """Whether the answer has begun and its client is there and keeps up."""
        return self.begun and not (self._connection.full or self.gone or self.complete)

    def push(self, data: bytes) -> bool:
        """Write one more piece of a begun answer without being waited for.

        False: nothing was written, because the client does not keep up, or has gone; `send` it instead.
        """
        if not self.can_push:
            return False
        self._write(data, more=True)
        return True

    def answer(self, status: int, headers: Iterable[Header], body: bytes) -> bool:
        """Write a whole answer at once; False, and nothing was written, as with `push`."""
        if self._connection.full or self.gone or self.begun:
            return False
        self._begin(status, headers)
        self._write(body, more=False)
        return True

    def _begin(self, status: int, headers: Iterable[Header]) -> None:
        # A client that was not told to send its body may send it or not: nobody knows where the next request begins.
        head = spell_head(
            status,
            headers,
            date=self._connection.door.date,
            keep_alive=self.keep_alive and not (self._expects and not self.whole),
            modern=self._modern,
            asked_head=self._is_head,
        )
        self.begun = True
        self._head, self._left, self._chunked, self.keep_alive = head

    def _write(self, body: bytes, *, more: bool) -> None:
        data = self._framed(body, more=more)
        head = self._head
        if head:
            self._head = b""
            if len(data) <= _ONE_PIECE:
                data = head + data
            else:
                self._connection.write(head)
        if data:
            self._connection.write(data)
        if not more:
            self.complete = True
            self._head = self._held = b""
            self.wake()
            self._connection.answered(self)

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if self._chunked:
            if more:
                return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        if self._is_head or self._left is None:
            return b"" if self._is_head else body
        self._left -= len(body)
        if self._left < 0 or (self._left and not more):
            raise RuntimeError("The answer is longer or shorter than its content-length says")
        return body

    def _flush(self) -> None:
        """The head has waited for what follows it as long as it should."""
        if self._head and not self.gone:
            data, self._head = self._head, b""
            self._connection.write(data)

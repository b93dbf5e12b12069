"""One request and its answer, as ASGI has them, on a connection of ours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any

from slipform.server.heads import refusal, spell_head
from slipform.server.record import Header

if TYPE_CHECKING:
    from slipform.server.connection import Connection

_log = logging.getLogger("slipform.server")
_FAILED = refusal(500, b"Internal Server Error")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ONE_PIECE = 64 * 1024
"""A body up to this size is copied behind its head, to leave with it."""

App = Callable[[MutableMapping[str, Any], Callable[..., Awaitable[Any]], Callable[..., Awaitable[None]]], Any]


class Exchange:
    """Gives the application a request, and writes its answer: `receive` and `send`, and shorter ways for our own.

    The shorter ways are in the scope, as `scope["extensions"]["slipform"]`: `ends_with_client`, `push` and `answer`.
    """

    __slots__ = (
        "_chunked", "_connection", "_expects", "_head", "_held", "_is_head", "_left", "_modern", "_news",
        "_said_whole", "begun", "complete", "counted", "ends", "gone", "keep_alive", "scope", "task", "whole",
    )  # fmt: skip

    def __init__(
        self,
        connection: Connection,
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

    def push(self, data: bytes) -> bool:
        """Write one more piece of a begun answer without being waited for.

        False: nothing was written, because the client does not keep up, or has gone; `send` it instead.
        """
        if self._connection.full or self.gone or self.complete or not self.begun:
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

"""An answer that comes in pieces, handed on to the client as they come."""

from __future__ import annotations

from collections.abc import Callable

from slipform.errors import SlipformError, UpstreamError
from slipform.providers.forward import Forwarded
from slipform.server.http import Send
from slipform.server.outgoing import Outgoing
from slipform.server.spent import Tail


class Relay:
    """Takes pieces where they arrive and writes them at once; the task is woken only for what has to be waited for."""

    __slots__ = ("_between_events", "_known", "_over", "_push", "_send", "_sent", "_waiting", "tail")

    def __init__(self, send: Send, known: int | None) -> None:
        self._send = send
        self._push = send.push if isinstance(send, Outgoing) else None
        self._known = known
        """How long the answer is, where that was said."""
        self._sent = 0
        self._between_events = True
        self._waiting = b""
        """A piece that could not be written at once."""
        self._over = False
        self.tail = Tail()
        """The last pieces."""

    def __call__(self, data: bytes) -> bool:
        """The next piece, none at the end; whether more can be taken now."""
        if not data:
            self._over = True
            return False
        self._sent += len(data)
        self.tail.add(data)
        self._between_events = data.endswith((b"\n\n", b"\r\n\r\n"))
        if self._sent != self._known and self._push is not None and self._push(data):
            return True
        self._waiting = data
        return False

    async def run(self, answer: Forwarded, first: bytes, fail: Callable[[SlipformError], bytes] | None) -> str:
        """Hand on all that comes after `first`; "ok", or an error's code. `fail` is for answers that are events."""
        self(first)
        try:
            while True:
                if self._waiting:
                    data, self._waiting = self._waiting, b""
                    await self._body(data, more=self._sent != self._known)
                if self._over:
                    break
                await answer.on_body(self)
        except UpstreamError as error:
            if fail is not None and self._between_events:
                await self._body(fail(error), more=False)
            # Elsewhere what broke off stays unfinished for the caller too: the server closes the connection.
            return error.code
        if self._sent != self._known:
            await self._body(b"", more=False)
        return "ok"

    async def _body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

"""What leaves for the client, noted on its way out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from slipform.server.exchange import Exchange
from slipform.server.record import CallRecord, Header

if TYPE_CHECKING:
    from slipform.server.http import Send

_MAX_KEPT = 64 * 1024


class Outgoing:
    """An ASGI `send` that notes the status, the first byte and the end; with `keep`, also the first of the words.

    `exchange` is there where the server is ours and nobody stands between: for what need not be waited for.
    """

    __slots__ = ("_exchange", "_record", "_send", "begun", "extra", "kept", "whole")

    def __init__(self, send: Send, record: CallRecord, *, exchange: Exchange | None = None, keep: bool = False) -> None:
        self._exchange = exchange
        self._send = send
        self._record = record
        self.begun = False
        """Whether the head has left."""
        self.extra: Sequence[Header] = ()
        """Headers that the answer has whatever it is."""
        self.whole = False
        """Whether the last byte has been handed over."""
        self.kept = bytearray() if keep else None

    def __call__(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        """Send, and note."""
        if message["type"] == "http.response.body":
            if self._record.first_byte is None:
                self._record.first_byte = time.monotonic()
            if not message.get("more_body"):
                self.whole = True
                self._record.ended = time.monotonic()
            self._keep(message.get("body", b""))
        else:
            self.begun = True
            if self.extra:
                message = {**message, "headers": [*message["headers"], *self.extra]}
            self._record.status = message["status"]
        return self._send(message)

    def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """Write a whole answer at once; False, and nothing was written, as with `push`."""
        exchange = self._exchange
        if exchange is None or not exchange.answer(status, [*headers, *self.extra] if self.extra else headers, body):
            return False
        record = self._record
        self.begun = self.whole = True
        record.status = status
        record.first_byte = record.ended = time.monotonic()
        self._keep(body)
        return True

    def push(self, data: bytes) -> bool:
        """Write one more piece of a begun stream at once.

        False: nothing was written, because the client does not keep up or the server is another's; `send` it instead.
        """
        if self._exchange is None or not self._exchange.push(data):
            return False
        if self._record.first_byte is None:
            self._record.first_byte = time.monotonic()
        self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        if self.kept is not None and len(self.kept) <= _MAX_KEPT:
            self.kept += data

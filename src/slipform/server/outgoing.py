"""What leaves for the client, noted on its way out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, MutableMapping
from typing import Any

from slipform.server.http import Send
from slipform.server.record import CallRecord

_MAX_KEPT = 64 * 1024


class Outgoing:
    """An ASGI `send` that notes the status, the first byte and the end; with `keep`, also the first of the words."""

    __slots__ = ("_record", "_send", "begun", "kept", "whole")

    def __init__(self, send: Send, record: CallRecord, *, keep: bool = False) -> None:
        self._send = send
        self._record = record
        self.begun = False
        """Whether the head has left."""
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
            if self.kept is not None and len(self.kept) <= _MAX_KEPT:
                self.kept += message.get("body", b"")
        else:
            self.begun = True
            self._record.status = message["status"]
        return self._send(message)

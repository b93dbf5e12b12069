"""The HTTP protocol, with the two limits that uvicorn's own lacks: how large a request's head may be, and how slow."""

from __future__ import annotations

import asyncio
from typing import Any

from slipform.server.gathering import GatheringProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 30.0
_TOO_LARGE = b'{"error":{"message":"The request\'s headers are larger than 64 KB","type":"invalid_request_error"}}'


class LimitedProtocol(GatheringProtocol):
    """One connection; a head that grows past the limit is answered with 431, one that does not end is cut off."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._head_bytes = 0
        self._has_other = False
        """Whether what is being read holds more than the one head that has not ended."""
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client is there, and has to say what it wants."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self._has_other = False
        super().data_received(data)
        if self._in_head:
            if not self._has_other:
                self._head_bytes += len(data)
            self._start_timer()
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse()
        elif self.cycle is not None and self.cycle.response_complete:
            self._start_timer()  # blank lines between requests, which have stopped uvicorn's timer of idle connections

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole. From here on the time limits of the request count, not those of its head."""
        self._in_head = False
        self._has_other = True
        self._head_bytes = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole."""
        self._has_other = True
        super().on_message_complete()

    def _start_timer(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self) -> None:
        head = (
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
        )
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(_TOO_LARGE) + _TOO_LARGE)
        self.transport.close()

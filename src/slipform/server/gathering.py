"""uvicorn's HTTP/1.1 protocol, with the head of an answer sent in one piece with what follows it.

uvicorn hands head and body of an answer to the socket one by one. Each costs a system call and wakes the client, which
is more than all else that is done for a small answer. What follows is not kept back: of a stream every piece counts.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class GatheringTransport:
    """A transport that keeps the head of an answer until more is written, or until the event loop's next turn."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        """Write this, after what was kept back."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self.flush)
            return
        self._transport.write(data)

    def flush(self) -> None:
        """Write now what was kept back."""
        if self._head:
            data, self._head = self._head, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def close(self) -> None:
        """Close when all is written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class GatheringProtocol(HttpToolsProtocol):
    """For `uvicorn.run(http=GatheringProtocol)`."""

    def connection_made(self, transport: Any) -> None:
        """A client has connected."""
        gathering: Any = GatheringTransport(transport, asyncio.get_running_loop())
        super().connection_made(gathering)

"""uvicorn's HTTP/1.1 protocol, with what is written in one turn of the event loop sent in one piece.

uvicorn hands head and body of an answer to the socket one by one. Each costs a system call and wakes the client, which
is more than all else that is done for a small answer.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST = 1 << 16
"""More than this is not kept back: the socket has to say that it is full."""


class GatheringTransport:
    """A transport that gathers what is written until the event loop's next turn."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._gathered: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_protocol = transport.set_protocol

    def write(self, data: bytes) -> None:
        """Write this soon, after what was written before."""
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(data)
        self._size += len(data)
        if self._size > _MOST:
            self.flush()

    def flush(self) -> None:
        """Write it now."""
        if self._gathered:
            data = self._gathered[0] if len(self._gathered) == 1 else b"".join(self._gathered)
            self._gathered = []
            self._size = 0
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

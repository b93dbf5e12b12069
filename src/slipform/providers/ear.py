"""One socket on one event loop, which watches it for as long as both live.

To ask the loop to watch and to stop for every exchange costs as much as the rest of what the network needs. And who
watches a connection at rest hears at once that its server hung up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Protocol

RECEIVE = 1 << 16


class Listener(Protocol):
    """Who is told of what arrives."""

    def arrived(self, data: bytes) -> bool:
        """Bytes, or none at the connection's end; tells whether more of them are expected."""
        ...

    def failed(self, error: OSError) -> None:
        """The connection broke."""
        ...


class Ear:
    """Hears what arrives at a socket; `close` closes both."""

    __slots__ = ("_listener", "_number", "_receive", "_send", "_socket", "_watched", "loop")

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._socket = sock
        # The number, not the socket: uvloop keeps a socket open that it watches, also after the loop is closed.
        self._number = sock.fileno()
        self._receive = sock.recv
        self._send = sock.send
        self._watched = False
        self._listener: Listener | None = None

    def listen(self, listener: Listener | None) -> None:
        """From now on this one is told; None puts the connection at rest, and what arrives then ends it."""
        self._listener = listener
        if not self._watched:
            self._watched = True
            self.loop.add_reader(self._number, self._readable)

    def pause(self) -> None:
        """Read nothing until `listen` is called again, so that the server has to wait."""
        if self._watched:
            self._watched = False
            if not self.loop.is_closed():
                self.loop.remove_reader(self._number)

    def send(self, data: bytes) -> int:
        """Send what can be sent without waiting, and tell how much that was."""
        try:
            return self._send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def writable(self) -> asyncio.Future[None]:
        """To be awaited: done when more can be sent, then `written` is to be called."""
        waiting: asyncio.Future[None] = self.loop.create_future()
        self.loop.add_writer(self._number, _tell, waiting)
        return waiting

    def written(self) -> None:
        """Nobody waits to send any longer."""
        self.loop.remove_writer(self._number)

    def close(self) -> None:
        """Watch no more, and close; from any thread."""
        if self._watched and self.loop.is_running() and not _is_running_here(self.loop):
            with contextlib.suppress(RuntimeError):  # it was closed just now
                self.loop.call_soon_threadsafe(self._close)
                return
        self._close()

    def _close(self) -> None:
        self.pause()
        self._listener = None  # which holds this ear in turn
        self._socket.close()

    def _readable(self) -> None:
        listener = self._listener
        if listener is None:
            self._close()
            return
        try:
            data = self._receive(RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.pause()
            listener.failed(error)
            return
        if not data:
            self.pause()
        # uvloop tells of a broken connection once and then watches no more, while there was still data to read.
        if listener.arrived(data) and (number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)):
            self.pause()
            listener.failed(OSError(number, os.strerror(number)))


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _tell(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)

"""Sending and receiving on one socket from an event loop, cheaply for answers that come in many pieces.

The event loop is asked to watch the socket once, not for every piece, and one timer serves all waits. While nobody
waits nothing is read, so that a slow reader slows the server down.
"""

from __future__ import annotations

import asyncio
import os
import socket

_RECEIVE = 1 << 16


class Ear:
    """One socket, for as long as one exchange lasts; `stop` it before the socket is closed or given away."""

    __slots__ = ("_broken", "_ends", "_listening", "_loop", "_socket", "_timer", "_waiter")

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._waiter: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends = 0.0
        self._listening = False
        self._broken: OSError | None = None

    async def send(self, data: bytes, seconds: float | None) -> None:
        """Send it all; `TimeoutError` when that takes too long."""
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent < len(data):
            self.stop()  # a socket is watched for one thing at a time
            async with asyncio.timeout(seconds):
                await self._loop.sock_sendall(self._socket, data[sent:])

    async def receive(self, seconds: float | None) -> bytes:
        """What arrives next, nothing at the end; `TimeoutError` when that takes too long."""
        if self._broken is not None:
            raise self._broken
        if not self._listening:
            try:
                return self._socket.recv(_RECEIVE)
            except (BlockingIOError, InterruptedError):
                self._loop.add_reader(self._socket, self._readable)
                self._listening = True
        if seconds is not None:
            self._ends = self._loop.time() + seconds
            if self._timer is None or self._timer.when() > self._ends:
                self._set_timer(seconds)
        self._waiter = waiter = self._loop.create_future()
        try:
            data: bytes = await waiter
            return data
        finally:
            self._waiter = None

    def stop(self) -> None:
        """Watch no more."""
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._late)

    def _readable(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._listening = False
            self._loop.remove_reader(self._socket)
            return
        try:
            data = self._socket.recv(_RECEIVE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            waiter.set_exception(error)
        else:
            # uvloop tells of a broken connection once and then watches no more, while there was still data to read.
            if number := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._broken = OSError(number, os.strerror(number))
            waiter.set_result(data)

    def _late(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        left = self._ends - self._loop.time()
        if left <= 0:
            waiter.set_exception(TimeoutError())
        else:
            self._set_timer(left)

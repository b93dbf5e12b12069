"""Sending and receiving on one socket from an event loop, cheaply for answers that come in many pieces.

The event loop is asked to watch the socket once, not for every piece, and one timer serves all waits. While nobody
waits nothing is read, so that a slow reader slows the server down.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TypeAlias

_RECEIVE = 1 << 16
_LATE_ENOUGH = 0.005
"""How much too late a timer may be, in seconds: event loops round the time, and that must not cost a timer per wait."""
Take: TypeAlias = Callable[[bytes], bool]
Left: TypeAlias = Callable[[float], float | None]


class Ear:
    """One socket, for as long as one exchange lasts; `stop` it before the socket is closed or given away."""

    __slots__ = ("_broken", "_ends", "_heard", "_left", "_listening", "_loop", "_socket", "_take", "_timer", "_waiter")

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._waiter: asyncio.Future[bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ends = 0.0
        self._listening = False
        self._broken: OSError | None = None
        self._take: Take | None = None
        self._left: Left | None = None
        self._heard = 0.0

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
        data = self._at_hand()
        return await self._arrival(seconds) if data is None else data

    async def follow(self, take: Take, left: Left) -> None:
        """Hand what arrives to `take`, until that answers False; `left` tells how much longer a wait may last.

        `take` is called where the event loop says that there is something to read. To wake whoever waits for every
        piece of an answer that comes in many costs more than most of what is done with it.
        """
        while (data := self._at_hand()) is not None:
            if not take(data):
                return
        self._take, self._left, self._heard = take, left, self._loop.time()
        try:
            await self._arrival(left(0.0))
        finally:
            self._take = self._left = None

    def _at_hand(self) -> bytes | None:
        """What can be read without waiting; None when there is nothing, and from then on the socket is watched."""
        if self._broken is not None:
            raise self._broken
        if not self._listening:
            try:
                return self._socket.recv(_RECEIVE)
            except (BlockingIOError, InterruptedError):
                self._loop.add_reader(self._socket, self._readable)
                self._listening = True
        return None

    async def _arrival(self, seconds: float | None) -> bytes:
        if seconds is not None:
            self._ends = self._loop.time() + seconds
            if self._timer is None or self._timer.when() > self._ends + _LATE_ENOUGH:
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
            self._arrived(data, waiter)

    def _arrived(self, data: bytes, waiter: asyncio.Future[bytes]) -> None:
        if self._take is None:
            waiter.set_result(data)
            return
        self._heard = self._loop.time()
        try:
            further = self._take(data)
        except Exception as error:  # noqa: BLE001 — whoever waits is told of it
            waiter.set_exception(error)
            return
        if not further:
            waiter.set_result(b"")
        elif self._broken is not None:
            waiter.set_exception(self._broken)

    def _late(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        try:
            left = self._ends - self._loop.time() if self._left is None else self._left(self._loop.time() - self._heard)
        except TimeoutError:
            left = 0.0
        if left is None:
            return
        if left <= 0:
            waiter.set_exception(TimeoutError())
        else:
            self._set_timer(left)

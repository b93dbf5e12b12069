"""One request and its answer on an event loop: sent at once, read where it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from slipform.providers.ear import RECEIVE
from slipform.providers.http1 import ProtocolError
from slipform.providers.limits import Limits
from slipform.providers.looped import Heard, Looped
from slipform.providers.transport import HttpRequest, Limit

Take: TypeAlias = Callable[[bytes], bool]


class AsyncSocketStream:
    """An answer being read, on an event loop.

    What arrives while nobody reads is kept, up to one reception's worth; then the server has to wait.
    """

    __slots__ = (
        "_broken", "_connection", "_ear", "_heard", "_limit", "_limits", "_link", "_looped", "_open", "_take",
        "_unread", "_waiter",
    )  # fmt: skip

    def __init__(self, heard: Heard, looped: Looped, limits: Limits) -> None:
        self._connection = heard
        self._link = heard.link
        self._ear = heard.ear
        self._looped = looped
        self._limits = limits
        self._limit: Limit = "first_byte"
        self._open = True
        self._waiter: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._heard = 0.0
        """Since when there has been nothing."""
        self._unread = 0
        self._broken: Exception | None = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._link.reader.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""
        return self._link.reader.headers

    async def ask(self, request: HttpRequest, target: str) -> None:
        """Send the request, and wait for the head of its answer."""
        link, limits = self._link, self._limits
        limits.sending()
        try:
            data = link.ask(request, target)
            self._ear.listen(self)
            self._looped.watch.enter(self)
            sent = self._ear.send(data)
            if sent < len(data):
                async with asyncio.timeout(limits.left("first_byte")):
                    await self._ear.send_all(data[sent:])
            link.asked = True
            reader = link.reader
            while not reader.has_head:
                await self._arrival()
        except BaseException as error:
            self._stop()
            limits.translate(error, "head" if link.asked else "send", "first_byte")
            raise

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        if not self._open:
            return b""
        reader = self._link.reader
        try:
            while (data := reader.take()) is None:
                await self._arrival()
        except BaseException as error:
            self._stop()
            self._limits.translate(error, "body", self._limit)
            raise
        self._noted(data)
        return data

    async def each(self, take: Take) -> None:
        """Hand what arrives of the body to `take` at once, nothing at its end, until that answers False.

        `take` is called where the event loop says that there is something to read. To wake whoever waits for every
        piece of an answer that comes in many costs more than most of what is done with it.
        """
        try:
            if self._hand_on(take):
                self._take = take
                try:
                    await self._arrival()
                finally:
                    self._take = None
        except BaseException as error:
            self._stop()
            self._limits.translate(error, "body", self._limit)
            raise

    async def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        self._stop()

    def arrived(self, data: bytes) -> bool:
        """Bytes of the answer, none at the connection's end; tells whether more are expected."""
        link, waiter = self._link, self._waiter
        try:
            if link.take_in(data) and link.owes:
                self._answer_tls()
            if self._take is not None:
                self._heard = self._looped.loop.time()
                if self._hand_on(self._take):
                    return bool(data)
        except Exception as error:  # noqa: BLE001 — whoever waits is told of it
            self._fail(error)
            return False
        if waiter is not None:
            if not waiter.done():
                waiter.set_result(None)
        else:
            self._unread += len(data)
            if self._unread >= RECEIVE:
                self._ear.pause()
        return self._open and bool(data) and not link.reader.done

    def failed(self, error: OSError) -> None:
        """The connection broke."""
        self._fail(error)

    def time_left(self) -> float | None:
        """Seconds that the wait may last yet; None while nobody waits."""
        if self._waiter is None or self._waiter.done():
            return None
        return self._limits.left(self._limit, self._looped.loop.time() - self._heard)

    def late(self) -> None:
        """The wait has lasted too long."""
        self._fail(TimeoutError())

    def _hand_on(self, take: Take) -> bool:
        """Let `take` have what is at hand; whether there may be more to take."""
        reader = self._link.reader
        while (data := reader.take() if self._open else b"") is not None:
            self._noted(data)
            if not take(data) or not data:
                return False
        return True

    def _noted(self, data: bytes) -> None:
        if not data:
            self._settle()
        elif self._limit == "first_byte":  # another time limit counts from now on
            self._limit = "between_chunks"
            self._looped.watch.within(self._limits.left("between_chunks"))

    async def _arrival(self) -> None:
        """Wait until something has arrived."""
        if self._broken is not None:
            raise self._broken
        if self._unread >= RECEIVE:
            self._ear.listen(self)
        self._unread = 0
        looped = self._looped
        self._heard = looped.loop.time()
        looped.watch.within(self._limits.left(self._limit))
        self._waiter = waiter = looped.loop.create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _answer_tls(self) -> None:
        data = self._link.owed()
        if self._ear.send(data) < len(data):
            raise ProtocolError("the server asks in TLS for an answer that it does not take")

    def _fail(self, error: Exception) -> None:
        self._broken = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _settle(self) -> None:
        if not self._open:
            return
        self._open = False
        self._looped.watch.leave(self)
        if self._link.reader.reusable:
            self._ear.listen(None)
            self._looped.pool.give(self._connection)
        else:
            self._connection.close()

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._looped.watch.leave(self)
            self._connection.close()

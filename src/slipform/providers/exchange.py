"""One request and its answer on an event loop: what is done where the answer arrives. Nothing here waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from slipform.providers.ear import RECEIVE
from slipform.providers.http1 import ProtocolError
from slipform.providers.limits import Limits
from slipform.providers.looped import Heard, Looped
from slipform.providers.transport import HttpRequest, Limit

Take: TypeAlias = Callable[[bytes], bool]


class Exchange:
    """Hears a connection, and keeps its time limits, while one answer is read from it.

    What arrives while nobody reads is kept, up to one reception's worth; then the server has to wait.
    """

    __slots__ = (
        "_broken", "_connection", "_heard", "_looped", "_unread", "_waiter", "ear", "limit", "limits", "link", "open",
        "take",
    )  # fmt: skip

    def __init__(self, connection: Heard, looped: Looped, limits: Limits) -> None:
        self._connection = connection
        self._looped = looped
        self.link = connection.link
        self.ear = connection.ear
        self.limits = limits
        self.limit: Limit = "first_byte"
        """The time limit that counts now."""
        self.open = True
        """Whether there is more to read."""
        self.take: Take | None = None
        """What is given the body's bytes where they arrive, until it answers False."""
        self._waiter: asyncio.Future[None] | None = None
        self._heard = 0.0
        """Since when there has been nothing."""
        self._unread = 0
        self._broken: Exception | None = None

    def send(self, request: HttpRequest, target: str) -> bytes:
        """Send what can be sent of a request without waiting; gives the rest."""
        self.limits.sending()
        data = self.link.ask(request, target)
        self.ear.listen(self)
        self._looped.watch.enter(self)
        sent = self.ear.send(data)
        return b"" if sent == len(data) else data[sent:]

    def wait(self) -> asyncio.Future[None]:
        """To be awaited: done when something has arrived that nobody took."""
        if self._broken is not None:
            raise self._broken
        if self._unread >= RECEIVE:
            self.ear.listen(self)
        self._unread = 0
        looped = self._looped
        self._heard = looped.loop.time()
        looped.watch.within(self.limits.left(self.limit))
        self._waiter = waiter = looped.loop.create_future()
        return waiter

    def arrived(self, data: bytes) -> bool:
        """Bytes of the answer, none at the connection's end; tells whether more are expected."""
        link, waiter = self.link, self._waiter
        try:
            if link.take_in(data) and link.owes:
                self._answer_tls()
            if self.take is not None:
                self._heard = self._looped.loop.time()
                if self.hand_on(self.take):
                    return bool(data)
        except Exception as error:  # noqa: BLE001 — whoever waits is told of it
            self._fail(error)
            return False
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        else:
            self._unread += len(data)
            if self._unread >= RECEIVE:
                self.ear.pause()
        return self.open and bool(data) and not link.reader.done

    def failed(self, error: OSError) -> None:
        """The connection broke."""
        self._fail(error)

    def time_left(self) -> float | None:
        """Seconds that the wait may last yet; None while nobody waits."""
        if self._waiter is None or self._waiter.done():
            return None
        return self.limits.left(self.limit, self._looped.loop.time() - self._heard)

    def late(self) -> None:
        """The wait has lasted too long."""
        self._fail(TimeoutError())

    def hand_on(self, take: Take) -> bool:
        """Let `take` have what is at hand of the body; whether there may be more to take."""
        reader = self.link.reader
        while (data := reader.take() if self.open else b"") is not None:
            self.noted(data)
            if not take(data) or not data:
                return False
        return True

    def noted(self, data: bytes) -> None:
        """These bytes of the body are read. After the last the connection rests, if it can be used again."""
        if not data or self.link.reader.spent:
            if self.open:
                self.open = False
                self._looped.watch.leave(self)
                self._settle()
        elif self.limit == "first_byte":  # another time limit counts from now on
            self.limit = "between_chunks"
            self._looped.watch.within(self.limits.left("between_chunks"))

    def stop(self) -> None:
        """Close the connection, unless the body was read to its end."""
        self._broken = self._waiter = None  # with tracebacks that hold this exchange in turn
        if self.open:
            self.open = False
            self._looped.watch.leave(self)
            self._connection.close()

    def _settle(self) -> None:
        if self.link.reader.reusable:
            self.ear.listen(None)
            self._looped.pool.give(self._connection)
        else:
            self._connection.close()

    def _answer_tls(self) -> None:
        data = self.link.owed()
        if self.ear.send(data) < len(data):
            raise ProtocolError("the server asks in TLS for an answer that it does not take")

    def _fail(self, error: Exception) -> None:
        self._broken = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

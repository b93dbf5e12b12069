"""One HTTP/1.1 connection on an event loop, and one request and answer over it. Nothing here makes connections.

A `ClientConnection` is the asyncio protocol: it feeds what arrives to the reader of `http1` and tells the
`ResponseStream` that waits for it. A stream ends with its answer; the connection may then carry another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import cast

from slipform.providers.network.connections import Origin
from slipform.providers.network.http1 import ResponseReader, is_stale
from slipform.providers.network.transport import Deadlines, Limit, Phase, ProtocolError, Push

_READ_AHEAD = 1 << 16
"""Bytes received while nobody reads, after which the server has to wait."""
_TIMER_SLACK = 0.005


class ClientConnection(asyncio.BufferedProtocol):
    """One connection to a server, made by `connect`. It carries one exchange at a time and rests in between.

    Buffered, so that one read takes 64 KB at most: uvloop would read 256 KB, and a caller who does not read the
    answer would cost a megabyte.
    """

    __slots__ = (
        "_buffer", "_ended", "_timer", "_timer_at", "_transport", "is_sending", "loop", "origin", "reader", "stream",
    )  # fmt: skip

    def __init__(self, origin: Origin, reader: ResponseReader, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.reader = reader
        self.stream: ResponseStream | None = None
        """Who waits for an answer; None at rest."""
        self.is_sending = False
        """Whether part of the request has not been handed to the system."""
        self.loop = loop
        self._transport: asyncio.Transport | None = None
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._buffer = memoryview(bytearray(_READ_AHEAD))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called again for the transport of TLS in a tunnel, by `connect`."""
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's are none by their class
        # So low that `pause_writing` says whether anything is unsent. (With 0, asyncio's TLS would pause for ever.)
        stream.set_write_buffer_limits(high=1, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 — the loop suggests more than is wanted
        """Where the event loop puts what it reads."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Feed what arrived to the reader, and tell whoever waits. At rest nothing may arrive."""
        stream = self.stream
        if stream is None:
            self.close()
            return
        try:
            self.reader.feed(self._buffer[:nbytes])
        except ProtocolError as error:
            stream.fail(error)
        else:
            stream.received(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection broke, or ended, which for some answers is their end."""
        self._ended = True
        self._stop_timer()
        stream, self.stream = self.stream, None
        if stream is None:
            return
        try:
            if isinstance(exc, OSError):
                raise exc
            self.reader.feed_eof()
        except (OSError, ProtocolError) as error:
            stream.fail(error)
        else:
            stream.received(0)

    def pause_writing(self) -> None:
        """Something waits to be sent."""
        self.is_sending = True

    def resume_writing(self) -> None:
        """All is sent."""
        self.is_sending = False

    def write(self, data: bytes) -> None:
        """Send, now or as soon as the server takes it."""
        if self._transport is None or self._ended or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)

    def hold_back(self) -> None:
        """Read nothing until `let_come`, so that the server has to wait."""
        if self._transport is not None and not self._ended:
            self._transport.pause_reading()

    def let_come(self) -> None:
        """Read again."""
        if self._transport is not None and not self._ended:
            self._transport.resume_reading()

    def ring_within(self, seconds: float | None) -> None:
        """Ask the stream for the time in so many seconds, or earlier.

        The timer stays when an answer is over, since nearly always the next one ends before it, too: to set one for
        each answer costs more than most of what is done for it.
        """
        if seconds is None:
            return
        at = self.loop.time() + seconds
        if self._timer is None or at < self._timer_at - _TIMER_SLACK:
            self._stop_timer()
            self._timer_at = at
            self._timer = self.loop.call_at(at, self._ring)

    def is_usable(self) -> bool:
        """Whether it is open, as far as the event loop has heard."""
        return self._transport is not None and not self._ended and not self._transport.is_closing()

    def close(self) -> None:
        """Close at once, without a farewell that might have to wait for the server."""
        self.stream = None
        self._stop_timer()
        if self._transport is not None and not self.loop.is_closed():
            self._transport.abort()

    def _ring(self) -> None:
        self._timer = None
        if self.stream is not None:
            self.stream.check_time()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ResponseStream:
    """One request and its answer on an event loop; `send` comes first."""

    __slots__ = (
        "_connection", "_deadlines", "_error", "_is_held_back", "_limit", "_loop", "_open", "_push", "_reader",
        "_release", "_unread", "_waiter", "_waiting_since", "headers", "status",
    )  # fmt: skip

    def __init__(
        self, connection: ClientConnection, release: Callable[[ClientConnection], None], deadlines: Deadlines
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._connection = connection
        self._release = release
        """Called when the answer has been read to its end."""
        self._loop = connection.loop
        self._reader = connection.reader
        self._deadlines = deadlines
        self._limit: Limit = "first_byte"
        """The time limit that runs now."""
        self._open = True
        """Whether there is more to read."""
        self._push: Push | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._unread = 0
        self._is_held_back = False
        self._error: Exception | None = None

    async def send(self, data: bytes, *, reused: bool) -> bool:
        """Send the request and wait for the head of its answer.

        False, with nothing else done, when a reused connection turned out to be one that its server had given up: it
        broke at once and before any byte of an answer, so that the request may be sent again.
        """
        connection, reader = self._connection, self._reader
        sent_at = time.monotonic()
        try:
            connection.stream = self
            reader.begin()
            self._deadlines.request_sent()
            connection.write(data)
            while not reader.has_head:
                await self._wait()
        except (OSError, ProtocolError) as error:
            phase: Phase = "send" if connection.is_sending else "head"
            self._stop()
            if reused and is_stale(error, reader, time.monotonic() - sent_at):
                return False
            raise self._deadlines.fault(error, phase, "first_byte") from error
        except BaseException:
            self._stop()
            raise
        self.status, self.headers = reader.status, reader.headers
        return True

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        if not self._open:
            return b""
        try:
            if self._reader.has_backlog:
                await asyncio.sleep(0)  # decompressing goes by slices, and others have their turn in between
            while (data := self._reader.take()) is None:
                await self._wait()
        except (OSError, ProtocolError) as error:
            self._stop()
            raise self._deadlines.fault(error, "body", self._limit) from error
        except BaseException:
            self._stop()
            raise
        self._note(data)
        return data

    async def on_body(self, push: Push) -> None:
        """Call `push` with what arrives, where it arrives, until it returns False.

        To wake the task that waits, for every piece of an answer that comes in many, costs more than most of what is
        done with it.
        """
        try:
            if self._deliver(push):
                self._push = push
                try:
                    await self._wait()
                finally:
                    self._push = None
        except (OSError, ProtocolError) as error:
            self._stop()
            raise self._deadlines.fault(error, "body", self._limit) from error
        except BaseException:
            self._stop()
            raise

    async def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        self._stop()

    # What the connection calls. Nothing here waits.

    def received(self, size: int) -> None:
        """The reader was fed so many bytes, none at the end of the connection."""
        if self._push is not None:
            self._waiting_since = self._loop.time()
            try:
                if self._deliver(self._push):
                    return
                self._push = None  # more may arrive before whoever waits has gone on
            except Exception as error:  # noqa: BLE001 — it is raised where the answer is waited for
                self.fail(error)
                return
        elif not self._reader.has_head:
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
            return
        self._unread += size
        if self._unread >= _READ_AHEAD:
            self._hold_back()

    def fail(self, error: Exception) -> None:
        """Raise this where the answer is waited for, now or the next time."""
        self._error = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def check_time(self) -> None:
        """A time limit may have run out."""
        if self._waiter is None or self._waiter.done():
            return  # whoever waits next sets the timer anew
        try:
            waited = self._loop.time() - self._waiting_since
            self._connection.ring_within(self._deadlines.left(self._limit, waited))
        except TimeoutError as error:
            self.fail(error)

    async def _wait(self) -> None:
        """Until something has arrived that was not pushed."""
        if self._error is not None:
            raise self._error
        self._unread = 0
        if not self._reader.has_backlog:
            self._let_come()
        self._waiting_since = self._loop.time()
        self._connection.ring_within(self._deadlines.left(self._limit))
        self._waiter = self._loop.create_future()
        await self._waiter

    def _deliver(self, push: Push) -> bool:
        """Push what is at hand of the body; whether more is wanted, and may come."""
        reader = self._reader
        while (data := reader.take() if self._open else b"") is not None:
            self._note(data)
            if not push(data) or not data:
                return False
            if reader.has_backlog:  # decompressing goes by slices, and others have their turn in between
                self._hold_back()
                self._loop.call_soon(self.received, 0)
                return True
        self._let_come()
        return True

    def _hold_back(self) -> None:
        if self._open and not self._is_held_back:  # after its end the connection may be another answer's
            self._is_held_back = True
            self._connection.hold_back()

    def _let_come(self) -> None:
        if self._is_held_back:
            self._is_held_back = False
            self._connection.let_come()

    def _note(self, data: bytes) -> None:
        """These bytes of the body are read. After the last the connection is free."""
        if not data or self._reader.spent:
            if self._open:
                self._open = False
                self._let_come()  # a connection that is held back would never hear the answer to its next request
                self._release(self._connection)
        elif self._limit == "first_byte":
            self._limit = "between_chunks"
            self._connection.ring_within(self._deadlines.left("between_chunks"))

    def _stop(self) -> None:
        self._error = self._waiter = None  # with tracebacks that hold this stream in turn
        if self._open:
            self._open = False
            self._connection.close()

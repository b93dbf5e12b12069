"""Exchange requests and responses over one HTTP/1.1 connection of an event loop; `client` opens connections.

A `ClientConnection` is the asyncio protocol: it feeds what arrives to the reader of `http1` and notifies the
`ResponseStream` that waits for it. A stream ends with its response; the connection may then carry another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final, cast
from weakref import WeakKeyDictionary

from slipform.providers.network.connections import Origin
from slipform.providers.network.http1 import ResponseReader, is_stale
from slipform.providers.network.transport import Deadlines, Limit, Phase, ProtocolError, Push, Upload

_READ_AHEAD = 1 << 16
"""Bytes received but not yet read, at which reading from the socket pauses."""
_TLS_RECORD = 1 << 14
"""The most decrypted bytes that a TLS layer may hold in addition to those it reports."""
_TIMER_SLACK = 0.005
_READ_BUFFERS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview]] = WeakKeyDictionary()
"""One buffer for all connections of a loop: each read is parsed before the next read begins."""


class ClientConnection(asyncio.BufferedProtocol):
    """One connection to a server, opened by `client.connect`, for one exchange at a time.

    Buffered, so that one read takes 64 KB at most: uvloop would read 256 KB, and a caller who does not read the
    response would cost a megabyte. Under TLS, a buffer too small for all decrypted bytes would lose the rest when the
    server closes: both event loops then drop what they have not delivered.
    """

    __slots__ = (
        "_buffer", "_drained", "_is_lost", "_is_tls", "_read_buffer", "_timer", "_timer_due", "_transport",
        "is_sending", "loop", "origin", "reader", "stream",
    )  # fmt: skip

    def __init__(self, origin: Origin, reader: ResponseReader, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.reader = reader
        self.stream: ResponseStream | None = None
        """The exchange that waits for a response; None if idle."""
        self.is_sending = False
        """Whether part of the request has not been written to the socket yet."""
        self.loop = loop
        self._transport: asyncio.Transport | None = None
        self._is_lost = False
        self._drained: asyncio.Future[None] | None = None
        """A writer waits for this future while the server accepts no more data."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._buffer = _READ_BUFFERS.setdefault(loop, memoryview(bytearray(_READ_AHEAD)))
        self._read_buffer = self._buffer
        """The buffer of the current read."""
        self._is_tls = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; `connect` calls this again for the TLS transport inside a tunnel."""
        self._transport = stream = cast("asyncio.Transport", transport)  # uvloop's transports are not subclasses
        # So low that `pause_writing` reports any unsent byte. (With 0, asyncio's TLS would pause for ever.)
        stream.set_write_buffer_limits(high=1, low=0)
        self._is_tls = stream.get_extra_info("ssl_object") is not None

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the event loop's next read; under TLS `sizehint` bytes wait to be decrypted."""
        fits = not self._is_tls or sizehint + _TLS_RECORD <= _READ_AHEAD
        self._read_buffer = self._buffer if fits else memoryview(bytearray(sizehint + _TLS_RECORD))
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes and notify the stream; an idle connection that receives any is closed."""
        stream = self.stream
        if stream is None:
            self.close()
            return
        try:
            self.reader.feed(self._read_buffer[:nbytes])
        except ProtocolError as error:
            stream.fail(error)
        else:
            if self._drained is not None:
                self._wake_writer()
            stream.on_data(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection, which also ends responses without a length."""
        self._is_lost = True
        self._wake_writer()
        self._stop_timer()
        stream = self.stream
        self.stream = None
        if stream is None:
            return
        try:
            if isinstance(exc, OSError):
                raise exc
            self.reader.feed_eof()
        except (OSError, ProtocolError) as error:
            stream.fail(error)
        else:
            stream.on_data(0)

    def pause_writing(self) -> None:
        """Remember that bytes wait to be sent."""
        self.is_sending = True

    def resume_writing(self) -> None:
        """Remember that all bytes are sent."""
        self.is_sending = False
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def drain(self, seconds: float | None) -> None:
        """Wait until all bytes are sent, the server answers or the connection is closed; raises `TimeoutError`.

        A server that answers before it has read everything may never read the rest.
        """
        while self.is_sending and not self._is_lost and not self.reader.has_head:
            self._drained = self.loop.create_future()
            async with asyncio.timeout(seconds):
                await self._drained

    def write(self, data: bytes) -> None:
        """Send, now or as soon as the socket accepts it; raises `ConnectionResetError` when closed."""
        if self._transport is None or self._is_lost or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._transport.write(data)

    def pause_reading(self) -> None:
        """Stop reading from the socket until `resume_reading`."""
        if self._transport is not None and not self._is_lost:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self._transport is not None and not self._is_lost:
            self._transport.resume_reading()

    def check_time_within(self, seconds: float | None) -> None:
        """Call the stream's `check_time` within this many seconds.

        The timer outlives a response, because the next response usually ends before it, too: setting one for each
        response would cost more than most of the work for it.
        """
        if seconds is None:
            return
        due = self.loop.time() + seconds
        if self._timer is None or due < self._timer_due - _TIMER_SLACK:
            self._stop_timer()
            self._timer_due = due
            self._timer = self.loop.call_at(due, self._on_timer)

    def is_usable(self) -> bool:
        """Return whether it is open, as far as the event loop knows."""
        return self._transport is not None and not self._is_lost and not self._transport.is_closing()

    def close(self) -> None:
        """Close at once, without a TLS goodbye that might wait for the server."""
        self.stream = None
        self._stop_timer()
        if self._transport is not None and not self.loop.is_closed():
            self._transport.abort()

    def _on_timer(self) -> None:
        self._timer = None
        if self.stream is not None:
            self.stream.check_time()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ResponseStream:
    """One request and its response on an event loop; `send` comes first."""

    __slots__ = (
        "_connection", "_deadlines", "_error", "_is_paused", "_limit", "_loop", "_max_bytes", "_open", "_push",
        "_reader", "_release", "_unread", "_waiter", "_waiting_since", "headers", "status",
    )  # fmt: skip

    def __init__(
        self,
        connection: ClientConnection,
        release: Callable[[ClientConnection], None],
        deadlines: Deadlines,
        max_bytes: int | None = None,
    ) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._connection = connection
        self._release = release
        """Called when the response has been read to its end."""
        self._loop = connection.loop
        self._reader = connection.reader
        self._deadlines = deadlines
        self._max_bytes = max_bytes
        self._limit: Limit = "first_byte"
        """The time limit in effect."""
        self._open = True
        """Whether there is more to read."""
        self._push: Push | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._waiting_since = 0.0
        self._unread = 0
        self._is_paused = False
        self._error: Exception | None = None

    async def send(self, data: bytes, *, reused: bool, upload: Upload | None = None) -> bool:
        """Send the request and wait for the head of its response; raises `TransportFault` and errors of an upload.

        Returns False if a reused connection turns out to be stale (see `is_stale`): the request may be sent again.
        """
        connection = self._connection
        reader = self._reader
        sent_at = time.monotonic()
        try:
            connection.stream = self
            reader.begin(self._max_bytes)
            self._deadlines.request_sent()
            connection.write(data)
            if upload is not None:
                await self._send_upload(upload)
            while not reader.has_head:
                await self._next_data()
        except (OSError, ProtocolError) as error:
            phase: Phase = "send" if connection.is_sending else "head"
            self._stop()
            if reused and is_stale(error, reader, time.monotonic() - sent_at):
                return False
            raise self._deadlines.fault(error, phase, "first_byte") from error
        except BaseException:
            self._stop()
            raise
        self.status = reader.status
        self.headers = reader.headers
        return True

    async def _send_upload(self, upload: Upload) -> None:
        """Send the pieces one by one, until the server answers."""
        connection = self._connection
        reader = self._reader
        is_chunked = upload.length is None
        async for piece in upload.pieces:
            if self._error is not None and not reader.has_head:
                raise self._error
            if piece and not reader.has_head:
                connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                await connection.drain(self._deadlines.remaining("between_chunks"))
            if reader.has_head:
                reader.end_after()
                return
        if is_chunked:
            connection.write(b"0\r\n\r\n")
        self._deadlines.request_sent()

    async def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises `TransportFault`."""
        if not self._open:
            return b""
        try:
            if self._reader.has_backlog:
                await asyncio.sleep(0)  # decompression proceeds in slices, with other tasks in between
            while (data := self._reader.take()) is None:
                await self._next_data()
        except (OSError, ProtocolError) as error:
            self._stop()
            raise self._deadlines.fault(error, "body", self._limit) from error
        except BaseException:
            self._stop()
            raise
        self._body_read(data)
        return data

    def take_whole(self) -> bytes | None:
        """Return the whole body if it arrived together with its head, as small ones do; else None: use `read`.

        Raises like `read`.
        """
        if not self._open:
            return None
        try:
            data = self._reader.take_whole()
        except ProtocolError as error:
            self._stop()
            raise self._deadlines.fault(error, "body", self._limit) from error
        if data is not None:
            self._body_read(b"")
        return data

    async def on_body(self, push: Push) -> None:
        """Call `push` with arriving bytes, inside data_received, until it returns False; raises like `read`.

        Waking a task for every chunk of a long stream would cost more than most of the work on it.
        """
        try:
            if self._deliver(push):
                self._push = push
                try:
                    await self._next_data()
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

    # Called by the connection, from callbacks of the event loop.

    def on_data(self, size: int) -> None:
        """Handle this many bytes that the reader was fed, 0 at the end of the connection."""
        if self._push is not None:
            self._waiting_since = self._loop.time()
            try:
                if self._deliver(self._push):
                    return
                self._push = None  # more may arrive before the waiting task runs
            except Exception as error:  # noqa: BLE001 — raised in the task that waits for the response
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
            self._pause()

    def fail(self, error: Exception) -> None:
        """Raise this in the task that waits for the response, now or at its next wait."""
        self._error = error
        self._push = None  # bytes that arrive before that task runs must not reach a reader that has failed
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def check_time(self) -> None:
        """Fail with a timeout if a limit has expired, else set the timer again."""
        if self._waiter is None or self._waiter.done():
            return  # the next wait sets the timer
        try:
            waited = self._loop.time() - self._waiting_since
            self._connection.check_time_within(self._deadlines.remaining(self._limit, waited))
        except TimeoutError as error:
            self.fail(error)

    def _next_data(self) -> asyncio.Future[None]:
        """Return a future that is done when unpushed data has arrived."""
        if self._error is not None:
            raise self._error
        self._unread = 0
        if self._is_paused and not self._reader.has_backlog:
            self._resume()
        self._waiting_since = self._loop.time()
        self._connection.check_time_within(self._deadlines.remaining(self._limit))
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _deliver(self, push: Push) -> bool:
        """Push the bytes of the body received so far; return whether more are wanted and may arrive."""
        reader = self._reader
        while (data := reader.take() if self._open else b"") is not None:
            if reader.done or not data or self._limit == "first_byte":
                self._body_read(data)
            if not push(data) or not data:
                return False
            if reader.is_drained:
                break
            if reader.has_backlog:  # decompression proceeds in slices, with other tasks in between
                self._pause()
                self._loop.call_soon(self.on_data, 0)
                return True
        if self._is_paused:
            self._resume()
        return True

    def _pause(self) -> None:
        if self._open and not self._is_paused:  # after the end the connection may carry another response
            self._is_paused = True
            self._connection.pause_reading()

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_reading()

    def _body_read(self, data: bytes) -> None:
        """Handle bytes of the body that were read: after the last, release the connection."""
        if not data or self._reader.fully_read:
            if self._open:
                self._open = False
                if self._is_paused:
                    self._resume()  # a paused connection would never receive the response to its next request
                self._release(self._connection)
        elif self._limit == "first_byte":
            self._limit = "between_chunks"
            self._connection.check_time_within(self._deadlines.remaining("between_chunks"))

    def _stop(self) -> None:
        self._error = self._waiter = None  # their tracebacks refer to this stream
        if self._open:
            self._open = False
            self._connection.close()

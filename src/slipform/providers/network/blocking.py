"""Send requests from threads: the blocking twin of `client`.

Encoder, parser, limits and connection rules are the same; only the waiting differs. Sockets never block by themselves:
a socket's own timeout applies to each system call, not to the whole wait.
"""

from __future__ import annotations

import os
import select
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from slipform.providers.network.connections import (
    ADDRESS_DELAY,
    AddressInfo,
    IdleConnections,
    Origin,
    TlsContext,
    addresses,
    tune,
)
from slipform.providers.network.http1 import ResponseReader, check_tunnel, encode_connect, is_stale
from slipform.providers.network.transport import Deadlines, Limit, Phase, ProtocolError

_RECEIVE_BYTES = 1 << 16
_HAS_POLL = hasattr(select, "poll")


class BlockingClient:
    """Sends requests over connections that all threads share; owned by an `HttpTransport`."""

    def __init__(self, tls: TlsContext, max_answer_bytes: int, per_origin: int) -> None:
        self._tls = tls
        self._max_answer_bytes = max_answer_bytes
        self._idle: IdleConnections[BlockingConnection] = IdleConnections(per_origin)

    def open(self, origin: Origin, data: bytes, deadlines: Deadlines) -> BlockingStream:
        """Send a request and wait for the head of its response; raises `TransportFault`."""
        connection = self._idle.take(origin)
        if connection is not None:
            sent_at = time.monotonic()
            try:
                return self._exchange(connection, data, deadlines)
            except _ExchangeFailed as failed:
                if not is_stale(failed.error, connection.reader, time.monotonic() - sent_at):
                    raise deadlines.fault(failed.error, failed.phase, "first_byte") from failed.error
        self._idle.sweep()
        try:
            connection = connect(origin, self._tls, deadlines.deadline("connect"), self._max_answer_bytes)
        except (OSError, ProtocolError) as error:
            raise deadlines.fault(error, "connect", "connect") from error
        try:
            return self._exchange(connection, data, deadlines)
        except _ExchangeFailed as failed:
            raise deadlines.fault(failed.error, failed.phase, "first_byte") from failed.error

    def close(self) -> None:
        """Close idle connections; those in use close when their response ends."""
        self._idle.close()

    def _exchange(self, connection: BlockingConnection, data: bytes, deadlines: Deadlines) -> BlockingStream:
        phase: Phase = "send"
        try:
            deadlines.request_sent()
            deadline = deadlines.deadline("first_byte")
            connection.reader.begin()
            connection.channel.send(data, deadline)
            phase = "head"
            while not connection.reader.has_head:
                connection.receive(deadline)
        except (OSError, ProtocolError) as error:
            connection.close()
            raise _ExchangeFailed(error, phase) from error
        except BaseException:
            connection.close()
            raise
        return BlockingStream(connection, self._idle, deadlines)


class _ExchangeFailed(Exception):  # noqa: N818 — it never leaves this module
    """An exchange failed in this phase."""

    def __init__(self, error: OSError | ProtocolError, phase: Phase) -> None:
        super().__init__(error)
        self.error = error
        self.phase = phase


class BlockingStream:
    """A response being read by a thread."""

    __slots__ = ("_connection", "_deadlines", "_idle", "_limit", "_open", "headers", "status")

    def __init__(
        self, connection: BlockingConnection, idle: IdleConnections[BlockingConnection], deadlines: Deadlines
    ) -> None:
        self.status = connection.reader.status
        self.headers: Mapping[str, str] = connection.reader.headers
        self._connection = connection
        self._idle = idle
        self._deadlines = deadlines
        self._limit: Limit = "first_byte"
        self._open = True

    def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises `TransportFault`."""
        if not self._open:
            return b""
        reader = self._connection.reader
        try:
            data = reader.take()
            if data is None:
                deadline = self._deadlines.deadline(self._limit)
                while data is None:
                    self._connection.receive(deadline)
                    data = reader.take()
        except (OSError, ProtocolError) as error:
            self.close()
            raise self._deadlines.fault(error, "body", self._limit) from error
        except BaseException:
            self.close()
            raise
        if not data or reader.fully_read:
            self._open = False
            self._release()
        self._limit = "between_chunks"
        return data

    def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        if self._open:
            self._open = False
            self._connection.close()

    def _release(self) -> None:
        connection = self._connection
        seconds = self._connection.reader.idle_seconds
        if seconds > 0:
            self._idle.release(connection.origin, connection, seconds)
        else:
            connection.close()


class BlockingConnection:
    """One connection to a server: its channel, and the parser of its responses."""

    __slots__ = ("channel", "origin", "reader")

    def __init__(self, origin: Origin, channel: ByteChannel, reader: ResponseReader) -> None:
        self.origin = origin
        self.channel = channel
        self.reader = reader

    def receive(self, deadline: float | None) -> None:
        """Wait for bytes until `deadline`, and feed them to the reader."""
        data = self.channel.receive(deadline)
        if data:
            self.reader.feed(data)
        else:
            self.reader.feed_eof()

    def is_usable(self) -> bool:
        """Return whether it is open and nothing has arrived on it."""
        return self.channel.is_quiet()

    def close(self) -> None:
        """Close it; harmless when repeated."""
        self.channel.close()


class ByteChannel(Protocol):
    """A byte stream in both directions. Calls raise `TimeoutError` at `deadline`, a time of the monotonic clock."""

    def send(self, data: bytes, deadline: float | None) -> None:
        """Send all of it."""

    def receive(self, deadline: float | None) -> bytes:
        """Return the next bytes; empty when the other side has closed."""
        ...

    def is_quiet(self) -> bool:
        """Return whether nothing has arrived, not even the end."""
        ...

    def close(self) -> None:
        """Close it; harmless when repeated."""


class _QuietSocket(socket.socket):
    """A socket without Python's warning when its transport is dropped unclosed."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


class SocketChannel:
    """A connected socket."""

    __slots__ = ("_poll_read", "_poll_write", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = _QuietSocket(fileno=sock.detach())
        tune(self._socket)
        self._poll_read = _poller(self._socket, writing=False)
        self._poll_write = _poller(self._socket, writing=True)

    def send(self, data: bytes, deadline: float | None) -> None:
        """Send all of it."""
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                self._wait(deadline, writing=True)

    def receive(self, deadline: float | None) -> bytes:
        """Return the next bytes; empty when the other side has closed."""
        while True:
            self._wait(deadline)
            try:
                return self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:  # a spurious wake-up
                continue

    def is_quiet(self) -> bool:
        """Return whether nothing has arrived."""
        return self._socket.fileno() >= 0 and not self._is_ready(0, writing=False)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _wait(self, deadline: float | None, *, writing: bool = False) -> None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if (remaining is not None and remaining <= 0) or not self._is_ready(remaining, writing=writing):
            raise TimeoutError

    def _is_ready(self, seconds: float | None, *, writing: bool) -> bool:
        return bool((self._poll_write if writing else self._poll_read)(seconds))


def _poller(sock: socket.socket, *, writing: bool) -> Callable[[float | None], Any]:
    """Return a function that waits this many seconds for a socket, and returns a truthy value if it is ready."""
    if not _HAS_POLL:  # Windows
        read_sockets, write_sockets = ([], [sock]) if writing else ([sock], [])
        return lambda seconds: any(select.select(read_sockets, write_sockets, [], seconds))
    poller = select.poll()
    poller.register(sock, select.POLLOUT if writing else select.POLLIN)
    return lambda seconds: poller.poll(None if seconds is None else seconds * 1000)


class TlsChannel:
    """TLS over another channel, which may be a TLS channel too: `ssl.SSLSocket` cannot wrap another one."""

    __slots__ = ("_channel_below", "_incoming", "_outgoing", "_tls")

    def __init__(self, channel_below: ByteChannel, context: ssl.SSLContext, host: str, deadline: float | None) -> None:
        self._channel_below = channel_below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._fill(deadline)
            except ssl.SSLError:
                self._flush(deadline)  # the alert for the server
                raise
            else:
                self._flush(deadline)
                return

    def send(self, data: bytes, deadline: float | None) -> None:
        """Send all of it."""
        self._tls.write(data)
        self._flush(deadline)

    def receive(self, deadline: float | None) -> bytes:
        """Return the next bytes; empty when the other side has closed."""
        while True:
            try:
                return self._tls.read(_RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                self._flush(deadline)
                self._fill(deadline)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def is_quiet(self) -> bool:
        """Return whether nothing has arrived."""
        return self._channel_below.is_quiet() and not self._incoming.pending

    def close(self) -> None:
        """Close it."""
        self._channel_below.close()

    def _flush(self, deadline: float | None) -> None:
        if self._outgoing.pending:
            self._channel_below.send(self._outgoing.read(), deadline)

    def _fill(self, deadline: float | None) -> None:
        data = self._channel_below.receive(deadline)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


def connect(origin: Origin, tls: TlsContext, deadline: float | None, max_answer_bytes: int) -> BlockingConnection:
    """Return a new connection to an origin, through its proxy if it has one, with all handshakes done."""
    channel: ByteChannel = SocketChannel(_connect_socket(addresses(*origin.address), deadline))
    try:
        if origin.first_tls_host is not None:
            channel = TlsChannel(channel, tls(), origin.first_tls_host, deadline)
        if origin.proxy is not None and origin.tunnelled:
            tunnel = BlockingConnection(origin, channel, ResponseReader())
            channel.send(encode_connect(origin.host, origin.port, origin.proxy.authorization), deadline)
            while not tunnel.reader.has_head:
                tunnel.receive(deadline)
            check_tunnel(tunnel.reader)
            channel = TlsChannel(channel, tls(), origin.host, deadline)
    except BaseException:
        channel.close()
        raise
    return BlockingConnection(origin, channel, ResponseReader(max_answer_bytes))


def _connect_socket(infos: list[AddressInfo], deadline: float | None) -> socket.socket:
    """Return a socket connected to the first address that answers.

    The next address is tried when the previous one has failed, or in parallel when it takes long (RFC 8305).
    """
    untried = deque(infos)
    pending: dict[int, socket.socket] = {}
    failure = OSError("the host has no address")
    with selectors.DefaultSelector() as selector:
        try:
            while untried or pending:
                if untried:
                    try:
                        sock = _begin_connect(untried.popleft())
                    except OSError as error:  # the address family is unavailable, or has no route
                        failure = error
                        continue
                    pending[sock.fileno()] = sock
                    selector.register(sock, selectors.EVENT_WRITE)
                for key, _ in selector.select(_select_timeout(deadline, is_last=not untried)):
                    selector.unregister(key.fd)
                    sock = pending.pop(key.fd)
                    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if number == 0:
                        return sock
                    sock.close()
                    failure = OSError(number, os.strerror(number))
        finally:
            for sock in pending.values():
                sock.close()
    raise failure


def _begin_connect(info: AddressInfo) -> socket.socket:
    family, kind, protocol, _, address = info
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    try:
        sock.connect(address)
    except BlockingIOError:
        pass
    except BaseException:
        sock.close()
        raise
    return sock


def _select_timeout(deadline: float | None, *, is_last: bool) -> float | None:
    """Return how long to wait for the addresses in progress; raises `TimeoutError` at the deadline."""
    remaining = None if deadline is None else deadline - time.monotonic()
    if remaining is not None and remaining <= 0:
        raise TimeoutError
    if is_last:
        return remaining
    if remaining is None:
        return ADDRESS_DELAY
    return min(remaining, ADDRESS_DELAY)

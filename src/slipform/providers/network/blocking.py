"""The blocking client.

Writer, reader, limits and connection rules are those of the async side; only the waiting differs. Sockets never block
by themselves: a socket's own timeout counts for each system call, not for the whole wait.
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

_RECEIVE = 1 << 16
_HAS_POLL = hasattr(select, "poll")


class BlockingClient:
    """The connections that all threads share, and how they are used."""

    def __init__(self, tls: TlsContext, max_answer_bytes: int, per_origin: int) -> None:
        self._tls = tls
        self._max_answer_bytes = max_answer_bytes
        self._idle: IdleConnections[BlockingConnection] = IdleConnections(per_origin)

    def open(self, origin: Origin, data: bytes, deadlines: Deadlines) -> BlockingStream:
        """Send a request, and wait for the head of its answer."""
        connection = self._idle.take(origin)
        if connection is not None:
            sent_at = time.monotonic()
            try:
                return self._exchange(connection, data, deadlines)
            except _Broken as broken:
                if not is_stale(broken.error, connection.reader, time.monotonic() - sent_at):
                    raise deadlines.fault(broken.error, broken.phase, "first_byte") from broken.error
        self._idle.sweep()
        try:
            connection = connect(origin, self._tls, deadlines.end("connect"), self._max_answer_bytes)
        except (OSError, ProtocolError) as error:
            raise deadlines.fault(error, "connect", "connect") from error
        try:
            return self._exchange(connection, data, deadlines)
        except _Broken as broken:
            raise deadlines.fault(broken.error, broken.phase, "first_byte") from broken.error

    def close(self) -> None:
        """Close idle connections; those in use close when their answer ends."""
        self._idle.close()

    def _exchange(self, connection: BlockingConnection, data: bytes, deadlines: Deadlines) -> BlockingStream:
        phase: Phase = "send"
        try:
            deadlines.request_sent()
            end = deadlines.end("first_byte")
            connection.reader.begin()
            connection.channel.send(data, end)
            phase = "head"
            while not connection.reader.has_head:
                connection.receive(end)
        except (OSError, ProtocolError) as error:
            connection.close()
            raise _Broken(error, phase) from error
        except BaseException:
            connection.close()
            raise
        return BlockingStream(connection, self._idle, deadlines)


class _Broken(Exception):  # noqa: N818 — it never leaves this module
    """An exchange failed, and how far it had come."""

    def __init__(self, error: OSError | ProtocolError, phase: Phase) -> None:
        super().__init__(error)
        self.error = error
        self.phase = phase


class BlockingStream:
    """An answer being read by a thread."""

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
        """The next bytes of the body; empty at its end."""
        if not self._open:
            return b""
        reader = self._connection.reader
        try:
            data = reader.take()
            if data is None:
                end = self._deadlines.end(self._limit)
                while data is None:
                    self._connection.receive(end)
                    data = reader.take()
        except (OSError, ProtocolError) as error:
            self.close()
            raise self._deadlines.fault(error, "body", self._limit) from error
        except BaseException:
            self.close()
            raise
        if not data or reader.spent:
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
        connection, seconds = self._connection, self._connection.reader.idle_seconds
        if connection.reader.reusable and seconds > 0:
            self._idle.give(connection.origin, connection, seconds)
        else:
            connection.close()


class BlockingConnection:
    """One connection to a server: the channel to it, and the reader of what comes back."""

    __slots__ = ("channel", "origin", "reader")

    def __init__(self, origin: Origin, channel: Channel, reader: ResponseReader) -> None:
        self.origin = origin
        self.channel = channel
        self.reader = reader

    def receive(self, end: float | None) -> None:
        """Wait for bytes, until the moment `end`, and feed them to the reader."""
        data = self.channel.receive(end)
        if data:
            self.reader.feed(data)
        else:
            self.reader.feed_eof()

    def is_usable(self) -> bool:
        """Whether it is still good after a rest."""
        return self.channel.is_quiet()

    def close(self) -> None:
        """Close it; harmless when repeated."""
        self.channel.close()


class Channel(Protocol):
    """Bytes both ways. Whatever has to wait waits until a moment of the monotonic clock, then `TimeoutError`."""

    def send(self, data: bytes, end: float | None) -> None:
        """Send all of it."""
        ...

    def receive(self, end: float | None) -> bytes:
        """What arrives next; empty when the other side has closed."""
        ...

    def is_quiet(self) -> bool:
        """Whether nothing has arrived, not even the end."""
        ...

    def close(self) -> None:
        """Close it; harmless when repeated."""
        ...


class _UnwarnedSocket(socket.socket):
    """A transport that is dropped unclosed is no leak worth the warning of Python's own: its sockets go with it."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


class SocketChannel:
    """A connected socket."""

    __slots__ = ("_poll_read", "_poll_write", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = _UnwarnedSocket(fileno=sock.detach())
        tune(self._socket)
        self._poll_read = _poller(self._socket, writing=False)
        self._poll_write = _poller(self._socket, writing=True)

    def send(self, data: bytes, end: float | None) -> None:
        """Send all of it."""
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                self._wait(end, writing=True)

    def receive(self, end: float | None) -> bytes:
        """What arrives next."""
        while True:
            self._wait(end)
            try:
                return self._socket.recv(_RECEIVE)
            except BlockingIOError:  # woken for nothing
                continue

    def is_quiet(self) -> bool:
        """Whether nothing has arrived."""
        return self._socket.fileno() >= 0 and not self._is_ready(0, writing=False)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def _wait(self, end: float | None, *, writing: bool = False) -> None:
        left = None if end is None else end - time.monotonic()
        if (left is not None and left <= 0) or not self._is_ready(left, writing=writing):
            raise TimeoutError

    def _is_ready(self, seconds: float | None, *, writing: bool) -> bool:
        return bool((self._poll_write if writing else self._poll_read)(seconds))


def _poller(sock: socket.socket, *, writing: bool) -> Callable[[float | None], Any]:
    """What waits for a socket, so many seconds; it returns something true if there is something to do."""
    if not _HAS_POLL:  # Windows
        reading, written = ([], [sock]) if writing else ([sock], [])
        return lambda seconds: any(select.select(reading, written, [], seconds))
    poller = select.poll()
    poller.register(sock, select.POLLOUT if writing else select.POLLIN)
    return lambda seconds: poller.poll(None if seconds is None else seconds * 1000)


class TlsChannel:
    """TLS over another channel, which may be one itself: a server behind a proxy that is reached by TLS.

    `ssl.SSLSocket` cannot be put over another one.
    """

    __slots__ = ("_below", "_incoming", "_outgoing", "_tls")

    def __init__(self, below: Channel, context: ssl.SSLContext, host: str, end: float | None) -> None:
        self._below = below
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(end)
                self._fill(end)
            except ssl.SSLError:
                self._flush(end)  # the alert that tells the server why
                raise
            else:
                self._flush(end)
                return

    def send(self, data: bytes, end: float | None) -> None:
        """Send all of it."""
        self._tls.write(data)
        self._flush(end)

    def receive(self, end: float | None) -> bytes:
        """What arrives next."""
        while True:
            try:
                return self._tls.read(_RECEIVE)
            except ssl.SSLWantReadError:
                self._flush(end)
                self._fill(end)
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    def is_quiet(self) -> bool:
        """Whether nothing has arrived."""
        return self._below.is_quiet() and not self._incoming.pending

    def close(self) -> None:
        """Close it."""
        self._below.close()

    def _flush(self, end: float | None) -> None:
        if self._outgoing.pending:
            self._below.send(self._outgoing.read(), end)

    def _fill(self, end: float | None) -> None:
        data = self._below.receive(end)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


def connect(origin: Origin, tls: TlsContext, end: float | None, max_answer_bytes: int) -> BlockingConnection:
    """A new connection to an origin, through its proxy if it has one, with all handshakes done."""
    channel: Channel = SocketChannel(_connect_socket(addresses(*origin.dialled), end))
    try:
        if origin.first_tls_host is not None:
            channel = TlsChannel(channel, tls(), origin.first_tls_host, end)
        if origin.proxy is not None and origin.tunnelled:
            tunnel = BlockingConnection(origin, channel, ResponseReader())
            channel.send(encode_connect(origin.host, origin.port, origin.proxy.authorization), end)
            while not tunnel.reader.has_head:
                tunnel.receive(end)
            check_tunnel(tunnel.reader)
            channel = TlsChannel(channel, tls(), origin.host, end)
    except BaseException:
        channel.close()
        raise
    return BlockingConnection(origin, channel, ResponseReader(max_answer_bytes))


def _connect_socket(found: list[AddressInfo], end: float | None) -> socket.socket:
    """A socket connected to the first address that answers.

    The next address is tried when the one before has failed, or beside it when it takes long (RFC 8305).
    """
    untried = deque(found)
    pending: dict[int, socket.socket] = {}
    failure = OSError("the host has no address")
    with selectors.DefaultSelector() as selector:
        try:
            while untried or pending:
                if untried:
                    try:
                        sock = _begin_connect(untried.popleft())
                    except OSError as error:  # such a family is not here, or has no route
                        failure = error
                        continue
                    pending[sock.fileno()] = sock
                    selector.register(sock, selectors.EVENT_WRITE)
                for key, _ in selector.select(_patience(end, alone=not untried)):
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


def _patience(end: float | None, *, alone: bool) -> float | None:
    """How long to wait for the addresses that are being tried."""
    left = None if end is None else end - time.monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    if alone:
        return left
    return ADDRESS_DELAY if left is None else min(left, ADDRESS_DELAY)

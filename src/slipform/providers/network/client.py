"""Send requests from event loops and threads: `HttpTransport`, and the connection pool of each event loop.

A connection belongs to the event loop that opened it. `async_connection` implements one connection, `blocking` the
client for threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Callable

import aiohappyeyeballs

from slipform.providers.network.async_connection import ClientConnection, ResponseStream
from slipform.providers.network.blocking import BlockingClient, BlockingStream
from slipform.providers.network.connections import (
    ADDRESS_DELAY,
    IdleConnections,
    Origin,
    Origins,
    TlsContext,
    addresses,
    default_tls,
    tune,
)
from slipform.providers.network.http1 import (
    MAX_ANSWER_BYTES,
    ResponseReader,
    check_tunnel,
    encode_connect,
    encode_head,
    with_body,
)
from slipform.providers.network.transport import (
    Deadlines,
    HttpRequest,
    ProtocolError,
    Timeouts,
    TransportFault,
)

_SWEEP_SECONDS = 4.0
_MAX_HEADS = 256
_MAX_CACHED_HEAD = 4096
"""Longer heads contain a caller's data, and are not cached."""


class HttpTransport:
    """Sends requests over HTTP/1.1 connections that are reused within seconds; one serves all threads and event loops.

    `tls` replaces the default context (the system's authorities), `proxy` that of the environment (`"none"` for no
    proxy). A decompressed response larger than `max_answer_bytes` is an error. `is_allowed` decides whether
    `open_async` may connect to a resolved address; by default it may connect to any.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        idle_per_origin: int = 512,
        is_allowed: Callable[[str], bool] | None = None,
    ) -> None:
        # Not a bound method, which would be a reference cycle: a transport that is dropped closes its sockets at once.
        self._tls: TlsContext = default_tls if tls is None else lambda: tls
        self._max_answer_bytes = max_answer_bytes
        self._is_allowed = is_allowed
        self._idle_per_origin = idle_per_origin
        self._origins = Origins(proxy)
        self._heads: dict[tuple[object, ...], tuple[Origin, bytes]] = {}
        """Origins and encoded heads, without the length, by everything that they depend on."""
        self._blocking = BlockingClient(self._tls, max_answer_bytes, idle_per_origin)
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        self._lock = threading.Lock()

    def open(self, request: HttpRequest) -> BlockingStream:
        """Send, and wait for the response's head; raises `TransportFault`."""
        origin, data = self._encode(request)
        return self._blocking.open(origin, data, Deadlines(request.timeouts))

    async def open_async(self, request: HttpRequest) -> ResponseStream:
        """Send, and wait for the response's head; raises `TransportFault`. Cancelling closes the connection."""
        origin, data = self._encode(request)
        deadlines = Deadlines(request.timeouts)
        connections = self._loops.get(asyncio.get_running_loop()) or await self._add_loop()
        # An upload cannot be resent, so it is not tried on a connection that may be stale.
        idle = connections.idle.take(origin) if request.upload is None else None
        if idle is not None:
            stream = ResponseStream(idle, connections.release, deadlines, request.max_answer_bytes)
            if await stream.send(data, reused=True):
                return stream
        connection = await self._connect(origin, deadlines)
        stream = ResponseStream(connection, connections.release, deadlines, request.max_answer_bytes)
        await stream.send(data, reused=False, upload=request.upload)
        return stream

    def close(self) -> None:
        """Close idle connections; those in use close when their response ends."""
        self._blocking.close()
        with self._lock:
            loops = list(self._loops.values())
        for connections in loops:
            connections.close_threadsafe()

    def _encode(self, request: HttpRequest) -> tuple[Origin, bytes]:
        headers = request.headers
        key = (request.url, request.method, request.streamed, *headers, *headers.values())
        entry = self._heads.get(key)
        if entry is None:
            entry = self._encode_head(request)
            if len(entry[1]) <= _MAX_CACHED_HEAD:
                if len(self._heads) >= _MAX_HEADS:
                    self._heads.clear()
                self._heads[key] = entry
        origin, head = entry
        return origin, with_body(head, request)

    def _encode_head(self, request: HttpRequest) -> tuple[Origin, bytes]:
        try:
            origin, target = self._origins.find(request.url)
            proxy = None if origin.proxy is None or origin.tunnelled else origin.proxy.authorization
            return origin, encode_head(request, target, origin.authority, proxy)
        except ProtocolError as error:
            raise TransportFault(str(error), phase="connect", reason=error.reason) from None

    async def _add_loop(self) -> LoopConnections:
        loop = asyncio.get_running_loop()
        with self._lock:
            for closed_loop in [closed_loop for closed_loop in self._loops if closed_loop.is_closed()]:
                del self._loops[closed_loop]
            connections = self._loops.setdefault(loop, LoopConnections(loop, self._idle_per_origin))
        await connections.watch_loop()
        return connections

    async def _connect(self, origin: Origin, deadlines: Deadlines) -> ClientConnection:
        try:
            async with asyncio.timeout(deadlines.remaining("connect")):
                return await connect(origin, self._tls, ResponseReader(self._max_answer_bytes), self._is_allowed)
        except (OSError, ProtocolError) as error:
            raise deadlines.fault(error, "connect", "connect") from error


class LoopConnections:
    """The idle connections of one event loop, owned by the transport: swept while any exist, closed with the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, per_origin: int) -> None:
        self.loop = loop
        self.idle: IdleConnections[ClientConnection] = IdleConnections(per_origin)
        self._is_sweeping = False
        self._watcher: AsyncGenerator[None, None] | None = None

    async def watch_loop(self) -> None:
        """Close idle connections when the loop shuts down its generators, which is the only notice that a loop gives.

        Python warns of sockets that the garbage collector finds after their loop has ended.
        """
        if self._watcher is None:
            self._watcher = _close_at_shutdown(self)
            await anext(self._watcher)

    def release(self, connection: ClientConnection) -> None:
        """Return a connection to the pool after a complete response, or close it."""
        connection.stream = None
        seconds = connection.reader.idle_seconds
        if seconds <= 0 or connection.is_sending or not connection.is_usable():
            connection.close()
            return
        self.idle.release(connection.origin, connection, seconds)
        if not self._is_sweeping:
            self._is_sweeping = True
            self.loop.call_later(_SWEEP_SECONDS, self._sweep)

    def close_threadsafe(self) -> None:
        """Close idle connections, from any thread."""
        with contextlib.suppress(RuntimeError):  # no loop is running here
            if asyncio.get_running_loop() is self.loop:
                self.idle.close()
                return
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its connections with it
            self.loop.call_soon_threadsafe(self.idle.close)

    def _sweep(self) -> None:
        self._is_sweeping = self.idle.sweep()
        if self._is_sweeping:
            self.loop.call_later(_SWEEP_SECONDS, self._sweep)


async def _close_at_shutdown(connections: LoopConnections) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        connections.idle.close()
        await asyncio.sleep(0)  # transports close their sockets in the next turn of the loop


async def connect(
    origin: Origin, tls: TlsContext, reader: ResponseReader, is_allowed: Callable[[str], bool] | None = None
) -> ClientConnection:
    """Return a new connection to an origin, through its proxy if it has one, with all handshakes done."""
    loop = asyncio.get_running_loop()
    sock = await _connect_socket(*origin.address, is_allowed)
    connection = ClientConnection(origin, ResponseReader() if origin.tunnelled else reader, loop)
    host = origin.first_tls_host
    try:
        tune(sock)
        context = None if host is None else tls()
        transport, _ = await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=host)
    except BaseException:
        sock.close()
        raise
    if origin.tunnelled and origin.proxy is not None:
        try:
            await _open_tunnel(connection, encode_connect(origin.host, origin.port, origin.proxy.authorization))
            inner = await loop.start_tls(transport, connection, tls(), server_hostname=origin.host)
        except TypeError as error:
            connection.close()
            # If TLS in TLS fails, asyncio before 3.12 fails in its own clean-up and hides the reason.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        except BaseException:
            connection.close()
            raise
        if inner is None:
            raise ConnectionResetError("the server closed the connection in the TLS handshake")
        connection.connection_made(inner)
        connection.reader = reader
    return connection


async def _open_tunnel(connection: ClientConnection, request: bytes) -> None:
    """Ask the proxy for a tunnel; the caller enforces the time limit."""
    stream = ResponseStream(connection, ClientConnection.close, Deadlines(Timeouts(None, None, None, None)))
    try:
        await stream.send(request, reused=False)
    except TransportFault as fault:
        raise ProtocolError(f"the proxy: {fault.message}", fault.reason) from fault
    check_tunnel(connection.reader)
    connection.stream = None


async def _connect_socket(host: str, port: int, is_allowed: Callable[[str], bool] | None) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        infos = addresses(host, port, numeric=True)
    except socket.gaierror:
        infos = await loop.run_in_executor(None, addresses, host, port)
    if is_allowed is not None:
        infos = [info for info in infos if is_allowed(str(info[4][0]))]
        if not infos:
            raise ProtocolError("the address is not allowed", "setup")
    return await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=ADDRESS_DELAY, interleave=1, loop=loop)

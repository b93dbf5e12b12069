"""The default transport: HTTP/1.1 over plain sockets, blocking or on any event loop.

Why not a ready-made client: the ones that are quick enough do not close the connection when a call is cancelled before
the answer has begun, or have no time limit between chunks for blocking callers. See `pyreqwest_transport` for HTTP/2.
"""

from __future__ import annotations

import asyncio
import functools
import select
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.request import getproxies, proxy_bypass

from slipform.providers.exchange import Exchange
from slipform.providers.http1 import ProtocolError
from slipform.providers.limits import Limits
from slipform.providers.link import Link, Talk
from slipform.providers.looped import Loops
from slipform.providers.place import Place, find_place
from slipform.providers.pool import Connection, Pool
from slipform.providers.quiet import QuietSocket
from slipform.providers.socket_stream import AsyncSocketStream
from slipform.providers.transport import HttpRequest, Limit, TransportFault

Result = TypeVar("Result")

_RECEIVE = 1 << 16
_MOST_ADDRESSES = 256
_HAS_POLL = hasattr(select, "poll")


class SocketTransport:
    """Sends requests over kept-alive HTTP/1.1 connections; one instance serves all threads and event loops.

    `tls` replaces the default context (system certificates); proxies come from the environment (`HTTPS_PROXY`,
    `HTTP_PROXY`, `NO_PROXY`) unless `use_proxies` is False. Connections idle for `idle` seconds are not used again.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        idle: float = 30.0,
        per_host: int = 512,
        use_proxies: bool = True,
    ) -> None:
        self._pool: Pool[Connection] = Pool(per_host, idle)
        self._loops = Loops(self._pool, lambda: Pool(per_host, idle))
        self._given_tls = tls
        self._use_proxies = use_proxies
        self._routes: dict[Place, Mapping[str, str]] = {}
        self._found: dict[str, tuple[Place, str]] = {}

    def open(self, request: HttpRequest) -> SocketStream:
        """Send, and wait for the answer's head."""
        limits = Limits(request.timeouts)
        place, target = self._find(request)
        connection = self._pool.take(place) or self._left_over(place) or self._dial(place, limits)
        link = connection.link
        limits.sending()
        try:
            _talk(connection.socket, link.exchange(request, target), limits.left("first_byte"))
        except BaseException as error:
            connection.close()
            limits.translate(error, "head" if link.asked else "send", "first_byte")
            raise
        return SocketStream(connection, self._pool, limits)

    async def open_async(self, request: HttpRequest) -> AsyncSocketStream:
        """Send, and wait for the answer's head; cancelling closes the connection."""
        limits = Limits(request.timeouts)
        place, target = self._find(request)
        looped = self._loops.here()
        heard = looped.pool.take(place)
        if heard is None:
            heard = looped.hold(self._pool.take(place) or await self._dial_async(place, limits))
        stream = AsyncSocketStream(Exchange(heard, looped, limits))
        await stream.ask(request, target)
        return stream

    def close(self) -> None:
        """Close idle connections; those in use close when their answer ends."""
        self._pool.close()
        self._loops.close()

    def _find(self, request: HttpRequest) -> tuple[Place, str]:
        known = self._found.get(request.url)
        if known is not None:
            return known
        try:
            found = find_place(request.url, {})
            if proxies := self._proxies(found[0]):
                found = find_place(request.url, proxies)
        except (ProtocolError, ValueError) as error:
            raise TransportFault(str(error), phase="connect") from None
        if len(self._found) >= _MOST_ADDRESSES:
            self._found.clear()
        self._found[request.url] = found
        return found

    def _proxies(self, place: Place) -> Mapping[str, str]:
        # Looked up once for each server: reading the whole environment costs as much as the rest of a call.
        found = self._routes.get(place)
        if found is None:
            proxies = getproxies() if self._use_proxies else {}
            found = proxies if proxies and not proxy_bypass(place.authority) else {}
            self._routes[place] = found
        return found

    def _left_over(self, place: Place) -> Connection | None:
        self._loops.gather()
        return self._pool.take(place)

    def _link(self, place: Place) -> Link:
        return Link(place, (self._given_tls or _default_tls()) if place.secure else None)

    def _dial(self, place: Place, limits: Limits) -> Connection:
        try:
            plain = socket.create_connection(place.dialled, timeout=limits.left("connect"))
            sock = QuietSocket(fileno=plain.detach())
            try:
                _tune(sock)
                link = self._link(place)
                _talk(sock, link.greet(), limits.left("connect"))
            except BaseException:
                sock.close()
                raise
        except (OSError, ProtocolError) as error:
            limits.translate(error, "connect", "connect")
            raise
        return Connection(sock, link)

    async def _dial_async(self, place: Place, limits: Limits) -> Connection:
        try:
            async with asyncio.timeout(limits.left("connect")):
                sock = await _connect(place.dialled)
                try:
                    link = self._link(place)
                    await _talk_async(sock, link.greet())
                except BaseException:
                    sock.close()
                    raise
        except (OSError, ProtocolError) as error:
            limits.translate(error, "connect", "connect")
            raise
        return Connection(sock, link)


@dataclass(slots=True)
class SocketStream:
    """An answer being read, blocking."""

    _connection: Connection
    _pool: Pool[Connection]
    _limits: Limits
    _limit: Limit = "first_byte"
    _open: bool = True

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._connection.link.reader.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, names in lower case."""
        return self._connection.link.reader.headers

    def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        if not self._open:
            return b""
        link = self._connection.link
        try:
            data = link.reader.take()
            if data is None:
                data = _talk(self._connection.socket, link.more(), self._limits.left(self._limit))
        except BaseException as error:
            self.close()
            self._limits.translate(error, "body", self._limit)
            raise
        if data:
            self._limit = "between_chunks"
        else:
            self._open = False
            _settle(self._connection, self._pool)
        return data

    def close(self) -> None:
        """Stop; the connection is closed if the body was not read to its end."""
        if self._open:
            self._open = False
            self._connection.close()


def _settle(connection: Connection, pool: Pool[Connection]) -> None:
    if connection.link.reader.reusable:
        pool.give(connection)
    else:
        connection.close()


def _talk(sock: socket.socket, talk: Talk[Result], seconds: float | None) -> Result:
    """Do the sending and receiving that the generator asks for, within so many seconds.

    The socket never blocks by itself, here as on event loops: a socket's own time limit costs a system call each time
    it is set.
    """
    end = None if seconds is None else time.monotonic() + seconds
    try:
        wish = next(talk)
        while True:
            if wish is None:
                wish = talk.send(_received(sock, end))
            else:
                _send(sock, wish, end)
                wish = talk.send(b"")
    except StopIteration as stop:
        result: Result = stop.value
        return result


def _received(sock: socket.socket, end: float | None) -> bytes:
    while True:
        _wait(sock, end)
        try:
            return sock.recv(_RECEIVE)
        except BlockingIOError:  # woken for nothing
            continue


def _send(sock: socket.socket, data: bytes, end: float | None) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            _wait(sock, end, writing=True)


def _wait(sock: socket.socket, end: float | None, *, writing: bool = False) -> None:
    """Until something can be read or written; `TimeoutError` when that comes too late."""
    left = None if end is None else end - time.monotonic()
    if left is not None and left <= 0:
        raise TimeoutError
    if _HAS_POLL:
        poller = select.poll()
        poller.register(sock, select.POLLOUT if writing else select.POLLIN)
        ready = bool(poller.poll(None if left is None else left * 1000))
    else:  # Windows
        ready = any(select.select([] if writing else [sock], [sock] if writing else [], [], left))
    if not ready:
        raise TimeoutError


async def _talk_async(sock: socket.socket, talk: Talk[Result]) -> Result:
    """`_talk`, on the running event loop."""
    loop = asyncio.get_running_loop()
    try:
        wish = next(talk)
        while True:
            if wish is None:
                wish = talk.send(await loop.sock_recv(sock, _RECEIVE))
            else:
                await loop.sock_sendall(sock, wish)
                wish = talk.send(b"")
    except StopIteration as stop:
        result: Result = stop.value
        return result


async def _connect(address: tuple[str, int]) -> socket.socket:
    """Try the host's addresses in turn."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, protocol, _, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            sock = QuietSocket(family, kind, protocol)
        except OSError as error:  # an address family this machine does not have
            failure = error
            continue
        try:
            _tune(sock)
            await loop.sock_connect(sock, place)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"{address[0]} has no address")


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setblocking(False)


@functools.cache
def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context

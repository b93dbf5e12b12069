"""Servers on loopback that answer with raw bytes, over TCP or TLS, and proxies; each connection has a thread."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, Self, TypeVar

import uvloop

from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest, Timeouts

Result = TypeVar("Result")
Serve = Callable[[socket.socket], None]

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Side(Protocol):
    """The blocking or the async side of a transport."""

    def send(self, transport: HttpTransport, *requests: HttpRequest) -> list[tuple[int, bytes]]:
        """Send these one after the other; status and body of each answer."""
        ...


class Blocking:
    """From this thread."""

    def send(self, transport: HttpTransport, *requests: HttpRequest) -> list[tuple[int, bytes]]:
        answers = []
        for request in requests:
            stream = transport.open(request)
            answers.append((stream.status, b"".join(iter(stream.read, b""))))
        return answers


class Async:
    """On an event loop, of either kind."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Result]], Result], *, pushed: bool) -> None:
        self._run = run
        self._pushed = pushed

    def send(self, transport: HttpTransport, *requests: HttpRequest) -> list[tuple[int, bytes]]:
        return self._run(self._send(transport, requests))  # type: ignore[arg-type, return-value]

    async def _send(self, transport: HttpTransport, requests: Sequence[HttpRequest]) -> list[tuple[int, bytes]]:
        answers = []
        for request in requests:
            stream = await transport.open_async(request)
            body = bytearray()

            def push(data: bytes, body: bytearray = body) -> bool:
                body.extend(data)
                return bool(data)

            if self._pushed:
                await stream.on_body(push)
            else:
                while push(await stream.read()):
                    pass
            answers.append((stream.status, bytes(body)))
        return answers


SIDES: dict[str, Side] = {
    "blocking": Blocking(),
    "asyncio": Async(asyncio.run, pushed=False),
    "uvloop": Async(uvloop.run, pushed=True),
}


def post(url: str, timeouts: Timeouts | None = None, body: bytes = b"{}") -> HttpRequest:
    return HttpRequest(url, {"x-a": "1"}, body, timeouts or Timeouts(total=10))


class Server:
    """Runs `serve` for each connection, in a thread; closes it afterwards."""

    def __init__(self, serve: Serve, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self._serve = serve
        self._tls = tls
        self._listener = socket.create_server((host, port))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://localhost:{self.port}/v1/x"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._run, args=(sock,), daemon=True)
                self._open.append(sock)
                self._threads.append(thread)
                thread.start()

    def _run(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            try:
                if self._tls is not None:
                    self._open.remove(sock)
                    sock = self._tls.wrap_socket(sock, server_side=True)
                    self._open.append(sock)
                self._serve(sock)
            finally:
                sock.close()


def read_request(sock: socket.socket) -> bytes:
    """One request, whole; `EOFError` when the client has closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(sock)
    found = _LENGTH.search(data)
    length = data.index(b"\r\n\r\n") + 4 + (int(found[1]) if found else 0)
    while len(data) < length:
        data += _some(sock)
    return data


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise EOFError
    return data


def always(answer: bytes, seen: list[bytes] | None = None) -> Serve:
    """Answers every request of a connection with this."""

    def serve(sock: socket.socket) -> None:
        while True:
            request = read_request(sock)
            if seen is not None:
                seen.append(request)
            sock.sendall(answer)

    return serve


def once(answer: bytes) -> Serve:
    """Answers one request of a connection with this, and closes it."""

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(answer)

    return serve


def proxy(seen: list[bytes], target: int | None = None) -> Serve:
    """Leads CONNECT to a port of this machine, and answers other requests itself."""

    def serve(sock: socket.socket) -> None:
        request = read_request(sock)
        seen.append(request)
        if target is None or not request.startswith(b"CONNECT "):
            sock.sendall(HELLO)
            always(HELLO, seen)(sock)
            return
        sock.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", target)) as server:
            back = threading.Thread(target=pump, args=(server, sock), daemon=True)
            back.start()
            pump(sock, server)
            back.join(5)

    return serve


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

"""The default transport: TLS, proxies, addresses, limits."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slipform.providers.place import find_place
from slipform.providers.pool import Pool
from slipform.providers.sockets import SocketTransport
from slipform.providers.transport import HttpRequest, Timeouts, TransportFault
from slipform.testing import FakeVendor

Send = Callable[[SocketTransport, HttpRequest], tuple[int, bytes]]


def send_sync(transport: SocketTransport, request: HttpRequest) -> tuple[int, bytes]:
    stream = transport.open(request)
    return stream.status, b"".join(iter(stream.read, b""))


def send_async(transport: SocketTransport, request: HttpRequest) -> tuple[int, bytes]:
    async def run() -> tuple[int, bytes]:
        stream = await transport.open_async(request)
        body = b""
        while data := await stream.read():
            body += data
        return stream.status, body

    return asyncio.run(run())


@pytest.fixture(params=[send_sync, send_async], ids=["sync", "async"])
def send(request: pytest.FixtureRequest) -> Send:
    chosen: Send = request.param
    return chosen


def post(url: str, timeouts: Timeouts | None = None) -> HttpRequest:
    return HttpRequest(url, {"x-a": "1"}, b'{"a":1}', timeouts or Timeouts(total=10))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("makes its certificate with the openssl command, which is not here")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            str(key),
            "-out",
            str(cert),
        ],
        check=True,
        capture_output=True,
    )
    return key, cert


@pytest.fixture
def tunnel(certificate: tuple[Path, Path]) -> Iterator[Callable[[int], int]]:
    """Puts TLS in front of a port; gives the port to use instead."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate[1], certificate[0])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start(target: int) -> asyncio.Server:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target)
            await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

        return await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)

    servers = []

    def make(target: int) -> int:
        server = asyncio.run_coroutine_threadsafe(start(target), loop).result()
        servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    yield make

    async def stop() -> None:
        for server in servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)

    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def test_tls_with_a_trusted_certificate(
    send: Send, certificate: tuple[Path, Path], tunnel: Callable[[int], int]
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[1]))
    with FakeVendor(["x" * 100_000, "short"]) as vendor:
        port = tunnel(int(vendor.base_url.split(":")[2].partition("/")[0]))
        transport = SocketTransport(tls=trusting, use_proxies=False)
        for _ in range(3):
            status, body = send(transport, post(f"https://localhost:{port}/v1/x"))
            assert status == 200
            assert body.endswith(b"}")
        transport.close()
    assert [request.path for request in vendor.requests] == ["/v1/x"] * 3
    assert vendor.connections_made == 1


def test_tls_with_a_certificate_nobody_vouches_for(send: Send, tunnel: Callable[[int], int]) -> None:
    with FakeVendor(["x"]) as vendor:
        port = tunnel(int(vendor.base_url.split(":")[2].partition("/")[0]))
        transport = SocketTransport(use_proxies=False)
        with pytest.raises(TransportFault, match="certificate") as caught:
            send(transport, post(f"https://localhost:{port}/"))
    assert caught.value.phase == "connect"
    assert vendor.requests == []


def test_an_http_proxy_is_asked_for_the_whole_address(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeVendor(["x"]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1").replace("http://", "http://me:pw@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert send(SocketTransport(), post("http://model.test:81/v1/x"))[0] == 200
    (request,) = proxy.requests
    assert request.path == "http://model.test:81/v1/x"
    assert request.headers["host"] == "model.test:81"
    assert request.headers["proxy-authorization"] == "Basic bWU6cHc="


def test_hosts_that_need_no_proxy(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with FakeVendor(["x"]) as vendor:
        assert send(SocketTransport(), post(vendor.base_url))[0] == 200


def test_https_goes_through_a_tunnel_of_the_proxy(
    send: Send, certificate: tuple[Path, Path], tunnel: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[1]))
    seen: list[bytes] = []
    with FakeVendor(["x"]) as vendor:
        secured = tunnel(int(vendor.base_url.split(":")[2].partition("/")[0]))
        with proxy_server(secured, seen) as proxy:
            monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy}")
            monkeypatch.delenv("no_proxy", raising=False)
            monkeypatch.delenv("NO_PROXY", raising=False)
            transport = SocketTransport(tls=trusting)
            assert send(transport, post("https://localhost:4430/v1/x"))[0] == 200
            transport.close()
    assert seen[0].startswith(b"CONNECT localhost:4430 HTTP/1.1\r\n")
    assert vendor.requests[0].path == "/v1/x"


class proxy_server:  # noqa: N801 — used like a function
    """A CONNECT proxy that leads everywhere to one port."""

    def __init__(self, target: int, seen: list[bytes]) -> None:
        self._target = target
        self._seen = seen
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> int:
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        self._threads.append(thread)
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        self._seen.append(client.recv(65536))
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        server = socket.create_connection(("127.0.0.1", self._target))
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        back.join(5)
        client.close()
        server.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_addresses_that_cannot_be_called(send: Send) -> None:
    transport = SocketTransport(use_proxies=False)
    for url in ("ftp://h/x", "http:///x", "http://h:notaport/"):
        with pytest.raises(TransportFault) as caught:
            send(transport, post(url))
        assert caught.value.phase == "connect"


def test_no_connection_in_time(send: Send) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    held = []
    for _ in range(4):  # fill the queue of waiting connections, so that the next one gets no answer
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        held.append(sock)
    transport = SocketTransport(use_proxies=False)
    with pytest.raises(TransportFault) as caught:
        send(transport, post(f"http://127.0.0.1:{port}/", Timeouts(connect=0.1, first_byte=0.3, total=5)))
    assert caught.value.limit == "connect"
    for sock in [*held, listener]:
        sock.close()


def test_a_place_knows_its_authority() -> None:
    assert find_place("https://h/x", {})[0].authority == "h"
    assert find_place("http://[::1]:81/x", {})[0].authority == "[::1]:81"
    assert find_place("https://h", {"https": "proxy:3128"})[0].dialled == ("proxy", 3128)
    assert "pw" not in repr(find_place("https://h", {"https": "http://me:pw@proxy:3128"})[0])


def test_idle_connections_grow_old_and_the_surplus_goes() -> None:
    now = [0.0]
    with FakeVendor(["x"]) as vendor:
        transport = SocketTransport(use_proxies=False)
        transport._pool = Pool(per_place=1, idle=10, clock=lambda: now[0])
        first, second = transport.open(post(vendor.base_url)), transport.open(post(vendor.base_url))
        for stream in (first, second):
            while stream.read():
                pass
        assert vendor.wait_until(lambda v: v.open_connections == 1)
        now[0] = 11
        send_sync(transport, post(vendor.base_url))
        assert vendor.connections_made == 3
        transport.close()
        assert vendor.wait_until(lambda v: v.open_connections == 0)

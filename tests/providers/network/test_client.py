"""Both sides of the transport, over every way to a server: TLS, proxies, addresses, idle connections, limits."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from slipform.providers.network import blocking, client, connections
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.connections import AddressInfo
from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault, Upload
from slipform.testing import FakeVendor
from tests.providers.network.conftest import Certificate, make_certificate
from tests.providers.network.servers import HELLO, Server, Side, always, once, post, proxy, read_request

pytestmark = pytest.mark.usefixtures("no_proxies")


@pytest.mark.parametrize("via", [None, "http", "https"], ids=["direct", "http proxy", "https proxy"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_every_way_to_a_server_is_used_twice_over_one_connection(
    side: Side, certificate: Certificate, scheme: str, via: str | None
) -> None:
    seen: list[bytes] = []
    asked: list[bytes] = []
    tls = certificate.server() if scheme == "https" else None
    proxy_tls = certificate.server() if via == "https" else None
    with Server(always(HELLO, asked), tls) as server, Server(proxy(seen, server.port), proxy_tls) as gateway:
        address = None if via is None else f"{via}://me:p%40ss@localhost:{gateway.port}"
        transport = HttpTransport(tls=certificate.client(), proxy=address or "none")
        assert side.send(transport, post(server.url), post(server.url)) == [(200, b"hello")] * 2
        transport.close()
    login = b"proxy-authorization: Basic bWU6cEBzcw=="
    if via is None:
        assert (len(seen), len(asked), server.connections) == (0, 2, 1)
        assert asked[0].startswith(b"POST /v1/x HTTP/1.1\r\n")
    elif scheme == "http":  # the proxy itself is asked, by the whole address
        assert (len(seen), len(asked), gateway.connections) == (2, 0, 1)
        assert seen[0].startswith(b"POST http://localhost:%d/v1/x HTTP/1.1\r\n" % server.port)
        assert login in seen[1]
    else:  # a tunnel: the proxy sees neither the request nor its headers
        assert (len(seen), len(asked), gateway.connections) == (1, 2, 1)
        assert seen[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % server.port)
        assert login in seen[0]
        assert b"proxy-authorization" not in asked[0]


def test_large_answers_and_requests_over_tls_are_whole(side: Side, certificate: Certificate) -> None:
    body = bytes(range(256)) * 8192

    def echo(sock: socket.socket) -> None:
        sent = read_request(sock).partition(b"\r\n\r\n")[2]
        sock.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(sent), sent))

    with Server(echo, certificate.server()) as server:
        transport = HttpTransport(tls=certificate.client(), proxy="none")
        assert side.send(transport, post(server.url, body=body)) == [(200, body)]
        transport.close()


@pytest.mark.parametrize("where", ["server", "proxy", "behind the proxy"])
def test_a_certificate_nobody_vouches_for_is_refused_as_a_matter_of_setup(
    side: Side, certificate: Certificate, tmp_path: Path, where: str
) -> None:
    stranger = make_certificate(tmp_path)
    tls = (certificate if where == "proxy" else stranger).server()
    proxy_tls = (stranger if where == "proxy" else certificate).server()
    asked: list[bytes] = []
    with Server(always(HELLO, asked), tls) as server, Server(proxy([], server.port), proxy_tls) as gateway:
        address = "none" if where == "server" else f"https://localhost:{gateway.port}"
        transport = HttpTransport(tls=certificate.client(), proxy=address)
        with pytest.raises(TransportFault, match="certificate") as caught:
            side.send(transport, post(server.url))
        transport.close()
    assert (caught.value.phase, caught.value.reason) == ("connect", "setup")
    assert asked == []


@pytest.mark.parametrize(("shown", "served"), [(True, True), (False, False)], ids=["with", "without"])
def test_a_server_that_asks_for_a_certificate_gets_ours(
    side: Side, certificate: Certificate, shown: bool, served: bool
) -> None:
    context = certificate.server()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate.certificate)
    ours = (str(certificate.certificate), str(certificate.key)) if shown else (None, None)
    with Server(always(HELLO), context) as server:
        transport = HttpTransport(tls=connections.tls_context(str(certificate.certificate), *ours), proxy="none")
        if served:
            assert side.send(transport, post(server.url)) == [(200, b"hello")]
        else:
            with pytest.raises(TransportFault):
                side.send(transport, post(server.url))
        transport.close()


@pytest.mark.parametrize(
    ("status", "reason"), [(407, "setup"), (403, "setup"), (502, "broken")], ids=["login", "forbidden", "bad gateway"]
)
def test_a_proxy_that_opens_no_tunnel_is_named(side: Side, status: int, reason: str) -> None:
    with Server(once(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % status)) as gateway:
        transport = HttpTransport(proxy=f"http://localhost:{gateway.port}")
        with pytest.raises(TransportFault, match=f"proxy refused the connection with status {status}") as caught:
            side.send(transport, post("https://localhost:4430/"))
    assert (caught.value.phase, caught.value.reason) == ("connect", reason)


@pytest.mark.parametrize(
    ("url", "via", "message"),
    [
        ("ftp://h/x", "none", "must begin with http"),
        ("http:///x", "none", "must begin with http"),
        ("http://h:notaport/", "none", "cannot be read"),
        ("http://h/a b", "none", "space"),
        ("http://h/", "socks5://me:hunter22@127.0.0.1:1080", "socks5:// proxies are not supported"),
        ("http://h/", "socks4a://127.0.0.1:1080", "socks4a:// proxies are not supported"),
        ("https://h/", "ftp://127.0.0.1:1080", "the proxy's address must begin with http"),
    ],
)
def test_addresses_that_cannot_be_called_are_a_matter_of_setup(side: Side, url: str, via: str, message: str) -> None:
    transport = HttpTransport(proxy=via)
    with pytest.raises(TransportFault, match=message) as caught:
        side.send(transport, post(url))
    assert (caught.value.phase, caught.value.reason) == ("connect", "setup")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("dead", ["refuses", "never answers"])
def test_the_next_address_is_tried_when_the_first_is_dead(
    side: Side, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    with Server(always(HELLO)) as server:
        silent = socket.socket()
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a connection of another test may linger there
        silent.bind(("127.0.0.2", server.port))
        held = []
        if dead == "never answers":  # its queue of connections is full
            silent.listen(0)
            for _ in range(4):
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex(("127.0.0.2", server.port))

        def both(host: str, port: int, *, numeric: bool = False) -> list[AddressInfo]:
            if numeric:
                raise socket.gaierror(socket.EAI_NONAME, "not an address")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.0.0.2", "127.0.0.1")]

        for module in (blocking, client):
            monkeypatch.setattr(module, "addresses", both)
        transport = HttpTransport(proxy="none")
        request = post(f"http://model.test:{server.port}/", Timeouts(connect=5, total=10))
        assert side.send(transport, request) == [(200, b"hello")]
        transport.close()
        for sock in (silent, *held):
            sock.close()


def test_no_address_that_answers_in_time(side: Side) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = listener.getsockname()[1]
    held = []
    for _ in range(4):  # fill the queue of waiting connections, so that the next one gets no answer
        held.append(socket.socket())
        held[-1].setblocking(False)
        held[-1].connect_ex(("127.0.0.1", port))
    transport = HttpTransport(proxy="none")
    with pytest.raises(TransportFault) as caught:
        side.send(transport, post(f"http://127.0.0.1:{port}/", Timeouts(connect=0.1, first_byte=0.3, total=5)))
    assert (caught.value.limit, caught.value.phase) == ("connect", "connect")
    for sock in (*held, listener):
        sock.close()


def hanging_up(asked: list[bytes], answered: threading.Event, gone: threading.Event) -> Server:
    """Answers one request of a connection, then closes it, before the client has heard of it."""

    def serve(sock: socket.socket) -> None:
        asked.append(read_request(sock))
        sock.sendall(HELLO)
        if len(asked) == 1:
            answered.wait(5)
            sock.close()
            gone.set()
        else:
            always(HELLO, asked)(sock)

    return Server(serve)


def test_a_connection_that_its_server_closed_at_rest_is_replaced(side: Side) -> None:
    with Server(once(HELLO)) as server:
        transport = HttpTransport(proxy="none")
        assert side.send(transport, *[post(server.url)] * 5) == [(200, b"hello")] * 5
        assert server.connections == 5
        transport.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["no byte", "some bytes"])
def test_a_request_is_repeated_once_if_a_reused_connection_broke_before_any_byte(side: Side, said: bytes) -> None:
    asked: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        asked.append(read_request(sock))
        sock.sendall(HELLO)
        asked.append(read_request(sock))
        sock.sendall(said)  # and nothing more, as a server does that closes while the request is on its way

    with Server(serve) as server:
        transport = HttpTransport(proxy="none")
        if said:
            with pytest.raises(TransportFault) as caught:
                side.send(transport, post(server.url), post(server.url))
            assert caught.value.phase == "head"
            assert (len(asked), server.connections) == (2, 1)
        else:
            assert side.send(transport, post(server.url), post(server.url)) == [(200, b"hello")] * 2
            assert (len(asked), server.connections) == (3, 2)
        transport.close()


def test_a_new_connection_that_breaks_is_not_repeated(side: Side) -> None:
    asked: list[bytes] = []
    with Server(lambda sock: asked.append(read_request(sock))) as server:
        transport = HttpTransport(proxy="none")
        with pytest.raises(TransportFault, match="without an answer") as caught:
            side.send(transport, post(server.url))
    assert (caught.value.phase, caught.value.reason, len(asked)) == ("head", "broken", 1)


@pytest.mark.parametrize(
    ("headers", "connections_made"),
    [
        (b"", 1),
        (b"keep-alive: timeout=20\r\n", 1),
        (b"keep-alive: timeout=1\r\n", 3),
        (b"keep-alive: timeout=0, max=5\r\n", 3),
        (b"connection: close\r\n", 3),
    ],
)
def test_how_long_a_server_will_wait_decides_whether_its_connection_is_used_again(
    side: Side, headers: bytes, connections_made: int
) -> None:
    with Server(always(HELLO.replace(b"\r\n\r\n", b"\r\n" + headers + b"\r\n"))) as server:
        transport = HttpTransport(proxy="none")
        assert side.send(transport, *[post(server.url)] * 3) == [(200, b"hello")] * 3
        assert server.connections == connections_made
        transport.close()


def test_a_half_read_answer_closes_its_connection() -> None:
    with FakeVendor(["x" * 200_000]) as vendor:
        transport = HttpTransport(proxy="none")
        stream = transport.open(post(vendor.base_url))
        assert stream.read()
        stream.close()
        assert vendor.wait_until(lambda v: v.open_connections == 0)
        stream.close()
        assert stream.read() == b""


def test_the_surplus_of_idle_connections_is_closed() -> None:
    with FakeVendor(["x"]) as vendor:
        transport = HttpTransport(proxy="none", idle_per_origin=1)
        first, second = transport.open(post(vendor.base_url)), transport.open(post(vendor.base_url))
        for stream in (first, second):
            while stream.read():
                pass
        assert vendor.wait_until(lambda v: v.open_connections == 1)
        transport.close()
        assert vendor.wait_until(lambda v: v.open_connections == 0)


def uploading(url: str, sent: list[int], count: int, *, sized: bool, loop: str) -> tuple[int, bytes]:
    """Upload so many pieces of 64 KiB; status and body of the answer. `sent` has the piece that was taken last."""
    piece = b"x" * 65_536

    async def pieces() -> AsyncIterator[bytes]:
        for sent[0] in range(1, count + 1):
            yield piece

    async def run() -> tuple[int, bytes]:
        upload = Upload(pieces(), count * len(piece) if sized else None)
        timeouts = Timeouts(first_byte=20, between_chunks=20, total=30)
        transport = HttpTransport(proxy="none")
        try:
            stream = await transport.open_async(HttpRequest(url, {}, b"", timeouts, upload=upload))
            return stream.status, await stream.read()
        finally:
            transport.close()

    return (uvloop.run if loop == "uvloop" else asyncio.run)(run())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("sized", [True, False], ids=["a length", "chunks"])
def test_an_upload_is_sent_whole_as_it_arrives(sized: bool, loop: str) -> None:
    got: list[int] = []

    def count(sock: socket.socket) -> None:
        file = sock.makefile("rb")
        file.readline()
        headers = http.client.parse_headers(file)
        if sized:
            got.append(len(file.read(int(headers["content-length"]))))
        else:
            assert headers["transfer-encoding"] == "chunked"
            while size := int(file.readline(), 16):
                got.append(len(file.read(size + 2)) - 2)
        sock.sendall(HELLO)

    with Server(count) as server:
        assert uploading(server.url, [0], 20, sized=sized, loop=loop) == (200, b"hello")
    assert sum(got) == 20 * 65_536


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("sized", [True, False], ids=["a length", "chunks"])
def test_a_server_that_answers_before_the_end_of_an_upload_and_reads_no_more_is_heard(sized: bool, loop: str) -> None:
    over = threading.Event()

    def refuse(sock: socket.socket) -> None:
        while b"\r\n\r\n" not in sock.recv(65_536):
            pass
        sock.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 9\r\n\r\ntoo large")
        over.wait(30)

    sent = [0]
    with Server(refuse) as server:
        assert uploading(server.url, sent, 2_000, sized=sized, loop=loop) == (413, b"too large")
        over.set()
    assert sent[0] < 2_000, "it got no more of it"


def test_a_server_that_hangs_up_in_an_upload_is_a_fault() -> None:
    def hang_up(sock: socket.socket) -> None:
        sock.recv(65_536)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with Server(hang_up) as server, pytest.raises(TransportFault):
        uploading(server.url, [0], 2_000, sized=True, loop="asyncio")

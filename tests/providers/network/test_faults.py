"""What a vendor's broken answers become: a fault that says so on both sides, an error of the provider, a 502."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.config import Settings, read_settings
from slipform.enforce import Budget
from slipform.engine.setup import Options, router_of
from slipform.errors import ConfigError, UpstreamError
from slipform.library.async_client import AsyncClient
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import TransportFault
from slipform.providers.retry import RetryPolicy
from slipform.providers.router import Router
from tests.conftest import serving
from tests.providers.chat import ChatCodec, ask
from tests.providers.conftest import AsyncFace, SyncFace
from tests.providers.network.conftest import Certificate
from tests.providers.network.servers import HELLO, Server, Side, always, once, post, read_request
from tests.providers.network.test_http1 import MALFORMED, TOO_LARGE
from tests.proxy.wire import post as ask_proxy

pytestmark = pytest.mark.usefixtures("no_proxies")

TRUNCATED = {
    "no answer": b"",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "half a body": b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello",
    "half a chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhello",
    "no last chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
}
FAULTS = [
    *((name, answer, "malformed") for name, answer in MALFORMED.items()),
    *((name, answer, "too_large") for name, answer in TOO_LARGE.items()),
    *((name, answer, "broken") for name, answer in TRUNCATED.items()),
]
each_fault = pytest.mark.parametrize(("answer", "reason"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS])


@each_fault
def test_each_is_a_fault_that_says_so_and_ends_its_connection(side: Side, answer: bytes, reason: str) -> None:
    asked = 0

    def serve(sock: socket.socket) -> None:
        nonlocal asked
        while True:
            read_request(sock)
            asked += 1
            if asked == 1:
                sock.sendall(answer)
                return
            sock.sendall(HELLO)

    with Server(serve) as server:
        transport = HttpTransport(proxy="none")
        with pytest.raises(TransportFault) as caught:
            side.send(transport, post(server.url))
        assert caught.value.reason == reason
        assert caught.value.phase in ("head", "body")
        assert side.send(transport, post(server.url)) == [(200, b"hello")]
        assert (asked, server.connections) == (2, 2)
        transport.close()


WORDS = {"malformed": "answer is malformed", "too_large": "answer is too large", "broken": "connection broke"}


@each_fault
def test_each_is_an_error_of_the_provider_and_not_repeated(
    face: SyncFace | AsyncFace, answer: bytes, reason: str
) -> None:
    with Server(once(answer)) as server:
        base = server.url.removesuffix("/x")
        retries = RetryPolicy(attempts=2, base=0.001)
        with HttpProvider("openai", base_url=base, api_key="k-123456", codec=ChatCodec, retries=retries) as provider:
            with pytest.raises(UpstreamError, match=WORDS[reason]):
                face.complete(provider, ask())
            assert server.connections == 1


FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": False}}
CALLS: dict[str, dict[str, Any]] = {"passed through": {}, "enforced": {"response_format": FORMAT}}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_each_is_a_502_on_the_proxy_and_never_a_500_or_a_success(call: dict[str, Any]) -> None:
    script = [answer for _, answer, _ in FAULTS]
    answers = iter(script)

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(next(answers))

    with Server(serve) as server:
        base = server.url.removesuffix("/x")
        provider = HttpProvider("openai", base_url=base, api_key="k-123456", retries=RetryPolicy(attempts=0))
        router = Router({"up": provider}, default="up/m")
        client = AsyncClient(router=router, options=Options(budget=Budget(attempts=1)))
        with serving(App(client, Settings())) as address:
            body = {"model": "up/m", "messages": [{"role": "user", "content": "hi"}], **call}
            for name, _, reason in FAULTS:
                reply = ask_proxy(address, "/v1/chat/completions", body)
                assert (name, reply.status) == (name, 502)
                assert WORDS[reason] in reply.json()["error"]["message"]
    assert server.connections == len(script)


def test_a_stream_that_breaks_the_rules_after_its_end_is_an_error(face: SyncFace | AsyncFace) -> None:
    event = b'data: {"choices":[{"delta":{"content":"ok"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    with Server(once(b"%b%x\r\n%b\r\n0x0\r\n" % (head, len(event), event))) as server:
        base = server.url.removesuffix("/x")
        with (
            HttpProvider("openai", base_url=base, api_key="k-123456", codec=ChatCodec) as provider,
            pytest.raises(UpstreamError, match="malformed"),
        ):
            face.stream(provider, ask())


def test_a_certificate_that_is_not_trusted_is_tried_once(face: SyncFace | AsyncFace, certificate: Certificate) -> None:
    with Server(always(HELLO), certificate.server()) as server:
        provider = HttpProvider("openai", base_url=server.url, api_key="k-123456", retries=RetryPolicy(2, base=0.001))
        with pytest.raises(UpstreamError, match="certificate") as caught:
            face.complete(provider, ask())
        assert server.connections == 1
        assert "ca_file" in (caught.value.hint or "")


def configured(**given: Any) -> HttpProvider:
    settings = read_settings("providers: {mine: {kind: openai, base_url: 'https://localhost:1'}}")
    chosen = settings.providers["mine"].model_copy(update=given)
    router = router_of(settings.model_copy(update={"providers": {"mine": chosen}}), {}, retries=RetryPolicy(attempts=0))
    found = router.providers["mine"]
    assert isinstance(found, HttpProvider)
    return found


def test_the_settings_name_authorities_a_certificate_a_proxy_and_a_limit(
    face: SyncFace | AsyncFace, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1234567890")
    files = {"ca_file": str(certificate.certificate), "client_certificate": str(certificate.certificate)}
    context = certificate.server()
    context.load_verify_locations(certificate.certificate)
    body = b'{"choices":[{"message":{"content":"%b"},"finish_reason":"stop"}]}' % (b"x" * 2000)
    with Server(always(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)), context) as server:
        base = server.url.removesuffix("/x")
        given = {**files, "client_key": str(certificate.key), "proxy": "none", "base_url": base}
        with configured(**given) as provider:
            assert face.complete(provider, ask()).text == "x" * 2000
        with configured(**given, max_answer_bytes=1024) as provider, pytest.raises(UpstreamError, match="too large"):
            face.complete(provider, ask())
        with configured(**{**given, "proxy": None}) as provider, pytest.raises(UpstreamError, match="Cannot connect"):
            face.complete(provider, ask())


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "providers.mine.ca_file"),
        ({"client_certificate": "/nowhere/cert.pem"}, "providers.mine.client_certificate"),
        ({"client_key": "/nowhere/key.pem"}, "providers.mine.client_key"),
        ({"proxy": "socks5://127.0.0.1:1080"}, "providers.mine.proxy"),
        ({"proxy": "gopher://127.0.0.1"}, "providers.mine.proxy"),
    ],
)
def test_settings_that_cannot_be_used_are_named(given: dict[str, str], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(**given)
    assert caught.value.where == where

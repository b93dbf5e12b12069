"""Images and documents by address reach vendors that take bytes only, if the operator says so, and nothing private."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipform.addons.server.calls.fetched_media import MediaFetcher
from slipform.config import FetchSettings
from slipform.errors import RequestError
from slipform.ir import Media, Message, ModelRequest, Text
from slipform.providers.http import HttpProvider
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.public_addresses import is_public
from slipform.testing import FakeVendor
from tests.providers.network.conftest import make_certificate
from tests.proxy.proxying import call, proxied

PNG = b"\x89PNG" + bytes(range(256))
SETTINGS = FetchSettings(enabled=True, max_bytes=20_000, max_files=3)


class Files(http.server.BaseHTTPRequestHandler):
    """Answers by the path: a type and a number of bytes, or a redirect."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        kind, _, rest = self.path.removeprefix("/").partition("/")
        if kind == "to":
            self.send_response(302)
            port = self.connection.getsockname()[1]
            self.send_header("location", rest.replace("PORT", str(port)))
            self.send_header("content-length", "0")
            self.end_headers()
            return
        body = {"png": PNG, "pdf": b"%PDF-1", "big": b"x" * 30_000}.get(kind, b"<html>")
        types = {"png": "image/png", "pdf": "application/pdf", "html": "text/html", "big": "image/png"}
        self.send_response(404 if kind == "gone" else 200)
        self.send_header("content-type", types.get(kind, "application/zip"))
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Site:
    """A server of files with TLS on this machine, and a fetcher that may reach it and nothing else."""

    def __init__(self, folder: Path) -> None:
        certificate = make_certificate(folder)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
        self._server.socket = certificate.server().wrap_socket(self._server.socket, server_side=True)
        self._server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.tls = certificate.client()
        self.url = f"https://localhost:{self._server.server_address[1]}"

    @property
    def asked(self) -> list[str]:
        return self._server.asked  # type: ignore[attr-defined,no-any-return]

    def transport(self) -> HttpTransport:
        limit = SETTINGS.max_bytes
        return HttpTransport(
            tls=self.tls, proxy="none", max_answer_bytes=limit, is_allowed=lambda each: each == "127.0.0.1"
        )

    def fetcher(self) -> MediaFetcher:
        return MediaFetcher(SETTINGS, self.transport())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def naming(*urls: str, kind: Any = "image") -> ModelRequest:
    return ModelRequest("m", (Message("user", (Text("Look."), *[Media(kind, url=url) for url in urls])),))


def fetched(fetcher: MediaFetcher, request: ModelRequest, codec: str = "ollama") -> list[Media]:
    async def run() -> ModelRequest:
        try:
            return await fetcher.inlined(request, [codec])
        finally:
            fetcher.close()

    return [part for part in asyncio.run(run()).messages[0].parts if isinstance(part, Media)]


def test_files_are_fetched_once_for_vendors_that_take_bytes_only(site: Site) -> None:
    image, again = fetched(site.fetcher(), naming(f"{site.url}/png/a", f"{site.url}/png/a"))
    (document,) = fetched(site.fetcher(), naming(f"{site.url}/pdf/a.pdf?x=1", kind="file"), "openai-chat")
    (moved,) = fetched(site.fetcher(), naming(f"{site.url}/to/{site.url}/png/b"))
    (kept,) = fetched(site.fetcher(), naming(f"{site.url}/png/a"), "anthropic")
    (own,) = fetched(site.fetcher(), naming("https://generativelanguage.googleapis.com/v1/files/x"), "gemini")
    assert (image.data, image.mime_type, image.url, image) == (PNG, "image/png", None, again)
    assert (document.data, document.mime_type, document.name) == (b"%PDF-1", "application/pdf", "a.pdf")
    assert moved.data == PNG
    assert (kept.url, kept.data) == (f"{site.url}/png/a", None)
    assert own.data is None
    assert len(site.asked) == 4


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/gone", 400),
        ("/html/a", 400),
        ("/zip/a", 400),
        ("/big/a", 413),
        ("/to/http://localhost:PORT/png", 400),
        ("/to/https://127.0.0.2:PORT/png", 400),
        ("/to/https://[::1]:PORT/png", 400),
        ("/to/file:///etc/passwd", 400),
        ("/to//to//to//to//to//png/a", 400),
    ],
)
def test_what_is_not_such_a_file_is_refused(site: Site, path: str, status: int) -> None:
    with pytest.raises(RequestError) as caught:
        fetched(site.fetcher(), naming(site.url + path))
    assert caught.value.http_status == status


def test_more_than_the_limits_is_refused(site: Site) -> None:
    for request in (naming(*[f"{site.url}/png/{at}" for at in range(4)]), naming(f"{site.url}/big/1")):
        with pytest.raises(RequestError) as caught:
            fetched(site.fetcher(), request)
        assert caught.value.http_status == 413


PRIVATE = [
    "http://93.184.215.14/a.png", "https://127.0.0.1:PORT/png/a", "https://localhost:PORT/png/a", "https://[::1]:PORT/",
    "https://[::ffff:127.0.0.1]:PORT/png/a", "https://2130706433:PORT/png/a", "https://0x7f.1:PORT/png/a",
    "https://0.0.0.0:PORT/png/a", "https://169.254.169.254/latest/meta-data", "https://10.1.2.3/a",
    "https://192.168.0.1/a", "https://[fd00::1]/a", "https://[64:ff9b::7f00:1]/a", "https://u:p@example.com/a",
    "https://exa mple.com/a", "https:///a", "https://example.com\r\nx: y/a",
]  # fmt: skip


def test_nothing_private_is_ever_reached(site: Site) -> None:
    port = site.url.rpartition(":")[2]
    reached = []
    for url in PRIVATE:
        transport = HttpTransport(tls=site.tls, proxy="none", is_allowed=is_public)
        try:
            fetched(MediaFetcher(SETTINGS, transport), naming(url.replace("PORT", port)))
        except RequestError as error:
            if error.http_status != 400:
                reached.append((url, str(error)))
        else:
            reached.append((url, "fetched"))
    assert reached == []
    assert site.asked == []


def test_only_addresses_of_the_public_internet_are_public() -> None:
    private = [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.1.1", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%2", "fc00::1", "fec0::1", "ff02::1",
        "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1", "2001:db8::1", "localhost", "",
    ]  # fmt: skip
    assert [address for address in private if is_public(address)] == []
    assert [address for address in ("8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8") if not is_public(address)] == []


def test_the_proxy_fetches_only_where_the_operator_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    image = {"type": "image_url", "image_url": {"url": f"{site.url}/png/a"}}
    body = {"model": "up/m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Look."}, image]}]}
    monkeypatch.setattr("slipform.addons.server.calls.fetched_media.HttpTransport", lambda **_: site.transport())
    sent = []
    for fetch in ({}, {"fetch": {"enabled": True}}):
        with FakeVendor(["An image."], api="ollama") as vendor:
            provider = HttpProvider("ollama", base_url=vendor.base_url)
            with proxied({"up": provider}, fetch) as address:
                call(address, "/v1/chat/completions", body)
        sent.append([each.json() for each in vendor.requests if each.method == "POST"])
    assert len(site.asked) == 1
    assert "images" not in json.dumps(sent[0])
    assert b64decode(sent[1][0]["messages"][0]["images"][0]) == PNG

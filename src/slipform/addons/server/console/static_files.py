"""Serve the files of the console: one page for all its paths, and scripts and styles, cached by version."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from slipform.addons.server.calls.endpoints import UnknownPathError
from slipform.addons.server.calls.pages import WrongMethodError
from slipform.addons.server.http_server.asgi import Send, send_page
from slipform.addons.server.observability.call_record import Header

ROOT = "/console"
_STATIC = re.compile(r"[a-z_]{1,40}\.(?:js|css|svg)")
_TYPES = {"js": b"text/javascript; charset=utf-8", "css": b"text/css; charset=utf-8", "svg": b"image/svg+xml"}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types 'none'"
)
SECURITY_HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), payment=(), usb=()"),
)


async def serve_page(method: str, path: str, headers: Mapping[bytes, bytes], send: Send) -> None:
    """Serve a script or style, or the page itself for any other path."""
    if method not in ("GET", "HEAD"):
        raise WrongMethodError(f"{path} does not take {method}", hint="Use GET.")
    response_headers: list[Header] = [*SECURITY_HEADERS, (b"vary", b"accept-encoding")]
    name = path.removeprefix(f"{ROOT}/static/")
    if name != path:
        version, _, file = name.rpartition("/")
        if not _STATIC.fullmatch(file) or (page := static_file(file)) is None:
            raise UnknownPathError(f"Unknown file {path[:100]}")
        kind = _TYPES[file.rpartition(".")[2]]
        if version == static_version():
            response_headers.append((b"cache-control", b"public, max-age=31536000, immutable"))
    else:
        page = _index()
        kind = b"text/html; charset=utf-8"
    response_headers.append((b"etag", page.tag))
    if headers.get(b"if-none-match") == page.tag:
        await send_page(send, 304, b"", kind, response_headers)
    elif b"gzip" in headers.get(b"accept-encoding", b""):
        await send_page(send, 200, page.zipped, kind, [*response_headers, (b"content-encoding", b"gzip")])
    else:
        await send_page(send, 200, page.body, kind, response_headers)


class StaticFile(NamedTuple):
    """A static file: its bytes, the gzipped bytes, and its entity tag."""

    body: bytes
    zipped: bytes
    tag: bytes

    @classmethod
    def of(cls, body: bytes) -> StaticFile:
        """Compress and hash these bytes."""
        return cls(body, gzip.compress(body, mtime=0), b'"%s"' % hashlib.sha256(body).hexdigest()[:20].encode())


@cache
def static_file(name: str) -> StaticFile | None:
    """Return a static file; None where it does not exist."""
    file = resources.files("slipform.addons.server.console").joinpath("static", name)
    if file.is_file():
        return StaticFile.of(file.read_bytes())
    return None


@cache
def static_version() -> str:
    """Return the version in the paths of this build's files, which lets browsers cache them permanently."""
    folder = resources.files("slipform.addons.server.console").joinpath("static")
    files = sorted((file.name, file.read_bytes()) for file in folder.iterdir() if file.is_file())
    return hashlib.sha256(b"".join(body for _, body in files)).hexdigest()[:12]


@cache
def _index() -> StaticFile:
    page = static_file("index.html")
    if page is None:
        raise UnknownPathError("The console's page is not in this build")
    return StaticFile.of(page.body.replace(b"/static/", b"/static/%s/" % static_version().encode()))

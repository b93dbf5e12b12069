"""Encode requests and parse responses of HTTP/1.1, within limits on everything a server sends.

llhttp (through httptools) parses the framing and refuses ambiguity: bare line feeds, repeated or odd content lengths,
odd chunk sizes, a length beside chunks, control characters in headers. Stricter rules and all limits on sizes and
numbers are checked here: llhttp has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from slipform.providers.network.content_encoding import OFFERED, BodyDecoder, decoder_for
from slipform.providers.network.transport import HttpRequest, ProtocolError

MAX_ANSWER_BYTES = 64 << 20
_MAX_HEAD_BYTES = 1 << 16
_MAX_HEADERS = 256
_MAX_INTERIM = 16
_NO_BODY = (204, 304)
_UNSENDABLE = re.compile(r"[\r\n\0]")
_KEEP_ALIVE = re.compile(r"(?:^|[,;\s])timeout\s*=\s*(\d{1,6})", re.IGNORECASE)
_DEFAULT_IDLE_SECONDS = 4.0
"""Below 5: the most common server of models (uvicorn, so vLLM) closes idle connections after 5 seconds."""
_MAX_IDLE_SECONDS = 60.0
_RACE_SECONDS = 2.0
"""How soon a reused connection fails if its server had closed it before the request arrived."""


def encode_head(request: HttpRequest, target: str, host: str, proxy_authorization: str | None = None) -> bytes:
    r"""Return the head of a request without the length; raises `ProtocolError` for text that would break its framing.

    >>> encode_head(HttpRequest("http://a/x", {}, b"{}", streamed=True), "/x", "a")
    b'POST /x HTTP/1.1\r\nhost: a\r\naccept-encoding: identity\r\n'
    """
    headers = request.headers
    if proxy_authorization is not None:
        headers = {**headers, "proxy-authorization": proxy_authorization}
    accepted = "identity" if request.streamed else OFFERED
    return _encode_lines(request.method, target, host, accepted, headers)


def with_body(head: bytes, request: HttpRequest) -> bytes:
    """Return the bytes of a request with this head; for an uploaded body, only the head."""
    if request.upload is not None:
        length = request.upload.length
        framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
        return b"%b%b\r\n\r\n" % (head, framing)
    return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(request.body), request.body)


def encode_connect(host: str, port: int, authorization: str | None) -> bytes:
    """Return the bytes of the request for a tunnel through a proxy."""
    headers = {} if authorization is None else {"proxy-authorization": authorization}
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _encode_lines("CONNECT", address, address, "identity", headers) + b"\r\n"


def _encode_lines(method: str, target: str, host: str, accepted: str, headers: Mapping[str, str]) -> bytes:
    if _UNSENDABLE.search(target) or " " in target:
        raise ProtocolError("the address holds a space or a line break", "setup")
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", f"accept-encoding: {accepted}"]
    for name, value in headers.items():
        if not name.isascii() or _UNSENDABLE.search(value) or _UNSENDABLE.search(name) or ":" in name:
            raise ProtocolError(f"the header {name!r} cannot be sent: it holds a line break or the like", "setup")
        lines.append(f"{name}: {value}")
    return "\r\n".join((*lines, "")).encode("latin-1", "replace")


class ResponseReader:
    r"""Parses the responses of one connection, one after the other: `begin`, `feed` what arrives, `take` the body.

    >>> reader = ResponseReader()
    >>> reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
    >>> reader.status, reader.take(), reader.take(), reader.reusable
    (200, b'hi', b'', True)
    """

    __slots__ = (
        "_at_eof", "_body", "_bytes_without_body", "_decoder", "_has_surplus", "_interim", "_keeps_alive", "_limit",
        "_lines", "_max_bytes", "_parser", "_refusal", "_size", "_until_eof", "done", "has_head", "headers", "on_body",
        "started", "status",
    )  # fmt: skip

    def __init__(self, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._max_bytes = max_bytes
        self._body: list[bytes] = []
        self.on_body = self._body.append
        """A callback of the parser."""
        self._at_eof = False
        self._parser = HttpResponseParser(self)
        self.begin()

    def begin(self, max_bytes: int | None = None) -> None:
        """Expect a new response; `max_bytes` replaces the reader's own limit."""
        self._limit = self._max_bytes if max_bytes is None else max_bytes
        self.status = 0
        self.headers: dict[str, str] = {}
        self.started = False
        """Whether any byte has arrived."""
        self.has_head = False
        """Whether status and headers are known."""
        self.done = False
        """Whether the response has been received to its end."""
        self._body.clear()
        self._decoder: BodyDecoder | None = None
        self._size = 0
        self._interim = 0
        self._lines: list[tuple[bytes, bytes]] = []
        """Headers or trailers whose block is not complete; `feed` limits how many bytes come without its end."""
        self._bytes_without_body = 0
        """Bytes of reads without any part of a body: the head, trailers, chunk extensions."""
        self._has_surplus = False
        self._keeps_alive = False
        self._until_eof = False
        self._refusal: ProtocolError | None = None

    @property
    def fully_read(self) -> bool:
        """Whether all of the body has been taken, and its compression checked."""
        return self.done and not self._body and self._decoder is None

    def take_whole(self) -> bytes | None:
        """Return the whole body if it has been received, none of it was taken, and it is not compressed; else None."""
        if not self.done or self._decoder is not None:
            return None
        return self.take()

    @property
    def is_drained(self) -> bool:
        """Whether `take` needs more input."""
        return not self.done and self._decoder is None

    @property
    def has_backlog(self) -> bool:
        """Whether `take` has more to decompress; on an event loop, other tasks should run first."""
        return self._decoder is not None and self._decoder.has_more

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.idle_seconds > 0

    @property
    def idle_seconds(self) -> float:
        """How long the connection may be idle: less than its server waits; 0 if it ends with this response."""
        if not self.done or not self._keeps_alive or self._has_surplus or self._at_eof:
            return 0.0
        header = self.headers.get("keep-alive")
        match = None if header is None else _KEEP_ALIVE.search(header)
        if match is None:
            return _DEFAULT_IDLE_SECONDS
        return min(float(match[1]) - 1, _MAX_IDLE_SECONDS)

    def end_after(self) -> None:
        """End the connection with this response: its request was not sent to the end."""
        self._at_eof = True

    def feed(self, data: bytes | memoryview) -> None:
        """Parse received bytes; raises `ProtocolError` if they are malformed or exceed a limit."""
        self.started = True
        pieces_before = len(self._body)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self._refusal is not None:
                raise self._refusal from None
            if not self.done:
                raise ProtocolError(f"the answer is not valid HTTP/1.1: {error}") from error
            self._has_surplus = True
        if len(self._body) == pieces_before and not self.done:
            self._bytes_without_body += len(data)
            if self._bytes_without_body > _MAX_HEAD_BYTES:
                raise ProtocolError(f"the head of the answer is larger than {_MAX_HEAD_BYTES} bytes", "too_large")

    def feed_eof(self) -> None:
        """Handle the end of the connection; raises `ProtocolError` if the response had not ended."""
        self._at_eof = True
        if self.has_head and self._until_eof:
            self.done = True
        elif not self.done:
            when = "in the middle of the answer" if self.has_head else "without an answer"
            raise ProtocolError(f"the server closed the connection {when}", "broken")

    def take(self) -> bytes | None:
        """Return the bytes of the body received so far; empty at the body's end, None if more must be fed first."""
        body = self._body
        if self._decoder is not None:
            return self._take_decoded(self._decoder)
        if not body:
            return b"" if self.done else None
        data = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        self._size += len(data)
        if self._size > self._limit:
            raise self._too_large()
        return data

    def _take_decoded(self, decoder: BodyDecoder) -> bytes | None:
        for piece in self._body:
            decoder.feed(piece)
        self._body.clear()
        data = decoder.decode()
        if data is not None:
            self._size += len(data)
            if self._size > self._limit:
                raise self._too_large()
        elif self.done:
            decoder.finish()
            self._decoder = None
            return b""
        return data

    def _too_large(self) -> ProtocolError:
        return ProtocolError(f"the answer is larger than {self._limit} bytes", "too_large")

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Refuse a second response to one request."""
        if self.done:
            raise ProtocolError("the server sent more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header or trailer until its block is complete."""
        lines = self._lines
        lines.append((name, value))
        if len(lines) > _MAX_HEADERS:
            self._refuse_head()

    def _refuse_head(self) -> NoReturn:
        self._refuse(
            ProtocolError(f"the answer has over {_MAX_HEADERS} headers, or {_MAX_HEAD_BYTES} bytes", "too_large")
        )

    def _take_headers(self) -> dict[str, str]:
        """Return the headers or trailers of a complete block, if they are not too large."""
        headers: dict[str, str] = {}
        size = 0
        for name, value in self._lines:
            size += len(name) + len(value)
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1").strip()
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        self._lines = []
        if size > _MAX_HEAD_BYTES:
            self._refuse_head()
        return headers

    def on_headers_complete(self) -> None:
        """Check the head, and set up the body."""
        if self.done:
            return
        status = self._parser.get_status_code()
        headers = self._take_headers()
        if 100 <= status < 200:
            self._skip_interim(status)
            return
        self.headers = headers
        if not 200 <= status < 600:
            self._refuse(ProtocolError(f"the answer has the status {status:03}, which means nothing"))
        coding = headers.get("transfer-encoding")
        version = self._parser.get_http_version()
        if version != "1.1" and (version != "1.0" or coding is not None):
            self._refuse(ProtocolError(f"the answer is in HTTP/{version}, or has chunks in HTTP/1.0"))
        if coding is not None and coding.lower() != "chunked":
            self._refuse(
                ProtocolError(f"the answer has the transfer encoding {coding[:40]!r}, which was not requested")
            )
        length = headers.get("content-length")
        self._until_eof = coding is None and length is None and status not in _NO_BODY
        self._keeps_alive = self._parser.should_keep_alive()
        encoding = headers.get("content-encoding")
        if encoding and encoding.lower() != "identity" and status not in _NO_BODY:
            self._decode(encoding)
        elif length is not None and int(length) > self._limit:
            self._refuse(self._too_large())
        self.status = status
        self.has_head = True

    def _decode(self, encoding: str) -> None:
        try:
            self._decoder = decoder_for(encoding)
        except ProtocolError as error:
            self._refuse(error)

    def on_message_complete(self) -> None:
        """Handle the end of the response, or of an interim one."""
        if self.has_head:
            self.done = True
            if self._lines:
                self._take_headers()

    def _skip_interim(self, status: int) -> None:
        """Skip an interim response."""
        self._interim += 1
        if status == 101:
            self._refuse(ProtocolError("the server switches to another protocol, which was not requested"))
        if self._interim > _MAX_INTERIM:
            self._refuse(ProtocolError(f"the answer has more than {_MAX_INTERIM} interim answers before it"))

    def _refuse(self, error: ProtocolError) -> NoReturn:
        """Raise, and remember the error, because the parser replaces it by one of its own."""
        self._refusal = error
        raise error


def is_stale(error: OSError | ProtocolError, reader: ResponseReader, seconds: float) -> bool:
    """Return whether a reused connection had been closed by its server, so that the request may be sent again.

    It failed (without a timeout) soon after the request, and before any byte of a response. A server that takes longer
    has received the request, and may have acted on it.
    """
    is_broken = error.reason == "broken" if isinstance(error, ProtocolError) else not isinstance(error, TimeoutError)
    return is_broken and not reader.started and seconds < _RACE_SECONDS


def check_tunnel(reader: ResponseReader) -> None:
    """Raise `ProtocolError` unless this response of a proxy opens a tunnel."""
    if not 200 <= reader.status < 300:
        # 4xx concerns the request or the credentials, which would be the same in a retry.
        message = f"the proxy refused the connection with status {reader.status}"
        raise ProtocolError(message, "broken" if reader.status >= 500 else "setup")
    if reader.take():
        raise ProtocolError("the proxy sent more than its answer before the tunnel was used")

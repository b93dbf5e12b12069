"""One connection to one server, without I/O: generators that say which bytes to send and when to receive.

A generator yields bytes to be sent, or None to be given what arrives (nothing at the end of the connection).
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Generator
from typing import TypeAlias, TypeVar

from slipform.providers.http1 import AnswerReader, ProtocolError, spell_request
from slipform.providers.place import Place
from slipform.providers.transport import HttpRequest

Result = TypeVar("Result")
Talk: TypeAlias = Generator[bytes | None, bytes, Result]


class Link:
    """The bytes' side of a connection: TLS when the place is secure, then HTTP/1.1."""

    __slots__ = ("_in", "_out", "_tls", "asked", "place", "reader")

    def __init__(self, place: Place, context: ssl.SSLContext | None) -> None:
        self.place = place
        self.reader = AnswerReader()
        self.asked = False
        """Whether the last request was handed over to its last byte."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        if place.secure and context is not None:
            self._tls = context.wrap_bio(self._in, self._out, server_hostname=place.host)

    def greet(self) -> Talk[None]:
        """What comes before the first request: the proxy's tunnel and the TLS handshake."""
        if self.place.proxy is not None and self.place.secure:
            yield from self._tunnel()
        if self._tls is None:
            return
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                yield from self._flush()
                data = yield None
                if data:
                    self._in.write(data)
                else:
                    self._in.write_eof()
            else:
                yield from self._flush()
                return

    def ask(self, request: HttpRequest, target: str) -> bytes:
        """What to send for a request; whoever sends it says so with `asked`."""
        self.reader = AnswerReader()
        self.asked = False
        place, headers = self.place, request.headers
        if place.proxy is not None and not place.secure:
            headers = {**headers, **self._proxy_headers()}
        data = spell_request(request.method, target, place.authority, headers, request.body)
        if self._tls is None:
            return data
        self._tls.write(data)
        return self._out.read()

    def exchange(self, request: HttpRequest, target: str) -> Talk[None]:
        """Send the request, and receive until status and headers of its answer are known."""
        yield self.ask(request, target)
        self.asked = True
        while not self.reader.has_head:
            yield from self._receive()

    def more(self) -> Talk[bytes]:
        """The next bytes of the body; empty at its end."""
        while True:
            data = self.reader.take()
            if data is not None:
                return data
            yield from self._receive()

    def take_in(self, data: bytes) -> bool:
        """Give the reader what was received, deciphered; tells whether more may come. No bytes: it has ended."""
        if self._tls is None:
            self.reader.feed(data)
            return bool(data)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()
        while True:
            try:
                plain = self._tls.read(1 << 16)
            except ssl.SSLWantReadError:
                return True
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                plain = b""
            self.reader.feed(plain)
            if not plain:
                return False

    @property
    def owes(self) -> bool:
        """Whether TLS has something to send before more is received."""
        return self._tls is not None and self._out.pending > 0

    def owed(self) -> bytes:
        """What TLS has to send by itself."""
        return self._out.read()

    def _receive(self) -> Talk[None]:
        if self.take_in((yield None)):
            yield from self._flush()

    def _flush(self) -> Talk[None]:
        if self._out.pending:
            yield self._out.read()

    def _tunnel(self) -> Talk[None]:
        yield (
            f"CONNECT {self.place.host}:{self.place.port} HTTP/1.1\r\nhost: {self.place.host}:{self.place.port}\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in self._proxy_headers().items())
            + "\r\n"
        ).encode()
        seen = b""
        while b"\r\n\r\n" not in seen:
            data = yield None
            seen += data
            if not data or len(seen) > 1 << 16:
                raise ProtocolError("the proxy gave no answer")
        status = seen.split(b" ", 2)[1:2]
        if status != [b"200"]:
            line = seen.split(b"\r\n", 1)[0][:80].decode("latin-1")
            raise ProtocolError(f"the proxy refused the connection: {line}")

    def _proxy_headers(self) -> dict[str, str]:
        if self.place.proxy_login is None:
            return {}
        return {"proxy-authorization": f"Basic {base64.b64encode(self.place.proxy_login.encode()).decode()}"}

"""Decompress an answer's body in small steps, and refuse what is cut short, damaged or a decompression bomb.

A step reads at most `_INPUT` bytes and makes at most `_OUTPUT`, so that neither the event loop nor memory depends on
how far a body unfolds. The three libraries differ in how they say that more output waits; `_Codec` is what they share.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from slipform.providers.network.transport import ProtocolError

OFFERED = "gzip, br, zstd"
"""What `accept-encoding` says."""

_INPUT = 1 << 12
_OUTPUT = 1 << 18
_MAX_RATIO = 200
_RATIO_FROM = 1 << 20
"""Decompressed bytes from which the ratio counts: a small answer may well repeat itself."""


class _Codec(Protocol):
    """One compressed stream being read."""

    finished: bool
    hungry: bool
    """Whether it needs more input to make more output."""
    unused: bytes
    """What came after the end of the stream."""

    def decode(self, data: bytes) -> bytes:
        """At most `_OUTPUT` bytes; call it with nothing until it is hungry."""
        ...


class BodyDecoder:
    r"""Decompresses one body: `feed` what arrives, `decode` until it returns None.

    >>> decoder = decoder_for("gzip")
    >>> decoder.feed(zlib.compress(b"hello", wbits=31))
    >>> decoder.decode(), decoder.decode(), decoder.finish()
    (b'hello', None, None)
    """

    __slots__ = ("_codec", "_input", "_made", "_name", "_new_codec", "_used")

    def __init__(self, name: str, new_codec: Callable[[], _Codec]) -> None:
        self._name = name
        self._new_codec = new_codec
        self._codec = new_codec()
        self._input: deque[bytes] = deque()
        self._used = 0
        self._made = 0

    @property
    def has_more(self) -> bool:
        """Whether `decode` has something to work on."""
        return bool(self._input) or not (self._codec.hungry or self._codec.finished)

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._input.append(data)

    def decode(self) -> bytes | None:
        """The next bytes of the body, None when more must be fed first."""
        while self.has_more:
            data = self._next_input()
            try:
                made = self._codec.decode(data)
            except Exception as error:
                # zlib.error, brotli.error and ZstdError have nothing in common but this base.
                raise ProtocolError(f"the answer's {self._name} compression is broken: {error}") from error
            if self._codec.finished and self._codec.unused:
                self._input.appendleft(self._codec.unused)
                self._used -= len(self._codec.unused)
            self._made += len(made)
            if self._made > _RATIO_FROM and self._made > self._used * _MAX_RATIO:
                raise ProtocolError(
                    f"the answer's {self._name} compression unfolds more than {_MAX_RATIO} times", "too_large"
                )
            if made:
                return made
        return None

    def finish(self) -> None:
        """The body has ended; raises if the compressed stream has not."""
        if self._used and not self._codec.finished:
            raise ProtocolError(f"the answer's {self._name} compression is cut short")

    def _next_input(self) -> bytes:
        if not self._codec.hungry and not self._codec.finished:
            return b""
        data = self._input.popleft()
        if self._codec.finished:  # several streams in a row are one body, in gzip (RFC 1952) and zstd (RFC 8878)
            self._codec = self._new_codec()
        if len(data) > _INPUT:
            self._input.appendleft(data[_INPUT:])
            data = data[:_INPUT]
        self._used += len(data)
        return data


class _Zlib:
    __slots__ = ("_stream", "finished", "hungry", "unused")

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=47)  # the header says whether it is gzip or zlib
        self.finished = False
        self.hungry = True
        self.unused = b""

    def decode(self, data: bytes) -> bytes:
        stream = self._stream
        made = stream.decompress(stream.unconsumed_tail + data, _OUTPUT)
        self.finished, self.unused = stream.eof, stream.unused_data
        self.hungry = len(made) < _OUTPUT
        return made


class _Brotli:
    __slots__ = ("_stream", "finished", "hungry", "unused")

    def __init__(self) -> None:
        import brotli

        self._stream: Any = brotli.Decompressor()
        self.finished = False
        self.hungry = True
        self.unused = b""

    def decode(self, data: bytes) -> bytes:
        made: bytes = self._stream.process(data, output_buffer_limit=_OUTPUT)
        self.finished = self._stream.is_finished()
        self.hungry = len(made) < _OUTPUT and self._stream.can_accept_more_data()
        return made


class _Zstd:
    __slots__ = ("_stream", "finished", "hungry", "unused")

    def __init__(self) -> None:
        if sys.version_info >= (3, 14):
            from compression.zstd import ZstdDecompressor
        else:
            from backports.zstd import ZstdDecompressor

        self._stream = ZstdDecompressor()
        self.finished = False
        self.hungry = True
        self.unused = b""

    def decode(self, data: bytes) -> bytes:
        made: bytes = self._stream.decompress(data, _OUTPUT)
        self.finished, self.unused = self._stream.eof, self._stream.unused_data
        self.hungry = self._stream.needs_input
        return made


_CODECS: dict[str, Callable[[], _Codec]] = {
    "gzip": _Zlib,
    "x-gzip": _Zlib,
    "deflate": _Zlib,
    "br": _Brotli,
    "zstd": _Zstd,
}


def decoder_for(encoding: str) -> BodyDecoder:
    """The decoder for a `content-encoding`; raises if it is none that was offered."""
    new_codec = _CODECS.get(encoding.lower())
    if new_codec is None:
        raise ProtocolError(f"the answer has the content encoding {encoding[:40]!r}, which was not asked for")
    return BodyDecoder(encoding.lower(), new_codec)

"""Decompress a response's body in small steps, and refuse a truncated or damaged one and decompression bombs.

A step reads at most `_INPUT` bytes and returns at most `_OUTPUT`, so that neither the event loop nor memory depends on
the compression ratio. The three libraries differ in how they report pending output; `_Step` is their common form.
"""

from __future__ import annotations

import sys
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from slipform.providers.network.transport import ProtocolError

OFFERED = "gzip, br, zstd"
"""The value of `accept-encoding`."""

_INPUT = 1 << 12
_OUTPUT = 1 << 18
_MAX_RATIO = 200
_RATIO_FROM = 1 << 20
"""Decompressed bytes from which the ratio is checked: a small response may well be repetitive."""
_MAX_STREAMS = 1 << 12
"""Consecutive compressed streams: a decompressor costs far more than the dozen bytes of an empty one."""


class _Step(NamedTuple):
    """The result of one step of a decompressor."""

    data: bytes = b""
    needs_input: bool = True
    """Whether it needs more input to return more output."""
    finished: bool = False
    unused: bytes = b""
    """The bytes after the end of the compressed stream."""


_Decompress: TypeAlias = Callable[[bytes], _Step]
"""Called with b"" until it needs input."""


class BodyDecoder:
    r"""Decompresses one body: `feed` what arrives, `decode` until it returns None.

    >>> decoder = decoder_for("gzip")
    >>> decoder.feed(zlib.compress(b"hello", wbits=31))
    >>> decoder.decode(), decoder.decode(), decoder.finish()
    (b'hello', None, None)
    """

    __slots__ = ("_decompress", "_input", "_name", "_new_stream", "_read", "_step", "_streams", "_written")

    def __init__(self, name: str, new_stream: Callable[[], _Decompress]) -> None:
        self._name = name
        self._new_stream = new_stream
        self._decompress = new_stream()
        self._step = _Step()
        self._input: deque[memoryview] = deque()
        self._streams = 1
        self._read = 0
        self._written = 0

    @property
    def has_more(self) -> bool:
        """Whether `decode` has input to work on."""
        return bool(self._input) or not (self._step.needs_input or self._step.finished)

    def feed(self, data: bytes) -> None:
        """Add compressed bytes."""
        self._input.append(memoryview(data))

    def decode(self) -> bytes | None:
        """Return the next bytes of the body, None if more must be fed first; raises `ProtocolError`."""
        while self.has_more:
            data = self._next_input()
            try:
                step = self._step = self._decompress(data)
            except Exception as error:
                # zlib.error, brotli.error and ZstdError have only this base in common.
                raise ProtocolError(f"the answer's {self._name} compression is broken: {error}") from error
            if step.finished and step.unused:
                self._input.appendleft(memoryview(step.unused))
                self._read -= len(step.unused)
            self._written += len(step.data)
            if self._written > _RATIO_FROM and self._written > self._read * _MAX_RATIO:
                raise ProtocolError(
                    f"the answer's {self._name} compression unfolds more than {_MAX_RATIO} times", "too_large"
                )
            if step.data:
                return step.data
        return None

    def finish(self) -> None:
        """Raise `ProtocolError` if the body has ended before its compressed stream."""
        if self._read and not self._step.finished:
            raise ProtocolError(f"the answer's {self._name} compression is cut short")

    def _next_input(self) -> bytes:
        if not self._step.needs_input and not self._step.finished:
            return b""
        data = self._input.popleft()
        if self._step.finished:  # several streams in a row are one body, in gzip (RFC 1952) and zstd (RFC 8878)
            self._decompress = self._new_stream()
            self._streams += 1
            if self._streams > _MAX_STREAMS:
                raise ProtocolError(f"the answer's {self._name} compression has more than {_MAX_STREAMS} streams")
        if len(data) > _INPUT:
            self._input.appendleft(data[_INPUT:])
            data = data[:_INPUT]
        self._read += len(data)
        return bytes(data)


def _zlib() -> _Decompress:
    stream = zlib.decompressobj(wbits=47)  # the header says whether it is gzip or zlib

    def decompress(data: bytes) -> _Step:
        output = stream.decompress(stream.unconsumed_tail + data, _OUTPUT)
        return _Step(output, len(output) < _OUTPUT, stream.eof, stream.unused_data)

    return decompress


def _brotli() -> _Decompress:
    import brotli

    stream: Any = brotli.Decompressor()

    def decompress(data: bytes) -> _Step:
        output: bytes = stream.process(data, output_buffer_limit=_OUTPUT)
        return _Step(output, len(output) < _OUTPUT and stream.can_accept_more_data(), stream.is_finished())

    return decompress


def _zstd() -> _Decompress:
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdDecompressor
    else:
        from backports.zstd import ZstdDecompressor

    stream = ZstdDecompressor()

    def decompress(data: bytes) -> _Step:
        output: bytes = stream.decompress(data, _OUTPUT)
        return _Step(output, stream.needs_input, stream.eof, stream.unused_data)

    return decompress


_STREAMS: dict[str, Callable[[], _Decompress]] = {
    "gzip": _zlib, "x-gzip": _zlib, "deflate": _zlib, "br": _brotli, "zstd": _zstd,
}  # fmt: skip


def decoder_for(encoding: str) -> BodyDecoder:
    """Return the decoder for a `content-encoding`; raises `ProtocolError` for one that was not offered."""
    new_stream = _STREAMS.get(encoding.lower())
    if new_stream is None:
        raise ProtocolError(f"the answer has the content encoding {encoding[:40]!r}, which was not requested")
    return BodyDecoder(encoding.lower(), new_stream)

r"""Mask the operator's keys in all responses of vendors, before anything else reads them.

Vendors and gateways sometimes repeat the key they were called with, in errors, in 200 bodies and in headers. This is
the one place where a vendor's bytes arrive and the key of the call is known, so forwarded and enforced answers, logs
and traces all receive the masked form. A mask is as long as the text it covers: announced lengths stay correct.

A key is found in plain form, URL-quoted, and escaped as JSON libraries do (`\/`, `\u003d`); also if it is split across
two reads. It is not found in other encodings (base64, one letter per event), and keys of less than `MIN_MASKED`
characters are not masked: local servers are given keys like `ollama`, which are words of answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from slipform.providers.auth import MASK
from slipform.providers.network.transport import AsyncByteStream, ByteStream, Push


class Masker:
    """Masks words in bytes that arrive in pieces; holds back the end of a piece that may begin a word.

    >>> masker = Masker((b"sk-12345678",))
    >>> masker.feed(b'{"key": "sk-123'), masker.feed(b'45678"}'), masker.finish()
    (b'{"key": "', b'[redacted]*"}', b'')
    """

    __slots__ = ("_pending", "_words")

    def __init__(self, words: tuple[bytes, ...]) -> None:
        self._words = tuple([(word, word[:1], 1 - len(word)) for word in words])
        """Each word with its first letter, and the offset from a piece's end at which its beginning may start."""
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that can be passed on now, with the words masked."""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        partial_size = 0
        for word, _, _ in self._words:
            if data.find(word) >= 0:
                data = data.replace(word, mask_of(word))
        # Called for every event of a stream; few contain a word's first letter.
        for word, letter, tail in self._words:
            start = data.find(letter, tail)
            if start >= 0:
                partial_size = max(partial_size, _partial_size(data, word, start))
        if partial_size:
            self._pending = data[-partial_size:]
            data = data[:-partial_size]
        return data

    def finish(self) -> bytes:
        """Return the pending bytes; nothing follows them."""
        data = self._pending
        self._pending = b""
        return data


def mask_whole(data: bytes, words: tuple[bytes, ...]) -> bytes:
    """Return a complete body with the words masked."""
    for word in words:
        if data.find(word) >= 0:  # `in` first tries the word as a number, which costs more
            data = data.replace(word, mask_of(word))
    return data


def _partial_size(data: bytes, word: bytes, start: int) -> int:
    """Return how many bytes at the end may begin a word, whose first letter occurs here for the first time."""
    while start >= 0:
        if word.startswith(data[start:]):
            return len(data) - start
        start = data.find(word[:1], start + 1)
    return 0


def mask_of(word: bytes) -> bytes:
    """Return a mask of the same length.

    >>> mask_of(b"sk-1234567890"), mask_of(b"sk-12345")
    (b'[redacted]***', b'********')
    """
    if len(word) >= len(MASK):
        return MASK.encode().ljust(len(word), b"*")
    return b"*" * len(word)


@lru_cache(maxsize=64)
def _as_text(words: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple([word.decode("utf-8", "surrogatepass") for word in words])


def masked(stream: ByteStream, words: tuple[bytes, ...]) -> ByteStream:
    """Return a response with these words masked: the `spellings` of a call's secrets."""
    return MaskedStream(stream, words) if words else stream


def masked_async(stream: AsyncByteStream, words: tuple[bytes, ...]) -> AsyncByteStream:
    """Return a response with these words masked, for `async` callers."""
    if words:
        return AsyncMaskedStream(stream, words)
    return stream


def masked_headers(headers: Mapping[str, str], words: tuple[bytes, ...]) -> Mapping[str, str]:
    """Return a response's headers with words masked in their values."""
    text_words = _as_text(words)
    values = "\n".join(headers.values())
    for word in text_words:
        if word in values:
            break
    else:
        return headers
    changed = dict(headers)
    for name, value in headers.items():
        for word, covered in zip(text_words, words, strict=True):
            if word in value:
                changed[name] = value = value.replace(word, mask_of(covered).decode())
    return changed


class MaskedStream:
    """A response with words masked in its body and headers."""

    __slots__ = ("_masker", "_stream", "headers", "status")

    def __init__(self, stream: ByteStream, words: tuple[bytes, ...]) -> None:
        self._stream = stream
        self._masker = Masker(words)
        self.status: int = stream.status
        self.headers: Mapping[str, str] = masked_headers(stream.headers, words)

    def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end."""
        while data := self._stream.read():
            if masked := self._masker.feed(data):
                return masked
        return self._masker.finish()

    def close(self) -> None:
        """Stop."""
        self._stream.close()


class AsyncMaskedStream:
    """`MaskedStream`, for `async` callers."""

    __slots__ = ("_ended", "_masker", "_stream", "headers", "status")

    def __init__(self, stream: AsyncByteStream, words: tuple[bytes, ...]) -> None:
        self._stream = stream
        self._masker = Masker(words)
        self._ended = False
        self.status: int = stream.status
        self.headers: Mapping[str, str] = masked_headers(stream.headers, words)

    async def read(self) -> bytes:
        """Return the next bytes of the body; empty at its end."""
        while not self._ended and (data := await self._stream.read()):
            if masked := self._masker.feed(data):
                return masked
        self._ended = True
        return self._masker.finish()

    async def on_body(self, push: Push) -> None:
        """Call `push` with each piece of the body as it arrives, with b"" at its end, until it returns False."""
        masker = self._masker

        def push_masked(data: bytes) -> bool:
            if data:
                piece = masker.feed(data)
                return push(piece) if piece else True
            self._ended = True
            rest = masker.finish()
            # If the pending bytes are all that fits now, the next call reports the end.
            if rest and not push(rest):
                return False
            return push(b"")

        if self._ended:
            push(masker.finish())
        else:
            await self._stream.on_body(push_masked)

    async def close(self) -> None:
        """Stop."""
        await self._stream.close()

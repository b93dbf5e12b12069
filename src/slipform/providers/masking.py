r"""Mask the operator's keys in all that a vendor sends, before anything reads it.

Vendors and gateways do repeat the key they were called with, in errors, in 200 bodies and in headers. This is the one
place where a vendor's bytes come in and the key of the call is known, so passed-through and enforced answers, logs and
traces all get the masked ones. A mask is as long as what it covers: lengths that were announced stay true.

A key is found as it is, URL-quoted, and escaped as JSON libraries do (`\/`, `\u003d`); also where it is cut by two
reads. It is not found when the vendor spells it in some other way (base64, a letter in each event), and keys of less
than `MIN_MASKED` characters are left alone: local servers are given keys like `ollama`, which are words of answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from slipform.providers.auth import MASK
from slipform.providers.network.transport import AsyncByteStream, ByteStream, Push


class Masker:
    """Masks words in bytes that come in pieces; holds back the end of a piece that may be the beginning of a word.

    >>> masker = Masker((b"sk-12345678",))
    >>> masker.feed(b'{"key": "sk-123'), masker.feed(b'45678"}'), masker.finish()
    (b'{"key": "', b'[redacted]*"}', b'')
    """

    __slots__ = ("_pending", "_words")

    def __init__(self, words: tuple[bytes, ...]) -> None:
        self._words = tuple([(word, word[:1], 1 - len(word)) for word in words])
        """With each word its first letter, and where its beginning may be in the end of a piece."""
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be passed on now, with the words masked."""
        if self._pending:
            data = self._pending + data
            self._pending = b""
        partial_size = 0
        for word, _, _ in self._words:
            if data.find(word) >= 0:
                data = data.replace(word, mask_of(word))
        for word, letter, tail in self._words:  # every event of a stream passes here; hardly any has a word's letter
            start = data.find(letter, tail)
            if start >= 0:
                partial_size = max(partial_size, _partial_size(data, word, start))
        if partial_size:
            self._pending = data[-partial_size:]
            data = data[:-partial_size]
        return data

    def finish(self) -> bytes:
        """Return what is still pending, when nothing follows."""
        data = self._pending
        self._pending = b""
        return data


def mask_whole(data: bytes, words: tuple[bytes, ...]) -> bytes:
    """All there is of a body, with words masked."""
    for word in words:
        if data.find(word) >= 0:  # `in` first tries the word as a number, and that costs more
            data = data.replace(word, mask_of(word))
    return data


def _partial_size(data: bytes, word: bytes, start: int) -> int:
    """How many bytes at the end may be the beginning of a word, whose first letter stands here for the first time."""
    while start >= 0:
        if word.startswith(data[start:]):
            return len(data) - start
        start = data.find(word[:1], start + 1)
    return 0


def mask_of(word: bytes) -> bytes:
    """A mask of the same length.

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
    """An answer without any of these words in it: the `spellings` of a call's secrets."""
    return MaskedStream(stream, words) if words else stream


def masked_async(stream: AsyncByteStream, words: tuple[bytes, ...]) -> AsyncByteStream:
    """`masked`, for `async` callers."""
    if words:
        return AsyncMaskedStream(stream, words)
    return stream


def masked_headers(headers: Mapping[str, str], words: tuple[bytes, ...]) -> Mapping[str, str]:
    """The headers of an answer, with words masked in their values."""
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
    """An answer, with the words masked in its body and in its headers."""

    __slots__ = ("_masker", "_stream", "headers", "status")

    def __init__(self, stream: ByteStream, words: tuple[bytes, ...]) -> None:
        self._stream = stream
        self._masker = Masker(words)
        self.status: int = stream.status
        self.headers: Mapping[str, str] = masked_headers(stream.headers, words)

    def read(self) -> bytes:
        """The next bytes of the body; empty at its end."""
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
        """The next bytes of the body; empty at its end."""
        while not self._ended and (data := await self._stream.read()):
            if masked := self._masker.feed(data):
                return masked
        self._ended = True
        return self._masker.finish()

    async def on_body(self, push: Push) -> None:
        """Call `push` with each piece of the body as it arrives, with nothing at its end, until it returns False."""
        masker = self._masker

        def masking(data: bytes) -> bool:
            if data:
                piece = masker.feed(data)
                return push(piece) if piece else True
            self._ended = True
            rest = masker.finish()
            # The end is told by the next call where what was held back is as much as can be taken now.
            if rest and not push(rest):
                return False
            return push(b"")

        if self._ended:
            push(masker.finish())
        else:
            await self._stream.on_body(masking)

    async def close(self) -> None:
        """Stop."""
        await self._stream.close()

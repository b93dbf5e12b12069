"""Fetch images and documents that a request names by address, for vendors that take only their bytes.

Off unless the operator enables it. The URL is chosen by a caller, so it must be https, and its host is resolved once:
the connection goes to one of the resolved addresses, which must be public. Redirects follow the same rules. No proxy
from the environment is used, because it would resolve the name itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import urljoin, urlsplit

from slipform.config import FetchSettings
from slipform.errors import RequestError, TooLargeError
from slipform.ir import Media, Message, ModelRequest, Part, ToolResult
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.public_addresses import is_public
from slipform.providers.network.transport import AsyncByteStream, HttpRequest, Timeouts, TransportFault

_BYTES_ONLY: Final = {
    "ollama": frozenset({"image", "file"}),
    "bedrock": frozenset({"image", "file"}),
    "gemini": frozenset({"image", "file"}),
    "openai-chat": frozenset({"file"}),
    "cohere": frozenset({"file"}),
}
"""The kinds of media that the vendors of a codec accept only as bytes."""
_VENDORS_OWN: Final = ("generativelanguage.googleapis.com", "youtube.com", "youtu.be")
"""Hosts whose URLs Gemini reads itself."""
_TYPES: Final = {
    "image": ("image/png", "image/jpeg", "image/gif", "image/webp"),
    "file": ("application/pdf", "application/json", "text/"),
}
_MOST_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_LONGEST_URL: Final = 4096


class UnfetchableError(RequestError):
    """An image or a document cannot be fetched from the address that a request names."""

    code = "media_not_fetched"


class MediaFetcher:
    """Downloads the media of requests, within the limits of its settings."""

    def __init__(self, settings: FetchSettings, transport: HttpTransport | None = None) -> None:
        self._settings = settings
        self._transport = transport or HttpTransport(
            proxy="none", max_answer_bytes=settings.max_bytes, is_allowed=is_public
        )

    async def inlined(self, request: ModelRequest, codecs: Collection[str]) -> ModelRequest:
        """Return the request with the bytes of media whose URLs the vendors of these codecs do not accept.

        Raises `UnfetchableError` for media that cannot be downloaded, and `TooLargeError` beyond the limits.
        """
        kinds = frozenset[str]().union(*[_BYTES_ONLY.get(codec, frozenset()) for codec in codecs])
        by_url = {media.url: media for media in _media_in(request) if _needs_bytes(media, kinds)}
        if not by_url:
            return request
        if len(by_url) > self._settings.max_files:
            raise TooLargeError(
                f"The request names {len(by_url)} files by address, more than {self._settings.max_files}",
                where="messages",
                hint="Send their bytes.",
            )
        fetched: dict[str | None, Media] = {}
        left = self._settings.max_bytes
        try:
            async with asyncio.timeout(self._settings.seconds):
                for url, media in by_url.items():
                    fetched[url] = await self._fetch(media, left)
                    left -= len(fetched[url].data or b"")
        except TimeoutError:
            raise UnfetchableError(
                f"Files were not fetched within {self._settings.seconds:g} seconds", where="messages", hint=_SEND
            ) from None
        messages = tuple([_with_bytes(message, fetched, kinds) for message in request.messages])
        return request.replace(messages=messages)

    def close(self) -> None:
        """Close idle connections."""
        self._transport.close()

    async def _fetch(self, media: Media, most: int) -> Media:
        url = media.url or ""
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._open(url, media.kind)
            try:
                if answer.status in _REDIRECTS:
                    url = urljoin(url, answer.headers.get("location", ""))
                    continue
                return await _read(answer, media, url, most)
            finally:
                await answer.close()
        raise UnfetchableError(f"{_shown(url)} redirects too often", where="messages", hint=_SEND)

    async def _open(self, url: str, kind: str) -> AsyncByteStream:
        _check_address(url)
        seconds = self._settings.seconds
        headers = {"user-agent": "slipform", "accept": ", ".join(_TYPES[kind]).replace("text/", "text/*")}
        limits = Timeouts(seconds, seconds, seconds, seconds)
        request = HttpRequest(url, headers, b"", limits, method="GET")
        try:
            return await self._transport.open_async(request)
        except TransportFault as fault:
            raise _not_fetched(url, fault) from None


_SEND: Final = "Send the bytes themselves."


def _not_fetched(url: str, fault: TransportFault) -> RequestError:
    if fault.reason == "too_large":
        return TooLargeError(f"{_shown(url)} is larger than may be fetched", where="messages", hint=_SEND)
    # A caller must not learn whether a port is open, or which certificate is used there.
    return UnfetchableError(f"{_shown(url)} cannot be fetched", where="messages", hint=_SEND)


def _shown(url: str) -> str:
    return repr(url.partition("?")[0][:200])


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme == "https" and bool(parts.hostname) and parts.username is None
        is_usable = is_usable and len(url) <= _LONGEST_URL and url.isascii() and url.isprintable() and " " not in url
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UnfetchableError(
            f"{_shown(url)} is not an https address that can be fetched", where="messages", hint=_SEND
        )


async def _read(answer: AsyncByteStream, media: Media, url: str, most: int) -> Media:
    """Return the bytes and type of a response; raises for a type other than the part's, or too many bytes."""
    if answer.status != 200:
        raise UnfetchableError(
            f"{_shown(url)} cannot be fetched: it answers with {answer.status}", where="messages", hint=_SEND
        )
    mime_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not mime_type.startswith(_TYPES[media.kind]):
        raise UnfetchableError(f"{_shown(url)} is not a {media.kind} that is taken", where="messages", hint=_SEND)
    pieces: list[bytes] = []
    size = 0
    try:
        while data := await answer.read():
            pieces.append(data)
            size += len(data)
            if size > most:
                raise TooLargeError(f"{_shown(url)} is larger than may be fetched", where="messages", hint=_SEND)
    except TransportFault as fault:
        raise _not_fetched(url, fault) from None
    name = media.name or urlsplit(url).path.rpartition("/")[2] or None
    name = name if media.kind == "file" else media.name
    return dataclasses.replace(media, url=None, data=b"".join(pieces), mime_type=mime_type, name=name)


def _media_in(request: ModelRequest) -> Iterator[Media]:
    for message in request.messages:
        for part in message.parts:
            inner = part.parts if isinstance(part, ToolResult) else (part,)
            yield from (each for each in inner if isinstance(each, Media))


def _needs_bytes(media: Media, kinds: Collection[str]) -> bool:
    """Return whether a medium has to be downloaded: it has a web URL that is not on the vendor's own servers."""
    url = media.url
    if url is None or media.data is not None or media.kind not in kinds or media.kind not in _TYPES:
        return False
    if not url.startswith(("https://", "http://")):
        return False
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    return not any(host == each or host.endswith(f".{each}") for each in _VENDORS_OWN)


def _with_bytes(message: Message, fetched: dict[str | None, Media], kinds: Collection[str]) -> Message:
    def replaced(part: Part) -> Part:
        if isinstance(part, ToolResult):
            inner = tuple([replaced(each) for each in part.parts])
            return dataclasses.replace(part, parts=inner)  # type: ignore[arg-type]  # each is of the type it was
        if not isinstance(part, Media) or not _needs_bytes(part, kinds):
            return part
        bytes_of = fetched[part.url]
        return dataclasses.replace(part, url=None, data=bytes_of.data, mime_type=bytes_of.mime_type, name=bytes_of.name)

    if not any(isinstance(part, Media | ToolResult) for part in message.parts):
        return message
    return message.replace(parts=tuple([replaced(part) for part in message.parts]))

"""Which web pages may call: none, unless their origin is listed."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from slipform.server.http import Scope, Send
from slipform.server.record import Header

_DAY = b"86400"
_EXPOSED = (
    b"x-request-id, x-slipform-request-id, x-slipform-provider, x-slipform-model, x-slipform-strategy, "
    b"x-slipform-attempts, x-slipform-repaired, x-slipform-patched, x-slipform-warnings, x-slipform-cache, "
    b"x-slipform-fallbacks, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests"
)


class Cors:
    """Answers browsers that ask whether a page may call, and marks what such a page may read."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def marks(self, scope: Scope) -> list[Header]:
        """The headers that let the page read the answer, streams included."""
        return self._marks(dict(scope["headers"]))

    async def preflight(self, scope: Scope, send: Send) -> bool:
        """Answer a browser's question before the call; False when it is not one."""
        headers = dict(scope["headers"])
        if scope["method"] != "OPTIONS" or b"access-control-request-method" not in headers:
            return False
        marks = self._marks(headers)
        if any(name == b"access-control-allow-origin" for name, _ in marks):
            marks += [
                (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
                (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
                (b"access-control-max-age", _DAY),
            ]
        await send({"type": "http.response.start", "status": 204, "headers": marks})
        await send({"type": "http.response.body", "body": b""})
        return True

    def _marks(self, headers: dict[bytes, bytes]) -> list[Header]:
        origin = headers.get(b"origin")
        marks: list[Header] = [] if self._any else [(b"vary", b"origin")]
        if origin is not None and (self._any or origin in self._origins):
            allowed = b"*" if self._any else origin
            marks += [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED)]
        return marks


def with_headers(send: Send, headers: Sequence[Header]) -> Send:
    """The same `send`, adding these to the head of the response."""
    if not headers:
        return send

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return sending

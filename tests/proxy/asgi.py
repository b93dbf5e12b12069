"""An ASGI application called without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipform.addons.server import App


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    app: App, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, query: bytes = b""
) -> Reply:
    """One request; the client stays until the answer is whole."""
    sent: list[Any] = []
    asked: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> Any:
        return asked.pop() if asked else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    head, *rest = sent
    told = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
    return Reply(head["status"], told, b"".join(each["body"] for each in rest))


async def get(app: App, path: str, headers: Mapping[str, str] | None = None) -> Reply:
    return await call(app, "GET", path, b"", headers)


async def post(app: App, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await call(app, "POST", path, raw, {"content-type": "application/json", **(headers or {})})

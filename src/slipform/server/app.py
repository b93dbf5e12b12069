"""The proxy: an ASGI application over the same engine as the library."""

from __future__ import annotations

import asyncio
import logging
import os
import time

from slipform.client import AsyncClient
from slipform.codecs.serving import Serving
from slipform.config import Settings
from slipform.errors import SlipformError
from slipform.providers.local import LocalProvider
from slipform.server.answers import answer
from slipform.server.apis import api_at, paths
from slipform.server.guard import Guard
from slipform.server.http import Receive, Scope, Send, read_body, send_bytes, send_json, until_gone
from slipform.server.inbound import read_call
from slipform.server.pages import health, model_list
from slipform.server.record import CallRecord

_log = logging.getLogger("slipform.server")


class App:
    """Serves the vendors' APIs; every answer with a schema is valid against it or is an error.

    >>> app = App(AsyncClient(), Settings())
    """

    def __init__(self, client: AsyncClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._guard = Guard(settings)
        self._started = int(time.time())
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._warming = asyncio.create_task(self._warm())
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._warming is not None:
                    await self._warming
                await self._client.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _warm(self) -> None:
        """Load the embedded model before the first request wants it, when it is the default."""
        try:
            provider, _ = self._client.router.resolve(None)
            if isinstance(provider, LocalProvider):
                await asyncio.to_thread(provider.warm)
        except SlipformError as error:
            _log.warning("%s", error)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        api = api_at(path)
        if method == "GET" and path == "/healthz":
            await send_json(send, 200, health())
        elif method == "GET" and path == "/v1/models":
            await send_json(send, 200, model_list(self._client.router.names(), self._started))
        elif api is None or method != "POST":
            status = 404 if api is None else 405
            said = f"There is nothing at {method} {path}; slipform serves {paths()}"
            error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
            await send_json(send, status, {"error": error})
        else:
            await self._serve(api, scope, receive, send)

    async def _serve(self, api: Serving, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        record = CallRecord(os.urandom(16).hex(), api=api.name)
        client = scope.get("client")
        try:
            async with self._guard.admit(headers, client[0] if client else "") as caller:
                record.caller = caller.name
                body = await read_body(receive, self._settings.server.max_body_bytes)
                inbound = await read_call(
                    api,
                    body,
                    record,
                    path=scope["path"],
                    headers=headers,
                    client=self._client,
                    settings=self._settings,
                )
                await until_gone(answer(inbound, self._client, self._settings, send), receive)
        except SlipformError as error:
            await self._failed(api, record, error, send)
        except Exception:  # noqa: BLE001 — the caller gets an error in the right shape, the log the traceback
            _log.exception("unexpected error on %s", scope["path"])
            await self._failed(
                api, record, SlipformError("An unexpected error inside slipform", hint="See the server's log."), send
            )

    async def _failed(self, api: Serving, record: CallRecord, error: SlipformError, send: Send) -> None:
        record.outcome = error.code
        record.status, body = api.encode_error(error)
        await send_bytes(send, record.status, body, record.headers())

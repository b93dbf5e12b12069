"""The proxy: an ASGI application over the same engine as the library."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from slipform.client import AsyncClient
from slipform.codecs.serving import ServedRequest, Serving
from slipform.config import Settings
from slipform.errors import RequestError, SlipformError
from slipform.ir import CompletionChunk, ModelRequest
from slipform.providers.local import LocalProvider
from slipform.schema import Schema, is_large
from slipform.server.apis import api_at, paths
from slipform.server.http import Receive, Scope, Send, read_body, send_bytes, send_json, send_start, until_gone

_log = logging.getLogger("slipform.server")


class App:
    """Serves the vendors' APIs; every answer with a schema is valid against it or is an error.

    >>> app = App(AsyncClient(), Settings())
    """

    def __init__(self, client: AsyncClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
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
        if method == "GET" and path == "/healthz":
            await send_json(send, 200, {"status": "ok"})
        elif method == "GET" and path == "/v1/models":
            await send_json(send, 200, self._models())
        else:
            await self._serve(method, path, receive, send)

    def _models(self) -> dict[str, Any]:
        entries = [
            {"id": name, "object": "model", "created": self._started, "owned_by": "slipform"}
            for name in self._client.router.names()
        ]
        return {"object": "list", "data": entries}

    async def _serve(self, method: str, path: str, receive: Receive, send: Send) -> None:
        api = api_at(path)
        if api is None or method != "POST":
            status = 404 if api is None else 405
            said = f"There is nothing at {method} {path}; slipform serves {paths()}"
            error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
            await send_json(send, status, {"error": error})
            return
        try:
            body = await read_body(receive, self._settings.server.max_body_bytes)
            served = await _decoded(api, body, path)
            work = self._stream(api, served, send) if served.stream else self._whole(api, served, send)
            await until_gone(work, receive)
        except SlipformError as error:
            await send_bytes(send, *api.encode_error(error))
        except Exception:  # noqa: BLE001 — the caller gets an error in the right shape, the log the traceback
            _log.exception("unexpected error on %s", path)
            failed = SlipformError("An unexpected error inside slipform", hint="See the server's log.")
            await send_bytes(send, *api.encode_error(failed))

    async def _whole(self, api: Serving, served: ServedRequest, send: Send) -> None:
        if _is_enforced(served.request):
            response = (await self._client.respond(served.request)).answer
        else:
            response = await self._client.complete(served.request)
        await send_bytes(send, 200, api.encode_response(response, served))

    async def _stream(self, api: Serving, served: ServedRequest, send: Send) -> None:
        if _is_enforced(served.request) and self._settings.enforcement.stream_mode == "reject":
            raise RequestError(
                "Streaming with a schema is switched off here", hint="Send the request without `stream`."
            )
        encoder = api.encode_stream(served)
        started = False
        try:
            async for chunk in self._chunks(served.request):
                if data := encoder.feed(chunk):
                    if not started:
                        started = True
                        await send_start(send, 200, api.content_type_stream.encode())
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            last = encoder.finish()
        except SlipformError as error:
            if not started:
                raise
            last = encoder.fail(error)
        if not started:
            await send_start(send, 200, api.content_type_stream.encode())
        await send({"type": "http.response.body", "body": last})

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        if not _is_enforced(request):
            async for chunk in self._client.complete_stream(request):
                yield chunk
            return
        live = self._settings.enforcement.stream_mode != "buffer"
        async for piece in self._client.respond_stream(request, live=live):
            if isinstance(piece, CompletionChunk):
                yield piece


async def _decoded(api: Serving, body: bytes, path: str) -> ServedRequest:
    """The request, checked; a large one is read, and its schema made ready, off the event loop."""
    if is_large(body):
        return await asyncio.to_thread(_decode_and_compile, api, body, path)
    return _decode(api, body, path)


def _decode(api: Serving, body: bytes, path: str) -> ServedRequest:
    served = api.decode_request(body, path=path)
    _check(served.request)
    return served


def _decode_and_compile(api: Serving, body: bytes, path: str) -> ServedRequest:
    served = _decode(api, body, path)
    if served.request.response_format is not None:
        Schema.of(served.request.response_format.json_schema)  # kept, so that the event loop finds it ready
    return served


def _check(request: ModelRequest) -> None:
    if not request.messages:
        raise RequestError("There are no messages", where="messages", hint="Send at least one.")
    if _is_enforced(request) and request.extra.get("n") not in (None, 1):
        raise RequestError("One answer is enforced per request", where="n", hint="Leave `n` out, or ask again.")


def _is_enforced(request: ModelRequest) -> bool:
    return request.response_format is not None or request.json_mode or bool(request.tools)

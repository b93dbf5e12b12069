"""The proxy: an ASGI application over the same engine as the library."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from slipform.client import AsyncClient
from slipform.enforce import Outcome
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.server import openai_chat as chat
from slipform.server.http import Receive, Scope, Send, read_json, send_event, send_json, send_start, until_gone

MAX_BODY = 8 * 1024 * 1024
MAX_ATTEMPTS = 3

_log = logging.getLogger("slipform.server")


class App:
    """Serves OpenAI's chat API; every answer with a schema is valid against it or is an error.

    >>> app = App(AsyncClient())
    """

    def __init__(self, client: AsyncClient | None = None) -> None:
        self._client = client or AsyncClient(max_attempts=MAX_ATTEMPTS)
        self._routes: dict[tuple[str, str], Callable[[Receive, Send], Awaitable[None]]] = {
            ("GET", "/healthz"): self._health,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/chat/completions"): self._chat,
        }
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
                await self._stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _warm(self) -> None:
        try:
            await asyncio.to_thread(self._client.router.warm)
        except SlipformError as error:
            _log.warning("%s", error)

    async def _stop(self) -> None:
        if self._warming is not None:
            await self._warming
        await self._client.close()

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._routes.get((scope["method"], scope["path"]))
        if handler is None:
            await send_json(send, *self._no_route(scope))
            return
        try:
            await handler(receive, send)
        except SlipformError as error:
            await send_json(send, error.http_status, chat.encode_error(error))
        except Exception:  # noqa: BLE001 — the caller gets an error in the right shape, the log the traceback
            _log.exception("unexpected error on %s", scope["path"])
            failed = SlipformError("An unexpected error inside slipform", hint="See the server's log.")
            await send_json(send, failed.http_status, chat.encode_error(failed))

    def _no_route(self, scope: Scope) -> tuple[int, dict[str, Any]]:
        methods = sorted(method for method, path in self._routes if path == scope["path"])
        if methods:
            status, said = 405, f"{scope['path']} takes {', '.join(methods)}, not {scope['method']}"
        else:
            paths = ", ".join(sorted({path for _, path in self._routes}))
            status, said = 404, f"There is nothing at {scope['path']}; slipform serves {paths}"
        return status, {"error": {"message": said, "type": "invalid_request_error", "param": None, "code": None}}

    async def _health(self, receive: Receive, send: Send) -> None:
        del receive
        await send_json(send, 200, {"status": "ok"})

    async def _models(self, receive: Receive, send: Send) -> None:
        del receive
        names = self._client.router.names()
        entries = [{"id": each, "object": "model", "created": self._started, "owned_by": "slipform"} for each in names]
        await send_json(send, 200, {"object": "list", "data": entries})

    async def _chat(self, receive: Receive, send: Send) -> None:
        body = await read_json(receive, MAX_BODY)
        request = chat.decode_request(body)
        if body.get("stream"):
            include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            await until_gone(self._stream(request, send, include_usage=include_usage), receive)
        else:
            await until_gone(self._whole(request, send), receive)

    async def _whole(self, request: ModelRequest, send: Send) -> None:
        if _wants_json(request):
            outcome = await self._client.respond(request)
            response = ModelResponse(text=outcome.text, finish="stop", usage=outcome.report.usage)
        else:
            response = await self._client.text(request)
        await send_json(send, 200, chat.encode_response(response, completion_id=chat.new_id(), model=request.model))

    async def _stream(self, request: ModelRequest, send: Send, *, include_usage: bool) -> None:
        encoder = chat.StreamEncoder(request.model, include_usage=include_usage)
        started = False
        try:
            async for chunk in self._chunks(request):
                if not started:
                    started = True
                    await send_start(send, 200, b"text/event-stream")
                for event in encoder.encode(chunk):
                    await send_event(send, event)
            await send_event(send, b"[DONE]")
        except SlipformError as error:
            if not started:
                raise
            await send_event(send, chat.encode_error(error))
        await send({"type": "http.response.body", "body": b""})

    async def _chunks(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        if not _wants_json(request):
            async for chunk in self._client.text_stream(request):
                yield chunk
            return
        async for piece in self._client.respond_stream(request):
            yield CompletionChunk(finish="stop", usage=piece.report.usage) if isinstance(piece, Outcome) else piece


def _wants_json(request: ModelRequest) -> bool:
    return request.response_format is not None or request.json_mode

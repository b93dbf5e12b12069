"""The proxy: an ASGI application over the same engine as the library."""

from __future__ import annotations

import asyncio
import logging
import time
from uuid import uuid4

from slipform.client import AsyncClient
from slipform.codecs.openai_errors import encode_openai_error
from slipform.codecs.serving import ServedRequest, Serving
from slipform.config import Settings
from slipform.errors import RequestError, SlipformError
from slipform.providers.local import LocalProvider
from slipform.schema import Schema, is_large
from slipform.server.answers import Inbound, is_enforced
from slipform.server.apis import api_at, paths
from slipform.server.gate import Gate
from slipform.server.http import Receive, Scope, Send, read_body, send_bytes, send_json, until_gone
from slipform.server.lists import decode
from slipform.server.pages import health, model_list
from slipform.server.record import CallRecord
from slipform.server.refusals import error_headers

_log = logging.getLogger("slipform.server")


class App:
    """Serves the vendors' APIs; every answer with a schema is valid against it or is an error.

    >>> app = App(AsyncClient(), Settings())
    """

    def __init__(self, client: AsyncClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._gate = Gate(client, settings)
        self._started = int(time.time())
        self._warming: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            cors = self._gate.cors
            if cors is None:
                await self._http(scope, receive, send)
            elif not await cors.preflight(scope, send):
                await self._http(scope, receive, cors.wrap(scope, send))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self._gate.start()
                self._warming = asyncio.create_task(self._warm())
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._warming is not None:
                    await self._warming
                await self._gate.close()
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
            await self._models(scope, send)
        elif api is None or method != "POST":
            status = 404 if api is None else 405
            said = f"There is nothing at {method} {path}; slipform serves {paths()}"
            error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
            await send_json(send, status, {"error": error})
        else:
            await self._serve(api, scope, receive, send)

    async def _models(self, scope: Scope, send: Send) -> None:
        router = self._client.router
        try:
            caller = self._gate.guard.caller(dict(scope["headers"]), scope["query_string"])
        except SlipformError as error:
            status, body = encode_openai_error(error)
            await send_bytes(send, status, body)
            return
        names = [name for name in router.names() if caller.may_use(name, router)]
        await send_json(send, 200, model_list(names, self._started))

    async def _serve(self, api: Serving, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        record = CallRecord(uuid4().hex, api=api.name)
        client = scope.get("client")
        admission = self._gate.guard.admit(headers, client[0] if client else "", scope["query_string"], api.name)
        try:
            async with admission as caller:
                record.caller = caller.name
                body = await read_body(receive, self._settings.server.max_body_bytes)
                admission.body_read()
                served = await _decoded(api, body, scope["path"])
                record.model, record.stream = served.request.model, served.stream
                record.enforced = is_enforced(served.request)
                inbound = Inbound(api, served, body, record)
                await until_gone(self._gate.answer(inbound, admission, send), receive)
        except SlipformError as error:
            await self._failed(api, record, error, send)
        except Exception:  # noqa: BLE001 — the caller gets an error in the right shape, the log the traceback
            _log.exception("unexpected error on %s", scope["path"])
            await self._failed(
                api, record, SlipformError("An unexpected error inside slipform", hint="See the server's log."), send
            )

    async def _failed(self, api: Serving, record: CallRecord, error: SlipformError, send: Send) -> None:
        record.outcome = error.code
        if record.status:
            return  # the answer has begun: it was ended with an error event, or is left visibly unfinished
        record.status, body = api.encode_error(error)
        await send_bytes(send, record.status, body, [*record.headers(), *error_headers(error)])


async def _decoded(api: Serving, body: bytes, path: str) -> ServedRequest:
    """The request, checked; a large one is read, and its schema made ready, off the event loop."""
    if is_large(body):
        return await asyncio.to_thread(_decode_and_compile, api, body, path)
    return _decode(api, body, path)


def _decode(api: Serving, body: bytes, path: str) -> ServedRequest:
    served = decode(api, body, path)
    request = served.request
    if not request.messages:
        raise RequestError("There are no messages", where="messages", hint="Send at least one.")
    if is_enforced(request) and request.extra.get("n") not in (None, 1):
        raise RequestError("One answer is enforced per request", where="n", hint="Leave `n` out, or ask again.")
    return served


def _decode_and_compile(api: Serving, body: bytes, path: str) -> ServedRequest:
    served = _decode(api, body, path)
    if served.request.response_format is not None:
        Schema.of(served.request.response_format.json_schema)  # kept, so that the event loop finds it ready
    return served

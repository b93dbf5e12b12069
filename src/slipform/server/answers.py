"""One decoded call → its answer, enforced where it asks for a shape and passed through where it does not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.client import AsyncClient
from slipform.codecs.serving import ServedRequest, Serving
from slipform.config import Settings
from slipform.enforce import Outcome
from slipform.errors import RequestError, SlipformError
from slipform.ir import CompletionChunk, ModelRequest
from slipform.server.http import Send, send_bytes, send_start
from slipform.server.record import CallRecord


@dataclass(frozen=True, slots=True)
class Inbound:
    """A call on its way: in which API it came, what was decoded, the bytes themselves, and what is known of it."""

    api: Serving
    served: ServedRequest
    body: bytes
    record: CallRecord
    wants_report: bool = False


async def answer(call: Inbound, client: AsyncClient, settings: Settings, send: Send) -> None:
    """Write the whole response; an error before the first byte is raised, one after it is told in the stream."""
    if call.served.stream:
        await _stream(call, client, settings, send)
    else:
        await _whole(call, client, send)


def is_enforced(request: ModelRequest) -> bool:
    """Whether the answer has a shape to be held to."""
    return request.response_format is not None or request.json_mode or bool(request.tools)


async def _whole(call: Inbound, client: AsyncClient, send: Send) -> None:
    request = call.served.request
    extra: Mapping[str, Any] | None = None
    if call.record.enforced:
        outcome = await client.respond(request)
        response = outcome.answer
        _learn(call.record, outcome)
        extra = {"slipform": outcome.report.to_dict()} if call.wants_report else None
    else:
        began = time.monotonic()
        response = await client.complete(request)
        call.record.upstream_seconds = time.monotonic() - began
        call.record.usage = response.usage
    call.record.status = 200
    body = call.api.encode_response(response, call.served, extra=extra)
    await send_bytes(send, 200, body, call.record.headers())


async def _stream(call: Inbound, client: AsyncClient, settings: Settings, send: Send) -> None:
    if call.record.enforced and settings.enforcement.stream_mode == "reject":
        raise RequestError("Streaming with a schema is switched off here", hint="Send the request without `stream`.")
    encoder = call.api.encode_stream(call.served)
    started = False
    content_type = call.api.content_type_stream.encode()
    try:
        async for chunk in _chunks(call, client, settings):
            if data := encoder.feed(chunk):
                if not started:
                    started = True
                    call.record.status = 200
                    await send_start(send, 200, content_type, call.record.headers())
                await send({"type": "http.response.body", "body": data, "more_body": True})
        last = encoder.finish()
    except SlipformError as error:
        if not started:
            raise
        call.record.fail(error)
        last = encoder.fail(error)
    if not started:
        call.record.status = 200
        await send_start(send, 200, content_type, call.record.headers())
    await send({"type": "http.response.body", "body": last})


async def _chunks(call: Inbound, client: AsyncClient, settings: Settings) -> AsyncIterator[CompletionChunk]:
    request = call.served.request
    if not call.record.enforced:
        async for chunk in client.complete_stream(request):
            if chunk.usage is not None:
                call.record.usage = chunk.usage
            yield chunk
        return
    live = settings.enforcement.stream_mode != "buffer"
    async for piece in client.respond_stream(request, live=live):
        if isinstance(piece, CompletionChunk):
            yield piece
        else:
            _learn(call.record, piece)


def _learn(record: CallRecord, outcome: Outcome) -> None:
    record.report, record.answer = outcome.report, outcome.answer
    if outcome.report.attempts:
        record.strategy = outcome.report.attempts[-1].strategy.value

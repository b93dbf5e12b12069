"""One call → its answer: passed through, or enforced where it asks for a shape."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from slipform.client import AsyncClient
from slipform.config import Settings
from slipform.enforce import Outcome
from slipform.engine import Options
from slipform.errors import RequestError, SlipformError
from slipform.ir import CompletionChunk
from slipform.respond_stream import Mode
from slipform.server.http import Send, send_bytes
from slipform.server.inbound import Inbound
from slipform.server.live import StreamWriter
from slipform.server.passthrough import Forwarding, pass_through
from slipform.server.record import CallRecord
from slipform.server.switches import FIELD, Asked, StreamMode

_log = logging.getLogger("slipform.server")


def answer(call: Inbound, client: AsyncClient, settings: Settings, send: Send) -> Coroutine[Any, Any, None]:
    """Write the whole response; an error before the first byte is raised, one after it is told in the stream."""
    if call.forwarding is not None:
        return _passed(call, call.forwarding, send)
    return _stream(call, client, settings, send) if call.served.stream else _whole(call, client, send)


async def _passed(call: Inbound, forwarding: Forwarding, send: Send) -> None:
    record = call.record
    fail = call.api.encode_stream(call.served).fail if call.served.stream else _unspelled
    record.status, record.outcome, record.usage = await pass_through(forwarding, send, record.headers(), fail)


def _unspelled(error: SlipformError) -> bytes:
    return str(error).encode()


async def _whole(call: Inbound, client: AsyncClient, send: Send) -> None:
    request = call.served.request
    extra: Mapping[str, Any] | None = None
    if call.record.enforced:
        outcome = await client.respond(request, _options(client.options, call.asked), begun=call.begun)
        extra = _learn(call, outcome)
        response = call.record.answer or outcome.answer
    else:
        began = time.monotonic()
        response = await client.complete(request)
        call.record.upstream_seconds = time.monotonic() - began
        call.record.usage = response.usage
    call.record.status = 200
    body = call.api.encode_response(response, call.served, extra=extra)
    await send_bytes(send, 200, body, call.record.headers())


async def _stream(call: Inbound, client: AsyncClient, settings: Settings, send: Send) -> None:
    mode = call.asked.stream_mode or settings.enforcement.stream_mode
    if call.record.enforced and mode == "reject":
        raise RequestError("Streaming with a schema is switched off here", hint="Send the request without `stream`.")
    writer = StreamWriter(call.api, call.served, call.record, send)
    try:
        async with aclosing(_pieces(call, client, mode, writer)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, Outcome):
                    await writer.write(piece)
                elif (extra := _learn(call, piece)) is not None:
                    writer.add(extra)
        await writer.finish()
    except SlipformError as error:
        if not writer.started:
            raise
        await _told(writer, call.record, error)
    except Exception:
        if not writer.started:
            raise
        _log.exception("unexpected error in a stream")
        await _told(writer, call.record, SlipformError("An unexpected error inside slipform"))
    finally:
        writer.close()


async def _told(writer: StreamWriter, record: CallRecord, error: SlipformError) -> None:
    record.fail(error)
    await writer.fail(error)


def _pieces(
    call: Inbound, client: AsyncClient, mode: StreamMode, writer: StreamWriter
) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
    """What has to be waited for; the writer is given the rest as it arrives."""
    request, record = call.served.request, call.record
    if record.enforced:
        allowed: Mode = "auto" if mode == "reject" else mode
        return client.respond_batches(request, _options(client.options, call.asked), mode=allowed, sink=writer)

    def pushed(batch: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        for chunk in batch:
            if chunk.usage is not None:
                record.usage = chunk.usage
        return None if writer.push(batch) else batch

    return client.complete_batches(request, pushed)


def _options(given: Options, asked: Asked) -> Options:
    if asked.max_attempts is None:
        return given
    return dataclasses.replace(given, budget=dataclasses.replace(given.budget, attempts=asked.max_attempts))


def _learn(call: Inbound, outcome: Outcome) -> Mapping[str, Any] | None:
    """Note how it went; gives the fields that the caller asked to see of it."""
    record, report = call.record, outcome.report
    record.report, record.answer = report, outcome.answer
    if report.attempts:
        record.strategy = report.attempts[-1].strategy.value
    return {FIELD: report.to_dict()} if call.asked.report else None

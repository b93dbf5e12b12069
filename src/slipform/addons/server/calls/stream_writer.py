"""Write a streamed answer to a client, with keep-alives, in the API's own events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slipform.addons.server.calls.resources import AnswerMarks
from slipform.addons.server.calls.stored_responses import StoredCall
from slipform.addons.server.http_server.asgi import RecordingSend, send_stream_start
from slipform.addons.server.observability.call_record import CallRecord
from slipform.codecs import ServedApi, ServedRequest
from slipform.codecs.openai_responses.serve_encode import ResponsesStreamEncoder
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, ModelResponse, ModelWarning
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.response import plain_chunks
from slipform.prices import AnyPrice

_log = logging.getLogger("slipform.server")
KEEP_ALIVE_SECONDS = 10.0
"""The seconds without data after which the client is sent a keep-alive."""


class StreamWriter:
    """Writes one stream. The head is sent with the first bytes, so that an error before them is a plain error.

    The next chunk is read only when the previous one has been sent, so a slow client slows the model down.
    """

    def __init__(
        self,
        api: ServedApi,
        served: ServedRequest,
        record: CallRecord,
        send: RecordingSend,
        *,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        id_markers: AnswerMarks | None = None,
        stored: StoredCall | None = None,
    ) -> None:
        self.started = False
        self._stored = stored
        self._api = api
        self._left_out: dict[str, ModelWarning] = {}
        """Parts of an answer without validation that this API cannot represent."""
        self._id_markers = id_markers
        self._encoder = api.encode_stream(served)
        self._content_type = api.content_type_stream.encode()
        self._record = record
        self._send = send
        self._enforced = record.enforced
        self.price: AnyPrice | None = None
        """The price of the model that answers; set only for answers without validation."""
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._keep_alive_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if self._encoder.keep_alive():
            self._timer = self._loop.call_later(keep_alive, self._check_silence)

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Write these chunks without awaiting, if the head has been sent and the client keeps up; else return them."""
        if not self._enforced:
            for chunk in chunks:
                if chunk.parts or chunk.extra:
                    lost = self._api.unrepresented(ModelResponse(parts=chunk.parts, extra=chunk.extra))
                    self._left_out.update({warning.message: warning for warning in lost})
                if chunk.warnings:
                    self._record.add_waits(chunk.warnings)
                if chunk.usage is not None:
                    self._record.usage = chunk.usage
                    if self.price is not None:
                        chunks = self._with_cost(chunks, self.price)
        cycle = self._send.cycle
        if not self.started or cycle is None or not cycle.can_push:
            return chunks
        self._write_stream(b"".join(map(self._encoder.feed, chunks)))
        return None

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that have only text of the first choice, or arguments of one of its calls."""
        cycle = self._send.cycle
        if not self.started or cycle is None or not cycle.can_push:
            return plain_chunks(texts, call)
        feed = self._encoder.feed_text
        data = feed(texts[0], call) if len(texts) == 1 else b"".join([feed(text, call) for text in texts])
        if self._id_markers is not None or not data:
            self._write_stream(data)
        else:
            self._last = self._loop.time()
            self._send.push(data)
        return None

    def _with_cost(self, chunks: Sequence[CompletionChunk], price: AnyPrice) -> list[CompletionChunk]:
        """Return the chunks with the cost added to their usage."""
        costed = []
        for chunk in chunks:
            if chunk.usage is not None:
                cost = self._record.add_cost(price, chunk.usage)
                costed.append(chunk._replace(usage=chunk.usage.replace(cost=cost)))
            else:
                costed.append(chunk)
        return costed

    def _write_stream(self, data: bytes) -> None:
        if not data:
            return
        if self._id_markers is not None:
            data = self._id_markers.feed(data)
        self._last = self._loop.time()
        self._send.push(data)

    async def write(self, chunks: Sequence[CompletionChunk]) -> None:
        """Write these chunks in one go."""
        if data := b"".join(map(self._encoder.feed, chunks)):
            await self._send_data(data)

    @property
    def message_ids(self) -> list[str]:
        """The ids of the messages of a Responses stream so far."""
        if isinstance(self._encoder, ResponsesStreamEncoder):
            return self._encoder.message_ids
        return []

    def add(self, extra: Mapping[str, Any]) -> None:
        """Add fields to the last event, which must not have been sent yet."""
        self._encoder.extra = extra

    async def finish(self) -> None:
        """Write the last event, and store the answer where slipform does."""
        log_warnings(self._left_out.values())
        data = self._encoder.finish()
        if self._stored is not None:
            await self._stored.keep(data)
        await self._end(data)

    async def fail(self, error: SlipformError) -> None:
        """Write an error event as the end of the stream."""
        await self._end(self._encoder.fail(error))

    def close(self) -> None:
        """Stop sending keep-alives."""
        if self._timer is not None:
            self._timer.cancel()
        if self._keep_alive_task is not None:
            self._keep_alive_task.cancel()

    async def _send_data(self, data: bytes) -> None:
        if not data:
            return
        if self._id_markers is not None:
            data = self._id_markers.feed(data)
        self._last = self._loop.time()
        await self._start()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _start(self) -> None:
        """Send the head, unless it has been sent."""
        if self.started:
            return
        self.started = True
        self._record.status = 200
        await send_stream_start(self._send, self._content_type, self._record.headers())

    async def _end(self, data: bytes) -> None:
        self.close()
        if self._id_markers is not None and data:
            data = self._id_markers.feed(data)
        await self._start()
        await self._send({"type": "http.response.body", "body": data})

    def _check_silence(self) -> None:
        """Send a keep-alive if the stream has been silent, and schedule the next check."""
        silent = self._loop.time() - self._last
        if silent < self._keep_alive - 0.01:
            self._timer = self._loop.call_later(self._keep_alive - silent, self._check_silence)
            return
        if self._keep_alive_task is None or self._keep_alive_task.done():
            self._keep_alive_task = self._loop.create_task(self._send_data(self._encoder.keep_alive()))
        self._timer = self._loop.call_later(self._keep_alive, self._check_silence)


class TurnFolder:
    """Passes chunks to a writer and assembles the answer, whose signed parts are known at the end of the stream."""

    def __init__(self, writer: StreamWriter) -> None:
        self._writer = writer
        self._reducer = Reducer()
        self._reducer.start(Snapshot())

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Add these chunks to the answer and pass them on."""
        for chunk in chunks:
            self._reducer.push(chunk)
        return self._writer.push(chunks)

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that have only text of the first choice, or arguments of one of its calls."""
        for chunk in plain_chunks(["".join(texts)], call):
            self._reducer.push(chunk)
        return self._writer.push_texts(texts, call)

    def answer(self) -> ModelResponse:
        """Return the whole answer."""
        return self._reducer.finish(check=False)


def log_warnings(warnings: Iterable[ModelWarning]) -> None:
    """Log the warnings of a call without a schema, which has no report for them."""
    for warning in warnings:
        _log.info("%s: %s", warning.code, warning.message)

"""One streamed answer on its way out: the head, the events, signs of life while there is nothing to tell, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slipform.codecs.serving import ServedRequest, Serving
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk
from slipform.server.begun import Begun, begun
from slipform.server.http import Send, send_stream_start
from slipform.server.record import CallRecord

KEEP_ALIVE_SECONDS = 10.0
"""How long a stream may be silent before the client is told that it still lives."""


class StreamWriter:
    """Writes one stream. The head leaves with the first bytes, so that an error before them is a plain error.

    The next chunk is asked for only when the one before is on its way, so a slow client slows the model down.
    """

    def __init__(
        self,
        api: Serving,
        served: ServedRequest,
        record: CallRecord,
        send: Send,
        *,
        keep_alive: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self.started = False
        self._encoder = api.encode_stream(served)
        self._content_type = api.content_type_stream.encode()
        self._record = record
        self._send = send
        self._push: Callable[[bytes], bool] | None = getattr(send, "push", None)
        """Writes at once, or says that it did not: then it has to be sent, and waited for."""
        self._keep_alive = keep_alive
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._beating: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sending: Begun | None = None
        if self._encoder.keep_alive():
            self._timer = self._loop.call_later(keep_alive, self._beat)

    def __call__(self, chunks: Sequence[CompletionChunk]) -> bool:
        """`push`."""
        return self.push(chunks)

    def push(self, chunks: Sequence[CompletionChunk]) -> bool:
        """Write these chunks without being waited for, if that can be: once the head is out and the client keeps up."""
        if not self.started or self._sending is not None:
            return False
        self._pushed(b"".join(map(self._encoder.feed, chunks)))
        return True

    def texts(self, texts: list[str]) -> bool:
        """`push`, for chunks that are no more than text of the first choice."""
        if not self.started or self._sending is not None:
            return False
        feed = self._encoder.feed_text
        self._pushed(feed(texts[0]) if len(texts) == 1 else b"".join([feed(text) for text in texts]))
        return True

    def _pushed(self, data: bytes) -> None:
        if not data:
            return
        self._last = self._loop.time()
        if self._push is None or not self._push(data):
            self._sending = begun(self._send({"type": "http.response.body", "body": data, "more_body": True}))

    async def write(self, chunks: Sequence[CompletionChunk]) -> None:
        """Write these chunks in one go."""
        if data := b"".join(map(self._encoder.feed, chunks)):
            await self._out(data)

    def add(self, extra: Mapping[str, Any]) -> None:
        """Fields for the last event, which must still be to come."""
        self._encoder.extra = extra

    async def finish(self) -> None:
        """Write the end."""
        await self._end(self._encoder.finish())

    async def fail(self, error: SlipformError) -> None:
        """End with an error."""
        await self._end(self._encoder.fail(error))

    def close(self) -> None:
        """Give no more signs of life."""
        if self._timer is not None:
            self._timer.cancel()
        if self._beating is not None:
            self._beating.cancel()

    async def _out(self, data: bytes) -> None:
        if not data:
            return
        self._last = self._loop.time()
        await self._ready()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _ready(self) -> None:
        """The head is out, and so is all that was pushed."""
        if self._sending is not None:
            await self._sending
            self._sending = None
        if not self.started:
            await self._start()

    async def _start(self) -> None:
        self.started = True
        self._record.status = 200
        await send_stream_start(self._send, self._content_type, self._record.headers())

    async def _end(self, data: bytes) -> None:
        self.close()
        await self._ready()
        await self._send({"type": "http.response.body", "body": data})

    def _beat(self) -> None:
        """Say that the stream lives if it has been silent, and look again later."""
        silent = self._loop.time() - self._last
        if silent < self._keep_alive - 0.01:
            self._timer = self._loop.call_later(self._keep_alive - silent, self._beat)
            return
        if self._beating is None or self._beating.done():
            self._beating = self._loop.create_task(self._out(self._encoder.keep_alive()))
        self._timer = self._loop.call_later(self._keep_alive, self._beat)

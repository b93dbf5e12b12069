"""Valid answers, kept for the same question: in this process, and in Redis when there is one."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from slipform.config import Settings
from slipform.ir import ModelRequest, ModelResponse, ToolCall, Usage
from slipform.providers.chunking import as_chunks
from slipform.providers.router import Router
from slipform.server.http import Send, send_bytes, send_start
from slipform.server.inbound import Inbound
from slipform.server.shared import Shared

_VERSION = 1
"""Of what is kept and how a question is told from another; a new number makes the old answers unknown."""


class AnswerCache:
    """Answers enforced requests that were answered before. Only valid answers are kept.

    Identical requests that come while one is being answered wait for it, instead of asking the model as well.
    """

    def __init__(
        self,
        settings: Settings,
        shared: Shared | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kept = Kept(settings.cache.max_entries, settings.cache.max_bytes, clock)
        self._seconds = settings.cache.ttl_seconds
        self._shared = shared
        self._rejects_streams = settings.enforcement.stream_mode == "reject"
        self._policy = orjson.dumps(settings.enforcement.model_dump(), option=orjson.OPT_SORT_KEYS)
        self._running: dict[str, asyncio.Future[None]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        call: Inbound,
        models: Sequence[str],
        router: Router,
        control: bytes,
        work: Callable[[], Awaitable[None]],
        send: Send,
    ) -> None:
        """Answer from what is kept, or let `work` answer and keep that.

        `control` is the request's `cache-control`: `no-cache` asks afresh, `no-store` also keeps nothing.
        """
        control = control.lower()
        skipped = not call.record.enforced or b"no-store" in control or (call.served.stream and self._rejects_streams)
        key = None if skipped else self._key(call.served.request, models, router)
        if key is None:
            await work()
            return
        if b"no-cache" not in control:
            found = await self._found(key)
            if found is not None:
                await _replay(call, found, send)
                return
        await self._worked(key, call, work)

    async def close(self) -> None:
        """Wait for what is still being written to Redis."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _found(self, key: str) -> bytes | None:
        found = self._kept.get(key)
        if found is None and (running := self._running.get(key)) is not None:
            await asyncio.wait((running,))
            found = self._kept.get(key)
        if found is None and self._shared is not None:
            found = await self._shared.get(key)
            if found is not None:
                self._kept.put(key, found, orjson.loads(found)["until"] - time.time())
        return found

    async def _worked(self, key: str, call: Inbound, work: Callable[[], Awaitable[None]]) -> None:
        ours = asyncio.get_running_loop().create_future()
        self._running.setdefault(key, ours)
        try:
            await work()
            if (value := _worth_keeping(call, time.time() + self._seconds)) is not None:
                self._kept.put(key, value, self._seconds)
                if self._shared is not None:
                    writing = asyncio.create_task(self._shared.put(key, value, self._seconds))
                    self._writing.add(writing)
                    writing.add_done_callback(self._writing.discard)
        finally:
            ours.set_result(None)
            if self._running.get(key) is ours:
                del self._running[key]

    def _key(self, request: ModelRequest, models: Sequence[str], router: Router) -> str | None:
        """What makes two requests the same question; None for one that cannot be written down."""
        asked = (_VERSION, [router.full_name(model) for model in models], request.replace(model="", metadata={}))
        try:
            text = orjson.dumps(asked, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        except TypeError:
            return None
        return hashlib.sha256(self._policy + text).hexdigest()


class Kept:
    """The newest values: at most so many, of so many bytes in all, each for so long.

    >>> kept = Kept(entries=1, size=100)
    >>> kept.put("a", b"1", seconds=60)
    >>> kept.put("b", b"2", seconds=60)
    >>> kept.get("a"), kept.get("b")
    (None, b'2')
    """

    def __init__(self, entries: int, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._entries = entries
        self._size = size
        self._clock = clock
        self._values: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._used = 0

    def get(self, key: str) -> bytes | None:
        """The value, unless it is too old."""
        found = self._values.get(key)
        if found is None:
            return None
        if found[0] <= self._clock():
            self._drop(key)
            return None
        self._values.move_to_end(key)
        return found[1]

    def put(self, key: str, value: bytes, seconds: float) -> None:
        """Keep a value, and forget those that were not asked for the longest. One that is too large is not kept."""
        self._drop(key)
        if len(value) > self._size:
            return
        self._values[key] = (self._clock() + seconds, value)
        self._used += len(value)
        while len(self._values) > self._entries or self._used > self._size:
            self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        gone = self._values.pop(key, None)
        if gone is not None:
            self._used -= len(gone[1])


def _worth_keeping(call: Inbound, until: float) -> bytes | None:
    """The answer as it is kept; None for one that was let through although it is not valid."""
    record = call.record
    answer, report = record.answer, record.report
    if answer is None or report is None or not report.attempts or report.attempts[-1].outcome != "ok":
        return None
    usage = answer.usage
    fields = {
        "until": until,
        "text": answer.text,
        "calls": [[each.id, each.name, each.arguments] for each in answer.tool_calls],
        "reasoning": answer.reasoning,
        "finish": answer.finish,
        "usage": [usage.input, usage.output, usage.cached, usage.reasoning, usage.total],
        "model": answer.model,
        "strategy": record.strategy,
        "provider": record.provider,
        "upstream_model": record.upstream_model,
    }
    return orjson.dumps(fields)


async def _replay(call: Inbound, kept: bytes, send: Send) -> None:
    fields: dict[str, Any] = orjson.loads(kept)
    response = ModelResponse(
        text=fields["text"],
        tool_calls=tuple(ToolCall(*each) for each in fields["calls"]),
        reasoning=fields["reasoning"],
        finish=fields["finish"],
        usage=Usage(*fields["usage"]),
        model=fields["model"],
    )
    record = call.record
    record.cached, record.status, record.strategy = True, 200, fields["strategy"]
    record.provider, record.upstream_model = fields["provider"], fields["upstream_model"]
    if not call.served.stream:
        extra = {"slipform": {"cached": True}} if call.asked.report else None
        await send_bytes(send, 200, call.api.encode_response(response, call.served, extra=extra), record.headers())
        return
    encoder = call.api.encode_stream(call.served)
    body = b"".join([*(encoder.feed(chunk) for chunk in as_chunks(response)), encoder.finish()])
    await send_start(send, 200, call.api.content_type_stream.encode(), record.headers())
    await send({"type": "http.response.body", "body": body})


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise TypeError

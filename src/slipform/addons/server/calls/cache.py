"""Cache responses to identical requests.

Redis is not trusted, because others may write there. Its entries are parsed strictly and validated like a model's
answer against the schema of the request; an invalid entry is a miss.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipform.addons.server.admission.shared_state import SharedState
from slipform.addons.server.calls.inbound import Inbound
from slipform.addons.server.calls.signed_turns import parts_of, turn_text
from slipform.addons.server.http_server.asgi import Send, send_bytes, send_start
from slipform.bounded import BoundedCache
from slipform.config import Settings
from slipform.enforce.judging import judge
from slipform.engine.planning import plan_for
from slipform.engine.setup import Options
from slipform.errors import SlipformError
from slipform.ir import ModelRequest, ModelResponse, Text, ToolCall, Usage
from slipform.ir.messages import PlainTurns
from slipform.ir.request import is_heavy
from slipform.ir.response import FinishReason
from slipform.providers.base import as_chunks
from slipform.providers.concurrency import off_loop
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, is_large

_log = logging.getLogger("slipform.server")
_VERSION = 4
"""The version of stored entries and of keys; a new number invalidates all old entries."""
_CLOCKS_APART = 60.0
"""The most seconds by which the clocks of two machines may differ."""
_Tokens: TypeAlias = Annotated[int, Field(ge=0)] | None


class _Answer(BaseModel):
    """A cached answer and its model; `until` is when it expires, in seconds since the epoch."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    until: float
    text: str
    calls: list[tuple[str, str, str]]
    reasoning: str
    turn: str
    """The signed parts beside text and calls, as encoded by `signed_turns`; empty where there are none."""
    finish: FinishReason
    usage: tuple[_Tokens, _Tokens, _Tokens, _Tokens, _Tokens]
    model: str | None
    strategy: OutputStrategy = Field(strict=False)
    provider: str
    upstream_model: str

    def response(self) -> ModelResponse:
        calls = tuple([ToolCall(*each) for each in self.calls])
        parts = parts_of(self.turn.encode(), self.text, calls) if self.turn else ()
        return ModelResponse(
            text=self.text,
            tool_calls=tuple([part for part in parts if isinstance(part, ToolCall)]) if parts else calls,
            reasoning=self.reasoning,
            parts=parts,
            finish=self.finish,
            usage=Usage(*self.usage),
            model=self.model,
        )


class AnswerCache:
    """Answers enforced requests that were answered before. Only valid answers are cached, separately for each key.

    Identical requests that arrive while one is in progress wait for its answer instead of calling the model. With
    `cache.shared`, all keys share the entries; a hit then reveals that the same request was sent before.
    """

    def __init__(
        self,
        settings: Settings,
        router: Router,
        options: Options,
        shared: SharedState | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._answers = BoundedCache[str, _Answer](
            "answers", entries=settings.cache.max_entries, max_bytes=settings.cache.max_bytes
        )
        self._longest = settings.cache.max_bytes
        self._for_all = settings.cache.shared
        self._router = router
        self._options = options
        self._clock = clock
        self._seconds = settings.cache.ttl_seconds
        self._shared = shared
        self._policy = orjson.dumps(settings.enforcement.model_dump(), option=orjson.OPT_SORT_KEYS)
        self._running: dict[str, asyncio.Future[None]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        call: Inbound,
        models: Sequence[str],
        caller: str,
        control: bytes,
        work: Callable[[], Awaitable[None]],
        send: Send,
    ) -> None:
        """Write the cached answer, or let `work` write one and cache that.

        `caller` is the id of the caller's key. `control` is the request's `cache-control`: `no-cache` skips the lookup,
        `no-store` also stores nothing.
        """
        control = control.lower()
        skipped = (
            not call.record.enforced
            or b"no-store" in control
            or (call.served.stream and call.stream_mode == "reject")
            or call.switches.evidence
            is not None  # evidence needs the model's token probabilities, which are not cached
        )
        key = None
        if not skipped:
            owner = "" if self._for_all else caller
            key = self._key(call, models, owner)
        if key is None:
            await work()
            return
        if b"no-cache" not in control:
            cached = await self._lookup(key, call, models[0])
            if cached is not None:
                await _replay(call, cached, send)
                return
        await self._run_and_share(key, call, work)

    async def close(self) -> None:
        """Wait for pending writes to Redis."""
        await asyncio.gather(*self._writing, return_exceptions=True)

    async def _lookup(self, key: str, call: Inbound, model: str) -> _Answer | None:
        """Return a cached answer: from memory, from an identical call in progress, or from the shared cache."""
        cached = self._local_entry(key)
        if cached is None and (running := self._running.get(key)) is not None:
            await asyncio.wait((running,))
            cached = self._local_entry(key)
        if cached is None and self._shared is not None:
            data = await self._shared.get(key, self._longest)
            if data is not None:
                request = call.served.request.replace(model=model)
                judged = (data, request)
                heavy = is_large(data) or is_heavy(request)
                cached = await off_loop(self._validated_entry, *judged) if heavy else self._validated_entry(*judged)
                if cached is not None:
                    self._answers.put(key, cached, _size(data))
        return cached

    def _local_entry(self, key: str) -> _Answer | None:
        cached = self._answers.use(key)
        if cached is not None and self._clock() < cached.until:
            return cached
        return None

    def _validated_entry(self, data: bytes, request: ModelRequest) -> _Answer | None:
        """Return an answer from Redis, if it has our format and is valid for the request."""
        try:
            answer = _Answer.model_validate_json(data)
        except ValidationError:
            _log.warning("cache: entry ignored, it cannot be read")
            return None
        now = self._clock()
        router = self._router
        if not now < answer.until <= now + self._seconds + _CLOCKS_APART or answer.provider not in router.providers:
            return None
        response = answer.response()
        try:
            verdict = judge(response, plan_for(router, request, self._options).standard)
        except SlipformError:
            return None
        whole = verdict.tool_calls == response.tool_calls if response.tool_calls else verdict.candidate == answer.text
        if not verdict.ok or verdict.repairs or verdict.patched is not None or not whole:
            _log.warning("cache: entry ignored, it does not match the request")
            return None
        return answer

    async def _run_and_share(self, key: str, call: Inbound, work: Callable[[], Awaitable[None]]) -> None:
        ours = asyncio.get_running_loop().create_future()
        self._running.setdefault(key, ours)
        try:
            await work()
            if (value := _worth_keeping(call, self._clock() + self._seconds)) is not None:
                data = value.model_dump_json().encode()
                self._answers.put(key, value, _size(data))
                if self._shared is not None:
                    writing = asyncio.create_task(self._shared.put(key, data, self._seconds))
                    self._writing.add(writing)
                    writing.add_done_callback(self._writing.discard)
        finally:
            ours.set_result(None)
            if self._running.get(key) is ours:
                del self._running[key]

    def _key(self, call: Inbound, models: Sequence[str], caller: str) -> str | None:
        """Return the key that identical requests of a caller share; None for a request that cannot be encoded."""
        names = [self._router.full_name(model) for model in models]
        defaults = self._router.default_fields(call.models)
        request = call.served.request.replace(model="", metadata={})
        question = (_VERSION, caller, names, defaults, request, call.switches.cache_key())
        try:
            text = orjson.dumps(question, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
        except TypeError:
            return None
        return hashlib.sha256(self._policy + text).hexdigest()


def _size(data: bytes) -> int:
    return 1_000 + 2 * len(data)


def _worth_keeping(call: Inbound, until: float) -> _Answer | None:
    """Return the cache entry of an answer; None for one that is not valid."""
    record = call.record
    answer = record.answer
    report = record.report
    if answer is None or report is None or not report.attempts or report.attempts[-1].outcome != "ok":
        return None
    if sum(isinstance(part, Text) for part in answer.parts) > 1:
        return None  # the vendor's data about each of several texts would be lost
    usage = answer.usage
    return _Answer(
        until=until,
        text=answer.text,
        calls=[(each.id, each.name, each.arguments) for each in answer.tool_calls],
        reasoning=answer.reasoning,
        turn=turn_text(answer.parts).decode(),
        finish=answer.finish,
        usage=(usage.input, usage.output, usage.cached, usage.reasoning, usage.total),
        model=answer.model,
        strategy=report.attempts[-1].strategy,
        provider=record.provider,
        upstream_model=record.upstream_model,
    )


async def _replay(call: Inbound, cached: _Answer, send: Send) -> None:
    response = cached.response()
    record = call.record
    record.cached = True
    record.status = 200
    record.strategy = cached.strategy.value
    record.provider = cached.provider
    record.upstream_model = cached.upstream_model
    if not call.served.stream:
        extra = {"slipform": {"cached": True}} if call.switches.report else None
        body = call.api.encode_response(response, call.served, extra=extra)
        body = body if call.id_markers is None else call.id_markers.whole(body)
        if call.stored is not None:
            await call.stored.keep(body)
        await send_bytes(send, 200, body, record.headers())
        return
    encoder = call.api.encode_stream(call.served)
    body = b"".join([*(encoder.feed(chunk) for chunk in as_chunks(response)), encoder.finish()])
    if call.stored is not None:
        await call.stored.keep(body)
    await send_start(send, 200, call.api.content_type_stream.encode(), record.headers())
    await send({"type": "http.response.body", "body": body})


def _plain(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, PlainTurns):
        return value.messages
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    raise TypeError

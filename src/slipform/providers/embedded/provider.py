"""The embedded model as a provider."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from slipform.codecs import Capabilities
from slipform.errors import LocalModelError, UpstreamTimeout
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import Guard
from slipform.ir.response import ChunkSink
from slipform.providers.base import push_each
from slipform.providers.embedded.answer import whole
from slipform.providers.embedded.engine import (
    Cancel,
    Engines,
    EngineSettings,
    Event,
    InferenceEngine,
    LlamaEngine,
    is_served,
    locate,
)
from slipform.providers.embedded.llama import Chunk
from slipform.providers.embedded.weights import DEFAULT, KNOWN, find
from slipform.providers.embedded.worker import WorkerEngine, WorkerLostError

if TYPE_CHECKING:
    from slipform.providers.embedded.call import Call, HookFactory

_CAPABILITIES = Capabilities(
    native=True, tools=True, forced_tool=True, json_mode=True, dialect="identity", quirks=frozenset({"list_keys"})
)


class LocalProvider:
    """Answers with a model on this machine: no key, no network, every answer held to its schema.

    The model runs in a worker process, or with `in_process` in this one. `stop_hook` makes, for a prompt-only answer,
    what decides on each piece of text whether to stop there. `load` replaces the engine.

    >>> LocalProvider().capabilities(DEFAULT).native
    True
    """

    name = "local"

    def __init__(
        self,
        load: Callable[[str], InferenceEngine] | None = None,
        *,
        in_process: bool = False,
        settings: EngineSettings | None = None,
        options: Guard | None = None,
        stop_hook: HookFactory | None = None,
    ) -> None:
        make: Callable[[Path, EngineSettings | None], InferenceEngine] = LlamaEngine if in_process else WorkerEngine
        self._engines = Engines(load or partial(_load, make, settings))
        self._has_own_weights = load is None
        self._options = options or Guard()
        self._stop_hook = stop_hook
        self._named: frozenset[str] | None = None
        """What callers from outside may ask for, besides the known models whose weights are here; None for anything."""

    def for_callers(self, models: Collection[str]) -> LocalProvider:
        """The same engines for callers from outside: these models, and no path or download of the callers' choice."""
        made = copy.copy(self)
        made._named = frozenset(models)  # noqa: SLF001 — it is one of us
        return made

    def capabilities(self, model: str) -> Capabilities:
        """Native output for every schema; the prompt should list the keys, which small models heed best."""
        del model
        return _CAPABILITIES

    def models(self) -> list[str]:
        """The models that can be fetched, or that are here; any GGUF file is served besides, see `serves`."""
        return [name for name in KNOWN if self.serves(name)]

    def serves(self, model: str) -> bool:
        """Whether a name is one of `models` or the path of a GGUF file; from outside, see `for_callers`."""
        if self._named is None:
            return is_served(model)
        return model in self._named or (model in KNOWN and self._is_here(model))

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        call, engine = self._prepare(request)
        try:
            return whole(_run(engine, call), call.warnings)
        except WorkerLostError:  # nobody has seen any of it: once more, on a new worker
            return whole(_run(engine, call), call.warnings)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator stops the engine within a token."""
        call, engine = self._prepare(request)
        seen = False
        if call.warnings:
            yield CompletionChunk(warnings=call.warnings)
        try:
            for chunk in _run(engine, call):
                seen = True
                yield chunk
        except WorkerLostError:
            if seen:
                raise
            yield from _run(engine, call)

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer, without blocking the event loop; cancelling stops the engine within a token."""
        call, engine = await asyncio.to_thread(self._prepare, request)
        try:
            return whole([chunk async for chunk in _run_async(engine, call)], call.warnings)
        except WorkerLostError:
            return whole([chunk async for chunk in _run_async(engine, call)], call.warnings)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece, without blocking the event loop; closing stops the engine within a token."""
        call, engine = await asyncio.to_thread(self._prepare, request)
        seen = False
        if call.warnings:
            yield CompletionChunk(warnings=call.warnings)
        try:
            async with contextlib.aclosing(_run_async(engine, call)) as chunks:
                async for chunk in chunks:
                    seen = True
                    yield chunk
        except WorkerLostError:
            if seen:
                raise
            async with contextlib.aclosing(_run_async(engine, call)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """`stream_async`, into a sink."""
        return push_each(self.stream_async(request), sink)

    def warm(self, model: str = DEFAULT) -> None:
        """Load a model now, fetching it if need be, rather than with the first request."""
        self._engines.get(model).warm()

    def close(self) -> None:
        """Let go of the models and their memory."""
        self._engines.close()

    def _prepare(self, request: ModelRequest) -> tuple[Call, InferenceEngine]:
        from slipform.providers.embedded.call import prepare  # much code, which only those who ask this model need

        model = request.model or DEFAULT
        if self._named is not None and model in KNOWN and not self._is_here(model):
            raise LocalModelError(
                f"The weights of {model} are not on the server, which fetches nothing for a request",
                hint=f"Run `slipform models pull {model}` there.",
            )
        return prepare(request, self._options, self._stop_hook), self._engines.get(model)

    def _is_here(self, model: str) -> bool:
        return not self._has_own_weights or find(KNOWN[model]) is not None


def _load(
    make: Callable[[Path, EngineSettings | None], InferenceEngine], settings: EngineSettings | None, name: str
) -> InferenceEngine:
    return make(locate(name), settings)


def _run(engine: InferenceEngine, call: Call) -> Iterator[CompletionChunk]:
    events: SimpleQueue[Event] = SimpleQueue()
    answer = call.answer()
    cancel = engine.start(call.body, events.put)
    ended = False
    end = None if call.seconds is None else time.monotonic() + call.seconds
    try:
        while not answer.over and (event := _or_raise(_next(events, end))) is not None:
            yield answer.feed(event)
        ended = not answer.over
    finally:
        if not ended:
            cancel()


async def _run_async(engine: InferenceEngine, call: Call) -> AsyncGenerator[CompletionChunk, None]:
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()
    gone: list[Cancel] = []

    def put(event: Event) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, event)
        except RuntimeError:  # the reader's event loop is closed: nobody waits for the rest
            for cancel in gone:
                cancel()

    answer = call.answer()
    cancel = engine.start(call.body, put)
    gone.append(cancel)
    ended = False
    end = None if call.seconds is None else loop.time() + call.seconds
    try:
        while not answer.over and (event := _or_raise(await _next_async(events, end))) is not None:
            yield answer.feed(event)
        ended = not answer.over
    finally:
        if not ended:
            cancel()


def _next(events: SimpleQueue[Event], end: float | None) -> Event:
    if end is None:
        return events.get()
    try:
        return events.get(timeout=max(0, end - time.monotonic()))
    except Empty:
        raise _too_slow() from None


async def _next_async(events: asyncio.Queue[Event], end: float | None) -> Event:
    if end is None:
        return await events.get()
    try:
        async with asyncio.timeout_at(end):
            return await events.get()
    except TimeoutError:
        raise _too_slow() from None


def _too_slow() -> UpstreamTimeout:
    return UpstreamTimeout(
        "The embedded model did not answer within the time limit", hint="Allow more time, or fewer tokens."
    )


def _or_raise(event: Event) -> Chunk | None:
    if isinstance(event, BaseException):
        raise event
    return event

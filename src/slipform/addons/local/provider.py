"""Serve the embedded model as a provider: `LocalProvider`."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from slipform.addons.local.answer import EngineAnswerReader
from slipform.addons.local.engine import (
    Cancel,
    Engines,
    EngineSettings,
    GenerationEvent,
    InferenceEngine,
    LlamaEngine,
    is_served,
    locate,
)
from slipform.addons.local.llama import Chunk
from slipform.addons.local.weights import DEFAULT, KNOWN, find
from slipform.addons.local.worker import WorkerEngine, WorkerLostError
from slipform.codecs import Capabilities
from slipform.errors import LocalModelError, UpstreamTimeout
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.reducer import fold_chunks
from slipform.ir.request import Guard
from slipform.ir.response import ChunkSink
from slipform.providers.base import push_each

if TYPE_CHECKING:
    from slipform.addons.local.call import EngineCall, HookFactory

_CAPABILITIES = Capabilities(
    native=True, tools=True, forced_tool=True, json_mode=True, dialect="identity", quirks=frozenset({"list_keys"})
)


class LoadedModel(NamedTuple):
    """A loaded model: its memory in bytes, its slots, and the calls in progress; None where unknown."""

    name: str
    memory: int | None
    slots: int | None
    running: int | None


def _resident_bytes(pid: int) -> int | None:
    """Return the memory of a process, where the system says it in a file (Linux)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class LocalProvider:
    """Answers with a model on this machine: no key, no network, every answer constrained to its schema.

    The model runs in a worker process, or with `in_process` in this one. `stop_hook` builds, for a prompt-only answer,
    the function that decides after each piece of text whether to stop. `load` replaces the engine. The provider owns
    its engines; `close` closes them.

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
        engine_class: Callable[[Path, EngineSettings | None], InferenceEngine] = (
            LlamaEngine if in_process else WorkerEngine
        )
        self._engines = Engines(load or partial(_load, engine_class, settings))
        self._has_own_weights = load is None
        self.guard = options or Guard()
        """Applied to direct calls, and to enforced ones that have none themselves."""
        self._stop_hook = stop_hook
        self._allowed_models: frozenset[str] | None = None
        """The models that the proxy's callers may name, besides known ones with weights here; None for any."""

    def for_callers(self, models: Collection[str]) -> LocalProvider:
        """Return a provider with the same engines for the proxy's callers: these models, no other path or download."""
        provider = copy.copy(self)
        provider._allowed_models = frozenset(models)  # noqa: SLF001 — a copy of this object
        return provider

    def capabilities(self, model: str) -> Capabilities:
        """Return native output for every schema; the prompt should list the keys, which helps small models most."""
        del model
        return _CAPABILITIES

    def models(self) -> list[str]:
        """Return the models that are here or can be downloaded; any GGUF file is served as well, see `serves`."""
        return [name for name in KNOWN if self.serves(name)]

    def serves(self, model: str) -> bool:
        """Return whether a name is one of `models` or the path of a GGUF file; for the proxy, see `for_callers`."""
        if self._allowed_models is None:
            return is_served(model)
        return model in self._allowed_models or (model in KNOWN and self._has_weights(model))

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        call, engine = self._prepare(request)
        try:
            return fold_chunks(_run(engine, call), call.warnings)
        except WorkerLostError:  # no chunk has reached the caller: retry once, on a new worker
            return fold_chunks(_run(engine, call), call.warnings)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Stream the answer; closing the iterator stops the engine within a token."""
        call, engine = self._prepare(request)
        has_chunks = False
        if call.warnings:
            yield CompletionChunk(warnings=call.warnings)
        try:
            for chunk in _run(engine, call):
                has_chunks = True
                yield chunk
        except WorkerLostError:
            if has_chunks:
                raise
            yield from _run(engine, call)

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer, without blocking the event loop; cancelling stops the engine within a token."""
        call, engine = await asyncio.to_thread(self._prepare, request)
        try:
            return fold_chunks([chunk async for chunk in _run_async(engine, call)], call.warnings)
        except WorkerLostError:
            return fold_chunks([chunk async for chunk in _run_async(engine, call)], call.warnings)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Stream the answer without blocking the event loop; closing stops the engine within a token."""
        call, engine = await asyncio.to_thread(self._prepare, request)
        has_chunks = False
        if call.warnings:
            yield CompletionChunk(warnings=call.warnings)
        try:
            async with contextlib.aclosing(_run_async(engine, call)) as chunks:
                async for chunk in chunks:
                    has_chunks = True
                    yield chunk
        except WorkerLostError:
            if has_chunks:
                raise
            async with contextlib.aclosing(_run_async(engine, call)) as chunks:
                async for chunk in chunks:
                    yield chunk

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Stream the answer into a sink, like `stream_async`."""
        return push_each(self.stream_async(request), sink)

    def warm(self, model: str = DEFAULT) -> None:
        """Load a model now, downloading it if necessary, rather than with the first request."""
        self._engines.get(model).warm()

    def check(self) -> None:
        """Load the default model; raise `LocalModelError` where its weights are not here."""
        if DEFAULT not in self.models():
            raise LocalModelError("The weights are not here", hint=f"Run `slipform models pull {DEFAULT}`.")
        self.warm()

    def loaded_models(self) -> list[LoadedModel]:
        """Return the loaded models; little is known of models in this process, which have no separate memory."""
        models = []
        for name, engine in self._engines.loaded().items():
            if not isinstance(engine, WorkerEngine):
                models.append(LoadedModel(name, None, None, None))
            elif (pid := engine.pid) is not None:
                models.append(LoadedModel(name, _resident_bytes(pid), engine.slots, engine.running))
        return models

    def close(self) -> None:
        """Unload the models."""
        self._engines.close()

    def _prepare(self, request: ModelRequest) -> tuple[EngineCall, InferenceEngine]:
        from slipform.addons.local.call import prepare  # much code, needed only by calls to this model

        model = request.model or DEFAULT
        if self._allowed_models is not None and model in KNOWN and not self._has_weights(model):
            raise LocalModelError(
                f"The weights of {model} are not on the server, which fetches nothing for a request",
                hint=f"Run `slipform models pull {model}` there.",
            )
        return prepare(request, self.guard, self._stop_hook), self._engines.get(model)

    def _has_weights(self, model: str) -> bool:
        return not self._has_own_weights or find(KNOWN[model]) is not None


def _load(
    engine_class: Callable[[Path, EngineSettings | None], InferenceEngine], settings: EngineSettings | None, name: str
) -> InferenceEngine:
    return engine_class(locate(name), settings)


def _run(engine: InferenceEngine, call: EngineCall) -> Iterator[CompletionChunk]:
    answer = call.answer()
    deadline = None if call.seconds is None else time.monotonic() + call.seconds
    body: dict[str, Any] | None = call.body
    while body is not None:
        yield from _run_once(engine, body, answer, deadline)
        rest = answer.next_run(body)
        body = None
        if rest is not None:
            added, body = rest
            yield added


def _run_once(
    engine: InferenceEngine, body: Mapping[str, Any], answer: EngineAnswerReader, deadline: float | None
) -> Iterator[CompletionChunk]:
    """Run one generation and yield its chunks; cancel it when the caller stops reading."""
    events: SimpleQueue[GenerationEvent] = SimpleQueue()
    cancel = engine.start(body, events.put)
    finished = False
    try:
        while not answer.is_finished and (event := _raise_error(_next(events, deadline))) is not None:
            yield answer.feed(event)
        if answer.is_to_be_finished:
            cancel()
            while _raise_error(_next(events, deadline)) is not None:
                pass  # the slot is free again, and has the text cached
        finished = not answer.is_finished or answer.is_to_be_finished
    finally:
        if not finished:
            cancel()


async def _run_async(engine: InferenceEngine, call: EngineCall) -> AsyncGenerator[CompletionChunk, None]:
    answer = call.answer()
    deadline = None
    if call.seconds is not None:
        deadline = asyncio.get_running_loop().time() + call.seconds
    body: dict[str, Any] | None = call.body
    while body is not None:
        async with contextlib.aclosing(_run_once_async(engine, body, answer, deadline)) as chunks:
            async for chunk in chunks:
                yield chunk
        rest = await asyncio.to_thread(answer.next_run, body)
        body = None
        if rest is not None:
            added, body = rest
            yield added


async def _run_once_async(
    engine: InferenceEngine, body: Mapping[str, Any], answer: EngineAnswerReader, deadline: float | None
) -> AsyncGenerator[CompletionChunk, None]:
    """Run one generation and yield its chunks on an event loop; cancel it when the caller stops reading."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[GenerationEvent] = asyncio.Queue()
    cancels: list[Cancel] = []

    def put(event: GenerationEvent) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, event)
        except RuntimeError:  # the reader's event loop is closed
            for cancel in cancels:
                cancel()

    cancel = engine.start(body, put)
    cancels.append(cancel)
    finished = False
    try:
        while not answer.is_finished and (event := _raise_error(await _next_async(events, deadline))) is not None:
            yield answer.feed(event)
        if answer.is_to_be_finished:
            cancel()
            while _raise_error(await _next_async(events, deadline)) is not None:
                pass
        finished = not answer.is_finished or answer.is_to_be_finished
    finally:
        if not finished:
            cancel()


def _next(events: SimpleQueue[GenerationEvent], deadline: float | None) -> GenerationEvent:
    if deadline is None:
        return events.get()
    try:
        return events.get(timeout=max(0, deadline - time.monotonic()))
    except Empty:
        raise _timeout_error() from None


async def _next_async(events: asyncio.Queue[GenerationEvent], deadline: float | None) -> GenerationEvent:
    if deadline is None:
        return await events.get()
    try:
        async with asyncio.timeout_at(deadline):
            return await events.get()
    except TimeoutError:
        raise _timeout_error() from None


def _timeout_error() -> UpstreamTimeout:
    return UpstreamTimeout(
        "The embedded model did not answer within the time limit", hint="Allow more time, or fewer tokens."
    )


def _raise_error(event: GenerationEvent) -> Chunk | None:
    if isinstance(event, BaseException):
        raise event
    return event

"""AsyncClient."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, Unpack, overload

from typing_extensions import TypeForm

from slipform.enforce import EarlyStop, GuardedAnswer, Outcome, Plan, enforce
from slipform.enforce.stream import EnforcedStream, Sink, closing_chunks
from slipform.engine.planning import begin_async, plan_async, plan_for, routed
from slipform.engine.setup import Options
from slipform.engine.tracing import advance_async, observed
from slipform.errors import SlipformError, TruncatedError, UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import is_heavy, schema_text
from slipform.library.request import (
    Config,
    Overrides,
    Prompt,
    RawSchema,
    TextOverrides,
    request_for,
    set_up,
    shape_kind,
    text_request,
)
from slipform.library.stream import AsyncStream
from slipform.library.stream_session import Result, Session, result_of
from slipform.off_loop import off_loop
from slipform.providers.base import Made, Through, batches_of
from slipform.providers.http import HttpProvider
from slipform.providers.network.transport import Begun
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, Schema

Mode: TypeAlias = Literal["auto", "live", "buffer"]
"""`live`: pieces leave as they become certain. `buffer`: all at the end. `auto`: live where the channel is held to the
schema."""


Source: TypeAlias = Callable[
    [ModelRequest, Through[list[CompletionChunk]]], AsyncGenerator[list[CompletionChunk], None]
]


async def respond_batches(
    request: ModelRequest,
    planned: Callable[[], Awaitable[Plan]],
    source: Source,
    mode: Mode = "auto",
    sink: Sink | None = None,
) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
    """Chunks of the answer as they become certain; the outcome, as soon as there is one; then the last chunks.

    What can no longer become valid ends the call to the model at once; so does a model that talks on after its JSON.
    The model is then asked again behind the open stream. What has left stays: a new answer that does not begin with it
    is an error. What the sink takes, as soon as it is certain, is not given here.
    """
    plan, heavy = await planned(), is_heavy(request)
    listen = functools.partial(EnforcedStream, plan, follows=_follows(request, plan, mode), sink=sink)
    listening = await off_loop(listen) if heavy else listen()
    steps = observed(enforce(request, plan), request, plan, streaming=True)
    asked = await begin_async(steps, request)
    while True:
        if heavy:
            await off_loop(listening.begin, asked)
        else:
            listening.begin(asked)
        heard = source(asked, listening)
        try:
            async for certain in heard:
                if certain:
                    yield certain
                if listening.stopped:
                    break
        except (TruncatedError, UpstreamError) as error:
            # What breaks off after the last bracket takes nothing away.
            if not listening.complete:
                if isinstance(error, UpstreamError):
                    steps.throw(error)
                raise
        finally:
            # An answer that was left off early ends with its connection.
            with contextlib.suppress(SlipformError):
                await heard.aclose()
        further = await advance_async(steps, listening.response(), request)
        if isinstance(further, Outcome):
            rest, outcome = listening.settled(further)
            yield outcome
            yield closing_chunks(outcome.answer, rest)
            return
        asked = further


_MOST_FOLLOWED = 1 << 16
"""Bytes of a schema that a growing answer is held to, piece by piece on the event loop."""


def _follows(request: ModelRequest, plan: Plan, mode: Mode) -> bool:
    """Whether the answer can be followed: there is one shape for it, and nothing else may come in its place."""
    if plan.schema is None or request.tools or plan.on_failure == "raw" or mode == "buffer":
        return False
    if len(schema_text(request)) > _MOST_FOLLOWED:
        return False
    return mode == "live" or plan.strategy is OutputStrategy.NATIVE


T = TypeVar("T")


class AsyncClient:
    """The same, for event loops."""

    def __init__(
        self,
        model: str | None = None,
        *,
        config: Config | None = None,
        options: Options | None = None,
        router: Router | None = None,
    ) -> None:
        """`config` is a settings file or `Settings`; without it the one that is found, see `load_settings`."""
        self.model = model
        self.router, self.options = set_up(config, options, router)

    @overload
    async def ask(self, shape: type[T], prompt: Prompt, **given: Unpack[Overrides]) -> T: ...
    @overload
    async def ask(self, shape: RawSchema, prompt: Prompt, **given: Unpack[Overrides]) -> Any: ...
    @overload
    async def ask(self, shape: TypeForm[T], prompt: Prompt, **given: Unpack[Overrides]) -> T: ...
    async def ask(self, shape: Any, prompt: Prompt, **given: Unpack[Overrides]) -> Any:
        """An answer of this shape: a Python type gives an object of that type, a JSON Schema gives plain values.

        `Overrides` lists what a call may have of its own.
        """
        return (await self.ask_full(shape, prompt, **given)).value

    @overload
    async def ask_full(self, shape: type[T], prompt: Prompt, **given: Unpack[Overrides]) -> Result[T]: ...
    @overload
    async def ask_full(self, shape: RawSchema, prompt: Prompt, **given: Unpack[Overrides]) -> Result[Any]: ...
    @overload
    async def ask_full(self, shape: TypeForm[T], prompt: Prompt, **given: Unpack[Overrides]) -> Result[T]: ...
    async def ask_full(self, shape: Any, prompt: Prompt, **given: Unpack[Overrides]) -> Result[Any]:
        """`ask`, with the report of how the answer was made to fit."""
        schema: Schema[Any] = Schema.of(shape)
        request, options = request_for(schema, prompt, self.model, self.options, given)
        return result_of(schema, await self._enforced(request, plan_for(self.router, request, options, schema)))

    @overload
    def stream(self, shape: type[T], prompt: Prompt, **given: Unpack[Overrides]) -> AsyncStream[T]: ...
    @overload
    def stream(self, shape: RawSchema, prompt: Prompt, **given: Unpack[Overrides]) -> AsyncStream[Any]: ...
    @overload
    def stream(self, shape: TypeForm[T], prompt: Prompt, **given: Unpack[Overrides]) -> AsyncStream[T]: ...
    def stream(self, shape: Any, prompt: Prompt, **given: Unpack[Overrides]) -> AsyncStream[Any]:
        """The answer while it is written: partial values first, then the whole; see `AsyncStream`."""
        schema: Schema[Any] = Schema.of(shape)
        request, options = request_for(schema, prompt, self.model, self.options, given)
        plan = plan_for(self.router, request, options, schema)
        return AsyncStream(Session(schema, shape_kind(shape), request, plan), self.complete_stream)

    async def text(self, prompt: Prompt, **given: Unpack[TextOverrides]) -> str:
        """An answer in plain words."""
        return (await self.complete(text_request(prompt, self.model, given))).text

    async def respond(
        self, request: ModelRequest, options: Options | None = None, *, begun: Begun | None = None
    ) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls.

        `begun` is the first answer, where the request was sent already.
        """
        return await self._enforced(request, await plan_async(self.router, request, options or self.options), begun)

    async def _enforced(self, request: ModelRequest, plan: Plan, begun: Begun | None = None) -> Outcome:
        steps = observed(enforce(request, plan, begun.sent if begun else None), request, plan)
        asked = await begin_async(steps, request)
        while True:
            try:
                response = await self._answer(asked, plan, begun)
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            begun = None
            further = await advance_async(steps, response, request)
            if isinstance(further, Outcome):
                return further
            asked = further
            if plan.backoff_seconds:
                await asyncio.sleep(plan.backoff_seconds)

    def _answer(self, asked: ModelRequest, plan: Plan, begun: Begun | None) -> Coroutine[Any, Any, ModelResponse]:
        if begun is not None:
            provider, request = routed(self.router, asked)
            if isinstance(provider, HttpProvider):
                return provider.resume_async(request, begun)
        watch = plan.watch(asked)
        return self.complete(asked) if watch is None else self._watched(asked, watch)

    async def _watched(self, request: ModelRequest, watch: EarlyStop) -> ModelResponse:
        """The answer, read piece by piece and no further than the watch wants it."""
        answer = GuardedAnswer(watch)
        chunks = self.complete_stream(request)
        try:
            async for chunk in chunks:
                if answer.push(chunk):
                    break
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
        return answer.response()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """What the model answers to a vendor-neutral request, as it is."""
        provider, request = routed(self.router, request)
        return await provider.complete_async(request)

    def complete_stream(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """What the model answers to a vendor-neutral request, piece by piece, as it is."""
        provider, request = routed(self.router, request)
        return provider.stream_async(request)

    def complete_batches(self, request: ModelRequest, through: Through[Made]) -> AsyncGenerator[Made, None]:
        """`complete_stream`, through a function that is given the chunks that arrived together as soon as they have."""
        provider, request = routed(self.router, request)
        return batches_of(provider, request, through)

    async def respond_stream(
        self, request: ModelRequest, options: Options | None = None, *, mode: Mode = "auto"
    ) -> AsyncGenerator[CompletionChunk | Outcome, None]:
        """Chunks of the answer as they become certain, the outcome, the last chunks; see `respond_batches`."""
        async with aclosing(self.respond_batches(request, options, mode=mode)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Outcome):
                    yield piece
                else:
                    for chunk in piece:
                        yield chunk

    def respond_batches(
        self, request: ModelRequest, options: Options | None = None, *, mode: Mode = "auto", sink: Sink | None = None
    ) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
        """`respond_stream`, with the chunks that became certain together in one piece, less those the sink takes."""
        planned = functools.partial(plan_async, self.router, request, options or self.options)
        return respond_batches(request, planned, self.complete_batches, mode, sink)

    async def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

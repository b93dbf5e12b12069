"""The Python face for event loops: `AsyncClient`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from typing_extensions import TypeForm

from slipform.client_request import Prompt, RawSchema, messages_of, request_for, shape_kind
from slipform.enforce import LiveText, Outcome, Plan, Steps, Watch, WatchedAnswer, enforce
from slipform.enforce.stream import closing_chunks
from slipform.engine import Options, default_router, logged, plan_for, routed
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, Schema, is_large
from slipform.streaming import AsyncStream, Result
from slipform.streaming_session import Session

if TYPE_CHECKING:
    from slipform.config import Settings

T = TypeVar("T")


class AsyncClient:
    """The same, for event loops."""

    def __init__(
        self,
        model: str | None = None,
        *,
        options: Options | None = None,
        settings: Settings | None = None,
        router: Router | None = None,
    ) -> None:
        self.model = model
        self.options = options or Options()
        self.router = router or default_router(settings)

    @overload
    async def ask(
        self,
        shape: type[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> T: ...
    @overload
    async def ask(
        self,
        shape: RawSchema,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Any: ...
    @overload
    async def ask(
        self,
        shape: TypeForm[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> T: ...
    async def ask(
        self,
        shape: Any,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Any:
        """An answer of this shape: a Python type gives an object of that type, a JSON Schema gives plain values."""
        return (await self.ask_full(shape, prompt, model=model, max_tokens=max_tokens, options=options)).value

    @overload
    async def ask_full(
        self,
        shape: type[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[T]: ...
    @overload
    async def ask_full(
        self,
        shape: RawSchema,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[Any]: ...
    @overload
    async def ask_full(
        self,
        shape: TypeForm[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[T]: ...
    async def ask_full(
        self,
        shape: Any,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[Any]:
        """`ask`, with the report of how the answer was made to fit."""
        schema: Schema[Any] = Schema.of(shape)
        request = request_for(schema, prompt, model or self.model, max_tokens)
        outcome = await self._enforced(request, plan_for(self.router, request, options or self.options, schema))
        return Result(schema.to_python(outcome.value), outcome.text, outcome.report)

    @overload
    def stream(
        self,
        shape: type[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> AsyncStream[T]: ...
    @overload
    def stream(
        self,
        shape: RawSchema,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> AsyncStream[Any]: ...
    @overload
    def stream(
        self,
        shape: TypeForm[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> AsyncStream[T]: ...
    def stream(
        self,
        shape: Any,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> AsyncStream[Any]:
        """The answer while it is written: partial values first, then the whole; see `AsyncStream`."""
        schema: Schema[Any] = Schema.of(shape)
        request = request_for(schema, prompt, model or self.model, max_tokens)
        plan = plan_for(self.router, request, options or self.options, schema)
        return AsyncStream(Session(schema, shape_kind(shape), request, plan), self.complete_stream)

    async def text(self, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> str:
        """An answer in plain words."""
        request = ModelRequest(model or self.model or "", messages_of(prompt), max_tokens=max_tokens)
        return (await self.complete(request)).text

    async def respond(self, request: ModelRequest, options: Options | None = None) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls."""
        return await self._enforced(request, plan_for(self.router, request, options or self.options))

    async def _enforced(self, request: ModelRequest, plan: Plan) -> Outcome:
        steps = logged(enforce(request, plan), request, plan)
        asked = next(steps)
        while True:
            try:
                watch = plan.watch(asked)
                response = await (self.complete(asked) if watch is None else self._watched(asked, watch))
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            asked, outcome = await _advanced(steps, response)
            if outcome is not None:
                return outcome
            if plan.backoff_seconds:
                await asyncio.sleep(plan.backoff_seconds)

    async def _watched(self, request: ModelRequest, watch: Watch) -> ModelResponse:
        """The answer, read piece by piece and no further than the watch wants it."""
        answer = WatchedAnswer(watch)
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

    async def respond_stream(
        self, request: ModelRequest, options: Options | None = None, *, live: bool = True
    ) -> AsyncIterator[CompletionChunk | Outcome]:
        """Chunks of the answer as they become certain, then the outcome.

        With `live`, pieces leave as they are written where the channel is held to the schema; elsewhere, and without
        it, the whole answer is judged first.
        """
        plan = plan_for(self.router, request, options or self.options)
        live = live and plan.strategy is OutputStrategy.NATIVE and plan.schema is not None and not request.tools
        held = LiveText()
        plan = dataclasses.replace(plan, may_reask=lambda: not held.sent)
        steps = logged(enforce(request, plan), request, plan, streaming=True)
        asked = next(steps)
        while True:
            held, reducer = LiveText(), Reducer()
            reducer.start(Snapshot(emulated=None))
            plain = live
            watch = None if live else plan.watch(asked)
            try:
                if watch is not None:
                    response = await self._watched(asked, watch)
                else:
                    async for chunk in self.complete_stream(asked):
                        plain = plain and chunk.lift is None
                        reducer.push(chunk)
                        if plain and (piece := held.feed(chunk.text)):
                            yield CompletionChunk(text=piece)
                    response = reducer.finish(check=False)
            except UpstreamError as error:
                steps.throw(error)
            further, outcome = await _advanced(steps, response)
            if outcome is not None:
                for chunk in closing_chunks(outcome.answer, held.held if held.sent else outcome.text):
                    yield chunk
                yield outcome
                return
            asked = further

    async def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _advanced(steps: Steps, response: ModelResponse) -> tuple[ModelRequest, Outcome | None]:
    """Send a response into the steps: what to ask next, or the outcome. A large one is judged off the event loop."""
    if is_large(len(response.text)):
        return await asyncio.to_thread(_advance, steps, response)
    return _advance(steps, response)


def _advance(steps: Steps, response: ModelResponse) -> tuple[ModelRequest, Outcome | None]:
    try:
        return steps.send(response), None
    except StopIteration as done:
        outcome: Outcome = done.value
        return ModelRequest("", ()), outcome

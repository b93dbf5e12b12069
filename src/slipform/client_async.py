"""The Python face for event loops: `AsyncClient`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from typing_extensions import TypeForm

from slipform.client_request import Prompt, RawSchema, messages_of, request_for, shape_kind
from slipform.enforce import Outcome, Plan, enforce
from slipform.engine import Options, default_router, logged, plan_for, routed
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.providers.router import Router
from slipform.respond_stream import Mode, advanced, respond_stream
from slipform.schema import Schema
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
                response = await self.complete(asked)
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            asked, outcome = await advanced(steps, response)
            if outcome is not None:
                return outcome
            if plan.backoff_seconds:
                await asyncio.sleep(plan.backoff_seconds)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """What the model answers to a vendor-neutral request, as it is."""
        provider, request = routed(self.router, request)
        return await provider.complete_async(request)

    def complete_stream(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """What the model answers to a vendor-neutral request, piece by piece, as it is."""
        provider, request = routed(self.router, request)
        return provider.stream_async(request)

    def respond_stream(
        self, request: ModelRequest, options: Options | None = None, *, mode: Mode = "auto"
    ) -> AsyncIterator[CompletionChunk | Outcome]:
        """Chunks of the answer as they become certain, the outcome, the last chunks; see `slipform.respond_stream`."""
        plan = plan_for(self.router, request, options or self.options)
        return respond_stream(request, plan, self.complete_stream, mode)

    async def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

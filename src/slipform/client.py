"""The Python face: `ask`, `Client`, `AsyncClient`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

from typing_extensions import TypeForm

from slipform.config import Settings, load_settings
from slipform.enforce import LiveText, Outcome, Report, enforce
from slipform.enforce.stream import closing_chunks
from slipform.engine import Options, plan_for, routed, router_of
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Usage
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema

T = TypeVar("T")

Prompt: TypeAlias = str | Sequence[Message]
RawSchema: TypeAlias = Mapping[str, Any] | JsonSchemaSpec | str


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """An answer and the way to it."""

    value: T
    text: str
    """The answer as compact JSON."""
    report: Report

    @property
    def usage(self) -> Usage:
        """Tokens over all attempts."""
        return self.report.usage


class Client:
    """Asks models for answers of a shape, and gives back valid ones or an error that says why not.

    >>> with Client("local") as client:
    ...     client.options.budget.attempts
    1
    """

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
        self.router = router or router_of(settings or load_settings())

    @overload
    def ask(
        self,
        shape: type[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> T: ...
    @overload
    def ask(
        self,
        shape: RawSchema,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Any: ...
    @overload
    def ask(
        self,
        shape: TypeForm[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> T: ...
    def ask(
        self,
        shape: Any,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Any:
        """An answer of this shape: a Python type gives an object of that type, a JSON Schema gives plain values."""
        return (self.ask_full(shape, prompt, model=model, max_tokens=max_tokens, options=options)).value

    @overload
    def ask_full(
        self,
        shape: type[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[T]: ...
    @overload
    def ask_full(
        self,
        shape: RawSchema,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[Any]: ...
    @overload
    def ask_full(
        self,
        shape: TypeForm[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Result[T]: ...
    def ask_full(
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
        outcome = self.respond(_request(schema, prompt, model or self.model, max_tokens), options)
        return Result(schema.to_python(outcome.value), outcome.text, outcome.report)

    def text(self, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> str:
        """An answer in plain words."""
        request = ModelRequest(model or self.model or "", _messages(prompt), max_tokens=max_tokens)
        return (self.complete(request)).text

    def respond(self, request: ModelRequest, options: Options | None = None) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls."""
        steps = enforce(request, plan_for(self.router, request, options or self.options))
        asked = next(steps)
        while True:
            try:
                response = self.complete(asked)
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            try:
                asked = steps.send(response)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome

    def complete(self, request: ModelRequest) -> ModelResponse:
        """What the model answers to a vendor-neutral request, as it is."""
        provider, request = routed(self.router, request)
        return provider.complete(request)

    def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        self.router = router or router_of(settings or load_settings())

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
        outcome = await self.respond(_request(schema, prompt, model or self.model, max_tokens), options)
        return Result(schema.to_python(outcome.value), outcome.text, outcome.report)

    async def text(self, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> str:
        """An answer in plain words."""
        request = ModelRequest(model or self.model or "", _messages(prompt), max_tokens=max_tokens)
        return (await self.complete(request)).text

    async def respond(self, request: ModelRequest, options: Options | None = None) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls."""
        steps = enforce(request, plan_for(self.router, request, options or self.options))
        asked = next(steps)
        while True:
            try:
                response = await self.complete(asked)
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            try:
                asked = steps.send(response)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """What the model answers to a vendor-neutral request, as it is."""
        provider, request = routed(self.router, request)
        return await provider.complete_async(request)

    async def complete_stream(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """What the model answers to a vendor-neutral request, piece by piece, as it is."""
        provider, request = routed(self.router, request)
        async for chunk in provider.stream_async(request):
            yield chunk

    async def respond_stream(
        self, request: ModelRequest, options: Options | None = None, *, live: bool = True
    ) -> AsyncIterator[CompletionChunk | Outcome]:
        """Chunks of the answer as they become certain, then the outcome.

        With `live`, pieces leave as they are written where the channel is held to the schema; elsewhere, and without
        it, the whole answer is judged first.
        """
        plan = plan_for(self.router, request, options or self.options)
        live = live and plan.strategy is OutputStrategy.NATIVE and plan.schema is not None and not request.tools
        if live:
            plan = dataclasses.replace(plan, budget=dataclasses.replace(plan.budget, attempts=1))
        steps = enforce(request, plan)
        asked = next(steps)
        while True:
            held, reducer = LiveText(), Reducer()
            reducer.start(Snapshot(emulated=plan.strategy is OutputStrategy.TOOL))
            try:
                async for chunk in self.complete_stream(asked):
                    live = live and chunk.lift is None
                    reducer.push(chunk)
                    if live and (piece := held.feed(chunk.text)):
                        yield CompletionChunk(text=piece)
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            try:
                asked = steps.send(reducer.finish(check=False))
            except StopIteration as done:
                outcome: Outcome = done.value
                for chunk in closing_chunks(outcome.answer, held.held if held.sent else outcome.text):
                    yield chunk
                yield outcome
                return

    async def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


@overload
def ask(
    shape: type[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> T: ...
@overload
def ask(
    shape: RawSchema,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Any: ...
@overload
def ask(
    shape: TypeForm[T],
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> T: ...
def ask(
    shape: Any,
    prompt: Prompt,
    *,
    model: str | None = None,
    max_tokens: int | None = None,
    options: Options | None = None,
) -> Any:
    """Ask for an answer of this shape, with the embedded model unless another is named.

    `slipform.ask(Person, "Ada is 36")` gives a `Person`.
    """
    return _default_client().ask(shape, prompt, model=model, max_tokens=max_tokens, options=options)


@functools.cache
def _default_client() -> Client:
    return Client()


def _request(schema: Schema[Any], prompt: Prompt, model: str | None, max_tokens: int | None) -> ModelRequest:
    return ModelRequest(
        model or "", _messages(prompt), response_format=ResponseFormat.strict(schema.spec), max_tokens=max_tokens
    )


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    return (Message.user(prompt),) if isinstance(prompt, str) else tuple(prompt)

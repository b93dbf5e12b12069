"""The Python face: `ask`, `Client`, `AsyncClient`."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from slipform.enforce import LiveText, Outcome, Plan, Steps, enforce, fold
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse
from slipform.providers import Provider
from slipform.providers.local import LocalProvider
from slipform.providers.router import Router
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat, Schema

T = TypeVar("T")

Prompt = str | Sequence[Message]


class Client:
    """Asks models for answers of a shape, and gives back valid ones or an error that says why not.

    >>> client = Client(max_attempts=2)
    >>> client.close()
    """

    def __init__(self, model: str | None = None, *, max_attempts: int = 1, router: Router | None = None) -> None:
        self.model = model
        self.max_attempts = max_attempts
        self.router = router or default_router()

    @overload
    def ask(self, shape: type[T], prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> T: ...
    @overload
    def ask(
        self,
        shape: dict[str, Any] | JsonSchemaSpec,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
    ) -> Any: ...
    def ask(self, shape: Any, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> Any:
        """An answer of this shape: a Python type gives an object of that type, a JSON Schema gives plain values."""
        schema: Schema[Any] = Schema.of(shape)
        outcome = self.respond(self.request(schema, prompt, model=model, max_tokens=max_tokens))
        return schema.to_python(outcome.value)

    def request(
        self, shape: Any, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None
    ) -> ModelRequest:
        """The vendor-neutral request that `ask` would send."""
        return _request(Schema.of(shape), prompt, model or self.model, max_tokens)

    def respond(self, request: ModelRequest) -> Outcome:
        """Answer a vendor-neutral request that carries a `response_format`."""
        provider, request = _route(self.router, request)
        steps = _steps(provider, request, self.max_attempts)
        asked = next(steps)
        while True:
            try:
                asked = steps.send(provider.complete(asked))
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome

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

    def __init__(self, model: str | None = None, *, max_attempts: int = 1, router: Router | None = None) -> None:
        self.model = model
        self.max_attempts = max_attempts
        self.router = router or default_router()

    @overload
    async def ask(
        self, shape: type[T], prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None
    ) -> T: ...
    @overload
    async def ask(
        self,
        shape: dict[str, Any] | JsonSchemaSpec,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
    ) -> Any: ...
    async def ask(self, shape: Any, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> Any:
        """An answer of this shape: a Python type gives an object of that type, a JSON Schema gives plain values."""
        schema: Schema[Any] = Schema.of(shape)
        outcome = await self.respond(_request(schema, prompt, model or self.model, max_tokens))
        return schema.to_python(outcome.value)

    async def respond(self, request: ModelRequest) -> Outcome:
        """Answer a vendor-neutral request that carries a `response_format`."""
        provider, request = _route(self.router, request)
        steps = _steps(provider, request, self.max_attempts)
        asked = next(steps)
        while True:
            try:
                asked = steps.send(await provider.complete_async(asked))
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome

    async def respond_stream(self, request: ModelRequest) -> AsyncIterator[CompletionChunk | Outcome]:
        """Chunks of the answer's JSON as they become certain, then the outcome.

        Where the channel is held to the schema the pieces leave live; elsewhere the whole answer is judged first.
        """
        provider, request = _route(self.router, request)
        live = _plan(provider, request, self.max_attempts).strategy is OutputStrategy.NATIVE
        steps = _steps(provider, request, 1 if live else self.max_attempts)
        asked = next(steps)
        while True:
            text = LiveText()
            chunks: list[CompletionChunk] = []
            async for chunk in provider.stream_async(asked):
                chunks.append(chunk)
                if live and (piece := text.feed(chunk.text)):
                    yield CompletionChunk(text=piece)
            try:
                asked = steps.send(fold(chunks))
            except StopIteration as done:
                outcome: Outcome = done.value
                yield CompletionChunk(text=text.held if live else outcome.text)
                yield outcome
                return

    async def text(self, request: ModelRequest) -> ModelResponse:
        """Answer a request that asks for no shape."""
        provider, request = _route(self.router, request)
        return await provider.complete_async(request)

    async def text_stream(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer a request that asks for no shape, piece by piece."""
        provider, request = _route(self.router, request)
        async for chunk in provider.stream_async(request):
            yield chunk

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
def ask(shape: type[T], prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> T: ...
@overload
def ask(
    shape: dict[str, Any] | JsonSchemaSpec, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None
) -> Any: ...
def ask(shape: Any, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> Any:
    """Ask for an answer of this shape, with the embedded model unless another is named.

    `slipform.ask(Person, "Ada is 36")` gives a `Person`.
    """
    return _default_client().ask(shape, prompt, model=model, max_tokens=max_tokens)


def default_router() -> Router:
    """The providers that need no configuration."""
    return Router({"local": LocalProvider()})


@functools.cache
def _default_client() -> Client:
    return Client()


def _request(schema: Schema[Any], prompt: Prompt, model: str | None, max_tokens: int | None) -> ModelRequest:
    messages = (Message.user(prompt),) if isinstance(prompt, str) else tuple(prompt)
    response_format = ResponseFormat.strict(schema.spec)
    return ModelRequest(model or "", messages, response_format=response_format, max_tokens=max_tokens)


def _route(router: Router, request: ModelRequest) -> tuple[Provider, ModelRequest]:
    provider, upstream = router.resolve(request.model)
    return provider, request.replace(model=upstream)


def _steps(provider: Provider, request: ModelRequest, max_attempts: int) -> Steps:
    return enforce(request, _plan(provider, request, max_attempts))


def _plan(provider: Provider, request: ModelRequest, max_attempts: int) -> Plan:
    if request.response_format is None:
        schema, strategy = Schema[Any]("object", {"type": "object"}), OutputStrategy.AUTO
    else:
        schema, strategy = Schema.of(request.response_format.json_schema), request.response_format.strategy
    capabilities = provider.capabilities(request.model)
    if strategy is OutputStrategy.AUTO:
        strategy = capabilities.auto_strategy
    return Plan(schema, strategy, max_attempts, list_keys="list_keys" in capabilities.quirks)

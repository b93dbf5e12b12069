"""The Python face for ordinary code: `Client`."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from typing_extensions import TypeForm

from slipform.client_async import AsyncClient
from slipform.client_request import Prompt, RawSchema, messages_of, request_for, shape_kind
from slipform.enforce import Outcome, Plan, Watch, WatchedAnswer, enforce
from slipform.engine import Options, default_router, logged, plan_for, routed
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.providers.router import Router
from slipform.schema import Schema
from slipform.streaming import Result, Stream
from slipform.streaming_session import Session

if TYPE_CHECKING:
    from slipform.config import Settings

T = TypeVar("T")

__all__ = ["AsyncClient", "Client", "Prompt", "RawSchema", "Result"]


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
        self.router = router or default_router(settings)

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
        request = request_for(schema, prompt, model or self.model, max_tokens)
        outcome = self._enforced(request, plan_for(self.router, request, options or self.options, schema))
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
    ) -> Stream[T]: ...
    @overload
    def stream(
        self,
        shape: RawSchema,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Stream[Any]: ...
    @overload
    def stream(
        self,
        shape: TypeForm[T],
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Stream[T]: ...
    def stream(
        self,
        shape: Any,
        prompt: Prompt,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        options: Options | None = None,
    ) -> Stream[Any]:
        """The answer while it is written: partial values first, then the whole; see `Stream`."""
        schema: Schema[Any] = Schema.of(shape)
        request = request_for(schema, prompt, model or self.model, max_tokens)
        plan = plan_for(self.router, request, options or self.options, schema)
        return Stream(Session(schema, shape_kind(shape), request, plan), self.complete_stream)

    def text(self, prompt: Prompt, *, model: str | None = None, max_tokens: int | None = None) -> str:
        """An answer in plain words."""
        request = ModelRequest(model or self.model or "", messages_of(prompt), max_tokens=max_tokens)
        return (self.complete(request)).text

    def respond(self, request: ModelRequest, options: Options | None = None) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls."""
        return self._enforced(request, plan_for(self.router, request, options or self.options))

    def _enforced(self, request: ModelRequest, plan: Plan) -> Outcome:
        steps = logged(enforce(request, plan), request, plan)
        asked = next(steps)
        while True:
            try:
                watch = plan.watch(asked)
                response = self.complete(asked) if watch is None else self._watched(asked, watch)
            except UpstreamError as error:
                asked = steps.throw(error)
                continue
            try:
                asked = steps.send(response)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome
            if plan.backoff_seconds:
                time.sleep(plan.backoff_seconds)

    def _watched(self, request: ModelRequest, watch: Watch) -> ModelResponse:
        """The answer, read piece by piece and no further than the watch wants it."""
        answer = WatchedAnswer(watch)
        chunks = self.complete_stream(request)
        try:
            for chunk in chunks:
                if answer.push(chunk):
                    break
        finally:
            if isinstance(chunks, Generator):
                chunks.close()
        return answer.response()

    def complete(self, request: ModelRequest) -> ModelResponse:
        """What the model answers to a vendor-neutral request, as it is."""
        provider, request = routed(self.router, request)
        return provider.complete(request)

    def complete_stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """What the model answers to a vendor-neutral request, piece by piece, as it is."""
        provider, request = routed(self.router, request)
        return provider.stream(request)

    def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

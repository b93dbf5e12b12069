"""Client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from typing_extensions import TypeForm

from slipform.enforce import Outcome
from slipform.engine.fallback import FallbackCall, FallbackList, respond, run_first
from slipform.engine.planning import ModelRoute
from slipform.engine.setup import Options
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import CallCount
from slipform.library.async_client import AsyncClient
from slipform.library.request import (
    Config,
    Overrides,
    Prompt,
    RawSchema,
    TextOverrides,
    models_of,
    request_for,
    set_up,
    shape_kind,
    text_request,
)
from slipform.library.stream import Stream
from slipform.library.stream_session import Result, Session, result_of
from slipform.providers.router import Router
from slipform.schema import Schema

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
        model: str | Sequence[str] | None = None,
        *,
        config: Config | None = None,
        options: Options | None = None,
        router: Router | None = None,
    ) -> None:
        """Of several models, the next is asked when one cannot answer.

        `config` is a settings file or `Settings`; without it the one that is found, see `load_settings`.
        """
        self.model = model
        self.router, self.options = set_up(config, options, router)

    @overload
    def ask(self, shape: type[T], prompt: Prompt, **given: Unpack[Overrides]) -> T: ...
    @overload
    def ask(self, shape: RawSchema, prompt: Prompt, **given: Unpack[Overrides]) -> Any: ...
    @overload
    def ask(self, shape: TypeForm[T], prompt: Prompt, **given: Unpack[Overrides]) -> T: ...
    def ask(self, shape: Any, prompt: Prompt, **given: Unpack[Overrides]) -> Any:
        """An answer of this shape: a Python type gives an object of that type, a JSON Schema gives plain values.

        `Overrides` lists what a call may have of its own.
        """
        return (self.ask_full(shape, prompt, **given)).value

    @overload
    def ask_full(self, shape: type[T], prompt: Prompt, **given: Unpack[Overrides]) -> Result[T]: ...
    @overload
    def ask_full(self, shape: RawSchema, prompt: Prompt, **given: Unpack[Overrides]) -> Result[Any]: ...
    @overload
    def ask_full(self, shape: TypeForm[T], prompt: Prompt, **given: Unpack[Overrides]) -> Result[T]: ...
    def ask_full(self, shape: Any, prompt: Prompt, **given: Unpack[Overrides]) -> Result[Any]:
        """`ask`, with the report of how the answer was made to fit."""
        schema: Schema[Any] = Schema.of(shape)
        request, options = request_for(schema, prompt, self.model, self.options, given)
        models = models_of(self.model, given)
        return result_of(schema, respond(self.router, models, request, options, schema))

    @overload
    def stream(self, shape: type[T], prompt: Prompt, **given: Unpack[Overrides]) -> Stream[T]: ...
    @overload
    def stream(self, shape: RawSchema, prompt: Prompt, **given: Unpack[Overrides]) -> Stream[Any]: ...
    @overload
    def stream(self, shape: TypeForm[T], prompt: Prompt, **given: Unpack[Overrides]) -> Stream[T]: ...
    def stream(self, shape: Any, prompt: Prompt, **given: Unpack[Overrides]) -> Stream[Any]:
        """The answer while it is written: partial values first, then the whole; see `Stream`."""
        schema: Schema[Any] = Schema.of(shape)
        request, options = request_for(schema, prompt, self.model, self.options, given)
        call = FallbackCall(self.router, models_of(self.model, given), request, options, schema)
        return Stream(Session(schema, shape_kind(shape), call))

    def text(self, prompt: Prompt, **given: Unpack[TextOverrides]) -> str:
        """An answer in plain words."""
        request, models = text_request(prompt, self.model, given), models_of(self.model, given)
        listed = FallbackList(self.router, models, CallCount(self.options.budget.calls))
        return run_first(listed, lambda route: route.complete(listed.aimed(request, route))).text

    def respond(self, request: ModelRequest, options: Options | None = None) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls."""
        return respond(self.router, request.model, request, options or self.options)

    def complete(self, request: ModelRequest) -> ModelResponse:
        """What the model answers to a vendor-neutral request, as it is."""
        return ModelRoute(self.router, request.model).complete(request)

    def complete_stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """What the model answers to a vendor-neutral request, piece by piece, as it is."""
        return ModelRoute(self.router, request.model).stream(request)

    def close(self) -> None:
        """Let go of connections and models."""
        self.router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

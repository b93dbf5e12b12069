"""Ask models for answers of a shape: `Client`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from typing_extensions import TypeForm

from slipform.enforce import Outcome
from slipform.enforce.doubts import log_doubts
from slipform.engine.fallback import FallbackList, respond, run_first
from slipform.engine.planning import ModelRoute
from slipform.engine.setup import Options
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.request import CallCount, RequestFrame
from slipform.library.async_client import AsyncClient
from slipform.library.messages import Prompt
from slipform.library.request import (
    Config,
    Overrides,
    RawSchema,
    TextOverrides,
    build_conversation,
    build_text_conversation,
    requested_format,
    set_up,
    shape_kind,
)
from slipform.library.stream import Stream
from slipform.library.stream_session import Result, Session, result_of
from slipform.library.tool_loop import converse
from slipform.providers.network.transport import Transport
from slipform.providers.router import Router
from slipform.schema import Schema

T = TypeVar("T")

__all__ = ["AsyncClient", "Client", "Prompt", "RawSchema", "Result"]


class Client:
    """Asks models for answers of a shape and returns valid ones, or raises an error that says why not.

    It owns its router: `close` closes that, also when it was passed in.

    >>> with Client("local") as client:
    ...     client.options.budget.attempts
    3
    """

    def __init__(
        self,
        model: str | Sequence[str] | None = None,
        *,
        config: Config | None = None,
        options: Options | None = None,
        router: Router | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        http: Transport | None = None,
    ) -> None:
        """Try several models in their order; `config` is a settings file or `Settings`, see `load_settings`.

        `base_url`, `api_key` and `http` (what sends the requests) make a client of one endpoint without settings: of
        the vendor that the model's name begins with (`anthropic/…`), else of a server that speaks OpenAI's API.
        """
        self.model = model
        self.frames = WeakKeyDictionary[Schema[Any], RequestFrame]()
        """What is kept for the next call with the same schema and no further arguments."""
        self.router, self.options = set_up(model, config, options, router, base_url, api_key, http)

    @overload
    def ask(self, shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> T: ...
    @overload
    def ask(self, shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Any: ...
    @overload
    def ask(self, shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> T: ...
    def ask(self, shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Any:
        """Return an answer of this shape: an object of a Python type, or plain values for a JSON Schema.

        Raises `EnforcementError` when no attempt was valid. `Overrides` lists the keyword arguments.
        """
        result = self.ask_full(shape, prompt, **overrides)
        log_doubts("ask", [(warning.code, warning.message) for warning in result.report.warnings])
        return result.value

    @overload
    def ask_full(self, shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> Result[T]: ...
    @overload
    def ask_full(self, shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Result[Any]: ...
    @overload
    def ask_full(self, shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> Result[T]: ...
    def ask_full(self, shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Result[Any]:
        """`ask`, with the JSON text and the report of the attempts."""
        schema: Schema[Any] = Schema.of(shape)
        spec = build_conversation(self, schema, prompt, overrides, requested_format(shape))
        return result_of(schema, converse(self.router, spec, schema))

    @overload
    def stream(self, shape: type[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> Stream[T]: ...
    @overload
    def stream(self, shape: RawSchema, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Stream[Any]: ...
    @overload
    def stream(self, shape: TypeForm[T], prompt: Prompt, **overrides: Unpack[Overrides[T]]) -> Stream[T]: ...
    def stream(self, shape: Any, prompt: Prompt, **overrides: Unpack[Overrides[Any]]) -> Stream[Any]:
        """Stream the answer: partial values first, then the whole; see `Stream`."""
        schema: Schema[Any] = Schema.of(shape)
        spec = build_conversation(self, schema, prompt, overrides, requested_format(shape))
        return Stream(Session(self.router, spec, schema, shape_kind(shape)))

    def text(self, prompt: Prompt, **overrides: Unpack[TextOverrides]) -> str:
        """Return an answer as plain text, without a schema; `TextOverrides` lists the keyword arguments."""
        spec = build_text_conversation(prompt, self.model, self.options, overrides)
        if spec.toolbox.tools:
            return converse(self.router, spec, None).outcome.text
        request = spec.request
        fallback = FallbackList(self.router, spec.models, CallCount(spec.options.budget.calls))
        return run_first(fallback, lambda route: route.complete(fallback.for_model(request, route))).text

    def respond(self, request: ModelRequest, options: Options | None = None) -> Outcome:
        """Enforce the answer to a vendor-neutral request: its `response_format`, JSON mode and tool calls."""
        return respond(self.router, request.model, request, options or self.options)

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the model's response to a vendor-neutral request, not enforced."""
        return ModelRoute(self.router, request.model).complete(request)

    def complete_stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Stream the model's response to a vendor-neutral request, not enforced."""
        return ModelRoute(self.router, request.model).stream(request)

    def close(self) -> None:
        """Close connections and models."""
        self.router.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""Script the answers of a model inside the process: `FakeModel`, and `calling` for answers that call tools."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.codecs import Capabilities
from slipform.errors import ConfigError
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, ToolCall
from slipform.ir.response import ChunkSink
from slipform.providers.base import as_chunks, push_each


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A stream that fails after a number of chunks; without streaming, it fails at once."""

    content: str | ModelResponse
    error: Exception
    after: int = 1


Turn: TypeAlias = str | ModelResponse | Exception | Interrupted


def calling(*calls: tuple[str, Mapping[str, Any] | str], text: str = "") -> ModelResponse:
    """Return an answer that calls tools: pairs of a name and arguments, as a dict or as raw text.

    >>> calling(("forecast", {"city": "Rome"})).tool_calls[0].arguments
    '{"city": "Rome"}'
    """
    made = tuple(
        ToolCall(f"call_{number}", name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return ModelResponse(text=text, tool_calls=made, finish="tool_calls")


class FakeModel:
    """A provider with scripted answers, which also records its requests.

    Each call takes the next turn of the script; the last turn also serves all calls after it. A turn is a text, a
    `ModelResponse`, an exception to raise or an `Interrupted` stream; a function from the request to a turn can be
    given for the list. Streams are cut into pieces of `chunk_size` characters.

    >>> model = FakeModel(["not JSON", '{"name": "Ada"}'])
    >>> [model.complete(ModelRequest("any", ())).text for _ in range(2)]
    ['not JSON', '{"name": "Ada"}']
    """

    def __init__(
        self,
        script: Sequence[Turn] | Callable[[ModelRequest], Turn],
        *,
        name: str = "fake",
        chunk_size: int = 4,
        capabilities: Capabilities | None = None,
        models: Sequence[str] = (),
    ) -> None:
        if not callable(script) and not script:
            raise ConfigError("A fake model needs a script of at least one turn")
        self.name = name
        self.requests: list[ModelRequest] = []
        """All requests, in order."""
        self.closed = False
        self._script = script if callable(script) else list(script)
        self._chunk_size = chunk_size
        self._capabilities = capabilities or Capabilities()
        self._models = list(models)
        self._lock = threading.Lock()

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 — the same for every model
        """Return the given capabilities; by default none, so that schemas are put into the prompt."""
        return self._capabilities

    def models(self) -> list[str]:
        """Return the given models; empty when any name is accepted."""
        return list(self._models)

    def serves(self, model: str) -> bool:
        """Return whether the name was given, or any name is accepted."""
        return not self._models or model in self._models

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next turn as a whole."""
        turn = self._next(request)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, Interrupted):
            raise turn.error
        return _response(turn)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Yield the next turn in pieces."""
        turn = self._next(request)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, Interrupted):
            chunks = list(as_chunks(_response(turn.content), self._chunk_size))
            yield from chunks[: turn.after]
            raise turn.error
        yield from as_chunks(_response(turn), self._chunk_size)

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Return the next turn as a whole."""
        return self.complete(request)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Yield the next turn in pieces."""
        for chunk in self.stream(request):
            yield chunk

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Stream the next turn into a sink."""
        return push_each(self.stream_async(request), sink)

    def warm(self) -> None:
        """Do nothing: there is nothing to load."""

    def close(self) -> None:
        """Record that it was closed."""
        self.closed = True

    def _next(self, request: ModelRequest) -> Turn:
        with self._lock:
            self.requests.append(request)
            count = len(self.requests)
        if callable(self._script):
            return self._script(request)
        return self._script[min(count, len(self._script)) - 1]


def _response(turn: str | ModelResponse) -> ModelResponse:
    if isinstance(turn, str):
        return ModelResponse(text=turn)
    return turn

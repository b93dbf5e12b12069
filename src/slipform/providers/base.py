"""What every provider does, whoever answers behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from slipform.codecs.base import Capabilities
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse


class Provider(Protocol):
    """One endpoint that answers requests, sync and async, whole and streamed.

    `request.model` is the upstream's own name for the model; the router has taken the provider's prefix off.
    """

    name: str

    def capabilities(self, model: str) -> Capabilities:
        """What this model can do here."""
        ...

    def models(self) -> list[str]:
        """The models this provider is known to serve; may be empty when any name goes."""
        ...

    def serves(self, model: str) -> bool:
        """Whether a model of that name can be asked for here."""
        ...

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        ...

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece, blocking; closing the iterator stops the upstream."""
        ...

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        ...

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator stops the upstream."""
        ...

    def close(self) -> None:
        """Let go of connections and workers."""
        ...


Batches: TypeAlias = AsyncGenerator[Sequence[CompletionChunk], None]
"""The chunks of an answer, those that arrived together in one piece; no piece is empty."""


def batches_of(provider: Provider, request: ModelRequest) -> Batches:
    """What a provider streams, by batches: its own where it has a `batches_async`, else every chunk by itself."""
    own: Callable[[ModelRequest], Batches] | None = getattr(provider, "batches_async", None)
    return _one_by_one(provider.stream_async(request)) if own is None else own(request)


async def _one_by_one(chunks: AsyncIterator[CompletionChunk]) -> Batches:
    try:
        async for chunk in chunks:
            yield (chunk,)
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()

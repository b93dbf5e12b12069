"""What every provider does, whoever answers behind it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

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


@runtime_checkable
class ReadsFiles(Protocol):
    """A provider whose models' names may be paths of files, or of what would be downloaded."""

    def for_callers(self, models: Collection[str]) -> Provider:
        """The same for callers from outside, who may ask for these models and for no file or download of their own."""
        ...


Made = TypeVar("Made")
Through: TypeAlias = Callable[[Sequence[CompletionChunk]], Made | None]
"""What becomes of the chunks that arrived together: it is given them at once, and None when nothing is left to do.

One that has a method `texts`, which takes strings, may be given so the texts of chunks that say nothing else that is
new: no more than text of the first choice, by who spoke last.
"""


def batches_of(provider: Provider, request: ModelRequest, through: Through[Made]) -> AsyncGenerator[Made, None]:
    """What `through` makes of a streamed answer, by batches where the provider has a `batches_async`."""
    own: Callable[[ModelRequest, Through[Made]], AsyncGenerator[Made, None]] | None
    own = getattr(provider, "batches_async", None)
    return _one_by_one(provider.stream_async(request), through) if own is None else own(request, through)


async def _one_by_one(chunks: AsyncIterator[CompletionChunk], through: Through[Made]) -> AsyncGenerator[Made, None]:
    try:
        async for chunk in chunks:
            if (made := through((chunk,))) is not None:
                yield made
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()

"""Define the interface of every provider, and turn a whole response into chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from slipform.codecs import Capabilities
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, ToolDelta
from slipform.ir.parts import part_chunks
from slipform.ir.response import ChunkSink, head_fields

if TYPE_CHECKING:
    from pathlib import Path


class Provider(Protocol):
    """One endpoint that answers requests, sync and async, whole and streamed.

    `request.model` is the upstream's own name for the model, without the provider's prefix.
    """

    name: str

    def capabilities(self, model: str) -> Capabilities:
        """Return what this model can do at this provider."""
        ...

    def models(self) -> list[str]:
        """Return the known models of this provider; may be empty if it accepts any name."""
        ...

    def serves(self, model: str) -> bool:
        """Return whether this provider serves a model of that name."""
        ...

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the answer, blocking."""
        ...

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Stream the answer, blocking; closing the iterator stops the upstream."""
        ...

    def complete_async(self, request: ModelRequest) -> Coroutine[Any, Any, ModelResponse]:
        """Return the answer."""
        ...

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Stream the answer; closing the iterator stops the upstream."""
        ...

    def batches_async(self, request: ModelRequest, sink: ChunkSink) -> AsyncGenerator[Sequence[CompletionChunk], None]:
        """Stream the answer into a sink: chunks that arrive together are pushed; those it refuses are yielded."""
        ...

    def close(self) -> None:
        """Close connections and workers."""
        ...


@runtime_checkable
class ReadsFiles(Protocol):
    """A provider whose model names may be file paths or names of downloads."""

    def for_callers(self, models: Collection[str]) -> Provider:
        """Return a copy for external callers, who may use these models but cannot name a file or start a download."""
        ...


@runtime_checkable
class LoadsModels(Protocol):
    """A provider that loads its models itself."""

    def check(self) -> None:
        """Load the default model; raise `LocalModelError` if that fails."""
        ...


@dataclass(frozen=True, slots=True)
class ModelStore:
    """The models that a provider stores on this machine."""

    find: Callable[[], Mapping[str, str]]
    """Returns its models, each with its path, or how to download it."""
    pull: Callable[[str | None], Path]
    """Downloads a model unless it is present, without a name the default one; returns its file."""
    is_installed: Callable[[], bool]
    """Returns whether the default model is present."""
    diagnose: Callable[[], tuple[Literal["ok", "note"], str]]
    """Loads the default model and returns a report; raises `LocalModelError`."""


@dataclass(frozen=True, slots=True)
class ProviderAddOn:
    """A provider that is not a vendor in the catalogue."""

    make: Callable[[], Provider]
    store: ModelStore | None = None


async def push_each(
    chunks: AsyncIterator[CompletionChunk], sink: ChunkSink
) -> AsyncGenerator[Sequence[CompletionChunk], None]:
    """Implement `batches_async` for a provider whose chunks arrive one by one."""
    try:
        async for chunk in chunks:
            if (left := sink.push((chunk,))) is not None:
                yield left
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def as_chunks(response: ModelResponse, size: int | None = None) -> Iterator[CompletionChunk]:
    """Return the chunks a vendor would have streamed for this answer; `size` cuts text and arguments into pieces.

    >>> [chunk.text for chunk in as_chunks(ModelResponse(text="abc"), size=2)]
    ['ab', 'c', '']
    """
    first = True
    for chunk in _pieces(response, size):
        if first:
            # Fields of the whole answer occur once, on the first chunk.
            chunk = _with_head(chunk, response)
            first = False
        yield chunk
    last = CompletionChunk(
        finish=response.finish, raw_finish=response.raw_finish, usage=response.usage, extra=response.extra
    )
    yield _with_head(last, response) if first else last


def _with_head(chunk: CompletionChunk, response: ModelResponse) -> CompletionChunk:
    if not chunk.extra and (head := head_fields(response.extra)):
        chunk = chunk._replace(extra=head)
    return chunk._replace(model=response.model, id=response.id, warnings=response.warnings, lift=response.lift)


def _pieces(response: ModelResponse, size: int | None) -> Iterator[CompletionChunk]:
    for chunk in part_chunks(response.message.parts):
        if size is None and not chunk.tool_calls:
            yield chunk
            continue
        for piece in _split_text(chunk.reasoning, size):
            yield CompletionChunk(reasoning=piece)
        for piece in _split_text(chunk.text, size):
            yield CompletionChunk(text=piece)
        for call in chunk.tool_calls:
            yield CompletionChunk(tool_calls=(replace(call, arguments="", done=False),))
            for piece in _split_text(call.arguments, size):
                yield CompletionChunk(tool_calls=(ToolDelta(call.index, arguments=piece),))
            if call.done:
                yield CompletionChunk(tool_calls=(ToolDelta(call.index, done=True),))
        if chunk.parts:
            yield CompletionChunk(parts=chunk.parts)
    for piece in _split_text(response.refusal or "", size):
        yield CompletionChunk(refusal=piece)


def _split_text(text: str, size: int | None) -> Iterator[str]:
    step = size or len(text) or 1
    for start in range(0, len(text), step):
        yield text[start : start + step]

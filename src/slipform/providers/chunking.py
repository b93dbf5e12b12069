"""A whole answer, told as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from slipform.ir import CompletionChunk, ModelResponse, ToolDelta

_ONCE = {"model", "id", "warnings", "lift"} & {field.name for field in fields(ModelResponse)}
"""What a response and a chunk have in common and a stream says once."""


def as_chunks(response: ModelResponse, size: int | None = None) -> Iterator[CompletionChunk]:
    """The chunks a vendor would have streamed for this answer; `size` cuts text and arguments into pieces.

    >>> [chunk.text for chunk in as_chunks(ModelResponse(text="abc"), size=2)]
    ['ab', 'c', '']
    """
    first = True
    for chunk in _pieces(response, size):
        if first:
            # What belongs to the whole answer is said once, and early.
            chunk = _with_head(chunk, response)
            first = False
        yield chunk
    last = CompletionChunk(
        finish=response.finish, raw_finish=response.raw_finish, usage=response.usage, extra=response.extra
    )
    yield _with_head(last, response) if first else last


def _with_head(chunk: CompletionChunk, response: ModelResponse) -> CompletionChunk:
    return chunk._replace(**{name: getattr(response, name) for name in _ONCE})


def _pieces(response: ModelResponse, size: int | None) -> Iterator[CompletionChunk]:
    for piece in _cut(response.reasoning, size):
        yield CompletionChunk(reasoning=piece)
    for piece in _cut(response.text, size):
        yield CompletionChunk(text=piece)
    for piece in _cut(response.refusal or "", size):
        yield CompletionChunk(refusal=piece)
    for index, call in enumerate(response.tool_calls):
        yield CompletionChunk(tool_calls=(ToolDelta(index, call.id, call.name, extra=call.extra),))
        for piece in _cut(call.arguments, size):
            yield CompletionChunk(tool_calls=(ToolDelta(index, arguments=piece),))


def _cut(text: str, size: int | None) -> Iterator[str]:
    step = size or len(text) or 1
    for start in range(0, len(text), step):
        yield text[start : start + step]

"""How a stream under enforcement ends; see `live` for what leaves before."""

from __future__ import annotations

from collections.abc import Iterator

from slipform.ir import CompletionChunk, ModelResponse, ToolDelta


def closing_chunks(answer: ModelResponse, rest: str) -> Iterator[CompletionChunk]:
    """What ends a stream: the text that has not left yet, tool calls, why it ended, and what it cost."""
    if rest:
        yield CompletionChunk(text=rest)
    for index, call in enumerate(answer.tool_calls):
        yield CompletionChunk(tool_calls=(ToolDelta(index, call.id, call.name, call.arguments),))
    yield CompletionChunk(finish=answer.finish, usage=answer.usage, id=answer.id)

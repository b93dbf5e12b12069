"""How a stream under enforcement ends; see `live` for what leaves before."""

from __future__ import annotations

from slipform.ir import CompletionChunk, ModelResponse, ToolDelta


def closing_chunks(answer: ModelResponse, rest: str) -> list[CompletionChunk]:
    """What ends a stream: the text that has not left yet, tool calls, why it ended, and what it cost."""
    chunks = [CompletionChunk(text=rest)] if rest else []
    for index, call in enumerate(answer.tool_calls):
        chunks.append(CompletionChunk(tool_calls=(ToolDelta(index, call.id, call.name, call.arguments),)))
    chunks.append(CompletionChunk(finish=answer.finish, usage=answer.usage, id=answer.id))
    return chunks

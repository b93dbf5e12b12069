"""Responses stream → chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.faults import fault_error
from slipform.codecs.openai_responses.response import (
    FINISH,
    finish_words,
    is_commentary,
    read_call,
    read_item,
    read_usage,
)
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Opaque, Reasoning, Text, ToolCall, ToolDelta

_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_THINKING = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})


class ResponsesMachine:
    """What the events of a Responses stream mean; the type in the data counts, not the name of the event."""

    __slots__ = ("_commentary", "_said", "_shaped", "_streamed", "ended", "fault")

    text_key = b""

    def __init__(self, *, shaped: bool) -> None:
        self._shaped = shaped
        self.ended = False
        self.fault: UpstreamError | None = None
        self._commentary: set[Any] = set()
        self._streamed: set[tuple[str, Any]] = set()
        self._said: set[Any] = set()

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """The chunks that one event stands for."""
        kind = data.get("type") or name or ""
        at = data.get("output_index")
        if kind == "response.output_text.delta":
            if at in self._commentary:
                return []
            self._said.add(at)
            return [CompletionChunk(data.get("delta") or "")]
        if kind == "response.function_call_arguments.delta":
            self._streamed.add(("arguments", at))
            return [CompletionChunk(tool_calls=(ToolDelta(at, arguments=data.get("delta") or ""),))]
        if kind == "response.function_call_arguments.done" and ("arguments", at) not in self._streamed:
            # Some servers give the arguments only when they are whole.
            self._streamed.add(("arguments", at))
            return [CompletionChunk(tool_calls=(ToolDelta(at, arguments=data.get("arguments") or ""),))]
        if kind in _THINKING:
            return [CompletionChunk(reasoning=data.get("delta") or "")]
        if kind == "response.refusal.delta":
            self._said.add(at)
            return [CompletionChunk(refusal=data.get("delta") or "")]
        if kind == "response.output_item.added":
            return self._added(at, data.get("item") or {})
        if kind == "response.output_item.done":
            return self._done(at, data.get("item") or {})
        if kind in _TERMINAL:
            return self._end(data.get("response") or {}, kind)
        if kind in ("response.created", "response.queued"):
            response = data.get("response") or {}
            return [CompletionChunk(model=response.get("model"), id=response.get("id"))]
        if kind == "error" or data.get("error"):
            self.fault = fault_error(data, status=None)
        elif data.get("object") == "response":
            # A server that does not stream answers with the whole response.
            return self._end(data, "response.completed")
        return []

    def done(self) -> None:
        """Nothing: other events end this stream."""

    def finish(self) -> list[CompletionChunk]:
        """Nothing is left at the end."""
        return []

    def _added(self, at: Any, item: Mapping[str, Any]) -> list[CompletionChunk]:
        if self._shaped and item.get("type") == "message" and is_commentary(item):
            self._commentary.add(at)
        if item.get("type") != "function_call":
            return []
        self._said.add(at)
        call = read_call({**item, "arguments": ""})
        return [CompletionChunk(tool_calls=(ToolDelta(at, call.id or None, call.name or None, "", call.extra),))]

    def _done(self, at: Any, item: Mapping[str, Any]) -> list[CompletionChunk]:
        """What an item holds that was not streamed: all of it, or only its opaque parts."""
        kind = item.get("type")
        if kind == "message" and at in self._said:
            return []
        refusals: list[str] = []
        chunks: list[CompletionChunk] = []
        for part in read_item(item, refusals, shaped=self._shaped):
            if isinstance(part, ToolCall):
                arguments = "" if ("arguments", at) in self._streamed else part.arguments
                chunks.append(CompletionChunk(tool_calls=(ToolDelta(at, part.id, part.name, arguments, part.extra),)))
            elif isinstance(part, Text):
                chunks.append(CompletionChunk(part.text))
            elif isinstance(part, (Reasoning, Opaque)):
                chunks.append(CompletionChunk(parts=(part,)))
        self._said.add(at)
        if refusals:
            chunks.append(CompletionChunk(refusal="".join(refusals)))
        return chunks

    def _end(self, response: Mapping[str, Any], kind: str) -> list[CompletionChunk]:
        if kind == "response.failed" or response.get("status") == "failed":
            self.fault = fault_error(response.get("error") or {"message": "The response failed"}, status=None)
        self.ended = True
        chunks: list[CompletionChunk] = []
        if not self._said:
            for at, item in enumerate(response.get("output") or ()):
                chunks += self._done(at, item)
        word, reason = finish_words({"status": kind.removeprefix("response."), **response})
        usage = response.get("usage") or None
        extra = {"usage": usage} if usage else {}
        if response.get("service_tier"):
            extra["service_tier"] = response["service_tier"]
        chunks.append(
            CompletionChunk(
                finish=FINISH.get(reason or "", "unknown"),
                raw_finish=word,
                usage=read_usage(usage),
                model=response.get("model"),
                id=response.get("id"),
                extra=extra,
            )
        )
        return chunks

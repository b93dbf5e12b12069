"""Converse answer and stream → IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text, build_answer, count, rest_of, usage_of
from slipform.codecs.bedrock.request import NAME
from slipform.codecs.faults import fault_error
from slipform.codecs.plan_types import Plan
from slipform.errors import UpstreamError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    ModelResponse,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
    Usage,
)

FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}
_KNOWN = frozenset({"output", "stopReason", "usage", "error"})


def decode_body(data: Mapping[str, Any], plan: Plan) -> ModelResponse:
    """A whole answer."""
    message = (data.get("output") or {}).get("message") or {}
    word, usage = data.get("stopReason"), data.get("usage") or None
    extra = rest_of(data, _KNOWN)
    if usage:
        extra["usage"] = usage
    return build_answer(
        plan,
        [_part(block) for block in message.get("content") or () if isinstance(block, Mapping)],
        finish=FINISH.get(word or "", "unknown"),
        raw_finish=word,
        usage=read_usage(usage),
        extra=extra,
    )


def _part(block: Mapping[str, Any]) -> Part:
    if isinstance(block.get("text"), str):
        return Text(block["text"])
    use = block.get("toolUse")
    if isinstance(use, Mapping):
        return ToolCall(str(use.get("toolUseId")), str(use.get("name")), arguments_text(use.get("input")))
    thought = block.get("reasoningContent")
    if isinstance(thought, Mapping):
        return Reasoning(str((thought.get("reasoningText") or {}).get("text") or ""), {NAME: dict(block)})
    return Opaque(NAME, block)


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Tokens; the cached ones are not among the input tokens, so they are added.

    >>> read_usage({"inputTokens": 3, "outputTokens": 2, "cacheReadInputTokens": 4}).input
    7
    """
    if not isinstance(usage, Mapping):
        return None
    fresh, read = count(usage.get("inputTokens")), count(usage.get("cacheReadInputTokens"))
    written = count(usage.get("cacheWriteInputTokens"))
    return usage_of(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        count(usage.get("outputTokens")),
        read,
        None,
        count(usage.get("totalTokens")),
    )


class ConverseMachine:
    """What the frames of a Converse stream mean; text and thinking begin with their first piece, unannounced."""

    __slots__ = ("_thoughts", "ended", "fault")

    text_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._thoughts: dict[int, dict[str, str]] = {}

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """The chunks that one frame stands for."""
        index = data.get("contentBlockIndex") or 0
        if name == "contentBlockDelta":
            return self._delta(index, data.get("delta") or {})
        if name == "contentBlockStart":
            use = (data.get("start") or {}).get("toolUse")
            if not isinstance(use, Mapping):
                return []
            return [CompletionChunk(tool_calls=(ToolDelta(index, use.get("toolUseId"), use.get("name")),))]
        if name == "contentBlockStop":
            return self._stop(index)
        if name == "messageStop":
            self.ended = True
            word = data.get("stopReason")
            more = data.get("additionalModelResponseFields")
            extra = {"additionalModelResponseFields": more} if more else {}
            return [CompletionChunk(finish=FINISH.get(word or "", "unknown"), raw_finish=word, extra=extra)]
        if name == "metadata":
            usage = data.get("usage") or None
            extra = {key: data[key] for key in ("usage", "metrics", "trace") if data.get(key)}
            return [CompletionChunk(usage=read_usage(usage), extra=extra)]
        if name is not None and name.startswith("!"):
            self.fault = fault_error(data, status=None, kind=name[1:])
        return []

    def done(self) -> None:
        """Nothing: other events end this stream."""

    def finish(self) -> list[CompletionChunk]:
        """Nothing is left at the end."""
        return []

    def _delta(self, index: int, delta: Mapping[str, Any]) -> list[CompletionChunk]:
        if isinstance(delta.get("text"), str):
            return [CompletionChunk(delta["text"])]
        use = delta.get("toolUse")
        if isinstance(use, Mapping):
            return [CompletionChunk(tool_calls=(ToolDelta(index, arguments=use.get("input") or ""),))]
        thought = delta.get("reasoningContent")
        if not isinstance(thought, Mapping):
            return []
        held = self._thoughts.setdefault(index, {})
        for key in ("text", "signature", "redactedContent"):
            held[key] = held.get(key, "") + (thought.get(key) or "")
        return [CompletionChunk(reasoning=thought["text"])] if thought.get("text") else []

    def _stop(self, index: int) -> list[CompletionChunk]:
        held = self._thoughts.pop(index, None)
        if held is None:
            return []
        content: dict[str, Any] = {"reasoningText": {"text": held["text"], "signature": held["signature"]}}
        if held["redactedContent"]:
            content = {"redactedContent": held["redactedContent"]}
        return [CompletionChunk(parts=(Reasoning(held["text"], {NAME: {"reasoningContent": content}}),))]

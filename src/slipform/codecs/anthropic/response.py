"""Messages answer → IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text, build_answer, count, rest_of, usage_of
from slipform.codecs.anthropic.request import NAME
from slipform.codecs.plan_types import Plan
from slipform.ir import FinishReason, ModelResponse, Opaque, Part, Reasoning, Text, ToolCall, Usage

FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "compaction": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_KNOWN = frozenset({"id", "type", "role", "model", "content", "stop_reason", "usage", "error"})


def decode_body(data: Mapping[str, Any], plan: Plan) -> ModelResponse:
    """A whole answer."""
    word = data.get("stop_reason")
    usage = data.get("usage") or None
    extra = rest_of(data, _KNOWN)
    if usage:
        extra["usage"] = usage
    return build_answer(
        plan,
        [read_block(block) for block in data.get("content") or () if isinstance(block, Mapping)],
        finish=FINISH.get(word or "", "unknown"),
        raw_finish=word,
        refusal=refusal(word, data.get("stop_details")),
        usage=read_usage(usage),
        model=data.get("model"),
        id_=data.get("id"),
        extra=extra,
    )


def read_block(block: Mapping[str, Any]) -> Part:
    """One content block."""
    kind = block.get("type")
    if kind == "text":
        cited = block.get("citations")
        return Text(str(block.get("text") or ""), {NAME: {"citations": cited}} if cited else {})
    if kind == "tool_use":
        extra = {key: block[key] for key in ("caller", "toolset_name", "cache_control") if block.get(key)}
        arguments = arguments_text(block.get("input"))
        return ToolCall(str(block.get("id")), str(block.get("name")), arguments, {NAME: extra} if extra else {})
    if kind == "thinking":
        return Reasoning(str(block.get("thinking") or ""), {NAME: dict(block)})
    if kind == "redacted_thinking":
        return Reasoning("", {NAME: dict(block)})
    return Opaque(NAME, block)


def refusal(word: str | None, details: Any) -> str | None:
    """The words of a refusal, when it has any."""
    if word != "refusal" or not isinstance(details, Mapping):
        return None
    return details.get("explanation") or None


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Tokens; here the cached ones are not among the input tokens, so they are added.

    >>> read_usage({"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}).input
    7
    """
    if usage is None:
        return None
    fresh = count(usage.get("input_tokens"))
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    thinking = (usage.get("output_tokens_details") or {}).get("thinking_tokens")
    return usage_of(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        count(usage.get("output_tokens")),
        read,
        count(thinking),
    )

"""Responses answer → IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text, build_answer, count, rest_of, usage_of
from slipform.codecs.faults import fault_error
from slipform.codecs.openai_responses.request import NAME
from slipform.codecs.plan_types import Plan
from slipform.ir import FinishReason, ModelResponse, Opaque, Part, Reasoning, Text, ToolCall, Usage

FINISH: dict[str, FinishReason] = {
    "completed": "stop",
    "max_output_tokens": "length",
    "max_messages": "length",
    "content_filter": "content_filter",
    "steered": "pause",
    "queued": "pause",
    "in_progress": "pause",
    "cancelled": "error",
    "failed": "error",
}
_ECHOED = frozenset(
    {
        "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details", "output", "usage",
        "model", "text", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "instructions", "temperature",
        "top_p", "max_output_tokens", "metadata", "truncation", "output_text",
    }
)  # fmt: skip


def decode_body(data: Mapping[str, Any], plan: Plan) -> ModelResponse:
    """A whole answer."""
    if data.get("status") == "failed":
        raise fault_error(data.get("error") or {"message": "The response failed"}, status=None)
    refusals: list[str] = []
    parts = [
        part
        for item in data.get("output") or ()
        for part in read_item(item, refusals, shaped=plan.strategy is not None)
    ]
    word, reason = finish_words(data)
    usage = data.get("usage") or None
    extra = rest_of(data, _ECHOED)
    if usage:
        extra["usage"] = usage
    return build_answer(
        plan,
        parts,
        finish=FINISH.get(reason or "", "unknown"),
        raw_finish=word,
        refusal="".join(refusals) or None,
        usage=read_usage(usage),
        model=data.get("model"),
        id_=data.get("id"),
        extra=extra,
    )


def finish_words(data: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The status with its reason, as one word, and the word that decides.

    >>> finish_words({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}})
    ('incomplete:max_output_tokens', 'max_output_tokens')
    """
    details, status = data.get("incomplete_details"), data.get("status")
    reason = details.get("reason") if isinstance(details, Mapping) and status == "incomplete" else None
    return (f"{status}:{reason}", reason) if reason else (status, status)


def read_item(item: Any, refusals: list[str], *, shaped: bool) -> list[Part]:
    """One output item; where an answer of a shape is wanted, comments on the way to it are kept apart from it."""
    if not isinstance(item, Mapping):
        return []
    kind = item.get("type")
    if kind == "message":
        return [Opaque(NAME, item)] if shaped and is_commentary(item) else _message(item, refusals)
    if kind == "function_call":
        return [read_call(item)]
    if kind == "reasoning":
        return [Reasoning(reasoning_text(item), {NAME: dict(item)})]
    return [Opaque(NAME, item)]


def read_call(item: Mapping[str, Any]) -> ToolCall:
    """A function call; results refer to its `call_id`, not to its `id`."""
    extra = {key: item[key] for key in ("id", "namespace", "caller") if item.get(key)}
    identity = str(item.get("call_id") or item.get("id") or "")
    name, arguments = str(item.get("name") or ""), arguments_text(item.get("arguments"))
    return ToolCall(identity, name, arguments, {NAME: extra} if extra else {})


def is_commentary(item: Mapping[str, Any]) -> bool:
    """Whether a message is spoken on the way, and is not the final answer."""
    return item.get("phase") == "commentary"


def _message(item: Mapping[str, Any], refusals: list[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in item.get("content") or ():
        if not isinstance(piece, Mapping):
            continue
        if piece.get("type") == "refusal":
            refusals.append(str(piece.get("refusal") or ""))
        elif isinstance(piece.get("text"), str):
            noted = piece.get("annotations")
            parts.append(Text(piece["text"], {NAME: {"annotations": noted}} if noted else {}))
    return parts


def reasoning_text(item: Mapping[str, Any]) -> str:
    """The words of a reasoning item: its full text where there is one, else its summary."""
    full = [str(piece.get("text") or "") for piece in _pieces(item, "content")]
    summary = [str(piece.get("text") or "") for piece in _pieces(item, "summary")]
    return "".join(full) or "".join(summary)


def _pieces(item: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = item.get(key)
    return [piece for piece in found if isinstance(piece, Mapping)] if isinstance(found, list) else []


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Tokens.

    >>> read_usage({"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}).total
    5
    """
    if not isinstance(usage, Mapping):
        return None
    return usage_of(
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count((usage.get("input_tokens_details") or {}).get("cached_tokens")),
        count((usage.get("output_tokens_details") or {}).get("reasoning_tokens")),
        count(usage.get("total_tokens")),
    )

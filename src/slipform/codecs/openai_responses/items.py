"""The objects a Responses server writes."""

from __future__ import annotations

from typing import Any

from slipform.codecs.serving import ServedRequest
from slipform.ir import FinishReason, NamedTool, Usage

_REASONS: dict[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}


def text_part(text: str) -> dict[str, Any]:
    """A piece of text in a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    """A refusal in a message."""
    return {"type": "refusal", "refusal": text}


def message_item(identity: str, content: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    """A message of the assistant's."""
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": content}


def reasoning_item(identity: str, text: str) -> dict[str, Any]:
    """Thinking, as a summary."""
    return {"id": identity, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}] if text else []}


def call_item(identity: str, call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    """A function call."""
    item = {"id": identity, "type": "function_call", "call_id": call_id, "name": name}
    return {**item, "arguments": arguments, "status": status}


def encode_usage(usage: Usage) -> dict[str, Any] | None:
    """Usage as Responses counts it, or nothing when nothing is known."""
    if usage == Usage():
        return None
    input_, output = usage.input or 0, usage.output or 0
    return {
        "input_tokens": input_,
        "input_tokens_details": {"cached_tokens": usage.cached or 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.total if usage.total is not None else input_ + output,
    }


def response_object(
    served: ServedRequest,
    identity: str,
    model: str | None,
    created: int,
    *,
    finish: FinishReason | None,
    output: list[dict[str, Any]],
    usage: Usage,
) -> dict[str, Any]:
    """The response; without a finish reason it is still in progress."""
    request = served.request
    reason = _REASONS.get(finish) if finish is not None else None
    status = "in_progress" if finish is None else "incomplete" if reason else "completed"
    choice = request.tool_choice
    return {
        "id": identity,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "metadata": dict(request.metadata),
        "model": model or request.model,
        "output": output,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "text": {"format": _format(served)},
        "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice or "auto",
        "tools": [],
        "usage": encode_usage(usage),
    }


def _format(served: ServedRequest) -> dict[str, Any]:
    wanted = served.request.response_format
    if wanted is None:
        return {"type": "json_object" if served.request.json_mode else "text"}
    spec = wanted.json_schema
    return {"type": "json_schema", "name": spec.name, "schema": spec.schema, "strict": wanted.strict}

"""Chat Completions answer → IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text, build_answer, count, rest_of, usage_of
from slipform.codecs.faults import fault_error
from slipform.codecs.openai_chat.request import NAME
from slipform.codecs.plan_types import Plan
from slipform.errors import UpstreamError
from slipform.ir import FinishReason, ModelResponse, ModelWarning, Opaque, Part, Reasoning, Text, ToolCall, Usage

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "error": "error",
}
MISSING = ModelWarning("finish_missing", "The server did not say why the answer ended.")

_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")
_ANSWER = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_CHOICE = frozenset({"index", "message", "finish_reason", "delta", "error"})
_MESSAGE = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "reasoning", "reasoning_content", "reasoning_details"}
)


def decode_body(data: dict[str, Any], plan: Plan) -> ModelResponse:
    """A whole answer."""
    choices = [choice for choice in data.get("choices") or () if isinstance(choice, dict)]
    if not choices:
        raise UpstreamError("The answer holds no choice", details={"category": "unreadable", "retryable": True})
    broken = choices[0].get("error")
    if broken:
        raise fault_error({"error": broken}, status=None)
    others = tuple([_choice(choice, data, Plan()) for choice in choices[1:]])
    return _choice(choices[0], data, plan, others)


def _choice(
    choice: dict[str, Any], data: dict[str, Any], plan: Plan, others: tuple[ModelResponse, ...] = ()
) -> ModelResponse:
    message = choice.get("message") or {}
    ended = choice.get("finish_reason")
    usage = find_usage(data)
    extra = rest_of(data, _ANSWER)
    extra.update(rest_of(choice, _CHOICE))
    extra.update(rest_of(message, _MESSAGE))
    if usage:
        extra["usage"] = usage
    return build_answer(
        plan,
        message_parts(message, str(data.get("id") or "")),
        finish=FINISH.get(ended or "", "unknown"),
        raw_finish=ended,
        refusal=message.get("refusal"),
        usage=read_usage(usage),
        model=data.get("model"),
        id_=data.get("id"),
        extra=extra,
        warnings=() if ended else (MISSING,),
        others=others,
    )


def message_parts(message: dict[str, Any], answer_id: str) -> list[Part]:
    """What the message is made of, in order: thinking, text, calls."""
    thought, said = split_content(message.get("content"))
    parts: list[Part] = []
    thinking = read_reasoning(message) or thought
    if thinking or message.get("reasoning_details"):
        parts.append(Reasoning(thinking, replayable(message)))
    if said:
        parts.append(Text(said))
    for index, call in enumerate(message.get("tool_calls") or ()):
        parts.append(_call(call, index, answer_id))
    legacy = message.get("function_call")
    if legacy is not None and isinstance(legacy, Mapping):
        parts.append(ToolCall(made_id(answer_id, 0), str(legacy.get("name")), arguments_text(legacy.get("arguments"))))
    return parts


def made_id(answer_id: str, index: int) -> str:
    """An id for a call that came without one: the same each time the same answer is read."""
    return f"call_{answer_id}_{index}" if answer_id else f"call_{index}"


def _call(call: Mapping[str, Any], index: int, answer_id: str) -> Part:
    function = call.get("function")
    if isinstance(function, str):
        return ToolCall(call.get("id") or made_id(answer_id, index), function, arguments_text(call.get("arguments")))
    if not isinstance(function, Mapping):
        return Opaque(NAME, call)
    extra = {NAME: {"extra_content": call["extra_content"]}} if call.get("extra_content") else {}
    name, arguments = str(function.get("name") or ""), arguments_text(function.get("arguments"))
    return ToolCall(call.get("id") or made_id(answer_id, index), name, arguments, extra)


def split_content(content: Any) -> tuple[str, str]:
    """The thinking and the text of `content`, which is text, nothing, or (Mistral) a list of both.

    >>> split_content([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "ok"}])
    ('hm', 'ok')
    """
    if content is None:
        return "", ""
    if isinstance(content, str):
        return "", content
    thought: list[str] = []
    said: list[str] = []
    for item in content if isinstance(content, list) else ():
        if not isinstance(item, Mapping):
            continue
        thinking = item.get("thinking")
        if isinstance(thinking, str):
            thought.append(thinking)
        elif isinstance(thinking, list):
            thought.extend(str(piece.get("text") or "") for piece in thinking if isinstance(piece, Mapping))
        elif isinstance(item.get("text"), str):
            said.append(item["text"])
    return "".join(thought), "".join(said)


def read_reasoning(message: dict[str, Any]) -> str:
    """The thinking of a message or a delta, by whichever name the server gives it."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return ""


def replayable(message: Mapping[str, Any]) -> dict[str, Any]:
    """The reasoning fields as they came, for the server that sent them."""
    names = ("reasoning_content", "reasoning", "reasoning_details")
    fields = {name: message[name] for name in names if message.get(name)}
    return {NAME: fields} if fields else {}


def find_usage(data: dict[str, Any]) -> dict[str, Any] | None:
    """The usage object, where the server puts it (Groq hides it in streams)."""
    usage = data.get("usage") or (data.get("x_groq") or {}).get("usage")
    return usage if isinstance(usage, dict) else None


def read_usage(usage: dict[str, Any] | None) -> Usage | None:
    """Tokens, from any of the spellings of OpenAI's kin.

    >>> read_usage({"prompt_tokens": 3, "completion_tokens": 2, "prompt_cache_hit_tokens": 1}).cached
    1
    """
    if usage is None:
        return None
    cached, thought = None, None
    if prompt := usage.get("prompt_tokens_details"):
        cached = prompt.get("cached_tokens")
    for name in _CACHED:
        if cached is None:
            cached = usage.get(name)
    if completion := usage.get("completion_tokens_details"):
        thought = completion.get("reasoning_tokens")
    return usage_of(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(cached),
        count(thought),
        count(usage.get("total_tokens")),
    )

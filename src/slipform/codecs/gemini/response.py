"""generateContent answer → IR."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text, build_answer, count, rest_of, usage_of
from slipform.codecs.gemini.request import NAME
from slipform.codecs.plan_types import Plan
from slipform.errors import UpstreamError
from slipform.ir import FinishReason, Media, ModelResponse, ModelWarning, Opaque, Part, Reasoning, Text, ToolCall, Usage

FINISH: dict[str, FinishReason] = {
    "STOP": "stop",
    "1": "stop",
    "MAX_TOKENS": "length",
    "2": "length",
    "CONTINUATION": "pause",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "IMAGE_OTHER",
            "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR", "JAILBREAK", "3", "4",
        ),
        "content_filter",
    ),
    **dict.fromkeys(
        (
            "LANGUAGE", "OTHER", "MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE", "UNEXPECTED_TOOL_CALL",
            "TOO_MANY_TOOL_CALLS", "NO_IMAGE", "FINISH_REASON_UNSPECIFIED",
        ),
        "error",
    ),
}  # fmt: skip
_KNOWN = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "error"})
_CANDIDATE = frozenset({"content", "finishReason", "index", "finish_reason"})


def decode_body(data: Mapping[str, Any], plan: Plan) -> ModelResponse:
    """A whole answer."""
    data = camel(data)
    candidates = [item for item in data.get("candidates") or () if isinstance(item, Mapping)]
    if not candidates:
        return _blocked(data, plan)
    others = tuple(_candidate(camel(item), data, Plan()) for item in candidates[1:])
    return _candidate(camel(candidates[0]), data, plan, others)


def _candidate(
    candidate: Mapping[str, Any], data: Mapping[str, Any], plan: Plan, others: tuple[ModelResponse, ...] = ()
) -> ModelResponse:
    word = finish_word(candidate.get("finishReason"))
    parts = [
        part
        for index, item in enumerate(camel(candidate.get("content") or {}).get("parts") or ())
        for part in read_part(camel(item), index, str(data.get("responseId") or ""))
    ]
    extra = {**extras(data), **rest_of(candidate, _CANDIDATE)}
    return build_answer(
        plan,
        parts,
        finish=FINISH.get(word or "", "unknown"),
        raw_finish=word,
        usage=read_usage(data.get("usageMetadata")),
        model=data.get("modelVersion"),
        id_=data.get("responseId"),
        extra=extra,
        warnings=() if word else (ModelWarning("finish_missing", "The server did not say why the answer ended."),),
        others=others,
    )


def _blocked(data: Mapping[str, Any], plan: Plan) -> ModelResponse:
    feedback = camel(data.get("promptFeedback") or {})
    reason = feedback.get("blockReason")
    if reason is None:
        raise UpstreamError("The answer holds no candidate", details={"category": "unreadable", "retryable": True})
    return build_answer(
        plan,
        (),
        finish="content_filter",
        raw_finish=str(reason),
        usage=read_usage(data.get("usageMetadata")),
        model=data.get("modelVersion"),
        id_=data.get("responseId"),
        extra=extras(data),
    )


def extras(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields the IR has no name for, and the usage as it came."""
    extra = rest_of(data, _KNOWN)
    if data.get("usageMetadata"):
        extra["usage"] = data["usageMetadata"]
    return extra


def finish_word(value: Any) -> str | None:
    """The finish reason as text; dumps of gRPC answers hold its number."""
    return None if value is None else str(value)


def camel(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same fields in camelCase: both spellings are on the wire.

    >>> camel({"finish_reason": "STOP"})
    {'finishReason': 'STOP'}
    """
    if not any("_" in key for key in data):
        return data
    return {_camel(key): value for key, value in data.items()}


def _camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest) if head else key


def read_part(part: Mapping[str, Any], index: int, answer_id: str) -> list[Part]:
    """One part; a signature stays with what it signs, or alone where the vendor sends it alone."""
    signature = part.get("thoughtSignature")
    call = part.get("functionCall")
    if isinstance(call, Mapping):
        made = f"call_{answer_id}_{index}" if answer_id else f"call_{index}"
        extra = {NAME: {"thoughtSignature": signature}} if signature else {}
        name, arguments = str(call.get("name") or ""), arguments_text(call.get("args"))
        return [ToolCall(call.get("id") or made, name, arguments, extra)]
    if part.get("thought"):
        return [Reasoning(str(part.get("text") or ""), {NAME: dict(part)})]
    if "text" in part:
        if part["text"]:
            return [Text(str(part["text"]), {NAME: {"thoughtSignature": signature}} if signature else {})]
        return [Opaque(NAME, {"text": "", "thoughtSignature": signature})] if signature else []
    return [_media(part)]


def _media(part: Mapping[str, Any]) -> Part:
    inline = part.get("inlineData")
    if isinstance(inline, Mapping) and isinstance(inline.get("data"), str):
        mime = str(inline.get("mimeType") or "")
        for kind in ("image", "audio", "video"):
            if mime.startswith(kind):
                try:
                    return Media(kind, mime, b64decode(inline["data"]))
                except BadBase64:
                    break
    return Opaque(NAME, part)


def read_usage(usage: Any) -> Usage | None:
    """Tokens; here the thoughts are not among the candidates' tokens, so they are added.

    >>> read_usage({"promptTokenCount": 3, "candidatesTokenCount": 2, "thoughtsTokenCount": 5}).output
    7
    """
    if not isinstance(usage, Mapping) or not usage:
        return None
    usage = camel(usage)
    prompt, tool = count(usage.get("promptTokenCount")), count(usage.get("toolUsePromptTokenCount"))
    said, thought = count(usage.get("candidatesTokenCount")), count(usage.get("thoughtsTokenCount"))
    return usage_of(
        None if prompt is None else prompt + (tool or 0),
        None if said is None and thought is None else (said or 0) + (thought or 0),
        count(usage.get("cachedContentTokenCount")),
        thought,
        count(usage.get("totalTokenCount")),
    )

"""Write a generateContent answer, whole or streamed, for a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_object
from slipform.codecs.codec import ServedRequest, Stamp, reasoning_parts, refusal_text
from slipform.codecs.gemini.decode import FINISH
from slipform.codecs.gemini.encode import NAME
from slipform.codecs.request_fields import dumps
from slipform.codecs.vendor_errors import error_fields, error_status
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, FinishReason, ModelResponse, Reasoning, ToolCall, Usage
from slipform.ir.choice_merge import ChoiceBuilder

_WORDS: dict[FinishReason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",
}
_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    422: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def encode_answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    """The body of a whole answer."""
    answer: dict[str, Any] = {
        "candidates": [_candidate(each, at) for at, each in enumerate((response, *response.others))],
        "modelVersion": response.model or served.request.model,
        "responseId": response.id or stamp.new_id(),
    }
    usage = encode_usage(response.usage)
    if usage:
        answer["usageMetadata"] = usage
    return answer


def encode_error(error: SlipformError) -> dict[str, Any]:
    """The body of an error."""
    status = error_status(error)
    fields = error_fields(error)
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": fields["code"].upper(),
        "domain": "slipform",
        "metadata": fields.get("details", {}),
    }
    details = [info]
    wait = getattr(error, "retry_after", None)
    if wait is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{wait:g}s"})
    word = _STATUS.get(status, "INTERNAL")
    return {"error": {"code": status, "message": fields["message"], "status": word, "details": details}}


def _word(finish: FinishReason, raw: str | None) -> str:
    known = raw is not None and not raw.isdigit() and FINISH.get(raw) == finish
    return raw if raw is not None and known else _WORDS.get(finish, "OTHER")


def _candidate(response: ModelResponse, index: int) -> dict[str, Any]:
    parts = [_thought(part) for part in reasoning_parts(response) if part.text]
    if response.text:
        parts.append({"text": response.text})
    parts += [_call(call) for call in response.tool_calls]
    candidate: dict[str, Any] = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": _word(response.finish, response.raw_finish),
        "index": index,
    }
    refusal = refusal_text(response)
    return {**candidate, "finishMessage": refusal} if refusal else candidate


def _thought(part: Reasoning) -> dict[str, Any]:
    return dict(part.opaque[NAME]) if NAME in part.opaque else {"text": part.text, "thought": True}


def _call(call: ToolCall) -> dict[str, Any]:
    encoded = {"id": call.id, "name": call.name, "args": arguments_object(call.arguments)}
    return {"functionCall": encoded, **call.extra.get(NAME, {})}


def encode_usage(usage: Usage) -> dict[str, Any]:
    """Usage as Gemini counts it: thoughts are not among the candidates' tokens."""
    if usage == Usage():
        return {}
    thought, output = usage.reasoning or 0, usage.output or 0
    encoded: dict[str, Any] = {
        "promptTokenCount": usage.input or 0,
        "candidatesTokenCount": max(0, output - thought),
        "totalTokenCount": usage.total if usage.total is not None else (usage.input or 0) + output,
    }
    if usage.cached is not None:
        encoded["cachedContentTokenCount"] = usage.cached
    if usage.reasoning is not None:
        encoded["thoughtsTokenCount"] = thought
    return encoded


class GeminiStreamEncoder:
    """Writes the events of one streamed answer; calls go out whole, at the end. No comments: clients break on them."""

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._model = served.request.model
        self._id = stamp.new_id()
        self._choices: dict[int, ChoiceBuilder] = {}
        self._usage = Usage()

    def feed(self, chunk: CompletionChunk) -> bytes:
        """The bytes for one chunk."""
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            self._usage = chunk.usage
        said: dict[str, Any] = {}
        parts = [{"text": chunk.reasoning, "thought": True}] if chunk.reasoning else []
        if chunk.text:
            parts.append({"text": chunk.text})
        keep = CompletionChunk(
            refusal=chunk.refusal, tool_calls=chunk.tool_calls, finish=chunk.finish, raw_finish=chunk.raw_finish
        )
        self._choices.setdefault(chunk.choice, ChoiceBuilder()).add(keep)
        if parts:
            said = {"content": {"parts": parts, "role": "model"}, "index": chunk.choice}
        return self._event([said]) if said else b""

    def feed_text(self, text: str) -> bytes:
        """The bytes for one piece of text."""
        return self.feed(CompletionChunk(text))

    def finish(self) -> bytes:
        """The calls, the finish reason and the usage; there is no terminator."""
        choices = self._choices or {0: ChoiceBuilder()}
        return self._event([self._last(index, choice) for index, choice in sorted(choices.items())], last=True)

    def fail(self, error: SlipformError) -> bytes:
        """An error after the stream has begun."""
        return b"data: " + dumps(encode_error(error)) + b"\n\n"

    def keep_alive(self) -> bytes:
        """Nothing: Google's clients take any line but data for an error."""
        return b""

    def _last(self, index: int, choice: ChoiceBuilder) -> dict[str, Any]:
        refusal = "".join(choice.refusal)
        finish: FinishReason = "refusal" if refusal else choice.finish or "stop"
        candidate: dict[str, Any] = {
            "content": {"parts": [_call(call.close(self._id)) for call in choice.calls.calls], "role": "model"},
            "finishReason": _word(finish, choice.raw_finish),
            "index": index,
        }
        return {**candidate, "finishMessage": refusal} if refusal else candidate

    def _event(self, candidates: list[dict[str, Any]], *, last: bool = False) -> bytes:
        event: dict[str, Any] = {"candidates": candidates, "modelVersion": self._model, "responseId": self._id}
        usage = encode_usage(self._usage) if last else {}
        if usage:
            event["usageMetadata"] = usage
        if last:
            event.update(self.extra)
        return b"data: " + dumps(event) + b"\n\n"

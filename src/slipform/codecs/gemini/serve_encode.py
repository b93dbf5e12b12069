"""Write a generateContent answer, whole or streamed, for a client."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_object, envelope_of, with_vendor_counts
from slipform.codecs.codec import ServedRequest, Stamp, refusal_text
from slipform.codecs.gemini.decode import FINISH, read_usage
from slipform.codecs.gemini.encode import NAME
from slipform.codecs.request_fields import dumps
from slipform.codecs.vendor_errors import error_fields, error_status
from slipform.errors import SlipformError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    Media,
    ModelResponse,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from slipform.ir.choice_merge import ChoiceBuilder, merge_extra
from slipform.ir.logprobs import LOGPROBS
from slipform.ir.response import plain_chunks

_WORDS: dict[FinishReason, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",
}
_OF_CANDIDATE = (
    "safetyRatings", "citationMetadata", "groundingMetadata", "urlContextMetadata", "avgLogprobs",
    "finishMessage", "continuationToken",
)  # fmt: skip
_OF_ANSWER = ("promptFeedback", "modelStatus")
"""Fields of a candidate, and of the whole answer, that only this vendor has."""
_STATUS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    422: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def encode_answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    """Return the body of a whole answer."""
    answer: dict[str, Any] = {
        "candidates": [_encode_candidate(each, at) for at, each in enumerate((response, *response.others))],
        "modelVersion": response.model or served.request.model,
        "responseId": response.id or stamp.new_id(),
        **_vendor_fields(response.extra, _OF_ANSWER),
    }
    usage = encode_usage(response.usage, envelope_of(response.extra, NAME))
    if usage:
        answer["usageMetadata"] = usage
    return answer


def encode_error(error: SlipformError) -> dict[str, Any]:
    """Return the body of an error."""
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
    status_name = _STATUS.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": fields["message"], "status": status_name, "details": details}}


def _finish_reason(finish: FinishReason, raw: str | None) -> str:
    is_own_word = raw is not None and not raw.isdigit() and FINISH.get(raw) == finish
    if raw is not None and is_own_word:
        return raw
    return _WORDS.get(finish, "OTHER")


def _encode_candidate(response: ModelResponse, index: int) -> dict[str, Any]:
    parts = [encoded for part in response.message.parts if (encoded := _part(part)) is not None]
    candidate: dict[str, Any] = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": _finish_reason(response.finish, response.raw_finish),
        "index": index,
        **_vendor_fields(response.extra, _OF_CANDIDATE),
        **_logprobs(response.extra),
    }
    refusal = refusal_text(response)
    if refusal:
        candidate["finishMessage"] = refusal
    return candidate


def _vendor_fields(extra: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: extra[key] for key in names if extra.get(key) is not None}


def _logprobs(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the probabilities of the tokens, as Gemini writes them."""
    content = (extra.get(LOGPROBS) or {}).get("content")
    if not content:
        return {}
    result: dict[str, Any] = {"chosenCandidates": [_token(entry) for entry in content]}
    if any(entry.get("top_logprobs") for entry in content):
        result["topCandidates"] = [
            {"candidates": [_token(other) for other in entry.get("top_logprobs") or ()]} for entry in content
        ]
    return {"logprobsResult": result}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    id_field = {"tokenId": entry["id"]} if "id" in entry else {}
    return {"token": entry.get("token"), **id_field, "logProbability": entry.get("logprob")}


def _part(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        if part.text:
            return {"text": part.text, **part.extra.get(NAME, {})}
        return None
    if isinstance(part, ToolCall):
        return _call(part)
    if isinstance(part, Reasoning):
        if NAME in part.opaque:
            return dict(part.opaque[NAME])
        if part.text:
            return {"text": part.text, "thought": True}
        return None
    if isinstance(part, Media) and part.data is not None:
        return {"inlineData": {"mimeType": part.mime_type, "data": b64encode(part.data).decode()}}
    if isinstance(part, Opaque) and part.vendor == NAME:
        return dict(part.data)
    return None


def _call(call: ToolCall) -> dict[str, Any]:
    encoded = {"id": call.id, "name": call.name, "args": arguments_object(call.arguments)}
    return {"functionCall": encoded, **call.extra.get(NAME, {})}


def encode_usage(usage: Usage, envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return usage as Gemini counts it: reasoning tokens are not part of the candidates' tokens."""
    if usage == Usage():
        return {}
    thought = usage.reasoning or 0
    output = usage.output or 0
    encoded: dict[str, Any] = {
        "promptTokenCount": usage.input or 0,
        "candidatesTokenCount": max(0, output - thought),
        "totalTokenCount": usage.total if usage.total is not None else (usage.input or 0) + output,
    }
    if usage.cached is not None:
        encoded["cachedContentTokenCount"] = usage.cached
    if usage.reasoning is not None:
        encoded["thoughtsTokenCount"] = thought
    if usage.cost is not None:
        encoded["cost"] = usage.cost
    return with_vendor_counts(encoded, usage, envelope, read_usage)


def _new_parts(chunk: CompletionChunk) -> list[dict[str, Any]]:
    """Return the parts that a chunk adds except for calls; a signature is on its part, or on an empty text after it."""
    parts: list[dict[str, Any]] = [{"text": chunk.reasoning, "thought": True}] if chunk.reasoning else []
    if chunk.text:
        parts.append({"text": chunk.text})
    for part in chunk.parts:
        if isinstance(part, Reasoning):
            own = part.opaque.get(NAME, {})
            if chunk.reasoning and own.get("text") == chunk.reasoning:
                parts[0] = dict(own)
            elif own.get("thoughtSignature"):
                parts.append({**own, "text": ""})
        elif isinstance(part, Text):
            if NAME in part.extra:
                parts.append({"text": "", **part.extra[NAME]})
        elif (encoded := _part(part)) is not None:
            parts.append(encoded)
    return parts


class GeminiStreamEncoder:
    """Writes the events of one streamed answer; calls are sent whole. No comments: clients fail on them."""

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._model = served.request.model
        self._id = stamp.new_id()
        self._choices: dict[int, ChoiceBuilder] = {}
        self._usage = Usage()
        self._extra: dict[str, Any] = {}
        self._signatures: list[dict[str, Any]] = []
        self._sent: set[tuple[int, int]] = set()
        """The calls already sent, by choice and position."""

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk."""
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.extra:
            merge_extra(self._extra, chunk.extra)
        candidate: dict[str, Any] = {}
        parts = self._with_signatures(_new_parts(chunk), chunk)
        keep = CompletionChunk(
            refusal=chunk.refusal, tool_calls=chunk.tool_calls, finish=chunk.finish, raw_finish=chunk.raw_finish
        )
        choice = self._choices.setdefault(chunk.choice, ChoiceBuilder())
        choice.add(keep)
        for delta in chunk.tool_calls:
            if delta.done:
                call, _ = choice.calls.place(delta)
                parts.append(_call(call.close(self._id)))
                self._sent.add((chunk.choice, call.position))
        if parts:
            candidate = {"content": {"parts": parts, "role": "model"}, "index": chunk.choice}
        return self._event([candidate]) if candidate else b""

    def _with_signatures(self, parts: list[dict[str, Any]], chunk: CompletionChunk) -> list[dict[str, Any]]:
        """Delay the signature of a text until the text has ended: its last characters may arrive after it."""
        signatures = [part for part in parts if part.get("text") == "" and "thought" not in part]
        self._signatures += signatures
        parts = [part for part in parts if part not in signatures]
        if not chunk.tool_calls and chunk.finish is None:
            return parts
        parts += self._signatures
        self._signatures = []
        return parts

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for one piece of text, or of the arguments of a call."""
        return self.feed(plain_chunks((text,), call)[0])

    def finish(self) -> bytes:
        """Return the last calls, the finish reason and the usage, without a terminator."""
        choices = self._choices or {0: ChoiceBuilder()}
        return self._event([self._last(index, choice) for index, choice in sorted(choices.items())], last=True)

    def fail(self, error: SlipformError) -> bytes:
        """Return an error event for a stream that has begun."""
        return b"data: " + dumps(encode_error(error)) + b"\n\n"

    def keep_alive(self) -> bytes:
        """Return nothing: Google's clients treat any line but data as an error."""
        return b""

    def _last(self, index: int, choice: ChoiceBuilder) -> dict[str, Any]:
        """Return the candidate of the last event: the finish reason, and calls that have not been sent yet."""
        refusal = "".join(choice.refusal)
        finish: FinishReason = "refusal" if refusal else choice.finish or "stop"
        parts = [_call(call.close(self._id)) for call in choice.calls.calls if (index, call.position) not in self._sent]
        if not parts and not refusal:
            parts = [{"text": ""}]  # chat sessions of Google's SDKs drop a turn with an event without parts
        candidate: dict[str, Any] = {
            "content": {"parts": parts, "role": "model"},
            "finishReason": _finish_reason(finish, choice.raw_finish),
            "index": index,
            **({**_vendor_fields(self._extra, _OF_CANDIDATE), **_logprobs(self._extra)} if index == 0 else {}),
        }
        if refusal:
            return {**candidate, "finishMessage": refusal}
        return candidate

    def _event(self, candidates: list[dict[str, Any]], *, last: bool = False) -> bytes:
        event: dict[str, Any] = {"candidates": candidates, "modelVersion": self._model, "responseId": self._id}
        usage = encode_usage(self._usage, envelope_of(self._extra, NAME)) if last else {}
        if usage:
            event["usageMetadata"] = usage
        if last:
            event.update(_vendor_fields(self._extra, _OF_ANSWER))
            event.update(self.extra)
        return b"data: " + dumps(event) + b"\n\n"

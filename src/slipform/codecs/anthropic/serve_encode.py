"""Write a Messages answer, whole or streamed, for a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.answer import arguments_object, envelope_of, with_vendor_counts
from slipform.codecs.anthropic.decode import FINISH, read_usage
from slipform.codecs.anthropic.encode import NAME
from slipform.codecs.codec import ServedRequest, Stamp, refusal_text
from slipform.codecs.request_fields import dumps
from slipform.codecs.vendor_errors import error_fields, error_status
from slipform.errors import SlipformError
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
from slipform.ir.choice_merge import CallTable, OpenCall
from slipform.ir.response import plain_chunks, resolve_finish

_WORDS: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause": "pause_turn",
}
_PASSED = ("stop_sequence", "stop_details", "container", "context_management")
"""Fields of the whole answer that only this vendor has."""
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def encode_answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    """Return the body of a whole answer."""
    answer: dict[str, Any] = {
        "id": response.id or f"msg_{stamp.new_id()}",
        "type": "message",
        "role": "assistant",
        "model": response.model or served.request.model,
        "content": [block for part in response.message.parts if (block := _block(part)) is not None],
        "stop_reason": _stop_reason(response.finish, response.raw_finish),
        "stop_sequence": None,
        "usage": encode_usage(response.usage, envelope_of(response.extra, NAME)),
    }
    refusal = refusal_text(response)
    if refusal is not None:
        answer["stop_details"] = {"type": "refusal", "category": None, "explanation": refusal}
    answer.update({key: response.extra[key] for key in _PASSED if response.extra.get(key)})
    return answer


def encode_error(error: SlipformError) -> dict[str, Any]:
    """Return the body of an error."""
    fields = error_fields(error)
    status = error_status(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = {"error_code": fields["code"], **fields.get("details", {})}
    return {"type": "error", "error": {"type": kind, "message": fields["message"], "details": details}}


def _stop_reason(finish: FinishReason, raw: str | None) -> str:
    # The vendor's own finish reason is more specific if it is one of this API's (stop_sequence, a full context window).
    if raw in FINISH and FINISH[raw] == finish:
        return raw
    return _WORDS.get(finish, "end_turn")


def _block(part: Part) -> dict[str, Any] | None:
    if isinstance(part, Text):
        if part.text:
            return {"type": "text", "text": part.text, **part.extra.get(NAME, {})}
        return None
    if isinstance(part, ToolCall):
        call = {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments_object(part.arguments)}
        return {**call, **part.extra.get(NAME, {})}
    if isinstance(part, Reasoning):
        own = part.opaque.get(NAME)
        if own:
            return dict(own)
        if part.text:
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        return None
    if isinstance(part, Opaque) and part.vendor == NAME:
        return dict(part.data)
    return None


def encode_usage(usage: Usage, envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return usage as Messages counts it: tokens read from or written to a cache are not input tokens."""
    cached = usage.cached or 0
    fresh = (usage.input or 0) - cached - (usage.cache_write or 0)
    encoded: dict[str, Any] = {"input_tokens": max(0, fresh), "output_tokens": usage.output or 0}
    if usage.cached is not None:
        encoded["cache_read_input_tokens"] = cached
    if usage.cache_write is not None:
        encoded["cache_creation_input_tokens"] = usage.cache_write
    if usage.reasoning is not None:
        encoded["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    if usage.cost is not None:
        encoded["cost"] = usage.cost
    return with_vendor_counts(encoded, usage, envelope, read_usage)


class AnthropicStreamEncoder:
    """Writes the events of one streamed answer: blocks are sequential, whatever order the pieces arrive in."""

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._model = served.request.model
        self._id = f"msg_{stamp.new_id()}"
        self._is_started = False
        self._index = -1
        self._open: str | None = None
        self._calls = CallTable()
        self._current: OpenCall | None = None
        self._sent: set[int] = set()
        self._waiting: list[CompletionChunk] = []
        """Pieces outside of the open call that arrived before its end."""
        self._finish: FinishReason = "stop"
        self._raw: str | None = None
        self._refusal: list[str] = []
        self._extra: dict[str, Any] = {}
        self._envelope: Mapping[str, Any] = {}
        self._usage = Usage()

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk."""
        if chunk.choice != 0:
            return b""
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.extra:
            self._envelope = envelope_of(chunk.extra, NAME) or self._envelope
        out = [self._begin(chunk)]
        if (chunk.text or chunk.reasoning or chunk.parts) and self._is_in_call():
            self._waiting.append(CompletionChunk(chunk.text, chunk.reasoning, parts=chunk.parts))
            chunk = chunk._replace(text="", reasoning="", parts=())
        if chunk.reasoning:
            out.append(self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""}))
            out.append(self._delta({"type": "thinking_delta", "thinking": chunk.reasoning}))
        if chunk.text:
            out.append(self._block("text", {"type": "text", "text": ""}))
            out.append(self._delta({"type": "text_delta", "text": chunk.text}))
        out.extend(self._call(delta) for delta in chunk.tool_calls)
        out.extend(self._part(part) for part in chunk.parts)
        if chunk.refusal:
            self._refusal.append(chunk.refusal)
        if chunk.finish is not None:
            self._finish = chunk.finish
            self._raw = chunk.raw_finish
        if chunk.extra:
            self._extra.update({key: chunk.extra[key] for key in _PASSED if chunk.extra.get(key)})
        return b"".join(out)

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for one piece of text, or of the arguments of a call."""
        return self.feed(plain_chunks((text,), call)[0])

    def finish(self) -> bytes:
        """Return the last blocks, the stop reason, and `message_stop`."""
        out = [self._begin(CompletionChunk()), self._end_call()]
        for call in self._calls.calls:
            if call.position not in self._sent:
                out += [self._start_call(call), self._close()]
        refusal = "".join(self._refusal)
        finish = resolve_finish(self._finish, bool(self._calls.calls), refusal)
        delta: dict[str, Any] = {
            "stop_reason": _stop_reason(finish, self._raw),
            "stop_sequence": None,
            **self._extra,
        }
        if refusal:
            delta["stop_details"] = {"type": "refusal", "category": None, "explanation": refusal}
        usage = encode_usage(self._usage, self._envelope)
        out.append(_event("message_delta", {"delta": delta, "usage": usage, **self.extra}))
        out.append(_event("message_stop", {}))
        return b"".join(out)

    def fail(self, error: SlipformError) -> bytes:
        """Return an error event for a stream that has begun."""
        return b"event: error\ndata: " + dumps(encode_error(error)) + b"\n\n"

    def keep_alive(self) -> bytes:
        """Return a ping."""
        return _event("ping", {})

    def _begin(self, chunk: CompletionChunk) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        message: dict[str, Any] = {
            "id": chunk.id or self._id,
            "type": "message",
            "role": "assistant",
            "model": chunk.model or self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**encode_usage(self._usage, {}), "output_tokens": 0, **self._envelope.get("usage", {})},
        }
        return _event("message_start", {"message": message})

    def _block(self, kind: str, block: dict[str, Any]) -> bytes:
        """Make sure that a block of this kind is open."""
        if self._open == kind:
            return b""
        out = self._close()
        self._open = kind
        self._index += 1
        return out + _event("content_block_start", {"index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", {"index": self._index, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        if self._current is not None:
            self._sent.add(self._current.position)
            self._current = None
        return _event("content_block_stop", {"index": self._index})

    def _part(self, part: Part) -> bytes:
        """Write a part that arrives whole; one of another API only ends the thinking that it belongs to."""
        if isinstance(part, Text):
            return self._end_text(part)
        if isinstance(part, Opaque):
            if part.vendor == NAME:
                return self._whole(part.data)
            return b""
        if not isinstance(part, Reasoning):
            return b""
        own = part.opaque.get(NAME) or {}
        if own.get("type") == "redacted_thinking":
            return self._whole(own)
        signature = own.get("signature")
        if not signature:
            return self._close() if self._open == "thinking" else b""
        opened = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return opened + self._delta({"type": "signature_delta", "signature": signature}) + self._close()

    def _whole(self, block: Mapping[str, Any]) -> bytes:
        return self._block("whole", dict(block)) + self._close()

    def _end_text(self, part: Text) -> bytes:
        if self._open != "text":
            return b""
        cited = part.extra.get(NAME, {}).get("citations") or ()
        events = [self._delta({"type": "citations_delta", "citation": each}) for each in cited]
        return b"".join(events) + self._close()

    def _call(self, delta: ToolDelta) -> bytes:
        """Write a piece of a tool call, whose block starts once its name is known and no other block is open."""
        call, _ = self._calls.place(delta)
        call.add(delta)
        out = b""
        if call is self._current:
            out = b""
            if delta.arguments:
                out = self._delta({"type": "input_json_delta", "partial_json": delta.arguments})
        elif call.name is not None and call.position not in self._sent and not self._is_in_call():
            out = self._start_call(call)
        if delta.done and call is self._current:
            return out + self._end_call()
        return out

    def _is_in_call(self) -> bool:
        """Return whether an incomplete call is open: blocks must not interleave, so all others wait for its end."""
        return self._current is not None and not _is_whole(self._current)

    def _end_call(self) -> bytes:
        """Close the open call, and write the pieces that have waited for its end."""
        out = [self._close()]
        waiting = self._waiting
        self._waiting = []
        out += map(self.feed, waiting)
        for call in self._calls.calls:
            if self._current is None and call.name is not None and call.position not in self._sent:
                out.append(self._start_call(call))
                if _is_whole(call):
                    out.append(self._close())
        return b"".join(out)

    def _start_call(self, call: OpenCall) -> bytes:
        out = self._close()
        block = {"type": "tool_use", "id": call.known_id(self._id), "name": call.name or "", "input": {}}
        out += self._block("tool_use", {**block, **call.extra.get(NAME, {})})
        self._current = call
        buffered = "".join(call.pieces)
        return out + self._delta({"type": "input_json_delta", "partial_json": buffered})


def _is_whole(call: OpenCall) -> bool:
    try:
        orjson.loads("".join(call.pieces))
    except orjson.JSONDecodeError:
        return False
    return True


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + dumps({"type": kind, **fields}) + b"\n\n"

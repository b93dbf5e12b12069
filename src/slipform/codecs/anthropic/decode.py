"""Read an answer of Messages, whole or streamed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import Finishes, arguments_text, at_tier, build_answer, count, details_of, rest_of, usage_of
from slipform.codecs.anthropic.encode import NAME
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import UpstreamError
from slipform.ir import (
    RESERVED_TOOL,
    CompletionChunk,
    ModelResponse,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
    Usage,
)
from slipform.ir.response import ENVELOPE
from slipform.text.strict import compact_json, parse

FINISH: Finishes = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "compaction": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_CALL = frozenset({"type", "id", "name", "input"})
_KNOWN = frozenset({"id", "type", "role", "model", "content", "stop_reason", "usage", "error"})


def decode_body(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    """Return a whole answer."""
    stop_reason = data.get("stop_reason")
    usage = data.get("usage") or None
    extra = {**rest_of(data, _KNOWN, usage), **_envelope(usage)}
    finish = FINISH.get(stop_reason or "", "unknown")
    parts = [read_block(block) for block in data.get("content") or () if isinstance(block, Mapping)]
    if finish == "length" and parts:
        parts[-1] = _unclosed(parts[-1])
    return build_answer(
        plan,
        parts,
        finish=finish,
        raw_finish=stop_reason,
        refusal=refusal(stop_reason, data.get("stop_details")),
        usage=read_usage(usage),
        model=data.get("model"),
        id_=data.get("id"),
        extra=extra,
    )


def _unclosed(part: Part) -> Part:
    """Return the answer's call without the closing brackets that the API adds to arguments cut by the token limit.

    >>> _unclosed(ToolCall("t", "output", '{"rows":[1]}')).arguments
    '{"rows":[1'
    """
    if isinstance(part, ToolCall) and part.name == RESERVED_TOOL:
        return dataclasses.replace(part, arguments=part.arguments.rstrip("]}"))
    return part


def _envelope(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    return {ENVELOPE: {NAME: {"usage": usage}}} if usage else {}


def read_block(block: Mapping[str, Any]) -> Part:
    """Return one content block as a part."""
    kind = block.get("type")
    if kind == "text":
        cited = block.get("citations")
        return Text(str(block.get("text") or ""), {NAME: {"citations": cited}} if cited else {})
    if kind == "tool_use":
        arguments = arguments_text(block.get("input"))
        return ToolCall(str(block.get("id")), str(block.get("name")), arguments, call_extra(block))
    if kind == "thinking":
        # Unsigned reasoning came from another vendor's model, written for a client of this API.
        return Reasoning(str(block.get("thinking") or ""), {NAME: dict(block)} if block.get("signature") else {})
    if kind == "redacted_thinking":
        return Reasoning("", {NAME: dict(block)})
    return Opaque(NAME, block)


def call_extra(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call other than its name and arguments."""
    extra = {key: value for key, value in block.items() if key not in _CALL and value is not None}
    return {NAME: extra} if extra else {}


def refusal(stop_reason: str | None, details: Any) -> str | None:
    """Return the text of a refusal, if it has any."""
    if stop_reason != "refusal" or not isinstance(details, Mapping):
        return None
    return details.get("explanation") or None


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Return the usage; cached tokens are not part of this API's input tokens, so they are added.

    >>> read_usage({"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 1}).input
    7
    """
    if not isinstance(usage, Mapping):
        return None
    fresh = count(usage.get("input_tokens"))
    read = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    thinking = details_of(usage, "output_tokens_details").get("thinking_tokens")
    total = usage_of(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        count(usage.get("output_tokens")),
        read,
        count(thinking),
    )
    if written:
        total = total.replace(cache_write=written)
    return at_tier(total, usage.get("service_tier"))


class AnthropicEvents:
    """Reads the events of a Messages stream; unknown events, blocks and deltas are skipped."""

    __slots__ = ("_after_text", "_blocks", "_usage", "ended", "fault")

    text_key = arguments_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._after_text = False
        """Whether the previous block was text that has not been closed by a boundary, which another text needs."""

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """Return the chunks of one event."""
        kind = data.get("type") or name
        if kind == "content_block_delta":
            return self._delta(data.get("index") or 0, data.get("delta") or {})
        if kind == "content_block_start":
            return self._start(data.get("index") or 0, dict(data.get("content_block") or {}))
        if kind == "content_block_stop":
            return self._stop(data.get("index") or 0)
        if kind == "message_start":
            return self._begin(data.get("message") or {})
        if kind == "message_delta":
            return self._end(data)
        if kind == "message_stop":
            self.ended = True
        elif kind == "message":
            # A server that does not stream sends the whole message as one event.
            return self._whole(data)
        elif kind == "error" or data.get("error"):
            self.fault = fault_error(data, status=None)
        return []

    def finish(self, _done: bool) -> list[CompletionChunk]:
        """Return nothing: no chunk is pending at the end."""
        return []

    def _begin(self, message: Mapping[str, Any]) -> list[CompletionChunk]:
        self._count(message.get("usage"))
        return [
            CompletionChunk(
                usage=read_usage(self._usage) if self._usage else None,
                model=message.get("model") or None,
                id=message.get("id") or None,
                extra=self._usage_fields(),
            )
        ]

    def _usage_fields(self) -> dict[str, Any]:
        usage = dict(self._usage)
        return {"usage": usage, **_envelope(usage)} if usage else {}

    def _count(self, usage: Any) -> None:
        if isinstance(usage, Mapping):
            self._usage.update(
                (key, value) for key, value in usage.items() if value is not None or key not in self._usage
            )

    def _start(self, index: int, block: dict[str, Any]) -> list[CompletionChunk]:
        """Return the chunks of a block that has begun."""
        self._blocks[index] = block
        kind = block.get("type")
        if kind == "text":
            # Two consecutive texts are two parts.
            ended = [CompletionChunk(parts=(Text(""),))] if self._after_text else []
            if block.get("text"):
                return [*ended, CompletionChunk(block["text"])]
            return ended
        if kind == "tool_use":
            extra = call_extra(block)
            return [CompletionChunk(tool_calls=(ToolDelta(index, block.get("id"), block.get("name"), "", extra),))]
        if kind == "thinking" and block.get("thinking"):
            return [CompletionChunk(reasoning=block["thinking"])]
        return []

    def _delta(self, index: int, delta: Mapping[str, Any]) -> list[CompletionChunk]:
        """Return the chunks of a piece of a block; blocks that are only useful whole are collected until they stop."""
        kind = delta.get("type")
        if kind == "text_delta":
            return [CompletionChunk(delta.get("text") or "")]
        block = self._blocks.setdefault(index, {})
        if kind == "input_json_delta":
            piece = delta.get("partial_json") or ""
            if block.get("type") == "tool_use":
                block["streamed"] = block.get("streamed") or bool(piece)
                if piece:
                    return [CompletionChunk(tool_calls=(ToolDelta(index, arguments=piece),))]
                return []
            block["partial"] = block.get("partial", "") + piece
        elif kind == "thinking_delta":
            text = delta.get("thinking") or ""
            block.setdefault("pieces", []).append(text)
            return [CompletionChunk(reasoning=text)] if text else []
        elif kind == "signature_delta":
            block["signature"] = (block.get("signature") or "") + (delta.get("signature") or "")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return []

    def _stop(self, index: int) -> list[CompletionChunk]:
        """Return the chunks of a finished block: signed thinking, citations, blocks specific to the vendor.

        Thinking with its signature, citations, blocks of the vendor's own.
        """
        block = self._blocks.pop(index, {})
        kind = block.get("type")
        citations = block.get("citations")
        self._after_text = kind == "text" and not citations
        if kind == "text" and citations:
            return [CompletionChunk(parts=(Text("", {NAME: {"citations": citations}}),))]
        if kind == "thinking":
            text = (block.get("thinking") or "") + "".join(block.pop("pieces", ()))
            return [CompletionChunk(parts=(Reasoning(text, {NAME: {**block, "thinking": text}}),))]
        if kind == "redacted_thinking":
            return [CompletionChunk(parts=(Reasoning("", {NAME: block}),))]
        if kind == "tool_use":
            arguments = block.get("input")
            if arguments and not block.get("streamed"):
                return [CompletionChunk(tool_calls=(ToolDelta(index, arguments=compact_json(arguments)),))]
        elif kind not in (None, "text"):
            return [CompletionChunk(parts=(Opaque(NAME, _with_input(block)),))]
        return []

    def _end(self, data: Mapping[str, Any]) -> list[CompletionChunk]:
        """Return the chunk of the message's end: finish reason, usage and refusal."""
        delta = data.get("delta") or {}
        self._count(data.get("usage"))
        stop_reason = delta.get("stop_reason")
        if stop_reason:
            self.ended = True
        extra = {key: delta[key] for key in ("stop_sequence", "stop_details", "container") if delta.get(key)}
        extra |= self._usage_fields()
        return [
            CompletionChunk(
                refusal=refusal(stop_reason, delta.get("stop_details")) or "",
                finish=FINISH.get(stop_reason, "unknown") if stop_reason else None,
                raw_finish=stop_reason,
                usage=read_usage(self._usage) if self._usage else None,
                extra=extra,
            )
        ]

    def _whole(self, message: Mapping[str, Any]) -> list[CompletionChunk]:
        chunks = self._begin(message)
        for index, block in enumerate(message.get("content") or ()):
            chunks += self._start(index, dict(block))
            chunks += self._stop(index)
        return chunks + self._end({"delta": message})


def _with_input(block: dict[str, Any]) -> dict[str, Any]:
    partial = block.pop("partial", "")
    if not partial:
        return block
    try:
        return {**block, "input": parse(partial)}
    except ValueError:
        return {**block, "input": partial}

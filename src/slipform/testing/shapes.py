"""How three APIs spell an answer, whole and streamed: enough for tests, with none of the rare fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from slipform.ir import CompletionChunk, ModelResponse, Usage
from slipform.providers.chunking import as_chunks

Api: TypeAlias = Literal["openai", "anthropic", "gemini"]


@dataclass(frozen=True, slots=True)
class Shape:
    """One API: where its base URL ends, and how its answers are spelled."""

    prefix: str
    whole: Callable[[ModelResponse], dict[str, Any]]
    events: Callable[[ModelResponse, int], Iterator[bytes]]

    def streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        """Whether a request asks for a stream."""
        return bool(body.get("stream")) or ":streamGenerateContent" in path


def _event(data: object, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


# OpenAI Chat Completions

_OPENAI_FINISH = {"refusal": "stop", "error": "error", "unknown": ""}


def _openai_head(response: ModelResponse, kind: str) -> dict[str, Any]:
    return {
        "id": response.id or "chatcmpl-fake",
        "object": kind,
        "created": 0,
        "model": response.model or "fake",
    }


def _openai_usage(usage: Usage) -> dict[str, Any] | None:
    if usage.input is None and usage.output is None:
        return None
    known = {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": usage.total}
    return {name: value for name, value in known.items() if value is not None}


def _openai_finish(response: ModelResponse) -> str:
    return response.raw_finish or _OPENAI_FINISH.get(response.finish, response.finish)


def _openai(response: ModelResponse) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": response.text or (None if response.tool_calls or response.refusal else ""),
        "refusal": response.refusal,
    }
    if response.reasoning:
        message["reasoning_content"] = response.reasoning
    if response.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in response.tool_calls
        ]
    body = _openai_head(response, "chat.completion")
    body["choices"] = [{"index": 0, "message": message, "logprobs": None, "finish_reason": _openai_finish(response)}]
    body["usage"] = _openai_usage(response.usage)
    return body


def _openai_delta(chunk: CompletionChunk) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if chunk.text:
        delta["content"] = chunk.text
    if chunk.reasoning:
        delta["reasoning_content"] = chunk.reasoning
    if chunk.refusal:
        delta["refusal"] = chunk.refusal
    if chunk.tool_calls:
        delta["tool_calls"] = []
        for call in chunk.tool_calls:
            piece: dict[str, Any] = {"index": call.index, "function": {"arguments": call.arguments}}
            if call.id is not None:
                piece |= {"id": call.id, "type": "function"}
                piece["function"]["name"] = call.name
            delta["tool_calls"].append(piece)
    return delta


def _openai_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    head = _openai_head(response, "chat.completion.chunk")

    def choice(delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    yield choice({"role": "assistant", "content": ""})
    for chunk in as_chunks(response, size):
        yield choice(_openai_delta(chunk), _openai_finish(response) if chunk.finish else None)
    usage = _openai_usage(response.usage)
    if usage is not None:
        yield _event({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


# Anthropic Messages

_ANTHROPIC_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "refusal": "refusal",
}


def _anthropic_blocks(response: ModelResponse) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if response.reasoning:
        blocks.append({"type": "thinking", "thinking": response.reasoning, "signature": "fake"})
    text = response.text or response.refusal or ""
    if text or not response.tool_calls:
        blocks.append({"type": "text", "text": text})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in response.tool_calls
    ]
    return blocks


def _anthropic_stop(response: ModelResponse) -> str:
    finish = "refusal" if response.refusal else response.finish
    return response.raw_finish or _ANTHROPIC_STOP.get(finish, "end_turn")


def _anthropic(response: ModelResponse) -> dict[str, Any]:
    return {
        "id": response.id or "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": response.model or "fake",
        "content": _anthropic_blocks(response),
        "stop_reason": _anthropic_stop(response),
        "stop_sequence": None,
        "usage": {"input_tokens": response.usage.input or 0, "output_tokens": response.usage.output or 0},
    }


def _anthropic_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    whole = _anthropic(response)

    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)

    yield event("message_start", message={**whole, "content": [], "stop_reason": None})
    for index, block in enumerate(whole["content"]):
        kind = block["type"]
        if kind == "tool_use":
            key, delta, text, empty = (
                "partial_json",
                "input_json_delta",
                json.dumps(block["input"]),
                {**block, "input": {}},
            )
        elif kind == "thinking":
            key, delta, text, empty = "thinking", "thinking_delta", block["thinking"], {**block, "thinking": ""}
        else:
            key, delta, text, empty = "text", "text_delta", block["text"], {**block, "text": ""}
        yield event("content_block_start", index=index, content_block=empty)
        for start in range(0, len(text), size):
            yield event("content_block_delta", index=index, delta={"type": delta, key: text[start : start + size]})
        yield event("content_block_stop", index=index)
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": whole["usage"]["output_tokens"]})
    yield event("message_stop")


# Gemini generateContent

_GEMINI_FINISH = {"length": "MAX_TOKENS", "content_filter": "SAFETY", "refusal": "SAFETY", "error": "OTHER"}


def _gemini_parts(response: ModelResponse) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if response.reasoning:
        parts.append({"text": response.reasoning, "thought": True})
    if response.text:
        parts.append({"text": response.text})
    parts += [{"functionCall": {"name": call.name, "args": json.loads(call.arguments)}} for call in response.tool_calls]
    return parts


def _gemini_datum(response: ModelResponse, parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if last:
        finish = "refusal" if response.refusal else response.finish
        candidate["finishReason"] = response.raw_finish or _GEMINI_FINISH.get(finish, "STOP")
    usage = {"promptTokenCount": response.usage.input or 0, "candidatesTokenCount": response.usage.output or 0}
    usage["totalTokenCount"] = sum(usage.values())
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": response.model or "fake",
        "responseId": "fake",
    }


def _gemini(response: ModelResponse) -> dict[str, Any]:
    return _gemini_datum(response, _gemini_parts(response), last=True)


def _gemini_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    for part in _gemini_parts(response):
        if "functionCall" in part:
            yield _event(_gemini_datum(response, [part], last=False))
            continue
        text = part["text"]
        for start in range(0, len(text), size):
            yield _event(_gemini_datum(response, [{**part, "text": text[start : start + size]}], last=False))
    yield _event(_gemini_datum(response, [{"text": ""}], last=True))


SHAPES: Mapping[Api, Shape] = MappingProxyType(
    {
        "openai": Shape("/v1", _openai, _openai_events),
        "anthropic": Shape("", _anthropic, _anthropic_events),
        "gemini": Shape("", _gemini, _gemini_events),
    }
)
"""The APIs a fake vendor can speak."""

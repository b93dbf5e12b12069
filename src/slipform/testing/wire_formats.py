"""Write answers in the formats of seven vendors, for the fake vendor of tests.

Written from the vendors' pages and not with `slipform.codecs`: a codec that is tried against a fake of its own making
would only show that it agrees with itself. `tests/codecs/test_records.py` reads all of these with the codecs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from slipform.codecs.framing import encode_frame
from slipform.ir import CompletionChunk, ModelResponse, ToolCall, Usage
from slipform.providers.base import as_chunks

Api: TypeAlias = Literal["openai", "openai-responses", "anthropic", "gemini", "bedrock", "cohere", "ollama"]


@dataclass(frozen=True, slots=True)
class VendorFormat:
    """One API: the end of its base URL, and the encoding of its answers."""

    prefix: str
    whole: Callable[[ModelResponse], dict[str, Any]]
    events: Callable[[ModelResponse, int], Iterator[bytes]]
    content_type: str = "text/event-stream"
    """The content type of a streamed answer."""

    def streamed(self, path: str, body: Mapping[str, Any]) -> bool:
        """Returns whether a request asks for a stream."""
        return bool(body.get("stream")) or ":streamGenerateContent" in path or path.endswith("/converse-stream")


def _event(data: object, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def _split_text(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


def _arguments(call: ToolCall) -> Any:
    """Return a call's arguments for an API that requires an object.

    Text that is not JSON goes as the text it is.
    """
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


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
    counts = {"prompt_tokens": usage.input, "completion_tokens": usage.output, "total_tokens": usage.total}
    return {name: value for name, value in counts.items() if value is not None}


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
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _arguments(call)}
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
            key = "partial_json"
            delta = "input_json_delta"
            text = next(call.arguments for call in response.tool_calls if call.id == block["id"])
            empty = {**block, "input": {}}
        elif kind == "thinking":
            key = "thinking"
            delta = "thinking_delta"
            text = block["thinking"]
            empty = {**block, "thinking": ""}
        else:
            key = "text"
            delta = "text_delta"
            text = block["text"]
            empty = {**block, "text": ""}
        yield event("content_block_start", index=index, content_block=empty)
        for piece in _split_text(text, size):
            yield event("content_block_delta", index=index, delta={"type": delta, key: piece})
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
    parts += [{"functionCall": {"name": call.name, "args": _arguments(call)}} for call in response.tool_calls]
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
        for piece in _split_text(part["text"], size):
            yield _event(_gemini_datum(response, [{**part, "text": piece}], last=False))
    yield _event(_gemini_datum(response, [{"text": ""}], last=True))


# OpenAI Responses


def _responses_items(response: ModelResponse) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if response.reasoning:
        thought = {"type": "reasoning_text", "text": response.reasoning}
        items.append({"type": "reasoning", "id": "rs_fake", "summary": [], "content": [thought]})
    content: list[dict[str, Any]] = []
    if response.refusal:
        content.append({"type": "refusal", "refusal": response.refusal})
    if response.text or not (content or response.tool_calls):
        content.append({"type": "output_text", "text": response.text, "annotations": []})
    if content:
        head = {"type": "message", "id": "msg_fake", "role": "assistant", "status": "completed"}
        items.append({**head, "content": content})
    items += [
        {"type": "function_call", "id": f"fc_{call.id}", "call_id": call.id, "name": call.name,
         "arguments": call.arguments, "status": "completed"}
        for call in response.tool_calls
    ]  # fmt: skip
    return items


def _responses(response: ModelResponse) -> dict[str, Any]:
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(response.finish)
    tokens = response.usage
    return {
        "id": response.id or "resp_fake",
        "object": "response",
        "created_at": 0,
        "model": response.model or "fake",
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "error": None,
        "output": _responses_items(response),
        "usage": {"input_tokens": tokens.input or 0, "output_tokens": tokens.output or 0, "total_tokens": tokens.total},
    }


def _responses_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    whole = _responses(response)

    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": f"response.{kind}", **fields}, f"response.{kind}")

    yield event("created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for index, item in enumerate(whole["output"]):
        start: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        empty = {**item, "status": "in_progress", **start}
        yield event("output_item.added", output_index=index, item=empty)
        if item["type"] == "function_call":
            pieces = [("function_call_arguments", item["arguments"])]
        else:
            kinds = {"refusal": "refusal", "output_text": "output_text", "reasoning_text": "reasoning_text"}
            pieces = [(kinds[part["type"]], part.get("text") or part.get("refusal") or "") for part in item["content"]]
        for number, (kind, text) in enumerate(pieces):
            for piece in _split_text(text, size):
                yield event(f"{kind}.delta", output_index=index, content_index=number, delta=piece)
        yield event("output_item.done", output_index=index, item=item)
    yield event(whole["status"], response=whole)


# Bedrock Converse

_CONVERSE_STOP = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "content_filtered"}


def _converse_stop(response: ModelResponse) -> str:
    refused = "content_filtered" if response.refusal else "end_turn"
    return response.raw_finish or _CONVERSE_STOP.get(response.finish, refused)


def _converse(response: ModelResponse) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if response.reasoning:
        content.append({"reasoningContent": {"reasoningText": {"text": response.reasoning, "signature": "fake"}}})
    text = response.text or response.refusal or ""
    if text or not response.tool_calls:
        content.append({"text": text})
    content += [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": _arguments(call)}}
        for call in response.tool_calls
    ]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": _converse_stop(response),
        "usage": _converse_usage(response.usage),
        "metrics": {"latencyMs": 1},
    }


def _converse_usage(usage: Usage) -> dict[str, int]:
    spent = {"inputTokens": usage.input or 0, "outputTokens": usage.output or 0}
    return {**spent, "totalTokens": sum(spent.values())}


def _converse_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    def frame(kind: str, **fields: Any) -> bytes:
        return encode_frame({":event-type": kind, ":message-type": "event"}, json.dumps(fields).encode())

    yield frame("messageStart", role="assistant")
    text = response.text or response.refusal or ""
    for piece in _split_text(response.reasoning, size):
        yield frame("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"text": piece}})
    if response.reasoning:
        yield frame("contentBlockStop", contentBlockIndex=0)
    for piece in _split_text(text, size):
        yield frame("contentBlockDelta", contentBlockIndex=1, delta={"text": piece})
    if text:
        yield frame("contentBlockStop", contentBlockIndex=1)
    for index, call in enumerate(response.tool_calls, 2):
        use = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        yield frame("contentBlockStart", contentBlockIndex=index, start=use)
        for piece in _split_text(call.arguments, size):
            yield frame("contentBlockDelta", contentBlockIndex=index, delta={"toolUse": {"input": piece}})
        yield frame("contentBlockStop", contentBlockIndex=index)
    yield frame("messageStop", stopReason=_converse_stop(response))
    yield frame("metadata", usage=_converse_usage(response.usage), metrics={"latencyMs": 1})


# Cohere v2 Chat

_COHERE_FINISH = {"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL", "error": "ERROR", "content_filter": "ERROR"}


def _cohere_usage(usage: Usage) -> dict[str, Any]:
    return {"tokens": {"input_tokens": usage.input or 0, "output_tokens": usage.output or 0}}


def _cohere_call(call: ToolCall, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _cohere(response: ModelResponse) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if response.reasoning:
        content.append({"type": "thinking", "thinking": response.reasoning})
    if text := response.text or response.refusal:
        content.append({"type": "text", "text": text})
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if response.tool_calls:
        message["tool_calls"] = [_cohere_call(call, call.arguments) for call in response.tool_calls]
    return {
        "id": response.id or "fake",
        "finish_reason": response.raw_finish or _COHERE_FINISH.get(response.finish, "COMPLETE"),
        "message": message,
        "usage": _cohere_usage(response.usage),
    }


def _cohere_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return _event({"type": kind, **fields}, kind)

    def delta(key: str, value: Any) -> dict[str, Any]:
        return {"message": {key: value}}

    whole = _cohere(response)
    yield event("message-start", id=whole["id"], delta=delta("role", "assistant"))
    for index, part in enumerate(whole["message"]["content"]):
        key = "thinking" if part["type"] == "thinking" else "text"
        yield event("content-start", index=index, delta=delta("content", {**part, key: ""}))
        for piece in _split_text(part[key], size):
            yield event("content-delta", index=index, delta=delta("content", {key: piece}))
        yield event("content-end", index=index)
    for index, call in enumerate(response.tool_calls):
        yield event("tool-call-start", index=index, delta=delta("tool_calls", _cohere_call(call, "")))
        for piece in _split_text(call.arguments, size):
            grown = {"function": {"arguments": piece}}
            yield event("tool-call-delta", index=index, delta=delta("tool_calls", grown))
        yield event("tool-call-end", index=index)
    yield event("message-end", delta={"finish_reason": whole["finish_reason"], "usage": whole["usage"]})


# Ollama chat


def _ollama_line(response: ModelResponse, message: dict[str, Any], *, last: bool) -> dict[str, Any]:
    line = {"model": response.model or "fake", "created_at": "2026-01-01T00:00:00Z", "done": last}
    line["message"] = {"role": "assistant", "content": "", **message}
    if last:
        line["done_reason"] = response.raw_finish or ("length" if response.finish == "length" else "stop")
        line |= {"prompt_eval_count": response.usage.input or 0, "eval_count": response.usage.output or 0}
    return line


def _ollama_calls(response: ModelResponse) -> dict[str, Any]:
    calls = [{"function": {"name": call.name, "arguments": _arguments(call)}} for call in response.tool_calls]
    return {"tool_calls": calls} if calls else {}


def _ollama(response: ModelResponse) -> dict[str, Any]:
    thought = {"thinking": response.reasoning} if response.reasoning else {}
    message = {"content": response.text or response.refusal or "", **thought, **_ollama_calls(response)}
    return _ollama_line(response, message, last=True)


def _ollama_events(response: ModelResponse, size: int) -> Iterator[bytes]:
    messages: list[dict[str, Any]] = [{"thinking": piece} for piece in _split_text(response.reasoning, size)]
    messages += [{"content": piece} for piece in _split_text(response.text or response.refusal or "", size)]
    if response.tool_calls:
        messages.append(_ollama_calls(response))
    for message in messages:
        yield json.dumps(_ollama_line(response, message, last=False)).encode() + b"\n"
    yield json.dumps(_ollama_line(response, {}, last=True)).encode() + b"\n"


SHAPES: Mapping[Api, VendorFormat] = MappingProxyType(
    {
        "openai": VendorFormat("/v1", _openai, _openai_events),
        "openai-responses": VendorFormat("/v1", _responses, _responses_events),
        "anthropic": VendorFormat("", _anthropic, _anthropic_events),
        "gemini": VendorFormat("", _gemini, _gemini_events),
        "bedrock": VendorFormat("", _converse, _converse_events, "application/vnd.amazon.eventstream"),
        "cohere": VendorFormat("", _cohere, _cohere_events),
        "ollama": VendorFormat("", _ollama, _ollama_events, "application/x-ndjson"),
    }
)
"""The APIs that a fake vendor can serve."""

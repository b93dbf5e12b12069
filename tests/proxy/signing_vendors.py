"""Vendors whose models think, sign what they thought, and refuse a tool's result without it.

Each answers the first two requests of a conversation with signed thinking and a call of `forecast`, the third with
words. A turn that comes back without what was signed, or with something else in its place, is answered with 400.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from slipform.codecs.framing import encode_frame
from slipform.testing import Api, Raw, Received, rejected

ARGUMENTS = {"city": "Oslo", "days": "3"}
"""The days are a number: where tools are enforced, the call is mended."""
MENDED = {"city": "Oslo", "days": 3}
LAST = "It will rain."
_serial = count(1)


def _signature(serial: int) -> str:
    return b64encode(f"signed {serial:08}".encode()).decode()


@dataclass(frozen=True)
class SigningVendor:
    """One vendor: the row of the catalogue it is, the model it has, its API, and what it does with a request."""

    row: str
    model: str
    api: Api
    answer: Callable[[Received], Raw]


def _json(body: Any) -> Raw:
    return Raw((json.dumps(body).encode(),), headers={"content-type": "application/json"})


def _events(events: Iterator[tuple[str | None, Any]]) -> Raw:
    lines = [(f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n" for name, data in events]
    pieces = tuple(line.encode() for line in lines)
    return Raw(pieces, headers={"content-type": "text/event-stream"}, chunked=True)


# Anthropic


def _claude_turn(serial: int) -> list[dict[str, Any]]:
    return [
        {"type": "thinking", "thinking": f"hm {serial}", "signature": _signature(serial)},
        {"type": "redacted_thinking", "data": f"gAAA{serial}"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": f"toolu_{serial}", "name": "forecast", "input": ARGUMENTS},
    ]


def _claude(received: Received, *, always: bool = True) -> Raw:
    """`always`: it thinks without being told to."""
    body = received.json()
    thinks = always or body.get("thinking", {}).get("type", "disabled") != "disabled"
    turns = [turn["content"] for turn in body["messages"] if turn["role"] == "assistant"]
    for blocks in turns:
        calls = [block for block in blocks if isinstance(block, dict) and block["type"] == "tool_use"]
        for call in calls:
            issued = _claude_turn(int(call["id"].removeprefix("toolu_")))
            carried = [block for block in blocks if "thinking" in block["type"]] or (not thinks and issued[:2])
            if call["input"] not in (MENDED, ARGUMENTS) or carried != issued[:2] or (thinks and blocks[:2] != carried):
                return rejected(f"messages: thinking blocks of {call['id']} cannot be modified")
    content = _claude_turn(next(_serial)) if len(turns) < 2 else [{"type": "text", "text": LAST}]
    reason = "tool_use" if len(turns) < 2 else "end_turn"
    usage = {"input_tokens": 9, "output_tokens": 7}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "usage": usage}
    if not body.get("stream"):
        return _json({**head, "content": content, "stop_reason": reason, "stop_sequence": None})
    return _events(_claude_events(head, content, reason))


def _claude_events(head: dict[str, Any], content: list[dict[str, Any]], reason: str) -> Iterator[tuple[str, Any]]:
    def event(kind: str, **fields: Any) -> tuple[str, Any]:
        return kind, {"type": kind, **fields}

    empty: dict[str, dict[str, Any]] = {
        "thinking": {"thinking": "", "signature": ""},
        "text": {"text": ""},
        "tool_use": {"input": {}},
    }
    yield event("message_start", message={**head, "content": [], "stop_reason": None})
    for at, block in enumerate(content):
        yield event("content_block_start", index=at, content_block={**block, **empty.get(block["type"], {})})
        if block["type"] == "thinking":
            for piece in block["thinking"]:
                yield event("content_block_delta", index=at, delta={"type": "thinking_delta", "thinking": piece})
            signature = {"type": "signature_delta", "signature": block["signature"]}
            yield event("content_block_delta", index=at, delta=signature)
        elif block["type"] == "text":
            yield event("content_block_delta", index=at, delta={"type": "text_delta", "text": block["text"]})
        elif block["type"] == "tool_use":
            for piece in json.dumps(block["input"]):
                delta = {"type": "input_json_delta", "partial_json": piece}
                yield event("content_block_delta", index=at, delta=delta)
        yield event("content_block_stop", index=at)
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=head["usage"])
    yield event("message_stop")


# Bedrock's Converse


def _converse_turn(serial: int) -> list[dict[str, Any]]:
    return [
        {"reasoningContent": {"reasoningText": {"text": f"hm {serial}", "signature": _signature(serial)}}},
        {"toolUse": {"toolUseId": f"tooluse_{serial}", "name": "forecast", "input": ARGUMENTS}},
    ]


def _converse(received: Received) -> Raw:
    turns = [turn["content"] for turn in received.json()["messages"] if turn["role"] == "assistant"]
    for blocks in turns:
        for call in (block["toolUse"] for block in blocks if "toolUse" in block):
            issued = _converse_turn(int(call["toolUseId"].removeprefix("tooluse_")))
            if call["input"] not in (MENDED, ARGUMENTS) or blocks[0] != issued[0]:
                return rejected(f"thinking of {call['toolUseId']} cannot be modified")
    content = _converse_turn(next(_serial)) if len(turns) < 2 else [{"text": LAST}]
    reason, usage = "tool_use" if len(turns) < 2 else "end_turn", {"inputTokens": 9, "outputTokens": 7}
    if not received.path.endswith("/converse-stream"):
        message = {"role": "assistant", "content": content}
        return _json({"output": {"message": message}, "stopReason": reason, "usage": usage})
    frames = [
        encode_frame({":message-type": "event", ":event-type": name}, json.dumps(data).encode())
        for name, data in _converse_events(content, reason, usage)
    ]
    return Raw(tuple(frames), headers={"content-type": "application/vnd.amazon.eventstream"}, chunked=True)


def _converse_events(content: list[dict[str, Any]], reason: str, usage: Any) -> Iterator[tuple[str, Any]]:
    yield "messageStart", {"role": "assistant"}
    for at, block in enumerate(content):
        if "text" in block:
            yield "contentBlockDelta", {"contentBlockIndex": at, "delta": {"text": block["text"]}}
        elif "toolUse" in block:
            use = block["toolUse"]
            start = {"toolUse": {"toolUseId": use["toolUseId"], "name": use["name"]}}
            yield "contentBlockStart", {"contentBlockIndex": at, "start": start}
            delta = {"toolUse": {"input": json.dumps(use["input"])}}
            yield "contentBlockDelta", {"contentBlockIndex": at, "delta": delta}
        else:
            thought = block["reasoningContent"]["reasoningText"]
            for key in ("text", "signature"):
                delta = {"reasoningContent": {key: thought[key]}}
                yield "contentBlockDelta", {"contentBlockIndex": at, "delta": delta}
        yield "contentBlockStop", {"contentBlockIndex": at}
    yield "messageStop", {"stopReason": reason}
    yield "metadata", {"usage": usage, "metrics": {"latencyMs": 1}}


# Gemini


def _gemini_turn(serial: int) -> list[dict[str, Any]]:
    return [
        {"text": f"hm {serial}", "thought": True},
        {"functionCall": {"name": "forecast", "args": ARGUMENTS}, "thoughtSignature": _signature(serial)},
    ]


_GEMINI_ISSUED: dict[str, int] = {}


def _gemini(received: Received) -> Raw:
    body = received.json()
    turns = [turn["parts"] for turn in body["contents"] if turn.get("role") == "model"]
    signatures = [part.get("thoughtSignature") for parts in turns for part in parts if "functionCall" in part]
    known = [_GEMINI_ISSUED.get(str(each), 0) for each in signatures if each != "skip_thought_signature_validator"]
    if 0 in known or known != sorted(set(known)):
        return rejected(f"Function call is missing a thought_signature: {signatures}", code="INVALID_ARGUMENT")
    calls = [part["functionCall"]["args"] for parts in turns for part in parts if "functionCall" in part]
    if any(arguments not in (MENDED, ARGUMENTS) for arguments in calls):
        return rejected("Another call was made")
    parts: list[dict[str, Any]] = [{"text": LAST}]
    if len(turns) < 2:
        serial = next(_serial)
        parts = _gemini_turn(serial)
        _GEMINI_ISSUED[parts[-1]["thoughtSignature"]] = serial
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3, "thoughtsTokenCount": 4, "totalTokenCount": 16}
    content = {"role": "model", "parts": parts}
    answer: dict[str, Any] = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": usage,
    }
    if ":streamGenerateContent" not in received.path:
        return _json(answer)
    pieces: list[Any] = [
        {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts
    ]
    pieces[-1] = {**answer, "candidates": [{**pieces[-1]["candidates"][0], "finishReason": "STOP"}]}
    return _events((None, piece) for piece in pieces)


# OpenAI's Responses


def _responses_turn(serial: int) -> list[dict[str, Any]]:
    summary = [{"type": "summary_text", "text": f"hm {serial}"}]
    arguments = json.dumps(ARGUMENTS)
    call = {"id": f"fc_{serial}", "type": "function_call", "call_id": f"call_{serial}", "name": "forecast"}
    return [
        {"id": f"rs_{serial}", "type": "reasoning", "summary": summary, "encrypted_content": f"gAAA{serial}"},
        {**call, "arguments": arguments, "status": "completed"},
    ]


def _responses(received: Received) -> Raw:
    body = received.json()
    items = body["input"] if isinstance(body["input"], list) else []
    calls = [(at, item) for at, item in enumerate(items) if item.get("type") == "function_call"]
    for at, call in calls:
        thought, issued = _responses_turn(int(call["call_id"].removeprefix("call_")))
        before = {key: items[at - 1].get(key) for key in thought}
        if (
            before != thought
            or call.get("id") != issued["id"]
            or json.loads(call["arguments"]) not in (MENDED, ARGUMENTS)
        ):
            return rejected(f"Item '{issued['id']}' was provided without its required 'reasoning' item")
    said = {"type": "output_text", "text": LAST, "annotations": [], "logprobs": []}
    message = {"id": "msg_9", "type": "message", "role": "assistant", "status": "completed", "content": [said]}
    output = _responses_turn(next(_serial)) if len(calls) < 2 else [message]
    usage = {"input_tokens": 9, "output_tokens": 7, "total_tokens": 16}
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": "gpt", "status": "completed"}
    whole |= {"output": output, "usage": usage}
    return _events(_responses_events(whole, output)) if body.get("stream") else _json(whole)


def _responses_events(whole: dict[str, Any], output: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    def event(kind: str, **fields: Any) -> tuple[str, Any]:
        return f"response.{kind}", {"type": f"response.{kind}", "sequence_number": next(_serial), **fields}

    yield event("created", response={**whole, "status": "in_progress", "output": []})
    for at, item in enumerate(output):
        place = {"item_id": item["id"], "output_index": at}
        if item["type"] == "reasoning":
            yield event("output_item.added", output_index=at, item={**item, "summary": [], "encrypted_content": ""})
            for piece in item["summary"][0]["text"]:
                yield event("reasoning_summary_text.delta", **place, summary_index=0, delta=piece)
        elif item["type"] == "function_call":
            yield event("output_item.added", output_index=at, item={**item, "arguments": ""})
            yield event("function_call_arguments.delta", **place, delta=item["arguments"])
        else:
            yield event("output_item.added", output_index=at, item={**item, "content": []})
            part = {**item["content"][0], "text": ""}
            yield event("content_part.added", **place, content_index=0, part=part)
            yield event("output_text.delta", **place, content_index=0, delta=item["content"][0]["text"])
        yield event("output_item.done", output_index=at, item=item)
    yield event("completed", response=whole)


# Chat Completions, as two of its vendors sign there


def _chat_message(serial: int, signed: str) -> dict[str, Any]:
    function = {"name": "forecast", "arguments": json.dumps(ARGUMENTS)}
    call: dict[str, Any] = {"id": f"call_{serial}", "type": "function", "function": function}
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    if signed == "call":  # Google's own endpoint
        call["extra_content"] = {"google": {"thought_signature": _signature(serial)}}
        return message
    details = [{"type": "reasoning.text", "text": f"hm {serial}", "signature": _signature(serial), "index": 0}]
    return {**message, "reasoning": f"hm {serial}", "reasoning_details": details}


def _chat(received: Received, signed: str) -> Raw:
    body = received.json()
    turns = [turn for turn in body["messages"] if turn["role"] == "assistant"]
    for turn in turns:
        call = turn["tool_calls"][0]
        issued = _chat_message(int(call["id"].removeprefix("call_")), signed)
        key = "reasoning_details"
        kept = turn.get(key) == issued.get(key) and call.get("extra_content") == issued["tool_calls"][0].get(
            "extra_content"
        )
        if not kept or json.loads(call["function"]["arguments"]) not in (MENDED, ARGUMENTS):
            return rejected(f"{call['id']} came back without its signature")
    called = len(turns) < 2
    message: dict[str, Any] = _chat_message(next(_serial), signed) if called else {"role": "assistant", "content": LAST}
    head = {"id": "gen-1", "created": 1, "model": "m"}
    reason = "tool_calls" if called else "stop"
    usage = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return _json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    calls: list[Any] = message.pop("tool_calls", [])
    deltas = [message, *({"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls))]
    chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    head["object"] = "chat.completion.chunk"
    events: list[Any] = [{**head, "choices": [chunk]} for chunk in chunks]
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage})
    return _events((None, event) for event in events)


VENDORS = {
    "claude": SigningVendor("anthropic", "claude-opus-5", "anthropic", _claude),
    "claude on demand": SigningVendor(
        "anthropic", "claude-opus-5", "anthropic", lambda received: _claude(received, always=False)
    ),
    "bedrock": SigningVendor("bedrock", "anthropic.claude-sonnet-5", "bedrock", _converse),
    "gemini": SigningVendor("gemini", "gemini-3-pro", "gemini", _gemini),
    "responses": SigningVendor("openai-responses", "gpt-6-sol", "openai-responses", _responses),
    "openrouter": SigningVendor("openrouter", "m/m", "openai", lambda received: _chat(received, "turn")),
    "gemini by Chat": SigningVendor("openai-compatible", "gemini-3", "openai", lambda each: _chat(each, "call")),
}

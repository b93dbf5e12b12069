"""Requests of all four APIs to be bent, and what every answer to them must look like."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import PERSON
from tests.proxy.asgi import Reply

Place = tuple[str | int, ...]

SCHEMA: dict[str, Any] = {**PERSON, "title": "person", "description": "Somebody."}
_PNG = "data:image/png;base64,aGk="
_SAID = {"type": "output_text", "text": "x"}
_ARGUED = {"id": "c1", "name": "look", "args": {"a": 1}}
_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}

CHAT: dict[str, Any] = {
    "model": "fake/m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "Ada is 36"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _PNG, "detail": "low"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}}]},
        {"role": "user", "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": _PNG}}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": SCHEMA, "strict": True, "description": "Who."},
    },
    "tools": [
        {
            "type": "function",
            "function": {"name": "look", "parameters": SCHEMA, "description": "Looks.", "strict": True},
        },
        {"type": "custom", "custom": {"name": "free"}},
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": True,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "seed": 1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "stop": ["x"],
    "max_tokens": 100,
    "max_completion_tokens": 100,
    "reasoning_effort": "low",
    "metadata": {"a": "b"},
    "stream": False,
    "stream_options": {"include_usage": True},
    "n": 1,
    "logit_bias": {"50256": -100},
    "slipform": {"report": True},
    "plugins": [{"id": "response-healing"}],
}

RESPONSES: dict[str, Any] = {
    "model": "fake/m",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Ada is 36"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": _PNG, "detail": "low"}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}]},
        {"role": "user", "content": [{"type": "input_file", "filename": "a", "file_data": _PNG}]},
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}], "content": []},
        {"type": "function_call", "id": "f1", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "message", "role": "assistant", "phase": "final_answer", "content": [_SAID]},
        {"type": "item_reference", "id": "x"},
    ],
    "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
    "tools": [
        {"type": "function", "name": "look", "parameters": SCHEMA, "description": "Looks.", "strict": True},
        {"type": "web_search", "filters": {}},
    ],
    "tool_choice": {"type": "function", "name": "look"},
    "parallel_tool_calls": False,
    "temperature": 0.5,
    "top_p": 0.9,
    "max_output_tokens": 100,
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"a": "b"},
    "stream": False,
    "stream_options": {"include_obfuscation": False},
    "store": False,
}  # fmt: skip

MESSAGES: dict[str, Any] = {
    "model": "fake/m",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Ada is 36"}]},
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
                {"type": "document", "source": {"type": "url", "url": "https://example.test/a.pdf"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x", "is_error": False}]},
    ],
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
    "tools": [
        {"name": "look", "input_schema": SCHEMA, "description": "Looks.", "strict": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 1},
    ],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "summarized"},
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 3,
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
    "stream": False,
}

GEMINI: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "Ada is 36"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
        {"role": "user", "parts": [{"fileData": {"mimeType": "a/b", "fileUri": "gs://b/x"}}]},
        {"role": "model", "parts": [{"functionCall": _ARGUED, "thoughtSignature": "s"}]},
        {"role": "user", "parts": [{"functionResponse": {"id": "c1", "name": "look", "response": {"a": 1}}}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}]},
    ],
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "generationConfig": {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "seed": 1,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.1,
        "stopSequences": ["x"],
        "maxOutputTokens": 100,
        "candidateCount": 1,
        "responseMimeType": "application/json",
        "responseSchema": {"type": "OBJECT", "properties": {"a": {"type": "STRING", "nullable": True}}},
        "thinkingConfig": {"thinkingBudget": 5, "thinkingLevel": "LOW", "includeThoughts": True},
    },
    "tools": [
        {"functionDeclarations": [{"name": "look", "parameters": {"type": "OBJECT", "properties": {}}}]},
        {"functionDeclarations": [{"name": "see", "description": "d", "parametersJsonSchema": SCHEMA}]},
        {"googleSearch": {}},
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}},
    "safetySettings": [],
}  # fmt: skip

APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai-chat": ("/v1/chat/completions", CHAT),
    "openai-responses": ("/v1/responses", RESPONSES),
    "anthropic": ("/v1/messages", MESSAGES),
    "gemini": ("/v1beta/models/fake/m:generateContent", GEMINI),
}

WRONG: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, 1e300, "", "x", "\x00", [], {}, [[]], [{}], [None], {"": ""}, {"type": 1},
]  # fmt: skip


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a document, itself left out."""
    steps: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(value, dict):
        steps = iter(value.items())
    elif isinstance(value, list):
        steps = iter(enumerate(value))
    for step, inner in steps:
        yield (*at, step)
        yield from places(inner, (*at, step))


def replaced(document: Any, place: Place, value: Any) -> Any:
    """A copy with another value at one place."""
    made = copy.deepcopy(document)
    inner = made
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    return made


def without(document: Any, place: Place) -> Any:
    """A copy without what is at one place."""
    made = copy.deepcopy(document)
    inner = made
    for step in place[:-1]:
        inner = inner[step]
    del inner[place[-1]]
    return made


def samples() -> list[tuple[str, Any]]:
    """What the official SDKs really send, where the samples are at hand."""
    for folder in Path(__file__).resolve().parents:
        found = folder / "shared" / "wire-samples"
        if found.is_dir():
            files = [json.loads(path.read_text()) for path in sorted(found.glob("*.json"))]
            sent = [(each["path"], each.get("body")) for file in files for each in file.get("requests", ())]
            return [(path, body) for path, body in sent if isinstance(body, dict)]
    return []


def check(api: str, reply: Reply) -> None:
    """An answer, or an error in the API's own shape; never a fault of the server's."""
    assert reply.status != 500, reply.body[:500]
    assert reply.status < 500, reply.body[:500]
    if reply.status == 200:
        assert reply.body
        return
    body = reply.json()
    error = body["error"]
    assert isinstance(error["message"], str)
    assert error["message"]
    if api == "anthropic":
        assert body["type"] == "error"
        assert isinstance(error["type"], str)
    elif api == "gemini":
        assert error["code"] == reply.status
        assert isinstance(error["status"], str)
    else:
        assert {"message", "type", "param", "code"} <= set(error)

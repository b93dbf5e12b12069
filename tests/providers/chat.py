"""A codec of our own for these tests: OpenAI-chat-like JSON, and no more of it than they need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from slipform.codecs import BoundCodec, Codec
from slipform.codecs.request_fields import Encoding
from slipform.codecs.schema_channel import SchemaChannel
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Sampling, Usage
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat


def ask(
    text: str = "hi",
    *,
    schema: Mapping[str, Any] | None = None,
    strategy: OutputStrategy = OutputStrategy.AUTO,
    temperature: float | None = None,
    max_tokens: int | None = None,
    model: str = "m-1",
) -> ModelRequest:
    wanted = None if schema is None else ResponseFormat(JsonSchemaSpec("thing", schema)).with_strategy(strategy)
    return ModelRequest(
        model,
        (Message.user(text),),
        response_format=wanted,
        sampling=Sampling(temperature=temperature),
        max_tokens=max_tokens,
    )


def _encode(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": message.role, "content": message.text} for message in request.messages],
    }
    if stream:
        body["stream"] = True
    if request.sampling.temperature is not None:
        if out.capabilities.sampling:
            body["temperature"] = request.sampling.temperature
        else:
            out.lose("sampling.temperature", "no sampling here")
    if request.max_tokens is not None and out.capabilities.max_tokens_field:
        body[out.capabilities.max_tokens_field] = request.max_tokens
    if plan.strategy is OutputStrategy.NATIVE:
        body["response_format"] = {"type": "json_schema", "json_schema": dict(plan.schema)}
    elif plan.strategy is OutputStrategy.TOOL:
        body["tool_choice"] = {"type": "function", "function": {"name": "output"}}
    elif plan.json_object:
        body["response_format"] = {"type": "json_object"}
    return body


def _decode(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    choice, usage = data["choices"][0], data.get("usage") or {}
    return ModelResponse(
        text=choice["message"]["content"] or "",
        refusal=choice["message"].get("refusal"),
        finish=choice["finish_reason"],
        usage=Usage(input=usage.get("prompt_tokens"), output=usage.get("completion_tokens")),
        warnings=plan.warnings,
    )


class _Events:
    text_key = arguments_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        if "error" in data:
            self.fault = UpstreamError(data["error"]["message"])
            return []
        return [
            CompletionChunk(
                text=choice["delta"].get("content") or "",
                refusal=choice["delta"].get("refusal") or "",
                finish=choice["finish_reason"],
            )
            for choice in data["choices"]
        ]

    def finish(self, done: bool) -> list[CompletionChunk]:
        self.ended = done
        return []


ChatCodec = partial(
    BoundCodec,
    Codec(
        "chat",
        path=lambda _model, _capabilities, _stream: "/chat/completions",
        encode=_encode,
        decode=_decode,
        events=lambda _plan: _Events(),
    ),
)

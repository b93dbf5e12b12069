"""A codec of our own for these tests: OpenAI-chat-like JSON, and no more of it than they need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.codecs.codec import Capabilities, EncodedRequest, StreamDecoder
from slipform.errors import AuthenticationError, RateLimitError, TruncatedError, UpstreamError, UpstreamRequestError
from slipform.ir import CompletionChunk, LossyEncode, Message, ModelRequest, ModelResponse, Sampling, Usage
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


class ChatCodec:
    name = "chat"

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.strategy = capabilities.auto_strategy

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [{"role": message.role, "content": message.text} for message in request.messages],
        }
        if stream:
            body["stream"] = True
        warnings = []
        if request.sampling.temperature is not None:
            if self.capabilities.sampling:
                body["temperature"] = request.sampling.temperature
            else:
                warnings.append(LossyEncode("lossy_encode", "no sampling here", "sampling.temperature"))
        if request.max_tokens is not None and self.capabilities.max_tokens_field:
            body[self.capabilities.max_tokens_field] = request.max_tokens
        wanted = request.response_format
        if wanted is not None:
            strategy = self.strategy if wanted.strategy is OutputStrategy.AUTO else wanted.strategy
            if strategy is OutputStrategy.NATIVE:
                body["response_format"] = {"type": "json_schema", "json_schema": dict(wanted.json_schema.schema)}
            elif strategy is OutputStrategy.TOOL:
                body["tool_choice"] = {"type": "function", "function": {"name": "output"}}
            elif self.capabilities.json_mode:
                body["response_format"] = {"type": "json_object"}
        return EncodedRequest("/chat/completions", json.dumps(body).encode(), warnings=tuple(warnings))

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        try:
            data = json.loads(body)
            choice = data["choices"][0]
        except (ValueError, KeyError) as error:
            raise UpstreamError("The answer cannot be read") from error
        usage = data.get("usage") or {}
        return ModelResponse(
            text=choice["message"]["content"] or "",
            refusal=choice["message"].get("refusal"),
            finish=choice["finish_reason"],
            usage=Usage(input=usage.get("prompt_tokens"), output=usage.get("completion_tokens")),
            warnings=encoded.warnings,
        )

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        return _Decoder()

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            error = {"message": f"status {status}"}
        kinds = {401: AuthenticationError, 429: RateLimitError, 400: UpstreamRequestError}
        kind: type[UpstreamError] = kinds.get(status, UpstreamError)
        details = {"code": error.get("code")}
        if error.get("code") == "insufficient_quota":
            details["retryable"] = False
        return kind(error["message"], status=status, details=details)


class _Decoder:
    def __init__(self) -> None:
        self._buffer = b""
        self._done = False

    def texts(self, data: bytes) -> list[str] | None:
        return None

    def feed(self, data: bytes) -> Sequence[CompletionChunk]:
        self._buffer += data
        chunks = []
        while b"\n\n" in self._buffer:
            event, self._buffer = self._buffer.split(b"\n\n", 1)
            payload = event.removeprefix(b"data: ")
            if payload == b"[DONE]":
                self._done = True
                continue
            datum = json.loads(payload)
            if "error" in datum:
                raise UpstreamError(datum["error"]["message"])
            for choice in datum["choices"]:
                delta = choice["delta"]
                chunks.append(
                    CompletionChunk(
                        text=delta.get("content") or "",
                        refusal=delta.get("refusal") or "",
                        finish=choice["finish_reason"],
                    )
                )
        return chunks

    def finish(self) -> Sequence[CompletionChunk]:
        if not self._done:
            raise TruncatedError("The stream ended without its terminator")
        return ()

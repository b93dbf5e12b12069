"""`POST /v1/chat/completions`: OpenAI's chat API, read and spoken."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from slipform.enforce import Report
from slipform.errors import EnforcementError, RefusalError, RequestError, SlipformError
from slipform.ir import CompletionChunk, Message, ModelRequest, ModelResponse, Role, Sampling, Text, Usage
from slipform.schema import JsonSchemaSpec, ResponseFormat

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


def decode_request(body: Mapping[str, Any]) -> ModelRequest:
    """Read a request; what is wrong with it is named with its place."""
    if body.get("n") not in (None, 1):
        raise RequestError("Only one choice is answered per request", where="n", hint="Leave `n` out.")
    if body.get("tools"):
        raise RequestError("Tools are not served here yet", where="tools", hint="Leave `tools` out.")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("There are no messages", where="messages", hint="Send at least one message.")
    response_format, json_mode = _response_format(body.get("response_format"))
    return ModelRequest(
        model=_model(body),
        messages=tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages)),
        response_format=response_format,
        json_mode=json_mode,
        sampling=_sampling(body),
        max_tokens=body.get("max_completion_tokens") or body.get("max_tokens"),
    )


def _model(body: Mapping[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str):
        raise RequestError("The model is not named", where="model", hint='Send "model": "local", for example.')
    return model


def _sampling(body: Mapping[str, Any]) -> Sampling:
    stop = body.get("stop") or ()
    return Sampling(
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        seed=body.get("seed"),
        frequency_penalty=body.get("frequency_penalty"),
        presence_penalty=body.get("presence_penalty"),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )


def _message(message: Any, where: str) -> Message:
    role = _ROLES.get(str(message.get("role"))) if isinstance(message, Mapping) else None
    if role is None:
        known = ", ".join(_ROLES)
        raise RequestError("The message's role is not one this model takes", where=where, hint=f"It takes: {known}.")
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    for at, part in enumerate(parts):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError("Only text is read here yet", where=f"{where}.content[{at}]", hint="Send text parts.")
    return Message(role, tuple(Text(part["text"]) for part in parts))


def _response_format(given: Any) -> tuple[ResponseFormat | None, bool]:
    kind = given.get("type") if isinstance(given, Mapping) else None
    if given is None or kind == "text":
        return None, False
    if kind == "json_object":
        return None, True
    if kind != "json_schema":
        raise RequestError(
            f"Unknown response format {kind!r}",
            where="response_format.type",
            hint="Use json_schema, json_object or text.",
        )
    wanted = given.get("json_schema")
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("schema"), Mapping):
        raise RequestError("The schema is missing or not an object", where="response_format.json_schema.schema")
    name = wanted.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RequestError("The schema has no name", where="response_format.json_schema.name")
    return ResponseFormat(JsonSchemaSpec(name, wanted["schema"]), strict=bool(wanted.get("strict", True))), False


def new_id() -> str:
    """An id for a completion."""
    return f"chatcmpl-{uuid.uuid4().hex}"


def encode_response(response: ModelResponse, *, completion_id: str, model: str) -> dict[str, Any]:
    """A whole chat completion."""
    message = {"role": "assistant", "content": response.text, "refusal": response.refusal}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": response.finish}
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": encode_usage(response.usage),
    }


class StreamEncoder:
    """Chunks → the events of one streamed completion."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._frame = {"id": new_id(), "object": "chat.completion.chunk", "created": int(time.time()), "model": model}
        self._include_usage = include_usage
        self._begun = False

    def encode(self, chunk: CompletionChunk) -> Iterator[dict[str, Any]]:
        """The events that one chunk makes."""
        if not self._begun:
            self._begun = True
            yield self._event({"role": "assistant", "content": ""})
        if chunk.text:
            yield self._event({"content": chunk.text})
        if chunk.finish:
            yield self._event({}, chunk.finish)
        if chunk.usage and self._include_usage:
            yield {**self._frame, "choices": [], "usage": encode_usage(chunk.usage)}

    def _event(self, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return {**self._frame, "choices": [choice]}


def encode_usage(usage: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's words."""
    prompt, completion = usage.input or 0, usage.output or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": usage.total if usage.total is not None else prompt + completion,
    }


def encode_error(error: SlipformError) -> dict[str, Any]:
    """An error in OpenAI's shape, so that the official SDKs raise their own types."""
    kind, message = _TYPES.get(error.http_status, "api_error"), str(error)
    if isinstance(error, EnforcementError) and not isinstance(error, RefusalError):
        kind = "structured_output_failed"
        attempts = len(error.report.attempts) if isinstance(error.report, Report) else 1
        plural = "" if attempts == 1 else "s"
        message = f"Failed to produce schema-valid JSON after {attempts} attempt{plural}: {error}"
    content = {"message": message, "type": kind, "param": error.where, "code": error.code}
    return {"error": {**content, "details": error.details} if error.details else content}

"""Describe the SDKs' APIs that `wrap` enforces: where each has its schema, its messages, its text and its usage."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, get_args

from slipform.codecs import BoundCodec, Capabilities, EncodedRequest, ServedApi, ServedRequest, find_api, make_codec
from slipform.enforce import Outcome
from slipform.errors import RequestError
from slipform.ir import Message, ModelRequest, ModelResponse, Usage
from slipform.text.strict import parse

_ENCODED: Final = EncodedRequest("", b"")
_TOOLS: Final = ("tools", "tool_choice")


@dataclass(frozen=True, slots=True)
class WrappedApi:
    """One API of an SDK: the fields with schema and messages, and how its objects are written."""

    serving: ServedApi
    codec: BoundCodec
    dialect: str
    schema_fields: tuple[str, ...]
    messages_field: str
    format_fields: Callable[[Mapping[str, Any], str, Mapping[str, Any]], dict[str, Any]]
    """Return the fields that ask for a schema, from the call's body, the schema's name and the schema."""
    set_text: Callable[[Any, str], None]
    """Set the text of an SDK response."""
    set_calls: Callable[[Any, Any], None]
    """Set the tool calls, and the text beside them, of an SDK response to those of another."""
    set_usage: Callable[[Any, Usage], None]
    """Set the tokens of an SDK usage object."""
    build_event: Callable[[Mapping[str, Any]], Any]
    """Return the SDK's stream event for its data."""

    def requested(self, body: Mapping[str, Any]) -> ModelRequest | None:
        """Return the schema and tools of a call, as a request without messages; None when it has none that we know."""
        named = {name: body[name] for name in (*self.schema_fields, *_TOOLS) if _is_readable(body.get(name))}
        without = {name: value for name, value in named.items() if name not in _TOOLS}
        return self._decoded(body, named) or self._decoded(body, without)

    def _decoded(self, body: Mapping[str, Any], named: Mapping[str, Any]) -> ModelRequest | None:
        if not named:
            return None
        request_body = {"model": str(body.get("model") or "unknown"), self.messages_field: [], **named}
        try:
            return self.serving.decode_request(request_body).request
        except RequestError:  # something of the vendor's that slipform does not know: the vendor will judge it
            return None

    def messages(self, body: Mapping[str, Any]) -> tuple[Message, ...]:
        """Return the conversation of a call; nothing where it holds what slipform does not know."""
        try:
            body_of_turns = {"model": "unknown", self.messages_field: body.get(self.messages_field) or []}
            return tuple(self.serving.decode_request(body_of_turns).request.messages)
        except RequestError:
            return ()

    def read(self, response: Any) -> ModelResponse:
        """Return an SDK response as a `ModelResponse`."""
        return self.codec.decode_response(response.model_dump_json().encode(), _ENCODED)

    def with_messages(self, body: Mapping[str, Any], messages: Sequence[Message]) -> dict[str, Any]:
        """Return the call's body with messages added to its conversation."""
        if not messages:
            return dict(body)
        before = body.get(self.messages_field)
        if isinstance(before, str):
            before = [{"role": "user", "content": before}]
        encoded = parse(self.codec.encode_request(ModelRequest("unknown", tuple(messages)), stream=False).body)
        return {**body, self.messages_field: [*(before or ()), *encoded[self.messages_field]]}

    def with_answer(self, response: Any, outcome: Outcome) -> Any:
        """Return a copy of the SDK response that holds the valid answer and the tokens of all attempts."""
        copy = response.model_copy(deep=True)
        if outcome.response.tool_calls:
            body = self.serving.encode_response(outcome.answer, ServedRequest(ModelRequest("unknown", ())))
            self.set_calls(copy, type(response).construct(**parse(body)))
        else:
            self.set_text(copy, outcome.text)
        if copy.usage is not None and len(outcome.report.attempts) > 1:
            self.set_usage(copy.usage, outcome.report.usage)
        return copy


def _is_readable(value: Any) -> bool:
    """Whether a field has a JSON value: the SDKs have sentinels of their own for omitted ones."""
    return isinstance(value, Mapping | list | tuple | str)


def _set_chat_text(response: Any, text: str) -> None:
    response.choices[0].message.content = text


def _set_responses_text(response: Any, text: str) -> None:
    for item in response.output:
        if item.type == "message":
            _set_text(item.content, "output_text", text)


def _set_messages_text(response: Any, text: str) -> None:
    _set_text(response.content, "text", text)


def _set_chat_calls(response: Any, other: Any) -> None:
    choice = response.choices[0]
    other_choice = other.choices[0]
    choice.finish_reason = other_choice.finish_reason
    choice.message.content = other_choice.message.content
    choice.message.tool_calls = other_choice.message.tool_calls


def _set_responses_calls(response: Any, other: Any) -> None:
    response.output = _replace_items(response.output, other.output, {"message", "function_call"})


def _set_messages_calls(response: Any, other: Any) -> None:
    response.content = _replace_items(response.content, other.content, {"text", "tool_use"})
    response.stop_reason = other.stop_reason


def _replace_items(items: list[Any], others: list[Any], kinds: set[str]) -> list[Any]:
    """Return the items, those of the `kinds` replaced with `others`."""
    return [*(item for item in items if item.type not in kinds), *others]


def _set_text(blocks: list[Any], kind: str, text: str) -> None:
    """Put the whole text into the first text block and remove the others."""
    texts = [block for block in blocks if block.type == kind]
    texts[0].text = text
    blocks[:] = [block for block in blocks if block.type != kind or block is texts[0]]


def _set_chat_usage(usage: Any, tokens: Usage) -> None:
    usage.prompt_tokens = tokens.input or 0
    usage.completion_tokens = tokens.output or 0
    usage.total_tokens = tokens.total or usage.prompt_tokens + usage.completion_tokens


def _set_usage(usage: Any, tokens: Usage) -> None:
    usage.input_tokens = tokens.input or 0
    usage.output_tokens = tokens.output or 0
    if hasattr(usage, "total_tokens"):
        usage.total_tokens = tokens.total or usage.input_tokens + usage.output_tokens


def _chat_format(_body: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    output_format = {"name": name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": output_format}}


def _responses_format(body: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    output_format = {"type": "json_schema", "name": name, "strict": True, "schema": schema}
    return {"text": {**_as_mapping(body.get("text")), "format": output_format}}


def _messages_format(body: Mapping[str, Any], _name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    output_format = {"type": "json_schema", "schema": schema}
    return {"output_config": {**_as_mapping(body.get("output_config")), "format": output_format}}


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _chat_chunk(data: Mapping[str, Any]) -> Any:
    return import_module("openai.types.chat").ChatCompletionChunk.construct(**data)


def _response_event(data: Mapping[str, Any]) -> Any:
    return _event_classes("openai.types.responses", "ResponseStreamEvent")[data["type"]].construct(**data)


def _message_event(data: Mapping[str, Any]) -> Any:
    return _event_classes("anthropic.types", "RawMessageStreamEvent")[data["type"]].construct(**data)


@functools.cache
def _event_classes(module: str, union: str) -> Mapping[str, Any]:
    """Return the classes of an SDK's events by their `type`; like the SDK, callers build them without validation."""
    kinds = get_args(getattr(import_module(module), union))
    kinds = get_args(kinds[0]) or kinds  # an annotated union
    return {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}


APIS: Final[Mapping[str, WrappedApi]] = {
    "/chat/completions": WrappedApi(
        serving=find_api("openai-chat"),
        codec=make_codec("openai-chat", Capabilities()),
        dialect="openai",
        schema_fields=("response_format",),
        messages_field="messages",
        format_fields=_chat_format,
        set_text=_set_chat_text,
        set_calls=_set_chat_calls,
        set_usage=_set_chat_usage,
        build_event=_chat_chunk,
    ),
    "/responses": WrappedApi(
        serving=find_api("openai-responses"),
        codec=make_codec("openai-responses", Capabilities()),
        dialect="openai",
        schema_fields=("text",),
        messages_field="input",
        format_fields=_responses_format,
        set_text=_set_responses_text,
        set_calls=_set_responses_calls,
        set_usage=_set_usage,
        build_event=_response_event,
    ),
    "/v1/messages": WrappedApi(
        serving=find_api("anthropic"),
        codec=make_codec("anthropic", Capabilities()),
        dialect="anthropic",
        schema_fields=("output_config", "output_format"),
        messages_field="messages",
        format_fields=_messages_format,
        set_text=_set_messages_text,
        set_calls=_set_messages_calls,
        set_usage=_set_usage,
        build_event=_message_event,
    ),
}
"""By the path they are posted to."""

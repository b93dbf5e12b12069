"""The SDKs' APIs that `wrap` knows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, get_args

import orjson

from slipform.codecs import Api, BoundCodec, Capabilities, EncodedRequest, ServedRequest, find_api, make_codec
from slipform.enforce import Outcome
from slipform.errors import RequestError
from slipform.ir import Message, ModelRequest, ModelResponse, Usage

_ENCODED: Final = EncodedRequest("", b"")
_TOOLS: Final = ("tools", "tool_choice")


@dataclass(frozen=True, slots=True)
class WrappedApi:
    """One call: `shapes` are the fields that may name a schema, `turns` the one that holds the conversation."""

    serving: Api
    codec: BoundCodec
    dialect: str
    shapes: tuple[str, ...]
    turns: str
    spelled: Callable[[Mapping[str, Any], str, Mapping[str, Any]], dict[str, Any]]
    """The fields that ask for a schema, of the others, its name and itself."""
    write: Callable[[Any, str], None]
    """Put an answer's text into a response of the SDK."""
    call: Callable[[Any, Any], None]
    """Put the tool calls, and the text beside them, of another response into a response of the SDK."""
    spend: Callable[[Any, Usage], None]
    """Put tokens into a usage object of the SDK."""
    event: Callable[[Mapping[str, Any]], Any]
    """An event of the SDK's stream, of its data."""

    def wanted(self, body: Mapping[str, Any]) -> ModelRequest | None:
        """The shapes a call asks for, as a request without turns; None when the SDK itself must read it."""
        named = {name: body[name] for name in (*self.shapes, *_TOOLS) if _is_given(body.get(name))}
        without = {name: value for name, value in named.items() if name not in _TOOLS}
        return self._decoded(body, named) or self._decoded(body, without)

    def _decoded(self, body: Mapping[str, Any], named: Mapping[str, Any]) -> ModelRequest | None:
        if not named:
            return None
        asked = {"model": str(body.get("model") or "unknown"), self.turns: [], **named}
        try:
            return self.serving.decode_request(asked).request
        except RequestError:  # something of the vendor's that slipform does not know: the vendor will judge it
            return None

    def read(self, response: Any) -> ModelResponse:
        """A response of the SDK in no vendor's spelling."""
        return self.codec.decode_response(response.model_dump_json().encode(), _ENCODED)

    def continued(self, body: Mapping[str, Any], said: Sequence[Message]) -> dict[str, Any]:
        """The call with more turns at the end of its conversation."""
        if not said:
            return dict(body)
        turns = body.get(self.turns)
        before = [{"role": "user", "content": turns}] if isinstance(turns, str) else list(turns or ())
        encoded = self.codec.encode_request(ModelRequest("unknown", tuple(said)), stream=False)
        return {**body, self.turns: [*before, *orjson.loads(encoded.body)[self.turns]]}

    def mended(self, response: Any, outcome: Outcome) -> Any:
        """A copy of the SDK's response that holds the valid answer, and the tokens of all that were asked for."""
        copy = response.model_copy(deep=True)
        if outcome.response.tool_calls:
            body = self.serving.encode_response(outcome.answer, ServedRequest(ModelRequest("unknown", ())))
            self.call(copy, type(response).construct(**orjson.loads(body)))
        else:
            self.write(copy, outcome.text)
        if copy.usage is not None and len(outcome.report.attempts) > 1:
            self.spend(copy.usage, outcome.report.usage)
        return copy


def _is_given(value: Any) -> bool:
    """Whether a field has a value that can be read: the SDKs have signs of their own for those left out."""
    return isinstance(value, Mapping | list | tuple | str)


def _write_chat(response: Any, text: str) -> None:
    response.choices[0].message.content = text


def _write_responses(response: Any, text: str) -> None:
    for item in response.output:
        if item.type == "message":
            _one_text(item.content, "output_text", text)


def _write_messages(response: Any, text: str) -> None:
    _one_text(response.content, "text", text)


def _call_chat(response: Any, other: Any) -> None:
    choice, made = response.choices[0], other.choices[0]
    choice.finish_reason = made.finish_reason
    choice.message.content, choice.message.tool_calls = made.message.content, made.message.tool_calls


def _call_responses(response: Any, other: Any) -> None:
    response.output = _replaced(response.output, other.output, {"message", "function_call"})


def _call_messages(response: Any, other: Any) -> None:
    response.content = _replaced(response.content, other.content, {"text", "tool_use"})
    response.stop_reason = other.stop_reason


def _replaced(items: list[Any], others: list[Any], kinds: set[str]) -> list[Any]:
    """The items with those of some kinds taken from elsewhere."""
    return [*(item for item in items if item.type not in kinds), *others]


def _one_text(blocks: list[Any], kind: str, text: str) -> None:
    """Let the first block of text hold it all, and take the others out."""
    texts = [block for block in blocks if block.type == kind]
    texts[0].text = text
    blocks[:] = [block for block in blocks if block.type != kind or block is texts[0]]


def _spend_chat(usage: Any, spent: Usage) -> None:
    usage.prompt_tokens, usage.completion_tokens = spent.input or 0, spent.output or 0
    usage.total_tokens = spent.total or usage.prompt_tokens + usage.completion_tokens


def _spend_named(usage: Any, spent: Usage) -> None:
    usage.input_tokens, usage.output_tokens = spent.input or 0, spent.output or 0
    if hasattr(usage, "total_tokens"):
        usage.total_tokens = spent.total or usage.input_tokens + usage.output_tokens


def _chat_format(_body: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"name": name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def _responses_format(body: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "name": name, "strict": True, "schema": schema}
    return {"text": {**_mapping(body.get("text")), "format": wanted}}


def _messages_format(body: Mapping[str, Any], _name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "schema": schema}
    return {"output_config": {**_mapping(body.get("output_config")), "format": wanted}}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _chat_chunk(data: Mapping[str, Any]) -> Any:
    return import_module("openai.types.chat").ChatCompletionChunk.construct(**data)


def _response_event(data: Mapping[str, Any]) -> Any:
    return _members("openai.types.responses", "ResponseStreamEvent")[data["type"]].construct(**data)


def _message_event(data: Mapping[str, Any]) -> Any:
    return _members("anthropic.types", "RawMessageStreamEvent")[data["type"]].construct(**data)


@functools.cache
def _members(module: str, union: str) -> Mapping[str, Any]:
    """The kinds of an SDK's event, by their `type`. Built as the SDK builds them, which is not strict about fields."""
    kinds = get_args(getattr(import_module(module), union))
    kinds = get_args(kinds[0]) or kinds  # a union with a remark on it
    return {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}


APIS: Final[Mapping[str, WrappedApi]] = {
    "/chat/completions": WrappedApi(
        serving=find_api("openai-chat"),
        codec=make_codec("openai-chat", Capabilities()),
        dialect="openai",
        shapes=("response_format",),
        turns="messages",
        spelled=_chat_format,
        write=_write_chat,
        call=_call_chat,
        spend=_spend_chat,
        event=_chat_chunk,
    ),
    "/responses": WrappedApi(
        serving=find_api("openai-responses"),
        codec=make_codec("openai-responses", Capabilities()),
        dialect="openai",
        shapes=("text",),
        turns="input",
        spelled=_responses_format,
        write=_write_responses,
        call=_call_responses,
        spend=_spend_named,
        event=_response_event,
    ),
    "/v1/messages": WrappedApi(
        serving=find_api("anthropic"),
        codec=make_codec("anthropic", Capabilities()),
        dialect="anthropic",
        shapes=("output_config", "output_format"),
        turns="messages",
        spelled=_messages_format,
        write=_write_messages,
        call=_call_messages,
        spend=_spend_named,
        event=_message_event,
    ),
}
"""By the path they are posted to."""

"""The three calls of the SDKs that `wrap` enforces: where their schema, their turns and their answer stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slipform.codecs.anthropic import AnthropicCodec, AnthropicServing
from slipform.codecs.base import Capabilities, Codec, EncodedRequest
from slipform.codecs.openai_chat import OpenAIChatCodec, OpenAIChatServing
from slipform.codecs.openai_responses import OpenAIResponsesCodec, OpenAIResponsesServing
from slipform.codecs.plan_types import Plan
from slipform.codecs.serving import Serving
from slipform.errors import RequestError
from slipform.ir import ModelRequest, ModelResponse, Usage

_ENCODED: Final = EncodedRequest("", b"", context=Plan())


@dataclass(frozen=True, slots=True)
class Api:
    """One call: `shapes` are the arguments that may name a schema, `turns` the one that holds the conversation."""

    serving: Serving
    codec: Codec
    shapes: tuple[str, ...]
    turns: str
    write: Callable[[Any, str], None]
    """Put an answer's text into a response of the SDK."""
    spend: Callable[[Any, Usage], None]
    """Put tokens into a usage object of the SDK."""

    def wanted(self, given: Mapping[str, Any]) -> ModelRequest | None:
        """The shape a call asks for, as a request without turns; None when the SDK itself must read it."""
        named = {name: given[name] for name in self.shapes if isinstance(given.get(name), Mapping)}
        if not named:
            return None
        body = {"model": str(given.get("model") or "unknown"), self.turns: [], **named}
        try:
            return self.serving.decode_request(body).request
        except RequestError:  # a format of the vendor's that slipform does not know: the vendor will judge it
            return None

    def read(self, response: Any) -> ModelResponse:
        """A response of the SDK in no vendor's spelling."""
        return self.codec.decode_response(response.model_dump_json().encode(), _ENCODED)

    def continued(self, given: Mapping[str, Any], said: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The call with more turns at the end of its conversation."""
        turns = given.get(self.turns)
        before = [{"role": "user", "content": turns}] if isinstance(turns, str) else list(turns or ())
        return {**given, self.turns: [*before, *said]}


def _write_chat(response: Any, text: str) -> None:
    response.choices[0].message.content = text


def _write_responses(response: Any, text: str) -> None:
    for item in response.output:
        if item.type == "message":
            _one_text(item.content, "output_text", text)


def _write_messages(response: Any, text: str) -> None:
    _one_text(response.content, "text", text)


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


APIS: Final[Mapping[str, Api]] = {
    "chat.completions.create": Api(
        OpenAIChatServing(),
        OpenAIChatCodec(Capabilities()),
        ("response_format",),
        "messages",
        _write_chat,
        _spend_chat,
    ),
    "responses.create": Api(
        OpenAIResponsesServing(),
        OpenAIResponsesCodec(Capabilities()),
        ("text",),
        "input",
        _write_responses,
        _spend_named,
    ),
    "messages.create": Api(
        AnthropicServing(),
        AnthropicCodec(Capabilities()),
        ("output_config", "output_format"),
        "messages",
        _write_messages,
        _spend_named,
    ),
}

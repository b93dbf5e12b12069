"""How each vendor spells it."""

from __future__ import annotations

from collections.abc import Callable

from slipform.codecs.anthropic import AnthropicCodec, AnthropicServing
from slipform.codecs.base import Capabilities, Codec, EncodedRequest, StreamDecoder
from slipform.codecs.gemini import GeminiCodec, GeminiServing
from slipform.codecs.openai_chat import OpenAIChatCodec, OpenAIChatServing
from slipform.codecs.openai_responses import OpenAIResponsesCodec, OpenAIResponsesServing
from slipform.codecs.serving import ServedRequest, Serving, StreamEncoder
from slipform.errors import ConfigError

__all__ = [
    "CODECS",
    "SERVINGS",
    "Capabilities",
    "Codec",
    "EncodedRequest",
    "ServedRequest",
    "Serving",
    "StreamDecoder",
    "StreamEncoder",
    "make_codec",
]


def _bedrock(capabilities: Capabilities) -> Codec:
    from slipform.codecs.bedrock import BedrockCodec

    return BedrockCodec(capabilities)


def _cohere(capabilities: Capabilities) -> Codec:
    from slipform.codecs.cohere import CohereCodec

    return CohereCodec(capabilities)


def _ollama(capabilities: Capabilities) -> Codec:
    from slipform.codecs.ollama import OllamaCodec

    return OllamaCodec(capabilities)


CODECS: dict[str, Callable[[Capabilities], Codec]] = {
    "openai-chat": OpenAIChatCodec,
    "openai-responses": OpenAIResponsesCodec,
    "anthropic": AnthropicCodec,
    "gemini": GeminiCodec,
    "bedrock": _bedrock,
    "cohere": _cohere,
    "ollama": _ollama,
}
"""The codecs by name; those that no API is served with are imported when they are first made."""

SERVINGS: dict[str, Callable[[], Serving]] = {
    "openai-chat": OpenAIChatServing,
    "openai-responses": OpenAIResponsesServing,
    "anthropic": AnthropicServing,
    "gemini": GeminiServing,
}
"""The APIs slipform can serve, by name."""


def make_codec(name: str, capabilities: Capabilities) -> Codec:
    """The codec of that name, for a model that can do this.

    >>> make_codec("gemini", Capabilities(native=True)).strategy.value
    'native'
    """
    if name not in CODECS:
        raise ConfigError(f"Unknown codec {name!r}", hint=f"The codecs are: {', '.join(CODECS)}.")
    return CODECS[name](capabilities)

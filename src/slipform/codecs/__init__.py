"""Which codec a name stands for: one registry, loaded late."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias, cast

from slipform.codecs.anthropic import AnthropicCodec, AnthropicServing
from slipform.codecs.codec import (
    Capabilities,
    Codec,
    EncodedRequest,
    ServedRequest,
    Serving,
    StreamDecoder,
    StreamEncoder,
)
from slipform.codecs.gemini import GeminiCodec, GeminiServing
from slipform.codecs.openai_chat import OpenAIChatCodec, OpenAIChatServing
from slipform.codecs.openai_responses import OpenAIResponsesCodec, OpenAIResponsesServing
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


CodecFactory: TypeAlias = Callable[[Capabilities], Codec]
_HOMES: Mapping[str, str] = MappingProxyType(
    {
        "openai-chat": "slipform.codecs.openai_chat:OpenAIChatCodec",
        "openai-responses": "slipform.codecs.openai_responses:OpenAIResponsesCodec",
        "anthropic": "slipform.codecs.anthropic:AnthropicCodec",
        "gemini": "slipform.codecs.gemini:GeminiCodec",
        "bedrock": "slipform.codecs.bedrock:BedrockCodec",
        "cohere": "slipform.codecs.cohere:CohereCodec",
        "ollama": "slipform.codecs.ollama:OllamaCodec",
    }
)
"""Where each codec lives."""


def codec_factory(name: str) -> CodecFactory:
    """What makes codecs of that name: call it with the capabilities of a model."""
    target = _HOMES.get(name)
    if target is None:
        raise ConfigError(f"Unknown codec {name!r}", hint=f"The codecs are: {', '.join(sorted(_HOMES))}.")
    module, _, attribute = target.partition(":")
    return cast("CodecFactory", getattr(importlib.import_module(module), attribute))

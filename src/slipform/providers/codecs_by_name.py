"""Codec names of the catalogue → the classes, imported when first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias, cast

from slipform.codecs.base import Capabilities, Codec
from slipform.errors import ConfigError

CodecFactory: TypeAlias = Callable[[Capabilities], Codec]

CODECS: Mapping[str, str] = MappingProxyType(
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
    target = CODECS.get(name)
    if target is None:
        raise ConfigError(f"Unknown codec {name!r}", hint=f"The codecs are: {', '.join(sorted(CODECS))}.")
    module, _, attribute = target.partition(":")
    return cast("CodecFactory", getattr(importlib.import_module(module), attribute))

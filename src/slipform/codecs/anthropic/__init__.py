"""Anthropic Messages."""

from slipform.codecs.anthropic.codec import AnthropicCodec
from slipform.codecs.anthropic.serve import AnthropicServing

__all__ = ["AnthropicCodec", "AnthropicServing"]

"""OpenAI Chat Completions, and the many servers that speak it."""

from slipform.codecs.openai_chat.codec import OpenAIChatCodec
from slipform.codecs.openai_chat.serve import OpenAIChatServing

__all__ = ["OpenAIChatCodec", "OpenAIChatServing"]

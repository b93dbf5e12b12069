"""OpenAI Responses."""

from slipform.codecs.openai_responses.codec import OpenAIResponsesCodec
from slipform.codecs.openai_responses.serve import OpenAIResponsesServing

__all__ = ["OpenAIResponsesCodec", "OpenAIResponsesServing"]

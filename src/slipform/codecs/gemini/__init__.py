"""Gemini `generateContent`, on Google AI and on Vertex."""

from slipform.codecs.gemini.codec import GeminiCodec
from slipform.codecs.gemini.serve import GeminiServing

__all__ = ["GeminiCodec", "GeminiServing"]

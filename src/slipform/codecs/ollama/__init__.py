"""Define the records of Ollama's API: how it is called, and how slipform serves it."""

from __future__ import annotations

from slipform.codecs.ollama.call import CODEC
from slipform.codecs.ollama.serve import API, GENERATE_API

__all__ = ["API", "CODEC", "GENERATE_API"]

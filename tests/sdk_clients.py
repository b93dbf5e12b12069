"""The official SDKs at one address, for tests that call the proxy as its users do."""

from __future__ import annotations

import anthropic
import ollama
import openai
from google import genai
from google.genai import types as google_types


class SdkClients:
    """One client of each SDK, without retries of their own."""

    def __init__(self, address: str) -> None:
        self.openai = openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0)
        self.anthropic = anthropic.Anthropic(base_url=address, api_key="k", max_retries=0)
        self.google = genai.Client(api_key="k", http_options=google_types.HttpOptions(base_url=address))
        self.ollama = ollama.Client(host=address)

    def close(self) -> None:
        self.openai.close()
        self.anthropic.close()
        self.google.close()
        self.ollama.close()  # type: ignore[no-untyped-call]

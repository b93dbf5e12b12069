"""Which API is served at which path."""

from __future__ import annotations

from slipform.codecs.anthropic import AnthropicServing
from slipform.codecs.gemini import GeminiServing
from slipform.codecs.openai_chat import OpenAIChatServing
from slipform.codecs.openai_responses import OpenAIResponsesServing
from slipform.codecs.serving import Serving

_CHAT: Serving = OpenAIChatServing()
_BY_PATH: dict[str, Serving] = {
    "/v1/chat/completions": _CHAT,
    "/v1/responses": OpenAIResponsesServing(),
    "/v1/messages": AnthropicServing(),
}
_GEMINI: Serving = GeminiServing()
_GEMINI_CALLS = (":generateContent", ":streamGenerateContent")


def api_at(path: str) -> Serving | None:
    """The API that answers at a path, or None.

    >>> api_at("/v1beta/models/local:generateContent").name
    'gemini'
    """
    if path.startswith(("/v1beta/models/", "/v1/models/")) and path.endswith(_GEMINI_CALLS):
        return _GEMINI
    return _BY_PATH.get(path)


def paths() -> str:
    """All paths, for a person who asked for another."""
    return ", ".join([*_BY_PATH, "/v1beta/models/MODEL:generateContent", "/v1/models", "/healthz"])

"""Which API is served at which path, and in whose shape the models are listed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipform.codecs.anthropic import AnthropicServing
from slipform.codecs.gemini import GeminiServing
from slipform.codecs.openai_chat import OpenAIChatServing
from slipform.codecs.openai_responses import OpenAIResponsesServing
from slipform.codecs.serving import Serving
from slipform.server import pages

_CHAT: Serving = OpenAIChatServing()
_ANTHROPIC: Serving = AnthropicServing()
_BY_PATH: dict[str, Serving] = {
    "/v1/chat/completions": _CHAT,
    "/v1/responses": OpenAIResponsesServing(),
    "/v1/messages": _ANTHROPIC,
}
_GEMINI: Serving = GeminiServing()
_GEMINI_CALLS = (":generateContent", ":streamGenerateContent")


@dataclass(frozen=True, slots=True)
class Listing:
    """How one API shows the models: its errors, its list, one of its models."""

    api: Serving
    many: Callable[[Sequence[str], int], dict[str, Any]]
    one: Callable[[str, int], dict[str, Any]]


_OPENAI_LISTING = Listing(_CHAT, pages.model_list, pages.model_entry)
_ANTHROPIC_LISTING = Listing(_ANTHROPIC, pages.anthropic_models, pages.anthropic_model)
_GEMINI_LISTING = Listing(_GEMINI, pages.gemini_models, pages.gemini_model)


def api_at(path: str) -> Serving | None:
    """The API that answers at a path, or None.

    >>> api_at("/v1beta/models/local:generateContent").name
    'gemini'
    """
    found = _BY_PATH.get(path)
    if found is None and path.endswith(_GEMINI_CALLS) and path.startswith(("/v1beta/models/", "/v1/models/")):
        return _GEMINI
    return found


def listing_at(path: str, headers: Mapping[bytes, bytes]) -> Listing | None:
    """Who shows models at a path: one path serves two APIs, told apart by the header their clients send.

    >>> listing_at("/v1/models", {b"anthropic-version": b"2023-06-01"}).api.name
    'anthropic'
    """
    if path == "/v1beta/models" or path.startswith("/v1beta/models/"):
        return _GEMINI_LISTING
    if path == "/v1/models" or path.startswith("/v1/models/"):
        if b"anthropic-version" in headers:
            return _ANTHROPIC_LISTING
        return _GEMINI_LISTING if b"x-goog-api-key" in headers else _OPENAI_LISTING
    return None


def named_model(path: str) -> str:
    """The model that a path of a listing names; empty for the list itself.

    >>> named_model("/v1/models/openai/gpt-6-luna")
    'openai/gpt-6-luna'
    """
    return path.partition("/models")[2].removeprefix("/")


def error_api(path: str, headers: Mapping[bytes, bytes]) -> Serving:
    """In whose shape an error is told where no API was called."""
    if path.startswith("/v1beta/"):
        return _GEMINI
    return _ANTHROPIC if b"anthropic-version" in headers else _CHAT


def route_of(path: str) -> str:
    """A path without the names in it.

    >>> route_of("/v1beta/models/local:generateContent")
    '/v1beta/models/{model}:generateContent'
    """
    if path in _BY_PATH:
        return path
    head, _, rest = path.partition("/models/")
    return f"{head}/models/{{model}}:{rest.rpartition(':')[2]}"


def paths() -> str:
    """All paths, for a person who asked for another."""
    others = "/v1beta/models/MODEL:generateContent", "/v1/models", "/v1beta/models", "/docs", "/metrics"
    return ", ".join([*_BY_PATH, *others, "/healthz", "/readyz", "/version"])

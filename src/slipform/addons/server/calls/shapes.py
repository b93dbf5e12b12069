"""Determine whether the body of a request asks for an answer of a certain shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _chat_shape(data: Mapping[str, Any]) -> bool:
    return _is_shape(data.get("response_format"))


def _responses_shape(data: Mapping[str, Any]) -> bool:
    text = data.get("text")
    return not isinstance(text, Mapping | None) or (text is not None and _is_shape(text.get("format")))


def _messages_shape(data: Mapping[str, Any]) -> bool:
    config = data.get("output_config")
    inner = config.get("format") if isinstance(config, Mapping) else config
    return _is_shape(inner) or _is_shape(data.get("output_format"))


def _gemini_shape(data: Mapping[str, Any]) -> bool:
    config = data.get("generationConfig", data.get("generation_config"))
    if not isinstance(config, Mapping):
        return config is not None
    # The codec interprets every field about the format of the answer.
    return any(name.replace("_", "").lower().startswith("response") for name in config)


def _ollama_shape(data: Mapping[str, Any]) -> bool:
    return data.get("format") not in (None, "")


def _is_shape(response_format: Any) -> bool:
    if type(response_format) is dict:
        return bool(response_format.get("type", "text") != "text")
    return response_format is not None


_ASKS_FOR_SHAPE = {
    "openai-chat": _chat_shape,
    "openai-completions": _chat_shape,
    "ollama": _ollama_shape,
    "ollama-generate": _ollama_shape,
    "openai-responses": _responses_shape,
    "anthropic": _messages_shape,
    "gemini": _gemini_shape,
}
"""Return whether a body in this API asks for a shape; fields of unknown form are left to the codec."""


def asks_for_shape(api: str, data: Mapping[str, Any]) -> bool:
    """Return whether a body in an API asks for a shape.

    >>> asks_for_shape("openai-chat", {"response_format": {"type": "json_object"}})
    True
    """
    return _ASKS_FOR_SHAPE[api](data)

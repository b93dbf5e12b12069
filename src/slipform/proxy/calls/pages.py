"""Health, version, model lists, OpenAPI page."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from slipform import __version__
from slipform.build_info import build_in_use
from slipform.errors import RequestError

LIVE = frozenset({"/healthz", "/health/liveliness", "/health/liveness"})
READY = frozenset({"/readyz", "/health/readiness"})
PAGES = frozenset({*LIVE, *READY, "/version", "/metrics", "/openapi.json", "/docs"})


class NoSuchPageError(RequestError):
    """There is nothing at that path."""

    code = "not_found"
    http_status = 404


class WrongMethodError(RequestError):
    """There is something at that path, but not for that method."""

    code = "method_not_allowed"
    http_status = 405


def health() -> dict[str, Any]:
    """Whether the process lives.

    >>> health()
    {'status': 'ok'}
    """
    return {"status": "ok"}


def readiness(
    waiting_for: str | None, generation: int | None, *, reload_refused: bool = False
) -> tuple[int, dict[str, Any]]:
    """Whether requests should be sent here; for operators, who are given a generation, also why not.

    They are told that the last reload was refused too. Why it was, which names files and settings, is only in the log.

    >>> readiness(None, 2)
    (200, {'status': 'ready', 'config': 2})
    """
    status = 200 if waiting_for is None else 503
    if generation is None:
        return status, {"status": "ready" if waiting_for is None else "not ready"}
    detail: dict[str, Any] = {"status": waiting_for or "ready", "config": generation}
    if reload_refused:
        detail["last_reload"] = "refused: the server's log says why"
    return status, detail


def version(*, detailed: bool = True) -> dict[str, Any]:
    """Which slipform this is, and for operators on what it runs and whether it is compiled."""
    told = {"name": "slipform", "version": __version__}
    return {**told, "python": platform.python_version(), "build": str(build_in_use())} if detailed else told


def model_list(names: Sequence[str], created: int) -> dict[str, Any]:
    """The models by name, as OpenAI's API lists them."""
    return {"object": "list", "data": [model_entry(name, created) for name in names]}


def model_entry(name: str, created: int) -> dict[str, Any]:
    """One model, as OpenAI's API shows it."""
    return {"id": name, "object": "model", "created": created, "owned_by": "slipform"}


def anthropic_models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The models by name, as Anthropic's API lists them: all on one page."""
    entries = [anthropic_model(name, created) for name in names]
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return {"data": entries, "has_more": False, "first_id": first, "last_id": last}


def anthropic_model(name: str, created: int) -> dict[str, Any]:
    """One model, as Anthropic's API shows it."""
    when = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": name, "display_name": name, "created_at": when}


def gemini_models(names: Sequence[str], created: int) -> dict[str, Any]:
    """The models by name, as Gemini's API lists them: all on one page."""
    return {"models": [gemini_model(name, created) for name in names]}


def gemini_model(name: str, created: int) -> dict[str, Any]:
    """One model, as Gemini's API shows it."""
    del created
    return {
        "name": f"models/{name}",
        "baseModelId": name,
        "version": "1",
        "displayName": name,
        "supportedGenerationMethods": ["generateContent", "streamGenerateContent"],
    }

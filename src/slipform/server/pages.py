"""What is answered besides the APIs: health, and the list of models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def health() -> dict[str, Any]:
    """Whether the process lives.

    >>> health()
    {'status': 'ok'}
    """
    return {"status": "ok"}


def model_list(names: Iterable[str], created: int) -> dict[str, Any]:
    """The models by name, as OpenAI's API lists them."""
    entries = [{"id": name, "object": "model", "created": created, "owned_by": "slipform"} for name in names]
    return {"object": "list", "data": entries}

"""What the provider needs of an engine, and the engine that runs in this very process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from slipform.errors import LocalModelError, UpstreamError, UpstreamRequestError
from slipform.providers.local.llama import Chunk, Job, Slots, load_model

Event: TypeAlias = Chunk | BaseException | None
"""What a generation gives: OpenAI-shaped chunks, then None, or the error that ended it."""

Cancel: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is run; `context` is in tokens, for each of the `slots` that decode at the same time."""

    context: int = 4096
    slots: int = 2
    threads: int | None = None
    """None takes one per core, up to four."""


class Engine(Protocol):
    """One loaded model."""

    def start(self, body: Mapping[str, Any], put: Callable[[Event], None]) -> Cancel:
        """Begin an OpenAI-shaped chat; events go to `put`, from another thread. Gives back what stops it."""
        ...

    def warm(self) -> None:
        """Load the model now; raises when it cannot be."""
        ...

    def close(self) -> None:
        """Let go of the model and its memory."""
        ...


class LlamaEngine:
    """A model in this process: the least overhead, and a crash of the engine takes the process along.

    Loads when it is made.
    """

    def __init__(self, weights: Path, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        engine_folder()
        try:
            model = load_model(described(weights, settings))
        except RuntimeError as error:
            raise unloadable(weights, str(error)) from error
        self._slots = Slots(model, settings.slots)

    def start(self, body: Mapping[str, Any], put: Callable[[Event], None]) -> Cancel:
        """Begin a chat."""
        job = Job(body, put)
        self._slots.start(job)
        return job.cancelled.set

    def warm(self) -> None:
        """Nothing is left to load."""

    def close(self) -> None:
        """Let go of the model once what is under way has ended."""
        self._slots.close()


def described(weights: Path, settings: Settings) -> dict[str, Any]:
    """The settings as `llama` reads them, ready to cross to a worker."""
    return {
        "path": str(weights),
        "context": settings.context,
        "slots": settings.slots,
        "threads": settings.threads,
    }


def engine_folder() -> str:
    """The folder that the engine is imported from; raises when it is not installed."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise LocalModelError(
            "The embedded model's engine is not installed", hint="Run `pip install 'slipform[local]'`."
        )
    return str(Path(spec.origin).parent.parent)


def unloadable(weights: Path, reason: str) -> LocalModelError:
    """The error for weights that the engine does not take."""
    return LocalModelError(
        f"The engine could not load the model: {reason}",
        where=str(weights),
        hint="Check that the file is a GGUF model, and that there is memory for it.",
    )


def raise_for_error(chunk: Chunk) -> None:
    """Raise what the engine says in place of a chunk."""
    error = chunk.get("error")
    if error is None:
        return
    message = str(error.get("message", error))
    if error.get("type") == "exceed_context_size_error":
        raise UpstreamRequestError(
            f"The prompt is too long for the embedded model: {message}", hint="Shorten the prompt.", status=400
        )
    if error.get("code") == 400:
        raise UpstreamRequestError(f"The embedded engine refused the request: {message}", status=400)
    raise UpstreamError(f"The embedded engine failed: {message}")

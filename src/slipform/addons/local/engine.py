"""Load models on demand, and define the interface of the engines that run them."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from slipform.addons.local.llama import Chunk, EngineSlots, GenerationJob, load_model
from slipform.addons.local.weights import DEFAULT, KNOWN, pull_with_progress
from slipform.errors import LocalModelError, UnknownModelError, UpstreamError, UpstreamRequestError

GenerationEvent: TypeAlias = Chunk | BaseException | None
"""An event of a generation: a chunk in OpenAI's format, then None, or the error that ended it."""
Cancel: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a model is run; `context` is in tokens, for each slot."""

    context: int = 4096
    slots: int = 2
    short_slots: int = 1
    """Additional slots for short requests, which then do not wait for long ones."""
    threads: int | None = None
    """None means one per core, up to four."""


class InferenceEngine(Protocol):
    """One loaded model."""

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        """Start a chat in OpenAI's format; events go to `put`, from another thread. Returns the function to stop it."""
        ...

    def warm(self) -> None:
        """Load the model now; raises `LocalModelError` when that fails."""

    def close(self) -> None:
        """Unload the model."""


class LlamaEngine:
    """A model in this process, loaded at construction: the least overhead, but a crash ends the process."""

    def __init__(self, weights: Path, settings: EngineSettings | None = None) -> None:
        settings = settings or EngineSettings()
        engine_folder()
        try:
            model = load_model(engine_message(weights, settings))
        except RuntimeError as error:
            raise unloadable(weights, str(error)) from error
        self._slots = EngineSlots(model, settings.slots, settings.short_slots)

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        """Start a generation; see `InferenceEngine.start`."""
        job = GenerationJob(body, put)
        self._slots.start(job)
        return job.cancelled.set

    def warm(self) -> None:
        """Do nothing: the model is loaded."""

    def close(self) -> None:
        """Unload the model once its running generations have ended."""
        self._slots.close()


def engine_message(weights: Path, settings: EngineSettings) -> dict[str, Any]:
    """Return the settings in the form that `llama` and the worker's protocol use."""
    return {
        "path": str(weights),
        "context": settings.context,
        "slots": settings.slots,
        "short_slots": settings.short_slots,
        "threads": settings.threads,
    }


def engine_folder() -> str:
    """Return the folder that the engine is imported from; raises `LocalModelError` when it is not installed."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise LocalModelError(
            "The embedded model's engine is not installed", hint="Run `pip install 'slipform[local]'`."
        )
    return str(Path(spec.origin).parent.parent)


def unloadable(weights: Path, reason: str) -> LocalModelError:
    """Return the error for weights that the engine cannot load."""
    return LocalModelError(
        f"The engine could not load the model: {reason}",
        where=str(weights),
        hint="Check that the file is a GGUF model, and that there is memory for it.",
    )


def raise_for_error(chunk: Chunk) -> None:
    """Raise the error that the engine reports in place of a chunk."""
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


_MAX_LOADED = 2


def is_served(name: str) -> bool:
    """Return whether this is a model that can be downloaded, or the path of a GGUF file.

    >>> is_served("smollm2-135m"), is_served("models/mine.gguf"), is_served("gpt-9")
    (True, True, False)
    """
    return name in KNOWN or name.lower().endswith(".gguf")


def locate(name: str) -> Path:
    """Return the weights of a model by name or path, downloaded if needed; raises `LocalModelError`."""
    if name in KNOWN:
        return pull_with_progress(KNOWN[name])
    if not is_served(name):
        raise UnknownModelError(
            f"Unknown embedded model {name!r}",
            hint=f"The names are: {', '.join(KNOWN)}; or give the path of a GGUF file, as local/PATH.gguf.",
        )
    path = _resolved_path(name)
    if path is None or not path.is_file():
        raise LocalModelError("The model file does not exist", where=name, hint="Give the path of a GGUF file.")
    return path


def _resolved_path(name: str) -> Path | None:
    """Return the canonical path of a file; None when there is none."""
    try:
        return Path(name).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # not a file, too long, an unknown user, a NUL
        return None


class Engines:
    """The loaded models, the last used at the end; the one unused for longest is unloaded for a third.

    A file is loaded once, however its path is spelled.
    """

    def __init__(self, load: Callable[[str], InferenceEngine]) -> None:
        self._load = load
        self._loaded: dict[str, InferenceEngine] = {}
        self._loading: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> InferenceEngine:
        """Return the engine of a model, loaded if needed; downloading one model does not block others."""
        name = name or DEFAULT
        path = None
        if is_served(name) and name not in KNOWN:
            path = _resolved_path(name)
        key = name if path is None else str(path)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            with self._lock:
                engine = self._loaded.get(key)
            engine = engine or self._load(name)
            self._mark_used(key, engine)
            return engine

    def loaded(self) -> dict[str, InferenceEngine]:
        """Return the engines that are loaded, by their model."""
        with self._lock:
            return dict(self._loaded)

    def _mark_used(self, name: str, engine: InferenceEngine) -> None:
        with self._lock:
            self._loaded.pop(name, None)
            self._loaded[name] = engine
            if len(self._loaded) > _MAX_LOADED:
                self._loaded.pop(next(iter(self._loaded))).close()

    def close(self) -> None:
        """Unload all models."""
        with self._lock:
            while self._loaded:
                self._loaded.popitem()[1].close()

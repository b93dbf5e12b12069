"""Model names → weights, and the engines that are loaded for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from slipform.errors import LocalModelError, UnknownModelError
from slipform.providers.local.engine import Engine
from slipform.providers.local.progress import pull_shown
from slipform.providers.local.weights import DEFAULT, KNOWN

_MOST_LOADED = 2


def is_served(name: str) -> bool:
    """Whether this is a model that can be pulled, or the path of a GGUF file.

    >>> is_served("smollm2-135m"), is_served("models/mine.gguf"), is_served("gpt-9")
    (True, True, False)
    """
    return name in KNOWN or name.lower().endswith(".gguf")


def locate(name: str) -> Path:
    """The weights of a model by name or path, fetched if need be."""
    if name in KNOWN:
        return pull_shown(KNOWN[name])
    if not is_served(name):
        raise UnknownModelError(
            f"There is no embedded model named {name!r}",
            hint=f"The names are: {', '.join(KNOWN)}; or give the path of a GGUF file, as local/PATH.gguf.",
        )
    path = _whole_path(name)
    if path is None or not path.is_file():
        raise LocalModelError("There is no such model file", where=name, hint="Give the path of a GGUF file.")
    return path


def _whole_path(name: str) -> Path | None:
    """The path of a file, the same for every spelling of it; None for what no file can be called."""
    try:
        return Path(name).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):  # nothing there, too long, a user nobody knows, a NUL
        return None


class Engines:
    """The loaded models, the one used last at the end; the one unused for longest makes room for a third.

    A file is loaded once, however its path is spelled.
    """

    def __init__(self, load: Callable[[str], Engine]) -> None:
        self._load = load
        self._loaded: dict[str, Engine] = {}
        self._loading: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Engine:
        """The engine of a model, loaded if it is not; fetching one model holds up no other."""
        name = name or DEFAULT
        path = _whole_path(name) if is_served(name) and name not in KNOWN else None
        key = name if path is None else str(path)
        with self._lock:
            loading = self._loading.setdefault(key, threading.Lock())
        with loading:
            with self._lock:
                engine = self._loaded.get(key)
            engine = engine or self._load(name)
            self._keep(key, engine)
            return engine

    def _keep(self, name: str, engine: Engine) -> None:
        with self._lock:
            self._loaded.pop(name, None)
            self._loaded[name] = engine
            if len(self._loaded) > _MOST_LOADED:
                self._loaded.pop(next(iter(self._loaded))).close()

    def close(self) -> None:
        """Close them all."""
        with self._lock:
            while self._loaded:
                self._loaded.popitem()[1].close()

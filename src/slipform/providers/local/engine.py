"""The embedded engine: llama.cpp in this process, behind three calls."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from slipform.errors import LocalModelError, UpstreamError, UpstreamRequestError

Chunk = Mapping[str, Any]


class Engine(Protocol):
    """What the provider needs of an engine: OpenAI-shaped chat, whole or piece by piece."""

    def chat(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a chat request."""
        ...

    def chat_stream(self, body: Mapping[str, Any], on_chunk: Callable[[Chunk], bool]) -> None:
        """Answer piece by piece; `on_chunk` returns True to stop."""
        ...


class LlamaEngine:
    """One model, loaded once, answering several requests at a time."""

    def __init__(self, weights: Path, *, context: int = 8192, slots: int = 2, threads: int | None = None) -> None:
        # llama.cpp's barriers spin; with busy cores a spinning thread stops all others. Read when libgomp loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            import xllamacpp
        except ImportError:
            raise LocalModelError(
                "The embedded model's engine is not installed", hint="Run `pip install 'slipform[local]'`."
            ) from None
        params = xllamacpp.CommonParams()
        params.model.path = str(weights)
        params.n_ctx = context
        params.n_parallel = slots
        params.kv_unified = True
        params.warmup = False
        params.verbosity = 0
        params.ui = False
        # The engine opens an HTTP port on loopback whether asked or not: lock it.
        params.api_keys = [secrets.token_urlsafe(32)]
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or min(4, os.cpu_count() or 1)
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise LocalModelError(
                f"The engine could not load the model: {error}",
                where=str(weights),
                hint="Check that the file is a GGUF model, and that there is memory for it.",
            ) from error
        self._free = threading.BoundedSemaphore(slots)

    def chat(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer a chat request."""
        with self._free:
            answer: Mapping[str, Any] = self._server.handle_chat_completions(dict(body))
        _raise_for(answer)
        return answer

    def chat_stream(self, body: Mapping[str, Any], on_chunk: Callable[[Chunk], bool]) -> None:
        """Answer piece by piece; `on_chunk` returns True to stop."""
        failed: list[BaseException] = []

        def forward(chunk: Chunk) -> bool:
            # The engine swallows what a callback raises; carry it over by hand.
            try:
                _raise_for(chunk)
                return on_chunk(chunk)
            except BaseException as error:  # noqa: BLE001
                failed.append(error)
                return True

        with self._free:
            self._server.handle_chat_completions({**body, "stream": True}, forward)
        if failed:
            raise failed[0]


def _raise_for(answer: Mapping[str, Any]) -> None:
    error = answer.get("error")
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

"""Models of Hugging Face's transformers as a provider, for those who have torch already.

Everything but the engine is the embedded model's: constraints, bounds, prompts, tools, streaming. The embedded engine
is several times faster on a CPU; this one runs what has no GGUF file, and on whatever torch runs on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from typing import Any

from slipform.codecs.base import Capabilities
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.guard import Guard
from slipform.providers.local.call import HookFactory
from slipform.providers.local.engine import Cancel, Engine, Event, Settings
from slipform.providers.local.llama import Job, Slots
from slipform.providers.local.provider import LocalProvider
from slipform.providers.transformers_model import TransformersModel


class TransformersEngine:
    """A model of transformers in this process; loads when it is made, and answers one request at a time, in turn."""

    def __init__(self, name: str, settings: Settings | None = None, *, fetch: bool = True) -> None:
        self._slots = Slots(TransformersModel(name, settings.context if settings else None, fetch=fetch), 1)

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


class TransformersProvider:
    """Answers with any causal language model that transformers loads: `transformers/NAME_OR_PATH`.

    >>> TransformersProvider().serves("HuggingFaceTB/SmolLM2-135M-Instruct")
    True
    """

    name = "transformers"

    def __init__(
        self,
        load: Callable[[str], Engine] | None = None,
        *,
        settings: Settings | None = None,
        options: Guard | None = None,
        stop_hook: HookFactory | None = None,
        models: Collection[str] | None = None,
    ) -> None:
        """`models` are the only ones it serves, and none of them is fetched; None serves any, fetched if need be."""
        self._given = (load, settings, options, stop_hook)
        self._models = models
        self._local = LocalProvider(
            load or (lambda name: TransformersEngine(name, settings, fetch=models is None)),
            options=options,
            stop_hook=stop_hook,
        )

    def for_callers(self, models: Collection[str]) -> TransformersProvider:
        """The same for callers from outside: these models, and no path or download of the callers' choice."""
        load, settings, options, stop_hook = self._given
        return TransformersProvider(load, settings=settings, options=options, stop_hook=stop_hook, models=models)

    def capabilities(self, model: str) -> Capabilities:
        """Native output for every schema, as with the embedded model."""
        return self._local.capabilities(model)

    def models(self) -> list[str]:
        """None by name; see `serves`."""
        return []

    def serves(self, model: str) -> bool:
        """Any name, unless it is held to some: whether there is such a model shows when it is loaded."""
        return bool(model) if self._models is None else model in self._models

    def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, blocking."""
        return self._local.complete(request)

    def stream(self, request: ModelRequest) -> Iterator[CompletionChunk]:
        """Answer piece by piece; closing the iterator stops the model within a token."""
        return self._local.stream(request)

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        """Answer, without blocking the event loop."""
        return await self._local.complete_async(request)

    def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        """Answer piece by piece, without blocking the event loop."""
        return self._local.stream_async(request)

    def close(self) -> None:
        """Let go of the models and their memory."""
        self._local.close()

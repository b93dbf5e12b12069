"""A proxy with scripted models for the console's browser tests and pictures, and what their drivers ask of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from slipform.addons.server import App
from slipform.addons.server.observability.call_record import CallRecord
from slipform.config import Settings
from slipform.engine.setup import options_of
from slipform.ir import CompletionChunk, ModelRequest, ModelResponse, Usage
from slipform.library.async_client import AsyncClient
from slipform.providers.base import Provider
from slipform.providers.router import Router
from slipform.testing import FakeModel

PERSON_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


class SteppedModel(FakeModel):
    """A model that writes a piece only when it is told to, so that a test can look in between."""

    def __init__(self, script: Sequence[str]) -> None:
        super().__init__(script)
        self._may_write = asyncio.Semaphore(0)
        self.writing = 0
        """Streams that somebody still reads."""

    def allow(self, pieces: int) -> None:
        """Let it write so many."""
        for _ in range(pieces):
            self._may_write.release()

    def forbid(self) -> None:
        """Let it write nothing that it was allowed before."""
        self._may_write = asyncio.Semaphore(0)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        self.writing += 1
        try:
            for chunk in self.stream(request):
                await self._may_write.acquire()
                yield chunk
        finally:
            self.writing -= 1


def _counted(text: str) -> ModelResponse:
    return ModelResponse(text=text, usage=Usage(181, len(text) // 4))


class PacedModel(FakeModel):
    """A model that takes its time, for pictures."""

    def __init__(
        self, script: Sequence[str] | Callable[[ModelRequest], str], first: float = 0.15, pause: float = 0.012
    ) -> None:
        if callable(script):
            super().__init__(lambda request: _counted(script(request)))
        else:
            super().__init__([_counted(text) for text in script])
        self._first, self._pause = first, pause

    async def complete_async(self, request: ModelRequest) -> ModelResponse:
        await asyncio.sleep(self._first)
        return self.complete(request)

    async def stream_async(self, request: ModelRequest) -> AsyncIterator[CompletionChunk]:
        await asyncio.sleep(self._first)
        for chunk in self.stream(request):
            await asyncio.sleep(self._pause)
            yield chunk


def app_of(
    models: dict[str, FakeModel],
    server: dict[str, Any] | None = None,
    default: str = "",
    vendors: Mapping[str, Provider] = MappingProxyType({}),
    lists: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> App:
    """An application over these models and vendors, each also under `fake/NAME`, and lists of them by name."""
    for name, model in models.items():
        model.name = name
    names = {f"fake/{name}": f"{name}/m" for name in (*models, *vendors)}
    first = default or next(iter(names))
    settings = Settings.model_validate(
        {"default_model": first, "model_aliases": names, "server": {"traces": "on", **(server or {})}}
    )
    router = Router({**models, **vendors}, aliases={**names, **lists}, default=names.get(first, first))
    return App(AsyncClient(router=router, options=options_of(settings)), settings)


class Beside:
    """The application, and beside it what the driver asks: how often models were called, old calls, one more piece."""

    def __init__(self, app: App, models: dict[str, FakeModel]) -> None:
        self._app = app
        self._models = models

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if not path.startswith("/test/"):
            await self._app(scope, receive, send)
            return
        query = {key: values[0] for key, values in parse_qs(scope.get("query_string", b"").decode()).items()}
        body = json.dumps(getattr(self, path.removeprefix("/test/"))(**query))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})

    def count(self) -> int:
        """How often models were asked."""
        return sum(len(model.requests) for model in self._models.values())

    def step(self, model: str, n: str = "1") -> int:
        """Let a stepped model write so many pieces; gives how many of its streams are still read."""
        stepped = self._models[model]
        assert isinstance(stepped, SteppedModel)
        stepped.allow(int(n))
        return stepped.writing

    def reset(self) -> int:
        """Let stepped models write nothing more than they are told to from now on."""
        stepped = [model for model in self._models.values() if isinstance(model, SteppedModel)]
        for model in stepped:
            model.forbid()
        return len(stepped)

    def writing(self, model: str) -> int:
        """How many streams of a stepped model are still read."""
        stepped = self._models[model]
        assert isinstance(stepped, SteppedModel)
        return stepped.writing

    def fill(self, n: str = "10000") -> str:
        """So many calls, older than all others; gives the oldest's id."""
        history, oldest = self._app.console.history, ""
        history.clear()
        for number in range(int(n)):
            record = CallRecord(f"old-{number}", api="openai-chat", model="old", schema="order", enforced=True)
            record.started -= 20_000 - number
            entry = history.begin(record)
            history.end(entry, record)
            oldest = oldest or entry
        return oldest

    def arrive(self, n: str = "20") -> int:
        """So many calls that come and end now, one after the other."""
        history = self._app.console.history
        for _ in range(int(n)):
            record = CallRecord("new", api="openai-chat", model="fake/new", schema="order", enforced=True)
            entry = history.begin(record)
            history.announce(entry, record, b"")
            record.close()
            history.end(entry, record)
        return int(n)

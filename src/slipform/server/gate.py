"""All that stands between a call and the models: who may, how often, answers kept from before, other models."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator

from slipform.client import AsyncClient
from slipform.config import Settings
from slipform.providers.http import HttpProvider
from slipform.providers.lessons import MemoryLessons
from slipform.providers.transport import Begun
from slipform.server.answers import answer
from slipform.server.cache import AnswerCache
from slipform.server.cors import Cors
from slipform.server.fallback import answer_first
from slipform.server.guard import Admission, Guard
from slipform.server.inbound import Inbound
from slipform.server.outgoing import Outgoing
from slipform.server.passthrough import Ways
from slipform.server.shared import LessonExchange, Shared
from slipform.server.straight import Straights, go_straight


class Gate:
    """The guard, the cache and what is shared through Redis, for one configuration.

    >>> Gate(AsyncClient(), Settings()).guard.in_flight
    0
    """

    def __init__(self, client: AsyncClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._shared = Shared(settings.redis) if settings.redis is not None else None
        self.guard = Guard(settings, self._shared)
        self.cors = Cors(settings.server.cors_origins) if settings.server.cors_origins else None
        self.ways = Ways(client.router, settings)
        self.straights = Straights(client, settings, self.ways)
        self._cache = AnswerCache(settings, client, self._shared) if settings.cache.enabled else None

    def start(self) -> None:
        """Begin, on the event loop, to hear from other machines; the first call does it at the latest."""
        if self._shared is not None and not self._shared.started:
            lessons = LessonExchange(self._shared, functools.partial(_stores, self._client))
            self._shared.start(self.guard.refresh, lessons.refresh)

    async def close(self) -> None:
        """Let go of Redis."""
        if self._cache is not None:
            await self._cache.close()
        if self._shared is not None:
            await self._shared.close()

    async def answer(self, call: Inbound, admission: Admission, send: Outgoing) -> None:
        """Write the whole response; see `answers.answer`."""
        if self._shared is not None:
            self.start()
        if admission.headers:
            send.extra = [*send.extra, *admission.headers]
        router = self._client.router
        begun: Begun | None = None
        try:
            if call.forwarding is not None:  # to one model, and not kept
                await answer(call, self._client, self._settings, send)
                return
            if call.straight is not None:
                begun = await go_straight(call.straight, call.record, send)
                if begun is None:
                    return
                call = call.restored(begun)
            models = router.candidates(call.models[0] if len(call.models) == 1 else call.models)
            work = functools.partial(answer_first, call, models, self._client, self._settings, send)
            if self._cache is None:
                await work()
            else:
                control = admission.request_headers.get(b"cache-control", b"")
                await self._cache.answer(call, models, admission.caller.id, control, work, send)
        except asyncio.CancelledError:
            if admission.expired is not None and call.record.stream and call.record.status:
                # Too late for a status: the stream that had begun ends with the API's error event.
                told = call.api.encode_stream(call.served).fail(admission.expired)
                await send({"type": "http.response.body", "body": told})
            raise
        finally:
            if begun is not None:
                await begun.stream.close()


def _stores(client: AsyncClient) -> Iterator[MemoryLessons]:
    for provider in client.router.providers.values():
        if isinstance(provider, HttpProvider) and isinstance(provider.lessons, MemoryLessons):
            yield provider.lessons

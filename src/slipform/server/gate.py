"""All that stands between a call and the models: who may, how often, answers kept from before, other models."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from slipform.client import AsyncClient
from slipform.config import Settings
from slipform.providers.http import HttpProvider
from slipform.providers.lessons import MemoryLessons
from slipform.providers.network.transport import Begun
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

_log = logging.getLogger("slipform.server")
_REFRESH_SECONDS = 1.0
_RECANCEL_SECONDS = 0.1


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
        self._refreshing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the event loop, to watch the key file and other machines; the first call does it at the latest."""
        if self._refreshing is not None or not (self.guard.wants_keys or self._shared):
            return
        self.guard.start()
        jobs = [self.guard.refresh]
        if self._shared is not None:
            jobs.append(LessonExchange(self._shared, functools.partial(_stores, self._client)).refresh)
        self._refreshing = asyncio.create_task(_refresh(jobs))

    async def close(self) -> None:
        """Let go of Redis and of the key file."""
        while self._refreshing is not None and not self._refreshing.done():
            # More than once, because a Redis client that is just connecting can lose it.
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing], timeout=_RECANCEL_SECONDS)
        self.guard.close()
        if self._cache is not None:
            await self._cache.close()
        if self._shared is not None:
            await self._shared.close()

    async def answer(self, call: Inbound, admission: Admission, send: Outgoing) -> None:
        """Write the whole response; see `answers.answer`."""
        if self._refreshing is None:
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


async def _refresh(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    while True:
        for job in jobs:
            try:
                await job()
            except Exception:  # noqa: BLE001 — the next round may do better, and the proxy serves without it
                _log.exception("the keys, or what is shared through Redis, could not be refreshed")
        await asyncio.sleep(_REFRESH_SECONDS)


def _stores(client: AsyncClient) -> Iterator[MemoryLessons]:
    for provider in client.router.providers.values():
        if isinstance(provider, HttpProvider) and isinstance(provider.lessons, MemoryLessons):
            yield provider.lessons

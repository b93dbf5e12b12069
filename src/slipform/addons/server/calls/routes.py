"""Choose the API of a call, and answer it with the models that its configuration allows."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from slipform.addons.server.admission.admission import Admission, AdmissionControl, Caller
from slipform.addons.server.admission.ledger import SpendLedger
from slipform.addons.server.admission.shared_state import SharedDowngrades, SharedState
from slipform.addons.server.admission.spending import CallSpending, Spending, ledger_path
from slipform.addons.server.calls import pages
from slipform.addons.server.calls.cache import AnswerCache
from slipform.addons.server.calls.choices import requested_answers
from slipform.addons.server.calls.endpoint_calls import EndpointForwarder
from slipform.addons.server.calls.endpoints import Located, family_of
from slipform.addons.server.calls.enforced import answer, answer_bound, forward
from slipform.addons.server.calls.fetched_media import MediaFetcher
from slipform.addons.server.calls.forward import ForwardRoutes
from slipform.addons.server.calls.frames import BoundCall, KnownBodies, new_frames
from slipform.addons.server.calls.inbound import CallContext, Inbound, NamedSchemas
from slipform.addons.server.calls.replaced_ids import ReplacedIds
from slipform.addons.server.calls.resources import ResourceStore
from slipform.addons.server.calls.signature_stores import find_store
from slipform.addons.server.calls.signed_turns import CallerTurns, SignedTurns
from slipform.addons.server.calls.stored_responses import ResponseStore
from slipform.addons.server.calls.vendor_models import VendorModels
from slipform.addons.server.http_server.asgi import Cors, RecordingSend
from slipform.codecs import ServedApi, ServedRequest, find_api
from slipform.config import Settings
from slipform.engine.planning import find_route, named_price
from slipform.engine.setup import Options
from slipform.errors import SlipformError
from slipform.providers.http import HttpProvider
from slipform.providers.retry import MemoryDowngrades
from slipform.providers.router import Router

if TYPE_CHECKING:
    from slipform.addons.server.calls.call import Call

_CHAT = find_api("openai-chat")
_ANTHROPIC = find_api("anthropic")
_GEMINI = find_api("gemini")
_OLLAMA = find_api("ollama")
BY_PATH = {"/v1/chat/completions": _CHAT, "/v1/responses": find_api("openai-responses"), "/v1/messages": _ANTHROPIC}
"""The APIs with constant paths."""
_GEMINI_CALLS = (":generateContent", ":streamGenerateContent")


@dataclass(frozen=True, slots=True)
class Listing:
    """The format in which one API shows models: its errors, its list, one of its models."""

    api: ServedApi
    many: Callable[[Sequence[str], int], dict[str, Any]]
    one: Callable[[str, int], dict[str, Any]]


_OPENAI_LISTING = Listing(_CHAT, pages.model_list, pages.model_entry)
_ANTHROPIC_LISTING = Listing(_ANTHROPIC, pages.anthropic_models, pages.anthropic_model)
OLLAMA_LISTING = Listing(_OLLAMA, pages.ollama_models, pages.ollama_model)
_GEMINI_LISTING = Listing(_GEMINI, pages.gemini_models, pages.gemini_model)


def api_at(path: str) -> ServedApi | None:
    """Return the API of a path; None where no API has it.

    >>> api_at("/v1beta/models/local:generateContent").name
    'gemini'
    """
    api = BY_PATH.get(path)
    if api is None and path.endswith(_GEMINI_CALLS) and path.startswith(("/v1beta/models/", "/v1/models/")):
        return _GEMINI
    return api


def listing_at(path: str, headers: Mapping[bytes, bytes]) -> Listing | None:
    """Return the format of the models at a path: three APIs share one, and clients differ in their headers.

    >>> listing_at("/v1/models", {b"anthropic-version": b"2023-06-01"}).api.name
    'anthropic'
    """
    if path == "/v1beta/models" or path.startswith("/v1beta/models/"):
        return _GEMINI_LISTING
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return {"anthropic": _ANTHROPIC_LISTING, "gemini": _GEMINI_LISTING}.get(family_of(headers), _OPENAI_LISTING)
    return None


def named_model(path: str) -> str:
    """Return the model in the path of a listing; empty for the list itself.

    >>> named_model("/v1/models/openai/gpt-6-luna")
    'openai/gpt-6-luna'
    """
    return path.partition("/models")[2].removeprefix("/")


def error_api(path: str, headers: Mapping[bytes, bytes], located: Located | None = None) -> ServedApi:
    """Return the API whose error shape is used where no API was called."""
    family = family_of(headers) if located is None else located.row.family
    if path.startswith("/v1beta/") or family == "gemini":
        return _GEMINI
    if path.startswith("/api/") or family == "ollama":
        return _OLLAMA
    return _ANTHROPIC if family == "anthropic" else _CHAT


def route_of(path: str) -> str:
    """Return a path without the names in it.

    >>> route_of("/v1beta/models/local:generateContent")
    '/v1beta/models/{model}:generateContent'
    """
    if path in BY_PATH:
        return path
    head, _, rest = path.partition("/models/")
    return f"{head}/models/{{model}}:{rest.rpartition(':')[2]}"


def paths() -> str:
    """Return all paths, for the error about an unknown one."""
    others = (
        "/v1beta/models/MODEL:generateContent",
        "/v1/models",
        "/v1beta/models",
        "/openapi.json",
        "/docs",
        "/metrics",
    )
    return ", ".join([*BY_PATH, *others, "/healthz", "/readyz", "/version"])


_log = logging.getLogger("slipform.server")
_REFRESH_SECONDS = 1.0
_RECANCEL_SECONDS = 0.1


class CallRouter:
    """The admission, cache and shared state of one configuration, and the entry point for its calls.

    >>> CallRouter(Router({}), Options(), Settings()).guard.in_flight
    0
    """

    def __init__(self, router: Router, options: Options, settings: Settings) -> None:
        self.router = router
        self._options = dataclasses.replace(options, on_incomplete=settings.enforcement.on_incomplete)
        self._traced_options = dataclasses.replace(self._options, keep_text=True)
        self.settings = settings
        self._shared = SharedState(settings.redis) if settings.redis is not None else None
        self.guard = AdmissionControl(settings, self._shared)
        self.cors = Cors(settings.server.cors_origins) if settings.server.cors_origins else None
        self.forward_routes = ForwardRoutes(router, options.prices)
        self._fetcher = MediaFetcher(settings.fetch) if settings.fetch.enabled else None
        self._vendor_models = VendorModels(router) if settings.server.vendor_models else None
        self.schemas = NamedSchemas(settings)
        self.frames = new_frames()
        self.known_bodies = KnownBodies()
        path = ledger_path(settings, os.environ)
        ledger = None if path is None else SpendLedger(path, settings.ledger.keep_days)
        self.spending: Spending | None = None
        if ledger is not None:
            price_of = partial(named_price, options.prices, router)
            self.spending = Spending(price_of, ledger, settings, self._shared)
        # Without keys, callers cannot be distinguished.
        self.store = ResourceStore(ledger) if ledger is not None and settings.server.keys_file is not None else None
        self.endpoints = EndpointForwarder(
            router, settings, self.store, options, self._replaced_ids, self._stored_responses
        )
        self._cache = AnswerCache(settings, router, options, self._shared) if settings.cache.enabled else None
        self.turns = SignedTurns(find_store(settings.signatures, self._shared, None))
        self._responses = find_store(settings.stored_responses, self._shared, None, "responses")
        self._refreshing: asyncio.Task[None] | None = None
        self._is_started = False
        """Whether the background tasks are running."""

    def _replaced_ids(self, caller: str) -> ReplacedIds:
        return self.turns.replaced_ids(caller)

    def _stored_responses(self, caller: str) -> ResponseStore | None:
        settings = self.settings.stored_responses
        if not settings.enabled:
            return None
        return ResponseStore(self._responses, caller, settings.ttl_seconds, self.settings.server.max_body_bytes)

    async def model_names(self, caller: Caller) -> list[str]:
        """Return the models that a caller may use: aliases first, then those of configuration and of vendors."""
        router = self.router
        names = [*router.names(), *([] if self._vendor_models is None else await self._vendor_models.names())]
        return [name for name in dict.fromkeys(names) if caller.may_use(name, router)]

    async def answer_endpoint(self, call: Call, admission: Admission) -> None:
        """Write the whole response to a call of the endpoint table; see `endpoint_calls`."""
        if not self._is_started:
            self.start()
        if admission.headers:
            call.out.extra = [*call.out.extra, *admission.headers]
        await self.endpoints.answer(call, self.spending)

    def bind(self, served: ServedRequest, models: tuple[str, ...]) -> BoundCall | None:
        """Bind calls that differ only in their conversation to one model; None where each needs further decisions."""
        request = served.request
        if served.stream or self._cache is not None or self.spending is not None or self._fetcher is not None:
            return None
        try:
            targets = self.router.targets(models[0] if len(models) == 1 else models)
            route = find_route(self.router, targets[0].model, request.frame)
            several = requested_answers(request).number > 1
        except SlipformError:
            return None  # reading the call raises the same error
        is_special = len(targets) > 1 or bool(targets[0].defaults) or self.router.has_defaults(request.model)
        if is_special or several or route.name != request.model or not isinstance(route.provider, HttpProvider):
            return None
        return BoundCall(route, route.awaited, request, self._options.budget.calls)

    def context(
        self, path: str, headers: Mapping[bytes, bytes], caller: Caller, located: Located | None
    ) -> CallContext:
        """Return the context for reading a call at this path."""
        provider = headers.get(b"x-slipform-provider")
        named = None if provider is None else provider.decode("latin-1")
        turns = CallerTurns(self.turns, caller.id)
        responses = self._stored_responses(caller.id)
        if located is None:
            return CallContext(path, headers, caller, self, turns, responses, provider=named)
        return CallContext(
            located.path, headers, caller, self, turns, responses, located.model, named or located.provider
        )

    def share(self, folder: Path) -> None:
        """Store signatures and responses in a folder that the other workers of this server share."""
        self.turns = SignedTurns(find_store(self.settings.signatures, self._shared, folder))
        self._responses = find_store(self.settings.stored_responses, self._shared, folder, "responses")

    def continue_from(self, before: CallRouter) -> None:
        """Take over the signatures and responses of the previous generation, unless their settings have changed."""
        if self._shared is not None or before._shared is not None:
            return
        if self.settings.signatures == before.settings.signatures:
            self.turns = before.turns
        if self.settings.stored_responses == before.settings.stored_responses:
            self._responses = before._responses

    def start(self) -> None:
        """Start watching the key file and other machines, on the event loop; the first call starts it at the latest."""
        self._is_started = True
        if self._refreshing is not None or not (self.guard.requires_key or self._shared or self.spending):
            return
        self.guard.start()
        jobs = [self.guard.refresh]
        if self.spending is not None:
            jobs.append(self.spending.refresh)
        if self._shared is not None:
            jobs.append(SharedDowngrades(self._shared, partial(_downgrade_stores, self.router)).refresh)
        self._refreshing = asyncio.create_task(_refresh(jobs))

    async def close(self) -> None:
        """Stop the background tasks, and close the cache, the ledger and Redis."""
        while self._refreshing is not None and not self._refreshing.done():
            # More than once, because a Redis client that is just connecting can lose it.
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing], timeout=_RECANCEL_SECONDS)
        self.guard.close()
        if self._fetcher is not None:
            self._fetcher.close()
        if self._cache is not None:
            await self._cache.close()
        if self.spending is not None:
            await self.spending.close()
        if self._shared is not None:
            await self._shared.close()

    def answer(self, call: Inbound, admission: Admission, send: RecordingSend) -> Coroutine[Any, Any, None]:
        """Write the whole response: directly where nothing is left to decide, else by the general path."""
        if not self._is_started:
            self.start()
        is_forwarded = call.forwarded is not None and not call.served.stream and self.spending is None
        if is_forwarded or call.bound is not None:
            if admission.headers:
                send.extra = [*send.extra, *admission.headers]
            options = self._options if call.record.trace is None else self._traced_options
            if call.bound is not None:
                return answer_bound(call, call.bound, options, send)
            if call.forwarded is not None:
                return forward(call, call.forwarded, options, send)
        return self._answer_general(call, admission, send)

    async def _answer_general(self, call: Inbound, admission: Admission, send: RecordingSend) -> None:
        if admission.headers:
            send.extra = [*send.extra, *admission.headers]
        spending = None
        failure = None
        if self.spending is not None:
            spending = CallSpending(self.spending, admission.caller, call.record)
        try:
            await self._answer(call, admission, spending, send)
        except SlipformError as error:
            failure = error
            raise
        except asyncio.CancelledError:
            if admission.expired is not None and call.record.stream and call.record.status:
                # The status has been sent: end the stream with the API's error event.
                error_event = call.api.encode_stream(call.served).fail(admission.expired)
                await send({"type": "http.response.body", "body": error_event})
            raise
        finally:
            if spending is not None:
                spending.finish(failure)

    async def _answer(
        self, call: Inbound, admission: Admission, spending: CallSpending | None, send: RecordingSend
    ) -> None:
        options = self._options if call.record.trace is None else self._traced_options
        if call.forwarded is not None:  # to one model, and not cached
            await forward(call, call.forwarded, options, send, spending)
            return
        models = call.models[0] if len(call.models) == 1 else call.models
        if self._fetcher is not None:
            call = await self._with_media(call, self._fetcher, models)
        if spending is not None and admission.caller.budget is not None:
            spending.check_prices([self.router.full_name(each) for each in self.router.candidates(models)])
        if self._cache is None:
            await answer(call, models, self.router, options, send, spending)
            return
        work = partial(answer, call, models, self.router, options, send, spending)
        control = admission.request_headers.get(b"cache-control", b"")
        await self._cache.answer(call, self.router.candidates(models), admission.caller.id, control, work, send)

    async def _with_media(self, call: Inbound, fetcher: MediaFetcher, models: str | Sequence[str]) -> Inbound:
        """Return the call with downloaded media, where one of its vendors does not accept URLs."""
        providers = [self.router.resolve(name)[0] for name in self.router.candidates(models)]
        codecs = {provider.api for provider in providers if isinstance(provider, HttpProvider)}
        request = await fetcher.inlined(call.served.request, codecs)
        if request is call.served.request:
            return call
        return msgspec.structs.replace(call, served=msgspec.structs.replace(call.served, request=request))


async def _refresh(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    while True:
        for job in jobs:
            try:
                await job()
            except Exception:  # noqa: BLE001 — the next round may do better, and the proxy serves without it
                _log.exception("keys: refresh failed, for the key file or for what is shared through Redis")
        await asyncio.sleep(_REFRESH_SECONDS)


def _downgrade_stores(router: Router) -> Iterator[MemoryDowngrades]:
    for provider in router.providers.values():
        if isinstance(provider, HttpProvider) and isinstance(provider.downgrades, MemoryDowngrades):
            yield provider.downgrades

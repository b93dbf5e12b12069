"""List the models of configured vendors, refreshed periodically, for clients that offer a choice."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from slipform.codecs.answer import read_json
from slipform.codecs.model_name import check_name
from slipform.errors import RequestError, SlipformError
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider
from slipform.providers.router import Router

_log = logging.getLogger("slipform.server")
_PATHS: Final = {
    "openai-chat": "/models",
    "openai-responses": "/models",
    "anthropic": "/v1/models?limit=1000",
    "gemini": "/models?pageSize=1000",
    "ollama": "/api/tags",
    "cohere": "/v1/models?endpoint=chat&page_size=1000",
}
"""The paths at which vendors list their models, by codec; other vendors list none that a key can call."""
_OTHER_NAMES: Final = ("azure.com", "aiplatform.googleapis.com")
"""Parts of URLs whose lists have other names than requests do: deployments, publishers."""
_LASTS_SECONDS: Final = 600.0
_FAILED_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 5.0
_MOST_BYTES: Final = 4_000_000
_MOST_MODELS: Final = 2_000


class _Listed(NamedTuple):
    models: tuple[str, ...]
    until: float


class VendorModels:
    """The names of the models of a router's vendors.

    >>> asyncio.run(VendorModels(Router({})).names())
    []
    """

    def __init__(self, router: Router, clock: Callable[[], float] = time.monotonic) -> None:
        self._router = router
        self._clock = clock
        self._listed: dict[str, _Listed] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def names(self) -> list[str]:
        """Return the models as `provider/model`, without those of vendors that do not answer in time."""
        providers = {
            name: provider
            for name, provider in self._router.providers.items()
            if isinstance(provider, HttpProvider) and not provider.models() and _has_list(provider)
        }
        due = [name for name in providers if self._is_due(name)]
        for name in due:
            if name not in self._running:
                self._running[name] = asyncio.create_task(self._refresh(name, providers[name]))
        # Several requests wait for one list; a request that is cancelled does not end it.
        await asyncio.gather(*[asyncio.shield(self._running[name]) for name in due])
        return [f"{name}/{model}" for name in providers for model in self._models_of(name)]

    def _is_due(self, name: str) -> bool:
        listed = self._listed.get(name)
        return listed is None or listed.until <= self._clock()

    def _models_of(self, name: str) -> tuple[str, ...]:
        listed = self._listed.get(name)
        return () if listed is None else listed.models

    async def _refresh(self, name: str, provider: HttpProvider) -> None:
        try:
            self._listed[name] = await self._list_of(name, provider)
        finally:
            del self._running[name]

    async def _list_of(self, name: str, provider: HttpProvider) -> _Listed:
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                models = await _ask(provider)
        except (SlipformError, TimeoutError) as error:
            _log.info("models: a vendor's list is not available, provider=%s, error=%s", name, error)
            return _Listed(self._models_of(name), self._clock() + _FAILED_SECONDS)
        except Exception:  # noqa: BLE001 — one vendor's list is not worth everybody's
            _log.exception("models: a vendor's list cannot be read, provider=%s", name)
            models = ()
        return _Listed(models, self._clock() + _LASTS_SECONDS)


def _has_list(provider: HttpProvider) -> bool:
    try:
        address = provider.base_url
    except SlipformError:
        return False
    return provider.api in _PATHS and not any(each in address for each in _OTHER_NAMES)


async def _ask(provider: HttpProvider) -> tuple[str, ...]:
    """Return the names that a vendor lists; raises `SlipformError` where it lists none."""
    call = provider.route("model", streamed=False)
    headers = {} if call is None else call.headers
    route = Route("", _PATHS[provider.api], headers, False, False, "GET", _MOST_BYTES)
    answer = await provider.forward_async(route, b"", {})
    try:
        if answer.status >= 300:
            raise RequestError(f"The vendor answered with {answer.status}")
        data = await answer.read_whole()
    finally:
        await answer.close()
    return tuple(dict.fromkeys(_names_in(read_json(data))))[:_MOST_MODELS]


def _names_in(answer: Mapping[str, Any]) -> Iterable[str]:
    """Return the names in a list of any of these APIs, without models that the list marks as not generating text.

    >>> list(_names_in({"models": [{"name": "models/a", "supportedGenerationMethods": ["embedContent"]}]}))
    []
    """
    entries = answer.get("data") or answer.get("models")
    for entry in entries if isinstance(entries, list) else ():
        name = None
        if isinstance(entry, dict):
            name = entry.get("id") or entry.get("model") or entry.get("name")
        methods = None
        if isinstance(entry, dict):
            methods = entry.get("supportedGenerationMethods")
        if not isinstance(name, str) or (isinstance(methods, list) and "generateContent" not in methods):
            continue
        try:
            yield check_name(name.removeprefix("models/"))
        except RequestError:
            continue

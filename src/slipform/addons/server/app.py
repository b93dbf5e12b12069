"""Route ASGI requests to calls and pages, and reload the configuration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from importlib import import_module
from typing import Any, Final

from slipform.addons.local import LocalProvider
from slipform.addons.server.admission.admission import Caller
from slipform.addons.server.calls.endpoints import UnknownPathError, locate
from slipform.addons.server.calls.page_requests import PageRequest, serve_page
from slipform.addons.server.calls.routes import BY_PATH, api_at, error_api
from slipform.addons.server.calls.serving import Asgi, serve
from slipform.addons.server.console.console import Console
from slipform.addons.server.console.static_files import ROOT as CONSOLE
from slipform.addons.server.deployment import REFUSED, ActiveConfig, Deployment, Deployments, Load, deploy
from slipform.addons.server.http_server.asgi import Receive, Scope, Send, with_headers
from slipform.addons.server.observability.call_record import Header
from slipform.addons.server.observability.metrics import Metrics, WorkerAddress
from slipform.addons.server.worker_state import WorkerState
from slipform.codecs import find_api
from slipform.config import ConfigReading, Settings
from slipform.engine.planning import price_list
from slipform.errors import SlipformError
from slipform.library.async_client import AsyncClient
from slipform.prices import load_price_list

_log = logging.getLogger("slipform.server")
_CALLS: Final = frozenset({"enforced", "forwarded", "counted"})
"""The kinds of endpoints that reach a provider: they are admitted, counted and logged."""
_CONSOLE_HEADERS: Final = frozenset({b"cookie", b"origin", b"x-slipform-console"})
"""Headers of the console's requests that the call inside must not have."""


class App:
    """Serves the vendors' APIs; every answer with a schema is valid against it or is an error.

    `load` reads the configuration again when `reload` is called; `worker` is this worker's address among several;
    `active_config` is the initial configuration of a replaced worker; `bound` is the host of the listening socket.

    >>> app = App(AsyncClient(), Settings())
    """

    def __init__(
        self,
        client: AsyncClient,
        settings: Settings,
        *,
        load: Load | None = None,
        worker: WorkerAddress | None = None,
        active_config: ActiveConfig | None = None,
        bound: str | None = None,
    ) -> None:
        config = active_config or ActiveConfig(ConfigReading(settings))
        deployment = deploy(client, config.reading, config.generation, bound)
        if worker is not None:
            deployment.gate.share(worker.folder)
        self.deployments: Final = Deployments(deployment)
        self._load = load
        self._reloading = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None
        self.metrics: Final = Metrics(self._names)
        self.console: Final = Console(
            settings.server, bound, lambda: self.deployments.current, self._serve_for_console, worker
        )
        self.metrics.generation.set(config.generation)
        self.metrics.refused.inc(config.refused)
        self.metrics.last_reload_refused.set(config.last_refused)
        self._state: Final = WorkerState(self.deployments, self.metrics, self.console, worker)
        self._state.last_reload_refused = bool(config.last_refused)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            cors = self.deployments.current.gate.cors
            api = BY_PATH.get(scope["path"])
            if api is not None and cors is None and scope["method"] == "POST":
                await serve(self._state, api, Asgi(scope, receive, send))
            elif cors is None or scope["path"].startswith(CONSOLE):  # no other page can read the console
                await self._http(Asgi(scope, receive, send))
            elif not await cors.preflight(scope, send):
                await self._http(Asgi(scope, receive, send), cors.cors_headers(scope))

    def _names(self) -> list[str]:
        return self.deployments.current.client.router.names()

    def drain(self) -> None:
        """Report "not ready" at /readyz, so that load balancers send no more; requests are still served."""
        self._state.is_draining = True
        self.console.drain()

    async def reload(self) -> bool:
        """Reload the configuration as a whole; return False when it was refused, and the old one stays in use."""
        if self._load is None:
            return False
        state = self._state
        async with self._reloading:
            current = self.deployments.current
            try:
                new = self._load(current)
                new.gate.continue_from(current.gate)
                await _warm(new)
            except Exception as error:  # noqa: BLE001 — whatever it is, the old one continues
                state.last_reload_refused = True
                self.metrics.refused.inc()
                self.metrics.last_reload_refused.set(1)
                _log.error(REFUSED, current.generation, error, exc_info=not isinstance(error, SlipformError))
                return False
            if new.settings.server != current.settings.server:
                _log.warning("`server.host`, `port`, `workers`, `log`, connection limits change only with a restart")
            state.waiting_for = None
            state.last_reload_refused = False
            self.metrics.last_reload_refused.set(0)
            self.metrics.generation.set(new.generation)
            new.gate.start()
            await self.deployments.replace(new)
            _log.info("the configuration's generation %d serves", new.generation)
            return True

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.deployments.current.gate.start()
                self._warming = asyncio.create_task(self._become_ready())
                await send({"type": "lifespan.startup.complete"})
            else:
                if self._warming is not None:
                    await self._warming
                await self.deployments.close()
                await asyncio.to_thread(self.console.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _become_ready(self) -> None:
        """Load the embedded model before the first request, when it is the default."""
        state = self._state
        state.waiting_for = "loading the embedded model"
        try:
            await _warm(self.deployments.current)
        except SlipformError as error:
            state.waiting_for = "the embedded model is not available"
            _log.warning("%s", error)
        else:
            state.waiting_for = None
        # Load the modules that the first call with a schema needs, before any caller waits for them.
        await asyncio.to_thread(import_module, "slipform.schema.lowering.lowered")
        if any(map(price_list, self.deployments.current.client.router.providers.values())):
            await asyncio.to_thread(load_price_list)

    def _http(self, asgi: Asgi, cors_headers: Sequence[Header] = ()) -> Coroutine[Any, Any, None]:
        scope = asgi.scope
        method = scope["method"]
        path = scope["path"]
        if method == "POST" and (api := api_at(path)) is not None:
            return serve(self._state, api, asgi, cors_headers)
        headers = dict(scope["headers"])
        located = locate("GET" if method == "HEAD" else method, path, headers)
        if located is not None and located.row.kind in _CALLS:
            api = find_api(located.row.api) if located.row.api else error_api(path, headers, located)
            return serve(self._state, api, asgi, cors_headers, located)
        return serve_page(
            PageRequest(
                self._state, method, located, scope, headers, asgi.receive, with_headers(asgi.send, cors_headers)
            )
        )

    def _serve_for_console(
        self, path: str, scope: Scope, receive: Receive, send: Send, caller: Caller
    ) -> Coroutine[Any, Any, None]:
        """Serve a call of the console's playground, at the path of an API, for a caller with a session."""
        api = api_at(path)
        if api is None:
            raise UnknownPathError(f"No API is served at {path}")
        headers = [(name, value) for name, value in scope["headers"] if name not in _CONSOLE_HEADERS]
        inner = {**scope, "path": path, "headers": headers}
        return serve(self._state, api, Asgi(inner, receive, send), authenticated_caller=caller)


async def _warm(deployment: Deployment) -> None:
    provider, model = deployment.client.router.resolve(None)
    if isinstance(provider, LocalProvider):
        await asyncio.to_thread(provider.warm, model)

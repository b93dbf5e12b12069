"""Listen on sockets, run the application's lifespan, and stop gracefully: `HttpServer`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Iterable, MutableMapping
from functools import partial
from typing import Any

from slipform.addons.server.http_server.connection import ServerConnection
from slipform.addons.server.http_server.request_cycle import App
from slipform.addons.server.http_server.state import ServerLimits, ServerState, Trusted

_log = logging.getLogger("slipform.server")
_BACKLOG = 2048
_POLL_SECONDS = 0.02
_CANCEL_SECONDS = 2.0
"""Seconds for cancelled requests to write their last response."""


class Lifespan:
    """The ASGI lifespan of the application, owned by an `HttpServer`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._to_app: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> bool:
        """Start the application; return False when it fails to start."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return await self._request("lifespan.startup")

    async def end(self) -> None:
        """Shut the application down."""
        if self._task is not None and not self._task.done():
            await self._request("lifespan.shutdown")
            await self._task

    async def _request(self, event: str) -> bool:
        self._to_app.put_nowait({"type": event})
        return await self._from_app.get() == f"{event}.complete"

    async def _run(self) -> None:
        try:
            await self._app({"type": "lifespan", "asgi": {"version": "3.0"}}, self._to_app.get, self._on_message)
        except Exception:  # noqa: BLE001 — logged, and then the server does not start
            _log.exception("server: unexpected error in the ASGI lifespan")
        self._from_app.put_nowait("over")

    async def _on_message(self, message: MutableMapping[str, Any]) -> None:
        if message.get("message"):
            _log.error("%s", message["message"])
        self._from_app.put_nowait(message["type"])


class HttpServer:
    """Serves an ASGI application on sockets, between `start` and `stop`, on the running event loop.

    `x-forwarded-for` and the like are read from `trusted` balancers only.
    """

    def __init__(self, app: App, *, limits: ServerLimits | None = None, trusted: Trusted | None = None) -> None:
        self._app = app
        self._limits = limits
        self._trusted = trusted
        self._lifespan = Lifespan(app)
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._state: ServerState | None = None
        self._is_hurried = False

    async def start(self, sockets: Iterable[socket.socket]) -> bool:
        """Listen; return False when the application did not start."""
        if not await self._lifespan.begin():
            return False
        state = self._state = ServerState(self._app, self._limits, self._trusted)
        connection_factory = partial(ServerConnection, state)
        for each in sockets:
            server = await state.loop.create_server(connection_factory, sock=each, backlog=_BACKLOG)
            self._servers.append(server)
            self._sockets.append(each)
        return True

    def hurry(self) -> None:
        """Stop waiting for running requests."""
        self._is_hurried = True

    async def stop(self, drain_seconds: float = math.inf) -> None:
        """Stop listening, close idle connections, and wait so long for running requests."""
        for server in self._servers:
            server.close()
        for each in self._sockets:
            each.close()
        state = self._state
        if state is None:
            return
        state.finish()
        await self._wait_until_empty(state, drain_seconds)
        await self._cancel_running(state)
        state.close()
        if not self._is_hurried:
            await self._lifespan.end()

    async def _cancel_running(self, state: ServerState) -> None:
        tasks = [cycle.task for cycle in state.running if cycle.task is not None]
        if tasks:
            _log.error("server: requests cancelled, not finished in time, requests=%d", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS / 10 if self._is_hurried else _CANCEL_SECONDS)
            await self._wait_until_empty(state, _CANCEL_SECONDS)

    async def _wait_until_empty(self, state: ServerState, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                while (state.connections or state.running) and not self._is_hurried:  # noqa: ASYNC110 — many end it
                    await asyncio.sleep(_POLL_SECONDS)

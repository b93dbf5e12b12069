"""Sockets, lifespan, limits, trusted balancers, graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
from collections.abc import Iterable, MutableMapping
from functools import partial
from typing import Any

from slipform.proxy.http_server.connection import ServerConnection
from slipform.proxy.http_server.request_cycle import App
from slipform.proxy.http_server.state import ServerLimits, ServerState, Trusted

_log = logging.getLogger("slipform.server")
_BACKLOG = 2048
_LOOK_SECONDS = 0.02
_LAST_SECONDS = 2.0
"""For those that are cut off: to say so to their clients."""


class Lifespan:
    """Tells the application that the server starts, and that it stops."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._told: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> bool:
        """Start the application; False when it cannot."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        return await self._ask("lifespan.startup")

    async def end(self) -> None:
        """Let it end."""
        if self._task is not None and not self._task.done():
            await self._ask("lifespan.shutdown")
            await self._task

    async def _ask(self, what: str) -> bool:
        self._told.put_nowait({"type": what})
        return await self._said.get() == f"{what}.complete"

    async def _run(self) -> None:
        try:
            await self._app({"type": "lifespan", "asgi": {"version": "3.0"}}, self._told.get, self._hear)
        except Exception:  # noqa: BLE001 — told, and then the server does not start
            _log.exception("an unexpected error in the application's life")
        self._said.put_nowait("over")

    async def _hear(self, message: MutableMapping[str, Any]) -> None:
        if message.get("message"):
            _log.error("%s", message["message"])
        self._said.put_nowait(message["type"])


class HttpServer:
    """Serves an ASGI application on sockets, between `start` and `stop`, on the running event loop.

    Of `x-forwarded-for` and the like only what `trusted` balancers say is believed.
    """

    def __init__(self, app: App, *, limits: ServerLimits | None = None, trusted: Trusted | None = None) -> None:
        self._app = app
        self._limits = limits
        self._trusted = trusted
        self._lifespan = Lifespan(app)
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._door: ServerState | None = None
        self._hurried = False

    async def start(self, sockets: Iterable[socket.socket]) -> bool:
        """Listen; False when the application did not start."""
        if not await self._lifespan.begin():
            return False
        door = self._door = ServerState(self._app, self._limits, self._trusted)
        made = partial(ServerConnection, door)
        for each in sockets:
            server = await door.loop.create_server(made, sock=each, backlog=_BACKLOG)
            self._servers.append(server)
            self._sockets.append(each)
        return True

    def hurry(self) -> None:
        """Wait for nobody any longer."""
        self._hurried = True

    async def stop(self, drain_seconds: float = math.inf) -> None:
        """Listen no more, end idle connections, and give requests under way so long to finish."""
        for server in self._servers:
            server.close()
        for each in self._sockets:
            each.close()
        door = self._door
        if door is None:
            return
        door.finish()
        await self._until_empty(door, drain_seconds)
        await self._cut_off(door)
        door.close()
        if not self._hurried:
            await self._lifespan.end()

    async def _cut_off(self, door: ServerState) -> None:
        tasks = [exchange.task for exchange in door.running if exchange.task is not None]
        if tasks:
            _log.error("%d requests were not finished in time: cancelled", len(tasks))
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_LAST_SECONDS / 10 if self._hurried else _LAST_SECONDS)
            await self._until_empty(door, _LAST_SECONDS)

    async def _until_empty(self, door: ServerState, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                while (door.connections or door.running) and not self._hurried:  # noqa: ASYNC110 — many end it
                    await asyncio.sleep(_LOOK_SECONDS)

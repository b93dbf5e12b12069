"""One serving process: uvicorn as we want it, and what its signals mean."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn

from slipform import tracing
from slipform.config import ServerSettings
from slipform.server.app import App
from slipform.server.deployment import load
from slipform.server.memory import give_back
from slipform.server.protocol import LimitedProtocol
from slipform.server.siblings import Worker

_log = logging.getLogger("slipform.server")
_BACKLOG = 2048
_KEEP_ALIVE_SECONDS = 75
"""Longer than balancers keep their idle connections, so that it is they who close them."""
_ORPHAN_CHECK_SECONDS = 1.0
_COLLECT_AFTER = 20_000
"""How many more objects there must be before garbage is looked for: a call makes hundreds, and hardly any in cycles."""


def serve_on(listening: socket.socket, settings_path: Path | None = None, worker: Worker | None = None) -> None:
    """Serve on a socket until told to stop: SIGHUP reloads, SIGTERM and SIGINT drain, a second one gives up."""
    first = load(settings_path)
    app = App(first.client, first.settings, load=partial(load, settings_path), worker=worker)
    last_spans = tracing.export_from_environment()
    server = Server(app, first.settings.server)
    gc.freeze()  # what is here now stays; there is no use in looking through it again and again
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(_serve(server, app, listening, worker))
    finally:
        if last_spans is not None:
            last_spans()


async def _serve(server: Server, app: App, listening: socket.socket, worker: Worker | None) -> None:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[object]] = {loop.create_task(give_back())}

    def reload() -> None:
        task: asyncio.Task[object] = loop.create_task(app.reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    if hasattr(signal, "SIGHUP"):
        loop.add_signal_handler(signal.SIGHUP, reload)
    sockets = [listening]
    if worker is not None:
        sockets.append(_own_socket(worker))
        tasks.add(loop.create_task(_stop_when_orphaned(server, os.getppid())))
    await server.serve(sockets=sockets)
    for task in tasks:
        task.cancel()


def _own_socket(worker: Worker) -> socket.socket:
    """Where the other workers ask for this one's metrics."""
    path = worker.socket_path()
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.setblocking(False)
    return made


async def _stop_when_orphaned(server: Server, parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 — nothing tells of it
        await asyncio.sleep(_ORPHAN_CHECK_SECONDS)
    _log.warning("the supervisor is gone: stopping")
    server.should_exit = True


class Server(uvicorn.Server):
    """uvicorn's, told to drain by the first signal and to give up by the second, whichever they are."""

    def __init__(self, app: App, settings: ServerSettings) -> None:
        super().__init__(_config(app, settings))
        self._app = app
        self._notice = settings.notice_seconds
        self._asked = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop."""
        del sig, frame
        if self._asked:
            self.should_exit = self.force_exit = True
            return
        self._asked = True
        self._app.drain()
        if self._notice:
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(loop.call_later, self._notice, self._stop)
        else:
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def _config(app: App, settings: ServerSettings) -> uvicorn.Config:
    try:
        import uvloop  # noqa: F401 — only whether it is there
    except ImportError:
        loop = "asyncio"
    else:
        loop = "uvloop"
    return uvicorn.Config(
        app,
        loop=loop,
        http=LimitedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        # A caller may only say who it speaks for where the operator names the balancers to be believed.
        proxy_headers="FORWARDED_ALLOW_IPS" in os.environ,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds),
    )

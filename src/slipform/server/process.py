"""One serving process: the server, and what its signals mean."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from slipform import tracing
from slipform.config import ServerSettings
from slipform.server.app import App
from slipform.server.deployment import Deployment, InForce, client_of, load
from slipform.server.door import Limits
from slipform.server.forwarded import Trusted
from slipform.server.listening import Listening
from slipform.server.memory import give_back
from slipform.server.siblings import Worker

_log = logging.getLogger("slipform.server")
_NOT_STARTED = 3
"""How the process ends when the application does not start."""
_ORPHAN_CHECK_SECONDS = 1.0
_OTHER_FILES = 64
"""Files that are open for something else than connections, at most: logs, keys, the embedded model."""
_COLLECT_AFTER = 20_000
"""How many more objects there must be before garbage is looked for: a call makes hundreds, and hardly any in cycles."""


def serve_on(
    listening: socket.socket,
    settings_path: Path | None,
    in_force: InForce,
    worker: Worker | None = None,
) -> None:
    """Serve on a socket until told to stop: SIGHUP reloads, SIGTERM and SIGINT drain, a second one gives up.

    The file is not read again at the start: what is in force was judged, and the file may have been refused since.
    """
    settings, bound = in_force.reading.settings, bound_host(listening)

    def reread(current: Deployment) -> Deployment:
        return load(settings_path, bound, replacing=current.reading, generation=current.generation + 1)

    app = App(client_of(settings), settings, load=reread, worker=worker, in_force=in_force, bound=bound)
    last_spans = tracing.export_from_environment()
    gc.freeze()  # what is here now stays; there is no use in looking through it again and again
    gc.set_threshold(_COLLECT_AFTER, 20, 20)
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(app, settings.server, listening, worker))
    finally:
        if last_spans is not None:
            last_spans()
        for handler in logging.root.handlers:
            handler.flush()


def bound_host(listening: socket.socket) -> str:
    """The host that a socket is really bound to, whatever the settings say by now."""
    host: str = "unix:" if listening.family == getattr(socket, "AF_UNIX", None) else listening.getsockname()[0]
    return host


async def _serve(app: App, settings: ServerSettings, listening: socket.socket, worker: Worker | None) -> None:
    loop = asyncio.get_running_loop()
    server = Listening(app, limits=limits_of(settings), trusted=Trusted.from_environment(os.environ))
    asked = _Asked(app, server, settings.notice_seconds)
    tasks: set[asyncio.Task[object]] = {loop.create_task(give_back())}

    def reload() -> None:
        task: asyncio.Task[object] = loop.create_task(app.reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    _hear("SIGHUP", reload)
    _hear("SIGINT", asked.to_stop)
    _hear("SIGTERM", asked.to_stop)
    sockets = [listening]
    if worker is not None:
        sockets.append(_own_socket(worker))
        tasks.add(loop.create_task(_stop_when_orphaned(asked, os.getppid())))
    if not await server.start(sockets):
        sys.exit(_NOT_STARTED)
    await asked.stopping.wait()
    await server.stop(settings.drain_seconds)
    for task in tasks:
        task.cancel()


def limits_of(settings: ServerSettings) -> Limits:
    """What clients may take, as it is set; connections only as far as this process may open files.

    >>> limits_of(ServerSettings(write_seconds=5, max_connections=10)).connections
    10
    """
    return Limits(
        write_seconds=settings.write_seconds,
        connections=_within_open_files(settings.max_connections),
        connections_per_address=settings.max_connections_per_address,
    )


def _within_open_files(connections: int) -> int:
    """So many, or fewer: each may need a second one, to a vendor. The process's own limit is raised if it can be."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return connections
    wanted = 2 * connections + _OTHER_FILES
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < wanted:
        raised = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
            files = raised
    return connections if files == resource.RLIM_INFINITY else max(1, min(connections, (files - _OTHER_FILES) // 2))


class _Asked:
    """What was asked of the server: the first wish to stop lets it drain, the second makes it give up."""

    def __init__(self, app: App, server: Listening, notice_seconds: float) -> None:
        self._app = app
        self._server = server
        self._notice = notice_seconds
        self._before = False
        self.stopping = asyncio.Event()

    def to_stop(self) -> None:
        """Balancers are given time to notice before nobody listens any longer."""
        if self._before:
            self._server.hurry()
            self.stopping.set()
            return
        self._before = True
        self._app.drain()
        if self._notice:
            asyncio.get_running_loop().call_later(self._notice, self.stopping.set)
        else:
            self.stopping.set()


def _hear(name: str, call: Callable[[], None]) -> None:
    """Call this on the event loop when the signal comes, where the system has that signal."""
    number: int | None = getattr(signal, name, None)
    if number is None:
        return
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:  # an event loop on Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))


def _own_socket(worker: Worker) -> socket.socket:
    """Where the other workers ask for this one's metrics."""
    path = worker.socket_path()
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.setblocking(False)
    return made


async def _stop_when_orphaned(asked: _Asked, parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 — nothing tells of it
        await asyncio.sleep(_ORPHAN_CHECK_SECONDS)
    _log.warning("the supervisor is gone: stopping")
    asked.stopping.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

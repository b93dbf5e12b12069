"""Run the server process of `slipform serve`: settings, sockets, signals."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from slipform import __version__
from slipform.addons.server.admission.admission import check_exposed, is_loopback
from slipform.addons.server.app import App
from slipform.addons.server.deployment import ActiveConfig, Deployment, client_of, load
from slipform.addons.server.heartbeats import TICK_SECONDS
from slipform.addons.server.http_server.server import HttpServer
from slipform.addons.server.http_server.state import ServerLimits, Trusted
from slipform.addons.server.observability.metrics import WorkerAddress
from slipform.config import ServerSettings, Settings, load_config
from slipform.engine import tracing
from slipform.errors import ConfigError, LocalModelError
from slipform.reload_signal import defer_reload

_SECONDS = 30.0


async def trim_memory(seconds: float = _SECONDS) -> None:
    """Return free memory to the system at this interval, until the task is cancelled.

    Bodies and streams of different sizes fragment the memory: after half an hour of hundreds of streams, glibc held
    10 MB of free memory, growing with time. Searching for it takes 2 ms.
    """
    trim = trimmer()
    while trim is not None:
        await asyncio.sleep(seconds)
        trim()


def trimmer() -> Callable[[], object] | None:
    """Return the function that returns free memory to the system; None where it is not needed or not available."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return lambda: trim(0)


_log = logging.getLogger("slipform.server")
_NOT_STARTED = 3
"""The exit status of a process whose application does not start."""
_OTHER_FILES = 64
"""The most open files that are not connections: logs, keys, the embedded model."""
_COLLECT_AFTER = 20_000
"""The number of new objects that starts a collection: a call creates hundreds, hardly any of them in cycles."""


def serve_on(
    listening: socket.socket,
    settings_path: Path | None,
    active_config: ActiveConfig,
    worker: WorkerAddress | None = None,
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Serve on a socket until told to stop: SIGHUP reloads, SIGTERM and SIGINT drain, a second one stops at once.

    The file is not read again at the start: the current settings were checked, and the file may have been refused.
    `announce` is called when the settings are valid.
    """
    settings = active_config.reading.settings
    bound = bound_host(listening)

    def reread(current: Deployment) -> Deployment:
        return load(settings_path, bound, replacing=current.reading, generation=current.generation + 1)

    with active_config.reading.locating_mistakes():
        app = App(client_of(settings), settings, load=reread, worker=worker, active_config=active_config, bound=bound)
    announce()
    last_spans = tracing.export_from_environment()
    gc.freeze()  # these objects live as long as the process: collections need not visit them
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
    """Return the host that a socket is bound to, which may differ from the current settings."""
    host: str = "unix:" if listening.family == getattr(socket, "AF_UNIX", None) else listening.getsockname()[0]
    return host


async def _serve(app: App, settings: ServerSettings, listening: socket.socket, worker: WorkerAddress | None) -> None:
    loop = asyncio.get_running_loop()
    server = HttpServer(app, limits=limits_of(settings), trusted=Trusted.from_environment(os.environ))
    stop_signals = _StopSignals(app, server, settings.notice_seconds)
    tasks: set[asyncio.Task[object]] = {loop.create_task(trim_memory())}

    def reload() -> None:
        task: asyncio.Task[object] = loop.create_task(app.reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    early = defer_reload()
    _on_signal("SIGHUP", reload)
    if early.is_requested:
        reload()
    _on_signal("SIGINT", stop_signals.to_stop)
    _on_signal("SIGTERM", stop_signals.to_stop)
    sockets = [listening]
    if worker is not None:
        sockets.append(_own_socket(worker))
        tasks.add(loop.create_task(_answer_to_supervisor(stop_signals, worker)))
    if not await server.start(sockets):
        sys.exit(_NOT_STARTED)
    await stop_signals.stopping.wait()
    await server.stop(settings.drain_seconds)
    for task in tasks:
        task.cancel()


def limits_of(settings: ServerSettings) -> ServerLimits:
    """Return the configured limits of clients; connections only as far as this process may open files.

    >>> limits_of(ServerSettings(write_seconds=5, max_connections=10)).connections
    10
    """
    return ServerLimits(
        write_seconds=settings.write_seconds,
        connections=_within_open_files(settings.max_connections),
        connections_per_address=settings.max_connections_per_address,
    )


def _within_open_files(connections: int) -> int:
    """Return how many connections the limit on open files allows, after raising it; each may need a second one."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return connections
    needed = 2 * connections + _OTHER_FILES
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < needed:
        raised = needed if most == resource.RLIM_INFINITY else min(needed, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, most))
            files = raised
    if files == resource.RLIM_INFINITY:
        return connections
    return max(1, min(connections, (files - _OTHER_FILES) // 2))


class _StopSignals:
    """The server's stop signals: the first drains it, the second ends it at once."""

    def __init__(self, app: App, server: HttpServer, notice_seconds: float) -> None:
        self._app = app
        self._server = server
        self._notice = notice_seconds
        self._before = False
        self.stopping = asyncio.Event()

    def to_stop(self) -> None:
        """Give load balancers time to notice before the server stops listening."""
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


def _on_signal(name: str, call: Callable[[], None]) -> None:
    """Call `callback` on the event loop when the signal arrives, where the system has that signal."""
    number: int | None = getattr(signal, name, None)
    if number is None:
        return
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(number, call)
    except NotImplementedError:  # an event loop on Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))


def _own_socket(worker: WorkerAddress) -> socket.socket:
    """Serve this worker's metrics and console to the other workers."""
    path = worker.socket_path()
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.setblocking(False)
    return made


async def _answer_to_supervisor(stop_signals: _StopSignals, worker: WorkerAddress) -> None:
    """Report that the event loop runs, and stop when the supervisor is gone."""
    while os.getppid() == worker.supervisor:
        worker.report_alive()
        await asyncio.sleep(TICK_SECONDS)
    _log.warning("worker: supervisor is gone, stopping")
    stop_signals.stopping.set()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory, if uvloop is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


_BACKLOG = 2048


def serve(
    settings_path: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    insecure: bool = False,
) -> None:
    """Serve until a signal stops the server; arguments override the settings.

    Other machines may connect only with a key file, or `insecure`. SIGHUP reloads the settings, SIGTERM and SIGINT
    drain and stop, a second one stops at once.
    """
    defer_reload()
    if insecure:  # in the environment, where workers and reloads find it
        os.environ["SLIPFORM_SERVER__ALLOW_ANONYMOUS"] = "true"
    reading = load_config(settings_path)
    settings = reading.settings
    with reading.locating_mistakes():
        check_exposed(settings, host)
        count = workers or settings.server.workers
        _set_up_logs(settings)
        _prepare(settings, count)
    sockets = listen(host or settings.server.host, settings.server.port if port is None else port, count)

    def announce() -> None:
        sys.stderr.write(f"slipform {__version__} serves http://{address(sockets[0])}/v1 (Ctrl-C stops it)\n")
        if link := console_link(settings, address(sockets[0])):
            sys.stderr.write(f"The console: {link}\n")
        sys.stderr.flush()

    if count == 1:
        serve_on(sockets[0], settings_path, ActiveConfig(reading), announce=announce)
    else:
        from slipform.addons.server.workers import supervise

        gc.enable()
        supervise(sockets, settings_path, ActiveConfig(reading), announce)


def console_link(settings: Settings, where: str) -> str | None:
    """Return the URL that opens the console signed in; None without a console, or where it needs a key."""
    from slipform.addons.server.console.access import console_secret, link_token

    server = settings.server
    if server.console == "off" or server.keys_file or not is_loopback(where.rpartition(":")[0]):
        return None
    return f"http://{where}/console/#t={link_token(console_secret())}"


def _set_up_logs(settings: Settings) -> None:
    from slipform.addons.server.observability.logs import set_up

    names = [name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_ACCESS_KEY"))]
    names += [provider.api_key_env for provider in settings.providers.values() if provider.api_key_env]
    set_up(settings.server.log, secrets={value for name in names if len(value := os.environ.get(name, "")) > 5})


def _prepare(settings: Settings, workers: int) -> None:
    """Do, or refuse to do, everything that should precede listening."""
    if workers > 1 and not hasattr(os, "fork"):
        raise ConfigError("Several workers need an operating system with fork", where="server.workers")
    if settings.first_model.partition("/")[0] == "local" and workers > 1:
        _log.warning("server: each worker loads the embedded model in its own process, workers=%d", workers)
    _fetch_named(settings)


def _fetch_named(settings: Settings) -> None:
    """Download the embedded models in the settings, which requests cannot do. Only the default's must succeed."""
    listed = [[each] if isinstance(each, str) else each for each in settings.alias_models.values()]
    default = [settings.default_model] if isinstance(settings.default_model, str) else settings.default_model
    named = dict.fromkeys([*default, *(model for models in listed for model in models)])
    if not any(model.partition("/")[0] == "local" for model in named):
        return
    from slipform.addons.local.weights import DEFAULT, KNOWN, pull_with_progress

    for model in named:
        weights = KNOWN.get(DEFAULT if model == "local" else model.removeprefix("local/"))
        if weights is None or model in settings.model_aliases:
            continue
        try:
            pull_with_progress(weights)
        except LocalModelError as error:
            if model == settings.first_model:
                raise
            _log.warning("%s", error)


def listen(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """Open one socket on the address for each worker; the kernel distributes connections over them."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = addresses[0]
        sockets = [_bound(family, where, shared=False)]
        if count > 1 and sys.platform == "linux":
            # The first one only checked that the port is free: sharing sockets do not notice another program.
            where = (where[0], sockets[0].getsockname()[1], *where[2:])
            sockets[0].close()
            sockets = [_bound(family, where, shared=True) for _ in range(count)]
        elif count > 1:
            sockets *= count
    except OSError as error:
        hint = "Another server may be running there: choose another with --port."
        raise ConfigError(f"Cannot listen: {error.strerror}", where=f"{host}:{port}", hint=hint) from error
    return sockets


def _bound(family: int, where: tuple[object, ...], *, shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(where)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def address(listening: socket.socket) -> str:
    """Return the address of a socket, as in a URL."""
    host, port = listening.getsockname()[:2]
    if ":" in host:
        return f"[{host}]:{port}"
    return f"{host}:{port}"

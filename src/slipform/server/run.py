"""`slipform serve`: read the settings, listen, and serve in this process or in several."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from pathlib import Path

from slipform import __version__
from slipform.config import Settings, load_config
from slipform.errors import ConfigError, LocalModelError
from slipform.server.deployment import InForce
from slipform.server.guard import check_exposed

_log = logging.getLogger("slipform.server")
_BACKLOG = 2048


def serve(
    settings_path: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    workers: int | None = None,
    insecure: bool = False,
) -> None:
    """Serve until told to stop; what is given wins over the settings.

    Other machines are let in only with a file of keys, or `insecure`. SIGHUP reads the settings again, SIGTERM and
    SIGINT drain and stop, a second one stops at once.
    """
    if insecure:  # in the environment, where the workers and every reload find it
        os.environ["SLIPFORM_SERVER__ALLOW_ANONYMOUS"] = "true"
    reading = load_config(settings_path)
    settings = reading.settings
    check_exposed(settings, host)
    count = workers or settings.server.workers
    _set_up_logs(settings)
    _prepare(settings, count)
    sockets = listen(host or settings.server.host, settings.server.port if port is None else port, count)
    sys.stderr.write(f"slipform {__version__} serves http://{address(sockets[0])}/v1 (Ctrl-C stops it)\n")
    sys.stderr.flush()
    in_force = InForce(reading)
    if count == 1:
        from slipform.server.process import serve_on

        serve_on(sockets[0], settings_path, in_force)
    else:
        from slipform.server.workers import supervise

        gc.enable()
        supervise(sockets, settings_path, in_force)


def _set_up_logs(settings: Settings) -> None:
    from slipform.server.logs import set_up

    names = [name for name in os.environ if name.endswith(("_API_KEY", "_TOKEN", "_SECRET", "_SECRET_ACCESS_KEY"))]
    names += [given.api_key_env for given in settings.providers.values() if given.api_key_env]
    set_up(settings.server.log, secrets={value for name in names if len(value := os.environ.get(name, "")) > 5})


def _prepare(settings: Settings, workers: int) -> None:
    """What is better done, or refused, before anything listens."""
    for module in ("httptools", "prometheus_client"):
        try:
            __import__(module)
        except ImportError:
            raise ConfigError(
                "The proxy's server is not installed", hint="Run `pip install 'slipform[server]'`."
            ) from None
    if workers > 1 and not hasattr(os, "fork"):
        raise ConfigError("Several workers need an operating system with fork", where="server.workers")
    if settings.default_model.partition("/")[0] == "local" and workers > 1:
        _log.warning("each of the %d workers loads the embedded model into a process of its own", workers)
    _fetch_named(settings)


def _fetch_named(settings: Settings) -> None:
    """Fetch the embedded models that the settings name: no request will. Only the default's must succeed."""
    listed = [[each] if isinstance(each, str) else each for each in settings.model_aliases.values()]
    named = dict.fromkeys([settings.default_model, *(model for models in listed for model in models)])
    if not any(model.partition("/")[0] == "local" for model in named):
        return
    from slipform.providers.local.progress import pull_shown
    from slipform.providers.local.weights import DEFAULT, KNOWN

    for model in named:
        weights = KNOWN.get(DEFAULT if model == "local" else model.removeprefix("local/"))
        if weights is None or model in settings.model_aliases:
            continue
        try:
            pull_shown(weights)
        except LocalModelError as error:
            if model == settings.default_model:
                raise
            _log.warning("%s", error)


def listen(host: str, port: int, count: int = 1) -> list[socket.socket]:
    """Sockets on one address, one for each worker; the kernel spreads connections over them."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        sockets = [_bound(family, where, shared=False)]
        if count > 1 and sys.platform == "linux":
            # The first one only showed that nobody else is here: sockets that share do not mind a stranger.
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
    """Where a socket listens, as it is written in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""Run several processes that serve one address."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from slipform.addons.server.console.access import console_secret
from slipform.addons.server.deployment import REFUSED, ActiveConfig, Deployment, client_of, deploy, load
from slipform.addons.server.heartbeats import Heartbeats
from slipform.addons.server.observability.metrics import WorkerAddress
from slipform.addons.server.serve import bound_host, serve_on
from slipform.errors import SlipformError
from slipform.reload_signal import defer_reload

_log = logging.getLogger("slipform.server")
_TICK = 0.1
_SHORT_LIFE = 2.0
"""The least seconds between two starts of a worker."""
_AFTER_DRAIN = 10.0
_LATE_TICK = 2.0
"""A tick of the supervisor this late means that the whole machine was paused, not that a worker hangs."""


def supervise(
    sockets: list[socket.socket], settings_path: Path | None, active_config: ActiveConfig, announce: Callable[[], None]
) -> None:
    """Run one worker for each socket, until a stop signal.

    SIGHUP, SIGTERM and SIGINT are passed on, and a second one too. A worker that dies is replaced; the new one accepts
    the connections that wait at its socket, and starts with the current configuration, not the file, which may have
    been refused. `announce` is called when the settings are valid.
    """
    with active_config.reading.locating_mistakes():
        _let_go(deploy(client_of(active_config.reading.settings), active_config.reading, bound=bound_host(sockets[0])))
    announce()
    console_secret()  # before the fork: if it cannot be written to a file, each worker would create its own
    folder = Path(tempfile.mkdtemp(prefix="slipform-"))
    crew = _WorkerPool(sockets, settings_path, folder, active_config)
    try:
        crew.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _let_go(checked: Deployment) -> None:
    checked.client.router.close()


class _WorkerPool:
    def __init__(
        self, sockets: list[socket.socket], settings_path: Path | None, folder: Path, active_config: ActiveConfig
    ) -> None:
        self._sockets = sockets
        self._settings_path = settings_path
        self._bound = bound_host(sockets[0])
        self._folder = folder
        self._active_config = active_config
        settings = active_config.reading.settings.server
        self._drain_seconds = settings.drain_seconds + settings.notice_seconds
        self._signals: deque[int] = deque()
        self._alive: dict[int, int] = {}
        """The worker of each process, by its id."""
        self._born: dict[int, float] = {}
        self._due: dict[int, float] = {}
        """When each worker is to be started."""
        self._deadline: float | None = None
        self._heartbeats = Heartbeats(len(sockets))

    def run(self) -> None:
        early = defer_reload()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, _: self._signals.append(got))
        if early.is_requested:
            self._signals.append(signal.SIGHUP)
        self._due = dict.fromkeys(range(len(self._sockets)), 0.0)
        last_tick = time.monotonic()
        while self._alive or self._deadline is None:
            self._start_due()
            while self._signals:
                self._on_signal(self._signals.popleft())
            self._reap()
            self._kill_hung()
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._tell(signal.SIGKILL)
            time.sleep(_TICK)
            now = time.monotonic()
            if now - last_tick > _LATE_TICK:
                self._heartbeats.postpone(now - last_tick)
            last_tick = now

    def _start_due(self) -> None:
        now = time.monotonic()
        for index in [index for index, when in self._due.items() if when <= now]:
            del self._due[index]
            if self._deadline is None:
                self._start(index)

    def _start(self, index: int) -> None:
        self._heartbeats.start(index, time.monotonic())
        supervisor = os.getpid()  # checked here: the supervisor may have ended before the child runs
        child = os.fork()
        if child == 0:
            self._be_worker(index, supervisor)
        self._alive[child] = index
        self._born[index] = time.monotonic()

    def _be_worker(self, index: int, supervisor: int) -> None:
        """Run the child process; never returns into the supervisor's code."""
        status = 1
        try:
            os.setpgid(0, 0)  # Ctrl-C is handled by the supervisor
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            defer_reload()
            for other, each in enumerate(self._sockets):
                if other != index and each is not self._sockets[index]:
                    each.close()
            report_alive = partial(self._heartbeats.beat, index)
            worker = WorkerAddress(index, len(self._sockets), self._folder, supervisor, report_alive)
            serve_on(self._sockets[index], self._settings_path, self._active_config, worker)
            status = 0
        except SlipformError as error:
            _log.error("worker %d: %s", index, error)
        except BaseException:  # noqa: BLE001 — whatever it is, the process ends here
            _log.exception("worker %d", index)
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._alive:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            index = self._alive.pop(child, None)
            if index is None or self._deadline is not None:
                continue
            _log.error("worker %d: ended, starting another, process=%d, reason=%s", index, child, _exit_reason(status))
            lived = time.monotonic() - self._born[index]
            self._due[index] = time.monotonic() + (0 if lived > _SHORT_LIFE else _SHORT_LIFE)

    def _kill_hung(self) -> None:
        """Kill workers whose event loop has stopped; `_reap` replaces them. Draining workers have more time."""
        if self._deadline is not None:
            return
        now = time.monotonic()
        for child, index in self._alive.items():
            if self._heartbeats.is_hung(index, now):
                _log.error("worker %d: does not answer its supervisor, killing it, process=%d", index, child)
                self._heartbeats.start(index, now)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGHUP:
            if self._deadline is None:
                self._deadline = time.monotonic() + self._drain_seconds + _AFTER_DRAIN
                for each in self._sockets:
                    each.close()
            self._tell(signal.SIGTERM)
            return
        self._reload()
        self._tell(signal.SIGHUP)

    def _reload(self) -> None:
        """Check the new configuration for later workers; running workers check, report and count it themselves."""
        current = self._active_config
        try:
            new = load(self._settings_path, self._bound, replacing=current.reading, generation=current.generation + 1)
            _let_go(new)
        except Exception as error:  # noqa: BLE001 — whatever it is, the old one continues
            self._active_config = dataclasses.replace(current, refused=current.refused + 1, last_refused=True)
            _log.error(REFUSED, current.generation, error, exc_info=not isinstance(error, SlipformError))
        else:
            self._active_config = ActiveConfig(new.reading, new.generation, current.refused)

    def _tell(self, number: int) -> None:
        for child in list(self._alive):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)


def _exit_reason(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"signal {-code}"
    return f"exit code {code}"

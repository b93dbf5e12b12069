"""Run the engine in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from slipform.errors import LocalModelError
from slipform.providers.embedded import llama
from slipform.providers.embedded.engine import Cancel, EngineSettings, Event, described, engine_folder, unloadable

_LAST_WORDS = 400


class WorkerLostError(LocalModelError):
    """The worker process ended under a request; the next request starts a new one."""


class WorkerEngine:
    """Runs a model in a child process: started with the first request, started again if it dies.

    A plain child and pipes, not `multiprocessing`: it works from notebooks, servers and scripts without a main guard.
    """

    def __init__(self, weights: Path, settings: EngineSettings | None = None) -> None:
        self._weights = weights
        self._settings = settings or EngineSettings()
        self._worker: _Worker | None = None
        self._owner = os.getpid()
        self._starting = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        worker = self._worker
        return worker.process.pid if worker and not worker.lost else None

    def start(self, body: Mapping[str, Any], put: Callable[[Event], None]) -> Cancel:
        """Begin a chat."""
        while True:
            worker = self._running()
            if cancel := worker.start(body, put):
                return cancel

    def warm(self) -> None:
        """Start the worker and wait until the model is loaded."""
        self._running().wait_ready()

    def close(self) -> None:
        """End the worker."""
        with self._starting:
            worker, self._worker = self._worker, None
        if worker:
            worker.stop()

    def _running(self) -> _Worker:
        if self._owner != os.getpid():  # this process was forked off: the worker's pipes and threads are the parent's
            self._owner, self._worker, self._starting = os.getpid(), None, threading.Lock()
        with self._starting:
            if self._worker is None or self._worker.lost:
                self._worker = _Worker(self._weights, self._settings)
                weakref.finalize(self, self._worker.stop)
            return self._worker


class _Worker:
    """One child process, the threads that talk to it, and the requests it is at."""

    def __init__(self, weights: Path, settings: EngineSettings) -> None:
        self.lost = False
        self._weights = weights
        self._broken: str | None = None
        self._said = ""
        self._ready = threading.Event()
        self._calls: dict[int, Callable[[Event], None]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._outgoing: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        setup = {**described(weights, settings), "parent": os.getpid(), "search": [engine_folder()]}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — read when the worker has died
        self.process = _spawn(self._errors)
        self._outgoing.put(setup)
        self._threads = [
            threading.Thread(target=target, name="slipform-worker-pipe", daemon=True)
            for target in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, body: Mapping[str, Any], put: Callable[[Event], None]) -> Cancel | None:
        """Send a request; None when the worker has just gone."""
        with self._lock:
            if self.lost:
                return None
            self._number += 1
            key = self._number
            self._calls[key] = put
        self._outgoing.put({"id": key, "body": body})
        return lambda: self._outgoing.put({"id": key, "cancel": True})

    def wait_ready(self) -> None:
        self._ready.wait()
        if self.lost:
            raise self._end()

    def stop(self) -> None:
        """End the process; requests under way end in an error."""
        with contextlib.suppress(OSError):
            self.process.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def _write(self) -> None:
        pipe = self.process.stdin
        # A worker that went away breaks the pipe; the reading side notices and tells everyone.
        with contextlib.suppress(OSError, ValueError):
            while pipe and (message := self._outgoing.get()) is not None:
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()

    def _read(self) -> None:
        try:
            for line in self.process.stdout or ():
                self._dispatch(json.loads(line))
        except (OSError, ValueError):
            self.process.kill()  # a line cut off in the middle: the process is on its way out
        finally:
            self._bury()

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        if "id" not in message:
            self._broken = message.get("broken")
            if self._broken is None:
                self._ready.set()
            return
        if "done" in message:
            with self._lock:
                put = self._calls.pop(message["id"], None)
            if put:
                put(None)
        elif put := self._calls.get(message["id"]):
            put(message["chunk"])

    def _bury(self) -> None:
        self.process.wait()
        with self._lock:
            self.lost = True
            orphans, self._calls = self._calls, {}
        self._outgoing.put(None)
        self._threads[0].join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        with self._errors:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_WORDS))
            self._said = self._errors.read().decode(errors="replace").strip()
        self._ready.set()
        for put in orphans.values():
            put(self._end())

    def _end(self) -> LocalModelError:
        if self._broken is not None:
            return unloadable(self._weights, self._broken)
        return WorkerLostError(
            f"The embedded model's worker process {_fate(self.process.returncode)} before it had answered",
            hint="Ask again: the next request starts a new one. If it stays so, there may be too little memory.",
            details={"stderr": self._said} if self._said else None,
        )


def _spawn(errors: IO[bytes]) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise LocalModelError(
            "The embedded model's worker needs the path of a Python program, and this one has none",
            hint="Use LocalProvider(in_process=True).",
        )
    try:
        # Run as a file: `-m` would import the whole of slipform first. -P keeps its folder off the search path. In a
        # session of its own it does not get the terminal's Ctrl-C: the parent decides what to stop.
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", llama.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise LocalModelError(f"The embedded model's worker could not be started: {error}") from error


def _fate(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

"""Run the engine in a child process that is restarted when it dies."""

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

from slipform.addons.local import llama
from slipform.addons.local.engine import (
    Cancel,
    EngineSettings,
    GenerationEvent,
    engine_folder,
    engine_message,
    unloadable,
)
from slipform.errors import LocalModelError

_STDERR_BYTES = 400


class WorkerLostError(LocalModelError):
    """The worker process ended during a request; the next request starts a new one."""


class WorkerEngine:
    """Runs a model in a child process, which is started with the first request and again if it dies.

    A plain child with pipes, not `multiprocessing`: it works in notebooks, servers and scripts without a main guard.
    """

    def __init__(self, weights: Path, settings: EngineSettings | None = None) -> None:
        self._weights = weights
        self._settings = settings or EngineSettings()
        self._worker: _Worker | None = None
        self._pid = os.getpid()
        self._starting = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        worker = self._worker
        if worker and not worker.lost:
            return worker.process.pid
        return None

    @property
    def running(self) -> int:
        """The number of the worker's requests in progress, including those that wait for a slot."""
        return self._worker.running if self._worker else 0

    @property
    def slots(self) -> int:
        """The number of requests that generate concurrently."""
        return self._settings.slots + self._settings.short_slots

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel:
        """Start a generation; see `InferenceEngine.start`."""
        while True:
            worker = self._running_worker()
            if cancel := worker.start(body, put):
                return cancel

    def warm(self) -> None:
        """Start the worker and wait until the model is loaded."""
        self._running_worker().wait_ready()

    def close(self) -> None:
        """End the worker."""
        with self._starting:
            worker = self._worker
            self._worker = None
        if worker:
            worker.stop()

    def _running_worker(self) -> _Worker:
        if self._pid != os.getpid():  # this process is a fork: the worker's pipes and threads belong to the parent
            self._pid, self._worker, self._starting = os.getpid(), None, threading.Lock()
        with self._starting:
            if self._worker is None or self._worker.lost:
                self._worker = _Worker(self._weights, self._settings)
                weakref.finalize(self, self._worker.stop)
            return self._worker


class _Worker:
    """One child process, the threads of its pipes, and its running requests; owned by a `WorkerEngine`."""

    def __init__(self, weights: Path, settings: EngineSettings) -> None:
        self.lost = False
        self._weights = weights
        self._load_error: str | None = None
        self._stderr_text = ""
        self._ready = threading.Event()
        self._calls: dict[int, Callable[[GenerationEvent], None]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._outgoing: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        setup = {**engine_message(weights, settings), "parent": os.getpid(), "search": [engine_folder()]}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 — read when the worker has died
        self.process = _spawn(self._errors)
        self._outgoing.put(setup)
        self._threads = [
            threading.Thread(target=target, name="slipform-worker-pipe", daemon=True)
            for target in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, body: Mapping[str, Any], put: Callable[[GenerationEvent], None]) -> Cancel | None:
        """Send a request; return None when the worker has just ended."""
        with self._lock:
            if self.lost:
                return None
            self._number += 1
            key = self._number
            self._calls[key] = put
        self._outgoing.put({"id": key, "body": body})
        return lambda: self._outgoing.put({"id": key, "cancel": True})

    @property
    def running(self) -> int:
        return len(self._calls)

    def wait_ready(self) -> None:
        self._ready.wait()
        if self.lost:
            raise self._lost_error()

    def stop(self) -> None:
        """Kill the process; running requests end in an error."""
        with contextlib.suppress(OSError):
            self.process.kill()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5)

    def _write(self) -> None:
        pipe = self.process.stdin
        # A worker that ended breaks the pipe; `_read` notices and fails the requests.
        with contextlib.suppress(OSError, ValueError):
            while pipe and (message := self._outgoing.get()) is not None:
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()

    def _read(self) -> None:
        try:
            for line in self.process.stdout or ():
                self._dispatch(json.loads(line))
        except (OSError, ValueError):
            self.process.kill()  # a truncated line: the process is ending
        finally:
            self._on_exit()

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        if "id" not in message:
            self._load_error = message.get("broken")
            if self._load_error is None:
                self._ready.set()
            return
        if "done" in message:
            with self._lock:
                put = self._calls.pop(message["id"], None)
            if put:
                put(None)
        elif put := self._calls.get(message["id"]):
            put(message["chunk"])

    def _on_exit(self) -> None:
        self.process.wait()
        with self._lock:
            self.lost = True
            calls = self._calls
            self._calls = {}
        self._outgoing.put(None)
        self._threads[0].join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()
        with self._errors:
            self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _STDERR_BYTES))
            self._stderr_text = self._errors.read().decode(errors="replace").strip()
        self._ready.set()
        for put in calls.values():
            put(self._lost_error())

    def _lost_error(self) -> LocalModelError:
        if self._load_error is not None:
            return unloadable(self._weights, self._load_error)
        return WorkerLostError(
            f"The embedded model's worker process {_exit_reason(self.process.returncode)} before it had answered",
            hint="Retry: the next request starts a new one. If it fails again, there may be too little memory.",
            details={"stderr": self._stderr_text} if self._stderr_text else None,
        )


def _spawn(errors: IO[bytes]) -> subprocess.Popen[bytes]:
    if not sys.executable:
        raise LocalModelError(
            "The embedded model's worker needs the path of a Python program, and this one has none",
            hint="Use LocalProvider(in_process=True).",
        )
    try:
        # Run as a file, because `-m` would import all of slipform first. -P keeps its folder off the search path. In a
        # separate session it does not receive the terminal's Ctrl-C: the parent decides what to stop.
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", llama.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    except OSError as error:
        raise LocalModelError(f"The embedded model's worker could not be started: {error}") from error


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

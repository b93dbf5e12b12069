"""Run llama.cpp behind a queue of generations; also the program of the worker process.

Imports nothing of slipform: the worker runs this file as a program, and must start fast. The in-process engine imports
it as a module, so both run the same code.

The worker's protocol is JSON, one message per line. In: the settings first, then `{"id", "body"}` to generate and
`{"id", "cancel": true}` to stop. Out: `{"id", "chunk"}` for each chunk and `{"id", "done": true}` at the end;
`{"broken": reason}` when the model cannot be loaded. The end of standard input ends the process, so that no worker
outlives its parent.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

Chunk = Mapping[str, Any]


@dataclass(slots=True)
class GenerationJob:
    """One generation; `put` is called with each chunk, then None."""

    body: Mapping[str, Any]
    put: Callable[[Chunk | None], None]
    cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def is_short(self) -> bool:
        """Whether the request was marked as a short one."""
        return bool(self.body.get(IS_SHORT))


IS_SHORT = "slipform_is_short"
"""The field of a body that marks a short request; the engine ignores it."""


_SPINS = "2000"
"""Some microseconds: about the time by which threads differ."""


def limit_spin_waits() -> None:
    """Make the engine's threads wait for each other in a short spin, then asleep.

    Without a limit, spinning stops all other threads on busy cores: less than a token per second was measured.
    Without spinning, idle machines wake them hundreds of times per token: 50 ms each, instead of 15 with two threads.
    Call it before the engine's library is loaded: it reads the variables only then.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)


def load_model(settings: Mapping[str, Any]) -> Any:
    """Load the engine with a model; raises ImportError without the engine and RuntimeError without the model."""
    limit_spin_waits()
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.n_parallel = settings["slots"] + settings["short_slots"]
    params.n_ctx = settings["context"] * params.n_parallel
    params.kv_unified = False
    params.warmup = False
    params.verbosity = 0
    params.ui = False
    # Finished prompts would be cached in up to 8 GB of memory; the one in each slot is sufficient.
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    # The engine always opens an HTTP port on loopback: lock it.
    params.api_keys = [secrets.token_urlsafe(32)]
    threads = settings.get("threads") or min(4, os.cpu_count() or 1)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)


_LONGEST_TOKEN = 30
"""Seconds for a thread to finish its current token when its engine is closed."""


class EngineSlots:
    """One thread per concurrent generation of the engine; further ones wait in order.

    Threads beyond `count` take short jobs only, so that these do not wait until long ones have ended.
    """

    def __init__(self, model: Any, count: int, short_count: int = 0) -> None:
        self._model = model
        self._closed = False
        self._running: list[GenerationJob] = []
        self._waiting: list[GenerationJob] = []
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=(number >= count,), name=f"slipform-slot-{number}", daemon=True)
            for number in range(count + short_count)
        ]
        for thread in self._threads:
            thread.start()
        # A thread that is still inside the engine when the interpreter ends would abort the process.
        atexit.register(self.close)

    def start(self, job: GenerationJob) -> None:
        """Queue a generation."""
        with self._changed:
            if not self._closed:
                self._waiting.append(job)
                self._changed.notify_all()
                return
        job.put({"error": {"code": 503, "message": "the model has been let go"}})
        job.put(None)

    def close(self) -> None:
        """Stop the running generations, within a token each, and wait until their threads have ended."""
        with self._changed:
            self._closed = True
            for job in [*self._running, *self._waiting]:
                job.cancelled.set()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LONGEST_TOKEN)
        atexit.unregister(self.close)

    def _work(self, short_only: bool) -> None:
        while (job := self._next_job(short_only)) is not None:
            try:
                if not job.cancelled.is_set():
                    generate(self._model, job)
            finally:
                self._running.remove(job)
                job.put(None)

    def _next_job(self, short_only: bool) -> GenerationJob | None:
        """Wait for the next job of this thread; None when the engine is closed and no job waits."""
        with self._changed:
            while True:
                for number, job in enumerate(self._waiting):
                    if job.is_short or not short_only or self._closed:
                        self._running.append(job)
                        return self._waiting.pop(number)
                if self._closed:
                    return None
                self._changed.wait()


LISTED = 400
"""The alternatives that are requested with each token under a grammar, to compute its probability among those
that the grammar allows. More of them cost more than they add."""


class AdmittedTokens:
    r"""Computes the probability of each token among those that the grammar allows at its place.

    The engine reports probabilities from before the grammar has excluded anything; after that, only the chosen token.
    So the likeliest tokens are tried on a matcher of the same grammar, byte by byte. `admitted` is None for a token
    that the matcher does not accept, and for all after it.

    >>> answer = AdmittedTokens('%llguidance {}\nstart: "yes" | "no"')
    >>> round(math.exp(answer.admitted(b"no", -3.0, [(b"1", -0.1), (b"no", -3.0), (b"yes", -4.0)])), 2)
    0.73
    """

    def __init__(self, grammar: str) -> None:
        try:
            import llguidance
        except ImportError:
            self._matcher = None
        else:
            self._matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar)

    def admitted(self, token: bytes, logprob: float, listed: Sequence[tuple[bytes, float]]) -> float | None:
        """Return the log-probability of a token among the allowed ones, and advance the matcher.

        A token that is not listed is at most as likely as the last listed one. If no other listed token was admitted,
        one may come right below the list: the figure then assumes the worst case.
        """
        matcher = self._matcher
        if matcher is None:
            return None
        others = [
            math.exp(each)
            for data, each in listed
            if data and data != token and matcher.validate_tokens(list(data)) == len(data)
        ]
        own = math.exp(logprob)
        forced = matcher.compute_ff_bytes() if not others else b""
        is_sure = bool(forced) and token.startswith(forced[: len(token)])  # the grammar allows nothing else
        if not others and listed and not is_sure:
            others.append(min(own, math.exp(min(each for _, each in listed))))
        if not matcher.consume_tokens(list(token)):
            self._matcher = None
            return None
        if own > 0:
            return math.log(own / (own + sum(others)))
        return None

    def note(self, chunk: Chunk, most: int) -> Chunk:
        """Return a chunk whose tokens have their `admitted_logprob`, with only the requested alternatives."""
        for choice in chunk.get("choices", ()):
            for entry in (choice.get("logprobs") or {}).get("content") or ():
                listed = [(bytes(each["bytes"]), each["logprob"]) for each in entry["top_logprobs"]]
                admitted = self.admitted(bytes(entry["bytes"]), entry["logprob"], listed)
                if admitted is not None:
                    entry["admitted_logprob"] = admitted
                entry["top_logprobs"] = entry["top_logprobs"][:most]
        return chunk


def generate(model: Any, job: GenerationJob) -> None:
    """Run one generation to its end, or until it is cancelled: within a token."""
    body = {**job.body, "stream": True}
    admitted = None
    most = body.get("top_logprobs", 0)
    if body.get("logprobs") and body.get("grammar"):
        admitted = AdmittedTokens(body["grammar"])
        body["top_logprobs"] = max(most, LISTED)

    def forward(chunk: Chunk) -> bool:
        if job.cancelled.is_set():
            return True
        job.put(chunk if admitted is None else admitted.note(chunk, most))
        return False

    try:
        model.handle_chat_completions(body, forward)
    except (RuntimeError, ValueError, TypeError) as error:
        job.put({"error": {"code": 500, "message": str(error)}})


def main() -> None:
    """Serve one model over standard input and output."""
    out = _protocol_output()
    write_lock = threading.Lock()

    def send(message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with write_lock:
            out.write(line)
            out.flush()

    lines = iter(sys.stdin.buffer.readline, b"")
    settings = json.loads(next(lines))
    sys.path.extend(settings["search"])
    threading.Thread(target=_exit_with_parent, args=(settings["parent"],), daemon=True).start()
    try:
        slots = EngineSlots(load_model(settings), settings["slots"], settings["short_slots"])
    except (ImportError, RuntimeError) as error:
        send({"broken": str(error)})
        return
    send({"ready": True})
    jobs: dict[int, GenerationJob] = {}
    for line in lines:
        message = json.loads(line)
        key = message["id"]
        if "cancel" in message:
            if key in jobs:
                jobs[key].cancelled.set()
        else:
            jobs[key] = GenerationJob(message["body"], _reporter(send, jobs, key))
            slots.start(jobs[key])


def _reporter(
    send: Callable[[Mapping[str, Any]], None], jobs: dict[int, GenerationJob], key: int
) -> Callable[[Chunk | None], None]:
    def put(chunk: Chunk | None) -> None:
        if chunk is not None:
            send({"id": key, "chunk": chunk})
        else:
            jobs.pop(key, None)
            send({"id": key, "done": True})

    return put


def _protocol_output() -> IO[bytes]:
    """Reserve standard output for the protocol; other output of the engine goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _exit_with_parent(parent: int) -> None:
    # Usually the pipe ends first, but a child that the parent forked may keep it open.
    while sys.platform != "win32" and os.getppid() == parent:
        time.sleep(2)
    if sys.platform != "win32":
        os._exit(0)


if __name__ == "__main__":
    try:
        main()
    finally:
        # Without the interpreter's clean-up, because threads are inside the engine.
        sys.stderr.flush()
        os._exit(0)

"""The worker process: what happens when it dies, and when its parent does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from slipform.addons.local import LocalProvider
from slipform.addons.local.engine import GenerationEvent
from slipform.addons.local.llama import limit_spin_waits
from slipform.addons.local.weights import SMOLLM2, find
from slipform.addons.local.worker import WorkerEngine, WorkerLostError
from slipform.errors import LocalModelError
from slipform.ir import Message, ModelRequest, ModelResponse
from slipform.schema import JsonSchemaSpec, ResponseFormat
from tests.conftest import THOROUGH
from tests.providers.embedded.conftest import events_of
from tests.waiting import until, until_async

pytestmark = [pytest.mark.local, pytest.mark.xdist_group("local")]

LONG = {"type": "array", "items": {"type": "integer", "maximum": 9, "minimum": 0}, "minItems": 30, "maxItems": 30}
BODY = {"messages": [{"role": "user", "content": "Count up."}], "max_tokens": 400, "temperature": 0}


@pytest.fixture
def engine() -> Iterator[WorkerEngine]:
    path = find(SMOLLM2)
    assert path
    with contextlib.closing(WorkerEngine(path)) as engine:
        yield engine


@pytest.fixture
def generated(engine: WorkerEngine, monkeypatch: pytest.MonkeyPatch) -> list[GenerationEvent]:
    """What the engine has generated for requests that were started since."""
    return events_of(engine, monkeypatch)


@pytest.fixture
def provider(engine: WorkerEngine) -> LocalProvider:
    return LocalProvider(lambda _: engine)


def request(max_tokens: int = 400) -> ModelRequest:
    spec = ResponseFormat.strict(JsonSchemaSpec("digits", LONG))
    return ModelRequest("", (Message.user("Count up."),), spec, max_tokens=max_tokens)


def kill(engine: WorkerEngine) -> None:
    if engine.pid:
        os.kill(engine.pid, signal.SIGKILL)


def gone(pid: int) -> bool:
    def is_gone() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state == "Z"  # dead; whoever adopted it has not looked yet

    return until(is_gone)


def test_a_worker_that_dies_is_replaced_and_the_answer_given(
    engine: WorkerEngine, provider: LocalProvider, generated: list[GenerationEvent]
) -> None:
    engine.warm()
    first = engine.pid
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(provider.complete, request())
        assert until(lambda: generated)
        kill(engine)
        assert len(json.loads(answer.result(60).text)) == 30
    assert engine.pid not in (None, first)


def test_a_stream_that_has_begun_ends_in_a_clear_error(engine: WorkerEngine, provider: LocalProvider) -> None:
    stream = provider.stream(request())
    next(stream)
    kill(engine)
    with pytest.raises(LocalModelError, match="SIGKILL"):
        list(stream)
    assert provider.complete(request(4)).usage.output == 4


async def test_async_requests_survive_too(
    engine: WorkerEngine, provider: LocalProvider, generated: list[GenerationEvent]
) -> None:
    tasks = [asyncio.create_task(provider.complete_async(request(30))) for _ in range(3)]
    assert await until_async(lambda: generated)
    kill(engine)
    assert all(answer.usage.output for answer in await asyncio.gather(*tasks))


def test_a_worker_that_dies_twice_is_an_error(engine: WorkerEngine, provider: LocalProvider) -> None:
    stop = threading.Event()

    def reaper() -> None:
        while not stop.wait(0.02):
            kill(engine)

    thread = threading.Thread(target=reaper)
    thread.start()
    try:
        with pytest.raises(WorkerLostError, match="SIGKILL"):
            provider.complete(request())
    finally:
        stop.set()
        thread.join()


def test_closing_ends_the_process_and_what_it_is_at(engine: WorkerEngine) -> None:
    events: SimpleQueue[GenerationEvent] = SimpleQueue()
    engine.start(BODY, events.put)
    events.get()
    pid = engine.pid
    assert pid
    engine.close()
    assert gone(pid)
    while isinstance(last := events.get(timeout=5), dict):
        pass
    assert isinstance(last, LocalModelError)


def test_a_provider_that_is_forgotten_takes_its_worker_along() -> None:
    path = find(SMOLLM2)
    assert path
    engine: WorkerEngine | None = WorkerEngine(path)
    assert engine
    engine.warm()
    pid = engine.pid
    assert pid
    del engine
    assert gone(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_parent(how: signal.Signals) -> None:
    # No main guard, and standard input closed: the worker must start from any script.
    script = (
        "from slipform.addons.local.weights import SMOLLM2, find\n"
        "from slipform.addons.local.worker import WorkerEngine\n"
        "import signal\n"
        "engine = WorkerEngine(find(SMOLLM2)); engine.warm(); print(engine.pid, flush=True); signal.pause()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        parent.send_signal(how)
    assert gone(pid)


def test_a_forked_child_starts_a_worker_of_its_own(engine: WorkerEngine) -> None:
    engine.warm()
    ours = engine.pid
    engine._pid = -1  # what a forked child sees: another process made it
    engine.warm()
    theirs = engine.pid
    assert ours
    assert theirs not in (None, ours)
    os.kill(ours, signal.SIGKILL)
    assert gone(ours)


@pytest.mark.slow
def test_kills_under_load_lose_nothing(
    engine: WorkerEngine, provider: LocalProvider, generated: list[GenerationEvent]
) -> None:
    """Every request ends in an answer or a clear error, none hangs, and the memory comes back."""
    engine.warm()
    before = memory(engine)
    threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    stop = threading.Event()
    outcomes: list[ModelResponse | LocalModelError] = []

    def ask() -> None:
        while not stop.is_set():
            try:
                outcomes.append(provider.complete(request(30)))
            except LocalModelError as error:
                outcomes.append(error)

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        for _ in range(20 if THOROUGH else 3):
            with contextlib.suppress(LocalModelError):
                engine.warm()
            generated.clear()
            assert until(lambda: len(generated) > 5)  # into the middle of a generation
            kill(engine)
        stop.set()
        for each in asking:
            each.result(60)
    assert len(outcomes) >= 4
    assert provider.complete(request(30)).usage.output == 30
    assert memory(engine) < before * 1.3
    assert threading.active_count() <= threads
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


def memory(engine: WorkerEngine) -> int:
    status = Path(f"/proc/{engine.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def test_the_threads_of_the_engine_spin_shortly_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    limit_spin_waits()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert 100 <= int(os.environ["GOMP_SPINCOUNT"]) <= 10_000
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    limit_spin_waits()
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_the_worker_imports_nothing_of_slipform() -> None:
    from slipform.addons.local import llama

    code = (
        f"import runpy, sys; runpy.run_path({llama.__file__!r}); print(sorted(m for m in sys.modules if 'slip' in m))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_chunk_for_nobody_is_dropped(engine: WorkerEngine) -> None:
    seen: list[Any] = []
    cancel = engine.start(BODY, seen.append)
    cancel()
    events: SimpleQueue[GenerationEvent] = SimpleQueue()
    engine.start({**BODY, "max_tokens": 2}, events.put)
    while events.get(timeout=60) is not None:
        pass

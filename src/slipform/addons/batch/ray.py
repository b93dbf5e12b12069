"""Answer the rows of a batch, or the questions of an extraction, on a Ray cluster.

The process that was started reads the rows, decides which are in progress, and writes journal and results, as it does
on one machine; only the calls are made elsewhere, by actors. So no row waits for the slowest of its neighbours,
`concurrency` and the pauses that a vendor asks for hold over all nodes, and a row whose actor is lost is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from slipform.addons.batch.call import FinishedRow, RowCaller, row_caller
from slipform.addons.batch.jobs import BatchJob, Task
from slipform.errors import ConfigError, SlipformError, UpstreamError
from slipform.named_schemas import schema_named
from slipform.schema import Schema

T = TypeVar("T")
_PROBE_SECONDS = 4.0
"""How long the address of a cluster may take to accept a connection, and to speak."""
_CONNECT_SECONDS = 10.0
"""How long a cluster whose address speaks may take until it is connected: with the probe, an error within 20 s."""
_START_SECONDS = 120.0
"""How long Ray may take to start on this machine."""
_ACTOR_SECONDS = 60.0
"""How long the first actor may take to be ready, and one to replace the last that was lost."""
_COLLECT_SECONDS = 0.002
"""How long an answer waits for others, so that a call of Ray's, a millisecond of CPU, returns several."""
_LOSSES_PER_TASK = 3
"""Actors that one row may lose: it may be the row that ends them."""


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """The part of a job that can be pickled; the schema is built again from `shape` in the worker."""

    fields: Mapping[str, Any]
    """The fields of `BatchJob`, without those of `_DRIVER_FIELDS`."""
    folder: str
    """The driver's working directory, from which `module:Class` is imported."""

    @classmethod
    def of(cls, job: BatchJob) -> RemoteJob:
        """Return what a worker needs to know of the job."""
        names = (each.name for each in fields(job) if each.name not in _DRIVER_FIELDS)
        return cls(
            {name: getattr(job, name) for name in names} | {"shape": portable_schema(job.shape, job.schema)},
            str(Path.cwd()),
        )

    def job(self) -> BatchJob:
        """Return the job again, in the worker."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        schema = schema_named(self.fields["shape"], self.fields["settings"])
        return BatchJob(out=Path(), schema=schema, **self.fields)


_DRIVER_FIELDS: Final = frozenset({"out", "schema", "failures", "format"})


def portable_schema(shape: Any, schema: Schema[Any]) -> Any:
    """Return what a worker builds the schema from: `module:Class` or a type, for its validators; else the document."""
    is_plain_name = isinstance(shape, str) and ":" not in shape
    if is_plain_name or isinstance(shape, Path | Schema):
        return dict(schema.document)
    return shape


class TaskActor:
    """A Ray actor that answers tasks concurrently; its `prepare` is called first, and returns an error of the job.

    Tasks and answers travel in groups, because a call of Ray's takes longer than a row: one by one, a node reached
    0.23 of the rows per second of this machine alone.
    """

    def __init__(self, answer: Callable[[Any], Awaitable[Any]]) -> None:
        """`answer` returns errors as values: Ray would wrap those that are raised."""
        self._answer = answer
        self._finished: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, tasks: Sequence[tuple[int, Any]]) -> None:
        """Begin with these tasks, each with its number; `collect` returns their answers."""
        for number, task in tasks:
            running = asyncio.create_task(self._finish(number, task))
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def collect(self) -> list[tuple[int, Any]]:
        """Wait for an answer; return it with its number, and all others that come within two milliseconds."""
        answers = [await self._finished.get()]
        await asyncio.sleep(_COLLECT_SECONDS)
        while not self._finished.empty():
            answers.append(self._finished.get_nowait())
        return answers

    async def _finish(self, number: int, task: Any) -> None:
        try:
            answer = await self._answer(task)
        except Exception as error:  # noqa: BLE001 — raised again where the task was submitted
            answer = RuntimeError(f"A Ray worker failed: {error!r}")
        self._finished.put_nowait((number, answer))


class RowActor(TaskActor):
    """A Ray actor that answers rows with one client and one event loop."""

    def __init__(self, remote_job: RemoteJob) -> None:
        super().__init__(self.ask)
        self._remote_job = remote_job
        self._caller: RowCaller

    async def prepare(self) -> SlipformError | None:
        """Make the client; what is wrong with the job here is returned, because Ray would wrap what is raised."""
        try:
            self._caller = row_caller(self._remote_job.job(), None)
        except SlipformError as error:
            return error
        return None

    async def ask(self, task: Task) -> FinishedRow | SlipformError:
        """Return the finished row, or the error that `RowCaller.ask` raises."""
        try:
            return await self._caller.ask(task)
        except SlipformError as error:
            error.report = None  # Ray pickles the error, and a report need not be picklable
            return error


class ActorTasks:
    """The tasks that one actor has: they are submitted in groups, and so are their answers collected."""

    def __init__(self, actor: Any, lost: tuple[type[Exception], ...]) -> None:
        self.actor = actor
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self._lost = lost
        self._next_number = 0
        self._unsent: list[tuple[int, Any]] = []
        self._collector: asyncio.Task[None] | None = None

    def ask(self, task: Any) -> asyncio.Future[Any]:
        """Return the answer to a task when it is there; it raises one of `lost` when the actor has ended."""
        loop = asyncio.get_running_loop()
        number = self._next_number
        self._next_number += 1
        answer: asyncio.Future[Any] = loop.create_future()
        self.waiting[number] = answer
        self._unsent.append((number, task))
        if len(self._unsent) == 1:
            loop.call_soon(self._submit)
        if self._collector is None:
            self._collector = loop.create_task(self._collect())
        return answer

    def _submit(self) -> None:
        tasks = self._unsent
        self._unsent = []
        self.actor.submit.remote(tasks)

    async def _collect(self) -> None:
        try:
            while self.waiting:
                for number, answer in await self.actor.collect.remote():
                    self._resolve(self.waiting.pop(number), answer)
        except self._lost as error:
            waiting = list(self.waiting.values())
            self.waiting.clear()
            for future in waiting:
                self._resolve(future, error)
        finally:
            self._collector = None

    def _resolve(self, future: asyncio.Future[Any], answer: Any) -> None:
        if future.done():
            return  # it was cancelled
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


class ActorPool:
    """Actors of a cluster that answer tasks: each goes to the actor that has the fewest, and again when that is lost.

    `actor_class(*arguments)` is a `TaskActor` with `prepare`, which returns an error or None.
    """

    def __init__(self, ray: Any, actor_class: type[TaskActor], arguments: Sequence[Any], actors: int) -> None:
        self._ray = ray
        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(actor_class)
        self._new_actor: Callable[[], Any] = lambda: actor.remote(*arguments)
        self._lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, ray.exceptions.NodeDiedError)
        self._actors: list[ActorTasks] = []
        """The actors that are ready."""
        self._ready = asyncio.Condition()
        self._starting = {asyncio.create_task(self._start()) for _ in range(actors)}
        self._failure: SlipformError | None = None

    async def ask(self, task: Any) -> Any:
        """Return the answer to a task; raises `UpstreamError` when the vendor fails."""
        for _ in range(_LOSSES_PER_TASK):
            tasks = await self._least_busy()
            try:
                return await tasks.ask(task)
            except self._lost:
                self._replace(tasks)
        raise UpstreamError(
            f"{_LOSSES_PER_TASK} Ray workers in a row ended while they had this row",
            hint="Ray's logs say why; a worker that runs out of memory is killed. Retry with --retry-failures.",
        )

    async def _least_busy(self) -> ActorTasks:
        async with self._ready:
            try:
                async with asyncio.timeout(_ACTOR_SECONDS):
                    await self._ready.wait_for(lambda: self._actors or self._failure)
            except TimeoutError:
                raise ConfigError(
                    f"No worker came up on the Ray cluster within {_ACTOR_SECONDS:.0f} s",
                    hint="Each needs one free CPU: `ray status` shows what is in use.",
                ) from None
            if self._failure is not None:
                raise self._failure
            return min(self._actors, key=lambda tasks: len(tasks.waiting))

    def _replace(self, tasks: ActorTasks) -> None:
        """Start another actor for one that is lost; the first row that notices does."""
        if tasks in self._actors:
            self._actors.remove(tasks)
            self._starting.add(asyncio.create_task(self._start()))

    async def _start(self) -> None:
        """Start an actor; rows go to it as soon as it is ready."""
        try:
            actor = self._new_actor()
            error = await actor.prepare.remote()
        except self._lost:
            self._starting.add(asyncio.create_task(self._start()))
            return
        except self._ray.exceptions.RayError as raised:
            reason = str(raised).strip().splitlines()[-1]
            error = ConfigError(
                f"A Ray worker cannot do this job: {reason}", hint="It needs slipform and your modules."
            )
        finally:
            if (this := asyncio.current_task()) is not None:
                self._starting.discard(this)
        async with self._ready:
            if error is not None:
                self._failure = error
            else:
                self._actors.append(ActorTasks(actor, self._lost))
            self._ready.notify_all()

    async def close(self) -> None:
        """Stop waiting for actors, and end those that are there."""
        for starting in self._starting:
            starting.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)
        for tasks in self._actors:
            self._ray.kill(tasks.actor)


class RayCaller:
    """Answers rows on actors of a cluster."""

    def __init__(self, pool: ActorPool, local: RowCaller) -> None:
        self._pool = pool
        self._local = local

    async def ask(self, task: Task) -> FinishedRow:
        """Return the finished row; raises `UpstreamError` when the vendor fails."""
        finished: FinishedRow = await self._pool.ask(task)
        return finished

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """Return the row as failed, with the reason."""
        return self._local.failed(task, error)


@contextlib.asynccontextmanager
async def caller_on_ray(local: RowCaller) -> AsyncIterator[RayCaller]:
    """Yield a caller that answers rows on a Ray cluster; see `actor_pool`."""
    async with actor_pool(RowActor, [RemoteJob.of(local.job)], local.job.concurrency) as pool:
        yield RayCaller(pool, local)


@contextlib.asynccontextmanager
async def actor_pool(
    actor_class: type[TaskActor], arguments: Sequence[Any], concurrency: int
) -> AsyncIterator[ActorPool]:
    """Yield a pool of actors on the cluster at `RAY_ADDRESS`, or on a cluster started on this machine for it.

    The workers need the vendors' keys in their environment, and must be able to import the modules that the job names.
    """
    ray = _ray()
    started_here = not ray.is_initialized()
    if started_here:
        _connect(ray)
    cpus = int(_bounded(ray.cluster_resources, _CONNECT_SECONDS).get("CPU", 1))
    pool = ActorPool(ray, actor_class, arguments, max(1, min(cpus, concurrency)))
    try:
        yield pool
    finally:
        await pool.close()
        if started_here:
            ray.shutdown()


def _connect(ray: Any) -> None:
    """Connect, or start Ray here; what does not answer is an error soon, where Ray itself would continue trying."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _PROBE_SECONDS) as connection:
                connection.sendall(_HTTP2_PREFACE)
                frame_head = connection.recv(_HTTP2_FRAME_HEAD)
        except OSError as error:
            raise _unreachable(address, error.strerror or "it does not answer in time") from error
        if frame_head[3:4] != _HTTP2_SETTINGS:
            raise _unreachable(address, "what listens there is not Ray")
    logging.getLogger("ray._private.worker").addFilter(_is_not_about_threads)
    init = partial(ray.init, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        _bounded(init, _CONNECT_SECONDS if address else _START_SECONDS)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreachable(address, str(error).strip()) from error


def _is_not_about_threads(record: logging.LogRecord) -> bool:
    """Drop Ray's remark that it was not started in the main thread, where nothing could bound it."""
    return "not the main thread" not in record.getMessage()


def _bounded(call: Callable[[], T], seconds: float) -> T:
    """Return what a call of Ray's returns; raises `ConfigError` when that takes too long.

    Ray continues trying for ever, e.g. when it replaces 127.0.0.1 by an address on which the cluster does not listen.
    Its calls cannot be cancelled: the thread is left behind, and ends with the process.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 — raised again in the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=run, name="slipform-ray", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError:
        if outcome.done():
            raise
        raise _unreachable(os.environ.get("RAY_ADDRESS", ""), f"no answer within {seconds:.0f} s") from None


# Ray's control service speaks gRPC: such a server answers the first bytes of HTTP/2 with a frame of settings.
_HTTP2_SETTINGS = b"\x04"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + _HTTP2_SETTINGS + b"\x00\x00\x00\x00\x00"
_HTTP2_FRAME_HEAD = 9


def _unreachable(address: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The Ray cluster cannot be reached: {reason}",
        where=f"RAY_ADDRESS={address}" if address else None,
        hint="`ray status` shows whether it runs; without RAY_ADDRESS one is started on this machine.",
    )


def _ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else every start prints a warning
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("Ray is not installed", hint="Run `pip install 'slipform[ray]'`.") from None
    return ray

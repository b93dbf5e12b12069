"""Answer the rows of a batch on a Ray cluster.

Ray sees chunks of rows, which come back in order, so that journal and results are the same as on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from slipform.errors import ConfigError, SlipformError
from slipform.named_schemas import schema_named
from slipform.runner.call import FinishedRow, row_caller
from slipform.runner.jobs import BatchJob, PendingRows, Task
from slipform.runner.outputs import FRAME_SECONDS, SYNC_SECONDS, Display
from slipform.runner.scheduler import AdaptiveConcurrency, SlowDown, answer_rows
from slipform.schema import Schema


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """The part of a job that can be pickled; the schema is built again from `shape` in the worker."""

    fields: Mapping[str, Any]
    """The fields of `BatchJob`, without those of `_DRIVER_FIELDS`."""
    folder: str
    """The driver's working directory, from which `module:Class` is imported."""

    @classmethod
    def of(cls, job: BatchJob, concurrency: int) -> RemoteJob:
        """Return the job, with this many calls at a time."""
        names = (each.name for each in fields(job) if each.name not in _DRIVER_FIELDS)
        changes = {"input": job.input.resolve(), "shape": _portable_shape(job), "concurrency": concurrency}
        return cls({name: getattr(job, name) for name in names} | changes, str(Path.cwd()))

    def job(self) -> BatchJob:
        """Return the job again, in the worker."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        schema = schema_named(self.fields["shape"], self.fields["settings"])
        return BatchJob(out=Path(), schema=schema, **self.fields)


_DRIVER_FIELDS: Final = frozenset({"out", "schema", "failures", "format"})


def _portable_shape(job: BatchJob) -> Any:
    """Return what a worker builds the schema from: `module:Class` or a type, for its validators; else the document."""
    shape = job.shape
    plain = isinstance(shape, str) and ":" not in shape
    return dict(job.schema.document) if plain or isinstance(shape, Path | Schema) else shape


_ROWS_PER_CALL = 4
"""Rows of a chunk for each concurrent call: the slowest row of a chunk holds up few others."""


def answer_on_ray(
    job: BatchJob,
    pending: PendingRows,
    on_row: Callable[[FinishedRow], None],
    flush: Callable[[], None],
    display: Display,
) -> None:
    """Answer every pending row on the Ray cluster of the environment, or on one started on this machine.

    Workers read the input and the vendors' keys themselves: the file must be visible to them, and the keys in their
    environment.
    """
    ray = _ray()
    started_here = not ray.is_initialized()
    if started_here:
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        with display, _context(ray):
            chunks = _chunks(ray, job, pending)
            _collect(chunks, on_row, flush, display)
    finally:
        if started_here:
            ray.shutdown()


def _chunks(ray: Any, job: BatchJob, pending: PendingRows) -> Iterator[bytes]:
    processors = int(ray.cluster_resources().get("CPU", 1))
    actors = max(1, min(processors - 1, job.concurrency))
    share = -(-job.concurrency // actors)
    remote_job = RemoteJob.of(job, share)
    board = ray.remote(num_cpus=0)(SlowDownBoard).remote()
    rows = ray.data.read_datasource(_source(ray, remote_job, pending, share * _ROWS_PER_CALL), override_num_blocks=1)
    chunks = rows.map_batches(
        _Worker,
        fn_constructor_args=(remote_job, board),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
    )
    for row in chunks.iter_rows():
        yield row["chunk"]


def _collect(
    chunks: Iterator[bytes], on_row: Callable[[FinishedRow], None], flush: Callable[[], None], display: Display
) -> None:
    last_frame = last_sync = time.monotonic()
    for chunk in chunks:
        answers, error = pickle.loads(chunk)  # noqa: S301 — our own workers wrote it
        for row in answers:
            on_row(row)
        if error is not None:
            raise error
        now = time.monotonic()
        if now - last_frame >= FRAME_SECONDS:
            last_frame = now
            display.step()
        if now - last_sync >= SYNC_SECONDS:
            last_sync = now
            flush()


class SlowDownBoard:
    """The last rate limit that any worker met, shared by the workers as a Ray actor."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._number = 0
        self._worker = ""
        self._refusal = SlowDown(0.0, None)
        self._posted_at = 0.0

    def post(self, worker: str, refusal: SlowDown) -> None:
        """Record that a worker was rate limited."""
        self._number += 1
        self._worker, self._refusal, self._posted_at = worker, refusal, self._clock()

    def read(self, worker: str, last_number: int) -> tuple[int, SlowDown | None]:
        """Return the last refusal's number, and the refusal if it is another worker's and newer than `last_number`."""
        if self._number == last_number or self._worker == worker:
            return self._number, None
        elapsed = self._clock() - self._posted_at
        wait = self._refusal.wait
        remaining = None if wait is None else max(0.0, wait - elapsed)
        return self._number, SlowDown(self._refusal.age + elapsed, remaining)


class _Worker:
    """A Ray actor that answers chunks of rows, with one client, one pace and one event loop for all of them."""

    def __init__(self, remote_job: RemoteJob, board: Any) -> None:
        self._job = remote_job.job()
        self._caller = row_caller(self._job, None)
        self._runner = asyncio.Runner()
        self._board = board
        self._name = token_hex(8)
        self._last_number = 0
        self._pace = AdaptiveConcurrency(
            self._job.concurrency, on_refusal=lambda refusal: board.post.remote(self._name, refusal)
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        return {"chunk": [self._runner.run(self._answers(pickle.loads(each))) for each in batch["chunk"]]}  # noqa: S301

    async def _answers(self, tasks: list[Task]) -> bytes:
        answers: list[FinishedRow] = []
        error: SlipformError | None = None
        job = self._job
        self._pace.last_success = self._pace.now()  # the wait for this chunk was no refusal
        listener = asyncio.create_task(self._follow_refusals())
        try:
            await answer_rows(
                iter(tasks),
                self._caller,
                answers.append,
                concurrency=job.concurrency,
                window=job.window,
                pace=self._pace,
            )
        except SlipformError as failure:  # no row can succeed: the driver raises it
            failure.report = None
            error = failure
        finally:
            listener.cancel()
        answers.sort(key=lambda row: row.entry.row)
        return pickle.dumps((answers, error))

    async def _follow_refusals(self) -> None:
        """Slow down when another worker is rate limited."""
        while True:
            self._last_number, refusal = await self._board.read.remote(self._name, self._last_number)
            if refusal is not None:
                self._pace.refused_elsewhere(refusal)
            await asyncio.sleep(FRAME_SECONDS)


def _source(ray: Any, remote_job: RemoteJob, pending: PendingRows, size: int) -> Any:
    """Return the pending rows as a Ray datasource with one reader, so that they come in order."""
    import pyarrow as pa
    from ray.data.block import BlockMetadata

    def read() -> Iterator[Any]:
        tasks = pending.of(remote_job.job().tasks())
        while chunk := list(islice(tasks, size)):
            yield pa.table({"chunk": pa.array([pickle.dumps(chunk)], pa.binary())})

    class Rows(ray.data.Datasource):  # type: ignore[misc]
        def get_name(self) -> str:
            return "slipform"

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:  # noqa: ARG002 — Ray's signature
            return [ray.data.ReadTask(read, BlockMetadata(None, None, None))]

    return Rows()


@contextlib.contextmanager
def _context(ray: Any) -> Iterator[None]:
    """Configure Ray for blocks of one chunk, in order and without progress output; restores its settings."""
    log = logging.getLogger("ray.data")
    level = log.level
    log.setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    saved = (context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars)
    context.target_max_block_size = 1
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    try:
        yield
    finally:
        log.setLevel(level)
        context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars = saved


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConfigError("Ray is not installed", hint="Run `pip install 'slipform[ray]'`.") from None
    return ray

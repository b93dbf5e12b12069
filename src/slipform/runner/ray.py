"""Rows on Ray.

What Ray sees is chunks of rows. They come back in order, so the journal and the results are those of one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any

from slipform.config import Settings
from slipform.engine.setup import Options
from slipform.errors import ConfigError, SlipformError
from slipform.named_schemas import schema_named
from slipform.runner.call import FinishedRow, asker_of
from slipform.runner.jobs import BatchJob, PendingRows, Task
from slipform.runner.outputs import EVERY_FRAME, EVERY_SYNC, Display
from slipform.runner.rows import Template
from slipform.runner.scheduler import AdaptiveConcurrency, SlowDown, answer_rows
from slipform.schema import Schema


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job without its output, as far as it can be pickled; its schema is made again where it arrives."""

    input: Path
    shape: Any
    settings: Settings
    options: Options
    template: Template
    model: str
    key: str | None
    concurrency: int
    limit: int | None
    max_tokens: int | None
    fallbacks: tuple[str, ...]
    folder: str

    @classmethod
    def of(cls, job: BatchJob, concurrency: int) -> RemoteJob:
        """The job, with so many calls at a time."""
        return cls(
            input=job.input.resolve(),
            shape=_shape(job),
            settings=job.settings,
            options=job.options,
            template=job.template,
            model=job.model,
            key=job.key,
            concurrency=concurrency,
            limit=job.limit,
            max_tokens=job.max_tokens,
            fallbacks=job.fallbacks,
            folder=str(Path.cwd()),
        )

    def job(self) -> BatchJob:
        """The job again, where it arrived."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        return BatchJob(
            input=self.input,
            out=Path(),
            schema=schema_named(self.shape, self.settings),
            template=self.template,
            model=self.model,
            options=self.options,
            settings=self.settings,
            key=self.key,
            concurrency=self.concurrency,
            limit=self.limit,
            max_tokens=self.max_tokens,
            fallbacks=self.fallbacks,
        )


def _shape(job: BatchJob) -> Any:
    """What the schema can be made of elsewhere: `module:Class` or a type, for its own validators; else the document."""
    shape = job.shape
    plain = isinstance(shape, str) and ":" not in shape
    return dict(job.schema.document) if plain or isinstance(shape, Path | Schema) else shape


_CHUNKS_PER_CALL = 4
"""Rows of a chunk for each call at a time: the slowest row of a chunk holds up few others."""


def answer_on_ray(
    job: BatchJob,
    pending: PendingRows,
    finished: Callable[[FinishedRow], None],
    housekeep: Callable[[], None],
    display: Display,
) -> None:
    """Answer every pending row on the Ray cluster of the environment, or on one of this machine's.

    Workers read the input and the keys of vendors for themselves: the file must be where they can see it, and the keys
    in their environment.
    """
    ray = _ray()
    began_here = not ray.is_initialized()
    if began_here:
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        with display, _context(ray):
            chunks = _chunks(ray, job, pending)
            _collect(chunks, finished, housekeep, display)
    finally:
        if began_here:
            ray.shutdown()


def _chunks(ray: Any, job: BatchJob, pending: PendingRows) -> Iterator[bytes]:
    processors = int(ray.cluster_resources().get("CPU", 1))
    actors = max(1, min(processors - 1, job.concurrency))
    share = -(-job.concurrency // actors)
    sent = RemoteJob.of(job, share)
    board = ray.remote(num_cpus=0)(SlowDownBoard).remote()
    rows = ray.data.read_datasource(_source(ray, sent, pending, share * _CHUNKS_PER_CALL), override_num_blocks=1)
    answered = rows.map_batches(
        _Worker,
        fn_constructor_args=(sent, board),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
    )
    for row in answered.iter_rows():
        yield row["chunk"]


def _collect(
    chunks: Iterator[bytes], finished: Callable[[FinishedRow], None], housekeep: Callable[[], None], display: Display
) -> None:
    shown = kept = time.monotonic()
    for chunk in chunks:
        answers, error = pickle.loads(chunk)  # noqa: S301 — our own workers wrote it
        for answered in answers:
            finished(answered)
        if error is not None:
            raise error
        now = time.monotonic()
        if now - shown >= EVERY_FRAME:
            shown = now
            display.step()
        if now - kept >= EVERY_SYNC:
            kept = now
            housekeep()


class SlowDownBoard:
    """Where workers on other machines read that one of them was asked to slow down; the last refusal is enough."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._number = 0
        self._worker = ""
        self._refusal = SlowDown(0.0, None)
        self._told = 0.0

    def tell(self, worker: str, refusal: SlowDown) -> None:
        """A worker was refused."""
        self._number += 1
        self._worker, self._refusal, self._told = worker, refusal, self._clock()

    def read(self, worker: str, seen: int) -> tuple[int, SlowDown | None]:
        """The number of the last refusal, and the refusal itself if it is another worker's and was not seen before."""
        if self._number == seen or self._worker == worker:
            return self._number, None
        passed = self._clock() - self._told
        asked = self._refusal.asked
        left = None if asked is None else max(0.0, asked - passed)
        return self._number, SlowDown(self._refusal.age + passed, left)


class _Worker:
    """An actor that asks for chunks of rows, with one client, one pace and one event loop for all of them."""

    def __init__(self, sent: RemoteJob, board: Any) -> None:
        self._job = sent.job()
        self._asker = asker_of(self._job, None)
        self._runner = asyncio.Runner()
        self._board = board
        self._name = token_hex(8)
        self._seen = 0
        self._pace = AdaptiveConcurrency(
            self._job.concurrency, tell=lambda refusal: board.tell.remote(self._name, refusal)
        )

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        return {"chunk": [self._runner.run(self._answers(pickle.loads(each))) for each in batch["chunk"]]}  # noqa: S301

    async def _answers(self, tasks: list[Task]) -> bytes:
        answers: list[FinishedRow] = []
        error: SlipformError | None = None
        job = self._job
        self._pace.last_good = self._pace.now()  # the wait for this chunk was no refusal
        listening = asyncio.create_task(self._listen())
        try:
            await answer_rows(
                iter(tasks),
                self._asker,
                answers.append,
                concurrency=job.concurrency,
                window=job.window,
                pace=self._pace,
            )
        except SlipformError as failure:  # no row can get past it: the driver is told, and stops
            failure.report = None
            error = failure
        finally:
            listening.cancel()
        answers.sort(key=lambda answered: answered.entry.row)
        return pickle.dumps((answers, error))

    async def _listen(self) -> None:
        """Slow down when another worker is asked to."""
        while True:
            self._seen, refusal = await self._board.read.remote(self._name, self._seen)
            if refusal is not None:
                self._pace.heard(refusal)
            await asyncio.sleep(EVERY_FRAME)


def _source(ray: Any, sent: RemoteJob, pending: PendingRows, size: int) -> Any:
    """The pending rows as a source of Ray Data: one reader, so that they come in order."""
    import pyarrow as pa
    from ray.data.block import BlockMetadata

    def read() -> Iterator[Any]:
        tasks = pending.of(sent.job().tasks())
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
    """Blocks of one chunk, in order, and less said by Ray; what was set before is set again afterwards."""
    log = logging.getLogger("ray.data")
    level = log.level
    log.setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    before = (context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars)
    context.target_max_block_size = 1
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    try:
        yield
    finally:
        log.setLevel(level)
        context.target_max_block_size, context.execution_options.preserve_order, context.enable_progress_bars = before


def _ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise ConfigError("Ray is not installed", hint="Run `pip install 'slipform[ray]'`.") from None
    return ray

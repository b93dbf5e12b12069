"""The rows of a batch on Ray Data: one reader streams them in order, actors ask, the driver keeps the journal.

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
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from slipform.config import Price, Settings
from slipform.engine import Options
from slipform.errors import ConfigError, SlipformError
from slipform.named_schemas import schema_named
from slipform.runner.asking import Answered, asker_of
from slipform.runner.engine_local import answer_rows
from slipform.runner.jobs import Job, Pending, Task
from slipform.runner.progress import EVERY_FRAME, EVERY_SYNC, Display
from slipform.runner.template import Template

_CHUNKS_PER_CALL = 4
"""Rows of a chunk for each call at a time: the slowest row of a chunk holds up few others."""


def answer_on_ray(
    job: Job,
    pending: Pending,
    finished: Callable[[Answered], None],
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


def _chunks(ray: Any, job: Job, pending: Pending) -> Iterator[bytes]:
    processors = int(ray.cluster_resources().get("CPU", 1))
    actors = max(1, min(processors - 1, job.concurrency))
    share = -(-job.concurrency // actors)
    sent = _Sent.of(replace(job, concurrency=share), pending, share * _CHUNKS_PER_CALL)
    rows = ray.data.read_datasource(_source(ray, sent), override_num_blocks=1)
    answered = rows.map_batches(
        _Worker,
        fn_constructor_args=(sent,),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=1,
    )
    for row in answered.iter_rows():
        yield row["chunk"]


def _collect(
    chunks: Iterator[bytes], finished: Callable[[Answered], None], housekeep: Callable[[], None], display: Display
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


@dataclass(frozen=True, slots=True)
class _Sent:
    """A job as it travels: only what can be pickled."""

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
    price: Price | None
    pending: Pending
    chunk: int
    folder: str

    @classmethod
    def of(cls, job: Job, pending: Pending, chunk: int) -> _Sent:
        named = isinstance(job.shape, str) and ":" in job.shape
        return cls(
            input=job.input.resolve(),
            shape=job.shape if named or isinstance(job.shape, type) else dict(job.schema.document),
            settings=job.settings,
            options=job.options,
            template=job.template,
            model=job.model,
            key=job.key,
            concurrency=job.concurrency,
            limit=job.limit,
            max_tokens=job.max_tokens,
            price=job.price,
            pending=pending,
            chunk=chunk,
            folder=str(Path.cwd()),
        )

    def job(self) -> Job:
        """The job again, where it arrived."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        return Job(
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
            price=self.price,
        )


class _Worker:
    """An actor that asks for chunks of rows, with one client and one event loop for all of them."""

    def __init__(self, sent: _Sent) -> None:
        self._job = sent.job()
        self._asker = asker_of(self._job, None)
        self._runner = asyncio.Runner()

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[bytes]]:
        return {"chunk": [self._answers(pickle.loads(chunk)) for chunk in batch["chunk"]]}  # noqa: S301 — ours

    def _answers(self, tasks: list[Task]) -> bytes:
        answers: list[Answered] = []
        error: SlipformError | None = None
        job = self._job
        work = answer_rows(iter(tasks), self._asker, answers.append, concurrency=job.concurrency, window=job.window)
        try:
            self._runner.run(work)
        except SlipformError as failure:  # no row can get past it: the driver is told, and stops
            failure.report = None
            error = failure
        answers.sort(key=lambda answered: answered.entry.row)
        return pickle.dumps((answers, error))


def _source(ray: Any, sent: _Sent) -> Any:
    """The pending rows as a source of Ray Data: one reader, so that they come in order."""
    import pyarrow as pa
    from ray.data.block import BlockMetadata

    def read() -> Iterator[Any]:
        tasks = sent.pending.of(sent.job().tasks())
        while chunk := list(islice(tasks, sent.chunk)):
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

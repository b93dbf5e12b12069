"""`batch`: a dataset in, validated JSON out."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from slipform.call_options import retrying
from slipform.config import Settings, load_settings
from slipform.engine.setup import Options
from slipform.errors import ConfigError
from slipform.ir import Usage
from slipform.named_schemas import schema_named
from slipform.providers.router import Router
from slipform.runner.call import FinishedRow, asker_of, resolved_models, runner_router
from slipform.runner.jobs import BatchJob, Estimate, PendingRows, Survey, Task, estimate, survey
from slipform.runner.journal import Journal, JournalEntry, gaps, settled
from slipform.runner.outputs import Display, JsonLinesFile, OrderedWriter, Tally, results_for, show
from slipform.runner.rows import WHOLE_ROW, Template
from slipform.runner.scheduler import answer_rows, run_loop, until_one_ends

Engine: TypeAlias = Literal["local", "ray"]

_log = logging.getLogger("slipform.runner")


@dataclass(frozen=True, slots=True)
class Summary:
    """How a batch ended."""

    rows: int
    """Rows of the input."""
    done: int
    """Rows that this run finished, well or not."""
    failed: int
    """Rows that have no result now."""
    usage: Usage
    """Tokens of this run."""
    cost: float | None
    """Their cost, when the settings have a price for the model."""
    seconds: float
    out: Path
    failures: Path
    changed: int = 0
    """Rows of the input that are not what they were when they were done; their key is the same."""


def make_job(
    source: str | Path,
    *,
    schema: Any,
    out: str | Path,
    prompt: str | None = None,
    model: str | Sequence[str] | None = None,
    key: str | None = None,
    concurrency: int = 16,
    output_format: Literal["jsonl", "parquet"] | None = None,
    failures: str | Path | None = None,
    limit: int | None = None,
    max_tokens: int | None = None,
    settings: Settings | None = None,
    options: Options | None = None,
    router: Router | None = None,
) -> tuple[BatchJob, Router]:
    """A job for `start` and `plan`, with the providers it will ask."""
    chosen = load_settings() if settings is None else settings
    if concurrency < 1:
        raise ConfigError("A batch needs at least one call at a time", where="concurrency")
    routes = router or runner_router(chosen)
    name, *fallbacks = resolved_models(routes, model)
    job = BatchJob(
        input=Path(source),
        out=Path(out),
        schema=schema_named(schema, chosen),
        template=WHOLE_ROW if prompt is None else Template.read(prompt),
        model=name,
        options=options or retrying(chosen),
        settings=chosen,
        key=key,
        concurrency=concurrency,
        limit=limit,
        max_tokens=max_tokens,
        failures=None if failures is None else Path(failures),
        format=output_format,
        shape=schema,
        fallbacks=tuple(fallbacks),
    )
    return job, routes


def batch(
    source: str | Path,
    *,
    schema: Any,
    out: str | Path,
    prompt: str | None = None,
    model: str | Sequence[str] | None = None,
    key: str | None = None,
    concurrency: int = 16,
    output_format: Literal["jsonl", "parquet"] | None = None,
    failures: str | Path | None = None,
    retry_failures: bool = False,
    engine: Engine = "local",
    limit: int | None = None,
    max_tokens: int | None = None,
    settings: Settings | None = None,
    options: Options | None = None,
    router: Router | None = None,
    quiet: bool = True,
) -> Summary:
    """Ask for an answer of this shape for every row of a JSONL, CSV or Parquet file.

    Results go to `out` in the order of the rows, as `{"row": …, "key": …, "value": …}`; rows that fail go to
    `failures` with the reason. Of several models, the next is asked for a row when one cannot answer; each result
    then names the one that did, as `"model"`. Call it again after a stop, and it goes on; call it with
    `retry_failures` to try those that failed. `schema` is a type, a JSON Schema, or a name: a file, `module:Class`,
    an entry of the registry.

    ::

        batch("people.jsonl", schema=Person, out="out.jsonl", prompt="Who is {name}?").failed
    """
    job, routes = make_job(
        source,
        schema=schema,
        out=out,
        prompt=prompt,
        model=model,
        key=key,
        concurrency=concurrency,
        output_format=output_format,
        failures=failures,
        limit=limit,
        max_tokens=max_tokens,
        settings=settings,
        options=options,
        router=router,
    )
    if router is not None and engine == "ray":
        raise ConfigError("Ray's workers make their own router", hint="Give `settings` instead of `router`.")
    try:
        return start(job, routes, retry_failures=retry_failures, engine=engine, quiet=quiet)
    finally:
        if router is None:
            routes.close()


def plan(job: BatchJob) -> Estimate:
    """What the job may take, without calling anything; nothing is written."""
    known: Iterator[JournalEntry] = iter(())
    if job.journal_path.exists():
        journal = Journal.open(job.journal_path, job.identity)
        known = settled(journal.path, journal.segments)
        journal.close()
    return estimate(job, survey(job, known, count_tokens=True))


def start(
    job: BatchJob,
    router: Router,
    *,
    retry_failures: bool = False,
    engine: Engine = "local",
    quiet: bool = True,
) -> Summary:
    """Do what is left of a job, or try again what failed of it. Ray's workers make their own router."""
    results = results_for(job.out, job.format, job.schema.document)
    _spare_files(job)
    journal = Journal.open(job.journal_path, job.identity)
    ledger = OrderedWriter(journal, results, JsonLinesFile(job.failures_path, sparse=True))
    try:
        if journal.cut:
            _log.warning("%s: a torn end of %d bytes was cut off; its rows are done again", journal.path, journal.cut)
        if journal.damaged:
            _log.warning("%s: %d damaged lines; their rows are done again", journal.path, journal.damaged)
        found = survey(job, settled(journal.path, journal.segments), retry=retry_failures)
        _mention_missing(job, found)
        if found.changed:
            _log.warning(
                "%s: %d rows are not what they were when they were done; %s", job.input, len(found.changed),
                "run without --retry-failures to do them again" if retry_failures else "they are done again",
            )  # fmt: skip
        tally = Tally(found.left, before=found.rows - found.left)
        run = _Run(job, router, engine, tally, quiet)
        (_retry if retry_failures else _go_on)(run, journal, ledger, found)
    finally:
        if journal.is_empty and not job.out.exists():  # a mistake was found before anything was done
            journal.discard()
        else:
            journal.close()
    failed = found.failed + tally.failed - (tally.done if retry_failures else 0)
    return Summary(
        found.rows, tally.done, failed, tally.usage, tally.cost, tally.seconds, job.out, job.failures_path,
        len(found.changed),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a job."""

    job: BatchJob
    router: Router
    engine: Engine
    tally: Tally
    quiet: bool

    def work(self, pending: PendingRows, finish: Callable[[JournalEntry], None], housekeep: Callable[[], None]) -> None:
        """Answer the rows that are pending; `finish` is told of each as it is done."""

        def finished(answered: FinishedRow) -> None:
            finish(answered.entry)
            self.tally.add(answered)

        if self.engine == "ray":
            from slipform.runner.ray import answer_on_ray

            answer_on_ray(self.job, pending, finished, housekeep, Display(self.tally, quiet=self.quiet))
        else:
            run_loop(lambda: self._on_loop(pending.of(self.job.tasks()), finished, housekeep))

    async def _on_loop(
        self, tasks: Iterator[Task], finished: Callable[[FinishedRow], None], housekeep: Callable[[], None]
    ) -> None:
        shown = show(Display(self.tally, quiet=self.quiet), housekeep)
        await until_one_ends(self._answer(tasks, finished), shown)

    async def _answer(self, tasks: Iterator[Task], finished: Callable[[FinishedRow], None]) -> None:
        job = self.job
        asker = asker_of(job, self.router)
        await answer_rows(tasks, asker, finished, concurrency=job.concurrency, window=job.window)


def _go_on(run: _Run, journal: Journal, ledger: OrderedWriter, found: Survey) -> None:
    """What was never done; results grow as the rows before them are done.

    Rows that are lost or changed come first, in a pass of their own: all that is behind them would else have to wait
    for them in memory.
    """
    again = set(found.changed)
    if journal.damaged:
        again.update(row for row in gaps(settled(journal.path, journal.segments)) if row <= found.rows)
    if again:
        journal.begin_pass(run.job.window)
        run.work(PendingRows(found.rows, chosen=array("Q", sorted(again))), journal.finish, journal.sync)
    ledger.begin(settled(journal.path, journal.segments))
    complete = False
    try:
        if found.left > len(again):
            if len(journal.segments) > 1:
                journal.begin_pass(run.job.window)
            run.work(PendingRows(ledger.frontier, ledger.ahead), ledger.finish, ledger.housekeep)
        complete = True
    finally:
        ledger.close(complete=complete)


def _retry(run: _Run, journal: Journal, ledger: OrderedWriter, found: Survey) -> None:
    """A pass over the rows that failed; it only adds to the journal, and the files are made anew from that."""
    segments = journal.segments
    missing = _first_missing(settled(journal.path, segments), found.rows)
    if missing is not None:
        raise ConfigError(
            f"The job has not come to its end: row {missing} was never done",
            where=str(run.job.out),
            hint="Run the same command without --retry-failures first.",
        )
    if found.left:
        failed = array("Q", (entry.row for entry in settled(journal.path, segments) if not entry.ok))
        journal.begin_pass(run.job.window)
        run.work(PendingRows(found.rows, chosen=failed), journal.finish, journal.sync)
    ledger.begin(settled(journal.path, journal.segments))
    ledger.close(complete=True)


def _first_missing(known: Iterator[JournalEntry], rows: int) -> int | None:
    following = 1
    for entry in known:
        if entry.row != following:
            return following
        following += 1
    return following if following <= rows else None


def _spare_files(job: BatchJob) -> None:
    """Refuse to write over a file that is not this job's."""
    ours = (job.out, job.failures_path)
    if len({path.resolve() for path in (job.input, *ours)}) < 3:
        raise ConfigError("Input, results and failures must be three files", where=str(job.out), hint="Rename --out.")
    for path in ours:
        if path.exists() and not job.journal_path.exists():
            raise ConfigError(
                "This file exists, and no journal says that it is this job's",
                where=str(path),
                hint="Move it away, or give another name.",
            )


def _mention_missing(job: BatchJob, found: Survey) -> None:
    for column, count in found.missing.items():
        _log.warning("%s: %d of %d rows have no %r; the prompt is empty there", job.input, count, found.rows, column)

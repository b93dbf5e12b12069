"""Run a dataset through a model, row by row, into a file of validated results: `batch`."""

from __future__ import annotations

import dataclasses
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from slipform.addons.batch.batched_calls import BatchPolicy
from slipform.addons.batch.batched_rows import BatchTotals, answer_in_batches
from slipform.addons.batch.call import (
    FileRowCaller,
    FinishedRow,
    RowFunction,
    resolved_models,
    row_caller,
    runner_router,
)
from slipform.addons.batch.file_rows import is_dataset, list_files
from slipform.addons.batch.jobs import (
    DAY,
    KEEP_ALL,
    BatchEstimate,
    BatchJob,
    PendingRows,
    Survey,
    Task,
    Via,
    estimate,
    survey_input,
)
from slipform.addons.batch.journal import Journal, JournalEntry, missing_rows
from slipform.addons.batch.outputs import Display, JsonLinesFile, OrderedWriter, Tally, format_of, results_for, show
from slipform.addons.batch.rows import WHOLE_ROW, Template
from slipform.addons.batch.scheduler import answer_rows, run_loop, run_until_first_ends
from slipform.addons.batch.table_results import TABLE_FORMATS
from slipform.addons.batch.vendor_batches import batches_of
from slipform.call_options import retrying
from slipform.config import Settings, load_settings
from slipform.enforce.options import Options, override
from slipform.errors import ConfigError
from slipform.ir import Usage
from slipform.ir.evidence import Evidence
from slipform.named_schemas import schema_named
from slipform.providers.router import Router

Engine: TypeAlias = Literal["local", "ray"]
ResultFormat: TypeAlias = Literal["jsonl", "csv", "tsv", "xlsx", "parquet"]

_log = logging.getLogger("slipform.runner")


@dataclass(frozen=True, slots=True)
class Summary:
    """The totals of a batch."""

    rows: int
    """Rows of the input."""
    done: int
    """Rows that this run finished, valid or failed."""
    failed: int
    """Rows without a result."""
    usage: Usage
    """Tokens of this run."""
    cost: float | None
    """Their cost, when the settings have a price for the model."""
    seconds: float
    out: Path
    failures: Path
    changed: int = 0
    """Rows of the input whose content changed since they were done, under the same key."""
    batches: BatchTotals | None = None
    """What went through the vendor's batch API and what was asked live, in all runs of the job."""


def make_job(
    source: str | Path | Sequence[str | Path],
    *,
    schema: Any,
    out: str | Path,
    prompt: str | None = None,
    model: str | Sequence[str] | None = None,
    key: str | None = None,
    concurrency: int = 16,
    output_format: ResultFormat | None = None,
    failures: str | Path | None = None,
    limit: int | None = None,
    max_tokens: int | None = None,
    evidence: Evidence | None = None,
    source_column: str | None = None,
    keep: Sequence[str] | Literal["all"] | None = None,
    via: Via = "live",
    deadline: float = DAY,
    settings: Settings | None = None,
    options: Options | None = None,
    router: Router | None = None,
) -> tuple[BatchJob, Router]:
    """Return a job for `start` and `plan`, with its router; raises `ConfigError` for what cannot work."""
    effective = load_settings() if settings is None else settings
    if concurrency < 1:
        raise ConfigError("A batch needs at least one call at a time", where="concurrency")
    if source_column is not None and evidence is None:
        raise ConfigError("A source needs evidence, which is off", where="source_column")
    router_in_use = router or runner_router(effective)
    job_options = options or retrying(effective)
    name, *fallbacks = resolved_models(router_in_use, model)
    sources = [Path(source)] if isinstance(source, str | Path) else [Path(each) for each in source]
    files: tuple[Path, ...] = ()
    if not is_dataset(sources):
        files = list_files(sources, apart_from=_outputs(Path(out), failures))
    job = BatchJob(
        input=sources[0],
        out=Path(out),
        schema=schema_named(schema, effective),
        template=_template(prompt, is_files=bool(files)),
        model=name,
        options=override(job_options, {"evidence": evidence}),
        settings=effective,
        key=key or ("file" if files else None),
        concurrency=concurrency,
        limit=limit,
        max_tokens=max_tokens,
        failures=None if failures is None else Path(failures),
        format=output_format,
        shape=schema,
        fallbacks=tuple(fallbacks),
        source=source_column,
        files=files,
        keep=_kept_columns(keep, output_format or format_of(Path(out)), is_files=bool(files)),
        via=via,
        deadline=deadline,
    )
    if via == "batch":
        batches_of(router_in_use, job.models)
    return job, router_in_use


def _outputs(out: Path, failures: str | Path | None) -> tuple[Path, ...]:
    return (out,) if failures is None else (out, Path(failures))


def _template(prompt: str | None, *, is_files: bool) -> Template:
    if prompt is None:
        return Template.read("{text}") if is_files else WHOLE_ROW
    template = Template.read(prompt)
    if is_files and "text" not in template.columns:
        raise ConfigError("The prompt does not say where the text of a file goes", hint="Write {text} into it.")
    return template


def _kept_columns(
    keep: Sequence[str] | Literal["all"] | None, results: str | None, *, is_files: bool
) -> tuple[str, ...]:
    """Return the columns of the input that results repeat: in a table all of them, unless the caller names some."""
    if keep == "all":
        return (KEEP_ALL,)
    if keep is not None:
        return tuple(keep)
    if results not in TABLE_FORMATS:
        return ()
    return ("file",) if is_files else (KEEP_ALL,)


def batch(
    source: str | Path | Sequence[str | Path],
    *,
    schema: Any,
    out: str | Path,
    prompt: str | None = None,
    model: str | Sequence[str] | None = None,
    key: str | None = None,
    concurrency: int = 16,
    output_format: ResultFormat | None = None,
    failures: str | Path | None = None,
    retry_failures: bool = False,
    engine: Engine = "local",
    limit: int | None = None,
    max_tokens: int | None = None,
    evidence: Evidence | None = None,
    source_column: str | None = None,
    keep: Sequence[str] | Literal["all"] | None = None,
    via: Via = "live",
    deadline: float = DAY,
    settings: Settings | None = None,
    options: Options | None = None,
    router: Router | None = None,
    quiet: bool = True,
) -> Summary:
    """Answer every row of a JSONL, CSV, Excel or Parquet file, or every file of a folder, with a value of this schema.

    Results go to `out` in the order of the rows, as `{"row": …, "key": …, "value": …}`; rows that fail go to
    `failures` with the reason. Several models are tried in their order for each row; each result then names the one
    that answered, as `"model"`. Call it again after a stop to resume; call it with `retry_failures` to retry the rows
    that failed. `schema` is a type, a JSON Schema, or a name: a file, `module:Class`, an entry of the registry. With
    `evidence`, each result says of its values where they are in the prompt, or in the `source_column` of the row.
    `keep` names the columns of the input that each result repeats, or is "all"; in tables (CSV, Excel) it is all of
    them unless you name some. Files are rows with the columns `file` and `text`. `via="batch"` uses the
    vendor's batch API at half the price, and asks live what is left `deadline` seconds after the first batch.

    ::

        batch("people.jsonl", schema=Person, out="out.jsonl", prompt="Who is {name}?").failed
    """
    job, router_in_use = make_job(
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
        evidence=evidence,
        source_column=source_column,
        keep=keep,
        via=via,
        deadline=deadline,
        settings=settings,
        options=options,
        router=router,
    )
    if via == "batch" and engine == "ray":
        raise ConfigError("A vendor's batch needs no cluster", where="engine", hint="Leave `engine` or `via` out.")
    if router is not None and engine == "ray":
        raise ConfigError("Ray's workers make their own router", hint="Give `settings` instead of `router`.")
    try:
        return start(job, router_in_use, retry_failures=retry_failures, engine=engine, quiet=quiet)
    finally:
        if router is None:
            router_in_use.close()


def plan(job: BatchJob) -> BatchEstimate:
    """Return an estimate of the job's tokens and cost; calls and writes nothing."""
    entries: Iterator[JournalEntry] = iter(())
    if job.journal_path.exists():
        journal = Journal.open(job.journal_path, job.identity)
        job = _with_files_in_order(job, journal.entries())
        entries = journal.entries()
        journal.close()
    return estimate(job, survey_input(job, entries, count_tokens=True))


def start(
    job: BatchJob,
    router: Router,
    *,
    retry_failures: bool = False,
    engine: Engine = "local",
    quiet: bool = True,
    policy: BatchPolicy | None = None,
) -> Summary:
    """Do the pending rows of a job, or retry those that failed; return its totals. Ray's workers ignore `router`.

    `policy` says when a job waits for batches; by default from its deadline.
    """
    has_evidence = job.options.evidence is not None
    results = results_for(job.out, job.format, job.schema.document, evidence=has_evidence, keeps_input=bool(job.keep))
    _refuse_foreign_files(job)
    journal = Journal.open(job.journal_path, job.identity)
    writer = OrderedWriter(journal, results, JsonLinesFile(job.failures_path, sparse=True))
    try:
        job = _with_files_in_order(job, journal.entries())
        if journal.cut:
            _log.warning("%s: discarded a partial record, its rows run again, bytes=%d", journal.path, journal.cut)
        if journal.damaged:
            _log.warning("%s: ignored damaged lines, their rows run again, lines=%d", journal.path, journal.damaged)
        survey = survey_input(job, journal.entries(), retry=retry_failures)
        _warn_of_missing(job, survey)
        if survey.changed:
            _log.warning(
                "%s: rows changed since they were done, rows=%d; %s", job.input, len(survey.changed),
                "run without --retry-failures to do them again" if retry_failures else "they are done again",
            )  # fmt: skip
        tally = Tally(survey.pending, done_before=survey.rows - survey.pending)
        run = _Run(job, router, engine, tally, quiet, policy or BatchPolicy(job.deadline))
        resume = _resume if job.via == "live" else _in_batches
        (_retry if retry_failures else resume)(run, journal, writer, survey)
    finally:
        if journal.is_empty and not job.out.exists():  # the job failed before its first row
            journal.discard()
        else:
            journal.close()
    failed = survey.failed + tally.failed - (tally.done if retry_failures else 0)
    totals = tally.batches
    return Summary(
        survey.rows, tally.done, failed, tally.usage if totals is None else totals.usage,
        tally.cost if totals is None else totals.cost, tally.seconds, job.out, job.failures_path,
        len(survey.changed), totals,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a job."""

    job: BatchJob
    router: Router
    engine: Engine
    tally: Tally
    quiet: bool
    policy: BatchPolicy

    def work(self, pending: PendingRows, finish: Callable[[JournalEntry], None], flush: Callable[[], None]) -> None:
        """Answer the pending rows; `finish` is called with each entry as it is done."""

        def on_row(finished: FinishedRow) -> None:
            finish(finished.entry)
            self.tally.add(finished)

        run_loop(lambda: self._on_loop(pending.of(self.job.tasks()), on_row, flush))

    def batched(self, pending: PendingRows, journal: Journal) -> None:
        """Answer the pending rows through the vendor's batches."""

        def on_row(finished: FinishedRow) -> None:
            journal.finish(finished.entry)
            self.tally.add(finished)

        async def answer() -> None:
            caller = row_caller(self.job, self.router)
            policy = dataclasses.replace(self.policy, notify=self.tally.wait_for)
            self.tally.batches = await answer_in_batches(caller, pending, journal, on_row, policy)

        async def on_loop() -> None:
            await run_until_first_ends(answer(), show(Display(self.tally, quiet=self.quiet), journal.sync))

        run_loop(on_loop)

    async def _on_loop(
        self, tasks: Iterator[Task], on_row: Callable[[FinishedRow], None], flush: Callable[[], None]
    ) -> None:
        display = show(Display(self.tally, quiet=self.quiet), flush)
        await run_until_first_ends(self._answer(tasks, on_row), display)

    async def _answer(self, tasks: Iterator[Task], on_row: Callable[[FinishedRow], None]) -> None:
        caller = row_caller(self.job, self.router)
        if self.engine == "local":
            await self._answer_with(caller, tasks, on_row)
            return
        from slipform.addons.batch.ray import caller_on_ray

        async with caller_on_ray(caller) as on_ray:
            await self._answer_with(on_ray, tasks, on_row)

    async def _answer_with(
        self, caller: RowFunction, tasks: Iterator[Task], on_row: Callable[[FinishedRow], None]
    ) -> None:
        job = self.job
        reader = FileRowCaller(caller) if job.files else caller
        await answer_rows(tasks, reader, on_row, concurrency=job.concurrency, window=job.window)


def _resume(run: _Run, journal: Journal, writer: OrderedWriter, survey: Survey) -> None:
    """Do the rows that were never done, and those that are lost or changed.

    The latter come first, in a separate pass: all rows after them would otherwise wait for them in memory.
    """
    redo = set(survey.changed)
    if journal.damaged:
        redo.update(row for row in missing_rows(journal.entries()) if row <= survey.rows)
    if redo:
        journal.begin_pass(run.job.window)
        run.work(PendingRows(survey.rows, selected=array("Q", sorted(redo))), journal.finish, journal.sync)
    writer.begin(journal.entries())
    complete = False
    try:
        if survey.pending > len(redo):
            if len(journal.segments) > 1:
                journal.begin_pass(run.job.window)
            run.work(PendingRows(writer.frontier, writer.ahead), writer.finish, writer.flush)
        complete = True
    finally:
        writer.close(complete=complete)


def _in_batches(run: _Run, journal: Journal, writer: OrderedWriter, survey: Survey) -> None:
    """Do the rows that have no result through the vendor's batches; the files are then written from the journal."""
    finished = {entry.row for entry in journal.entries()}.difference(survey.changed)
    pending = array("Q", (row for row in range(1, survey.rows + 1) if row not in finished))
    complete = False
    try:
        run.batched(PendingRows(survey.rows, selected=pending), journal)
        complete = True
    finally:
        writer.begin(journal.entries())
        writer.close(complete=complete)


def _retry(run: _Run, journal: Journal, writer: OrderedWriter, survey: Survey) -> None:
    """Do the rows that failed again; the pass only adds to the journal, from which the files are then rewritten."""
    missing = _first_missing(journal.entries(), survey.rows)
    if missing is not None:
        raise ConfigError(
            f"The job is not finished: row {missing} was never processed",
            where=str(run.job.out),
            hint="Run the same command without --retry-failures first.",
        )
    if survey.pending:
        failed = array("Q", (entry.row for entry in journal.entries() if not entry.ok))
        journal.begin_pass(run.job.window)
        run.work(PendingRows(survey.rows, selected=failed), journal.finish, journal.sync)
    writer.begin(journal.entries())
    writer.close(complete=True)


def _with_files_in_order(job: BatchJob, entries: Iterator[JournalEntry]) -> BatchJob:
    """Return the job with every file at the number the journal has for it, and new files in the places between."""
    if not job.files:
        return job
    remaining = {str(path): path for path in job.files}
    by_number: dict[int, Path] = {}
    for entry in entries:
        path = remaining.pop(entry.key, None)
        if path is None:
            raise ConfigError(
                "This file was part of the job, and is not in the input now",
                where=entry.key,
                hint="Put it back, or give another --out.",
            )
        by_number[entry.row] = path
    new_files = iter(remaining.values())
    numbers = range(1, len(job.files) + 1)
    return dataclasses.replace(job, files=tuple(by_number.get(number) or next(new_files) for number in numbers))


def _first_missing(entries: Iterator[JournalEntry], rows: int) -> int | None:
    expected = 1
    for entry in entries:
        if entry.row != expected:
            return expected
        expected += 1
    return expected if expected <= rows else None


def _refuse_foreign_files(job: BatchJob) -> None:
    """Raise `ConfigError` rather than overwrite a file that is not this job's."""
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


def _warn_of_missing(job: BatchJob, survey: Survey) -> None:
    for column, count in survey.missing.items():
        _log.warning("%s: rows without a value, column=%r, rows=%d of %d", job.input, column, count, survey.rows)

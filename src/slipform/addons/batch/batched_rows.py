"""Answer the rows of a job through a vendor's batch API, and say where its batches are."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slipform.addons.batch.batch_log import BatchLog, ResultCounts, ResultReader, VendorBatch, recorded_batches
from slipform.addons.batch.batched_calls import BatchedCalls, BatchPolicy
from slipform.addons.batch.call import FinishedRow, RowCaller
from slipform.addons.batch.file_rows import read_row
from slipform.addons.batch.jobs import BatchJob, PendingRows, Task
from slipform.addons.batch.journal import Journal, content_hash, read_entries
from slipform.addons.batch.scheduler import answer_rows
from slipform.addons.batch.vendor_batches import VendorBatches, batches_of
from slipform.codecs import find_codec
from slipform.codecs.batches import BatchStatus
from slipform.enforce import Outcome, Plan
from slipform.engine.drive import run_async
from slipform.errors import ConfigError, EnforcementError, RequestError, SlipformError, UpstreamError
from slipform.ir import ModelRequest, Usage
from slipform.prices import BATCH_TIER, cost_of

_LIVE_MARK = b'{"live":'


class LiveRow(msgspec.Struct, frozen=True):
    """A line of the journal: what the live calls of one row took."""

    live: int
    """The row."""
    calls: int
    usage: Usage
    cost: float | None = None


_live_encoder = msgspec.json.Encoder()
_live_decoder = msgspec.json.Decoder(LiveRow)


@dataclass(frozen=True, slots=True)
class BatchTotals:
    """What a job has taken in all its runs: its batches, and the calls that were made live."""

    batches: int
    requests: int
    """Requests in batches, those of rows that were asked again included."""
    retries: int
    """Requests after the first of a row."""
    live_calls: int
    results: ResultCounts
    """What their results held."""
    live_usage: Usage
    live_cost: float | None

    @property
    def usage(self) -> Usage:
        """All tokens."""
        return self.results.usage + self.live_usage

    @property
    def cost(self) -> float | None:
        """All costs; None without a price."""
        if self.results.cost is None and self.live_cost is None:
            return None
        return (self.results.cost or 0.0) + (self.live_cost or 0.0)


class BatchedRows:
    """The rows of a job that have no result."""

    def __init__(self, rows: RowCaller, pending: PendingRows, journal: Journal, on_row: RowSink) -> None:
        self.calls: BatchedCalls | None = None
        self._rows = rows
        self._pending = pending
        self._journal = journal
        self._on_row = on_row
        self._done: set[int] = set()

    def pending(self) -> Iterator[Task]:
        """Yield the rows without a result, in order."""
        job = self._rows.job
        self._journal.begin_pass(job.window)
        for task in self._pending.of(job.tasks()):
            if task.number in self._done:
                continue
            if not job.files:
                yield task
                continue
            try:
                yield dataclasses.replace(task, row=read_row(task.row))
            except ConfigError as error:
                self._take(self._rows.failed(task, error))

    def key(self, item: Task) -> str:
        """Return the row's number and a hash of its content: answers to what it was before do not count."""
        return f"{item.number}-{content_hash(self._rows.job.content(item.row))}"

    def plan_request(self, item: Task) -> tuple[ModelRequest, Plan]:
        """Return the request for a row, and the plan for enforcing its answer."""
        return self._rows.plan_request(item)

    def finish(self, item: Task, outcome: Outcome | SlipformError) -> None:
        """Take the result of a row."""
        if isinstance(outcome, Outcome):
            self._take(self._rows.finished_row(item, outcome))
        elif isinstance(outcome, EnforcementError | RequestError | UpstreamError):
            self._take(self._rows.failed(item, outcome))
        else:
            raise outcome

    async def ask_live(self, items: list[Task]) -> None:
        """Ask about these rows live, each from where its batches have left it."""
        job = self._rows.job
        self._journal.begin_pass(job.window)
        await answer_rows(iter(items), self, self._take, concurrency=job.concurrency, window=job.window)

    async def ask(self, task: Task) -> FinishedRow:
        """Return the row with its result; raises `UpstreamError` when the vendor fails."""
        assert self.calls is not None  # noqa: S101 — it is set before the rows are asked
        request, plan = self._rows.plan_request(task)
        model = self.calls.model_for(self.key(task))
        try:
            outcome = await run_async(request, plan, model)
        except EnforcementError as error:
            return self._with_live(task, self._rows.failed(task, error), error.report)
        return self._with_live(task, self._rows.finished_row(task, outcome), outcome.report)

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """Return the row as failed, with the reason."""
        return self._with_live(task, self._rows.failed(task, error), error.report)

    def _with_live(self, task: Task, row: FinishedRow, report: Any) -> FinishedRow:
        """Write down what the live calls of a row took; those of batches are counted from their results."""
        attempts = [each for each in getattr(report, "attempts", ()) if each.usage.service_tier != BATCH_TIER]
        usage = sum((each.usage for each in attempts), Usage())
        costs = [cost_of(each.price, each.usage) for each in attempts]
        amounts = [cost for cost in costs if cost is not None]
        line = LiveRow(task.number, len(attempts), usage, sum(amounts) if amounts else None)
        self._journal.add_call(_live_encoder.encode(line))
        return row

    def _take(self, row: FinishedRow) -> None:
        self._done.add(row.entry.row)
        self._on_row(row)


RowSink = Callable[[FinishedRow], None]


def folder_of(job: BatchJob) -> Path:
    """Return where the results of a job's batches are kept until it is done."""
    return job.out.with_name(f"{job.out.name}.batches")


async def answer_in_batches(
    rows: RowCaller, pending: PendingRows, journal: Journal, on_row: RowSink, policy: BatchPolicy
) -> BatchTotals:
    """Answer the pending rows through batches; return what the whole job has taken."""
    job = rows.job
    vendor = dataclasses.replace(batches_of(rows.route.router, job.models), sleep=policy.sleep)
    folder = folder_of(job)
    folder.mkdir(exist_ok=True)
    reader = ResultReader(vendor.api, find_codec(vendor.provider.api), rows.route.price(job.options.prices))
    log = BatchLog(journal, folder, reader, policy.clock)
    items = BatchedRows(rows, pending, journal, on_row)
    calls = items.calls = BatchedCalls(vendor, log, rows.route, policy)
    await calls.run(items)
    log.finish()
    shutil.rmtree(folder, ignore_errors=True)
    return totals_of(log, journal.calls())


def totals_of(log: BatchLog, lines: Iterator[bytes]) -> BatchTotals:
    """Return what a job has taken."""
    live = [_live_decoder.decode(line) for line in lines if line.startswith(_LIVE_MARK)]
    costs = [each.cost for each in live if each.cost is not None]
    results = log.counts
    ended = [each for each in log.batches if each.counts is not None]
    return BatchTotals(
        batches=len(ended),
        requests=results.requests,
        retries=results.requests - len({key for batch in ended for key in batch.ids}),
        live_calls=sum(each.calls for each in live),
        results=results,
        live_usage=sum((each.usage for each in live), Usage()),
        live_cost=sum(costs) if costs else None,
    )


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Where a job with batches is."""

    rows_done: int
    rows_failed: int
    batches: tuple[tuple[VendorBatch, BatchStatus | None], ...]
    """Each batch as the journal has it, and as the vendor describes it now where it is open."""


async def job_status(job: BatchJob, vendor: VendorBatches) -> JobStatus:
    """Return where a job is; another process may be working on it."""
    if not job.journal_path.exists():
        raise ConfigError("There is no job with this output", where=str(job.out), hint="Check --out.")
    done = 0
    failed = 0
    for entry in read_entries(job.journal_path):
        done += entry.ok
        failed += not entry.ok
    batches: list[tuple[VendorBatch, BatchStatus | None]] = []
    for batch in recorded_batches(job.journal_path):
        status = None
        if batch.state == "submitted":
            status, _ = await vendor.status(batch.id)
        batches.append((batch, status))
    return JobStatus(done, failed, tuple(batches))

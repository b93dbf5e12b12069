"""Ask the questions of extractions through a vendor's batch API: those that wait at one time share a batch."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from slipform.addons.batch.batch_log import BatchLog, ResultReader
from slipform.addons.batch.batched_calls import BatchedCalls, BatchPolicy
from slipform.addons.batch.call import resolved_models
from slipform.addons.batch.vendor_batches import VendorBatches, batches_of
from slipform.addons.records.calls import FinishedCall, PieceCaller
from slipform.addons.records.drive import CallJournal, question_key
from slipform.addons.records.running import Extractor
from slipform.addons.records.segments import Question
from slipform.addons.records.shapes import QuestionForm
from slipform.codecs import find_codec
from slipform.enforce import Outcome, Plan
from slipform.engine.drive import run_async
from slipform.engine.planning import ModelRoute
from slipform.errors import SlipformError
from slipform.ir import ModelRequest


@dataclass(frozen=True, slots=True)
class BatchedExtraction:
    """How an extraction goes through batches."""

    policy: BatchPolicy
    folder: Path
    """Where results are kept until the extraction is done."""
    concurrency: int = 8
    """Live calls at a time."""


@dataclass(slots=True)
class _WaitingQuestion:
    """A question that waits for its answer; files may have the same one."""

    key: str
    caller: PieceCaller
    question: Question
    answers: list[asyncio.Future[FinishedCall]] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(answer.done() for answer in self.answers)

    def resolve(self, call: FinishedCall | BaseException) -> None:
        """Hand the answer, or the error, to all that wait for it."""
        for answer in self.answers:
            if answer.done():
                continue
            if isinstance(call, BaseException):
                answer.set_exception(call)
            else:
                answer.set_result(call)


class QuestionPool:
    """The questions of all sessions that wait for an answer, asked in one batch after the other."""

    def __init__(self, batched: BatchedExtraction, route: ModelRoute) -> None:
        self.calls: BatchedCalls | None = None
        self._batched = batched
        self._route = route
        self._waiting: dict[str, _WaitingQuestion] = {}
        self._in_work: dict[str, _WaitingQuestion] = {}
        self._arrived = asyncio.Event()

    async def ask(self, caller: PieceCaller, question: Question) -> FinishedCall:
        """Return the answer of a batch; raises `UpstreamError` when the vendor fails."""
        key = question_key(question, caller.shape.list_name)
        waiting = self._in_work.get(key)
        if waiting is None or waiting.is_answered:
            waiting = self._waiting.setdefault(key, _WaitingQuestion(key, caller, question))
        answer: asyncio.Future[FinishedCall] = asyncio.get_running_loop().create_future()
        waiting.answers.append(answer)
        self._arrived.set()
        return await answer

    async def serve(self, calls: BatchedCalls) -> None:
        """Answer the questions until cancelled."""
        self.calls = calls
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._batched.policy.settle):
                    await self._arrived.wait()
                continue
            self._in_work = self._waiting
            self._waiting = {}
            try:
                await calls.run(self)
            except Exception as error:  # noqa: BLE001 — it is raised where the answers are awaited
                for waiting in self._in_work.values():
                    waiting.resolve(error)
            self._in_work = {}
            if self._waiting:
                self._arrived.set()

    def pending(self) -> Iterator[_WaitingQuestion]:
        """Yield the questions without an answer."""
        return (each for each in list(self._in_work.values()) if not each.is_answered)

    def key(self, item: _WaitingQuestion) -> str:
        """Return the question's key in the journal."""
        return item.key

    def plan_request(self, item: _WaitingQuestion) -> tuple[ModelRequest, Plan]:
        """Return the request for a question, and the plan for enforcing its answer."""
        request, options = item.caller.plan_request(item.question)
        return request, self._route.plan(request, options, item.caller.shape.question)

    def finish(self, item: _WaitingQuestion, outcome: Outcome | SlipformError) -> None:
        """Take the outcome of a question."""
        try:
            item.resolve(item.caller.read_outcome(outcome))
        except SlipformError as error:
            item.resolve(error)

    async def ask_live(self, items: list[_WaitingQuestion]) -> None:
        """Ask these live, each from where its batches have left it."""
        limit = asyncio.Semaphore(self._batched.concurrency)

        async def ask(item: _WaitingQuestion) -> None:
            assert self.calls is not None  # noqa: S101 — it is set before questions are asked
            async with limit:
                request, plan = self.plan_request(item)
                try:
                    outcome = await run_async(request, plan, self.calls.model_for(item.key))
                except SlipformError as error:
                    self.finish(item, error)
                else:
                    self.finish(item, outcome)

        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(ask(item))


@dataclass(frozen=True, slots=True)
class BatchedPieceCaller:
    """Asks about pieces of one shape through a pool."""

    pool: QuestionPool
    caller: PieceCaller

    async def ask(self, question: Question) -> FinishedCall:
        """Return the valid records of the answer; raises `UpstreamError` when the vendor fails."""
        return await self.pool.ask(self.caller, question)


def batch_api_of(extractor: Extractor) -> VendorBatches:
    """Return the batch API of an extractor's model; raises `ConfigError` before anything is sent where it has none."""
    return batches_of(extractor.router, resolved_models(extractor.router, extractor.models))


@asynccontextmanager
async def in_batches(
    extractor: Extractor, journal: CallJournal, batched: BatchedExtraction
) -> AsyncIterator[Extractor]:
    """Yield an extractor that asks through batches, which are recorded in the journal."""
    vendor = replace(batch_api_of(extractor), sleep=batched.policy.sleep)
    names = resolved_models(extractor.router, extractor.models)
    route = ModelRoute(extractor.router, names[0])
    batched.folder.mkdir(parents=True, exist_ok=True)
    reader = ResultReader(vendor.api, find_codec(vendor.provider.api), route.price(extractor.options.prices))
    log = BatchLog(journal.lines, batched.folder, reader, batched.policy.clock)
    calls = BatchedCalls(vendor, log, route, batched.policy)
    pool = QuestionPool(batched, route)

    def caller(index: int, form: QuestionForm) -> BatchedPieceCaller:
        shape = extractor.shapes[index]
        single = replace(extractor, models=names[0])
        return BatchedPieceCaller(pool, single.caller(shape.in_form(form)))

    serving = asyncio.create_task(pool.serve(calls))
    try:
        yield replace(extractor, remote_caller=caller)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    log.finish()
    shutil.rmtree(batched.folder, ignore_errors=True)

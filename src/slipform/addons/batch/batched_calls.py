"""Answer enforced calls through a vendor's batch API: submit, wait, validate, submit the invalid ones again.

The state of a job is what its journal and the files of results hold: each pass replays the enforcement of every open
item with the answers so far, which leads to an outcome or to the request that goes into the next batch. So a job that
was killed at any moment continues where it was.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Final, Protocol, TypeVar

from slipform.addons.batch.batch_log import BatchLog, VendorBatch
from slipform.addons.batch.scheduler import is_fatal, is_temporary
from slipform.addons.batch.vendor_batches import GONE, UnclearSubmitError, VendorBatches, may_repeat
from slipform.codecs.batches import BatchRequest, BatchResult, BatchStatus
from slipform.enforce import Outcome, Plan, enforce
from slipform.engine.drive import AsyncModel, evidence_collector
from slipform.engine.planning import ModelRoute
from slipform.errors import RateLimitError, SlipformError, UpstreamError
from slipform.ir import ModelRequest, ModelResponse
from slipform.providers.endpoint import PreparedCall

_log = logging.getLogger("slipform.batch")
_MOST_BATCHES: Final = 2
"""How often an item goes into a batch; after that it is asked live."""
_MOST_SUBMITS: Final = 3
_STEP: Final = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """When a job waits for batches, and when it sends live requests."""

    deadline: float = 24 * 3600.0
    """Seconds after the first batch, at which all items have a result."""
    live_share: float = 0.1
    """The part of the deadline that is kept to cancel the open batches, and for live calls."""
    last_few: int = 20
    """Fewer items than these are asked live instead of in another batch."""
    first_pause: float = 10.0
    longest_pause: float = 300.0
    search_pause: float = 15.0
    """Seconds between two searches for a batch that the vendor may have accepted."""
    search_window: float = 60.0
    """Seconds for which it is searched before it is submitted again: a new batch may not be listed at once."""
    settle: float = 2.0
    """Seconds without another question, after which an extraction submits those that wait: files are read in turn."""
    max_requests: int | None = None
    """Requests in a batch, at most, where that is less than the vendor allows."""
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    notify: Callable[[str], None] = lambda _text: None
    """Called with the state of the open batches, for people."""


class BatchedItems(Protocol[T]):
    """The items that are answered through batches: rows of a dataset, questions of an extraction."""

    def pending(self) -> Iterator[T]:
        """Yield the items without a result, in order."""
        ...

    def key(self, item: T) -> str:
        """Return the item's id: letters, digits and dashes, 48 at most."""
        ...

    def plan_request(self, item: T) -> tuple[ModelRequest, Plan]:
        """Return the request for an item, and the plan for enforcing its answer; raises if the item is invalid."""
        ...

    def finish(self, item: T, outcome: Outcome | SlipformError) -> None:
        """Take the result of an item."""
        ...

    async def ask_live(self, items: list[T]) -> None:
        """Ask about these items live, and take their results."""
        ...


@dataclass(slots=True)
class _Draft:
    """A batch that is being put together."""

    tag: str = field(default_factory=partial(token_hex, 6))
    ids: list[str] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    downgrades: frozenset[str] = frozenset()
    wave: int = 1

    def change_tag(self) -> None:
        """Take another tag, so that results of a batch with the old one are never taken for this one's."""
        old = self.tag.encode()
        self.tag = token_hex(6)
        new = self.tag.encode()
        self.lines = [line.replace(old, new) for line in self.lines]

    def clear(self) -> None:
        """Begin another one."""
        self.tag = token_hex(6)
        self.ids = []
        self.lines = []
        self.size = 0
        self.wave = 1


class BatchedCalls:
    """Answers the items of one job through batches; a new process continues with the batches and results in the log."""

    def __init__(self, vendor: VendorBatches, log: BatchLog, route: ModelRoute, policy: BatchPolicy) -> None:
        self.log = log
        self._vendor = vendor
        self._route = route
        self._policy = policy
        self._refusals: dict[tuple[str, str], bool] = {}
        self._most = policy.max_requests or vendor.api.max_requests
        self._one_at_a_time = False
        """Whether the vendor's queue is too small for all batches at once."""

    async def run(self, items: BatchedItems[T]) -> None:
        """Answer all items; raises the error that no batch could get past, and can be called again after it."""
        await self._recover()
        while True:
            live = await self._pass(items)
            if live:
                await items.ask_live(live)
            if not self.log.open:
                return
            await self._wait_for_open()

    def model_for(self, key: str) -> AsyncModel:
        """Return a model that replays the results of an item's batches, and then sends further requests live."""
        stored = iter(self._answered(key))

        async def complete(request: ModelRequest) -> ModelResponse:
            for batch, result in stored:
                response = self._decoded(batch, result, request)
                if response is not None:
                    self._route.count_call(request.calls)
                    return response
            return await self._route.complete_async(request)

        return AsyncModel(complete)

    # Passes over the items

    async def _pass(self, items: BatchedItems[T]) -> list[T]:
        """Finish what the answers so far lead to, submit what they ask next; return what is to be asked live."""
        live: list[T] = []
        retried: list[tuple[str, T, ModelRequest]] = []
        draft = _Draft()
        wave = max((batch.wave for batch in self.log.open), default=_MOST_BATCHES)
        async for key, item, request in self._unanswered(items):
            times = sum(1 for _ in self.log.answers(key))
            if self._is_live(request, times):
                live.append(item)
            elif times >= wave:
                continue  # its next request waits until all batches of this wave have ended
            elif times and len(retried) < self._policy.last_few:
                retried.append((key, item, request))  # whether they are the last few is known at the end
            else:
                await self._add(draft, key, request, times)
                if self._one_at_a_time and self.log.open:
                    return live
        if not self.log.open and not draft.ids and len(retried) < self._policy.last_few:
            return [*live, *(item for _, item, _ in retried)]
        for key, _, request in retried:
            await self._add(draft, key, request, 1)
        if draft.ids:
            await self._submit(draft)
        return live

    def _is_live(self, request: ModelRequest, times: int) -> bool:
        """Whether an item is asked live that was in so many batches."""
        return times >= _MOST_BATCHES or request.model != self._route.name or self._is_late()

    async def _unanswered(self, items: BatchedItems[T]) -> AsyncIterator[tuple[str, T, ModelRequest]]:
        """Yield what is asked next about items that are in no open batch, and finish those that need nothing more."""
        waiting = {key for batch in self.log.open for key in batch.ids}
        for number, item in enumerate(items.pending()):
            if number % _STEP == _STEP - 1:
                await asyncio.sleep(0)  # others on the event loop have their turn
            key = items.key(item)
            request = None if key in waiting else self._next_request(items, item)
            if request is not None:
                yield key, item, request

    def _next_request(self, items: BatchedItems[T], item: T) -> ModelRequest | None:
        """Return what is asked next about an item; None where it is finished."""
        try:
            request, plan = items.plan_request(item)
            reached = self._replayed(request, plan, items.key(item))
        except SlipformError as error:
            items.finish(item, error)
            return None
        if isinstance(reached, Outcome):
            items.finish(item, reached)
            return None
        return reached

    def _replayed(self, request: ModelRequest, plan: Plan, key: str) -> Outcome | ModelRequest:
        """Enforce an item with the answers of its batches; return the outcome, or the request that has no answer."""
        steps = enforce(request, plan) if plan.evidence is None else evidence_collector().collect(request, plan)
        current = next(steps)
        try:
            for batch, result in self._answered(key):
                try:
                    response = self._decoded(batch, result, current)
                except SlipformError as error:
                    current = steps.throw(error)
                    continue
                if response is not None:
                    self._route.count_call(current.calls)
                    current = steps.send(response)
        except StopIteration as stop:
            outcome: Outcome = stop.value
            return outcome
        steps.close()
        return current

    def _answered(self, key: str) -> Iterator[tuple[VendorBatch, BatchResult]]:
        """Yield the results of an item that are answers, or errors."""
        for batch, result in self.log.answers(key):
            if result is not None and (result.answer or result.error is not None):
                yield batch, result

    def _decoded(self, batch: VendorBatch, result: BatchResult, request: ModelRequest) -> ModelResponse | None:
        """Return the answer to a request; None for an error that another try may not meet, else it is raised."""
        prepared = self._prepared(request, frozenset(batch.downgrades))
        error = result.error
        if error is None:
            return self._vendor.provider.read_batched(self._upstream(request), prepared, result.answer)
        if isinstance(error, RateLimitError) or is_temporary(error) or is_fatal(error):
            return None
        mark = (batch.batch, error.message)
        if mark not in self._refusals:  # a refusal of all rows of a batch is recorded once
            upstream = self._upstream(request)
            self._refusals[mark] = self._vendor.provider.downgrade_batched(error, upstream, prepared)
        if self._refusals[mark]:
            return None
        raise prepared.annotate(error)

    def _upstream(self, request: ModelRequest) -> ModelRequest:
        return request.replace(model=self._route.model)

    def _prepared(self, request: ModelRequest, downgrades: frozenset[str] | None) -> PreparedCall:
        return self._vendor.provider.prepare_batched(self._upstream(request), downgrades)

    # Batches

    async def _add(self, draft: _Draft, key: str, request: ModelRequest, times: int) -> None:
        """Add a request; a batch that has no room for it is submitted before."""
        if not draft.ids:
            draft.downgrades = self._vendor.provider.batch_downgrades(self._upstream(request))
        body = self._prepared(request, draft.downgrades).encoded.body
        line = self._vendor.api.line(f"{draft.tag}-{key}", self._vendor.path, body)
        is_full = bool(draft.ids) and (len(draft.ids) >= self._most or draft.size + len(line) > self._max_bytes)
        if is_full:
            await self._submit(draft)
            draft.clear()
            await self._add(draft, key, request, times)
            return
        draft.wave = max(draft.wave, times + 1)
        draft.ids.append(key)
        draft.lines.append(line)
        draft.size += len(line) + 1

    @property
    def _max_bytes(self) -> int:
        return self._vendor.api.max_bytes * 9 // 10  # the rest is for what is around the lines

    async def _submit(self, draft: _Draft) -> None:
        for attempt in range(_MOST_SUBMITS):
            batch = self.log.intend(draft.tag, draft.ids, draft.downgrades, draft.wave)
            request = BatchRequest(draft.tag, self._route.model, self._vendor.path, draft.lines)
            try:
                id_ = await self._vendor.submit(request)
            except UnclearSubmitError as error:
                _log.warning("%s: submit may have failed, searching, error=%s", draft.tag, error.message)
                if await self._adopt_or_lose(batch):
                    return
                if attempt == _MOST_SUBMITS - 1:
                    raise
                draft.change_tag()
                continue
            except UpstreamError as error:
                self.log.change(batch, "refused", problem=error.message)
                raise
            self.log.change(batch, "submitted", id_=id_)
            _log.info("%s: batch submitted, id=%s, requests=%d", self._route.full_name, id_, len(draft.ids))
            return

    async def _recover(self) -> None:
        """Find the batches that were about to be submitted when a process ended."""
        for batch in self.log.open:
            if batch.state == "intended":
                await self._adopt_or_lose(batch)

    async def _adopt_or_lose(self, batch: VendorBatch) -> bool:
        """Search for a batch that the vendor may have accepted; return whether it has."""
        status = await self._find(batch)
        if status is None:
            self.log.change(batch, "lost")
            return False
        self.log.change(batch, "submitted", id_=status.id)
        return True

    async def _find(self, batch: VendorBatch) -> BatchStatus | None:
        """Search the vendor's batches for one that it may have accepted; None where it is not listed in time."""
        pauses = int(self._policy.search_window / self._policy.search_pause)
        status = await self._search(batch)
        while status is None and pauses > 0:
            self._policy.notify(f"searching for batch {batch.batch}, which the vendor may have accepted")
            await self._policy.sleep(self._policy.search_pause)
            pauses -= 1
            status = await self._search(batch)
        return status

    async def _search(self, batch: VendorBatch) -> BatchStatus | None:
        return await self._vendor.find(batch.batch, batch.started, len(batch.ids), self.log.submitted_ids)

    async def _cancel_late(self) -> None:
        """Cancel the batches that the vendor lists only now: their rows are in another batch already."""
        if not self._vendor.api.has_tags:
            return  # without a tag it may be the batch of another job
        for batch in self.log.lost:
            try:
                status = await self._search(batch)
                if status is not None:
                    await self._vendor.cancel(status.id)
                    self.log.change(batch, "lost", id_=status.id)
                    _log.warning("%s: batch listed late, canceled, tag=%s", status.id, batch.batch)
            except UpstreamError as error:
                if not may_repeat(error):
                    raise
                _log.warning("%s: search failed, error=%s", batch.batch, error.message)

    async def _wait_for_open(self) -> None:
        """Poll the open batches until each has ended and its results are here, or the time for that is over."""
        pause = self._policy.first_pause
        canceled: set[str] = set()
        while self.log.open:
            await self._cancel_late()
            requested = 0.0
            for batch in self.log.open:
                requested = max(requested, await self._look_at(batch))
            if not self.log.open:
                return
            now = self._policy.clock()
            if now >= self._last_wait():
                for batch in self.log.open:
                    self.log.change(batch, "left")
                    _log.warning("%s: batch left behind before the deadline, its rows are asked live", batch.id)
                return
            if now >= self._switch():
                for batch in self.log.open:
                    if batch.batch not in canceled:
                        await self._vendor.cancel(batch.id)
                        canceled.add(batch.batch)
                pause = self._policy.first_pause
            next_event = self._last_wait() if now >= self._switch() else self._switch()
            await self._policy.sleep(max(0.05, min(max(pause, requested), next_event - now)))
            pause = min(pause * 1.5, self._policy.longest_pause)

    async def _look_at(self, batch: VendorBatch) -> float:
        """Take the results of a batch that has ended; return how long the vendor asks to wait."""
        try:
            status, wait = await self._vendor.status(batch.id)
            if status.state == "running":
                done = f"{status.finished or 0:,} of {len(batch.ids):,} requests"
                self._policy.notify(f"batch {batch.id} is {status.word}, {done} done")
                return wait or 0.0
            if status.state == "failed":
                await self._refused(batch, status)
                return 0.0
            await self._vendor.download(status, self.log.path(batch))
        except UpstreamError as error:
            if may_repeat(error):  # the next look comes anyway
                _log.warning("%s: batch status unknown, error=%s", batch.id, error.message)
                return error.retry_after or 0.0
            if error.status not in GONE:
                raise
            _log.warning("%s: the vendor has deleted the batch or its results, its rows are asked again", batch.id)
        if self.log.results(batch).is_foreign:
            self.log.forget(batch)
            await self._adopt_or_lose(batch)
        else:
            self.log.change(batch, "fetched")
        return 0.0

    async def _refused(self, batch: VendorBatch, status: BatchStatus) -> None:
        """Handle a batch that the vendor did not run: smaller ones where its queue is full, else it is an error."""
        self.log.change(batch, "refused", problem=status.problem)
        count = len(batch.ids)
        if "token_limit" in status.problem and count > self._policy.last_few:
            self._most = max(self._policy.last_few, count // 2)
            self._one_at_a_time = True
            _log.warning("%s: batch too large for the vendor's queue, next requests=%d", batch.id, self._most)
            return
        raise UpstreamError(
            f"The vendor did not run the batch: {status.problem or status.word}",
            where=f"{self._route.full_name}, batch {batch.id}",
            hint="Nothing was charged. Correct what it says, then run the same command again.",
        )

    # Time

    def _deadline(self) -> float:
        return (self.log.began or self._policy.clock()) + self._policy.deadline

    def _switch(self) -> float:
        """When open batches are canceled, so that their rows can be asked live in time."""
        return self._deadline() - self._policy.deadline * self._policy.live_share

    def _last_wait(self) -> float:
        """When canceled batches are left behind; half of the time after `_switch` remains for live calls."""
        return (self._switch() + self._deadline()) / 2

    def _is_late(self) -> bool:
        """Whether another batch is not likely to end before the rest would be asked live."""
        if self.log.began is None:
            return self._policy.deadline <= 0
        took = [each.at - each.started for each in self.log.fetched]
        expected = 2 * statistics.median(took) if took else 0.0
        return self._policy.clock() + expected >= self._switch()

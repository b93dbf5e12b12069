"""Answer rows concurrently on one event loop, slowing down when the vendor rate limits."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from slipform.addons.batch.call import FinishedRow, RowFunction
from slipform.addons.batch.jobs import Task
from slipform.errors import (
    AuthenticationError,
    LocalModelError,
    RateLimitError,
    RequestError,
    UpstreamError,
)

_BASE_PAUSE = 0.5
_MAX_PAUSE = 30.0


class AdaptiveConcurrency:
    """A limit on concurrent calls that falls after each rate limit and rises again as calls succeed.

    A rate limit halves the limit and pauses all calls; each full round of successes adds one. The pause is the
    vendor's, else it doubles with each rate limit in a row. Calls that were in flight when the limit was halved do not
    halve it again.

    >>> pace = AdaptiveConcurrency(8)
    >>> pace.refused(started=pace.now(), wait=0.0)
    >>> pace.limit
    4.0
    """

    def __init__(
        self,
        maximum: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self.limit = float(maximum)
        """How many calls may be in flight now."""
        self.now = clock
        self.last_success = clock()
        """When a call last succeeded."""
        self._maximum = float(maximum)
        self._random_fraction = random_fraction
        self._in_flight = 0
        self._paused_until = 0.0
        self._reduced_at = 0.0
        self._streak = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait until another call may start, and count it as in flight."""
        while True:
            if self._paused_until and (pause := self._paused_until - self.now()) > 0:
                await asyncio.sleep(pause)
            elif self._in_flight < int(self.limit):
                self._in_flight += 1
                return
            else:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter

    def release(self) -> None:
        """End a call, whatever its outcome."""
        self._in_flight -= 1
        if not self._waiting:
            return
        free = int(self.limit) - self._in_flight
        while free > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def succeeded(self) -> None:
        """Raise the limit after a call that was answered."""
        self._streak = 0
        self.last_success = self.now()
        if self.limit < self._maximum:
            self.limit = min(self._maximum, self.limit + 1 / self.limit)

    def refused(self, started: float, wait: float | None) -> None:
        """Lower the limit after a rate limit of a call begun at `started`; `wait` is the vendor's pause, if any."""
        now = self.now()
        if started >= self._reduced_at:
            self.limit = max(1.0, self.limit / 2)
            self._reduced_at = now
            self._streak += 1
        if wait is None:
            backoff = min(_MAX_PAUSE, _BASE_PAUSE * 2.0 ** max(0, self._streak - 1))
            wait = backoff * (0.5 + 0.5 * self._random_fraction())
        self._paused_until = max(self._paused_until, now + wait)


T = TypeVar("T")
_TEMPORARY_STATUSES = frozenset({408, 409, 425})


@dataclass(frozen=True, slots=True)
class GiveUpPolicy:
    """When a batch stops retrying a failing vendor."""

    retries: int = 3
    """Retries of a row when the vendor's server fails."""
    pause: float = 0.5
    """Seconds before the first retry; each further one waits twice as long."""
    longest_wait: float = 300.0
    """A vendor that asks for a longer wait in seconds ends the run."""
    no_progress: float = 900.0
    """Seconds without a success that end the run."""


async def answer_rows(
    tasks: Iterator[Task],
    caller: RowFunction,
    on_row: Callable[[FinishedRow], None],
    *,
    concurrency: int,
    window: int,
) -> None:
    """Answer every row; `on_row` is called with each as soon as it is done, in any order.

    At most `window` rows are started beyond the oldest one that is not done. Raises the error that no row could get
    past (a wrong key, an unreachable address, a spent quota), and leaves the other rows undone.
    """
    limiter = AdaptiveConcurrency(concurrency)
    policy = GiveUpPolicy()
    row_window = RowWindow(window)

    async def work() -> None:
        while True:
            await limiter.acquire()
            try:
                await row_window.wait_for_room()
                task = next(tasks, None)
                if task is None:
                    return
                position = row_window.begin()
                on_row(await _answer_with_retries(task, caller, limiter, policy))
                row_window.end(position)
            finally:
                limiter.release()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None


async def _answer_with_retries(
    task: Task, caller: RowFunction, pace: AdaptiveConcurrency, policy: GiveUpPolicy
) -> FinishedRow:
    retries = 0
    while True:
        started = pace.now()
        try:
            row = await caller.ask(task)
        except RateLimitError as error:
            _give_up(error, pace, policy)
            pace.refused(started, error.retry_after)
            pace.release()
            await pace.acquire()
        except RequestError as error:
            return caller.failed(task, error)
        except UpstreamError as error:
            retries += 1
            if not is_temporary(error) or retries > policy.retries:
                if is_fatal(error):
                    raise
                return caller.failed(task, error)
            await asyncio.sleep(error.retry_after or policy.pause * 2.0 ** (retries - 1))
        else:
            pace.succeeded()
            return row


def _give_up(error: RateLimitError, pace: AdaptiveConcurrency, policy: GiveUpPolicy) -> None:
    """Raise the rate limit when waiting cannot help."""
    wait = error.retry_after or 0.0
    if error.details.get("retryable") is False or wait > policy.longest_wait:
        raise error
    if pace.now() - pace.last_success > policy.no_progress:
        raise error


def is_temporary(error: UpstreamError) -> bool:
    """Whether the same call may succeed a little later: the server failed, or could not be reached."""
    if error.details.get("retryable") is False:
        return False
    if error.status is None:
        return error.details.get("phase") == "connect"
    return error.status >= 500 or error.status in _TEMPORARY_STATUSES


def is_fatal(error: UpstreamError) -> bool:
    """Whether every row would fail this way: the key, the engine or the address is wrong."""
    if isinstance(error, AuthenticationError | LocalModelError):
        return True
    return error.status in (402, 404) or (error.status is None and error.details.get("phase") == "connect")


class RowWindow:
    """A bound on how far work may run ahead of the oldest row that is not done.

    >>> window = RowWindow(2)
    >>> first, second = window.begin(), window.begin()
    >>> window.end(second)
    >>> window.full
    True
    """

    __slots__ = ("_done", "_oldest", "_room", "_size", "_started")

    def __init__(self, size: int) -> None:
        self._size = size
        self._started = 0
        self._oldest = 0
        self._done: set[int] = set()
        self._room: asyncio.Event | None = None

    @property
    def full(self) -> bool:
        """Whether no row may start now."""
        return self._started - self._oldest >= self._size

    async def wait_for_room(self) -> None:
        """Wait until a row may start."""
        while self.full:
            if self._room is None:
                self._room = asyncio.Event()
            await self._room.wait()

    def begin(self) -> int:
        """Start a row; return its position."""
        self._started += 1
        return self._started - 1

    def end(self, position: int) -> None:
        """Record that the row at this position is done."""
        self._done.add(position)
        while self._oldest in self._done:
            self._done.remove(self._oldest)
            self._oldest += 1
        if self._room is not None and not self.full:
            self._room.set()
            self._room = None


async def run_until_first_ends(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Run these concurrently until one ends, cancel the others, and raise the error that one ended with."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def run_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run on a separate event loop, uvloop's where installed, and return the result."""
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(main())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

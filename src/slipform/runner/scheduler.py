"""Rows on one event loop, and how many at a time."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from slipform.errors import (
    AuthenticationError,
    LocalModelError,
    RateLimitError,
    RequestError,
    SlipformError,
    UpstreamError,
)
from slipform.runner.call import FinishedRow
from slipform.runner.jobs import Task

_BASE = 0.5
_CAP = 30.0


@dataclass(frozen=True, slots=True)
class SlowDown:
    """A vendor asked to slow down: how many seconds ago the call began, and the wait that it asked for, if any.

    Times that have passed, because processes elsewhere have clocks of their own.
    """

    age: float
    asked: float | None


class AdaptiveConcurrency:
    """A door for calls, narrower after each refusal and wider again as calls go well.

    A refusal halves the number that may be inside and shuts the door for a while; calls that go well add one for each
    full round. The pause is what the vendor asks for, else it doubles with each refusal in a row. Calls that were
    inside already when the door was narrowed do not narrow it again. Where several processes call the same vendor,
    each has a door: `tell` is called with a refusal of its own, and it is to be told of theirs with `heard`.

    >>> pace = AdaptiveConcurrency(8)
    >>> pace.refused(began=pace.now(), asked=0.0)
    >>> pace.limit
    4.0
    """

    def __init__(
        self,
        most: int,
        *,
        tell: Callable[[SlowDown], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.limit = float(most)
        """How many calls may be inside now."""
        self.now = clock
        self.last_good = clock()
        """When a call last went well."""
        self._most = float(most)
        self._tell = tell
        self._draw = draw
        self._inside = 0
        self._shut_until = 0.0
        self._narrowed = 0.0
        self._streak = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait until another call may go out."""
        while True:
            if self._shut_until and (shut := self._shut_until - self.now()) > 0:
                await asyncio.sleep(shut)
            elif self._inside < int(self.limit):
                self._inside += 1
                return
            else:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(waiter)
                await waiter

    def leave(self) -> None:
        """A call is over, whatever became of it."""
        self._inside -= 1
        if not self._waiting:
            return
        room = int(self.limit) - self._inside
        while room > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    def went_well(self) -> None:
        """A call was answered."""
        self._streak = 0
        self.last_good = self.now()
        if self.limit < self._most:
            self.limit = min(self._most, self.limit + 1 / self.limit)

    def refused(self, began: float, asked: float | None) -> None:
        """The vendor asks to slow down, of a call that began at this time; `asked` is the wait it asks for."""
        self._slow_down(began, asked)
        if self._tell is not None:
            self._tell(SlowDown(self.now() - began, asked))

    def heard(self, refusal: SlowDown) -> None:
        """The vendor has asked another process to slow down."""
        self._slow_down(self.now() - refusal.age, refusal.asked)

    def _slow_down(self, began: float, asked: float | None) -> None:
        now = self.now()
        if began >= self._narrowed:
            self.limit = max(1.0, self.limit / 2)
            self._narrowed = now
            self._streak += 1
        backoff = min(_CAP, _BASE * 2.0 ** max(0, self._streak - 1)) * (0.5 + 0.5 * self._draw())
        self._shut_until = max(self._shut_until, now + (backoff if asked is None else asked))


T = TypeVar("T")
_PASSING = frozenset({408, 409, 425})


class RowFunction(Protocol):
    """What answers rows."""

    async def ask(self, task: Task) -> FinishedRow:
        """The finished row; what the vendor's side fails with is raised."""
        ...

    def failed(self, task: Task, error: SlipformError) -> FinishedRow:
        """A row that could not be done, with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class GiveUpPolicy:
    """How long a batch bears with its vendor."""

    repeats: int = 3
    """Repeats of a row when the vendor's server fails."""
    pause: float = 0.5
    """Seconds before the first of them; each further one waits twice as long."""
    longest_wait: float = 300.0
    """A vendor that asks for more than this ends the run."""
    no_progress: float = 900.0
    """Seconds of nothing but refusals that end the run."""


async def answer_rows(
    tasks: Iterator[Task],
    asker: RowFunction,
    finished: Callable[[FinishedRow], None],
    *,
    concurrency: int,
    window: int,
    patience: GiveUpPolicy | None = None,
    pace: AdaptiveConcurrency | None = None,
) -> None:
    """Answer every row; `finished` is told of each as soon as it is done, in whatever order that happens.

    At most `window` rows are begun beyond the oldest one that is not done. A wrong key, an address that does not
    answer, a spent quota: what no row could get past ends the run with that error, and leaves the rest undone.
    """
    door = pace or AdaptiveConcurrency(concurrency)
    bears = patience or GiveUpPolicy()
    line = RowWindow(window)

    async def work() -> None:
        while True:
            await door.enter()
            try:
                await line.room()
                task = next(tasks, None)
                if task is None:
                    return
                place = line.begin()
                finished(await _patiently(task, asker, door, bears))
                line.end(place)
            finally:
                door.leave()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


async def _patiently(task: Task, asker: RowFunction, door: AdaptiveConcurrency, bears: GiveUpPolicy) -> FinishedRow:
    repeats = 0
    while True:
        began = door.now()
        try:
            answered = await asker.ask(task)
        except RateLimitError as error:
            _give_up(error, door, bears)
            door.refused(began, error.retry_after)
            door.leave()
            await door.enter()
        except RequestError as error:
            return asker.failed(task, error)
        except UpstreamError as error:
            repeats += 1
            if not is_temporary(error) or repeats > bears.repeats:
                if is_fatal(error):
                    raise
                return asker.failed(task, error)
            await asyncio.sleep(error.retry_after or bears.pause * 2.0 ** (repeats - 1))
        else:
            door.went_well()
            return answered


def _give_up(error: RateLimitError, door: AdaptiveConcurrency, bears: GiveUpPolicy) -> None:
    """Raise the refusal when waiting is of no use."""
    asked = error.retry_after or 0.0
    if error.details.get("retryable") is False or asked > bears.longest_wait:
        raise error
    if door.now() - door.last_good > bears.no_progress:
        raise error


def is_temporary(error: UpstreamError) -> bool:
    """Whether the same call may go well a little later: the server failed, or could not be reached."""
    if error.details.get("retryable") is False:
        return False
    if error.status is None:
        return error.details.get("phase") == "connect"
    return error.status >= 500 or error.status in _PASSING


def is_fatal(error: UpstreamError) -> bool:
    """Whether every row would fail so: the key, the engine, the address; not this row's fault."""
    if isinstance(error, AuthenticationError | LocalModelError):
        return True
    return error.status in (402, 404) or (error.status is None and error.details.get("phase") == "connect")


class RowWindow:
    """How far work may run ahead of the oldest piece that is not done.

    >>> window = RowWindow(2)
    >>> first, second = window.begin(), window.begin()
    >>> window.end(second)
    >>> window.full
    True
    """

    __slots__ = ("_begun", "_done", "_moved", "_oldest", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._begun = 0
        self._oldest = 0
        self._done: set[int] = set()
        self._moved: asyncio.Event | None = None

    @property
    def full(self) -> bool:
        """Whether nothing may begin now."""
        return self._begun - self._oldest >= self._size

    async def room(self) -> None:
        """Wait until something may begin."""
        while self.full:
            if self._moved is None:
                self._moved = asyncio.Event()
            await self._moved.wait()

    def begin(self) -> int:
        """Begin; gives the place in the line."""
        self._begun += 1
        return self._begun - 1

    def end(self, place: int) -> None:
        """What began at this place is done."""
        self._done.add(place)
        while self._oldest in self._done:
            self._done.remove(self._oldest)
            self._oldest += 1
        if self._moved is not None and not self.full:
            self._moved.set()
            self._moved = None


async def until_one_ends(*sides: Coroutine[Any, Any, None]) -> None:
    """Run these side by side until one of them ends; the others are cancelled. What one failed with is raised."""
    tasks = [asyncio.create_task(side) for side in sides]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end


def run_loop(main: Callable[[], Awaitable[T]]) -> T:
    """Run on an event loop of its own, a fast one where it is installed."""

    async def started() -> T:
        return await main()

    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(started())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

"""The rows of a batch on one event loop: bounded in number, in patience and in how far they run ahead."""

from __future__ import annotations

import asyncio
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
from slipform.runner.asking import Answered
from slipform.runner.jobs import Task
from slipform.runner.pace import Pace

T = TypeVar("T")

_PASSING = frozenset({408, 409, 425})


class Asks(Protocol):
    """What answers rows."""

    async def ask(self, task: Task) -> Answered:
        """The finished row; what the vendor's side fails with is raised."""
        ...

    def failed(self, task: Task, error: SlipformError) -> Answered:
        """A row that could not be done, with the reason."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
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
    asker: Asks,
    finished: Callable[[Answered], None],
    *,
    concurrency: int,
    window: int,
    patience: Patience | None = None,
    pace: Pace | None = None,
) -> None:
    """Answer every row; `finished` is told of each as soon as it is done, in whatever order that happens.

    At most `window` rows are begun beyond the oldest one that is not done. A wrong key, an address that does not
    answer, a spent quota: what no row could get past ends the run with that error, and leaves the rest undone.
    """
    door = pace or Pace(concurrency)
    bears = patience or Patience()
    line = Window(window)

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


async def _patiently(task: Task, asker: Asks, door: Pace, bears: Patience) -> Answered:
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
            if not is_passing(error) or repeats > bears.repeats:
                if is_everybodys(error):
                    raise
                return asker.failed(task, error)
            await asyncio.sleep(error.retry_after or bears.pause * 2.0 ** (repeats - 1))
        else:
            door.went_well()
            return answered


def _give_up(error: RateLimitError, door: Pace, bears: Patience) -> None:
    """Raise the refusal when waiting is of no use."""
    asked = error.retry_after or 0.0
    if error.details.get("retryable") is False or asked > bears.longest_wait:
        raise error
    if door.now() - door.last_good > bears.no_progress:
        raise error


def is_passing(error: UpstreamError) -> bool:
    """Whether the same call may go well a little later: the server failed, or could not be reached."""
    if error.details.get("retryable") is False:
        return False
    if error.status is None:
        return error.details.get("phase") == "connect"
    return error.status >= 500 or error.status in _PASSING


def is_everybodys(error: UpstreamError) -> bool:
    """Whether every row would fail so: the key, the engine, the address; not this row's fault."""
    if isinstance(error, AuthenticationError | LocalModelError):
        return True
    return error.status in (402, 404) or (error.status is None and error.details.get("phase") == "connect")


class Window:
    """How far work may run ahead of the oldest piece that is not done.

    >>> window = Window(2)
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

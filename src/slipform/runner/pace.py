"""How many calls go out at a time: fewer when the vendor asks to slow down, slowly more when it goes well."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_BASE = 0.5
_CAP = 30.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A vendor asked to slow down: how many seconds ago the call began, and the wait that it asked for, if any.

    Times that have passed, because processes elsewhere have clocks of their own.
    """

    age: float
    asked: float | None


class Pace:
    """A door for calls, narrower after each refusal and wider again as calls go well.

    A refusal halves the number that may be inside and shuts the door for a while; calls that go well add one for each
    full round. The pause is what the vendor asks for, else it doubles with each refusal in a row. Calls that were
    inside already when the door was narrowed do not narrow it again. Where several processes call the same vendor,
    each has a door: `tell` is called with a refusal of its own, and it is to be told of theirs with `heard`.

    >>> pace = Pace(8)
    >>> pace.refused(began=pace.now(), asked=0.0)
    >>> pace.limit
    4.0
    """

    def __init__(
        self,
        most: int,
        *,
        tell: Callable[[Refusal], None] | None = None,
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
            self._tell(Refusal(self.now() - began, asked))

    def heard(self, refusal: Refusal) -> None:
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

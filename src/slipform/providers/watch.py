"""One timer for all that wait on an event loop: nearly all of them are over long before it rings."""

from __future__ import annotations

import asyncio
from typing import Protocol

_LATE_ENOUGH = 0.005
"""How much too late the timer may be, in seconds: event loops round the time, and that must not set it anew."""


class Waiting(Protocol):
    """Something with a time limit."""

    def time_left(self) -> float | None:
        """Seconds until its limit, None when there is none now; `TimeoutError` when it is past."""
        ...

    def late(self) -> None:
        """Its time is over."""
        ...


class Watch:
    """Looks after those who entered; each says itself how long it may take.

    >>> loop = asyncio.new_event_loop()
    >>> Watch(loop).within(None)
    >>> loop.close()
    """

    __slots__ = ("_entered", "_loop", "_rings_at", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._entered: dict[Waiting, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def enter(self, waiting: Waiting) -> None:
        """Look after this one until it leaves."""
        self._entered[waiting] = None

    def leave(self, waiting: Waiting) -> None:
        """It is over; harmless when repeated."""
        self._entered.pop(waiting, None)

    def within(self, seconds: float | None) -> None:
        """One of them has this long from now on."""
        if seconds is None:
            return
        rings_at = self._loop.time() + seconds
        if self._timer is None:
            self._set(rings_at)
        elif rings_at < self._rings_at - _LATE_ENOUGH:
            self._timer.cancel()
            self._set(rings_at)

    def _set(self, rings_at: float) -> None:
        self._rings_at = rings_at
        self._timer = self._loop.call_at(rings_at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        soonest: float | None = None
        for waiting in list(self._entered):
            try:
                left = waiting.time_left()
            except TimeoutError:
                waiting.late()
            else:
                if left is not None and (soonest is None or left < soonest):
                    soonest = left
        self.within(soonest)

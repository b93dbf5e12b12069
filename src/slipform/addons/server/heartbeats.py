"""Detect workers that hang: each counts up in shared memory, and its supervisor compares."""

from __future__ import annotations

import mmap
from typing import Final

TICK_SECONDS: Final = 1.0
"""Seconds between two counts of a worker's event loop."""
HUNG_SECONDS: Final = 15.0
"""Seconds after which a worker whose event loop has not run is replaced."""
START_SECONDS: Final = 60.0
"""Seconds that a worker may take until its event loop runs for the first time."""
_SLOT_BYTES: Final = 8


class Heartbeats:
    """One counter per worker, in memory that is shared with processes forked later.

    >>> beats = Heartbeats(1)
    >>> beats.start(0, now=0.0)
    >>> beats.is_hung(0, now=START_SECONDS - 1)
    False
    >>> beats.beat(0)
    >>> beats.is_hung(0, now=START_SECONDS - 1)
    False
    >>> beats.is_hung(0, now=START_SECONDS - 1 + HUNG_SECONDS + 1)
    True
    """

    def __init__(self, count: int) -> None:
        self._counters = memoryview(mmap.mmap(-1, count * _SLOT_BYTES)).cast("Q")
        self._last_counts = [0] * count
        self._deadlines = [0.0] * count

    def beat(self, index: int) -> None:
        """Increment the counter; called by the worker."""
        self._counters[index] += 1

    def start(self, index: int, now: float) -> None:
        """Reset the counter of a worker that is about to be started; called by the supervisor before it forks."""
        self._counters[index] = 0
        self._last_counts[index] = 0
        self._deadlines[index] = now + START_SECONDS

    def postpone(self, seconds: float) -> None:
        """Postpone all deadlines, because the supervisor itself did not run, and so perhaps its workers."""
        self._deadlines = [deadline + seconds for deadline in self._deadlines]

    def is_hung(self, index: int, now: float) -> bool:
        """Return whether a worker is past its deadline; a changed counter sets a new one."""
        count = self._counters[index]
        if count != self._last_counts[index]:
            self._last_counts[index] = count
            self._deadlines[index] = now + HUNG_SECONDS
        return now > self._deadlines[index]

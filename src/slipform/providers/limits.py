"""Time limits of one exchange, and the faults that running out of them stands for."""

from __future__ import annotations

import time
from collections.abc import Callable

from slipform.providers.http1 import ProtocolError
from slipform.providers.transport import Limit, Phase, Timeouts, TransportFault


class Limits:
    """Which limit runs now, and how much of it is left."""

    __slots__ = ("_clock", "_first_at", "_started", "_timeouts", "_total_at")

    def __init__(self, timeouts: Timeouts, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._timeouts = timeouts
        self._started = clock()
        self._total_at = None if timeouts.total is None else self._started + timeouts.total
        self._first_at: float | None = None

    def sending(self) -> None:
        """The wait for the first byte begins."""
        wait = self._timeouts.first_byte
        self._first_at = None if wait is None else self._clock() + wait

    def left(self, limit: Limit, waited: float = 0.0) -> float | None:
        """Seconds until this limit or the total one runs out, None when neither is set; `TimeoutError` when past.

        The limit between chunks is told how long the wait for the next one has lasted.
        """
        now = self._clock()
        end, total = self._end(limit, now - waited), self._total_at
        if end is None or (total is not None and total < end):
            end = total
        if end is None:
            return None
        if end <= now:
            raise TimeoutError
        return end - now

    def ran_out(self, limit: Limit) -> Limit:
        """Which of the two it was."""
        return "total" if self._total_at is not None and self._clock() >= self._total_at - 0.005 else limit

    def translate(self, error: BaseException, phase: Phase, limit: Limit) -> None:
        """Raise the `TransportFault` that an error stands for; errors that are none of the network's pass."""
        if isinstance(error, TimeoutError):
            raise TransportFault("time ran out", phase=phase, limit=self.ran_out(limit)) from error
        if isinstance(error, OSError | ProtocolError):
            # An OSError's text may be as bare as "[Errno 104]"; its class says more.
            raise TransportFault(f"{error}" or type(error).__name__, phase=phase) from error

    def _end(self, limit: Limit, since: float) -> float | None:
        if limit == "first_byte":
            return self._first_at
        if limit == "connect":
            return None if self._timeouts.connect is None else self._started + self._timeouts.connect
        if limit == "between_chunks":
            return None if self._timeouts.between_chunks is None else since + self._timeouts.between_chunks
        return self._total_at

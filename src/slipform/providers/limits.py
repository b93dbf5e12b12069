"""Time limits of one exchange, and the faults that running out of them stands for."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

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

    def left(self, limit: Limit) -> float | None:
        """Seconds until this limit or the total one runs out, None when neither is set; `TimeoutError` when past."""
        now = self._clock()
        ends = [end for end in (self._end(limit, now), self._total_at) if end is not None]
        if not ends:
            return None
        left = min(ends) - now
        if left <= 0:
            raise TimeoutError
        return left

    def ran_out(self, limit: Limit) -> Limit:
        """Which of the two it was."""
        return "total" if self._total_at is not None and self._clock() >= self._total_at - 0.005 else limit

    def _end(self, limit: Limit, now: float) -> float | None:
        if limit == "first_byte":
            return self._first_at
        if limit == "connect":
            return None if self._timeouts.connect is None else self._started + self._timeouts.connect
        if limit == "between_chunks":
            return None if self._timeouts.between_chunks is None else now + self._timeouts.between_chunks
        return self._total_at


class Guard:
    """Turns what goes wrong inside a `with` into a `TransportFault`, and lets go of the connection whatever it was."""

    __slots__ = ("_limit", "_limits", "_phase", "_release")

    def __init__(self, limits: Limits, phase: Phase, limit: Limit, release: Callable[[], object] | None = None) -> None:
        self._limits = limits
        self._phase = phase
        self._limit = limit
        self._release = release

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            return
        if self._release is not None:
            self._release()
        if isinstance(error, TimeoutError):
            ran_out = self._limits.ran_out(self._limit)
            raise TransportFault("time ran out", phase=self._phase, limit=ran_out) from error
        if isinstance(error, OSError | ProtocolError):
            # An OSError's text may be as bare as "[Errno 104]"; its class says more.
            raise TransportFault(f"{error}" or type(error).__name__, phase=self._phase) from error

"""How far a batch is: a bar on a terminal, a line now and then elsewhere, both on standard error."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Self

from slipform.ir import Usage
from slipform.runner.asking import Answered

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_LINE = 5.0
EVERY_FRAME = 0.25
EVERY_SYNC = 1.0


@dataclass(slots=True)
class Tally:
    """What has happened so far in this run."""

    left: int
    """Rows that were to be done when the run began."""
    before: int = 0
    """Rows that were done before."""
    done: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    began: float = field(default_factory=time.monotonic)

    def add(self, answered: Answered) -> None:
        """One more row is finished."""
        self.done += 1
        self.failed += not answered.entry.ok
        self.usage += answered.usage
        if answered.cost is not None:
            self.cost = answered.cost + (self.cost or 0.0)

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return time.monotonic() - self.began

    def describe(self) -> str:
        """One line: rows, failures, rate, cost and the time that is left.

        >>> Tally(left=10, before=2, done=5, failed=1, cost=0.25, began=time.monotonic() - 5).describe()
        '7 of 12 rows, 1 failed, 1.0 rows/s, cost 0.25, 0:00:05 to go'
        """
        rate = self.done / max(self.seconds, 1e-9)
        parts = [f"{self.before + self.done:,} of {self.before + self.left:,} rows"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        parts.append(f"{rate:,.1f} rows/s")
        if self.cost is not None:
            parts.append(f"cost {self.cost:,.4g}")
        if self.done and self.done < self.left:
            parts.append(f"{_clock((self.left - self.done) / rate)} to go")
        return ", ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class Display:
    """Shows a tally while it is entered; nothing when `quiet`."""

    def __init__(self, tally: Tally, *, quiet: bool = False, stream: IO[str] | None = None) -> None:
        self._tally = tally
        self._out = stream or sys.stderr
        self._quiet = quiet
        self._said = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if not self._quiet and self._out.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(file=self._out), transient=True)
            self._task = self._bar.add_task("", total=self._tally.before + self._tally.left)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self) -> None:
        """Show how it stands now; a line comes every few seconds only."""
        tally = self._tally
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=tally.before + tally.done, description=tally.describe())
        elif not self._quiet and time.monotonic() - self._said >= EVERY_LINE:
            self._said = time.monotonic()
            print(f"slipform: {tally.describe()}", file=self._out, flush=True)


async def show(display: Display, housekeep: Callable[[], None]) -> None:
    """Show the tally until cancelled, and keep house about once a second."""
    kept = time.monotonic()
    with display:
        while True:
            await asyncio.sleep(EVERY_FRAME)
            display.step()
            if time.monotonic() - kept >= EVERY_SYNC:
                await asyncio.to_thread(housekeep)
                kept = time.monotonic()

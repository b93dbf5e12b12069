"""Count the work for one answer, and refuse an answer whose work is out of proportion to its length.

A unit of work is a character that is read, about 0.1 µs; a token that needs repair is about a hundred. Counts are the
same on every machine. Everything that reads an answer is linear in its length as far as it can be; the budget bounds
what is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final

from slipform.errors import WorkLimitError

BASE_WORK: Final = 2_000_000
WORK_PER_CHARACTER: Final = 120
"""Units for any answer, and further units for each of its characters."""
BASE_TRIALS: Final = 1_000_000
TRIALS_PER_CHARACTER: Final = 20
"""The share of them for trials: other readings of an ambiguous text, and patches."""
MAX_WORK: Final = 100_000_000
MAX_TRIALS: Final = 20_000_000
"""The most units for any answer, however long: about ten seconds, of which an ordinary answer of 10 MB takes five."""


class WorkBudget:
    """The limit of the work units for one answer, and the units spent so far."""

    __slots__ = ("limit", "size", "spent", "trial_limit", "trials_spent")

    def __init__(self, size: int) -> None:
        self.size = size
        """Characters of the answer."""
        self.limit = min(BASE_WORK + WORK_PER_CHARACTER * size, MAX_WORK)
        self.trial_limit = min(BASE_TRIALS + TRIALS_PER_CHARACTER * size, MAX_TRIALS)
        self.spent = 0
        self.trials_spent = 0
        """The units spent on trials."""

    @property
    def left(self) -> int:
        """The units that may still be spent; never negative."""
        return max(0, self.limit - self.spent)

    @property
    def allows_trials(self) -> bool:
        """Whether units are left for trials; without them, the first reading is used unchanged."""
        return self.trials_spent < self.trial_limit

    def spend(self, units: int) -> None:
        """Count work; raises `WorkLimitError` beyond the limit."""
        self.spent += units
        self.check()

    def spend_on_trial(self, units: int) -> None:
        """Count work of a trial."""
        self.trials_spent += units
        self.spend(units)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Count all work inside as trials."""
        before = self.spent
        tried = self.trials_spent
        try:
            yield
        finally:
            self.trials_spent = tried + self.spent - before

    def check(self) -> None:
        """Raise `WorkLimitError` if more than the limit was spent."""
        if self.spent > self.limit:
            raise WorkLimitError(
                "Reading the answer takes too much work",
                where=f"an answer of {self.size:,} characters",
                hint="Ask the model for one JSON document, without other text, code fences or brackets around it.",
                details={"characters": self.size, "limit": self.limit},
            )


_BUDGET: Final[ContextVar[WorkBudget | None]] = ContextVar("work_budget", default=None)


class bounded_work:  # noqa: N801 — a context manager, named as those of contextlib are
    """Count all work inside against one budget, for an answer of `size` characters, also where this is nested.

    `trials` bounds what is spent on trials further, for callers that prefer no result to a long wait.
    Raises `WorkLimitError` at the end, too, in case code inside took it for a text without JSON.

    >>> with bounded_work(10) as budget:
    ...     current_budget().spend(7)
    >>> budget.spent
    7
    """

    __slots__ = ("_budget", "_size", "_token", "_trials")

    def __init__(self, size: int, trials: int = MAX_TRIALS) -> None:
        self._size = size
        self._trials = trials
        self._token: Token[WorkBudget | None] | None = None

    def __enter__(self) -> WorkBudget:
        outer = _BUDGET.get()
        if outer is not None:
            return outer
        self._budget = WorkBudget(self._size)
        self._budget.trial_limit = min(self._budget.trial_limit, self._trials)
        self._token = _BUDGET.set(self._budget)
        return self._budget

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if self._token is None:
            return
        _BUDGET.reset(self._token)
        if error_type is None:
            self._budget.check()


def current_budget() -> WorkBudget:
    """Return the current budget; a separate one outside `bounded_work`."""
    return _BUDGET.get() or WorkBudget(0)


def spend(units: int) -> None:
    """Count work against the current budget."""
    current_budget().spend(units)

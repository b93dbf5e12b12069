"""Define what a key may spend in which period, and compute how much remains.

Money is counted in whole billionths (nanos) of the currency in which `prices` are given: a token costs thousandths of a
millionth, and sums of integers do not drift. Periods are those of the calendar in UTC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from slipform.addons.server.admission.refusals import Refused
from slipform.addons.server.observability.call_record import Header
from slipform.errors import ConfigError

NANOS: Final = 1_000_000_000
PERIODS: Final = ("hour", "day", "week", "month", "")
"""The periods of budgets; the empty one is the key's whole life."""
Bucket: TypeAlias = str
"""One period: its kind and its first second, as in `day:1794873600`."""


class BudgetExceeded(Refused):
    """The key's budget has no room for the highest possible cost of the call."""

    code = "budget_exceeded"
    http_status = 429


class NoPrice(Refused):
    """The key has a cost budget, and the model has no price."""

    code = "no_price"
    http_status = 400


class LedgerUnavailable(Refused):
    """The spending of the key cannot be read or written at present."""

    code = "ledger_unavailable"
    http_status = 503


@dataclass(frozen=True, slots=True)
class KeyBudget:
    """The spending limits of a key in a period, the limits for warnings, and the limit of calls in progress."""

    max_cost: float | None = None
    max_tokens: int | None = None
    period: str = ""
    soft_cost: float | None = None
    soft_tokens: int | None = None
    max_concurrent: int | None = None

    def check(self) -> None:
        """Raise `ValueError` for contradictory limits."""
        if self.period not in PERIODS:
            raise ValueError(f"{self.period!r} is not a period of a budget")
        for limit in (self.max_cost, self.max_tokens, self.soft_cost, self.soft_tokens, self.max_concurrent):
            if limit is not None and not (isinstance(limit, int | float) and 0 <= limit < math.inf):
                raise ValueError(f"{limit!r} is not a limit of a budget")

    @property
    def is_of_money(self) -> bool:
        """Whether models without a price are refused."""
        return self.max_cost is not None or self.soft_cost is not None

    @property
    def is_limited(self) -> bool:
        """Whether costs or tokens are limited."""
        return self.max_cost is not None or self.max_tokens is not None

    @property
    def nanos(self) -> int | None:
        """The cost budget in nanos."""
        if self.max_cost is None:
            return None
        return round(self.max_cost * NANOS)


class Standing(NamedTuple):
    """The spending of a key in a period, the amounts reserved for its calls in progress, and their number."""

    requests: int = 0
    tokens: int = 0
    cost: int = 0
    held_tokens: int = 0
    held_cost: int = 0
    live: int = 0

    def refusal(self, budget: KeyBudget, tokens: int, cost: int, *, further: bool = False) -> str | None:
        """Return the limit that has no room for a reservation: `concurrent`, `tokens` or `cost`; None if all have.

        `further` is a reservation for another attempt of a call that is already counted.
        """
        if budget.max_concurrent is not None and not further and self.live >= budget.max_concurrent:
            return "concurrent"
        if budget.max_tokens is not None and self.tokens + self.held_tokens + tokens > budget.max_tokens:
            return "tokens"
        nanos = budget.nanos
        if nanos is not None and self.cost + self.held_cost + cost > nanos:
            return "cost"
        return None

    def has_room_later(self, budget: KeyBudget, tokens: int, cost: int) -> bool:
        """Return whether a reservation of this size would fit if no other call were in progress."""
        alone = self._replace(held_tokens=0, held_cost=0)
        return alone.refusal(budget, tokens, cost, further=True) is None

    def with_hold(self, tokens: int, cost: int, *, further: bool = False) -> Standing:
        """Return the standing after a reservation of this size."""
        live = self.live if further else self.live + 1
        return self._replace(held_tokens=self.held_tokens + tokens, held_cost=self.held_cost + cost, live=live)


def period_start(kind: str, now: float) -> datetime:
    """Return the first moment of the period that contains a moment.

    >>> period_start("week", 1_794_900_000).isoformat()
    '2026-11-16T00:00:00+00:00'
    """
    moment = datetime.fromtimestamp(now, UTC)
    if kind == "hour":
        return moment.replace(minute=0, second=0, microsecond=0)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if kind == "day":
        return day
    if kind == "week":
        return day - timedelta(days=day.weekday())
    if kind == "month":
        return day.replace(day=1)
    return datetime.fromtimestamp(0, UTC)


def period_end(kind: str, now: float) -> datetime | None:
    """Return the first moment of the next period; None where there is none.

    >>> period_end("month", 1_794_900_000).isoformat()
    '2026-12-01T00:00:00+00:00'
    """
    start = period_start(kind, now)
    if kind == "month":
        return (start + timedelta(days=32)).replace(day=1)
    spans = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(weeks=1)}
    return start + spans[kind] if kind in spans else None


def bucket_of(kind: str, now: float) -> Bucket:
    """Return the name under which a period's sums are stored.

    >>> bucket_of("day", 1_794_900_000), bucket_of("", 0)
    ('day:1794873600', 'all')
    """
    if kind:
        return f"{kind}:{period_start(kind, now).timestamp():.0f}"
    return "all"


def money(nanos: int) -> str:
    """Return an amount as text for headers and messages.

    >>> money(1_500_000_000), money(20), money(0)
    ('1.5', '0.00000002', '0')
    """
    sign = "-" if nanos < 0 else ""
    whole = abs(nanos) // NANOS
    part = abs(nanos) % NANOS
    return f"{sign}{whole}.{part:09d}".rstrip("0").rstrip(".")


def remaining_headers(budget: KeyBudget, standing: Standing) -> list[Header]:
    """Return the remaining budget, and whether the soft limit is exceeded, as response headers.

    >>> remaining_headers(KeyBudget(max_cost=2, soft_cost=1), Standing(cost=1_500_000_000))
    [(b'x-slipform-budget-remaining', b'0.5'), (b'x-slipform-budget-soft', b'exceeded')]
    """
    headers: list[Header] = []
    if budget.nanos is not None:
        left = max(0, budget.nanos - standing.cost - standing.held_cost)
        headers.append((b"x-slipform-budget-remaining", money(left).encode()))
    if budget.max_tokens is not None:
        left = max(0, budget.max_tokens - standing.tokens - standing.held_tokens)
        headers.append((b"x-slipform-tokens-remaining", b"%d" % left))
    if is_over_soft(budget, standing):
        headers.append((b"x-slipform-budget-soft", b"exceeded"))
    return headers


def is_over_soft(budget: KeyBudget, standing: Standing) -> bool:
    """Return whether the spending has reached a soft limit."""
    over_cost = budget.soft_cost is not None and standing.cost >= budget.soft_cost * NANOS
    return over_cost or (budget.soft_tokens is not None and standing.tokens >= budget.soft_tokens)


class CallNeed(NamedTuple):
    """The key's name and the amount to reserve for a call."""

    name: str
    tokens: int
    cost: int


def budget_refusal(limit: str, budget: KeyBudget, standing: Standing, need: CallNeed, now: float) -> BudgetExceeded:
    """Return the error for a reservation that does not fit; it can be retried where only other calls are in the way."""
    span = f"this {budget.period}" if budget.period else "in all"
    if limit == "tokens":
        most = f"{budget.max_tokens} tokens"
        spent = str(standing.tokens)
        needed = f"{need.tokens} tokens"
        reserved = str(standing.held_tokens)
    else:
        most = money(budget.nanos or 0)
        spent = money(standing.cost)
        needed = money(need.cost)
        reserved = money(standing.held_cost)
    message = (
        f"The budget of the API key {need.name!r} is {most} {span}: {spent} is spent, {reserved} is reserved for calls "
        f"under way, and this call may take {needed}"
    )
    headers = remaining_headers(budget, standing)
    if standing.has_room_later(budget, need.tokens, need.cost):
        hint = "Try again in a moment: what calls under way do not use is released when they end."
        return BudgetExceeded(message, hint=hint, retry_after=1, headers=headers)
    end = period_end(budget.period, now)
    when = ""
    if end is not None:
        when = f"The next {budget.period} begins at {end:%Y-%m-%dT%H:%MZ}. "
    return BudgetExceeded(
        message,
        hint=f"{when}Allow fewer tokens (`max_tokens`), or ask who runs this server for a larger budget.",
        retry_after=max(1.0, end.timestamp() - now) if end is not None else None,
        headers=[*headers, (b"x-should-retry", b"false")],
    )


def parse_limit(text: str, where: str) -> float:
    """Parse a number of money or tokens: `20`, `1.5`, `200k`, `3M`.

    >>> parse_limit("200k", "--tokens")
    200000.0
    """
    scale = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    try:
        value = float(text[:-1] if scale > 1 else text) * scale
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"{text!r} is not a limit", where=where, hint="Write 20, 1.5, 200k or 3M.")
    return value

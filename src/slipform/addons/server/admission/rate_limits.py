"""Limit the rate of calls per caller, in this process or through Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipform.addons.server.observability.call_record import Header

if TYPE_CHECKING:
    from slipform.addons.server.admission.shared_state import SharedState

_MINUTE = 60.0
_MOST_BUCKETS = 20_000
_LEASE_SECONDS = 10.0
_ALONE_SECONDS = 2.0


class Allowance(NamedTuple):
    """The state of a bucket: whether the call may proceed, the permits left, the seconds until one or all return."""

    ok: bool
    limit: int
    remaining: int
    wait: float
    reset: float


class Rates(Protocol):
    """Buckets of permits by name."""

    def take(self, name: str, limit: int) -> Allowance | None:
        """Take one of `limit` permits per minute; None when only `fetch` can decide."""
        ...

    async def fetch(self, name: str, limit: int) -> Allowance:
        """Take a permit after a request to the store of permits."""
        ...


class LocalRates:
    """Buckets in this process: a full one allows a minute's calls at once, then refills evenly.

    >>> rates = LocalRates(clock=lambda: 0.0)
    >>> [rates.take("ada", 2).ok for _ in range(3)]
    [True, True, False]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = _MOST_BUCKETS) -> None:
        self._clock = clock
        self._most = most
        self._full_at: dict[str, float] = {}
        # A bucket is one number: the moment when it will be full again.

    def take(self, name: str, limit: int) -> Allowance:
        """Take one permit."""
        now = self._clock()
        spacing = _MINUTE / limit
        full_at = self._full_at.get(name, now)
        after = (full_at if full_at > now else now) + spacing - now  # noqa: FURB136 — `max` costs as much as the rest
        if after > _MINUTE + 1e-6:
            return Allowance(False, limit, 0, after - _MINUTE, after - spacing)
        if name not in self._full_at and len(self._full_at) >= self._most:
            self._forget(now)
        self._full_at[name] = now + after
        return Allowance(True, limit, int((_MINUTE - after) / spacing + 1e-6), 0.0, after)

    async def fetch(self, name: str, limit: int) -> Allowance:
        """Take one permit."""
        return self.take(name, limit)

    def _forget(self, now: float) -> None:
        """Drop full buckets, which have no information; if too many remain, the older half as well."""
        unfilled = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        surplus = len(unfilled) // 2 if len(unfilled) > self._most // 2 else 0
        self._full_at = dict(list(unfilled.items())[surplus:])


@dataclass(slots=True)
class _Lease:
    """Permits of one bucket that this process has already taken from Redis."""

    left: int = 0
    until: float = 0.0
    remaining: int = 0
    refused_until: float = 0.0
    alone_until: float = 0.0
    """This process counts alone until then, because Redis did not answer."""
    refill: asyncio.Task[None] | None = None


class SharedRates:
    """Buckets in Redis; permits are taken in batches, and while Redis is away each process counts alone.

    About a second's permits are taken at once, and more before they run out, so most calls need no request. Permits
    that are not used within ten seconds are lost.
    """

    def __init__(self, shared: SharedState, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = shared
        self._clock = clock
        self._alone = LocalRates(clock)
        self._leases: dict[str, _Lease] = {}

    def take(self, name: str, limit: int) -> Allowance | None:
        """Take one of the permits at hand."""
        if self._shared.down:
            return self._alone.take(name, limit)
        now = self._clock()
        lease = self._lease(name)
        if now < lease.alone_until:
            return self._alone.take(name, limit)
        if now < lease.refused_until:
            wait = lease.refused_until - now
            return Allowance(False, limit, 0, wait, wait)
        if lease.left <= 0 or now > lease.until:
            return None
        lease.left -= 1
        size = lease_size(limit)
        if lease.left < size // 4:
            self._refill(lease, name, limit)
        remaining = lease.remaining + lease.left
        return Allowance(True, limit, remaining, 0.0, (limit - remaining) * _MINUTE / limit)

    async def fetch(self, name: str, limit: int) -> Allowance:
        """Take one permit after a refill, which concurrent callers share."""
        while True:
            allowance = self.take(name, limit)
            if allowance is not None:
                return allowance
            await asyncio.shield(self._refill(self._lease(name), name, limit))

    def _lease(self, name: str) -> _Lease:
        lease = self._leases.get(name)
        if lease is None:
            if len(self._leases) >= _MOST_BUCKETS:
                self._leases = {key: each for key, each in self._leases.items() if each.refill is not None}
            lease = self._leases[name] = _Lease()
        return lease

    def _refill(self, lease: _Lease, name: str, limit: int) -> asyncio.Task[None]:
        if lease.refill is None:
            lease.refill = asyncio.create_task(self._take_permits(lease, name, limit))
        return lease.refill

    async def _take_permits(self, lease: _Lease, name: str, limit: int) -> None:
        """Take more permits from Redis for this process, or record until when it refuses or counts alone."""
        try:
            permits = await self._shared.permits(name, limit, lease_size(limit))
            now = self._clock()
            if permits is None:  # Redis is away, or its answer is impossible
                lease.alone_until = now + _ALONE_SECONDS
                return
            granted, lease.remaining, wait = permits
            if granted:
                if now > lease.until:
                    lease.left = 0
                lease.left += granted
                lease.until = now + _LEASE_SECONDS
            elif lease.left <= 0 or now > lease.until:
                lease.left = 0
                lease.refused_until = now + wait
        finally:
            lease.refill = None


def lease_size(limit: int) -> int:
    """Return how many permits are taken at once: about a second's worth.

    >>> lease_size(30), lease_size(6000)
    (1, 100)
    """
    return max(1, min(limit // 60, 1000))


def rate_headers(allowance: Allowance, api: str) -> list[Header]:
    """Return the caller's limit and the remaining permits as headers of the API.

    >>> rate_headers(Allowance(True, 60, 59, 0.0, 1.0), "openai_chat")[1]
    (b'x-ratelimit-remaining-requests', b'59')
    """
    limit = str(allowance.limit).encode()
    remaining = str(allowance.remaining).encode()
    if api == "anthropic":
        moment = datetime.now(UTC) + timedelta(seconds=allowance.reset)
        stem = b"anthropic-ratelimit-requests-"
        reset = moment.isoformat(timespec="seconds").replace("+00:00", "Z").encode()
        return [(stem + b"limit", limit), (stem + b"remaining", remaining), (stem + b"reset", reset)]
    return [
        (b"x-ratelimit-limit-requests", limit),
        (b"x-ratelimit-remaining-requests", remaining),
        (b"x-ratelimit-reset-requests", f"{allowance.reset:.3g}s".encode()),
    ]

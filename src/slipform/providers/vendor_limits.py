"""Limit requests and tokens per minute to a provider, as one budget for all workers and machines.

Both the settings (`requests_per_minute`, `tokens_per_minute`) and what the vendor says in its responses count: one
whose limit is used up, or that asks to wait, is left alone until then by all. With `redis:` in the settings every
process that shares it draws on one budget; without, or while Redis is away, each has its own. A call draws what it may
take before it is sent; when its answer is read, what it has taken counts instead.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from slipform.codecs.usage import UsageTail
from slipform.errors import ConfigError
from slipform.ir.response import NO_USAGE
from slipform.providers.network.transport import HttpRequest
from slipform.providers.retry import requested_wait

_log = logging.getLogger("slipform.providers")
_MINUTE = 60.0
_BYTES_PER_TOKEN = 4
_ASKED_TOKENS = re.compile(rb'"(?:max(?:_completion|_output|Output)?_?[tT]okens|num_predict)"\s*:\s*(\d{1,9})')
_CALL_SECONDS = 0.5
_AWAY_SECONDS = 2.0
_LONGEST_PAUSE = 300.0
"""Seconds: a vendor that asks for more is retried after this much."""


class MinuteLimits(NamedTuple):
    """What may begin within a minute; None means unlimited."""

    requests: int | None = None
    tokens: int | None = None


def token_estimate(request: HttpRequest) -> int:
    """The tokens that a request may take: a fourth of its bytes, and as many as it allows for the answer.

    >>> token_estimate(HttpRequest("", {}, b'{"max_tokens": 100, "messages": []}'))
    108
    """
    allowed = _ASKED_TOKENS.search(request.body)
    return len(request.body) // _BYTES_PER_TOKEN + (int(allowed[1]) if allowed else 0)


class Reservation(NamedTuple):
    """A start that counts towards its minute, with what is held for it until the call is settled or cancelled."""

    seconds: float
    """To wait before it."""
    tokens: int = 0
    id: str = ""
    at: float = 0.0
    """When it starts, on the budget's clock."""
    not_before: float = 0.0
    """When it could start if there were tokens enough."""
    given_back: float = 0.0
    """What the budget's calls had given back until then, in seconds of its tokens: what comes after makes it start
    sooner."""
    shared: bool = False
    """Whether the shared budget holds it."""


class LocalBudget:
    """A budget of this process alone, for threads and event loops alike: a start says how long it has to wait.

    What was reserved is an estimate; once it is known what a call has used, `settle` puts that in its place.

    >>> budget = LocalBudget(MinuteLimits(tokens=60), clock=lambda: 0.0)
    >>> held = budget.reserve(60, None)
    >>> budget.reserve(30, 5.0) is None, budget.settle(held, 20), budget.reserve(30, 5.0).seconds
    (True, None, 0.0)
    """

    def __init__(self, limits: MinuteLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests, self._tokens = limits
        self._starts: list[tuple[float, str]] = []
        """Of the last minute and those to come, in their order, each with its id."""
        self._full_at = 0.0
        """When a minute's tokens are there again."""
        self._given_back = 0.0
        self._paused_until = 0.0
        self._clock = clock
        self._lock = threading.Lock()

    def reserve(self, tokens: int, most: float | None) -> Reservation | None:
        """A start, after the seconds that it has to wait; None where that would be more than `most`."""
        with self._lock:
            now = self._clock()
            at = max(now, self._paused_until)
            full = now
            del self._starts[: bisect.bisect(self._starts, (now - _MINUTE, ""))]
            if self._requests and len(self._starts) >= self._requests:
                at = max(at, self._starts[-self._requests][0] + _MINUTE)
            not_before = at
            if self._tokens is not None:
                full = max(self._full_at, now) + min(tokens, self._tokens) * _MINUTE / self._tokens
                at = max(at, full - _MINUTE)
            if most is not None and at - now > most:
                return None
            reservation = Reservation(at - now, tokens, new_id(), at, not_before, self._given_back)
            if self._requests:
                bisect.insort(self._starts, (at, reservation.id))
            self._full_at = full
            return reservation

    def remaining(self, reservation: Reservation) -> float:
        """Return the seconds that a start still has to wait: fewer than planned where others took less."""
        with self._lock:
            at = min(
                reservation.at,
                max(reservation.not_before, reservation.at - (self._given_back - reservation.given_back)),
            )
            if at < reservation.at and self._requests:
                self._starts = sorted((at if name == reservation.id else start, name) for start, name in self._starts)
            return max(0.0, at - self._clock())

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Count what a call has used in place of what was reserved for it."""
        with self._lock:
            if self._tokens is not None and (change := _change(reservation.tokens, tokens, self._tokens)):
                begin = self._full_at if change < 0 else max(self._full_at, self._clock())
                self._full_at = begin + change * _MINUTE / self._tokens
                self._given_back += max(0, -change) * _MINUTE / self._tokens

    def cancel(self, reservation: Reservation) -> None:
        """Give back all that was reserved for a call which the vendor never saw."""
        self.settle(reservation, 0)
        with self._lock:
            self._starts = [start for start in self._starts if start[1] != reservation.id]

    def pause(self, seconds: float) -> None:
        """Let nothing start for so long."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)


def _change(reserved: int, used: int, limit: int) -> int:
    """The tokens that were used beyond those reserved; no call counts for more than a minute holds."""
    return min(used, limit) - min(reserved, limit)


def new_id() -> str:
    """What a start is found again by."""
    return secrets.token_hex(8)


_RESERVE = """
local clock = redis.call('TIME')
local now, minute = clock[1] * 1000000 + clock[2], 60000000
local requests, limit, tokens, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local at, full = math.max(now, tonumber(redis.call('GET', KEYS[3]) or '0')), now
if requests > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - minute))
  local oldest = redis.call('ZREVRANGE', KEYS[1], requests - 1, requests - 1, 'WITHSCORES')[2]
  if oldest then at = math.max(at, tonumber(oldest) + minute) end
end
local not_before = at
if limit > 0 then
  full = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), now) + math.min(tokens, limit) * minute / limit
  at = math.max(at, full - minute)
end
if most >= 0 and at - now > most then return {-1} end
local kept = math.ceil((math.max(at, full) - now + minute) / 1000)
if requests > 0 then
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[5])
  redis.call('PEXPIRE', KEYS[1], math.max(kept, redis.call('PTTL', KEYS[1])))
end
if limit > 0 then redis.call('SET', KEYS[2], string.format('%.0f', full), 'PX', kept) end
return {math.floor(at - now), at, not_before, tonumber(redis.call('GET', KEYS[4]) or '0')}
"""
# `LocalBudget.reserve` by the clock of Redis, in microseconds, so that machines need not agree on the time.

_REMAINING = """
local clock = redis.call('TIME')
local now, old = clock[1] * 1000000 + clock[2], tonumber(ARGV[1])
local sooner = tonumber(redis.call('GET', KEYS[2]) or '0') - tonumber(ARGV[3])
local at = math.min(old, math.max(tonumber(ARGV[2]), old - sooner))
if at < old then redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', at), ARGV[4]) end
return math.floor(math.max(0, at - now))
"""

_SETTLE = """
local clock = redis.call('TIME')
local now, minute = clock[1] * 1000000 + clock[2], 60000000
local limit, change = tonumber(ARGV[1]), tonumber(ARGV[2])
if ARGV[3] ~= '' then redis.call('ZREM', KEYS[1], ARGV[3]) end
if limit > 0 and change ~= 0 then
  local full = tonumber(redis.call('GET', KEYS[2]) or '0')
  if change > 0 then full = math.max(full, now) end
  full = full + change * minute / limit
  if full <= now then
    redis.call('DEL', KEYS[2])
  else
    redis.call('SET', KEYS[2], string.format('%.0f', full), 'PX', math.ceil((full - now + minute) / 1000))
  end
  if change < 0 then
    redis.call('INCRBY', KEYS[3], string.format('%.0f', -change * minute / limit))
    redis.call('PEXPIRE', KEYS[3], 60 * minute / 1000)
  end
end
return 0
"""

_PAUSE = """
local clock = redis.call('TIME')
local till = clock[1] * 1000000 + clock[2] + tonumber(ARGV[1])
if till > tonumber(redis.call('GET', KEYS[1]) or '0') then
  redis.call('SET', KEYS[1], string.format('%.0f', till), 'PX', math.ceil(tonumber(ARGV[1]) / 1000) + 1)
end
return 0
"""


def wrong_redis_address(error: ValueError) -> ConfigError:
    """Return the error for an address that the client does not take."""
    return ConfigError(
        f"This is not an address of Redis: {error}", where="redis.url", hint="Write it as redis://host:6379/0."
    )


def redis_library() -> Any:
    """The module `redis`; raises `ConfigError` where it is not installed."""
    try:
        import redis
    except ImportError:
        raise ConfigError(
            "`redis:` is configured, and the library for it is not installed",
            where="redis",
            hint="Run `pip install 'slipform[redis]'`.",
        ) from None
    return redis


class SharedBudget:
    """The same in Redis."""

    def __init__(self, url: str, prefix: str, name: str, limits: MinuteLimits) -> None:
        redis = redis_library()
        place = f"{prefix}vendor:{name}"
        self._keys = [f"{place}:requests", f"{place}:tokens", f"{place}:pause", f"{place}:given_back"]
        self._limits = [limits.requests or 0, limits.tokens or 0]
        timeouts = {"socket_timeout": _CALL_SECONDS, "socket_connect_timeout": _CALL_SECONDS}
        try:
            self._client: Any = redis.Redis.from_url(url, **timeouts)
        except ValueError as error:
            raise wrong_redis_address(error) from error
        self._failures = (redis.RedisError, OSError)
        self._away_until = 0.0
        self._writer = ThreadPoolExecutor(1, "slipform-vendor-limits")
        """Settles reservations; no call waits for it."""

    @property
    def away(self) -> bool:
        """Whether Redis has just failed, so that this process counts alone."""
        return time.monotonic() < self._away_until

    def reserve(self, tokens: int, most: float | None) -> Reservation | None:
        """A start; None where it would have to wait more than `most`, or when Redis is `away` then."""
        start = new_id()
        arguments = [*self._limits, tokens, -1 if most is None else int(most * 1e6), start]
        reply = self._call_redis(lambda: self._client.eval(_RESERVE, 4, *self._keys, *arguments))
        if not isinstance(reply, list) or reply[0] < 0:
            return None
        wait, at, not_before, given_back = reply
        return Reservation(wait / 1e6, tokens, start, at, not_before, given_back, shared=True)

    def remaining(self, reservation: Reservation) -> float | None:
        """The seconds that a start still has to wait, or that there are none to say while Redis is away."""
        arguments = [reservation.at, reservation.not_before, reservation.given_back, reservation.id]
        reply = self._call_redis(lambda: self._client.eval(_REMAINING, 2, self._keys[0], self._keys[3], *arguments))
        return reply / 1e6 if isinstance(reply, int) else None

    def settle(self, reservation: Reservation, tokens: int, *, unsent: bool = False) -> None:
        """Count what a call has used in place of what was reserved; where it is `unsent`, nor is it a request."""
        limit = self._limits[1]
        change = _change(reservation.tokens, tokens, limit) if limit else 0
        arguments = [limit, change, reservation.id if unsent else ""]
        if change or unsent:
            self._writer.submit(
                self._call_redis, lambda: self._client.eval(_SETTLE, 3, *self._keys[:2], self._keys[3], *arguments)
            )

    def pause(self, seconds: float) -> None:
        """Let nothing start anywhere for so long."""
        self._call_redis(lambda: self._client.eval(_PAUSE, 1, self._keys[2], int(seconds * 1e6)))

    def close(self) -> None:
        """Write what is left, and close the connections."""
        self._writer.shutdown()
        self._client.close()

    def _call_redis(self, act: Callable[[], object]) -> object:
        if self.away:
            return None
        try:
            return act()
        except self._failures as error:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            _log.warning("vendor limits: Redis fails, counting in this process alone, error=%s", type(error).__name__)
            return None


class VendorBudget:
    """What a provider's calls draw on: the budget that is shared, or this process's own where there is none.

    `api` is the codec in whose form its answers tell of tokens.
    """

    def __init__(self, limits: MinuteLimits, shared: SharedBudget | None = None, api: str = "openai-chat") -> None:
        self._local = LocalBudget(limits)
        self._shared = shared
        self._api = api
        self._counts_tokens = limits.tokens is not None

    def reserve(self, request: HttpRequest) -> Reservation | None:
        """A start, after the seconds that it has to wait; None where the call's time is too short."""
        tokens = token_estimate(request)
        most = request.timeouts.total
        if self._shared is not None and not self._shared.away:
            reservation = self._shared.reserve(tokens, most)
            if reservation is not None or not self._shared.away:
                return reservation
        return self._local.reserve(tokens, most)

    async def reserve_async(self, request: HttpRequest) -> Reservation | None:
        """The same, for event loops."""
        if self._shared is None:
            return self.reserve(request)
        return await asyncio.to_thread(self.reserve, request)

    def remaining(self, reservation: Reservation, planned: float) -> float:
        """The seconds that a call still has to wait: as planned, or fewer where others took less than reserved."""
        seconds = (
            self._shared.remaining(reservation)
            if reservation.shared and self._shared is not None
            else self._local.remaining(reservation)
        )
        if seconds is None:
            return planned
        return min(seconds, planned)

    async def remaining_async(self, reservation: Reservation, planned: float) -> float:
        """The same, for event loops."""
        if not reservation.shared:
            return self.remaining(reservation, planned)
        return await asyncio.to_thread(self.remaining, reservation, planned)

    def cancel(self, reservation: Reservation) -> None:
        """Give back what was reserved for a call which the vendor never saw."""
        if reservation.shared and self._shared is not None:
            self._shared.settle(reservation, 0, unsent=True)
        else:
            self._local.cancel(reservation)

    def tail(self) -> UsageTail | None:
        """What is to be given the pieces of an answer, so that it tells the tokens; None where none are counted."""
        return UsageTail() if self._counts_tokens else None

    def settle(self, reservation: Reservation, status: int, tail: UsageTail | None) -> None:
        """Count what a call has used in place of what was reserved for it; `tail` is of an answer read to its end.

        A request that the vendor refused used no tokens. What is not told, or was not read, counts as estimated.
        """
        reported_usage = None if tail is None else tail.usage(self._api)
        usage = NO_USAGE if 400 <= status < 500 else reported_usage
        if usage is None:
            return
        used = usage.total if usage.total is not None else (usage.input or 0) + (usage.output or 0)
        if reservation.shared and self._shared is not None:
            self._shared.settle(reservation, used)
        else:
            self._local.settle(reservation, used)

    def heed(self, status: int, headers: Mapping[str, str]) -> None:
        """Let everybody wait as long as the vendor's response asks."""
        if seconds := self._requested_pause(status, headers):
            self._local.pause(seconds)
            if self._shared is not None:
                self._shared.pause(seconds)

    async def heed_async(self, status: int, headers: Mapping[str, str]) -> None:
        """The same, for event loops."""
        if self._requested_pause(status, headers):
            await asyncio.to_thread(self.heed, status, headers)

    def _requested_pause(self, status: int, headers: Mapping[str, str]) -> float:
        seconds = None
        if status == 429 or status < 300:
            seconds = requested_wait(headers)
        return min(seconds or 0.0, _LONGEST_PAUSE)

    def close(self) -> None:
        """Close connections."""
        if self._shared is not None:
            self._shared.close()

"""Limit requests and tokens per minute to a provider, as one budget for all workers and machines.

Both the settings (`requests_per_minute`, `tokens_per_minute`) and the limits in the vendor's responses count: a vendor
whose limit is exhausted, or that asks to wait, receives no calls until then. With `redis:` in the settings, every
process that uses the same Redis shares one budget; without, or while Redis is unavailable, each has its own. A call
reserves an estimate before it is sent; once its answer is read, its actual usage counts instead.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from slipform.codecs.usage import UsageTail
from slipform.errors import ConfigError
from slipform.ir.response import NO_USAGE
from slipform.providers.network.transport import HttpRequest
from slipform.providers.retry import requested_wait

_log = logging.getLogger("slipform.providers")
_WINDOW = 62
"""Seconds of a minute's limit: tokens are counted by the second, and calls may arrive a second late."""
_BYTES_PER_TOKEN = 4
_ASKED_TOKENS = re.compile(rb'"(?:max(?:_completion|_output|Output)?_?[tT]okens|num_predict)"\s*:\s*(\d{1,9})')
_CALL_SECONDS = 0.5
_AWAY_SECONDS = 2.0
_LONGEST_PAUSE = 300.0
"""A vendor that asks for a longer wait is retried after this many seconds."""


class MinuteLimits(NamedTuple):
    """The starts and tokens allowed per minute; None means unlimited."""

    requests: int | None = None
    tokens: int | None = None


def token_estimate(request: HttpRequest) -> int:
    """Return the tokens that a request may take: a fourth of its bytes, plus its limit for the answer.

    >>> token_estimate(HttpRequest("", {}, b'{"max_tokens": 100, "messages": []}'))
    108
    """
    allowed = _ASKED_TOKENS.search(request.body)
    return len(request.body) // _BYTES_PER_TOKEN + (int(allowed[1]) if allowed else 0)


class Reservation(NamedTuple):
    """A start that counts towards its minute, and the tokens reserved for it until the call is settled or cancelled."""

    seconds: float
    """The wait before it."""
    tokens: int = 0
    id: str = ""
    at: float = 0.0
    """Its start time, on the budget's clock."""
    not_before: float = 0.0
    """The earliest start if there were enough tokens."""
    shared: bool = False
    """Whether it is reserved in the shared budget."""


class LocalBudget:
    """A budget of this process alone, for threads and event loops alike.

    In no minute more calls start than the limits allow. A reservation is an estimate; `settle` replaces it by the
    call's actual usage.

    >>> budget = LocalBudget(MinuteLimits(tokens=60), clock=lambda: 0.0)
    >>> reservation = budget.reserve(60, None)
    >>> budget.reserve(30, 5.0) is None, budget.settle(reservation, 20), budget.reserve(30, 5.0).seconds
    (True, None, 0.0)
    """

    def __init__(self, limits: MinuteLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests, self._limit = limits
        self._starts: list[tuple[float, str]] = []
        """The starts of the last minute and later ones, in order, each with its id."""
        self._placed: dict[str, tuple[float, int]] = {}
        """The start of each call, and the tokens reserved for it."""
        self._tokens = Counter[int]()
        """The tokens of the calls that start in each second."""
        self._paused_until = 0.0
        self._clock = clock
        self._lock = threading.Lock()

    def reserve(self, tokens: int, most: float | None) -> Reservation | None:
        """Reserve a start and return it with its wait; None if that would exceed `most`."""
        with self._lock:
            now = self._clock()
            self._forget(now - _WINDOW)
            at = max(now, self._paused_until)
            if self._requests and len(self._starts) >= self._requests:
                at = max(at, self._starts[-self._requests][0] + _WINDOW)
            not_before = at
            if self._limit is not None:
                at = earliest_start(self._tokens, at, min(tokens, self._limit), self._limit)
            if most is not None and at - now > most:
                return None
            reservation = Reservation(at - now, tokens, new_id(), at, not_before)
            self._place(reservation, at)
            return reservation

    def remaining(self, reservation: Reservation) -> float:
        """Return the remaining wait of a start: shorter than planned if other calls used less than they reserved."""
        with self._lock:
            now = self._clock()
            at, tokens = self._placed.get(reservation.id, (reservation.at, 0))
            if self._limit is not None and tokens:
                self._remove(reservation)
                ahead = self._tokens_ahead((at, reservation.id), int(now))
                at = min(at, earliest_start(ahead, max(now, reservation.not_before), tokens, self._limit))
                self._place(reservation, at)
            return max(0.0, at - now)

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Replace the reserved tokens of a call by its actual usage."""
        with self._lock:
            self._settle(reservation, tokens)

    def cancel(self, reservation: Reservation) -> None:
        """Release everything reserved for a call that the vendor never received."""
        with self._lock:
            self._settle(reservation, 0)
            self._starts = [start for start in self._starts if start[1] != reservation.id]
            self._placed.pop(reservation.id, None)

    def pause(self, seconds: float) -> None:
        """Let no call start for this many seconds."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)

    def _settle(self, reservation: Reservation, tokens: int) -> None:
        if self._limit is None:
            return
        change = _change(reservation.tokens, tokens, self._limit)
        if change > 0:
            self._tokens[int(self._clock())] += change
        elif reservation.id in self._placed:
            at, _ = self._placed[reservation.id]
            self._tokens[int(at)] += change

    def _place(self, reservation: Reservation, at: float) -> None:
        tokens = 0 if self._limit is None else min(reservation.tokens, self._limit)
        bisect.insort(self._starts, (at, reservation.id))
        self._placed[reservation.id] = (at, tokens)
        self._tokens[int(at)] += tokens

    def _remove(self, reservation: Reservation) -> None:
        at, tokens = self._placed.pop(reservation.id)
        self._starts.remove((at, reservation.id))
        self._tokens[int(at)] -= tokens

    def _tokens_ahead(self, start: tuple[float, str], second: int) -> Counter[int]:
        """Return the tokens of all calls that have started by the end of a second, or start before this one."""
        ahead = Counter({each: count for each, count in self._tokens.items() if each <= second})
        first = bisect.bisect_left(self._starts, (second + 1, ""))
        for _, name in self._starts[first : bisect.bisect_left(self._starts, start)]:
            at, tokens = self._placed[name]
            ahead[int(at)] += tokens
        return ahead

    def _forget(self, until: float) -> None:
        """Drop the starts that no longer count."""
        count = bisect.bisect(self._starts, (until, ""))
        for _, name in self._starts[:count]:
            del self._placed[name]
        del self._starts[:count]
        for second in [each for each in self._tokens if each <= until]:
            del self._tokens[second]


def earliest_start(tokens_by_second: Mapping[int, int], at: float, tokens: int, limit: int) -> float:
    """Return when a call with this many tokens may start, not before `at`; calls that start later count, too.

    >>> earliest_start({100: 500, 130: 100}, 140.0, 300, 600)
    162
    """
    used = sum([count for second, count in tokens_by_second.items() if second + _WINDOW > at])
    for second in sorted(tokens_by_second):
        if used + tokens <= limit:
            break
        if second + _WINDOW > at:
            used -= tokens_by_second[second]
            at = second + _WINDOW
    return at


def _change(reserved: int, used: int, limit: int) -> int:
    """Return the change from reserved to used tokens; no call counts for more than a minute's limit."""
    return min(used, limit) - min(reserved, limit)


def new_id() -> str:
    """Return an id for a start; ids sort by time of creation, so simultaneous starts are in order."""
    return f"{time.time_ns():016x}{secrets.token_hex(4)}"


_START = """
local clock = redis.call('TIME')
local now, window = clock[1] * 1000000 + clock[2], tonumber(ARGV[1]) * 1000000
local function second_of(at) return string.format('%.0f', math.floor(at / 1000000)) end
local function started_by(last)
  local counts, pairs = {}, redis.call('HGETALL', KEYS[2])
  for i = 1, #pairs, 2 do
    local second = tonumber(pairs[i]) * 1000000
    if second + window <= now then
      redis.call('HDEL', KEYS[2], pairs[i])
    elseif second <= last then
      counts[second] = tonumber(pairs[i + 1])
    end
  end
  return counts
end
local function earliest_start(counts, at, tokens, limit)
  local seconds, used = {}, 0
  for second, count in pairs(counts) do
    seconds[#seconds + 1] = second
    if second + window > at then used = used + count end
  end
  table.sort(seconds)
  for _, second in ipairs(seconds) do
    if used + tokens <= limit then break end
    if second + window > at then used, at = used - counts[second], second + window end
  end
  return at
end
local function keep(key, at)
  local kept = math.ceil((math.max(at, now) - now + window) / 1000)
  redis.call('PEXPIRE', key, math.max(kept, redis.call('PTTL', key)))
end
"""
# The scripts' common part: `earliest_start` by the clock of Redis, in microseconds, so that machines need not agree on
# the time.

_RESERVE = f"""{_START}
local requests, limit, tokens, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local at = math.max(now, tonumber(redis.call('GET', KEYS[3]) or '0'))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - window))
if requests > 0 then
  local oldest = redis.call('ZREVRANGE', KEYS[1], requests - 1, requests - 1, 'WITHSCORES')[2]
  if oldest then at = math.max(at, tonumber(oldest) + window) end
end
local not_before = at
if limit > 0 then at = earliest_start(started_by(math.huge), at, tokens, limit) end
if most >= 0 and at - now > most then return {{-1}} end
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[6])
keep(KEYS[1], at)
if limit > 0 then
  redis.call('HINCRBY', KEYS[2], second_of(at), tokens)
  keep(KEYS[2], at)
end
return {{math.floor(at - now), at, not_before}}
"""

_REMAINING = f"""{_START}
local limit, tokens, not_before = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local score = redis.call('ZSCORE', KEYS[1], ARGV[6])
local at = tonumber(score or ARGV[5])
if score and limit > 0 and at > now then
  redis.call('HINCRBY', KEYS[2], second_of(at), -tokens)
  local this_second = math.floor(now / 1000000) * 1000000
  local ahead = started_by(this_second)
  local starts = redis.call('ZRANGEBYSCORE', KEYS[1], this_second + 1000000, score, 'WITHSCORES')
  for i = 1, #starts, 2 do
    if starts[i] == ARGV[6] then break end
    local second = math.floor(tonumber(starts[i + 1]) / 1000000) * 1000000
    ahead[second] = (ahead[second] or 0) + tonumber(string.match(starts[i], '%d+$'))
  end
  at = math.min(at, earliest_start(ahead, math.max(now, not_before), tokens, limit))
  redis.call('HINCRBY', KEYS[2], second_of(at), tokens)
  redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[6])
end
return math.floor(math.max(0, at - now))
"""

_SETTLE = f"""{_START}
local change, start = tonumber(ARGV[2]), redis.call('ZSCORE', KEYS[1], ARGV[3])
if change > 0 then
  redis.call('HINCRBY', KEYS[2], second_of(now), change)
  keep(KEYS[2], now)
elseif change < 0 and start then
  redis.call('HINCRBY', KEYS[2], second_of(tonumber(start)), change)
end
if ARGV[4] == '1' then redis.call('ZREM', KEYS[1], ARGV[3]) end
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
    """Return the error for an address that the Redis client refuses."""
    return ConfigError(
        f"This is not an address of Redis: {error}", where="redis.url", hint="Write it as redis://host:6379/0."
    )


def redis_library() -> Any:
    """Return the module `redis`; raises `ConfigError` if it is not installed."""
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
    """A budget in Redis, shared by all processes."""

    def __init__(self, url: str, prefix: str, name: str, limits: MinuteLimits) -> None:
        redis = redis_library()
        place = f"{prefix}vendor:{name}"
        self._keys = [f"{place}:starts", f"{place}:seconds", f"{place}:pause"]
        self._limits = [limits.requests or 0, limits.tokens or 0]
        timeouts = {"socket_timeout": _CALL_SECONDS, "socket_connect_timeout": _CALL_SECONDS}
        try:
            self._client: Any = redis.Redis.from_url(url, **timeouts)
        except ValueError as error:
            raise wrong_redis_address(error) from error
        self._failures = (redis.RedisError, OSError)
        self._away_until = 0.0
        self._writer = ThreadPoolExecutor(1, "slipform-vendor-limits")
        """Settles reservations; calls do not wait for it."""

    @property
    def away(self) -> bool:
        """Whether Redis has just failed, so that this process counts alone."""
        return time.monotonic() < self._away_until

    def reserve(self, tokens: int, most: float | None) -> Reservation | None:
        """Return a start; None if it would have to wait more than `most`, or if Redis is `away` afterwards."""
        counted = min(tokens, self._limits[1])
        start = f"{new_id()}:{counted}"
        arguments = [_WINDOW, *self._limits, counted, -1 if most is None else int(most * 1e6), start]
        reply = self._try_redis(lambda: self._client.eval(_RESERVE, 3, *self._keys, *arguments))
        if not isinstance(reply, list) or reply[0] < 0:
            return None
        wait, at, not_before = reply
        return Reservation(wait / 1e6, tokens, start, at, not_before, shared=True)

    def remaining(self, reservation: Reservation) -> float | None:
        """Return the remaining wait of a start; None while Redis is away."""
        counted = min(reservation.tokens, self._limits[1])
        place = [counted, reservation.not_before, reservation.at, reservation.id]
        arguments = [_WINDOW, self._limits[1], *place]
        reply = self._try_redis(lambda: self._client.eval(_REMAINING, 2, *self._keys[:2], *arguments))
        return reply / 1e6 if isinstance(reply, int) else None

    def settle(self, reservation: Reservation, tokens: int, *, unsent: bool = False) -> None:
        """Replace the reserved tokens of a call by its usage; an `unsent` call does not count as a request, either."""
        limit = self._limits[1]
        change = _change(reservation.tokens, tokens, limit) if limit else 0
        arguments = [_WINDOW, change, reservation.id, int(unsent)]
        if change or unsent:
            self._writer.submit(self._try_redis, lambda: self._client.eval(_SETTLE, 2, *self._keys[:2], *arguments))

    def pause(self, seconds: float) -> None:
        """Let no call start in any process for this many seconds."""
        self._try_redis(lambda: self._client.eval(_PAUSE, 1, self._keys[2], int(seconds * 1e6)))

    def close(self) -> None:
        """Write the pending settlements, and close the connections."""
        self._writer.shutdown()
        self._client.close()

    def _try_redis(self, act: Callable[[], object]) -> object:
        if self.away:
            return None
        try:
            return act()
        except self._failures as error:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            _log.warning("vendor limits: Redis fails, counting in this process alone, error=%s", type(error).__name__)
            return None


class VendorBudget:
    """The budget of a provider's calls: the shared one, or this process's own without Redis.

    `api` is the codec that reads the usage from its responses.
    """

    def __init__(self, limits: MinuteLimits, shared: SharedBudget | None = None, api: str = "openai-chat") -> None:
        self._local = LocalBudget(limits)
        self._shared = shared
        self._api = api
        self._counts_tokens = limits.tokens is not None

    def reserve(self, request: HttpRequest) -> Reservation | None:
        """Reserve a start and return it with its wait; None if the call's time is too short."""
        tokens = token_estimate(request)
        most = request.timeouts.total
        if self._shared is not None and not self._shared.away:
            reservation = self._shared.reserve(tokens, most)
            if reservation is not None or not self._shared.away:
                return reservation
        return self._local.reserve(tokens, most)

    async def reserve_async(self, request: HttpRequest) -> Reservation | None:
        """Reserve a start, for event loops; see `reserve`."""
        if self._shared is None:
            return self.reserve(request)
        return await asyncio.to_thread(self.reserve, request)

    def remaining(self, reservation: Reservation, planned: float) -> float:
        """Return the remaining wait of a call: as planned, or shorter if other calls used less than they reserved."""
        seconds = (
            self._shared.remaining(reservation)
            if reservation.shared and self._shared is not None
            else self._local.remaining(reservation)
        )
        if seconds is None:
            return planned
        return min(seconds, planned)

    async def remaining_async(self, reservation: Reservation, planned: float) -> float:
        """Return the remaining wait of a call, for event loops."""
        if not reservation.shared:
            return self.remaining(reservation, planned)
        return await asyncio.to_thread(self.remaining, reservation, planned)

    def cancel(self, reservation: Reservation) -> None:
        """Release the reservation of a call that the vendor never received."""
        if reservation.shared and self._shared is not None:
            self._shared.settle(reservation, 0, unsent=True)
        else:
            self._local.cancel(reservation)

    def usage_reader(self) -> UsageTail | None:
        """Return the reader of usage from the pieces of a response; None if tokens are not counted."""
        return UsageTail() if self._counts_tokens else None

    def settle(self, reservation: Reservation, status: int, usage_reader: UsageTail | None) -> None:
        """Replace the reserved tokens of a call by its usage; `usage_reader` has read the response to its end.

        A refused request used no tokens. A response without usage, or one that was not read, counts as estimated.
        """
        reported_usage = None if usage_reader is None else usage_reader.usage(self._api)
        usage = NO_USAGE if 400 <= status < 500 else reported_usage
        if usage is None:
            return
        used = usage.total if usage.total is not None else (usage.input or 0) + (usage.output or 0)
        if reservation.shared and self._shared is not None:
            self._shared.settle(reservation, used)
        else:
            self._local.settle(reservation, used)

    def apply_pause(self, status: int, headers: Mapping[str, str]) -> None:
        """Delay all calls for as long as the vendor's response asks."""
        if seconds := self._requested_pause(status, headers):
            self._local.pause(seconds)
            if self._shared is not None:
                self._shared.pause(seconds)

    async def apply_pause_async(self, status: int, headers: Mapping[str, str]) -> None:
        """Delay all calls for as long as the vendor's response asks, for event loops."""
        if self._requested_pause(status, headers):
            await asyncio.to_thread(self.apply_pause, status, headers)

    def _requested_pause(self, status: int, headers: Mapping[str, str]) -> float:
        seconds = None
        if status == 429 or status < 300:
            seconds = requested_wait(headers)
        return min(seconds or 0.0, _LONGEST_PAUSE)

    def close(self) -> None:
        """Close connections."""
        if self._shared is not None:
            self._shared.close()

"""How often a provider may be called: requests and tokens per minute, as one budget for all workers and machines.

Both the settings (`requests_per_minute`, `tokens_per_minute`) and what the vendor says in its responses count: one
whose limit is used up, or that asks to wait, is left alone until then by all. With `redis:` in the settings every
process that shares it draws on one budget; without, or while Redis is away, each has its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from slipform.errors import ConfigError
from slipform.providers.network.transport import HttpRequest
from slipform.providers.retry import asked_wait

_log = logging.getLogger("slipform.providers")
_MINUTE = 60.0
_BYTES_PER_TOKEN = 4
_ASKED_TOKENS = re.compile(rb'"max(?:_completion|_output|Output)?_?[tT]okens"\s*:\s*(\d{1,9})')
_CALL_SECONDS = 0.5
_AWAY_SECONDS = 2.0
_LONGEST_PAUSE = 300.0
"""Seconds: a vendor that asks for more is asked again after this much."""


class MinuteLimits(NamedTuple):
    """What may begin within a minute; None is no limit."""

    requests: int | None = None
    tokens: int | None = None


def token_estimate(request: HttpRequest) -> int:
    """The tokens that a request may take: a fourth of its bytes, and as many as it allows for the answer.

    >>> token_estimate(HttpRequest("", {}, b'{"max_tokens": 100, "messages": []}'))
    108
    """
    allowed = _ASKED_TOKENS.search(request.body)
    return len(request.body) // _BYTES_PER_TOKEN + (int(allowed[1]) if allowed else 0)


class LocalBudget:
    """A budget of this process alone, for threads and event loops alike: a start says how long it has to wait.

    >>> budget = LocalBudget(MinuteLimits(requests=1), clock=lambda: 0.0)
    >>> budget.reserve(0, None), budget.reserve(0, 5.0), budget.reserve(0, None)
    (0.0, None, 60.0)
    """

    def __init__(self, limits: MinuteLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = limits.tokens
        self._starts: deque[float] | None = deque(maxlen=limits.requests) if limits.requests else None
        self._full_at = 0.0
        """When a minute's tokens are there again."""
        self._paused_until = 0.0
        self._clock = clock
        self._lock = threading.Lock()

    def reserve(self, tokens: int, most: float | None) -> float | None:
        """The seconds to wait, after which the start counts; None where that would be more than `most`."""
        with self._lock:
            now = self._clock()
            at, full = max(now, self._paused_until), now
            if self._starts is not None and len(self._starts) == self._starts.maxlen:
                at = max(at, self._starts[0] + _MINUTE)
            if self._tokens is not None:
                full = max(self._full_at, now) + min(tokens, self._tokens) * _MINUTE / self._tokens
                at = max(at, full - _MINUTE)
            if most is not None and at - now > most:
                return None
            if self._starts is not None:
                self._starts.append(at)
            self._full_at = full
            return at - now

    def pause(self, seconds: float) -> None:
        """Let nothing start for so long."""
        with self._lock:
            self._paused_until = max(self._paused_until, self._clock() + seconds)


_RESERVE = """
local clock = redis.call('TIME')
local now, minute = clock[1] * 1000000 + clock[2], 60000000
local requests, limit, tokens, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local at, full = math.max(now, tonumber(redis.call('GET', KEYS[3]) or '0')), now
if requests > 0 then
  local oldest = redis.call('LINDEX', KEYS[1], requests - 1)
  if oldest then at = math.max(at, tonumber(oldest) + minute) end
end
if limit > 0 then
  full = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), now) + math.min(tokens, limit) * minute / limit
  at = math.max(at, full - minute)
end
if most >= 0 and at - now > most then return -1 end
local kept = math.ceil((math.max(at, full) - now + minute) / 1000)
if requests > 0 then
  redis.call('LPUSH', KEYS[1], string.format('%.0f', at))
  redis.call('LTRIM', KEYS[1], 0, requests - 1)
  redis.call('PEXPIRE', KEYS[1], kept)
end
if limit > 0 then redis.call('SET', KEYS[2], string.format('%.0f', full), 'PX', kept) end
return math.floor(at - now)
"""
# `LocalBudget.reserve` by the clock of Redis, in microseconds, so that machines need not agree on the time.

_PAUSE = """
local clock = redis.call('TIME')
local till = clock[1] * 1000000 + clock[2] + tonumber(ARGV[1])
if till > tonumber(redis.call('GET', KEYS[1]) or '0') then
  redis.call('SET', KEYS[1], string.format('%.0f', till), 'PX', math.ceil(tonumber(ARGV[1]) / 1000) + 1)
end
return 0
"""


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
        self._keys = [f"{place}:starts", f"{place}:tokens", f"{place}:pause"]
        self._limits = [limits.requests or 0, limits.tokens or 0]
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=_CALL_SECONDS, socket_connect_timeout=_CALL_SECONDS
        )
        self._failures = (redis.RedisError, OSError)
        self._away_until = 0.0

    @property
    def away(self) -> bool:
        """Whether Redis has just failed, so that this process counts alone."""
        return time.monotonic() < self._away_until

    def reserve(self, tokens: int, most: float | None) -> float | None:
        """The seconds to wait; None where that would be more than `most`, or when Redis is `away` then."""
        arguments = [*self._limits, tokens, -1 if most is None else int(most * 1e6)]
        said = self._tried(lambda: self._client.eval(_RESERVE, 3, *self._keys, *arguments))
        return said / 1e6 if isinstance(said, int) and said >= 0 else None

    def pause(self, seconds: float) -> None:
        """Let nothing start anywhere for so long."""
        self._tried(lambda: self._client.eval(_PAUSE, 1, self._keys[2], int(seconds * 1e6)))

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _tried(self, act: Callable[[], object]) -> object:
        if self.away:
            return None
        try:
            return act()
        except self._failures as error:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            _log.warning("a vendor's limits are counted in this process alone: Redis fails (%s)", type(error).__name__)
            return None


class VendorBudget:
    """What a provider's calls draw on: the budget that is shared, or this process's own where there is none."""

    def __init__(self, limits: MinuteLimits, shared: SharedBudget | None = None) -> None:
        self._local = LocalBudget(limits)
        self._shared = shared

    def reserve(self, request: HttpRequest) -> float | None:
        """The seconds that a call has to wait; None where its time is too short."""
        tokens, most = token_estimate(request), request.timeouts.total
        if self._shared is not None and not self._shared.away:
            seconds = self._shared.reserve(tokens, most)
            if seconds is not None or not self._shared.away:
                return seconds
        return self._local.reserve(tokens, most)

    async def reserve_async(self, request: HttpRequest) -> float | None:
        """The same, for event loops."""
        return self.reserve(request) if self._shared is None else await asyncio.to_thread(self.reserve, request)

    def heed(self, status: int, headers: Mapping[str, str]) -> None:
        """Let everybody wait as long as the vendor's response asks."""
        if seconds := self._asked(status, headers):
            self._local.pause(seconds)
            if self._shared is not None:
                self._shared.pause(seconds)

    async def heed_async(self, status: int, headers: Mapping[str, str]) -> None:
        """The same, for event loops."""
        if self._asked(status, headers):
            await asyncio.to_thread(self.heed, status, headers)

    def _asked(self, status: int, headers: Mapping[str, str]) -> float:
        asked = asked_wait(headers) if status == 429 or status < 300 else None
        return min(asked or 0.0, _LONGEST_PAUSE)

    def close(self) -> None:
        """Let go of connections."""
        if self._shared is not None:
            self._shared.close()

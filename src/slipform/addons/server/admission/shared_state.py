"""Share limits, answers, downgrades and revocations between workers through Redis.

Nothing here is needed to serve: while Redis is away every call returns "unknown", and each process continues alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from slipform.addons.server.admission.revocations import Revocation
from slipform.errors import ConfigError
from slipform.providers.retry import DOWNGRADE_SECONDS, DOWNGRADES, Downgrade, MemoryDowngrades
from slipform.providers.vendor_limits import redis_library, wrong_redis_address

if TYPE_CHECKING:
    from slipform.config import Redis as RedisSettings

T = TypeVar("T")
SpendAct: TypeAlias = Literal["reserve", "renew", "restore", "read"]

_log = logging.getLogger("slipform.server")
_CALL_SECONDS = 2.0
"""Much longer than Redis takes, because a process with hundreds of calls reads an answer late."""
_BUSY_SECONDS = 0.05
"""Seconds by which a timeout fires late where this process is too busy."""
_AWAY_SECONDS = 2.0
_MAX_CONNECTIONS = 16
"""Connections of one process. Further calls wait for one: a connection serves thousands of commands a second."""
_STEADY_SECONDS = 1.0
"""Seconds for which Redis has to answer again before an outage is over."""
_CLOCKS_APART = 60.0
"""The most seconds by which the clocks of two machines may differ."""
_REFUSALS_APART = 60.0
"""Seconds between two log lines about commands that Redis refuses."""
_MAX_DOWNGRADES = 2_000
_LONGEST_KEY = 1_000
_LONGEST_WAIT = 60_000
"""Milliseconds until a bucket has a permit again: it contains a minute's permits."""

_TAKE = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local minute, spacing = 60000000, 60000000 / tonumber(ARGV[1])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local free = math.floor((minute - (full - now)) / spacing + 0.001)
local given = math.min(tonumber(ARGV[2]), math.max(free, 0))
if given > 0 then
  full = full + given * spacing
  redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - now) / 1000) + 1000)
end
return {given, math.max(free, 0) - given, math.ceil(math.max(full + spacing - now - minute, 0) / 1000)}
"""
# The same bucket as in `LocalRates`, by the clock of Redis, so that machines need not agree on the time.

_SPEND = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local act, machine, id = ARGV[1], ARGV[2], 'h:' .. ARGV[3]
for field, value in pairs({['t:' .. machine] = ARGV[4], ['c:' .. machine] = ARGV[5]}) do
  if tonumber(value) > tonumber(redis.call('HGET', KEYS[1], field) or '0') then
    redis.call('HSET', KEYS[1], field, value)
  end
end
local settled = false
for at = 13, #ARGV do
  redis.call('HDEL', KEYS[1], 'h:' .. ARGV[at])
  settled = settled or id == 'h:' .. ARGV[at]
end
local spent_t, spent_c, held_t, held_c, live = 0, 0, 0, 0, 0
local own_t, own_c, own = 0, 0, false
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  local kind, value = string.sub(fields[at], 1, 2), fields[at + 1]
  if kind == 't:' then spent_t = spent_t + tonumber(value)
  elseif kind == 'c:' then spent_c = spent_c + tonumber(value)
  elseif kind == 'h:' then
    local tokens, cost, till = string.match(value, '(%d+) (%d+) ([%d.]+)')
    held_t, held_c = held_t + tonumber(tokens), held_c + tonumber(cost)
    if tonumber(till) > now then live = live + 1 end
    if fields[at] == id then own_t, own_c, own = tonumber(tokens), tonumber(cost), true end
  end
end
local refused, tokens, cost = 0, tonumber(ARGV[6]), tonumber(ARGV[7])
if act == 'reserve' then
  local most_t, most_c, most_live = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
  local new_t, new_c = held_t - own_t + tokens, held_c - own_c + cost
  if most_live >= 0 and not own and live >= most_live then refused = 1
  elseif most_t >= 0 and spent_t + new_t > most_t then refused = 2
  elseif most_c >= 0 and spent_c + new_c > most_c then refused = 3
  else
    held_t, held_c = new_t, new_c
    if not own then live = live + 1 end
    own_t, own_c, own = tokens, cost, true
  end
elseif act == 'restore' and not settled then
  own_t, own_c, own = tokens, cost, true
end
if act ~= 'read' and own and refused == 0 then
  redis.call('HSET', KEYS[1], id, string.format('%.0f %.0f %.3f', own_t, own_c, now + tonumber(ARGV[11])))
end
if tonumber(ARGV[12]) > 0 then redis.call('EXPIRE', KEYS[1], ARGV[12]) end
return {refused, spent_t, spent_c, held_t, held_c, live}
"""
# A hash per key and period: the spending of each machine (`t:`, `c:`), and the reservation of each call (`h:`). Every
# step sends all spending of this machine and the reservations settled in that sum, which are released with it.
# As the sum only grows, and a reservation is a call's total, steps may arrive late, twice or not at all, and a Redis
# that has lost data is corrected.


_KEEP = """
local data, order, size = KEYS[1], KEYS[2], KEYS[3]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local total = 0
if ARGV[3] ~= '' and redis.call('HGET', data, ARGV[3]) ~= ARGV[4] then return -1 end
for at = 5, #ARGV, 2 do
  local grown = #ARGV[at + 1] - redis.call('HSTRLEN', data, ARGV[at])
  if redis.call('HEXISTS', data, ARGV[at]) == 0 then grown = grown + 200 end
  redis.call('HSET', data, ARGV[at], ARGV[at + 1])
  redis.call('ZADD', order, now, ARGV[at])
  total = redis.call('INCRBY', size, grown)
end
while total > tonumber(ARGV[1]) do
  local oldest = redis.call('ZPOPMIN', order)[1]
  if not oldest then
    redis.call('DEL', data, size)
    return 0
  end
  total = redis.call('DECRBY', size, redis.call('HSTRLEN', data, oldest) + 200)
  redis.call('HDEL', data, oldest)
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ARGV[2]) end
return total
"""
# The entries of one caller, their order and their bytes, so that the oldest can be removed; each takes 200 bytes more.
# Nothing is stored, and the result is -1, where one entry differs from what the caller has read.
_REMOVE = """
local data, order, size = KEYS[1], KEYS[2], KEYS[3]
for _, name in ipairs(ARGV) do
  local length = redis.call('HSTRLEN', data, name)
  if redis.call('HDEL', data, name) == 1 then
    redis.call('ZREM', order, name)
    redis.call('DECRBY', size, length + 200)
  end
end
return 0
"""


class SharedState:
    """A bounded number of connections, and whether Redis answers. Calls are never retried for long."""

    def __init__(self, settings: RedisSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = _connected(settings.url)
        redis = redis_library()
        self._refusal: type[Exception] = redis.ResponseError
        self._failures: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._timeouts: tuple[type[Exception], ...] = (redis.TimeoutError, TimeoutError)
        self._slots = asyncio.Semaphore(min(_MAX_CONNECTIONS, self._client.connection_pool.max_connections))
        """The free connections: the library would refuse one more than the maximum."""
        self._prefix = settings.prefix
        self._clock = clock
        self._away_until = 0.0
        self._away = False
        self._outage = False
        """Whether the log has reported that Redis is away, and not yet that it is back."""
        self._back_at = 0.0
        self._closed = False
        self._refused_at = -_REFUSALS_APART
        self._take = self._client.register_script(_TAKE)
        self._spend = self._client.register_script(_SPEND)
        self._keep = self._client.register_script(_KEEP)
        self._remove = self._client.register_script(_REMOVE)

    @property
    def down(self) -> bool:
        """Whether Redis has just failed, so that another request is useless."""
        return self._away and self._clock() < self._away_until

    async def permits(self, name: str, limit: int, want: int) -> tuple[int, int, float] | None:
        """Take up to `want` permits of a bucket: return the numbers taken and left, and the seconds until the next."""
        keys = [f"{self._prefix}rate:{name}"]
        arguments = [limit, want]
        reply: object = await self._call_redis(lambda: self._take(keys=keys, args=arguments))
        if not isinstance(reply, list) or len(reply) != 3 or not all(isinstance(each, int) for each in reply):
            return None
        granted, left, wait = reply
        if not 0 <= granted <= want or not 0 <= left <= limit or not 0 <= wait <= _LONGEST_WAIT:
            return None
        return granted, left, max(wait, 1) / 1000

    async def spend(self, act: SpendAct, place: str, arguments: Sequence[int | float | str]) -> list[int] | None:
        """Run the budget script; return None while Redis is away, or for an impossible answer."""
        keys = [f"{self._prefix}spend:{place}"]
        reply: object = await self._call_redis(lambda: self._spend(keys=keys, args=[act, *arguments]))
        is_known = isinstance(reply, list) and len(reply) == 6 and all(isinstance(each, int) for each in reply)
        return cast("list[int]", reply) if is_known else None

    async def knows_spending_of(self, machine: str) -> bool | None:
        """Return whether Redis still has the published spending of this machine; None while it is away."""
        place = f"{self._prefix}spend-machines"
        reply: object = await self._call_redis(lambda: self._client.hexists(place, machine))
        return None if reply is None else bool(reply)

    async def mark_spending_of(self, machine: str) -> None:
        """Record in Redis that all spending of this machine is published."""
        await self._call_redis(lambda: self._client.hset(f"{self._prefix}spend-machines", machine, "1"))

    async def get(self, key: str, most: int) -> bytes | None:
        """Return the value of a key, if it has at most `most` bytes."""
        place = f"{self._prefix}answer:{key}"
        reply: object = await self._call_redis(lambda: self._client.getrange(place, 0, most))
        if isinstance(reply, bytes) and 0 < len(reply) <= most:
            return reply
        return None

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        """Store a value for some seconds."""
        lifetime = max(1, int(seconds * 1000))
        await self._call_redis(lambda: self._client.set(f"{self._prefix}answer:{key}", value, px=lifetime))

    def _entry_keys(self, place: tuple[str, str]) -> list[str]:
        """Return the Redis keys of a caller's entries under a name: their data, their order, their bytes."""
        name, caller = place
        return [f"{self._prefix}{name}{kind}:{caller}" for kind in ("", ":order", ":bytes")]

    async def keep_entries(
        self,
        place: tuple[str, str],
        entries: Mapping[str, bytes],
        most: int,
        seconds: float,
        expected: tuple[str, bytes] = ("", b""),
    ) -> bool:
        """Store these entries of a caller under a name, and of all of them the newest, `most` bytes in all.

        Returns False, and stores nothing, where the entry with the expected name has other data by now.
        """
        keys = self._entry_keys(place)
        pairs = [each for pair in entries.items() for each in pair]
        arguments = [most, max(1, int(seconds * 1000)), *expected, *pairs]
        return await self._call_redis(lambda: self._keep(keys=keys, args=arguments)) != -1

    async def remove_entries(self, place: tuple[str, str], names: Sequence[str]) -> None:
        """Delete these entries of a caller."""
        keys = self._entry_keys(place)
        await self._call_redis(lambda: self._remove(keys=keys, args=list(names)))

    async def entries(self, place: tuple[str, str], names: Sequence[str], most: int) -> dict[str, bytes]:
        """Return a caller's entries with these names, without those longer than `most` bytes."""
        key = self._entry_keys(place)[0]

        async def read() -> list[bytes | None]:
            async with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hstrlen(key, name)
                sizes = await pipe.execute()
            short = [name for name, size in zip(names, sizes, strict=True) if 0 < size <= most]
            entries = dict(zip(short, await self._client.hmget(key, short), strict=True)) if short else {}
            return [entries.get(name) for name in names]

        reply = await self._call_redis(read) or [None] * len(names)
        return {name: data for name, data in zip(names, reply, strict=True) if isinstance(data, bytes)}

    async def exchange_revocations(
        self, revocations: Mapping[str, Revocation], ids: Sequence[str]
    ) -> dict[str, bytes | None] | None:
        """Publish revocations to Redis, and return what it has stored for these keys; None if it cannot be reached."""
        names = list(dict.fromkeys([*ids, *revocations]))
        place = f"{self._prefix}revocations"
        if not names:
            return {}

        async def both() -> list[bytes | None]:
            try:
                published: list[bytes | None] = await self._client.hmget(place, names)
            except self._refusal as error:
                if not _is_of_another_type(error):
                    raise
                await self._client.delete(place)  # not a record of ours; every machine publishes its own again
                published = [None] * len(names)
            missing = _missing(revocations, dict(zip(names, published, strict=True)))
            if missing:
                await self._client.hset(place, mapping=missing)
            return published

        reply = await self._call_redis(both)
        if reply is None:
            return None
        return dict(zip(names, reply, strict=True))

    async def exchange_downgrades(self, new: Iterable[Downgrade]) -> list[Downgrade]:
        """Publish the downgrades of this machine, and return those of all machines."""
        now = time.time()
        place = f"{self._prefix}lessons"
        published = {f"{each.name} {each.key}": f"{now + each.seconds:.0f}" for each in new}

        async def both() -> Mapping[bytes, bytes]:
            async with self._client.pipeline(transaction=False) as pipe:
                if published:
                    pipe.hset(place, mapping=published)
                    pipe.expire(place, int(DOWNGRADE_SECONDS))
                pipe.hscan(place, count=_MAX_DOWNGRADES)
                _, fields = (await pipe.execute())[-1]
                return cast("Mapping[bytes, bytes]", fields)

        received = await self._call_redis(both) or {}
        read = {
            field: _parse_downgrade(field, until, now) for field, until in islice(received.items(), _MAX_DOWNGRADES)
        }
        if useless := [field for field, downgrade in read.items() if downgrade is None]:
            await self._call_redis(lambda: self._client.hdel(place, *useless))
        return [downgrade for downgrade in read.values() if downgrade is not None]

    async def close(self) -> None:
        """Close the connections."""
        self._closed = True
        await self._client.aclose()

    async def _call_redis(self, act: Callable[[], Awaitable[T]]) -> T | None:
        """Run a command on a connection; return its result, or None while Redis is away."""
        async with self._slots:
            if self.down:
                return None
            began = self._clock()
            if self._away:  # one call checks whether Redis is back, and the others need not wait for it
                self._away_until = began + _AWAY_SECONDS
            try:
                result = await self._with_retry(act, began)
            except self._failures as error:
                self._failed(error, began)
                return None
        self._answered()
        return result

    async def _with_retry(self, act: Callable[[], Awaitable[T]], began: float) -> T:
        try:
            return await act()
        except self._failures as error:
            if not self._may_repeat(error, began):
                raise
        return await act()

    def _may_repeat(self, error: Exception, began: float) -> bool:
        """Return whether the failure may not be Redis's: a stale connection, or a process too busy to read."""
        if isinstance(error, self._refusal) or self._away or self._closed:
            return False
        return not isinstance(error, self._timeouts) or self._clock() - began > _CALL_SECONDS + _BUSY_SECONDS

    def _failed(self, error: Exception, began: float) -> None:
        now = self._clock()
        if isinstance(error, self._refusal):  # Redis answers: another program uses this key, or the memory is full
            if now - self._refused_at >= _REFUSALS_APART:
                self._refused_at = now
                _log.warning("redis: command refused, this process goes on without it, error=%s", str(error)[:100])
            return
        if self._closed or began < self._back_at:
            return  # the connection was closed while in use, or Redis is still starting
        if not self._outage:
            self._outage = True
            _log.warning("redis: not reachable, this process goes on alone, error=%s", type(error).__name__)
        self._away = True
        self._away_until = now + _AWAY_SECONDS

    def _answered(self) -> None:
        if not self._outage:
            return
        now = self._clock()
        if self._away:
            self._away = False
            self._back_at = now
        if now - self._back_at >= _STEADY_SECONDS:
            self._outage = False
            _log.warning("redis: reachable again")


class SharedDowngrades:
    """Exchanges the downgrades of these stores with those of all other machines."""

    def __init__(self, shared: SharedState, stores: Callable[[], Iterable[MemoryDowngrades]]) -> None:
        self._shared = shared
        self._stores = stores
        self._exchanged: set[tuple[str, str]] = set()

    async def refresh(self) -> None:
        """Publish and receive once."""
        stores = list(self._stores())
        new = [each for store in stores for each in store.active() if (each.key, each.name) not in self._exchanged]
        received = await self._shared.exchange_downgrades(new)
        for each in received:
            if (each.key, each.name) not in self._exchanged:
                for store in stores:
                    store.add(each.key, each.name, each.seconds)
        self._exchanged = {(each.key, each.name) for each in received}


def shared_revision(settings: RedisSettings, key_id: str) -> int:
    """Return the revision of the last record that other machines have of a key; 0 where there is none, or no Redis."""
    redis = redis_library()
    client = _waiting_client(settings)
    try:
        revocation = Revocation.parse(client.hget(f"{settings.prefix}revocations", key_id))
    except (redis.RedisError, OSError):
        return 0  # `tell_machines` will fail in the same way, and report it
    finally:
        client.close()
    return 0 if revocation is None else revocation.revision


def tell_machines(settings: RedisSettings, key_id: str, revocation: Revocation) -> None:
    """Publish a change of a key to all machines through Redis; raises when that fails."""
    redis = redis_library()
    client = _waiting_client(settings)
    place = f"{settings.prefix}revocations"
    try:
        try:
            client.hset(place, key_id, str(revocation))
        except redis.ResponseError as error:
            if not _is_of_another_type(error):
                raise
            client.delete(place)
            client.hset(place, key_id, str(revocation))
    except (redis.RedisError, OSError) as error:
        raise ConfigError(
            f"The key file was changed here, but other machines could not be notified: {error}",
            where="redis.url",
            hint="A server that runs here notifies them when Redis is back; without one, repeat the command then.",
        ) from error
    finally:
        client.close()


def _waiting_client(settings: RedisSettings) -> Any:
    return redis_library().Redis.from_url(settings.url, socket_timeout=5, socket_connect_timeout=5)


def _missing(revocations: Mapping[str, Revocation], published: Mapping[str, object]) -> dict[str, str]:
    """Return the records that Redis does not have, or has in an earlier revision."""
    return {
        key_id: str(each) for key_id, each in revocations.items() if each.outranks(Revocation.parse(published[key_id]))
    }


def _is_of_another_type(error: Exception) -> bool:
    return str(error).startswith("WRONGTYPE")


def _connected(url: str) -> Any:
    redis_library()
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    once = Retry(NoBackoff(), 0)
    try:
        return Redis.from_url(url, socket_timeout=_CALL_SECONDS, socket_connect_timeout=_CALL_SECONDS, retry=once)
    except ValueError as error:
        raise wrong_redis_address(error) from error


def _parse_downgrade(field: bytes, until: bytes, now: float) -> Downgrade | None:
    """Parse a downgrade from a field of Redis; None where it has expired or is not one of ours."""
    try:
        name, _, key = field.decode().partition(" ")
        seconds = float(until) - now
    except ValueError:
        return None
    sane = name in DOWNGRADES and 0 < len(key) <= _LONGEST_KEY and 0 < seconds <= DOWNGRADE_SECONDS + _CLOCKS_APART
    if sane:
        return Downgrade(key, name, min(seconds, DOWNGRADE_SECONDS))
    return None

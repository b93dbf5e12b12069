"""What all connections of a server share: the application, the limits, who is there, the time."""

from __future__ import annotations

import asyncio
import heapq
import logging
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from slipform.server.forwarded import network_of
from slipform.server.heads import date_line

if TYPE_CHECKING:
    from slipform.server.connection import Connection
    from slipform.server.exchange import App, Exchange
    from slipform.server.forwarded import Trusted

_log = logging.getLogger("slipform.server")
_due = attrgetter("due")
_stuck_since = attrgetter("stuck_since")
_EVICTED_AT_ONCE = 32
"""One in so many idle connections is closed when there are too many: finding them is not free."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take: bytes, seconds and connections.

    >>> Limits().head_seconds
    30.0
    """

    head_bytes: int = 64 * 1024
    """Of a request's head."""
    headers: int = 256
    """Of one request."""
    head_seconds: float = 30.0
    """For a request's head to be whole."""
    idle_seconds: float = 75.0
    """Between requests; longer than balancers keep their idle connections, so that it is they who close them."""
    held_bytes: int = 64 * 1024
    """Of a body that nobody has taken yet, before no more of it is read."""
    queued: int = 64
    """Requests sent before the one ahead of them is answered."""
    write_seconds: float = 30.0
    """Without a byte of the answer leaving, because the client does not read."""
    connections: int = 10_000
    """Open at the same time; beyond, idle ones are closed for new ones."""
    connections_per_address: int | None = None
    """Open at the same time; of a balancer that is believed, requests of one client under way instead."""
    tick_seconds: float = 1.0
    """How often it is looked whether somebody takes too long."""


class Door:
    """Made once for all the sockets that a server listens on."""

    def __init__(self, app: App, limits: Limits | None = None, trusted: Trusted | None = None) -> None:
        self.app = app
        self.limits = limits or Limits()
        self.trusted = trusted
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.running: set[Exchange] = set()
        """Requests that the application is at work on."""
        self._stalled: list[Connection] = []
        """Whose client had read nothing between the last two ticks; the longest without progress is last."""
        self._by_network: dict[str, int] = {}
        """Connections, or a balancer's requests, of each network that has any; empty unless they are limited."""
        self.closing = False
        self.date = date_line()
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

    def close(self) -> None:
        """Nobody is waited for any longer; whoever is still there is cut off."""
        self._timer.cancel()
        for connection in list(self.connections):
            connection.abort()

    def finish(self) -> None:
        """Let every connection end after the answer that is under way on it."""
        self.closing = True
        for connection in list(self.connections):
            connection.finish()

    def evict_idle(self) -> None:
        """Close some of the connections without a request under way: those whose time would be over soonest."""
        idle = [each for each in self.connections if each.is_idle]
        for each in heapq.nsmallest(len(idle) // _EVICTED_AT_ONCE + 1, idle, key=_due):
            self.connections.discard(each)
            each.abort()

    def cut_stalled(self) -> bool:
        """Cut the request whose client has read nothing for the longest; False when all clients read."""
        while self._stalled:
            if self._stalled.pop().cut_if_stalled():
                return True
        return False

    def take_address(self, host: str) -> str | None:
        """Count one more for an address: what to give back with `leave_address`, or None when it has too many."""
        network, most = network_of(host), self.limits.connections_per_address
        count = self._by_network.get(network, 0)
        if most is not None and count >= most:
            return None
        self._by_network[network] = count + 1
        return network

    def leave_address(self, network: str) -> None:
        """One less."""
        count = self._by_network.pop(network) - 1
        if count:
            self._by_network[network] = count

    def _tick(self) -> None:
        """One timer for all connections: nearly all that is timed is over long before its limit."""
        self.date = date_line()
        now = self.loop.time()
        stalled: list[Connection] = []
        cut = 0
        for connection in [each for each in self.connections if each.due <= now or each.unsent()]:
            stuck = connection.stuck(now)
            if stuck >= self.limits.write_seconds:
                connection.abort()
                cut += 1
                continue
            if stuck:
                stalled.append(connection)
            if connection.due <= now:
                connection.overdue()
        if cut:
            _log.warning("%d clients read nothing for %g seconds: cut off", cut, self.limits.write_seconds)
        stalled.sort(key=_stuck_since, reverse=True)
        self._stalled = stalled
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

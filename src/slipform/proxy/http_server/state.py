"""What all connections of a server share: limits, counts, and which balancers are trusted."""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from slipform.proxy.http_server.request_cycle import date_line
from slipform.proxy.observability.call_record import Header

if TYPE_CHECKING:
    from slipform.proxy.http_server.connection import ServerConnection
    from slipform.proxy.http_server.request_cycle import App, RequestCycle

Client: TypeAlias = tuple[str, int]
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_SCHEMES = frozenset({"http", "https"})


class Trusted:
    """The balancers to be believed: addresses, networks, or all (`*`), as `FORWARDED_ALLOW_IPS` lists them.

    >>> trusted = Trusted("10.0.0.0/8, 192.168.1.7")
    >>> trusted.client(("10.1.2.3", 80), [(b"x-forwarded-for", b"203.0.113.9, 192.168.1.7")])
    ('203.0.113.9', 0)
    >>> trusted.client(("203.0.113.1", 80), [(b"x-forwarded-for", b"203.0.113.9")])
    ('203.0.113.1', 80)
    """

    def __init__(self, listed: str) -> None:
        names = [name.strip() for name in listed.split(",") if name.strip()]
        self._all = names == ["*"]
        self._networks: list[_Network] = []
        self._names: set[str] = set()
        for name in names:
            try:
                self._networks.append(ipaddress.ip_network(name))
            except ValueError:
                self._names.add(name)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Trusted | None:
        """As the operator has listed them; None when there is no list, and nobody is believed."""
        listed = environment.get("FORWARDED_ALLOW_IPS")
        return None if listed is None else cls(listed)

    def believes(self, host: str) -> bool:
        """Whether what this one says of others is believed."""
        if self._all:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host in self._names
        return any(address in network for network in self._networks)

    def client(self, peer: Client | None, headers: Iterable[Header]) -> Client | None:
        """Who really calls: the last in `x-forwarded-for` that is none of the balancers."""
        if not self.believes(peer[0] if peer else ""):
            return peer
        said = b",".join([value for name, value in headers if name == b"x-forwarded-for"]).decode("latin-1")
        passed = [each.strip() for each in said.split(",") if each.strip()]
        if not passed:
            return peer
        if not self._all:
            for each in reversed(passed):
                found = _address(each)
                if not self.believes(found[0]):
                    return found
        return _address(passed[0])

    def scheme(self, peer: Client | None, headers: Iterable[Header]) -> str:
        """How the caller came to the balancer: http or https."""
        for name, value in headers:
            if name == b"x-forwarded-proto" and self.believes(peer[0] if peer else ""):
                said = value.decode("latin-1").strip()
                return said if said in _SCHEMES else "http"
        return "http"


def network_of(host: str) -> str:
    """What connections are counted by: an IPv4 address, or the /64 of an IPv6 one, of which a caller has all.

    >>> network_of("203.0.113.9"), network_of("2001:db8::1:2"), network_of("::ffff:203.0.113.9")
    ('203.0.113.9', '2001:db8::', '203.0.113.9')
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def _address(said: str) -> Client:
    """An address with or without a port; whatever is neither stays as it is, and is nobody who is believed."""
    if said.startswith("["):
        host, found, rest = said[1:].partition("]")
        if not found or (rest and not rest.startswith(":")):
            return said, 0
        return host, _port(rest[1:])
    if said.count(":") == 1:
        host, _, port = said.partition(":")
        return (host, _port(port)) if port.isdecimal() else (said, 0)
    return said, 0


def _port(said: str) -> int:
    return int(said) if said.isdecimal() and len(said) < 6 else 0


_log = logging.getLogger("slipform.server")
_due = attrgetter("due")
_stuck_since = attrgetter("stuck_since")
_EVICTED_AT_ONCE = 32
"""One in so many idle connections is closed when there are too many: finding them is not free."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may take: bytes, seconds and connections.

    >>> ServerLimits().head_seconds
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


class ServerState:
    """Made once for all the sockets that a server listens on."""

    def __init__(self, app: App, limits: ServerLimits | None = None, trusted: Trusted | None = None) -> None:
        self.app = app
        self.limits = limits or ServerLimits()
        self.trusted = trusted
        self.loop = asyncio.get_running_loop()
        self.connections: set[ServerConnection] = set()
        self.running: set[RequestCycle] = set()
        """Requests that the application is at work on."""
        self._stalled: list[ServerConnection] = []
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
        stalled: list[ServerConnection] = []
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

"""Hold what all connections of a server share: limits, counts, and the trusted balancers."""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from slipform.addons.server.http_server.request_cycle import date_line
from slipform.addons.server.observability.call_record import Header

if TYPE_CHECKING:
    from slipform.addons.server.http_server.connection import ServerConnection
    from slipform.addons.server.http_server.request_cycle import App, RequestCycle

ClientAddress: TypeAlias = tuple[str, int]
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
_SCHEMES = frozenset({"http", "https"})


class Trusted:
    """The trusted balancers: addresses, networks, or all (`*`), as `FORWARDED_ALLOW_IPS` lists them.

    >>> trusted = Trusted("10.0.0.0/8, 192.168.1.7")
    >>> trusted.client(("10.1.2.3", 80), [(b"x-forwarded-for", b"203.0.113.9, 192.168.1.7")])
    ('203.0.113.9', 0)
    >>> trusted.client(("203.0.113.1", 80), [(b"x-forwarded-for", b"203.0.113.9")])
    ('203.0.113.1', 80)
    """

    def __init__(self, addresses: str) -> None:
        names = [name.strip() for name in addresses.split(",") if name.strip()]
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
        """Return the balancers that the operator listed; None without a list: then none is trusted."""
        addresses = environment.get("FORWARDED_ALLOW_IPS")
        return None if addresses is None else cls(addresses)

    def believes(self, host: str) -> bool:
        """Return whether this host is a trusted balancer."""
        if self._all:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host in self._names
        return any(address in network for network in self._networks)

    def client(self, peer: ClientAddress | None, headers: Iterable[Header]) -> ClientAddress | None:
        """Return the client: the last in `x-forwarded-for` that is not a trusted balancer."""
        if not self.believes(peer[0] if peer else ""):
            return peer
        header_value = b",".join([value for name, value in headers if name == b"x-forwarded-for"]).decode("latin-1")
        forwarded = [each.strip() for each in header_value.split(",") if each.strip()]
        if not forwarded:
            return peer
        if not self._all:
            for each in reversed(forwarded):
                address = _address(each)
                if not self.believes(address[0]):
                    return address
        return _address(forwarded[0])

    def scheme(self, peer: ClientAddress | None, headers: Iterable[Header]) -> str:
        """Return the scheme by which the client reached the balancer: http or https."""
        for name, value in headers:
            if name == b"x-forwarded-proto" and self.believes(peer[0] if peer else ""):
                header_value = value.decode("latin-1").strip()
                if header_value in _SCHEMES:
                    return header_value
                return "http"
        return "http"


def network_of(host: str) -> str:
    """Return the key of connection counts: an IPv4 address, or the /64 of an IPv6 one, all of which a caller may own.

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


def _address(header_value: str) -> ClientAddress:
    """Return a host with or without a port; anything else is returned unchanged, and is never trusted."""
    if header_value.startswith("["):
        host, bracket, rest = header_value[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return header_value, 0
        return host, _port(rest[1:])
    if header_value.count(":") == 1:
        host, _, port = header_value.partition(":")
        if port.isdecimal():
            return (host, _port(port))
        return (header_value, 0)
    return header_value, 0


def _port(text: str) -> int:
    if text.isdecimal() and len(text) < 6:
        return int(text)
    return 0


_log = logging.getLogger("slipform.server")
_due = attrgetter("due")
_stalled_since = attrgetter("stalled_since")
_EVICTED_SHARE = 32
"""One in this many idle connections is closed when there are too many, because finding them takes time."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a client: bytes, seconds and connections.

    >>> ServerLimits().head_seconds
    30.0
    """

    head_bytes: int = 64 * 1024
    """The most bytes of a request's head."""
    headers: int = 256
    """The most headers of a request."""
    head_seconds: float = 30.0
    """The time for a complete request head."""
    idle_seconds: float = 75.0
    """The time between requests; longer than balancers keep idle connections, so that they close them first."""
    held_bytes: int = 64 * 1024
    """Bytes of a body received but not yet read by the application, at which reading pauses."""
    queued: int = 64
    """The most pipelined requests of one connection."""
    write_seconds: float = 30.0
    """The time without progress in writing a response, because the client does not read."""
    connections: int = 10_000
    """The most open connections; beyond it, idle ones are closed for new ones."""
    connections_per_address: int | None = None
    """The most open connections of an address; of a trusted balancer, running requests of one client instead."""
    tick_seconds: float = 1.0
    """The interval of the checks for timeouts."""


class ServerState:
    """The state that all connections of one `HttpServer` share."""

    def __init__(self, app: App, limits: ServerLimits | None = None, trusted: Trusted | None = None) -> None:
        self.app = app
        self.limits = limits or ServerLimits()
        self.trusted = trusted
        self.loop = asyncio.get_running_loop()
        self.connections: set[ServerConnection] = set()
        self.running: set[RequestCycle] = set()
        """Requests that the application is answering."""
        self._stalled: list[ServerConnection] = []
        """Connections whose client read nothing between the last two ticks; the longest stalled is last."""
        self._by_network: dict[str, int] = {}
        """Connections, or a balancer's requests, of each network that has any; empty unless they are limited."""
        self.closing = False
        self.date = date_line()
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

    def close(self) -> None:
        """Close all connections at once."""
        self._timer.cancel()
        for connection in list(self.connections):
            connection.abort()

    def finish(self) -> None:
        """Let every connection end after its current response."""
        self.closing = True
        for connection in list(self.connections):
            connection.finish()

    def evict_idle(self) -> None:
        """Close some of the idle connections: those that would time out soonest."""
        idle = [each for each in self.connections if each.is_idle]
        for each in heapq.nsmallest(len(idle) // _EVICTED_SHARE + 1, idle, key=_due):
            self.connections.discard(each)
            each.abort()

    def cut_stalled(self) -> bool:
        """Abort the request whose client has read nothing for the longest; return False when all clients read."""
        while self._stalled:
            if self._stalled.pop().cut_if_stalled():
                return True
        return False

    def count_address(self, host: str) -> str | None:
        """Count one more for an address; return the key for `release_address`, or None when it has too many."""
        network = network_of(host)
        limit = self.limits.connections_per_address
        count = self._by_network.get(network, 0)
        if limit is not None and count >= limit:
            return None
        self._by_network[network] = count + 1
        return network

    def release_address(self, network: str) -> None:
        """Count one less for the key of `count_address`."""
        count = self._by_network.pop(network) - 1
        if count:
            self._by_network[network] = count

    def _tick(self) -> None:
        """Check all connections with one timer: nearly everything that is timed ends long before its limit."""
        self.date = date_line()
        now = self.loop.time()
        stalled: list[ServerConnection] = []
        cut_count = 0
        for connection in [each for each in self.connections if each.due <= now or each.unsent()]:
            seconds_stalled = connection.seconds_stalled(now)
            if seconds_stalled >= self.limits.write_seconds:
                connection.abort()
                cut_count += 1
                continue
            if seconds_stalled:
                stalled.append(connection)
            if connection.due <= now:
                connection.overdue()
        if cut_count:
            _log.warning(
                "server: clients disconnected, they read nothing, clients=%d, seconds=%g",
                cut_count,
                self.limits.write_seconds,
            )
        stalled.sort(key=_stalled_since, reverse=True)
        self._stalled = stalled
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

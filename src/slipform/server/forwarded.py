"""Whom a balancer speaks for: believed only of balancers that the operator has named."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from slipform.server.record import Header

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

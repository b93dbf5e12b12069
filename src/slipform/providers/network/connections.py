"""Where to connect: addresses, proxies, TLS and CA, kept connections."""

from __future__ import annotations

import base64
import functools
import ipaddress
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from slipform.providers.network.transport import ProtocolError

ADDRESS_DELAY = 0.25
"""Seconds until the next address is tried beside the one before (RFC 8305)."""
_SHORT_URL = 2048
NO_PROXY = "none"
"""In place of a proxy's address: none, whatever the environment says."""

AddressInfo: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]

TlsContext: TypeAlias = Callable[[], ssl.SSLContext]
"""Gives the context; only asked for where there is TLS, since the usual one takes a while to make."""


class Proxy(NamedTuple):
    """A proxy, which may itself be reached by TLS."""

    secure: bool
    host: str
    port: int
    authorization: str | None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class Origin(NamedTuple):
    """The server of a request, and the proxy on the way to it if there is one. Connections are kept by it."""

    secure: bool
    host: str
    port: int
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """The `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def dialled(self) -> tuple[str, int]:
        """Host and port to connect to."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    @property
    def first_tls_host(self) -> str | None:
        """Whose certificate is checked when the connection is made; None when it begins without TLS."""
        if self.proxy is not None:
            return self.proxy.host if self.proxy.secure else None
        return self.host if self.secure else None

    @property
    def tunnelled(self) -> bool:
        """Whether the proxy is asked for a tunnel, with TLS inside it; otherwise it is sent the request itself."""
        return self.proxy is not None and self.secure


class Origins:
    """Finds the origin of a URL, and remembers it.

    `proxy` is the address of one, `"none"`, or None for what the environment says: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY
    and NO_PROXY, in either case.
    """

    def __init__(self, proxy: str | None = None, most: int = 256) -> None:
        self._proxy = proxy
        self._most = most
        self._known: dict[str, tuple[Origin, str]] = {}

    def find(self, url: str) -> tuple[Origin, str]:
        """The origin of a URL and the target to ask for there; `ProtocolError` when it cannot be called."""
        known = self._known.get(url)
        if known is None:
            known = origin_of(url, self._proxy)
            if len(url) <= _SHORT_URL:  # longer ones hold what a caller sent
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[url] = known
        return known


def origin_of(url: str, proxy: str | None = None) -> tuple[Origin, str]:
    """The origin of a URL, and the target to ask for there.

    >>> origin_of("http://a:81/x?y=1", "none")
    (Origin(secure=False, host='a', port=81, proxy=None), '/x?y=1')
    """
    parts, port = _split(url, "the address", {"http": 80, "https": 443})
    origin = Origin(parts.scheme == "https", parts.hostname or "", port)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    via = proxy_from_environment(parts.scheme, origin.authority) if proxy is None else proxy
    if not via or via == NO_PROXY:
        return origin, target
    origin = origin._replace(proxy=read_proxy(via))
    # An https request goes through a tunnel; for http the proxy itself is asked, by the whole address.
    return origin, target if origin.secure else f"http://{origin.authority}{target}"


def read_proxy(url: str) -> Proxy:
    """The proxy of an address; its message never shows the password.

    >>> read_proxy("https://me:pw@proxy.test:3128")
    Proxy(proxy.test:3128)
    """
    whole = url if "://" in url else f"http://{url}"
    if whole.lower().startswith("socks"):
        kind = whole.partition(":")[0].lower()
        raise ProtocolError(f"{kind}:// proxies are not supported: use an http:// or https:// proxy", "setup")
    parts, port = _split(whole, "the proxy's address", {"http": 80, "https": 443})
    authorization = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(parts.scheme == "https", parts.hostname or "", port, authorization)


def proxy_from_environment(scheme: str, authority: str) -> str | None:
    """The proxy that the environment names for a server, if any."""
    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(authority) or _in_bypassed_network(authority, proxies.get("no", "")):
        return None
    return found


def _in_bypassed_network(authority: str, no_proxy: str) -> bool:
    """NO_PROXY may name networks (10.0.0.0/8), which urllib does not read."""
    try:
        address = ipaddress.ip_address(urlsplit(f"//{authority}").hostname or "")
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        try:
            if "/" in entry and address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def _split(url: str, what: str, ports: dict[str, int]) -> tuple[SplitResult, int]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ProtocolError(f"{what} cannot be read: {error}", "setup") from None
    if parts.scheme not in ports or not parts.hostname:
        raise ProtocolError(f"{what} must begin with http:// or https://", "setup")
    return parts, port or ports[parts.scheme]


def tls_context(
    ca_file: str | None = None, client_certificate: str | None = None, client_key: str | None = None
) -> ssl.SSLContext:
    """How servers are checked: by `ca_file` if given, else by the system's authorities; with our certificate, if any.

    Raises `OSError` when a file cannot be read or holds something else.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if client_certificate is not None:
        context.load_cert_chain(client_certificate, client_key)
    return context


default_tls = functools.cache(tls_context)
"""Read once: the system's authorities take some 20 ms."""


def addresses(host: str, port: int, *, numeric: bool = False) -> list[AddressInfo]:
    """The addresses of a host, the families by turns so that one that is out of order costs only one delay.

    With `numeric` no name is looked up, so that it does not block: `socket.gaierror` if the host is one.
    """
    flags = socket.AI_NUMERICHOST if numeric else 0
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    families = list(dict.fromkeys(info[0] for info in found))
    turns = zip_longest(*([info for info in found if info[0] == family] for family in families))
    return [info for info in chain.from_iterable(turns) if info is not None]


def tune(sock: socket.socket) -> None:
    """Send at once, notice a peer that vanished, and never block."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setblocking(False)


class Reusable(Protocol):
    """A connection that can rest between two requests."""

    def is_usable(self) -> bool:
        """Whether it is still good: a server that hung up, or that speaks unasked, is not."""
        ...

    def close(self) -> None:
        """Close it; harmless when repeated."""
        ...


ConnectionT = TypeVar("ConnectionT", bound=Reusable)


class IdleConnections(Generic[ConnectionT]):
    """Connections at rest by origin; the one used last is used next, so that the surplus grows old and goes."""

    def __init__(self, per_origin: int = 512, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_origin = per_origin
        self._clock = clock
        self._idle: dict[Origin, deque[tuple[float, ConnectionT]]] = {}
        self._lock = threading.Lock()
        self.closed = False

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def take(self, origin: Origin) -> ConnectionT | None:
        """A good idle connection to this origin, if there is one."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                if not idle:
                    return None
                expires, connection = idle.pop()
            if self._clock() < expires and connection.is_usable():
                return connection
            connection.close()

    def give(self, origin: Origin, connection: ConnectionT, seconds: float) -> None:
        """Keep a connection for the next request within so many seconds."""
        surplus = None
        with self._lock:
            if self.closed:
                surplus = connection
            else:
                idle = self._idle.setdefault(origin, deque())
                idle.append((self._clock() + seconds, connection))
                if len(idle) > self._per_origin:
                    surplus = idle.popleft()[1]
        if surplus is not None:
            surplus.close()

    def sweep(self) -> bool:
        """Close those that have rested too long or were closed by their server; whether any are left."""
        now = self._clock()
        with self._lock:
            everything = [(origin, *entry) for origin, idle in self._idle.items() for entry in idle]
            self._idle = {}
            for origin, expires, connection in everything:
                if now < expires and connection.is_usable():
                    self._idle.setdefault(origin, deque()).append((expires, connection))
                else:
                    connection.close()
            return bool(self._idle)

    def close(self) -> None:
        """Close all of them, and those given back from now on."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, {}
        _close_all(connection for each in idle.values() for _, connection in each)


def _close_all(connections: Iterable[Reusable]) -> None:
    for connection in connections:
        connection.close()

"""Resolve where a URL connects (origin, proxy, TLS, addresses), and pool idle connections."""

from __future__ import annotations

import base64
import functools
import ipaddress
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from slipform.providers.network.transport import ProtocolError

ADDRESS_DELAY = 0.25
"""Seconds until the next address is tried in parallel (RFC 8305)."""
_MAX_CACHED_URL = 2048
NO_PROXY = "none"
"""The value of a proxy setting that ignores the environment's proxy."""

AddressInfo: TypeAlias = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]

TlsContext: TypeAlias = Callable[[], ssl.SSLContext]
"""Returns the context; called only for TLS, since the default one takes a while to build."""


class Proxy(NamedTuple):
    """A proxy, which may itself be reached over TLS."""

    secure: bool
    host: str
    port: int
    authorization: str | None

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class Origin(NamedTuple):
    """The server of a request, and the proxy to it if any; the key of pooled connections."""

    secure: bool
    host: str
    port: int
    proxy: Proxy | None = None

    @property
    def authority(self) -> str:
        """The `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        if self.port == (443 if self.secure else 80):
            return host
        return f"{host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to."""
        if self.proxy is None:
            return (self.host, self.port)
        return (self.proxy.host, self.proxy.port)

    @property
    def first_tls_host(self) -> str | None:
        """The host whose certificate is checked first; None if the connection begins without TLS."""
        if self.proxy is not None:
            return self.proxy.host if self.proxy.secure else None
        return self.host if self.secure else None

    @property
    def tunnelled(self) -> bool:
        """Whether the proxy opens a tunnel, with TLS inside it; otherwise it receives the request itself."""
        return self.proxy is not None and self.secure


class Origins:
    """A cache of origins by URL, owned by a transport.

    `proxy` is its address, `"none"`, or None for that of the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and
    NO_PROXY, in either case.
    """

    def __init__(self, proxy: str | None = None, max_entries: int = 256) -> None:
        self._proxy = proxy
        self._max_entries = max_entries
        self._cache: dict[str, tuple[Origin, str]] = {}

    def find(self, url: str) -> tuple[Origin, str]:
        """Return the origin of a URL and the request target; raises `ProtocolError` for an unusable URL."""
        entry = self._cache.get(url)
        if entry is None:
            entry = origin_of(url, self._proxy)
            if len(url) <= _MAX_CACHED_URL:  # longer ones contain a caller's data
                if len(self._cache) >= self._max_entries:
                    self._cache.clear()
                self._cache[url] = entry
        return entry


def origin_of(url: str, proxy: str | None = None) -> tuple[Origin, str]:
    """Return the origin of a URL and the request target; raises `ProtocolError` for an unusable URL.

    >>> origin_of("http://a:81/x?y=1", "none")
    (Origin(secure=False, host='a', port=81, proxy=None), '/x?y=1')
    """
    parts, port = _split(url, "the address", {"http": 80, "https": 443})
    origin = Origin(parts.scheme == "https", parts.hostname or "", port)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy_url = proxy_from_environment(parts.scheme, origin.authority) if proxy is None else proxy
    if not proxy_url or proxy_url == NO_PROXY:
        return origin, target
    origin = origin._replace(proxy=read_proxy(proxy_url))
    # An https request goes through a tunnel; an http request goes to the proxy, with the full URL as target.
    return origin, target if origin.secure else f"http://{origin.authority}{target}"


def read_proxy(url: str) -> Proxy:
    """Return the proxy of an address; raises `ProtocolError`, which never shows the password.

    >>> read_proxy("https://me:pw@proxy.test:3128")
    Proxy(proxy.test:3128)
    """
    full_url = url if "://" in url else f"http://{url}"
    if full_url.lower().startswith("socks"):
        kind = full_url.partition(":")[0].lower()
        raise ProtocolError(f"{kind}:// proxies are not supported: use an http:// or https:// proxy", "setup")
    parts, port = _split(full_url, "the proxy's address", {"http": 80, "https": 443})
    authorization = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Proxy(parts.scheme == "https", parts.hostname or "", port, authorization)


def proxy_from_environment(scheme: str, authority: str) -> str | None:
    """Return the proxy that the environment names for a server, if any."""
    proxies = getproxies()
    infos = proxies.get(scheme) or proxies.get("all")
    if not infos or proxy_bypass(authority) or _in_bypassed_network(authority, proxies.get("no", "")):
        return None
    return infos


def _in_bypassed_network(authority: str, no_proxy: str) -> bool:
    """Return whether NO_PROXY names a network (10.0.0.0/8) of this address, which urllib does not support."""
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
    """Return a context that trusts `ca_file`, else the system's authorities, with a client certificate if any.

    Raises `OSError` for a file that cannot be used.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if client_certificate is not None:
        context.load_cert_chain(client_certificate, client_key)
    return context


default_tls = functools.cache(tls_context)
"""Cached: reading the system's authorities takes some 20 ms."""


def addresses(host: str, port: int, *, numeric: bool = False) -> list[AddressInfo]:
    """Return the addresses of a host with alternating families, so that a broken family costs only one delay.

    With `numeric` no name is looked up, so that it cannot block; raises `socket.gaierror` for a name.
    """
    flags = socket.AI_NUMERICHOST if numeric else 0
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    families = list(dict.fromkeys(info[0] for info in infos))
    alternating = zip_longest(*([info for info in infos if info[0] == family] for family in families))
    return [info for info in chain.from_iterable(alternating) if info is not None]


_RECEIVED_BYTES = 256 * 1024
"""Bytes of an unread response that the system buffers (Linux: twice that); its default is megabytes. A thousand callers
that do not read would otherwise fill the memory that the system reserves for all connections together, and it would
drop data for the others.

A thousand callers who do not read would else fill the memory that the system has for all connections together, and it
would drop what arrives for the others.
"""


def tune(sock: socket.socket) -> None:
    """Set the options of a socket: send at once, detect a vanished peer, buffer little, never block."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setblocking(False)


class Reusable(Protocol):
    """A connection that may be pooled."""

    def is_usable(self) -> bool:
        """Return whether it is open and nothing has arrived on it."""
        ...

    def close(self) -> None:
        """Close it; harmless when repeated."""


ConnectionT = TypeVar("ConnectionT", bound=Reusable)


class IdleConnections(Generic[ConnectionT]):
    """Idle connections by origin; the most recently used one is taken first, so that surplus ones expire."""

    def __init__(self, per_origin: int = 512, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_origin = per_origin
        self._clock = clock
        self._idle: dict[Origin, deque[tuple[float, ConnectionT]]] = {}
        self._lock = threading.Lock()
        self.closed = False

    def __len__(self) -> int:
        return sum(map(len, self._idle.values()))

    def take(self, origin: Origin) -> ConnectionT | None:
        """Return a usable idle connection to this origin, or None."""
        while True:
            with self._lock:
                idle = self._idle.get(origin)
                if not idle:
                    return None
                expires, connection = idle.pop()
            if self._clock() < expires and connection.is_usable():
                return connection
            connection.close()

    def release(self, origin: Origin, connection: ConnectionT, seconds: float) -> None:
        """Pool a connection for reuse within this many seconds."""
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
        """Close connections that expired or were closed by their server; return whether any remain."""
        now = self._clock()
        with self._lock:
            entries = [(origin, *entry) for origin, idle in self._idle.items() for entry in idle]
            self._idle = {}
            for origin, expires, connection in entries:
                if now < expires and connection.is_usable():
                    self._idle.setdefault(origin, deque()).append((expires, connection))
                else:
                    connection.close()
            return bool(self._idle)

    def close(self) -> None:
        """Close all connections, and those released from now on."""
        with self._lock:
            self.closed = True
            idle = self._idle
            self._idle = {}
        for _, connection in chain.from_iterable(idle.values()):
            connection.close()

"""Where a request goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from slipform.providers.http1 import ProtocolError


class Place(NamedTuple):
    """Where a request goes: the server, and the proxy on the way to it if there is one."""

    secure: bool
    host: str
    port: int
    proxy: tuple[str, int] | None = None
    proxy_login: str | None = None

    @property
    def dialled(self) -> tuple[str, int]:
        """The address to connect to."""
        return self.proxy or (self.host, self.port)

    @property
    def authority(self) -> str:
        """The `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Place({self.authority})"


def find_place(url: str, proxies: Mapping[str, str]) -> tuple[Place, str]:
    """The place of a URL, and the target to ask for there; `proxies` are by scheme, as the environment names them.

    >>> find_place("http://a:81/x?y=1", {})
    (Place(a:81), '/x?y=1')
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ProtocolError("the address must begin with http:// or https://")
    secure = parts.scheme == "https"
    host, port = parts.hostname, parts.port or (443 if secure else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy = proxies.get(parts.scheme)
    if not proxy:
        return Place(secure, host, port), target
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    login = None
    if via.username is not None:
        login = f"{unquote(via.username)}:{unquote(via.password or '')}"
    place = Place(secure, host, port, (via.hostname or "", via.port or 80), login)
    # An https request goes through a tunnel; the proxy itself is asked for a whole http address.
    return place, target if secure else f"http://{place.authority}{target}"

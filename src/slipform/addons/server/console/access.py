"""Authorize console sessions: a printed link on this machine, an operator's key elsewhere.

Every request must name this server as `Host` (DNS rebinding), and every change must come from the console's own page. A
session is a signed cookie; the signing secret is in a file that only its owner can read, and is shared by restarts and
workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from slipform.addons.server.admission.admission import ANYBODY, AdmissionControl, Caller, is_loopback
from slipform.addons.server.admission.refusals import KeyRefused, NotAllowed
from slipform.config import ServerSettings
from slipform.state_folder import state_folder

COOKIE = "slipform_console"
_ATTRIBUTES = "Path=/console; HttpOnly; SameSite=Strict"
_SESSION_SECONDS = 12 * 3600
_EXPIRY = re.compile(r"[0-9]{1,15}")
"""When a session expires, in seconds since the epoch."""
_TOKEN_LENGTH = 48
_OPERATORS_ONLY = "Make one with `slipform keys add NAME --operator`."


class NoSession(KeyRefused):
    """A request to the console has no session."""

    code = "no_session"


def console_secret() -> bytes:
    """Return the secret that signs sessions: from the file, or a new one, which is written there if possible."""
    return _stored_secret(state_folder() / "console.secret")


@cache
def _stored_secret(file: Path) -> bytes:
    with contextlib.suppress(OSError):
        stored = file.read_bytes()
        if len(stored) >= 32:
            return stored
    secret = secrets.token_bytes(32)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:  # noqa: PTH123
            new.write(secret)
        return secret
    with contextlib.suppress(OSError):  # another process has written the file meanwhile
        stored = file.read_bytes()
        return stored if len(stored) >= 32 else secret
    return secret


def link_token(secret: bytes) -> str:
    """Return the token of the link that `slipform serve` prints."""
    return hmac.new(secret, b"link", hashlib.sha256).hexdigest()[:_TOKEN_LENGTH]


class ConsoleAccess:
    """Sessions of one deployment's console."""

    def __init__(
        self, settings: ServerSettings, guard: AdmissionControl, bound: str | None, secret: Callable[[], bytes]
    ) -> None:
        self._mode = settings.console
        self._guard = guard
        self._bound = bound or settings.host
        self._secret = secret
        self._hosts = frozenset(host.lower() for host in (*settings.console_hosts, *settings.allowed_hosts))

    @property
    def is_on(self) -> bool:
        """Whether the console is served: with `auto`, on loopback or where an operator's key exists."""
        if self._mode != "auto":
            return self._mode == "on"
        if self._guard.requires_key:
            return self._guard.has_operator()
        return is_loopback(self._bound)

    def check_host(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless the request names this server."""
        named = headers.get(b"host", b"").decode("latin-1")
        host = _hostname(named)
        if not host or not (is_loopback(host) or host == self._bound or host in self._hosts):
            raise NotAllowed(
                f"The console is not served under the name {named[:100]!r}",
                hint="List the name in `server.console_hosts`.",
            )

    def check_change(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise unless a request that changes something comes from the console's own page."""
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin", b"").decode("latin-1")
        site = headers.get(b"sec-fetch-site", b"same-origin")
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        is_own = origin.partition("://")[2] == host and site == b"same-origin"
        if not is_own or headers.get(b"x-slipform-console") != b"1" or kind != b"application/json":
            raise NotAllowed("Only the console's own page may do this", hint="Open the console, and do it there.")

    async def sign_in(self, token: str, key: str, headers: Mapping[bytes, bytes], address: str) -> str:
        """Return the cookie of a new session, for the token of the printed link or an operator's key.

        Wrong keys count as they do for calls: an address that sends too many has to wait.
        """
        if self._guard.requires_key:
            presented = {b"authorization": b"Bearer " + key.encode("latin-1", "replace")}
            caller = await self._guard.authenticate(presented, b"", address)
            if not caller.operator:
                raise NotAllowed("That key is not an operator's", hint=_OPERATORS_ONLY, key=caller.id)
            return self._cookie(caller.id, headers)
        if not hmac.compare_digest(token.encode(), link_token(self._secret()).encode()):
            raise NoSession("That link is not of this server", hint="Use the link that `slipform console` prints.")
        return self._cookie("", headers)

    def _cookie(self, key_id: str, headers: Mapping[bytes, bytes]) -> str:
        expires = int(time.time()) + _SESSION_SECONDS
        value = f"{expires}.{key_id}.{self._signature(expires, key_id)}"
        return f"{_cookie_name(headers)}={value}; {_ATTRIBUTES}; Max-Age={_SESSION_SECONDS}"

    @staticmethod
    def expired_cookie(headers: Mapping[bytes, bytes]) -> str:
        """Return the cookie that ends a session."""
        return f"{_cookie_name(headers)}=; {_ATTRIBUTES}; Max-Age=0"

    def _signature(self, expires: int, key_id: str) -> str:
        return hmac.new(self._secret(), f"session:{expires}:{key_id}".encode(), hashlib.sha256).hexdigest()

    def operator(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Return the caller of the request's session; raises `NoSession` where it has none, or an expired one."""
        cookie_name = _cookie_name(headers)
        for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = part.strip().partition("=")
            pieces = value.split(".")
            if name != cookie_name or len(pieces) != 3 or not _EXPIRY.fullmatch(pieces[0]):
                continue
            expires = int(pieces[0])
            key_id = pieces[1]
            signature = pieces[2]
            is_signed = hmac.compare_digest(signature.encode(), self._signature(expires, key_id).encode())
            if not is_signed or expires < time.time():
                continue
            if not self._guard.requires_key:
                return ANYBODY
            if (caller := self._guard.operator(key_id)) is not None:
                return caller
        raise NoSession("Sign in to the console first", hint=self._sign_in_hint())

    def _sign_in_hint(self) -> str:
        if self._guard.requires_key:
            return _OPERATORS_ONLY
        return "`slipform console` opens it, signed in."


def _cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Return the session cookie's name, which has the port: browsers send a host's cookies to all of its ports."""
    try:
        port = urlsplit(f"//{headers.get(b'host', b'').decode('latin-1')}").port
    except ValueError:
        port = None
    return f"{COOKIE}_{port}" if port else COOKIE


def _hostname(authority: str) -> str:
    try:
        return (urlsplit(f"//{authority}").hostname or "").lower()
    except ValueError:
        return ""

"""Authenticate callers, and limit which models they call, how many calls run at once and for how long."""

from __future__ import annotations

import asyncio
import difflib
import ipaddress
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from slipform.addons.server.admission.budgets import KeyBudget
from slipform.addons.server.admission.key_file import Key, KeyFile, presented_id
from slipform.addons.server.admission.rate_limits import LocalRates, Rates, SharedRates, rate_headers
from slipform.addons.server.admission.refusals import (
    BodyTooSlow,
    Busy,
    KeyRefused,
    NotAllowed,
    Refused,
    RequestTimeout,
    TooManyRequests,
    TooManyWrongKeys,
    WrongKey,
)
from slipform.addons.server.admission.shared_state import SharedState
from slipform.addons.server.http_server.request_cycle import RequestCycle
from slipform.addons.server.observability.call_record import Header
from slipform.config import Settings
from slipform.errors import ConfigError, UnknownModelError
from slipform.providers.router import Router

_ONE_CALLERS_SHARE = 0.9
"""The share of `max_concurrent` that one caller may use, unless configured: a single caller cannot block all others."""
_NEAREST = 5
_KEY_HEADERS = (b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key")


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: the name of their key, and the models that it may use (all when None).

    >>> Caller("ada", ("openai/*",)).allows("local")
    False
    """

    name: str = ""
    models: tuple[str, ...] | None = None
    id: str = ""
    requests_per_minute: int | None = None
    operator: bool = False
    """Whether the key opens the operators' pages."""
    budget: KeyBudget | None = None
    """The limits of the key's spending and of its calls in progress; None without such limits."""

    @property
    def is_limited(self) -> bool:
        """Whether the key can run out of money or tokens."""
        return self.budget is not None and self.budget.is_limited

    def allows(self, model: str) -> bool:
        """Return whether a name fits one of the key's patterns."""
        return self.models is None or any(fnmatchcase(model, pattern) for pattern in self.models)

    def may_use(self, model: str, router: Router) -> bool:
        """Return whether the model may be called: by the requested name, or by every name that an alias resolves to."""
        if self.allows(model):
            return True
        try:
            return all(self.allows(router.full_name(each)) for each in router.candidates(model))
        except UnknownModelError:
            return False

    def check(self, models: Sequence[str], router: Router) -> None:
        """Raise `NotAllowed` for the first of these models that the key may not use."""
        for model in models if self.models is not None else ():
            if not self.may_use(model, router):
                raise self._not_allowed(model)

    def unknown(self, error: UnknownModelError, model: str, router: Router) -> UnknownModelError | NotAllowed:
        """Return the error for an unknown model, naming only models that the key may use.

        The error is the same whether a model that the key may not use exists or not.
        """
        if self.models is None:
            return error
        named = error.details.get("model")
        if isinstance(named, str) and (not model or self.allows(named)):
            model = named  # only the unknown one of a list
        if not self.allows(model):
            return self._not_allowed(model)
        usable = [name for name in router.names() if self.may_use(name, router)]
        near = (difflib.get_close_matches(model, usable, n=_NEAREST) or usable)[:_NEAREST]
        hint = f"This key may use {', '.join(near or self.models)}."
        return UnknownModelError(f"Unknown model {model!r}", hint=hint, details={"model": model, "nearest": near})

    def _not_allowed(self, model: str) -> NotAllowed:
        return NotAllowed(
            f"The API key {self.name!r} may not use the model {model!r}",
            hint=f"It may use: {', '.join(self.models or ())}.",
            key=self.id,
        )


ANYBODY = Caller()
"""The caller of every request to a server without keys."""


class AdmissionControl:
    """Authenticates callers and admits their calls, within the limits of one configuration."""

    def __init__(self, settings: Settings, shared: SharedState | None = None) -> None:
        server = settings.server
        self._keys = KeyFile(Path(server.keys_file)) if server.keys_file else None
        self._shared = shared
        self._limit = server.requests_per_minute
        self._rates: Rates = SharedRates(shared) if shared else LocalRates()
        self._wrong_keys: Rates = SharedRates(shared) if shared else LocalRates()
        self._wrong_keys_limit = server.wrong_keys_per_minute
        self._open_pages = frozenset[str](server.open_pages)
        self._origins = frozenset(server.cors_origins)
        self._hosts = frozenset(
            _host(each.partition("://")[2] or each) for each in [*self._origins, *server.allowed_hosts]
        )
        self.max_concurrent = server.max_concurrent
        self.max_per_caller = server.max_concurrent_per_key or math.ceil(server.max_concurrent * _ONE_CALLERS_SHARE)
        self.body_seconds = server.body_seconds
        self.request_seconds = server.request_seconds
        self.first_limit = min(server.body_seconds, server.request_seconds)
        self.in_flight = 0
        """The number of calls in progress."""
        self._by_caller: dict[str, int] = {}
        """The number of calls in progress by caller."""
        self._entered: dict[Admission, None] = {}
        """Calls before their first time limit, in the order of their deadlines, as the limit is the same for all."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def requires_key(self) -> bool:
        """Whether callers need a key."""
        return self._keys is not None

    def start(self) -> None:
        """Show `slipform keys` which version of the key file is in use."""
        if self._keys is not None:
            self._keys.start()

    def close(self) -> None:
        """Stop showing that a version of the key file is in use."""
        if self._keys is not None:
            self._keys.close()

    def admit(
        self,
        caller: Caller,
        headers: Mapping[bytes, bytes],
        rate_limit_headers: Sequence[Header] = (),
        address: str = "",
        cycle: RequestCycle | None = None,
    ) -> Admission:
        """Return the admission of a call: `with` admits it, or raises the error for its caller.

        `cycle` is set for slipform's own server: it stops another call whose client does not read, and it has the task
        of this call, which asyncio would need a system call to find.
        """
        return Admission(self, caller, headers, rate_limit_headers, _name(caller, address), cycle)

    def caller(self, headers: Mapping[bytes, bytes], query: bytes = b"") -> Caller:
        """Return the caller of a request by its key: in one of the vendors' headers, or in Gemini's `?key=`."""
        if self._keys is None:
            if b"origin" in headers:
                self._check_origin(headers)
            return ANYBODY
        presented_keys = _presented_keys(headers, query)
        if not presented_keys:
            raise KeyRefused("No API key was given", hint="Send one of the keys of this server, as the API key.")
        for each in presented_keys:
            key = self._keys.find(each)
            if key is None:
                continue
            if key.disabled:
                raise KeyRefused("This API key is disabled", hint="Ask who runs this server.", key=key.id)
            if key.expires and key.is_expired(time.time()):
                message = f"This API key has expired: it was good until {key.expires}"
                raise KeyRefused(message, hint="Ask who runs this server for a new one.", key=key.id)
            return _caller_of(key)
        raise WrongKey(
            "This API key is not known here",
            hint="Ask who runs this server for one.",
            key=presented_id(presented_keys[0]),
        )

    def has_operator(self) -> bool:
        """Return whether there is a key that opens the operators' pages."""
        return self._keys is not None and any(key.operator and not key.disabled for key in self._keys.all())

    def operator(self, key_id: str) -> Caller | None:
        """Return the operator whose key has this id; None where the key is not valid, or not an operator's."""
        key = None if self._keys is None else next((key for key in self._keys.all() if key.id == key_id), None)
        if key is None or not key.operator or key.disabled or (key.expires and key.is_expired(time.time())):
            return None
        return _caller_of(key)

    def reload_keys(self) -> None:
        """Read the key file now, after a change by this process."""
        if self._keys is not None:
            self._keys.refresh()

    def listed_keys(self) -> list[tuple[dict[str, Any], KeyBudget]]:
        """Return the keys as an operator may see them, without secrets and hashes, and their budgets."""
        return [
            (
                {
                    "id": key.id,
                    "name": key.name,
                    "created": key.created,
                    "models": key.models,
                    "expires": key.expires,
                    "requests_per_minute": key.requests_per_minute,
                    "operator": key.operator,
                    "disabled": key.disabled,
                },
                key.budget or KeyBudget(),
            )
            for key in (self._keys.all() if self._keys is not None else ())
        ]

    async def authenticate(self, headers: Mapping[bytes, bytes], query: bytes, address: str) -> Caller:
        """Return the caller of a request; an address that sends too many wrong keys has to wait.

        A valid key is admitted nevertheless, because others may share the address.
        """
        try:
            return self.caller(headers, query)
        except WrongKey as wrong:
            limit = self._wrong_keys_limit
            if limit is None:
                raise
            name = f"wrong-key:{_network(address)}"
            allowance = self._wrong_keys.take(name, limit) or await self._wrong_keys.fetch(name, limit)
            if allowance.ok:
                raise
            raise TooManyWrongKeys(
                f"More than {limit} wrong API keys in a minute came from this address",
                hint=f"Try again in {allowance.wait:.3g} seconds, with a key of this server.",
                retry_after=allowance.wait,
                key=wrong.key,
            ) from None

    def is_own_host(self, headers: Mapping[bytes, bytes], bound: str) -> bool:
        """Return whether a request names this server as `Host`, and not a web site that resolves to it (DNS rebinding).

        Checked only without keys, and on loopback (`bound` is the address at which the request arrived): only there
        could a page in a browser read data that is otherwise out of reach.
        """
        requested_host = headers.get(b"host")
        if self._keys is not None or requested_host is None or not is_loopback(bound) or "*" in self._origins:
            return True
        host = _host(requested_host.decode("latin-1"))
        return is_loopback(host) or host == bound or host in self._hosts

    def check_host(self, headers: Mapping[bytes, bytes], bound: str) -> None:
        """Raise `NotAllowed` where `is_own_host` is false."""
        if not self.is_own_host(headers, bound):
            host = headers[b"host"].decode("latin-1")
            raise NotAllowed(
                f"This server does not go by the name {host[:100]!r}", hint="List the name in `server.allowed_hosts`."
            )

    async def operator_sees(self, page: str, headers: Mapping[bytes, bytes], query: bytes, address: str) -> bool:
        """Return whether the caller may see a page, or the part of it that shows configuration and traffic.

        Every caller sees it without keys, or where `server.open_pages` has it; else only an operator. Raises
        for a wrong key, but not for a missing one.
        """
        if self._keys is None or page in self._open_pages:
            return True
        return bool(_presented_keys(headers, query)) and (await self.authenticate(headers, query, address)).operator

    async def check_rate_limit(self, caller: Caller, address: str, api: str) -> list[Header]:
        """Take a permit from the caller's bucket, and return the headers that show what remains."""
        limit = caller.requests_per_minute or self._limit
        if limit is None:
            return []
        name = _name(caller, address)
        allowance = self._rates.take(name, limit) or await self._rates.fetch(name, limit)
        headers = rate_headers(allowance, api)
        if allowance.ok:
            return headers
        raise TooManyRequests(
            f"More than {limit} requests in a minute",
            hint=f"Try again in {allowance.wait:.3g} seconds.",
            retry_after=allowance.wait,
            headers=headers,
        )

    async def refresh(self) -> None:
        """Load a change of the key file, and the revocations of other machines."""
        if self._keys is None:
            return
        self._keys.refresh()
        if self._shared is not None:
            published = await self._shared.exchange_revocations(self._keys.known_revocations(), self._keys.ids())
            if published is not None:
                self._keys.apply_published(published)

    def is_limited(self, caller: Caller) -> bool:
        """Return whether the caller's requests are limited in rate."""
        return (caller.requests_per_minute or self._limit) is not None

    def enter(self, admission: Admission, loop: asyncio.AbstractEventLoop) -> None:
        """Admit a call; raises `Busy` or `TooManyRequests`. One timer serves all calls: most end before it fires."""
        name = admission.name
        count = self._by_caller.get(name, 0)
        budget = admission.caller.budget
        limit = self.max_per_caller
        if budget is not None and budget.max_concurrent is not None:
            limit = budget.max_concurrent
        has_share = count >= limit
        cycle = admission.cycle
        if self.in_flight >= self.max_concurrent and (has_share or cycle is None or not cycle.make_room()):
            raise Busy(
                f"{self.in_flight} requests are under way, as many as this server takes",
                hint="Try again in a moment.",
                retry_after=1,
            )
        if has_share:
            raise TooManyRequests(
                f"{count} of your requests are under way, as many as one caller may have",
                hint="Wait for one of them to finish.",
                retry_after=1,
            )
        self.in_flight += 1
        self._by_caller[name] = count + 1
        self._entered[admission] = None
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_at(admission.began + self.first_limit, self._stop_late_calls, loop)

    def leave(self, admission: Admission) -> None:
        """Stop counting a call that has ended."""
        self.in_flight -= 1
        self._entered.pop(admission, None)
        count = self._by_caller.pop(admission.name) - 1
        if count:
            self._by_caller[admission.name] = count

    def _stop_late_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for admission in list(self._entered):
            due = admission.began + self.first_limit
            if due > now:
                self._timer = loop.call_at(due, self._stop_late_calls, loop)
                return
            del self._entered[admission]
            admission.ran_out()

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise for a web page of another origin, which could otherwise use the models of a server without keys."""
        origin = headers[b"origin"].decode("latin-1")
        if "*" in self._origins or origin in self._origins:
            return
        requested_host = headers.get(b"host", b"").decode("latin-1")
        if origin.partition("://")[2] == requested_host and is_loopback(_host(requested_host)):
            return
        raise NotAllowed(
            f"Web pages of {origin[:100]!r} may not call this server", hint="List the origin in `server.cors_origins`."
        )


class Admission:
    """One call in progress: counted, and cancelled with an error when it takes too long.

    A class and not a generator, because every call passes here.
    """

    __slots__ = (
        "_guard", "_has_body", "_loop", "_task", "_timer", "began", "caller", "cycle", "expired", "headers", "name",
        "request_headers",
    )  # fmt: skip

    def __init__(
        self,
        guard: AdmissionControl,
        caller: Caller,
        headers: Mapping[bytes, bytes],
        rate_limit_headers: Sequence[Header],
        name: str,
        cycle: RequestCycle | None,
    ) -> None:
        self._guard = guard
        self.name = name
        """The key or address that the call is counted for."""
        self.cycle = cycle
        self.caller = caller
        self.request_headers = headers
        self.headers = rate_limit_headers
        """Headers that show the caller's rate limits."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None if cycle is None else cycle.task
        self.began = 0.0
        self._has_body = False
        self._timer: asyncio.TimerHandle | None = None
        self.expired: Refused | None = None
        """The error of the time limit that has passed, if one has."""

    def __enter__(self) -> Self:
        self._task = task = self._task or asyncio.current_task()
        self._loop = loop = asyncio.get_running_loop() if task is None else task.get_loop()
        self.began = loop.time()
        self._guard.enter(self, loop)
        return self

    def body_read(self) -> None:
        """Note that the request has arrived: only the time limit of the whole request remains."""
        self._has_body = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guard.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.expired is None or self._task is None:
            return
        # Only this timer has cancelled the task, unless the server is stopping too.
        if self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self.expired from None

    def ran_out(self) -> None:
        """Cancel the call if its time limit has passed."""
        guard = self._guard
        loop = self._loop
        if loop is None:
            return
        now = loop.time()
        if not self._has_body and now >= self.began + guard.body_seconds:
            late = f"The request was not here within {guard.body_seconds:g} seconds"
            self._expire(BodyTooSlow(late, hint="Send it faster."))
        elif now >= self.began + guard.request_seconds:
            late = f"The request took longer than {guard.request_seconds:g} seconds"
            self._expire(RequestTimeout(late, hint="Ask for less at once."))
        else:
            seconds = guard.request_seconds if self._has_body else guard.first_limit
            self._timer = loop.call_at(self.began + seconds, self.ran_out)

    def _expire(self, reason: Refused) -> None:
        if self._task is not None:
            self.expired = reason
            self._task.cancel()


def check_exposed(settings: Settings, host: str | None = None, insecure: bool = False) -> None:
    """Raise when other machines could call without a key and the settings do not allow it."""
    server = settings.server
    address = host or server.host
    if server.keys_file or server.allow_anonymous or insecure or is_loopback(address):
        return
    raise ConfigError(
        f"Other machines can reach {address}, and without a key file anyone there could call",
        where="server.host",
        hint="Set `server.keys_file` (`slipform keys add NAME` makes it), or `server.allow_anonymous: true`.",
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host in ("127.0.0.1", "localhost", "::1") or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _caller_of(key: Key) -> Caller:
    return Caller(key.name, key.models, key.id, key.requests_per_minute, key.operator, key.budget)


def _host(authority: str) -> str:
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _name(caller: Caller, address: str) -> str:
    """Return the name under which a limit counts: the key, or the address of a caller without one."""
    return caller.id or f"address:{address}"


def _network(address: str) -> str:
    """Return an address, for IPv6 its /64 network: one customer has all 2^64 addresses of it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:100]
    if parsed.version == 4:
        return str(parsed)
    return str(ipaddress.ip_network((int(parsed), 64), strict=False))


def _presented_keys(headers: Mapping[bytes, bytes], query: bytes) -> list[str]:
    values = [value.decode("latin-1").strip() for name in _KEY_HEADERS if (value := headers.get(name))]
    keys = [each[7:].strip() if each[:7].lower() == "bearer " else each for each in values]
    if query and not keys:
        keys = parse_qs(query.decode("latin-1")).get("key", [])
    return [key for key in keys if key]

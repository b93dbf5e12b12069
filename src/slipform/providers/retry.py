"""Decide when to retry, after how long, and which features to omit (recorded downgrades)."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Literal, NamedTuple, Protocol, TypeAlias

import orjson

from slipform.codecs import Capabilities
from slipform.errors import UpstreamError
from slipform.ir import DowngradeWarning, ModelWarning
from slipform.providers.network.transport import TransportFault
from slipform.schema import OutputStrategy, ResponseFormat
from slipform.schema.limits import json_text

DowngradeName: TypeAlias = Literal[
    "no_native",
    "no_native_with_tools",
    "no_forced_tool",
    "no_json_mode",
    "no_sampling",
    "use_max_tokens",
    "use_max_completion_tokens",
    "no_strict",
    "no_logprobs",
    "schema_unseen",
    "split_schema",
]
DOWNGRADE_SECONDS = 24 * 3600.0
"""How long a downgrade counts, since vendors add features."""
MEANING: Mapping[str, str] = {
    "no_native": "does not take {a} schema on its native channel",
    "no_native_with_tools": "does not take a schema on its native channel beside tools",
    "no_forced_tool": "cannot be made to call a tool{for}",
    "no_json_mode": "has no JSON mode",
    "no_sampling": "does not take sampling parameters",
    "use_max_tokens": "wants `max_tokens`",
    "use_max_completion_tokens": "wants `max_completion_tokens`",
    "no_strict": "does not take strict schemas",
    "no_logprobs": "gives no probabilities of its tokens",
    "schema_unseen": "ignores the schema on its native channel, so the prompt shows it",
    "split_schema": "takes {a} schema only in parts",
}
PER_SCHEMA = "by_schema"
"""A marker among a model's downgrades: some of its schemas have their own, whose keys are expensive to build."""
DOWNGRADES = frozenset({*MEANING, PER_SCHEMA})
MAX_STEPS_DOWN = 4
"""How often one call may be retried with a downgrade: native, tool, JSON mode, prompt."""


class DowngradeStore(Protocol):
    """A store of downgrades. Both calls must be quick: a remote store should cache them locally."""

    def get(self, key: str) -> frozenset[str]:
        """Return the downgrades under this key."""
        ...

    def add(self, key: str, downgrade: str) -> None:
        """Store one more downgrade under this key."""
        ...


class NoDowngrades:
    """A store that records nothing: a refusal is an error, and `auto` means the same for every call."""

    version = 0

    def get(self, key: str) -> frozenset[str]:
        """Return nothing."""
        del key
        return frozenset()

    def add(self, key: str, downgrade: str) -> None:
        """Do nothing."""


class Downgrade(NamedTuple):
    """One downgrade, the model or schema it concerns, and its remaining seconds."""

    key: str
    name: str
    seconds: float


class MemoryDowngrades:
    """Downgrades stored in this process: the newest `size` keys, each for `lifetime` seconds.

    >>> store = MemoryDowngrades()
    >>> store.add("url model", "no_native")
    >>> store.get("url model")
    frozenset({'no_native'})
    """

    def __init__(
        self,
        size: int = 1024,
        lifetime: float = DOWNGRADE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        on_add: Callable[[Downgrade], None] | None = None,
    ) -> None:
        self._entries: OrderedDict[str, tuple[float, frozenset[str]]] = OrderedDict()
        self._size = size
        self._lifetime = lifetime
        self._clock = clock
        self._lock = threading.Lock()
        self._on_add = on_add
        self._version = 0
        self._next_expiry = math.inf

    @property
    def version(self) -> int:
        """A number that changes whenever `get` may return something else, including after an expiry."""
        if self._next_expiry is not math.inf and self._clock() >= self._next_expiry:
            with self._lock:
                self._changed()
        return self._version

    def _changed(self) -> None:
        """Increase the version; the caller holds the lock."""
        now = self._clock()
        self._version += 1
        self._next_expiry = min((until for until, _ in self._entries.values() if until > now), default=math.inf)

    def get(self, key: str) -> frozenset[str]:
        """Return the downgrades under this key that have not expired."""
        entry = self._entries.get(key)
        if entry is None:
            return frozenset()
        if self._clock() < entry[0]:
            return entry[1]
        return frozenset()

    def add(self, key: str, downgrade: str, seconds: float | None = None) -> None:
        """Store one more downgrade for this long; drop the oldest if there are too many."""
        with self._lock:
            previous = self.get(key)
            downgrades = previous | {downgrade}
            left = self._lifetime if seconds is None else seconds
            self._entries[key] = (self._clock() + left, downgrades)
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
            self._changed()
        if self._on_add is not None and downgrade not in previous:
            self._on_add(Downgrade(key, downgrade, left))

    def forget(self, key: str, downgrade: str) -> bool:
        """Drop a downgrade; return whether it was in effect. `on_add` receives it with no time left."""
        with self._lock:
            downgrades = self.get(key)
            if downgrade not in downgrades:
                return False
            self._entries[key] = (self._entries[key][0], downgrades - {downgrade})
            self._changed()
        if self._on_add is not None:
            self._on_add(Downgrade(key, downgrade, 0.0))
        return True

    def active(self) -> list[Downgrade]:
        """Return the downgrades in effect, to share them with other processes."""
        with self._lock:
            now = self._clock()
            entries = [
                (key, until - now, downgrades) for key, (until, downgrades) in self._entries.items() if until > now
            ]
        return [
            Downgrade(key, downgrade, left) for key, left, downgrades in entries for downgrade in sorted(downgrades)
        ]


def model_key(base_url: str, model: str) -> str:
    """Return the key for a model at an address, without the address's user name and password.

    >>> model_key("https://me:secret@example.com/v1", "m")
    'https://example.com/v1 m'
    """
    scheme, separator, rest = base_url.partition("://")
    host, slash, path = rest.partition("/")
    if not separator or "@" not in host:
        return f"{base_url} {model}"
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path} {model}"


def schema_key(base_url: str, model: str, response_format: ResponseFormat | None) -> str | None:
    """Return the key for one schema only; the same model may accept another schema."""
    if response_format is None:
        return None
    schema = response_format.json_schema.schema
    try:
        text = orjson.dumps(schema, option=orjson.OPT_SORT_KEYS, default=repr)
    except TypeError:  # integers beyond 64 bits
        text = json_text(schema)
    return f"{model_key(base_url, model)} {hashlib.sha256(text).hexdigest()[:16]}"


def apply_downgrades(capabilities: Capabilities, downgrades: frozenset[str]) -> Capabilities:
    """Return the capabilities that remain after these downgrades.

    >>> apply_downgrades(Capabilities(native=True, forced_tool=True), frozenset({"no_native"})).auto_strategy.value
    'tool'
    """
    if not downgrades:
        return capabilities
    changes: dict[str, object] = {}
    for downgrade, name in (
        ("no_native", "native"),
        ("no_forced_tool", "forced_tool"),
        ("no_json_mode", "json_mode"),
        ("no_sampling", "sampling"),
    ):
        if downgrade in downgrades:
            changes[name] = False
    for downgrade in ("use_max_tokens", "use_max_completion_tokens"):
        if downgrade in downgrades:
            changes["max_tokens_field"] = downgrade.removeprefix("use_")
    quirks = {_QUIRKS[each] for each in downgrades if each in _QUIRKS}
    if quirks:
        changes["quirks"] = capabilities.quirks | quirks
    return dataclasses.replace(capabilities, **changes)  # type: ignore[arg-type]


_QUIRKS = {
    "no_strict": "no_strict",
    "no_logprobs": "no_logprobs",
    "no_native_with_tools": "no_native_with_tools",
    "schema_unseen": "schema_in_prompt",
    "split_schema": "split_schema",
}


def downgrade_warning(downgrade: str, model: str, strategy: OutputStrategy | None = None) -> ModelWarning:
    """Return the warning of an answer that was obtained by the weaker strategy `strategy`."""
    message = f"The vendor says that {model} {describe_downgrade(downgrade)}; the call was made without it."
    return DowngradeWarning("capability_downgraded", message, downgrade, strategy)


def describe_downgrade(downgrade: str, *, of_schema: bool = False) -> str:
    """Return a downgrade in words, about a model or about one schema of it.

    >>> describe_downgrade("no_native", of_schema=True)
    'does not take this schema on its native channel'
    """
    one, beside = ("this", " with this schema") if of_schema else ("a", "")
    return MEANING.get(downgrade, downgrade).replace("{a}", one).replace("{for}", beside)


_RETRYABLE = frozenset({408, 409, 429})
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently a call is retried when the network or the vendor fails.

    These retries never count against the enforcement budget. The pause doubles each time, is drawn at random from its
    upper half, and is never shorter than the vendor requests; if a vendor requests more than `longest_wait`, there is
    no retry.

    A request is never retried once its answer has begun, nor when the connection broke after it was sent. The exception
    is a reused connection that breaks at once because its server had closed it: there the transport sends the request
    again.

    >>> RetryPolicy(attempts=0)
    RetryPolicy(attempts=0, base=0.5, cap=8.0, longest_wait=60.0)
    """

    attempts: int = 2
    base: float = 0.5
    cap: float = 8.0
    longest_wait: float = 60.0

    def pause(self, attempt: int, retry_after: float | None, draw: Callable[[], float] = random.random) -> float | None:
        """Return the seconds before retry number `attempt` + 1, or None if there should be none."""
        if attempt >= self.attempts:
            return None
        if retry_after is not None and retry_after > self.longest_wait:
            return None
        backoff = min(self.cap, self.base * 2.0**attempt)
        return max(backoff * (0.5 + 0.5 * draw()), retry_after or 0.0)


def after_fault(fault: TransportFault) -> bool:
    """Return whether a call may be retried after a broken connection: only if the server cannot have seen the request.

    An untrusted certificate, a wrong proxy or a wrong address will be the same the next time.
    """
    return fault.unsent and fault.limit != "total" and fault.reason == "broken"


def after_status(status: int, headers: Mapping[str, str], error: UpstreamError) -> bool:
    """Whether a call may be retried after an error: by the vendor's header, then by the codec, then by the status."""
    should_retry = headers.get("x-should-retry", "").strip().lower()
    if should_retry in ("true", "false"):
        return should_retry == "true"
    if status not in _RETRYABLE and status < 500:
        return False
    # A spent quota is a 429 as well, and waiting does not restore it.
    return error.details.get("retryable") is not False


def requested_wait(headers: Mapping[str, str], error: UpstreamError | None = None) -> float | None:
    """Return the seconds that the vendor asks to wait, in any of the vendors' formats.

    >>> requested_wait({"retry-after-ms": "250"}), requested_wait({"retry-after": "3"})
    (0.25, 3.0)
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    seconds = _number(headers.get("retry-after"))
    if seconds is None:
        seconds = _until(headers.get("retry-after"), headers.get("date"))
    if seconds is None and error is not None:
        seconds = error.retry_after
    return seconds if seconds is not None else _reset(headers)


def _reset(headers: Mapping[str, str]) -> float | None:
    """Return when the exhausted limit is reset: `x-ratelimit-reset-tokens`, `anthropic-ratelimit-tokens-reset`."""
    waits = []
    for name, value in headers.items():
        if "ratelimit" not in name or "remaining" not in name or value.strip() != "0":
            continue
        text = headers.get(name.replace("remaining", "reset"), "")
        wait = _number(text)
        if wait is None:
            wait = read_duration(text)
        if wait is None:
            wait = _until(text, headers.get("date"))
        if wait is not None:
            waits.append(wait)
    return max(waits, default=None)


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    # Some vendors send the time instead of the duration; a wait of years is ignored.
    if value is not None and 0 <= value < 1e8:
        return value
    return None


def read_duration(text: str) -> float | None:
    """Return the seconds of a text like `8h` or `6m0s`; None for another text.

    >>> read_duration("6m0s"), read_duration("20ms"), read_duration("soon")
    (360.0, 0.02, None)
    """
    if not text or _DURATION.sub("", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _until(text: str | None, now: str | None) -> float | None:
    """Return the duration between two times of the server's own clock."""
    if not text or not now:
        return None
    then = _timestamp(text)
    here = _timestamp(now)
    if then is None or here is None:
        return None
    return max(0.0, (then - here).total_seconds())


def _timestamp(text: str) -> datetime | None:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text)
        except ValueError:
            continue
        return moment if moment.tzinfo is not None else None
    return None

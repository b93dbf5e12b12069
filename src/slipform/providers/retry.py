"""When to try again, and after how long. Pure: no clock, no sleep."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

from slipform.errors import UpstreamError
from slipform.providers.network.transport import TransportFault

_RETRYABLE = frozenset({408, 409, 429})
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how patiently a call is repeated when the network or the vendor fails.

    These repeats never spend the enforcement budget. The pause doubles each time, is drawn at random from its upper
    half, and is never shorter than what the vendor asks for; a vendor that asks for more than `longest_wait` gets no
    repeat. A request is never repeated once its answer has begun, nor when the connection broke after it was sent;
    but for a kept connection that breaks at once, which its server had closed: there the transport sends it again.

    >>> Retries(attempts=0)
    Retries(attempts=0, base=0.5, cap=8.0, longest_wait=60.0)
    """

    attempts: int = 2
    base: float = 0.5
    cap: float = 8.0
    longest_wait: float = 60.0

    def pause(self, attempt: int, asked: float | None, draw: Callable[[], float] = random.random) -> float | None:
        """Seconds to wait before repeat number `attempt` + 1, or None when there should be none."""
        if attempt >= self.attempts:
            return None
        if asked is not None and asked > self.longest_wait:
            return None
        backoff = min(self.cap, self.base * 2.0**attempt)
        return max(backoff * (0.5 + 0.5 * draw()), asked or 0.0)


def after_fault(fault: TransportFault) -> bool:
    """Whether a broken connection may be repeated: only when the server cannot have seen the request.

    A certificate that is not trusted, a proxy or an address that is wrong will be so the next time.
    """
    return fault.unsent and fault.limit != "total" and fault.reason == "broken"


def after_status(status: int, headers: Mapping[str, str], error: UpstreamError) -> bool:
    """Whether an error answer may be repeated: the vendor's word first, then what the codec read, then the status."""
    word = headers.get("x-should-retry", "").strip().lower()
    if word in ("true", "false"):
        return word == "true"
    if status not in _RETRYABLE and status < 500:
        return False
    # A spent quota is a 429 as well, and waiting does not fill it.
    return error.details.get("retryable") is not False


def asked_wait(headers: Mapping[str, str], error: UpstreamError | None = None) -> float | None:
    """Seconds the vendor asks to wait, in any of the ways vendors say it.

    >>> asked_wait({"retry-after-ms": "250"}), asked_wait({"retry-after": "3"})
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
    """When the limit that is used up starts afresh: `x-ratelimit-reset-tokens`, `anthropic-ratelimit-tokens-reset`."""
    waits = []
    for name, value in headers.items():
        if "ratelimit" not in name or "remaining" not in name or value.strip() != "0":
            continue
        text = headers.get(name.replace("remaining", "reset"), "")
        wait = _number(text)
        if wait is None:
            wait = _duration(text)
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
    # Some vendors give the moment instead of the distance; a wait of years is no wait.
    return value if value is not None and 0 <= value < 1e8 else None


def _duration(text: str) -> float | None:
    """`6m0s`, `1.5s`, `20ms`."""
    if not text or _DURATION.sub("", text):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _until(text: str | None, now: str | None) -> float | None:
    """The distance between two moments by the server's own clock."""
    if not text or not now:
        return None
    then, here = _moment(text), _moment(now)
    return None if then is None or here is None else max(0.0, (then - here).total_seconds())


def _moment(text: str) -> datetime | None:
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            moment = read(text)
        except ValueError:
            continue
        return moment if moment.tzinfo is not None else None
    return None

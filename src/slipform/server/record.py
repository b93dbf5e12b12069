"""What is known of one call: it grows while the call is served, and headers, logs and metrics are written from it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.enforce import Report
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelResponse, Usage

Header = tuple[bytes, bytes]

_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_NOTHING = Usage()


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's `x-request-id` when it is short and plain, else a new one.

    >>> request_id({b"x-request-id": b"order-17"})
    'order-17'
    >>> len(request_id({b"x-request-id": b"two words"}))
    32
    """
    given = headers.get(b"x-request-id")
    return given.decode() if given is not None and _SANE_ID.fullmatch(given) else os.urandom(16).hex()


@dataclass(slots=True)
class CallRecord:
    """One inbound call. Only what is known is set.

    >>> CallRecord("r1", api="openai_chat", model="local").headers()
    [(b'x-request-id', b'r1'), (b'x-slipform-request-id', b'r1'), (b'x-slipform-model', b'local')]
    """

    request_id: str
    api: str = ""
    caller: str = ""
    """The name of the caller's key."""
    model: str = ""
    """As the caller wrote it."""
    provider: str = ""
    upstream_model: str = ""
    strategy: str = ""
    stream: bool = False
    enforced: bool = False
    schema: str = ""
    """The name of the response format, when one was asked for."""
    timeout: float | None = None
    """The seconds the whole request may take."""
    report: Report | None = None
    answer: ModelResponse | None = None
    """What was enforced, once it is known."""
    usage: Usage | None = None
    """Tokens of a call that was passed through; those of an enforced one are in its report."""
    cached: bool = False
    fallbacks: int = 0
    """How many models could not answer before the one that did."""
    status: int = 0
    outcome: str = "ok"
    """"ok", or the code of the error."""
    upstream_status: int | None = None
    """What the vendor answered with, when it failed."""
    upstream_seconds: float | None = None
    """How long the vendor took in all, where that is known."""
    generation: int = 1
    """Which reading of the configuration served it."""
    started: float = field(default_factory=time.monotonic)
    first_byte: float | None = None
    ended: float | None = None

    def fail(self, error: SlipformError) -> None:
        """Note why the call failed, and how far it had come."""
        self.outcome = error.code
        if isinstance(error.report, Report):
            self.report = error.report
        if isinstance(error, UpstreamError):
            self.upstream_status = error.status or 0

    @property
    def tokens(self) -> Usage:
        """Tokens over all attempts."""
        if self.report is not None:
            return self.report.usage
        return self.usage or _NOTHING

    @property
    def seconds(self) -> float:
        """How long the call took, or has taken so far."""
        return (time.monotonic() if self.ended is None else self.ended) - self.started

    @property
    def overhead(self) -> float | None:
        """The seconds that slipform itself added; None where the vendor's share is not known, as in streams."""
        waited = self.upstream_seconds
        if waited is None and self.report is not None:
            waited = sum(attempt.seconds or 0.0 for attempt in self.report.attempts)
        return None if waited is None or self.stream else max(0.0, self.seconds - waited)

    def headers(self) -> list[Header]:
        """What slipform did, as response headers."""
        identity = _printable(self.request_id)
        said: list[Header] = [(b"x-request-id", identity), (b"x-slipform-request-id", identity)]
        if self.provider:
            said.append((b"x-slipform-provider", _printable(self.provider)))
        if model := self.upstream_model or self.model:
            said.append((b"x-slipform-model", _printable(model)))
        if self.strategy:
            said.append((b"x-slipform-strategy", _printable(self.strategy)))
        if (report := self.report) is not None:
            said.append((b"x-slipform-attempts", b"%d" % len(report.attempts)))
            said.append((b"x-slipform-repaired", b"true" if report.repaired else b"false"))
            said.append((b"x-slipform-patched", b"true" if report.patched else b"false"))
            said.append((b"x-slipform-warnings", b"%d" % len(report.warnings)))
        if self.cached:
            said.append((b"x-slipform-cache", b"hit"))
        if self.fallbacks:
            said.append((b"x-slipform-fallbacks", b"%d" % self.fallbacks))
        overhead = self.overhead
        if overhead is not None:
            said.append((b"x-slipform-overhead-ms", b"%.2f" % (overhead * 1000)))
        return said

    def fields(self) -> dict[str, Any]:
        """The call in figures and names, for its log line: no prompt, no answer, no key."""
        attempts = 0 if self.report is None else len(self.report.attempts)
        usage, overhead = self.tokens, self.overhead
        first = None if self.first_byte is None else self.first_byte - self.started
        known = {
            "id": self.request_id,
            "api": self.api,
            "caller": self.caller or None,
            "model": self.model[:200],
            "provider": self.provider or None,
            "upstream_model": self.upstream_model or None,
            "strategy": self.strategy or None,
            "require_json": self.enforced,
            "use_response_schema": bool(self.schema),
            "schema": self.schema[:64] or None,
            "streaming": self.stream,
            "timeout": self.timeout,
            "attempts": attempts,
            "repair_attempted": "yes" if attempts > 1 else "no",
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cached": self.cached or None,
            "fallbacks": self.fallbacks or None,
            "latency_ms": _ms(self.seconds),
            "first_byte_ms": _ms(first),
            "overhead_ms": _ms(overhead),
            "status": self.status,
            "outcome": self.outcome,
            "upstream_status": self.upstream_status or None,
            "config": self.generation,
        }
        return {name: value for name, value in known.items() if value is not None}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def _printable(value: str) -> bytes:
    """A header's value: what a caller wrote must not be able to end the line."""
    value = value[:200]
    if value.isascii() and value.isprintable():
        return value.encode()
    return "".join(sign if " " <= sign <= "~" else "?" for sign in value).encode()

"""What is known of one call."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from slipform.enforce import Report
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import ModelResponse, Usage

Header = tuple[bytes, bytes]
Names = tuple[str, str, str, str, str, str, bool, str, bool, float | None, int]
Ending = tuple[int, str, int | None, int]

_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_NOTHING = Usage()
_LONGEST = 200
"""A name is no longer than this in headers and log lines."""


def request_id(headers: Mapping[bytes, bytes]) -> str:
    """The caller's `x-request-id` when it is short and plain, else a new one.

    >>> request_id({b"x-request-id": b"order-17"})
    'order-17'
    >>> len(request_id({b"x-request-id": b"two words"}))
    32
    """
    given = headers.get(b"x-request-id")
    return given.decode() if given is not None and _SANE_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


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
    usage: Usage | Callable[[], Usage | None] | None = None
    """Tokens of a call that was passed through, or what looks for them; those of an enforced one are in its report."""
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
        if callable(self.usage):
            self.usage = self.usage()
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
            waited = sum([attempt.seconds or 0.0 for attempt in self.report.attempts])
        return None if waited is None or self.stream else max(0.0, self.seconds - waited)

    def headers(self) -> list[Header]:
        """What slipform did, as response headers."""
        identity, report = self.request_id.encode(), self.report
        judged = None
        if report is not None:
            judged = len(report.attempts), report.repaired, report.patched, len(report.warnings)
        model = self.upstream_model or self.model
        done = _done(self.provider, model[:_LONGEST], self.strategy, judged, self.cached, self.fallbacks)
        said: list[Header] = [(b"x-request-id", identity), (b"x-slipform-request-id", identity), *done]
        overhead = self.overhead
        if overhead is not None:
            said.append((b"x-slipform-overhead-ms", b"%.2f" % (overhead * 1000)))
        return said

    def fields(self) -> dict[str, Any]:
        """The call in figures and names, for its log line: no prompt, no answer, no key."""
        return {"id": self.request_id, **named(self.names()), **self.figures(), **concluded(self.ending())}

    def names(self) -> Names:
        """What it was, as other calls are. Others have chosen these words."""
        attempts = 0 if self.report is None else len(self.report.attempts)
        return (self.api, self.caller[:_LONGEST], self.model[:_LONGEST], self.provider[:_LONGEST],
                self.upstream_model[:_LONGEST], self.strategy, self.enforced,
                self.schema[:64], self.stream, self.timeout, attempts)  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """What is its own, but for its id."""
        usage = self.tokens
        said: dict[str, Any] = {}
        if usage.input is not None:
            said["input_tokens"] = usage.input
        if usage.output is not None:
            said["output_tokens"] = usage.output
        if self.cached:
            said["cached"] = True
        if self.fallbacks:
            said["fallbacks"] = self.fallbacks
        said["latency_ms"] = round(self.seconds * 1000, 2)
        if self.first_byte is not None:
            said["first_byte_ms"] = round((self.first_byte - self.started) * 1000, 2)
        if (overhead := self.overhead) is not None:
            said["overhead_ms"] = round(overhead * 1000, 2)
        return said

    def ending(self) -> Ending:
        """What became of it, as of other calls. All words are ours."""
        return self.status, self.outcome, self.upstream_status, self.generation


@lru_cache(maxsize=512)
def named(names: Names) -> Mapping[str, Any]:
    """The names with what they are names of; those that are empty are left out."""
    api, caller, model, provider, upstream_model, strategy, enforced, schema, stream, timeout, attempts = names
    known = {
        "api": api,
        "caller": caller or None,
        "model": model,
        "provider": provider or None,
        "upstream_model": upstream_model or None,
        "strategy": strategy or None,
        "require_json": enforced,
        "use_response_schema": bool(schema),
        "schema": schema or None,
        "streaming": stream,
        "timeout": timeout,
        "attempts": attempts,
        "repair_attempted": "yes" if attempts > 1 else "no",
    }
    return {name: value for name, value in known.items() if value is not None}


@lru_cache(maxsize=512)
def concluded(ending: Ending) -> Mapping[str, Any]:
    """The same for what became of a call."""
    status, outcome, upstream_status, generation = ending
    known = {"status": status, "outcome": outcome, "upstream_status": upstream_status or None, "config": generation}
    return {name: value for name, value in known.items() if value is not None}


@lru_cache(maxsize=512)
def _done(
    provider: str, model: str, strategy: str, judged: tuple[int, bool, bool, int] | None, cached: bool, fallbacks: int
) -> tuple[Header, ...]:
    """What was done, as headers: the same for most calls."""
    names = ((b"provider", provider), (b"model", model), (b"strategy", strategy))
    said = [(name, _printable(value)) for name, value in names if value]
    if judged is not None:
        attempts, repaired, patched, warnings = judged
        said += [(b"attempts", b"%d" % attempts), (b"repaired", _word(repaired)), (b"patched", _word(patched))]
        said.append((b"warnings", b"%d" % warnings))
    if cached:
        said.append((b"cache", b"hit"))
    if fallbacks:
        said.append((b"fallbacks", b"%d" % fallbacks))
    return tuple([(b"x-slipform-" + name, value) for name, value in said])


def _word(true: bool) -> bytes:
    return b"true" if true else b"false"


def _printable(value: str) -> bytes:
    """A header's value: what a caller wrote must not be able to end the line."""
    value = value[:_LONGEST]
    if value.isascii() and value.isprintable():
        return value.encode()
    return "".join(sign if " " <= sign <= "~" else "?" for sign in value).encode()

"""What is known of one call: it grows while the call is served, and headers, logs and metrics are written from it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from slipform.enforce import Report

Header = tuple[bytes, bytes]


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
    report: Report | None = None
    cached: bool = False
    fallbacks: int = 0
    """How many models could not answer before the one that did."""
    status: int = 0
    outcome: str = "ok"
    """"ok", or the code of the error."""
    started: float = field(default_factory=time.monotonic)
    first_byte: float | None = None

    def headers(self) -> list[Header]:
        """What slipform did, as response headers."""
        said: list[tuple[str, str]] = [("x-request-id", self.request_id), ("x-slipform-request-id", self.request_id)]
        named = (("provider", self.provider), ("model", self.upstream_model or self.model), ("strategy", self.strategy))
        said += [(f"x-slipform-{name}", value) for name, value in named if value]
        if self.report is not None:
            said.append(("x-slipform-attempts", str(len(self.report.attempts))))
            said.append(("x-slipform-repaired", _yes(self.report.repaired)))
            said.append(("x-slipform-patched", _yes(self.report.patched)))
            said.append(("x-slipform-warnings", str(len(self.report.warnings))))
        if self.cached:
            said.append(("x-slipform-cache", "hit"))
        if self.fallbacks:
            said.append(("x-slipform-fallbacks", str(self.fallbacks)))
        return [(name.encode(), _printable(value)) for name, value in said]


def _yes(fact: bool) -> str:
    return "true" if fact else "false"


def _printable(value: str) -> bytes:
    """A header's value: what a caller wrote must not be able to end the line."""
    value = value[:200]
    if value.isascii() and value.isprintable():
        return value.encode()
    return "".join(sign if " " <= sign <= "~" else "?" for sign in value).encode()

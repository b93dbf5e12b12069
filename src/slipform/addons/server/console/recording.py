"""Decide for which calls the console records prompts and answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slipform.addons.server.admission.admission import is_loopback
from slipform.addons.server.deployment import Deployment
from slipform.addons.server.observability.call_record import CallRecord, CallTrace
from slipform.config import ServerSettings

_MOST_MINUTES: Final = 60.0
_MOST_CALLS: Final = 1000.0
_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
"""Headers of calls that came through another proxy: their callers may be on other machines."""


@dataclass(slots=True)
class Tracing:
    """A temporary recording: for a time and a number of calls, of one model or key where they are set."""

    until: float = 0.0
    left: int = 0
    model: str = ""
    key: str = ""

    @property
    def is_on(self) -> bool:
        """Whether neither its time nor its calls have run out."""
        return self.left > 0 and time.time() < self.until

    def wants(self, record: CallRecord) -> bool:
        """Return whether to store the text of a call that has ended; a call that fits is counted."""
        fits = self.is_on and self.model in ("", record.model) and self.key in ("", record.caller)
        self.left -= fits
        return fits

    def as_json(self) -> dict[str, Any] | None:
        """Return the fields that the page shows; None for a recording that has ended."""
        if not self.is_on:
            return None
        return {"until": self.until, "left": self.left, "model": self.model or None, "key": self.key or None}


def _has_failed(record: CallRecord) -> bool:
    return record.outcome != "ok"


class Recording:
    """Whether one worker records: its settings, and the temporary choice of an operator."""

    def __init__(self, bound: str | None, deployment: Callable[[], Deployment]) -> None:
        self._bound = bound
        self._deployment = deployment
        self._tracing = Tracing()
        self._is_on = True
        """Whether `traces: auto` records text; the page has a switch for it."""
        self._privacy: tuple[ServerSettings | None, bool] = (None, False)
        """The settings of the last check, and whether only the user of this machine can call under them."""

    def trace(
        self, record: CallRecord, headers: Mapping[bytes, bytes], settings: ServerSettings, *, own: bool = False
    ) -> CallTrace | None:
        """Return the trace that records the text of a new call; None where it is not recorded."""
        mode = self._mode_of_call(headers, settings)
        if mode == "off" and not own and not self._tracing.until:
            return None
        if headers.get(b"x-slipform-trace") == b"off" or b"no-store" in headers.get(b"cache-control", b""):
            record.words = "opted_out"
        elif own or mode == "on":
            return CallTrace(is_archived=own or settings.traces != "auto" or settings.debug_traces)
        elif self._tracing.is_on:
            return CallTrace(self._tracing.wants)
        elif mode == "failures":
            record.words = "failures"
            return CallTrace(_has_failed)
        return None

    def _mode_of_call(self, headers: Mapping[bytes, bytes], settings: ServerSettings) -> str:
        """Return the mode for a call with these headers; with `traces: auto`, `off` for a forwarded one."""
        mode = self.mode(settings)
        is_automatic = mode == "on" and settings.traces == "auto" and not settings.debug_traces
        return "off" if is_automatic and not _FORWARDED.isdisjoint(headers) else mode

    def mode(self, settings: ServerSettings) -> str:
        """Return for which calls text is recorded: `off`, `failures` or `on`."""
        if settings.debug_traces:
            return "on"
        if settings.traces != "auto":
            return settings.traces
        if not self._is_on:
            return "off"
        if self._privacy[0] is not settings:
            self._privacy = (settings, self.is_private(settings))
        return "on" if self._privacy[1] else "off"

    def is_private(self, settings: ServerSettings) -> bool:
        """Return whether only the user of this machine can call: `bound` is None where another program serves."""
        if self._bound is None or not is_loopback(self._bound) or settings.allowed_hosts:
            return False
        return not self._deployment().gate.guard.requires_key

    def start(self, *, minutes: float, calls: float, model: str, key: str) -> None:
        """Record the text of further calls for some minutes and a number of calls, of one model or key where named."""
        self._is_on = True
        until = time.time() + 60 * min(max(minutes, 0.0), _MOST_MINUTES)
        self._tracing = Tracing(until, int(min(max(calls, 1.0), _MOST_CALLS)), model, key)

    def resume(self) -> None:
        """Record as the settings say."""
        self._is_on = True
        self._tracing = Tracing()

    def stop(self) -> None:
        """Stop recording by `traces: auto` or an operator's choice."""
        self._is_on = False
        self._tracing = Tracing()

    def as_json(self) -> dict[str, Any] | None:
        """Return the temporary recording as the page shows it; None where there is none."""
        return self._tracing.as_json()

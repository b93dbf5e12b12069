"""Remember a SIGHUP that arrives before the server can reload: by default it would end the process."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

SIGHUP: Final[int | None] = getattr(signal, "SIGHUP", None)
"""None on Windows."""


class DeferredReload:
    """A signal handler that only remembers the signal."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        del number, frame
        self.is_requested = True


def defer_reload() -> DeferredReload:
    """Keep SIGHUP from ending this process until the server handles it; return the handler that is in place."""
    handler = DeferredReload()
    if SIGHUP is None:
        return handler
    current = signal.getsignal(SIGHUP)
    if isinstance(current, DeferredReload):
        return current
    signal.signal(SIGHUP, handler)
    return handler

"""What all connections of a server share: the application, the limits, who is there, the time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipform.server.heads import date_line

if TYPE_CHECKING:
    from slipform.server.connection import Connection
    from slipform.server.exchange import App, Exchange
    from slipform.server.forwarded import Trusted


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may take: bytes and seconds.

    >>> Limits().head_seconds
    30.0
    """

    head_bytes: int = 64 * 1024
    """Of a request's head."""
    head_seconds: float = 30.0
    """For a request's head to be whole."""
    idle_seconds: float = 75.0
    """Between requests; longer than balancers keep their idle connections, so that it is they who close them."""
    held_bytes: int = 64 * 1024
    """Of a body that nobody has taken yet, before no more of it is read."""
    queued: int = 64
    """Requests sent before the one ahead of them is answered."""
    tick_seconds: float = 1.0
    """How often it is looked whether somebody takes too long."""


class Door:
    """Made once for all the sockets that a server listens on."""

    def __init__(self, app: App, limits: Limits | None = None, trusted: Trusted | None = None) -> None:
        self.app = app
        self.limits = limits or Limits()
        self.trusted = trusted
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.running: set[Exchange] = set()
        """Requests that the application is at work on."""
        self.closing = False
        self.date = date_line()
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

    def close(self) -> None:
        """Nobody is waited for any longer; whoever is still there is cut off."""
        self._timer.cancel()
        for connection in list(self.connections):
            connection.abort()

    def finish(self) -> None:
        """Let every connection end after the answer that is under way on it."""
        self.closing = True
        for connection in list(self.connections):
            connection.finish()

    def _tick(self) -> None:
        """One timer for all connections: nearly all that is timed is over long before its limit."""
        self.date = date_line()
        now = self.loop.time()
        for connection in [each for each in self.connections if each.due <= now]:
            connection.overdue()
        self._timer = self.loop.call_later(self.limits.tick_seconds, self._tick)

"""What a transport holds on each event loop: connections at rest that the loop watches, and the watch on time limits.

Connections of a loop that was closed are not lost: their sockets go to the pool that everybody shares.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from slipform.providers.ear import Ear
from slipform.providers.pool import Connection, Pool
from slipform.providers.watch import Watch


class Heard:
    """A connection, and who hears it on an event loop."""

    __slots__ = ("connection", "ear", "link")

    def __init__(self, connection: Connection, ear: Ear) -> None:
        self.connection = connection
        self.link = connection.link
        self.ear = ear

    def alive(self) -> bool:
        """Whether it is still good after a rest. The loop may not have had the time to say that it is not."""
        return self.connection.alive()

    def close(self) -> None:
        """Close it; harmless when repeated."""
        self.ear.close()


class Looped:
    """One event loop's share."""

    __slots__ = ("loop", "pool", "watch")

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool[Heard]) -> None:
        self.loop = loop
        self.pool = pool
        self.watch = Watch(loop)

    def hold(self, connection: Connection) -> Heard:
        """The connection, watched by this loop."""
        return Heard(connection, Ear(connection.socket, self.loop))


class Loops:
    """The shares by event loop; `make_pool` makes an empty pool, `shared` is everybody's."""

    def __init__(self, shared: Pool[Connection], make_pool: Callable[[], Pool[Heard]]) -> None:
        self._shared = shared
        self._make_pool = make_pool
        self._known: dict[asyncio.AbstractEventLoop, Looped] = {}
        self._lock = threading.Lock()

    def here(self) -> Looped:
        """The running loop's share."""
        loop = asyncio.get_running_loop()
        return self._known.get(loop) or self._add(loop)

    def close(self) -> None:
        """Close what is at rest, on all loops."""
        with self._lock:
            shares = list(self._known.values())
        for share in shares:
            share.pool.close()

    def gather(self) -> None:
        """Put what closed loops have left behind into the pool that all share."""
        with self._lock:
            left = [self._known.pop(loop) for loop in list(self._known) if loop.is_closed()]
        for share in left:
            for heard in share.pool.empty():
                self._shared.give(heard.connection)

    def _add(self, loop: asyncio.AbstractEventLoop) -> Looped:
        self.gather()
        with self._lock:
            added = self._known[loop] = Looped(loop, self._make_pool())
        return added

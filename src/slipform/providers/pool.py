"""Connections kept open between calls: those of one event loop, or those that all threads share."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from slipform.providers.link import Link
from slipform.providers.place import Place

_HAS_POLL = hasattr(select, "poll")


class Kept(Protocol):
    """What a pool keeps."""

    link: Link
    """What is spoken over it."""

    def alive(self) -> bool:
        """Whether it is still good after a rest."""
        ...

    def close(self) -> None:
        """Close it; harmless when repeated."""
        ...


class Connection:
    """An open socket, which never blocks, and what is spoken over it."""

    __slots__ = ("_poller", "link", "socket")

    def __init__(self, sock: socket.socket, link: Link) -> None:
        self.socket = sock
        self.link = link
        self._poller: Any = None
        if _HAS_POLL:
            self._poller = select.poll()
            self._poller.register(sock, select.POLLIN)

    def close(self) -> None:
        """Close it; harmless when repeated."""
        self.socket.close()

    def alive(self) -> bool:
        """Whether an idle connection is still good: a server that hung up, or that speaks unasked, is not."""
        if self.socket.fileno() < 0:
            return False
        if self._poller is not None:
            return not self._poller.poll(0)
        return not select.select([self.socket], [], [], 0)[0]  # Windows


KeptT = TypeVar("KeptT", bound=Kept)


class Pool(Generic[KeptT]):
    """Idle connections by place; the one used last is used next, so that the surplus grows old and goes."""

    def __init__(self, per_place: int, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_place = per_place
        self._idle = idle
        self._clock = clock
        self._kept: dict[Place, deque[tuple[float, KeptT]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def take(self, place: Place) -> KeptT | None:
        """A good idle connection to this place, if there is one."""
        while True:
            with self._lock:
                kept = self._kept.get(place)
                if not kept:
                    return None
                since, connection = kept.pop()
            if self._clock() - since < self._idle and connection.alive():
                return connection
            connection.close()

    def give(self, connection: KeptT) -> None:
        """Keep a connection for the next call; the oldest goes when there are too many."""
        now = self._clock()
        gone = []
        with self._lock:
            if self._closed:
                gone.append(connection)
            else:
                kept = self._kept.setdefault(connection.link.place, deque())
                kept.append((now, connection))
                while kept and (len(kept) > self._per_place or now - kept[0][0] >= self._idle):
                    gone.append(kept.popleft()[1])
        for old in gone:
            old.close()

    def empty(self) -> list[KeptT]:
        """Give away all that are kept."""
        with self._lock:
            kept, self._kept = self._kept, {}
        return [connection for queue in kept.values() for _, connection in queue]

    def close(self) -> None:
        """Close all idle connections, and those given back from now on."""
        self._closed = True
        for connection in self.empty():
            with contextlib.suppress(OSError):
                connection.close()

    def __del__(self) -> None:
        # A provider that nobody closed is no leak worth a warning: its idle sockets go with it.
        self.close()

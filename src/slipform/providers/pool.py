"""Connections kept open between calls: those of one event loop, or those that all threads share."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from slipform.providers.link import Link, Place


class Kept(Protocol):
    """What a pool keeps."""

    @property
    def link(self) -> Link:
        """What is spoken over it."""
        ...

    def alive(self) -> bool:
        """Whether it is still good after a rest."""
        ...

    def close(self) -> None:
        """Close it; harmless when repeated."""
        ...


@dataclass(frozen=True, slots=True)
class Connection:
    """An open socket, which never blocks, and what is spoken over it."""

    socket: socket.socket
    link: Link

    def close(self) -> None:
        """Close it; harmless when repeated."""
        self.socket.close()

    def alive(self) -> bool:
        """Whether an idle connection is still good: a server that hung up, or that speaks unasked, is not."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False


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

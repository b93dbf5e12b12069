"""Cache values within a bound on bytes as well as on entries: `BoundedCache`, the only cache of this package.

Callers choose schemas, names and patterns, and each may be megabytes long: a cache that only counts its entries could
be made to fill the memory. Each value comes with an estimate of the bytes it keeps alive; an estimate that is too high
costs a cache miss, one that is too low costs the process.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CACHES: weakref.WeakSet[BoundedCache[Any, Any]] = weakref.WeakSet()


class BoundedCache(Generic[K, V]):
    """At most `entries` values that keep at most `max_bytes` alive; the oldest go first.

    >>> cache = BoundedCache[str, str]("example", entries=10, max_bytes=100)
    >>> cache.put("a", "first", size=60)
    >>> cache.put("b", "second", size=60)
    >>> cache.get("a"), cache.get("b"), cache.held_bytes
    (None, 'second', 60)
    """

    __slots__ = ("__weakref__", "_entries", "_lock", "_sizes", "_total_bytes", "_values", "get", "max_bytes", "name")

    def __init__(self, name: str, *, entries: int, max_bytes: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self._entries = entries
        self._values: dict[K, V] = {}
        self._sizes: dict[K, int] = {}
        self._total_bytes = 0
        self._lock = threading.Lock()
        self.get: Callable[[K], V | None] = self._values.get
        """Return the value, or None: the dict's own method, since most calls look up several; see `use`."""
        _CACHES.add(self)

    @property
    def held_bytes(self) -> int:
        """Bytes that all values keep alive, by the estimates."""
        return self._total_bytes

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def use(self, key: K) -> V | None:
        """Return the value, or None, and mark it as the newest."""
        with self._lock:
            if key not in self._values:
                return None
            self._sizes[key] = self._sizes.pop(key)
            return self._values[key]

    def put(self, key: K, value: V, size: int) -> None:
        """Add a value that keeps about `size` bytes alive, key included; one over the whole limit is not cached."""
        with self._lock:
            self._drop(key)
            if size > self.max_bytes:
                return
            self._values[key] = value
            self._sizes[key] = size
            self._total_bytes += size
            while len(self._values) > self._entries or self._total_bytes > self.max_bytes:
                self._drop(next(iter(self._sizes)))

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()
            self._sizes.clear()
            self._total_bytes = 0

    def _drop(self, key: K) -> None:
        if key in self._values:
            del self._values[key]
            self._total_bytes -= self._sizes.pop(key)


def live_caches() -> list[BoundedCache[Any, Any]]:
    """Return every cache of this process."""
    return sorted(_CACHES, key=lambda cache: cache.name)

"""Wait for something that another thread, task or process brings about: no longer than it takes, and not for ever.

A test waits for what it asserts, never for a time to pass; where something must *not* happen, it waits for what comes
after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

DEADLINE = 20.0
"""Seconds, for a busy machine; a condition that holds is noticed within `_LOOK`."""
_LOOK = 0.005


def until(condition: Callable[[], object], seconds: float = DEADLINE) -> bool:
    """Whether the condition comes to hold in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK)
    return True


async def until_async(condition: Callable[[], object], seconds: float = DEADLINE) -> bool:
    """The same; the event loop goes on meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_LOOK)
    return True


async def turns(number: int = 10) -> None:
    """Let everything that is ready on this event loop run, as often as a chain of so many callbacks needs."""
    for _ in range(number):
        await asyncio.sleep(0)


__all__ = ["DEADLINE", "turns", "until", "until_async"]

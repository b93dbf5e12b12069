"""Wait for something that another thread, task or process brings about: no longer than it takes, and not for ever.

A test waits for what it asserts, never for a time to pass. Where something must *not* happen, it waits for what comes
after it, or until nothing moves any more (`steady`). `test_waiting.py` keeps other waits out of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")
DEADLINE = 20.0
"""Seconds, for a busy machine; what comes sooner is noticed within `_LOOK`."""
_LOOK = 0.005
_STEADY = 0.2


def until(
    condition: Callable[[], object], seconds: float = DEADLINE, ignoring: tuple[type[Exception], ...] = ()
) -> bool:
    """Whether the condition comes to hold in time; an error of those kinds says that it does not hold yet."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(*ignoring):
            if condition():
                return True
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK)


async def until_async(condition: Callable[[], object], seconds: float = DEADLINE) -> bool:
    """The same, while the event loop goes on; the condition may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return True
        if time.monotonic() > end:
            return False
        await asyncio.sleep(_LOOK)


def steady(read: Callable[[], T]) -> T:
    """What this reads once it has stayed the same for a while: whoever changed it has stopped, or has to wait."""
    last = read()
    while True:
        time.sleep(_STEADY)
        if (now := read()) == last:
            return now
        last = now


async def steady_async(read: Callable[[], T]) -> T:
    """The same, while the event loop goes on."""
    last = read()
    while True:
        await asyncio.sleep(_STEADY)
        if (now := read()) == last:
            return now
        last = now


async def turns(number: int = 20) -> None:
    """Let everything that is ready on this event loop run, as often as a chain of so many callbacks needs."""
    for _ in range(number):
        await asyncio.sleep(0)


async def for_ever() -> NoReturn:
    """Never go on, as a server that hangs; only cancelling ends it."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


__all__ = ["DEADLINE", "for_ever", "steady", "steady_async", "turns", "until", "until_async"]

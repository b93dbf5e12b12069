"""One timer for many limits: it rings for the soonest, and only for those who are still there."""

from __future__ import annotations

import asyncio

from slipform.providers.watch import Watch


class Guest:
    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float | None) -> None:
        self._loop = loop
        self._ends = None if seconds is None else loop.time() + seconds
        self.was_late = False

    def time_left(self) -> float | None:
        if self._ends is None or self.was_late:
            return None
        left = self._ends - self._loop.time()
        if left <= 0:
            raise TimeoutError
        return left

    def late(self) -> None:
        self.was_late = True


async def test_it_rings_for_each_in_its_time_whatever_the_order_they_came_in() -> None:
    loop = asyncio.get_running_loop()
    watch = Watch(loop)
    guests = [Guest(loop, seconds) for seconds in (30, 0.05, 0.15, None)]
    for guest, seconds in zip(guests, (30, 0.05, 0.15, None), strict=True):
        watch.enter(guest)
        watch.within(seconds)
    await asyncio.sleep(0.1)
    assert [guest.was_late for guest in guests] == [False, True, False, False]
    await asyncio.sleep(0.12)
    assert [guest.was_late for guest in guests] == [False, True, True, False]
    for guest in guests:
        watch.leave(guest)


async def test_who_left_is_not_late() -> None:
    loop = asyncio.get_running_loop()
    watch, guest = Watch(loop), Guest(loop, 0.02)
    watch.enter(guest)
    watch.within(0.02)
    watch.leave(guest)
    watch.leave(guest)
    await asyncio.sleep(0.05)
    assert not guest.was_late

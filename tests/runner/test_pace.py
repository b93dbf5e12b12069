"""How many calls go out at a time."""

from __future__ import annotations

import asyncio

from slipform.addons.batch.scheduler import AdaptiveConcurrency


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_a_burst_of_refusals_halves_once() -> None:
    clock = Clock()
    pace = AdaptiveConcurrency(32, clock=clock, random_fraction=lambda: 1.0)
    began = clock()
    clock.time += 1
    for _ in range(10):
        pace.refused(began, 0.0)
    assert pace.limit == 16
    pace.refused(clock(), 0.0)
    assert pace.limit == 8


def test_it_never_falls_below_one_and_rises_by_one_a_round() -> None:
    clock = Clock()
    pace = AdaptiveConcurrency(4, clock=clock, random_fraction=lambda: 1.0)
    for _ in range(5):
        clock.time += 1
        pace.refused(clock(), 0.0)
    assert pace.limit == 1
    pace.succeeded()
    assert pace.limit == 2
    for _ in range(2):
        pace.succeeded()
    assert 2.8 < pace.limit < 3
    for _ in range(100):
        pace.succeeded()
    assert pace.limit == 4


async def test_the_door_stays_shut_as_long_as_the_vendor_asks() -> None:
    pace = AdaptiveConcurrency(2)
    pace.refused(pace.now(), 0.05)
    began = pace.now()
    await pace.acquire()
    assert pace.now() - began >= 0.049


async def test_no_more_calls_go_in_than_the_limit_says_and_each_that_waits_gets_in() -> None:
    pace = AdaptiveConcurrency(3)
    inside = most = entered = 0

    async def call() -> None:
        nonlocal inside, most, entered
        await pace.acquire()
        inside, entered = inside + 1, entered + 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        pace.release()

    async with asyncio.timeout(10):
        await asyncio.gather(*(call() for _ in range(50)))
    assert (most, entered) == (3, 50)


async def test_a_waiter_that_is_cancelled_does_not_take_anothers_turn() -> None:
    pace = AdaptiveConcurrency(1)
    await pace.acquire()
    first, second = (asyncio.create_task(pace.acquire()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    pace.release()
    async with asyncio.timeout(10):
        await second

"""Starting what nobody can wait for yet."""

from __future__ import annotations

import asyncio

import pytest

from slipform.proxy.http_server.begun import begun


async def test_what_has_to_wait_is_finished_by_whoever_waits_for_the_rest() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    seen = []

    async def work() -> None:
        seen.append(await gate)
        await asyncio.sleep(0)
        seen.append("end")

    rest = begun(work())
    assert rest is not None
    gate.set_result("through")
    await rest
    assert seen == ["through", "end"]


async def test_what_is_done_at_once_leaves_nothing() -> None:
    seen = []

    async def work() -> None:
        seen.append(1)

    assert begun(work()) is None
    assert seen == [1]


async def test_an_error_comes_out_where_it_happens() -> None:
    async def at_once() -> None:
        raise ValueError("now")

    with pytest.raises(ValueError, match="now"):
        begun(at_once())

    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def later() -> None:
        await gate

    rest = begun(later())
    assert rest is not None
    gate.set_exception(OSError("broken"))
    with pytest.raises(OSError, match="broken"):
        await rest


async def test_whoever_waits_can_be_cancelled_and_the_work_is_told() -> None:
    told = []
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        try:
            await gate
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    rest = begun(work())
    assert rest is not None

    async def wait() -> None:
        await rest

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cancelled"]

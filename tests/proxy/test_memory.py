"""Memory that is free is given back to the system, and what is refused leaves nothing behind."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import platform
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from slipform.addons.server import App
from slipform.addons.server import serve as memory
from slipform.config import Settings
from slipform.library.async_client import AsyncClient
from slipform.providers.router import Router
from slipform.testing import Answer, FakeVendor, server_error
from tests.proxy.asgi import post
from tests.proxy.proxying import FORMAT
from tests.proxy.wire import provider_of
from tests.waiting import until_async

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@GLIBC
async def test_what_was_freed_goes_back_to_the_system() -> None:
    """Issue 8: no leak of memory; holes between small blocks would be kept for ever."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    blocks = [libc.malloc(20_000) for _ in range(4_000)]
    for block in blocks:
        ctypes.memset(block, 1, 20_000)
    for block in blocks[:-1]:  # the last one holds the rest in place
        libc.free(ctypes.c_void_p(block))
    held = resident()
    task = asyncio.create_task(memory.trim_memory(0.01))
    assert await until_async(lambda: resident() < held - 50_000_000)
    task.cancel()
    libc.free(ctypes.c_void_p(blocks[-1]))


async def test_a_c_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert memory.trimmer() is None
    await memory.trim_memory(0.01)


_ASKED: dict[str, Any] = {"model": "up/m", "messages": [{"role": "user", "content": "hi"}]}
_REFUSED: dict[str, tuple[int, Any]] = {
    "a long name": (400, {**_ASKED, "model": "up/" + "n" * 1000}),
    "an unknown model": (404, {**_ASKED, "model": "nowhere/x"}),
    "a wrong field": (400, {**_ASKED, "messages": 7, "response_format": FORMAT}),
    "a schema that is none": (
        400,
        {**_ASKED, "response_format": {"type": "json_schema", "json_schema": {"schema": 7}}},
    ),
    "an invalid answer": (422, {**_ASKED, "response_format": FORMAT}),
    "an invalid answer, streamed": (422, {**_ASKED, "response_format": FORMAT, "stream": True}),
    "a vendor's error": (502, {**_ASKED, "model": "down/m", "response_format": FORMAT}),
    "a vendor's error, passed on": (503, {**_ASKED, "model": "down/m"}),
}


@pytest.mark.parametrize(("status", "body"), _REFUSED.values(), ids=list(_REFUSED))
async def test_nothing_of_a_refused_request_waits_for_the_garbage_collector(status: int, body: Any) -> None:
    # It seldom comes: 500 requests of 1 MB each, held by the frames in an error's traceback, were 500 MB.
    with FakeVendor(lambda _: Answer("no JSON")) as up, FakeVendor(lambda _: server_error(503)) as down:
        providers = {"up": provider_of(up), "down": provider_of(down)}
        app = App(AsyncClient(router=Router(providers, default="up/m")), Settings())
        for _ in range(2):  # the first one loads modules
            assert (await post(app, "/v1/chat/completions", body)).status == status
        gc.collect()
        gc.disable()
        try:
            assert (await post(app, "/v1/chat/completions", body)).status == status
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            frames = [each.f_code for each in gc.garbage if isinstance(each, FrameType)]
            assert [code.co_qualname for code in frames if "slipform" in code.co_filename] == []
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

"""Memory that is free is given back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import platform
from pathlib import Path

import pytest

from slipform.proxy import serve as memory

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
    for _ in range(200):
        await asyncio.sleep(0.02)
        if resident() < held - 50_000_000:
            break
    task.cancel()
    libc.free(ctypes.c_void_p(blocks[-1]))
    assert resident() < held - 50_000_000


async def test_a_c_library_without_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert memory.trimmer() is None
    await memory.trim_memory(0.01)

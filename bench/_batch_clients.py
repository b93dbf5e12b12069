"""Measure HTTP clients alone, with the bodies of a batch: nothing is encoded, decoded, validated or written."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from slipform.addons.batch.scheduler import run_loop
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest

Call: TypeAlias = Callable[[HttpRequest], Awaitable[object]]
Opened: TypeAlias = tuple[Call, Callable[[], Awaitable[None]]]

OURS = "slipform's own"


def clients() -> dict[str, tuple[Callable[[], Opened], int]]:
    """The clients that are installed: how each is opened, and how much dearer it is, to keep the run short."""
    found: dict[str, tuple[Callable[[], Opened], int]] = {OURS: (_own, 1)}
    if importlib.util.find_spec("pyreqwest"):
        found["pyreqwest"] = (_pyreqwest, 1)
    for module in ("httpx", "httpx2"):
        if importlib.util.find_spec(module):
            found[module] = (lambda name=module: _httpx(name), 8)  # type: ignore[misc]
    return found


def alone(open_client: Callable[[], Opened], requests: Sequence[HttpRequest], concurrency: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU, that a client needs for each of these requests."""

    async def run() -> tuple[float, float]:
        call, close = open_client()
        waiting = iter(requests)

        async def work() -> None:
            for request in waiting:
                await call(request)

        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        taken = time.perf_counter() - wall, time.process_time() - cpu
        await close()
        return taken

    wall, cpu = run_loop(run)
    return wall / len(requests), cpu / len(requests)


def _own() -> Opened:
    transport = HttpTransport()

    async def call(request: HttpRequest) -> None:
        stream = await transport.open_async(request)
        while await stream.read():
            pass

    async def close() -> None:
        transport.close()

    return call, close


def _pyreqwest() -> Opened:
    from pyreqwest.client import ClientBuilder

    client = ClientBuilder().build()

    async def call(request: HttpRequest) -> bytes:
        response = await client.post(request.url).headers(dict(request.headers)).body_bytes(request.body).build().send()
        return bytes(await response.bytes())

    return call, client.close


def _httpx(module: str) -> Opened:
    library = importlib.import_module(module)
    client: Any = library.AsyncClient()

    async def call(request: HttpRequest) -> bytes:
        response = await client.post(request.url, headers=dict(request.headers), content=request.body)
        body: bytes = response.content
        return body

    return call, client.aclose

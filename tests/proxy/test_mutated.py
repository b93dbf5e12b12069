"""Requests with a few bytes changed: whatever they have become, they are answered or refused, and nothing breaks."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from typing import Any

import pytest

from slipform.addons.server.http_server.connection import ServerConnection
from slipform.addons.server.http_server.state import ServerState
from tests.conftest import examples
from tests.fuzz.fuzz_wire import WireFuzzer
from tests.proxy.bytes_changed import changed
from tests.proxy.talking import MemoryTransport

INPUTS = 1500
GOOD = [
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi",
    b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nx-t: y\r\n\r\n",
    b"GET /a?b=c HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi",
    b"PUT /a HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nhi",
    b"HEAD http://x/a%20b HTTP/1.1\r\nhost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 1.2.3.4\r\n\r\n",
    b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
]


def _mutated(chance: random.Random) -> list[bytes]:
    """Some requests one after the other, changed in a few places, in one piece or in several."""
    data = changed(b"".join(chance.choices(GOOD, k=chance.randint(1, 3))), chance)
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice([0, 0, 1, 5])))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


async def _lenient(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path once the body is whole, if it ever is."""
    more = True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        more = message["more_body"]
    body = scope["path"].encode("utf-8", "surrogateescape")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def _answers(door: ServerState, pieces: list[bytes]) -> list[int]:
    """The statuses of all that is answered to this on a connection of its own."""
    connection, transport = ServerConnection(door), MemoryTransport()
    connection.connection_made(transport)
    for piece in pieces:
        if not transport.closed:
            connection.data_received(piece)
            await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    transport.closed = True
    connection.connection_lost(None)
    while door.running:  # noqa: ASYNC110 — many end it
        await asyncio.sleep(0)
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", transport.written)]


@pytest.mark.parametrize("seed", range(5))
async def test_changed_requests_are_answered_or_refused_and_nothing_breaks(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance, door = random.Random(seed), ServerState(_lenient)
    caplog.set_level(logging.WARNING)
    seen: set[int] = set()
    for _ in range(INPUTS // 5):
        pieces = _mutated(chance)
        statuses = await _answers(door, pieces)
        seen.update(statuses)
        assert not [each for each in statuses if each >= 500 and each != 505], pieces  # 505: another version
        assert not caplog.records, pieces
    assert {200, 400} <= seen
    assert not door.connections
    door.close()


def test_changed_requests_for_every_row_make_no_fault_of_the_servers() -> None:
    with WireFuzzer() as fuzzer:
        problems = [problem for number in range(examples(400)) if (problem := fuzzer.run("make test", number))]
        statuses = {status for status in fuzzer.statuses if status.isdigit()}
    assert problems == []
    assert {"200", "400", "404"} <= statuses

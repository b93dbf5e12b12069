"""What leaves for the client is noted, whichever way it takes."""

from __future__ import annotations

from typing import Any

import pytest

from slipform.addons.server.http_server.asgi import RecordingSend, send_whole
from slipform.addons.server.observability.call_record import CallRecord

HEADERS = [(b"content-length", b"2")]
MARK = (b"x-mark", b"1")


class Exchanged:
    """Our server's end, which takes what it is given while it is not full."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.taken: list[Any] = []

    def push(self, data: bytes) -> bool:
        if not self.full:
            self.taken.append(data)
        return not self.full

    def answer(self, status: int, headers: Any, body: bytes, _lines: bytes = b"") -> bool:
        if not self.full:
            self.taken.append((status, list(headers), body))
        return not self.full


def outgoing(exchange: Any) -> tuple[RecordingSend, CallRecord, list[Any]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    record = CallRecord("r")
    out = RecordingSend(send, record, cycle=exchange, captured=bytearray())
    out.extra = [MARK]
    return out, record, sent


@pytest.mark.parametrize("exchange", [None, Exchanged(full=True), Exchanged()], ids=["another's", "full", "ours"])
async def test_a_whole_answer_is_noted_and_marked_on_both_ways(exchange: Exchanged | None) -> None:
    out, record, sent = outgoing(exchange)
    await send_whole(out, 201, HEADERS, b"ok")
    if exchange is not None and not exchange.full:
        assert exchange.taken == [(201, [*HEADERS, MARK], b"ok")]
        assert sent == []
    else:
        assert [each["type"] for each in sent] == ["http.response.start", "http.response.body"]
        assert (sent[0]["headers"], sent[1]["body"]) == ([*HEADERS, MARK], b"ok")
    assert (out.head_sent, out.complete, bytes(out.captured or b"")) == (True, True, b"ok")
    assert record.status == 201
    assert record.first_byte is not None
    assert record.ended is not None


@pytest.mark.parametrize("exchange", [None, Exchanged(full=True), Exchanged()], ids=["another's", "full", "ours"])
def test_a_pushed_piece_is_noted_only_when_it_left(exchange: Exchanged | None) -> None:
    out, record, _ = outgoing(exchange)
    left = out.push(b"piece")
    assert left is (exchange is not None and not exchange.full)
    assert (record.first_byte is not None, bytes(out.captured or b"")) == (left, b"piece" if left else b"")
    assert not out.complete

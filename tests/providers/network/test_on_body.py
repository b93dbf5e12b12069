"""Handing on what arrives: as it comes, in order, to the end, within the time limits, no further than it is wanted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from slipform.ir import CompletionChunk
from slipform.ir.response import PassThroughSink
from slipform.providers.base import push_each
from slipform.providers.concurrency import ThrottledTransport
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.transport import HttpRequest, Timeouts, TransportFault
from tests.providers.network.conftest import Certificate
from tests.waiting import for_ever

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def answering(
    script: Callable[[asyncio.StreamWriter], Any], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server that answers a request with whatever the script writes: its address, and a list of its connections."""
    asked: list[tuple[Any, asyncio.StreamWriter]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((asyncio.current_task(), writer))
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                await reader.readuntil(b"\r\n\r\n{}")
                writer.write(HEAD)
                await script(writer)
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://localhost:{port}/", asked
    finally:
        server.close()
        for task, writer in asked:
            task.cancel()
            writer.close()
        await asyncio.gather(
            *(task for task, _ in asked), *(writer.wait_closed() for _, writer in asked), return_exceptions=True
        )


async def pieces(writer: asyncio.StreamWriter) -> None:
    for at in range(20):
        writer.write(framed(b"%d" % at))
        await writer.drain()
        await asyncio.sleep(0.001)  # so that the pieces arrive one by one
    writer.write(END)


def request(url: str, timeouts: Timeouts | None = None) -> HttpRequest:
    return HttpRequest(url, {}, b"{}", timeouts or Timeouts(total=10))


def transport(tls: ssl.SSLContext | None = None) -> HttpTransport:
    return HttpTransport(tls=tls, proxy="none")


async def collect(stream: Any) -> list[bytes]:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return bool(data)

    await stream.on_body(take)
    return taken


async def test_every_piece_is_handed_on_and_the_end_too_and_the_connection_is_kept() -> None:
    async with answering(pieces) as (url, connections):
        sockets = transport()
        for _ in range(2):
            taken = await collect(await sockets.open_async(request(url)))
            assert b"".join(taken) == b"".join(b"%d" % at for at in range(20))
            assert len(taken) > 5
            assert taken[-1] == b""
            assert all(taken[:-1])
        assert len(connections) == 1
        sockets.close()


async def test_tls_is_handed_on_deciphered(certificate: Certificate) -> None:
    async with answering(pieces, certificate.server()) as (url, _):
        sockets = transport(certificate.client())
        taken = await collect(await sockets.open_async(request(url)))
        assert b"".join(taken) == b"".join(b"%d" % at for at in range(20))
        assert taken[-1] == b""
        sockets.close()


async def test_a_transport_with_slots_hands_on_the_same() -> None:
    async with answering(pieces) as (url, _):
        sockets = transport()
        plain = await collect(await sockets.open_async(request(url)))
        held = await ThrottledTransport(sockets, 1).open_async(request(url))
        assert b"".join(plain) == b"".join(await collect(held))
        await held.close()
        sockets.close()


async def test_who_wants_no_more_gets_no_more_until_it_asks_again() -> None:
    async with answering(pieces) as (url, _):
        sockets = transport()
        stream = await sockets.open_async(request(url))
        taken: list[bytes] = []

        def some(data: bytes) -> bool:
            taken.append(data)
            return False

        while not taken or taken[-1]:
            before = len(taken)
            await stream.on_body(some)
            assert len(taken) == before + 1
            await asyncio.sleep(0.002)  # in which the next piece arrives
            assert len(taken) == before + 1
        assert b"".join(taken) == b"".join(b"%d" % at for at in range(20))
        await stream.on_body(some)
        assert taken[-2:] == [b"", b""], "after the end there is the end"
        sockets.close()


async def test_what_arrives_right_after_a_piece_that_was_enough_is_kept_for_the_next_time() -> None:
    """uvloop hands on several receptions before any task has its turn."""

    async def hang(writer: asyncio.StreamWriter) -> None:
        await for_ever()

    async with answering(hang) as (url, _):
        sockets = transport()
        stream = await sockets.open_async(request(url))
        taken: list[bytes] = []

        def one(data: bytes) -> bool:
            taken.append(data)
            return False

        waiting = asyncio.create_task(stream.on_body(one))
        await asyncio.sleep(0)
        for piece in (framed(b"a"), framed(b"b"), framed(b"c") + END):
            stream._connection.get_buffer(-1)[: len(piece)] = piece
            stream._connection.buffer_updated(len(piece))
        await waiting
        assert taken == [b"a"]
        await stream.on_body(one)
        await stream.on_body(one)
        assert taken == [b"a", b"bc", b""]
        sockets.close()


async def test_nothing_is_pushed_between_a_failure_and_the_task_that_it_is_raised_in() -> None:
    """A reader that had gone on to the end would be told of the failure too late to translate it."""

    async def hang(writer: asyncio.StreamWriter) -> None:
        await for_ever()

    async with answering(hang) as (url, _):
        sockets = transport()
        stream = await sockets.open_async(request(url))
        pushed: list[bytes] = []

        def take(data: bytes) -> bool:
            pushed.append(data)
            return True

        waiting = asyncio.create_task(stream.on_body(take))
        await asyncio.sleep(0)
        stream.fail(TimeoutError())
        piece = framed(b"late") + END
        stream._connection.get_buffer(-1)[: len(piece)] = piece
        stream._connection.buffer_updated(len(piece))
        with pytest.raises(TransportFault):
            await waiting
        assert pushed == []
        sockets.close()


async def test_what_goes_wrong_with_a_piece_is_raised_where_it_is_waited_for_and_ends_the_connection() -> None:
    async with answering(pieces) as (url, connections):
        sockets = transport()
        stream = await sockets.open_async(request(url))

        def refuse(data: bytes) -> bool:
            if b"7" in data:
                raise LookupError("seven")
            return True

        with pytest.raises(LookupError, match="seven"):
            await stream.on_body(refuse)
        assert await stream.read() == b""
        await collect(await sockets.open_async(request(url)))
        assert len(connections) == 2
        sockets.close()


async def test_a_silence_longer_than_allowed_is_told_after_the_last_piece_not_the_first() -> None:
    async def then_silence(writer: asyncio.StreamWriter) -> None:
        for _ in range(12):
            writer.write(framed(b"x"))
            await writer.drain()
            await asyncio.sleep(0.05)  # shorter than the limit, and together longer
        await for_ever()

    async with answering(then_silence) as (url, _):
        sockets = transport()
        stream = await sockets.open_async(request(url, Timeouts(between_chunks=0.35, total=20)))
        taken = bytearray()

        def take(data: bytes) -> bool:
            taken.extend(data)
            return True

        with pytest.raises(TransportFault) as caught:
            await stream.on_body(take)
        assert (caught.value.limit, caught.value.phase) == ("between_chunks", "body")
        assert taken == b"x" * 12


async def test_the_total_time_counts_however_much_arrives() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(framed(b"x"))
            await writer.drain()
            await asyncio.sleep(0.01)  # what arrives must not put the limit off

    async with answering(endless) as (url, _):
        stream = await transport().open_async(request(url, Timeouts(between_chunks=5, total=0.3)))
        with pytest.raises(TransportFault) as caught:
            await stream.on_body(bool)
        assert caught.value.limit == "total"


async def test_a_body_that_is_cut_off_is_told_after_what_came() -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(framed(b"abc") + b"5\r\nxy")
        await writer.drain()
        writer.close()

    async with answering(cut) as (url, _):
        taken = bytearray()

        def take(data: bytes) -> bool:
            taken.extend(data)
            return bool(data)

        stream = await transport().open_async(request(url))
        with pytest.raises(TransportFault) as caught:
            await stream.on_body(take)
        assert caught.value.phase == "body"
        assert taken == b"abcxy"


async def test_cancelling_closes_the_connection() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        writer.write(framed(b"x"))
        await writer.drain()
        await for_ever()

    async with answering(hang) as (url, connections):
        sockets = transport()
        stream = await sockets.open_async(request(url))
        began = asyncio.Event()

        def take(_: bytes) -> bool:
            began.set()
            return True

        waiting = asyncio.create_task(stream.on_body(take))
        await began.wait()
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await stream.read() == b""
        again = await sockets.open_async(request(url))
        assert len(connections) == 2
        await again.close()


async def test_chunks_that_arrive_one_by_one_are_pushed_so_and_their_source_is_closed() -> None:
    closed = []

    async def chunks() -> AsyncIterator[CompletionChunk]:
        try:
            for text in ("a", "", "b"):
                yield CompletionChunk(text)
        finally:
            closed.append(True)

    class Taking(PassThroughSink):
        def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
            return chunks if chunks[0].text else None

    left = [[chunk.text for chunk in batch] async for batch in push_each(chunks(), Taking())]
    assert (left, closed) == ([["a"], ["b"]], [True])

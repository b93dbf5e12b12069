"""Compressed answers: every encoding, in any pieces; damage, bombs, and no step that takes long."""

from __future__ import annotations

import asyncio
import functools
import gzip
import random
import socket
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import pytest
from backports import zstd

from slipform.providers.network import content_encoding
from slipform.providers.network.client import HttpTransport
from slipform.providers.network.content_encoding import decoder_for
from slipform.providers.network.transport import HttpRequest, ProtocolError, TransportFault
from tests.providers.network.servers import Server, Side, once, post, read_request

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}
VARIED = random.Random(1).randbytes(300_000) + b"and now the same again and again " * 40_000


def decoded(name: str, pieces: list[bytes]) -> bytes:
    decoder = decoder_for(name)
    body = b""
    for piece in pieces:
        decoder.feed(piece)
        while (data := decoder.decode()) is not None:
            assert len(data) <= 2 * content_encoding._OUTPUT
            body += data
    decoder.finish()
    return body


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [1, 777, 1 << 22])
@pytest.mark.parametrize("text", [b"", b"hello", VARIED], ids=["empty", "short", "long"])
def test_every_encoding_reads_alike_however_it_is_split(name: str, size: int, text: bytes) -> None:
    if size == 1 and text is VARIED:
        size = 13  # byte by byte takes too long
    packed = ENCODERS[name](text)
    assert decoded(name, [packed[at : at + size] for at in range(0, len(packed), size)]) == text


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_several_streams_in_a_row_are_one_body(name: str) -> None:
    packed = ENCODERS[name](b"hello ") + ENCODERS[name](b"world")
    assert decoded(name, [packed]) == b"hello world"
    assert decoded(name, [packed[:9], packed[9:]]) == b"hello world"


@pytest.mark.parametrize(
    "empty",
    [("gzip", gzip.compress(b"")), ("zstd", zstd.compress(b"")), ("zstd", b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip")],
    ids=["gzip", "zstd", "skippable"],
)
def test_a_flood_of_empty_streams_is_refused(empty: tuple[str, bytes]) -> None:
    name, stream = empty
    assert decoded(name, [stream * 1000 + ENCODERS[name](b"hello")]) == b"hello"
    with pytest.raises(ProtocolError, match="more than 4096 streams"):
        decoded(name, [stream * 5000])


@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_cut_short_or_damaged_or_followed_by_something_is_refused(name: str) -> None:
    packed = ENCODERS[name](VARIED)
    for broken in (
        packed[:-1],
        packed[: len(packed) // 2],
        packed[:200_000] + b"\0" * 50,
        packed + b"more",
        b"junk" * 9,
    ):
        with pytest.raises(ProtocolError) as caught:
            decoded(name, [broken])
        assert caught.value.reason == "malformed"


def test_an_encoding_that_was_not_offered_is_refused() -> None:
    with pytest.raises(ProtocolError, match="'compress', which was not requested"):
        decoder_for("compress")


def packed_answer(name: str, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-encoding: %b\r\ncontent-length: %d\r\n\r\n%b" % (name.encode(), len(body), body)


@pytest.mark.parametrize("name", ENCODERS)
def test_a_compressed_answer_arrives_as_it_was(side: Side, name: str) -> None:
    with Server(once(packed_answer(name, ENCODERS[name](VARIED)))) as server:
        transport = HttpTransport(proxy="none")
        assert side.send(transport, post(server.url)) == [(200, VARIED)]
        transport.close()


@functools.cache
def bomb(name: str, size: int) -> bytes:
    """So many zeros, packed without ever being held."""
    if name == "gzip":
        packer: Any = zlib.compressobj(9, wbits=31)
        add, end = packer.compress, packer.flush
    elif name == "br":
        packer = brotli.Compressor(quality=5)
        add, end = packer.process, packer.finish
    else:
        packer = zstd.ZstdCompressor()
        add, end = packer.compress, packer.flush
    zeros = bytes(1 << 20)
    parts = [add(zeros) for _ in range(size >> 20)]
    return b"".join((*parts, end()))


@pytest.mark.parametrize("name", ["gzip", "br", "zstd"])
def test_a_bomb_is_refused_while_memory_stays_flat(side: Side, name: str) -> None:
    packed = bomb(name, 128 << 20)
    with Server(once(packed_answer(name, packed))) as server:
        transport = HttpTransport(proxy="none")
        tracemalloc.start()
        try:
            with pytest.raises(TransportFault, match="unfolds more than 200 times") as caught:
                side.send(transport, post(server.url))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        transport.close()
    assert (caught.value.phase, caught.value.reason) == ("body", "too_large")
    assert peak < 24 << 20


def test_an_answer_that_unfolds_over_the_limit_of_size_is_refused(side: Side) -> None:
    with Server(once(packed_answer("gzip", gzip.compress(VARIED)))) as server:
        transport = HttpTransport(proxy="none", max_answer_bytes=1_000_000)
        with pytest.raises(TransportFault, match="larger than 1000000 bytes") as caught:
            side.send(transport, post(server.url))
        transport.close()
    assert caught.value.reason == "too_large"


@pytest.mark.parametrize("pushed", [False, True], ids=["read", "pushed"])
async def test_others_have_their_turn_between_the_slices_of_a_large_answer(pushed: bool) -> None:
    text = VARIED * 8
    turns = 0
    over = False

    async def count() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    def serve(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(packed_answer("gzip", gzip.compress(text)))

    with Server(serve) as server:
        transport = HttpTransport(proxy="none")
        stream = await transport.open_async(HttpRequest(server.url, {}, b"{}"))
        sizes: list[tuple[int, int]] = []
        counting = asyncio.create_task(count())

        def push(data: bytes) -> bool:
            sizes.append((len(data), turns))
            return bool(data)

        if pushed:
            await stream.on_body(push)
        else:
            while push(await stream.read()):
                pass
        over = True
        await counting
        transport.close()
    assert sum(size for size, _ in sizes) == len(text)
    assert max(size for size, _ in sizes) <= 1 << 18
    full = [turn for size, turn in sizes if size == 1 << 18]
    assert len(set(full)) == len(full), "a turn for others after each full slice"

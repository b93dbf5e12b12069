"""HTTP/1.1 answers, split anywhere."""

from __future__ import annotations

import gzip
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.providers.http1 import AnswerReader, ProtocolError, spell_request

FIXED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\ntrailer: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + FIXED
BARE = b"HTTP/1.0 200 fine\ncontent-length: 5\n\nhello"
OPEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello"
ZIPPED = gzip.compress(b"hello")
GZIP = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(ZIPPED), ZIPPED)


def read(pieces: list[bytes]) -> tuple[AnswerReader, bytes]:
    reader = AnswerReader()
    body = b""
    for piece in pieces:
        reader.feed(piece)
        while reader.has_head and (data := reader.take()):
            body += data
    return reader, body


@given(
    answer=st.sampled_from([FIXED, CHUNKED, INTERIM, BARE, GZIP]),
    cuts=st.lists(st.integers(1, 150), max_size=12),
)
@settings(max_examples=100, deadline=None)
def test_an_answer_reads_alike_however_it_is_split(answer: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in set(cuts) if cut < len(answer)), len(answer)]
    reader, body = read([answer[a:b] for a, b in itertools.pairwise(edges)])
    assert (reader.status, body) == (200, b"hello")
    assert reader.take() == b""
    assert reader.reusable


def test_byte_by_byte() -> None:
    for answer in (FIXED, CHUNKED, INTERIM, BARE, GZIP):
        assert read([bytes([byte]) for byte in answer])[1] == b"hello"


def test_headers_are_lower_case_and_repeated_ones_joined() -> None:
    assert read([FIXED])[0].headers == {"content-length": "5", "x-a": "1, 2"}


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader, body = read([OPEN])
    assert body == b"hello"
    assert reader.take() is None
    reader.feed(b"")
    assert reader.take() == b""
    assert not reader.reusable


@pytest.mark.parametrize(
    "answer",
    [FIXED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), FIXED + b"more", OPEN],
    ids=["told to close", "says too much", "no length"],
)
def test_when_a_connection_is_not_used_again(answer: bytes) -> None:
    assert not read([answer])[0].reusable


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "without an answer"),
        (FIXED[:20], "without an answer"),
        (FIXED[:-1], "in the middle"),
        (CHUNKED[:-20], "in the middle"),
    ],
)
def test_a_connection_that_ends_too_early(answer: bytes, message: str) -> None:
    reader = AnswerReader()
    if answer:
        reader.feed(answer)
    with pytest.raises(ProtocolError, match=message):
        reader.feed(b"")


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\x01\x02",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 60_000,
    ],
)
def test_what_is_no_answer(answer: bytes) -> None:
    with pytest.raises(ProtocolError):
        AnswerReader().feed(answer)


def test_broken_compression() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nnope")
    with pytest.raises(ProtocolError, match="compression"):
        reader.take()


def test_no_content() -> None:
    reader, body = read([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert (body, reader.take(), reader.reusable) == (b"", b"", True)


@pytest.mark.parametrize("headers", [{"a": "b\r\nx: y"}, {"a\nb": "c"}, {"a:b": "c"}])
def test_a_header_cannot_smuggle_a_line(headers: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        spell_request("POST", "/", "h", headers, b"")


@pytest.mark.parametrize("size", [b"1b", b"1B", b"001b", b"1b;x=y", b"1b "])
def test_the_size_of_a_chunk_has_many_spellings(size: bytes) -> None:
    said = b"twenty-seven bytes in all.."
    chunk = b"%b\r\n%b\r\n" % (size, said)
    reader, body = read([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", chunk, chunk + chunk, b"0\r\n\r\n"])
    assert (body, reader.reusable) == (said * 3, True)

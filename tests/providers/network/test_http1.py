"""HTTP/1.1 answers, split anywhere; and everything that is refused because it could be read in two ways."""

from __future__ import annotations

import gzip
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.providers.network.http1 import ResponseReader, encode_connect, encode_head
from slipform.providers.network.transport import HttpRequest, ProtocolError
from tests.conftest import examples

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = OK + b"transfer-encoding: chunked\r\n\r\n"
LENGTH = b"content-length: 5\r\n"
FIXED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\nx-a: 2\r\n\r\nhello"
CHUNKED = CHUNKS + b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\ntrailer: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + FIXED
OPEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nhello"
ZIPPED = gzip.compress(b"hello", mtime=0)  # the same in every process: it names tests
GZIP = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(ZIPPED), ZIPPED)

MALFORMED: dict[str, bytes] = {
    "not HTTP": b"SSH-2.0-OpenSSH\r\n",
    "binary": b"\x00\x01\x02",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "status 099": b"HTTP/1.1 099 Odd\r\n" + LENGTH + b"\r\nhello",
    "status 000": b"HTTP/1.1 000 Odd\r\n" + LENGTH + b"\r\nhello",
    "status 600": b"HTTP/1.1 600 Odd\r\n" + LENGTH + b"\r\nhello",
    "status of two digits": b"HTTP/1.1 20 OK\r\n" + LENGTH + b"\r\nhello",
    "another version": b"HTTP/2.0 200 OK\r\n" + LENGTH + b"\r\nhello",
    "chunks in HTTP/1.0": CHUNKS.replace(b"1.1", b"1.0") + b"5\r\nhello\r\n0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
    "lengths that differ": OK + LENGTH + b"content-length: 4\r\n\r\nhello",
    "the same length twice": OK + LENGTH + LENGTH + b"\r\nhello",
    "a list of lengths": OK + b"content-length: 5, 5\r\n\r\nhello",
    "length with a sign": OK + b"content-length: +5\r\n\r\nhello",
    "negative length": OK + b"content-length: -5\r\n\r\nhello",
    "length with an underscore": OK + b"content-length: 0_5\r\n\r\nhello",
    "length in hexadecimal": OK + b"content-length: 0x5\r\n\r\nhello",
    "length in words": OK + b"content-length: many\r\n\r\n",
    "empty length": OK + b"content-length: \r\n\r\n",
    "length over 64 bits": OK + b"content-length: 99999999999999999999999\r\n\r\n",
    "chunks with a length": OK + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n5\r\nhello\r\n0\r\n\r\n",
    "length with chunks": OK + LENGTH + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "coded chunks": OK + b"transfer-encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunked twice": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks that are not last": OK + b"transfer-encoding: chunked, identity\r\n\r\nhello",
    "unknown transfer encoding": OK + b"transfer-encoding: xchunked\r\n\r\nhello",
    "chunk size with 0x": CHUNKS + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a sign": CHUNKS + b"+5\r\nhello\r\n0\r\n\r\n",
    "negative chunk size": CHUNKS + b"-1\r\n",
    "chunk size with an underscore": CHUNKS + b"0_5\r\nhello\r\n0\r\n\r\n",
    "chunk size with a space": CHUNKS + b"5 \r\nhello\r\n0\r\n\r\n",
    "chunk size in words": CHUNKS + b"zz\r\n",
    "no chunk size": CHUNKS + b"\r\nhello\r\n0\r\n\r\n",
    "chunk size over 64 bits": CHUNKS + b"fffffffffffffffff\r\n",
    "chunk longer than its size": CHUNKS + b"2\r\nhello\r\n0\r\n\r\n",
    "bare LF after a chunk's size": CHUNKS + b"5\nhello\r\n0\r\n\r\n",
    "bare LF after a chunk": CHUNKS + b"5\r\nhello\n0\r\n\r\n",
    "bare LF in a chunk's extension": CHUNKS + b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "bare LF at the end": CHUNKS + b"5\r\nhello\r\n0\n\n",
    "bare LF after the status": b"HTTP/1.1 200 OK\n" + LENGTH + b"\r\nhello",
    "bare LF after a header": OK + b"content-length: 5\n\r\nhello",
    "bare LF after the head": OK + LENGTH + b"\nhello",
    "bare CR in a header": OK + b"a: 1\rcontent-length: 5\r\n\r\nhello",
    "NUL in a header": OK + b"a: b\0c\r\n" + LENGTH + b"\r\nhello",
    "control character in a header": OK + b"a: b\x01c\r\n" + LENGTH + b"\r\nhello",
    "NUL in a header's name": OK + b"a\0: b\r\n" + LENGTH + b"\r\nhello",
    "space before the colon": OK + b"content-length : 5\r\n\r\nhello",
    "header without a colon": OK + b"no colon here\r\n\r\n",
    "folded header": OK + b"a: b\r\n c\r\n" + LENGTH + b"\r\nhello",
    "unknown content encoding": OK + b"content-encoding: compress\r\n" + LENGTH + b"\r\nhello",
    "two content encodings": OK + b"content-encoding: gzip, br\r\n" + LENGTH + b"\r\nhello",
    "no gzip": OK + b"content-encoding: gzip\r\n" + LENGTH + b"\r\nhello",
    "gzip cut short": GZIP.replace(b"length: %d" % len(ZIPPED), b"length: %d" % (len(ZIPPED) - 4))[:-4],
    "gzip with more after it": GZIP.replace(b"length: %d" % len(ZIPPED), b"length: %d" % (len(ZIPPED) + 4)) + b"more",
    "17 interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 17 + FIXED,
}  # fmt: skip

TOO_LARGE: dict[str, bytes] = {
    "many headers": OK + b"a: b\r\n" * 300,
    "long headers": OK + b"a: %b\r\n" % (b"b" * 40_000) * 2,
    "a header without an end": OK + b"a: " + b"b" * 70_000,
    "many trailers": CHUNKS + b"0\r\n" + b"a: b\r\n" * 300,
    "a trailer without an end": CHUNKS + b"0\r\na: " + b"b" * 70_000,
    "a chunk's extension without an end": CHUNKS + b"5;a=" + b"b" * 70_000,
    "a length over the limit": OK + b"content-length: 67108865\r\n\r\n",
}


def read(pieces: list[bytes]) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    body = b""
    for piece in pieces:
        reader.feed(piece)
        while reader.has_head and (data := reader.take()):
            body += data
    return reader, body


def one_by_one(answer: bytes) -> list[bytes]:
    return [answer[at : at + 1] for at in range(len(answer))]


@given(
    answer=st.sampled_from([FIXED, CHUNKED, INTERIM, GZIP]),
    cuts=st.lists(st.integers(1, 150), max_size=12),
)
@settings(max_examples=examples(200), deadline=None)
def test_an_answer_reads_alike_however_it_is_split(answer: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in set(cuts) if cut < len(answer)), len(answer)]
    reader, body = read([answer[a:b] for a, b in itertools.pairwise(edges)])
    assert (reader.status, body) == (200, b"hello")
    assert reader.take() == b""
    assert reader.reusable


def test_byte_by_byte() -> None:
    for answer in (FIXED, CHUNKED, INTERIM, GZIP):
        assert read(one_by_one(answer))[1] == b"hello"


def test_one_reader_reads_all_answers_of_a_connection() -> None:
    reader = ResponseReader()
    for answer in (FIXED, CHUNKED, INTERIM, GZIP, FIXED) * 2:
        reader.begin()
        assert not reader.has_head
        reader.feed(answer)
        assert (reader.status, reader.take(), reader.take(), reader.reusable) == (200, b"hello", b"", True)


def test_headers_are_lower_case_and_repeated_ones_joined_and_trailers_are_none() -> None:
    assert read([FIXED])[0].headers == {"content-length": "5", "x-a": "1, 2"}
    assert read([CHUNKED])[0].headers == {"transfer-encoding": "chunked"}
    assert read([INTERIM])[0].headers == {"content-length": "5", "x-a": "1, 2"}


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader, body = read([OPEN])
    assert body == b"hello"
    assert reader.take() is None
    reader.feed_eof()
    assert reader.take() == b""
    assert not reader.reusable


@pytest.mark.parametrize(
    "answer",
    [
        FIXED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        FIXED.replace(b"1.1", b"1.0"),
        FIXED + b"more",
        FIXED + FIXED,
        OPEN,
    ],
    ids=["told to close", "HTTP/1.0", "says too much", "answers twice", "no length"],
)
def test_when_a_connection_is_not_used_again(answer: bytes) -> None:
    reader, body = read([answer])
    assert body == b"hello"
    assert not reader.reusable


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "without an answer"),
        (FIXED[:20], "without an answer"),
        (FIXED[:-1], "in the middle"),
        (CHUNKED[:-20], "in the middle"),
        (CHUNKED[:-2], "in the middle"),
        (GZIP[:-1], "in the middle"),
    ],
)
def test_a_connection_that_ends_too_early(answer: bytes, message: str) -> None:
    reader = ResponseReader()
    if answer:
        reader.feed(answer)
    with pytest.raises(ProtocolError, match=message) as caught:
        reader.feed_eof()
    assert caught.value.reason == "broken"


@pytest.mark.parametrize("split", [False, True], ids=["whole", "byte by byte"])
@pytest.mark.parametrize("answer", MALFORMED.values(), ids=MALFORMED)
def test_what_breaks_the_rules_is_refused(answer: bytes, split: bool) -> None:
    with pytest.raises(ProtocolError) as caught:
        read(one_by_one(answer) if split else [answer])
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize("answer", TOO_LARGE.values(), ids=TOO_LARGE)
def test_what_is_too_large_is_refused_before_it_is_held(answer: bytes) -> None:
    for pieces in ([answer], [answer[at : at + 1000] for at in range(0, len(answer), 1000)]):
        with pytest.raises(ProtocolError, match=r"larger than|over 256 headers") as caught:
            read(pieces)
        assert caught.value.reason == "too_large"


def test_an_answer_that_grows_over_the_limit_is_refused() -> None:
    reader = ResponseReader(max_bytes=10)
    reader.feed(CHUNKS + b"8\r\n12345678\r\n")
    assert reader.take() == b"12345678"
    reader.feed(b"8\r\n12345678\r\n")
    with pytest.raises(ProtocolError, match="larger than 10 bytes"):
        reader.take()


def test_sixteen_interim_answers_are_taken() -> None:
    assert read([b"HTTP/1.1 102 Processing\r\n\r\n" * 16 + FIXED])[1] == b"hello"


@pytest.mark.parametrize("status", [204, 304])
def test_no_content(status: int) -> None:
    reader, body = read([b"HTTP/1.1 %d None\r\ncontent-encoding: gzip\r\n\r\n" % status])
    assert (body, reader.take(), reader.reusable) == (b"", b"", True)


@pytest.mark.parametrize("size", [b"1b", b"1B", b"001b", b"1b;x=y", b'1b;x="y"'])
def test_the_size_of_a_chunk_has_many_spellings(size: bytes) -> None:
    said = b"twenty-seven bytes in all.."
    chunk = b"%b\r\n%b\r\n" % (size, said)
    reader, body = read([CHUNKS, chunk, chunk + chunk, b"0\r\n\r\n"])
    assert (body, reader.reusable) == (said * 3, True)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("", 4.0), ("timeout=5", 4.0), ("timeout=30, max=100", 29.0), ("max=1;timeout=75", 60.0), ("timeout=x", 4.0)],
)
def test_a_connection_rests_for_less_than_its_server_waits(told: str, seconds: float) -> None:
    header = f"keep-alive: {told}\r\n".encode() if told else b""
    assert read([OK + header + LENGTH + b"\r\nhello"])[0].idle_seconds == seconds


@pytest.mark.parametrize("headers", [{"a": "b\r\nx: y"}, {"a\nb": "c"}, {"a:b": "c"}, {"é": "c"}])
def test_a_header_cannot_smuggle_a_line(headers: dict[str, str]) -> None:
    with pytest.raises(ProtocolError):
        encode_head(HttpRequest("http://h/", headers, b""), "/", "h")


def test_compression_is_offered_for_whole_answers_only() -> None:
    whole, streamed = (
        encode_head(HttpRequest("http://h/", {}, b"{}", streamed=each), "/", "h") for each in (False, True)
    )
    assert b"\r\naccept-encoding: gzip, br, zstd\r\n" in whole
    assert b"\r\naccept-encoding: identity\r\n" in streamed


def test_a_tunnel_is_asked_for_by_host_and_port() -> None:
    assert encode_connect("::1", 443, None).startswith(b"CONNECT [::1]:443 HTTP/1.1\r\nhost: [::1]:443\r\n")
    assert b"\r\nproxy-authorization: Basic x\r\n" in encode_connect("h", 443, "Basic x")

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs.framing import SseDecoder, WireEvent
from slipform.errors import UpstreamError
from tests.conftest import examples


def decode(pieces: list[bytes]) -> list[WireEvent]:
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.finish()


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_every_newline_ends_a_line(newline: str) -> None:
    body = newline.join(["event: a", "data: 1", "", "data: 2", "data: 3", "", ""]).encode()
    assert decode([body]) == [WireEvent("a", b"1"), WireEvent(None, b"2\n3")]
    assert decode([body[at : at + 1] for at in range(len(body))]) == decode([body])


def test_comments_byte_order_mark_and_fields_without_a_space_are_read() -> None:
    body = b"\xef\xbb\xbf: hello\n\ndata:{}\n\n: PROCESSING\n\nid: 1\nretry: 5\ndata: x\n\n"
    assert decode([body]) == [WireEvent(None, b"{}"), WireEvent(None, b"x")]
    assert decode([body[:1], body[1:2], body[2:]]) == decode([body])


def test_a_last_event_without_its_blank_line_is_kept() -> None:
    assert decode([b"data: 1\n\ndata: 2"]) == [WireEvent(None, b"1"), WireEvent(None, b"2")]
    assert decode([b"data: 1\n\ndata: 2\n"]) == [WireEvent(None, b"1"), WireEvent(None, b"2")]


def test_an_event_without_data_is_none() -> None:
    assert decode([b"event: ping\n\n\n\n\ndata: 1\n\n"]) == [WireEvent(None, b"1")]


def test_an_event_over_the_limit_is_refused() -> None:
    decoder = SseDecoder(max_event_bytes=10)
    with pytest.raises(UpstreamError, match="over 10 bytes"):
        decoder.feed(b"data: 0123456789")


def test_an_event_that_trickles_in_is_refused_over_the_limit_too() -> None:
    decoder = SseDecoder(max_event_bytes=10)
    for _ in range(10):
        decoder.feed(b"d")
    with pytest.raises(UpstreamError):
        decoder.feed(b"d")


LINES = st.lists(
    st.sampled_from([b"data: a", b"data:b", b"data", b"event: e", b": c", b"", b"", b"id: 1", "data: é😀".encode()]),
    max_size=12,
)


@settings(max_examples=examples(200), deadline=None)
@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 200), max_size=8))
def test_where_the_bytes_are_split_does_not_matter(lines: list[bytes], newline: bytes, cuts: list[int]) -> None:
    body = newline.join(lines)
    edges = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    pieces = [body[a:b] for a, b in pairwise(edges)]
    assert decode(pieces) == decode([body])

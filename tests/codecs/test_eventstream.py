from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipform.codecs.framing import EventStreamDecoder, WireEvent, encode_frame
from slipform.errors import TruncatedError, UpstreamError
from tests.conftest import examples

FRAMES = st.lists(st.tuples(st.text(min_size=1, max_size=8), st.binary(max_size=40)), max_size=4)


@settings(max_examples=examples(120), deadline=None)
@given(FRAMES, st.integers(1, 30))
def test_frames_are_read_however_they_are_split(frames: list[tuple[str, bytes]], size: int) -> None:
    body = b"".join(encode_frame({":event-type": name, ":message-type": "event"}, data) for name, data in frames)
    decoder = EventStreamDecoder()
    events = [event for at in range(0, len(body), size) for event in decoder.feed(body[at : at + size])]
    assert events + decoder.finish() == [WireEvent(name, data) for name, data in frames]


def test_an_exception_frame_is_marked() -> None:
    frame = encode_frame(
        {":message-type": "exception", ":exception-type": "throttlingException"}, b'{"message":"slow"}'
    )
    assert EventStreamDecoder().feed(frame) == [WireEvent("!throttlingException", b'{"message":"slow"}')]


def test_a_flipped_bit_is_noticed() -> None:
    frame = bytearray(encode_frame({":event-type": "metadata"}, b"{}"))
    frame[-6] ^= 1
    with pytest.raises(UpstreamError, match="checksum"):
        EventStreamDecoder().feed(bytes(frame))


def test_half_a_frame_at_the_end_is_a_cut() -> None:
    decoder = EventStreamDecoder()
    decoder.feed(encode_frame({":event-type": "metadata"}, b"{}")[:-3])
    with pytest.raises(TruncatedError):
        decoder.finish()


def test_a_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(UpstreamError, match="over 50 bytes"):
        EventStreamDecoder(50).feed(encode_frame({":event-type": "metadata"}, b"x" * 100))


def test_headers_of_other_types_are_stepped_over() -> None:
    import struct
    from zlib import crc32

    headers = b"\x01a\x04\x00\x00\x00\x01" + b"\x01b\x00" + b"\x0b:event-type\x07\x00\x01m"
    prelude = struct.pack(">II", 16 + len(headers) + 2, len(headers))
    body = prelude + struct.pack(">I", crc32(prelude)) + headers + b"{}"
    assert EventStreamDecoder().feed(body + struct.pack(">I", crc32(body))) == [WireEvent("m", b"{}")]

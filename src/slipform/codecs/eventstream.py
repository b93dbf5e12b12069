"""AWS event-stream frames (`application/vnd.amazon.eventstream`) from bytes split anywhere, and back."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from zlib import crc32

from slipform.codecs.sse import MAX_EVENT_BYTES, Event, event_too_big
from slipform.errors import TruncatedError, UpstreamError

_PRELUDE = struct.Struct(">II")
_CRC = struct.Struct(">I")
_STRING = 7
# The sizes of the header values of fixed size: two booleans, then 1, 2, 4 and 8 byte integers, a time, a UUID.
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_SMALLEST = 16


class EventStreamDecoder:
    """Reads frames; an event's name is its `:event-type`, or `:exception-type` with a leading `!`.

    >>> EventStreamDecoder().feed(encode_frame({":event-type": "messageStop"}, b"{}"))
    [Event(name='messageStop', data=b'{}')]
    """

    __slots__ = ("_limit", "_pending")

    between = False
    """Not told: its events are not read by their likeness."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The frames completed by these bytes."""
        self._pending += data
        events = []
        at = 0
        while len(self._pending) - at >= _SMALLEST:
            total, headers_size = _PRELUDE.unpack_from(self._pending, at)
            if total > self._limit:
                raise event_too_big(self._limit)
            if total < _SMALLEST + headers_size:
                raise _broken("its lengths do not add up")
            if len(self._pending) - at < total:
                break
            events.append(_read_frame(bytes(self._pending[at : at + total]), headers_size))
            at += total
        del self._pending[:at]
        return events

    def finish(self) -> list[Event]:
        """Nothing: half a frame at the end means the stream was cut."""
        if self._pending:
            raise TruncatedError("The stream was cut inside a frame", hint="Ask again.")
        return []


def _read_frame(frame: bytes, headers_size: int) -> Event:
    if _CRC.unpack_from(frame, 8)[0] != crc32(frame[:8]) or _CRC.unpack(frame[-4:])[0] != crc32(frame[:-4]):
        raise _broken("its checksum is wrong")
    headers = _read_headers(frame[12 : 12 + headers_size])
    payload = frame[12 + headers_size : -4]
    kind = headers.get(":message-type", "event")
    if kind == "event":
        return Event(headers.get(":event-type"), payload)
    return Event("!" + (headers.get(":exception-type") or headers.get(":error-code") or kind), payload or b"{}")


def _read_headers(data: bytes) -> dict[str, str]:
    """The headers that are strings; the others are stepped over."""
    headers: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name = data[at + 1 : name_end].decode()
            kind = data[name_end]
            at = name_end + 1
            if kind in _FIXED:
                at += _FIXED[kind]
                continue
            size = int.from_bytes(data[at : at + 2], "big")
            at += 2
            if kind == _STRING:
                headers[name] = data[at : at + size].decode()
            at += size
    except (IndexError, UnicodeDecodeError) as error:
        raise _broken("its headers cannot be read") from error
    return headers


def encode_frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One frame with these string headers.

    >>> len(encode_frame({}, b""))
    16
    """
    packed = b"".join(
        bytes([len(name)]) + name.encode() + bytes([_STRING]) + len(value.encode()).to_bytes(2, "big") + value.encode()
        for name, value in headers.items()
    )
    prelude = _PRELUDE.pack(_SMALLEST + len(packed) + len(payload), len(packed))
    body = prelude + _CRC.pack(crc32(prelude)) + packed + payload
    return body + _CRC.pack(crc32(body))


def _broken(reason: str) -> UpstreamError:
    return UpstreamError(f"A frame of the model's stream is broken: {reason}", details={"category": "server"})

"""Cut a stream of bytes into events: SSE, NDJSON, a JSON array, AWS event streams."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol
from zlib import crc32

from slipform.errors import TruncatedError, UpstreamError

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The size of one event at which the stream is abandoned."""


class WireEvent(NamedTuple):
    """One event of a stream: its name, if any, and its data as received."""

    name: str | None
    data: bytes


class Framing(Protocol):
    """Cuts a stream of bytes into events."""

    @property
    def is_between_events(self) -> bool:
        """Whether the next bytes begin an event whose meaning depends only on them, string by string."""
        ...

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the events completed by these bytes."""
        ...

    def finish(self) -> list[WireEvent]:
        """Return the events still pending when the stream ends."""
        ...


class SseDecoder:
    r"""Reads `text/event-stream`: LF, CRLF or CR, a byte order mark, comments, a last event without its blank line.

    >>> decoder = SseDecoder()
    >>> decoder.feed(b": hello\n\nevent: ping\ndata: {")
    []
    >>> decoder.feed(b"}\r\n\r\n")
    [WireEvent(name='ping', data=b'{}')]
    """

    __slots__ = ("_after_cr", "_limit", "_pending", "_scanned", "_started")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()
        self._scanned = 0
        self._after_cr = False
        self._started = False

    @property
    def is_between_events(self) -> bool:
        """Whether the next bytes begin an event."""
        return self._started and not self._pending and not self._after_cr

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the events completed by these bytes."""
        if self._after_cr or data.find(b"\r") >= 0:  # `in` first tries the bytes as a number, which costs more
            data = self._without_cr(data)
        if self._pending:
            self._pending += data
            # Only new bytes are searched, so that an event that arrives in small pieces takes linear time.
            if self._pending.find(b"\n\n", max(self._scanned - 1, 0)) < 0:
                self._scanned = len(self._pending)
                self._check(self._scanned)
                return []
            data = bytes(self._pending)
            self._pending.clear()
        elif self._started and data[:6] == b"data: " and data.find(b"\n\n") == data.find(b"\n") == len(data) - 2:
            return [WireEvent(None, data[6:-2])]  # one whole event, as most servers send them
        *blocks, rest = data.split(b"\n\n")
        if rest:
            self._check(len(rest))
            self._pending += rest
        self._scanned = len(rest)
        return self._events(blocks) if blocks else []

    def finish(self) -> list[WireEvent]:
        """Return the last event, if the stream ended without the blank line that should close it."""
        rest = bytes(self._pending)
        self._pending.clear()
        return self._events([rest]) if rest else []

    def _events(self, blocks: list[bytes]) -> list[WireEvent]:
        if not self._started:
            self._started = True
            blocks[0] = blocks[0].removeprefix(b"\xef\xbb\xbf")
        events = []
        for block in blocks:
            if block[:6] == b"data: " and block.find(b"\n") < 0:
                events.append(WireEvent(None, block[6:]))
            else:
                event = _read_block(block)
                if event is not None:
                    events.append(event)
        return events

    def _without_cr(self, data: bytes) -> bytes:
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
            if not data:
                self._after_cr = False
                return data
        if data:
            self._after_cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise event_too_big(self._limit)


def _read_block(block: bytes) -> WireEvent | None:
    name: str | None = None
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ").decode("utf-8", "replace")
    return WireEvent(name, b"\n".join(data)) if data else None


def event_too_big(limit: int) -> UpstreamError:
    """Return the error for an event over the size limit."""
    return UpstreamError(
        f"One event of the model's stream is over {limit} bytes",
        hint="Raise the limit, or ask the model for less at a time.",
        details={"category": "too_large", "limit": limit},
    )


_PRELUDE = struct.Struct(">II")
_CRC = struct.Struct(">I")
_STRING = 7

# The sizes of fixed-size header values: two booleans, then 1, 2, 4 and 8 byte integers, a time, a UUID.
_FIXED = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_SMALLEST = 16


class EventStreamDecoder:
    """Reads frames; an event's name is its `:event-type`, or `:exception-type` with a leading `!`.

    >>> EventStreamDecoder().feed(encode_frame({":event-type": "messageStop"}, b"{}"))
    [WireEvent(name='messageStop', data=b'{}')]
    """

    __slots__ = ("_limit", "_pending")

    is_between_events = False
    """Always false: each of its events is decoded separately."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the frames completed by these bytes."""
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

    def finish(self) -> list[WireEvent]:
        """Return nothing: half a frame at the end means that the stream was cut."""
        if self._pending:
            raise TruncatedError(
                "The stream was cut inside a frame", hint="Retry the request.", details={"category": "cut"}
            )
        return []


def _read_frame(frame: bytes, headers_size: int) -> WireEvent:
    if _CRC.unpack_from(frame, 8)[0] != crc32(frame[:8]) or _CRC.unpack(frame[-4:])[0] != crc32(frame[:-4]):
        raise _broken("its checksum is wrong")
    headers = _read_headers(frame[12 : 12 + headers_size])
    payload = frame[12 + headers_size : -4]
    kind = headers.get(":message-type", "event")
    if kind == "event":
        return WireEvent(headers.get(":event-type"), payload)
    return WireEvent("!" + (headers.get(":exception-type") or headers.get(":error-code") or kind), payload or b"{}")


def _read_headers(data: bytes) -> dict[str, str]:
    """Return the headers that are strings; the others are skipped."""
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
    """Return one frame with these string headers.

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


_OPEN = b"{["
_CLOSE = b"}]"
_STOPS = frozenset(b'{}[]"')
_QUOTE = ord('"')
_BACKSLASH = ord("\\")


class NdjsonDecoder:
    r"""Reads newline-delimited JSON, with blank lines and without a last newline, too.

    >>> NdjsonDecoder().feed(b'{"a":1}\n{"b"')
    [WireEvent(name=None, data=b'{"a":1}')]
    """

    __slots__ = ("_limit", "_pending")

    is_between_events = False
    """Always false: each of its events is decoded separately."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the lines completed by these bytes."""
        *lines, rest = data.split(b"\n")
        if lines and self._pending:
            lines[0] = bytes(self._pending) + lines[0]
            self._pending.clear()
        self._pending += rest
        if len(self._pending) > self._limit:
            raise event_too_big(self._limit)
        return [WireEvent(None, line) for line in map(bytes.strip, lines) if line]

    def finish(self) -> list[WireEvent]:
        """Return the last line, if its newline is missing."""
        rest = bytes(self._pending).strip()
        self._pending.clear()
        return [WireEvent(None, rest)] if rest else []


class JsonArrayDecoder:
    """Reads the elements of one JSON array as they complete; a lone object counts as an array of one.

    >>> decoder = JsonArrayDecoder()
    >>> decoder.feed(b'[{"a":1},{"b":')
    [WireEvent(name=None, data=b'{"a":1}')]
    >>> decoder.feed(b'2}]')
    [WireEvent(name=None, data=b'{"b":2}')]
    """

    __slots__ = ("_depth", "_escaped", "_floor", "_in_string", "_limit", "_pending")

    is_between_events = False
    """Always false: each of its events is decoded separately."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()
        self._floor: int | None = None
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the elements completed by these bytes."""
        events: list[WireEvent] = []
        start = 0
        for at, byte in enumerate(data):
            if self._in_string:
                self._inside_string(byte)
            elif byte in _STOPS and self._step(byte):
                if self._depth == self._floor_or_zero() + 1 and byte in _OPEN:
                    start = at
                elif byte in _CLOSE:
                    events.append(WireEvent(None, bytes(self._pending + data[start : at + 1])))
                    self._pending.clear()
                    start = at + 1
        if self._depth > self._floor_or_zero():
            self._pending += data[start:]
            if len(self._pending) > self._limit:
                raise event_too_big(self._limit)
        return events

    def finish(self) -> list[WireEvent]:
        """Return an element that was never closed, so that its parser reports the cut."""
        rest = bytes(self._pending)
        self._pending.clear()
        return [WireEvent(None, rest)] if rest else []

    def _floor_or_zero(self) -> int:
        return self._floor or 0

    def _inside_string(self, byte: int) -> None:
        if self._escaped:
            self._escaped = False
        elif byte == _BACKSLASH:
            self._escaped = True
        elif byte == _QUOTE:
            self._in_string = False

    def _step(self, byte: int) -> bool:
        """Process one structural byte; return True if an element of the array begins or ends."""
        if byte == _QUOTE:
            self._in_string = True
            return False
        if byte in _OPEN:
            if self._floor is None:
                self._floor = 1 if byte == _OPEN[1] else 0
            self._depth += 1
            return self._depth == self._floor + 1
        self._depth -= 1
        return self._depth == self._floor


class SniffingDecoder:
    """Reads SSE events, or JSON objects if a server streams bare JSON (Gemini without `alt=sse`, an error page)."""

    __slots__ = ("_chosen", "_head", "_limit")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._head = b""
        self._chosen: Framing | None = None

    @property
    def is_between_events(self) -> bool:
        """Whether the next bytes begin an event."""
        return self._chosen is not None and self._chosen.is_between_events

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the events completed by these bytes."""
        if self._chosen is not None:
            return self._chosen.feed(data)
        self._head += data
        start = self._head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not start:
            return []
        framing: Callable[[int], Framing] = JsonArrayDecoder if start[:1] in (b"{", b"[") else SseDecoder
        self._chosen = framing(self._limit)
        return self._chosen.feed(self._head if framing is SseDecoder else start)

    def finish(self) -> list[WireEvent]:
        """Return the events still pending when the stream ends."""
        if self._chosen is not None:
            return self._chosen.finish()
        return []

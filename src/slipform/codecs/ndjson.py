"""One JSON value per line, from bytes split anywhere; also the JSON array that Gemini streams without `alt=sse`."""

from __future__ import annotations

from slipform.codecs.sse import MAX_EVENT_BYTES, Event, event_too_big

_OPEN = b"{["
_CLOSE = b"}]"
_STOPS = frozenset(b'{}[]"')
_QUOTE = ord('"')
_BACKSLASH = ord("\\")


class NdjsonDecoder:
    r"""Reads newline-delimited JSON; blank lines and a missing last newline are fine.

    >>> NdjsonDecoder().feed(b'{"a":1}\n{"b"')
    [Event(name=None, data=b'{"a":1}')]
    """

    __slots__ = ("_limit", "_pending")

    between = False
    """Not told: its events are not read by their likeness."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[Event]:
        """The lines completed by these bytes."""
        *lines, rest = data.split(b"\n")
        if lines and self._pending:
            lines[0] = bytes(self._pending) + lines[0]
            self._pending.clear()
        self._pending += rest
        if len(self._pending) > self._limit:
            raise event_too_big(self._limit)
        return [Event(None, line) for line in map(bytes.strip, lines) if line]

    def finish(self) -> list[Event]:
        """The last line, when it lacks its newline."""
        rest = bytes(self._pending).strip()
        self._pending.clear()
        return [Event(None, rest)] if rest else []


class JsonArrayDecoder:
    """Reads the elements of one JSON array as they complete; a lone object counts as an array of one.

    >>> decoder = JsonArrayDecoder()
    >>> decoder.feed(b'[{"a":1},{"b":')
    [Event(name=None, data=b'{"a":1}')]
    >>> decoder.feed(b'2}]')
    [Event(name=None, data=b'{"b":2}')]
    """

    __slots__ = ("_depth", "_escaped", "_floor", "_in_string", "_limit", "_pending")

    between = False
    """Not told: its events are not read by their likeness."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._pending = bytearray()
        self._floor: int | None = None
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> list[Event]:
        """The elements completed by these bytes."""
        events: list[Event] = []
        start = 0
        for at, byte in enumerate(data):
            if self._in_string:
                self._inside_string(byte)
            elif byte in _STOPS and self._step(byte):
                if self._depth == self._floor_or_zero() + 1 and byte in _OPEN:
                    start = at
                elif byte in _CLOSE:
                    events.append(Event(None, bytes(self._pending + data[start : at + 1])))
                    self._pending.clear()
                    start = at + 1
        if self._depth > self._floor_or_zero():
            self._pending += data[start:]
            if len(self._pending) > self._limit:
                raise event_too_big(self._limit)
        return events

    def finish(self) -> list[Event]:
        """An element that never closed, so that whoever parses it sees that it was cut."""
        rest = bytes(self._pending)
        self._pending.clear()
        return [Event(None, rest)] if rest else []

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
        """Follow one structural byte; true where an element of the array begins or ends."""
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

"""Detect an answer that repeats itself endlessly: blanks, digits, or one phrase over and over.

The limits are measured. In 3,116 JSON files no run of blanks between tokens was longer than 165 bytes or had more than
two newlines. Of 4,166 strings over 1 kB, two ended in 4,096 characters that repeat a unit of at most 256. Arrays of
zeros, nulls or equal rows do repeat, so what is outside a string may.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from slipform.text.fence import FencePhase, JsonFenceDetector

MAX_BLANKS: Final = 1_024
MAX_NEWLINES: Final = 32
MAX_DIGITS: Final = 400
MAX_PERIODIC: Final = 4_096
"""Characters at the end of a string that may repeat one unit."""
MAX_PERIODIC_PROSE: Final = 8_192
"""The same for text that is not JSON."""
MAX_UNIT: Final = 256
_STEP: Final = 512
"""New characters between two checks of the end of the text."""
_PROBE: Final = 64
_UNLIMITED: Final = 1 << 60
_END_OF_STRING: Final = re.compile(r'(?<!\\)"')


class Runaway(NamedTuple):
    """The repeated unit: its `kind` (blanks, digits, string, text), and the length of the text so far."""

    kind: str
    length: int


class RunawayDetector:
    r"""Follows one growing text; `feed` returns a `Runaway` as soon as its end repeats itself beyond the limits.

    Cheap while nothing repeats: the last characters are compared every 512, and only a hit makes the text be read for
    whether its end is inside a string. With `prose`, the text is not JSON, and only repetition of `max_prose`
    characters counts.

    >>> detector = RunawayDetector()
    >>> detector.feed('{"a": 1, "b": "') is None
    True
    >>> detector.feed("Other; " * 1_000).kind
    'string'
    >>> RunawayDetector().feed("[" + "0, " * 10_000) is None
    True
    """

    __slots__ = ("_fence", "_length", "_max_prose", "_new", "_pieces", "_prose", "_tail", "_unread")

    def __init__(self, *, prose: bool = False, max_prose: int = MAX_PERIODIC_PROSE) -> None:
        self._prose = prose
        self._max_prose = max_prose
        self._pieces: list[str] = []
        self._new = 0
        self._length = 0
        self._tail = ""
        self._unread: list[str] = []
        """Text that the detector of strings has yet to read."""
        self._fence: JsonFenceDetector | None = None
        """Reads the text for open strings, once its end repeats itself."""

    def feed(self, text: str) -> Runaway | None:
        """Add the next piece of the text."""
        self._pieces.append(text)
        self._new += len(text)
        return self.look() if self._new >= _STEP else None

    def look(self) -> Runaway | None:
        """Return the runaway that the text ends in, if any."""
        added = "".join(self._pieces)
        self._pieces.clear()
        self._length += len(added)
        self._new = 0
        self._tail = (self._tail + added)[-MAX_PERIODIC_PROSE:]
        if not self._prose:
            self._unread.append(added)
        kind = self._kind()
        return Runaway(kind, self._length) if kind else None

    def _kind(self) -> str:
        """Return the kind of repetition at the end of the text: "blanks", "digits", "string" or "text"; else empty."""
        tail = self._tail
        if not self._prose:
            blanks = _blanks_at_end(tail)
            if (len(blanks) > MAX_BLANKS or blanks.count("\n") > MAX_NEWLINES) and not self._in_string():
                return "blanks"
            if _ends_in_digits(tail) and not self._in_string():
                return "digits"
        if self._prose:
            return "text" if is_periodic(tail, self._max_prose) else ""
        if not is_periodic(tail, MAX_PERIODIC):
            return ""
        if self._in_string():
            if _END_OF_STRING.search(tail[-MAX_PERIODIC:]):
                return ""
            return "string"
        is_prose = self._reader().phase is not FencePhase.TRACKING_DEPTH
        if is_prose and is_periodic(tail, MAX_PERIODIC_PROSE):
            return "text"
        return ""

    def _reader(self) -> JsonFenceDetector:
        if self._fence is None:
            self._fence = JsonFenceDetector(_UNLIMITED, stop_after_json=False, loose=True)
        return self._fence

    def _in_string(self) -> bool:
        reader = self._reader()
        if self._unread:
            reader.add_chunk("".join(self._unread))
            self._unread.clear()
            reader.process()
        return reader.in_string


def _ends_in_digits(text: str) -> bool:
    return text[-1:].isdigit() and len(text) > MAX_DIGITS and text[-MAX_DIGITS - 1 :].isdigit()


def _blanks_at_end(text: str) -> str:
    return text[len(text.rstrip(" \t\r\n")) :]


def is_periodic(text: str, length: int, longest_unit: int = MAX_UNIT) -> bool:
    """Return whether the last `length` characters repeat one unit of at most `longest_unit`.

    >>> is_periodic("abc" * 10, 30), is_periodic("abcd" * 8 + "x", 30)
    (True, False)
    """
    if len(text) < length:
        return False
    tail = text[-length:]
    probe = min(_PROBE, length // 2)
    before = tail.rfind(tail[-probe:], 0, -1)
    unit = length - probe - before
    return before >= 0 and 0 < unit <= longest_unit and tail[unit:] == tail[:-unit]


def runaway_in(text: str) -> Runaway | None:
    r"""Return the runaway that a whole text ends in, if any.

    >>> runaway_in('{"a":' + "\n" * 100).kind
    'blanks'
    """
    detector = RunawayDetector()
    return detector.feed(text) or detector.look()

"""Formats as Python types mean them: what pydantic writes for a value must fit the schema it gave for its type.

JSON Schema's `date-time` and `time` need an offset and its `duration` knows no fractions or signs; Python's
`datetime`, `time` and `timedelta` have all of these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, time

_TIME = r"\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:[Zz]|[+-]\d\d:?\d\d)?"
_DATE_TIME = re.compile(rf"\d{{4}}-\d\d-\d\d[Tt ]{_TIME}", re.ASCII)
_TIME_ALONE = re.compile(_TIME, re.ASCII)
_NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_DURATION = re.compile(
    rf"[+-]?P(?=[\dT])(?:{_NUMBER}W|(?:{_NUMBER}Y)?(?:{_NUMBER}M)?(?:{_NUMBER}D)?"
    rf"(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?)",
    re.ASCII,
)


def is_datetime(text: str) -> bool:
    """A date and a time, with or without an offset.

    >>> is_datetime("2024-02-29T10:00:00"), is_datetime("2023-02-29T10:00:00")
    (True, False)
    """
    return bool(_DATE_TIME.fullmatch(text)) and _reads(datetime.fromisoformat, text)


def is_time(text: str) -> bool:
    """A time of day, with or without an offset."""
    return bool(_TIME_ALONE.fullmatch(text)) and _reads(time.fromisoformat, text)


def is_duration(text: str) -> bool:
    """An ISO 8601 duration, with sign and fractions if need be.

    >>> is_duration("-P1DT0.5S"), is_duration("one day")
    (True, False)
    """
    return bool(_DURATION.fullmatch(text))


def _reads(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text.upper())
    except ValueError:
        return False
    return True


PYTHON_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": is_datetime,
    "time": is_time,
    "duration": is_duration,
}

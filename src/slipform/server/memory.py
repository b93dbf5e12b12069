"""Memory that the C library keeps for later, given back to the system."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable

_SECONDS = 30.0


async def give_back(seconds: float = _SECONDS) -> None:
    """Give it back every so often, for ever.

    Bodies and streams of all sizes come and go, and leave holes behind: after half an hour of hundreds of streams glibc
    held 10 MB that nobody used, and the more the longer. Looking for them takes 2 ms.
    """
    trim = trimmer()
    while trim is not None:
        await asyncio.sleep(seconds)
        trim()


def trimmer() -> Callable[[], object] | None:
    """What gives free memory back; None where the C library does so by itself or cannot."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return None
    return lambda: trim(0)

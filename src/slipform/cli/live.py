"""The answer growing in the terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from slipform.streaming import AsyncStream, Result

_PER_SECOND: Final = 15


async def watch(stream: AsyncStream[Any], console: Console | None = None) -> Result[Any]:
    """Show what there is of the answer while it comes; the view is gone when it is over, and the answer given back."""
    from rich.console import Console
    from rich.live import Live

    from slipform.partial import so_far

    screen = console or Console()
    drawn = 0.0
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        async for partial in stream:
            now = time.monotonic()
            if now - drawn >= 1 / _PER_SECOND:  # a frame costs as much as the value is long, however fast it comes
                drawn = now
                live.update(frame(so_far(partial), stream.attempt, screen.height), refresh=True)
        return await stream.result()


def frame(value: Any, attempt: int, height: int) -> Text:
    """The end of what there is, as much as fits, in colours; and which attempt it is, after the first.

    >>> frame({"a": 1}, 2, 24).plain.splitlines()[-1]
    'attempt 2 …'
    """
    from rich.json import JSON
    from rich.text import Text

    whole = JSON.from_data(value, indent=2).text
    lines = whole.split("\n")
    room = max(height - 2, 1)
    shown = Text("\n").join(lines[-room:])
    return shown if attempt < 2 else Text("\n").join([shown, Text(f"attempt {attempt} …", style="dim")])

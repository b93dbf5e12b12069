"""Starting a coroutine where nobody can wait for it, and waiting for what is left of it later."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any


class Begun:
    """What is left of something that was started; to be awaited once, in a task."""

    __slots__ = ("_steps", "_waited")

    def __init__(self, steps: Generator[Any, Any, None], waited: Any) -> None:
        self._steps = steps
        self._waited = waited

    def __await__(self) -> Generator[Any, Any, None]:
        """Wait for the rest, as whoever had started it would have."""
        waited, steps = self._waited, self._steps
        try:
            while True:
                try:
                    given = yield waited
                except BaseException as error:  # noqa: BLE001 — cancelled, or told that it failed: it is theirs to answer
                    waited = steps.throw(error)
                else:
                    waited = steps.send(given)
        except StopIteration:
            return


def begun(work: Awaitable[None]) -> Begun | None:
    """Start this, from a callback of the event loop; None when it is done at once, else what is left of it.

    >>> async def at_once(): pass
    >>> begun(at_once()) is None
    True
    """
    steps = work.__await__()
    try:
        return Begun(steps, next(steps))
    except StopIteration:
        return None

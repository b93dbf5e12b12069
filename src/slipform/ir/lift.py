"""The way from a vendor's shape of an answer back to the caller's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lift:
    """Turns a value of the vendor's shape into one of the caller's; call it with a whole value.

    `schema` is the shape as the vendor sees it. `growing` starts the lifting of one growing value: what it gives is
    called with each value so far, and with `done=True` at the end; it answers `pending` while there is nothing to show.

    >>> Lift({"type": "object"}, lambda value: value["value"])({"value": 3})
    3
    """

    schema: Mapping[str, Any]
    whole: Callable[[Any], Any]
    growing: Callable[[], Callable[..., Any]] | None = None
    pending: Any = None

    def __call__(self, value: Any) -> Any:
        """The value in the caller's shape."""
        return self.whole(value)

"""What `resolve` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Match:
    """So far it fits the schema; `value` is what can be shown of it.

    >>> Match({"name": "Ad"}).value
    {'name': 'Ad'}
    """

    value: Any


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Nothing can be shown yet: the text has not got that far, or which branch of a union it is remains open."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """It cannot become valid any more: where, and why.

    >>> str(Invalid(("items", 0, "age"), "expected integer, found string"))
    '$.items[0].age: expected integer, found string'
    """

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"${steps}: {self.message}"


NO_MATCH: Final = NoMatch()

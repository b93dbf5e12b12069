"""The report: what became of each keyword that a dialect does not take as it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Action: TypeAlias = Literal["kept", "encoded", "approximated", "dropped", "closed"]
EnforcedBy: TypeAlias = Literal["vendor", "engine", "local"]


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of one keyword: `pointer` is its place in the caller's schema.

    `closed` declares that values the caller's schema accepts can no longer be said: extra keys of an object, say.

    >>> Loss("/properties/age/minimum", "minimum", 0, "dropped", "local").action
    'dropped'
    """

    pointer: str
    keyword: str
    value: Any
    action: Action
    enforced_by: EnforcedBy


@dataclass(slots=True)
class Report:
    """Losses in the order they were met, each once."""

    losses: dict[tuple[str, str, str], Loss] = field(default_factory=dict)

    def add(self, pointer: str, keyword: str, value: Any, action: Action, by: EnforcedBy = "local") -> None:
        """Record what became of a keyword."""
        self.losses.setdefault((pointer, keyword, action), Loss(pointer, keyword, value, action, by))

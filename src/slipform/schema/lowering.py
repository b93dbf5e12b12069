"""Lowering: the caller's schema → a vendor's dialect, and the answer → back to the caller's shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Action: TypeAlias = Literal["kept", "encoded", "approximated", "dropped", "closed"]
EnforcedBy: TypeAlias = Literal["vendor", "engine", "local"]


@dataclass(frozen=True, slots=True)
class Loss:
    """What became of one keyword: `pointer` is its place in the caller's schema."""

    pointer: str
    keyword: str
    value: Any
    action: Action
    enforced_by: EnforcedBy


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema in a vendor's dialect, the way back, and what the way cost."""

    schema: Mapping[str, Any]
    lift: Callable[[Any], Any]
    """Turns a value of the vendor's shape into one of the caller's; never raises on an instance of `schema`."""
    report: tuple[Loss, ...] = ()


def lower(schema: Mapping[str, Any], dialect: str) -> Lowered:
    """Express `schema` in `dialect`.

    >>> lower({"type": "integer"}, "identity").lift(3)
    3
    """
    if dialect != "identity":
        raise ValueError(f"Unknown dialect {dialect!r}; the dialects are: identity")
    return Lowered(schema, lambda value: value)

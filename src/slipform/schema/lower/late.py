"""`slipform.schema.lowering.lower`, loaded when a schema is first lowered: much code, which other calls do not need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from slipform.schema.lower.plan import PENDING

if TYPE_CHECKING:
    from slipform.schema.lowering import Lowered

__all__ = ["PENDING", "lower"]


def lower(schema: Mapping[str, Any], dialect: str, *, open_objects: Literal["closed", "kept"] = "kept") -> Lowered:
    """Express `schema` in `dialect`.

    >>> lower({"type": "integer"}, "identity").lift(3)
    3
    """
    from slipform.schema import lowering

    return lowering.lower(schema, dialect, open_objects=open_objects)

"""Write a schema in a vendor's dialect and lift answers back: `lower`, `Lowered`.

Loaded when it is first used: most of a program's calls need no lowering, and its modules take a while to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipform.schema.lowering.lift_plan import PENDING as PENDING
    from slipform.schema.lowering.lowered import Lowered as Lowered
    from slipform.schema.lowering.lowered import lower as lower

__all__ = ["PENDING", "Lowered", "lower"]

_HOMES = {"PENDING": "lift_plan", "Lowered": "lowered", "lower": "lowered"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value

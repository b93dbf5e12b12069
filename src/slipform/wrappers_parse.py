"""The SDKs' `parse` calls: a Python type in place of a schema."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slipform.ir import Lift
from slipform.schema import Schema
from slipform.schema.lowering import PENDING, lower
from slipform.wrappers_apis import Api

_SHAPES: Final = ("response_format", "text_format", "output_format")


@dataclass(frozen=True, slots=True)
class Typed:
    """A Python type as one call sends it: what is posted, and the way back."""

    schema: Schema[Any]
    body: dict[str, Any]
    lift: Lift | None


def typed_call(api: Api, body: Mapping[str, Any], parser: Callable[[Any], Any]) -> Typed | None:
    """The call with its type as slipform writes it for the vendor; None when no type is known.

    The SDK's own schema of the type is in the body already, but it leaves out what the vendor does not know and asks
    for what is optional: answers are held to the type itself.
    """
    shape = _type_of(parser)
    if shape is None:
        return None
    schema: Schema[Any] = Schema.of(shape)
    lowered = lower(schema.document, api.dialect, open_objects="closed")
    lift = None if lowered.identity else Lift(lowered.schema, lowered.lift, lowered.lift_stream, PENDING)
    return Typed(schema, {**body, **api.spelled(body, schema.name, lowered.schema)}, lift)


def _type_of(parser: Callable[[Any], Any]) -> type[Any] | None:
    """The type that the SDK's parser of answers makes; the SDKs tell it to nobody else."""
    if not inspect.isfunction(parser):
        return None
    known = inspect.getclosurevars(parser).nonlocals
    return next((known[name] for name in _SHAPES if isinstance(known.get(name), type)), None)

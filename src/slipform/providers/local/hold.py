"""A schema → schemas that decoding can be held to, the best first, and what each of them leaves to the validator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.errors import UnsupportedSchemaError
from slipform.providers.local.prune import prune
from slipform.providers.local.settle import Settled, settle
from slipform.providers.local.walk import Pointer
from slipform.providers.local.weaken import Loss, is_cycle, weaken


@dataclass(frozen=True, slots=True)
class Held:
    """What decoding is held to."""

    schema: dict[str, Any]
    losses: tuple[Loss, ...] = ()
    """What it takes too much of, in the words and places of the schema as it was given."""
    narrowed: tuple[Pointer, ...] = ()
    """Where it takes less than the schema does."""


def holdings(schema: Mapping[str, Any], *, certain: bool) -> Iterator[Held]:
    """What decoding could be held to; a `certain` one rather takes too little than too much.

    Raises once there is nothing more to offer.

    >>> [loss.pointer for loss in next(holdings({"type": "array", "uniqueItems": True}, certain=False)).losses]
    [('uniqueItems',)]
    """
    settled = settle(schema, certain=certain)
    starts = [settled] if settled.schema == schema else [settled, Settled(dict(schema))]
    for start in starts:
        weakened, losses, fatal = weaken(start.schema, cycles=False, certain=certain)
        if is_cycle(fatal):
            # Whoever shares out the tokens may unroll it; if not, the cycle is broken.
            yield _held(start, weakened, losses, certain)
            weakened, losses, fatal = weaken(start.schema, certain=certain)
        if fatal is None:
            yield _held(start, weakened, losses, certain)
    if fatal is not None:
        yield _shape_only(schema, fatal)


def _held(start: Settled, weakened: dict[str, Any], losses: tuple[Loss, ...], certain: bool) -> Held:
    narrowed = start.narrowed
    if certain and losses:
        weakened, left_out = prune(start.schema, weakened, [loss.pointer for loss in losses])
        losses = tuple(loss for loss in losses if loss.pointer not in left_out)
        narrowed += tuple(start.origin(pointer) for pointer in left_out)
    named = (dataclasses.replace(loss, pointer=start.origin(loss.pointer)) for loss in losses)
    return Held(weakened, tuple(dict.fromkeys(named)), narrowed)


def _shape_only(schema: Mapping[str, Any], fatal: str) -> Held:
    """The root's type and nothing else: still JSON of the right kind, and all the rest is the validator's."""
    kind = schema.get("type")
    if "Unsatisfiable" in fatal or kind is None:
        raise UnsupportedSchemaError(
            f"The embedded model cannot decode under this schema: {fatal}",
            hint="Take that keyword out of the schema, or send the request to another provider.",
        )
    return Held({"type": kind}, (Loss((), fatal, "all but the type dropped"),))

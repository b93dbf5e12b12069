"""Plan the parts in which a wide schema is requested: `split_plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from slipform.enforce.plan import PartPlan, Plan, SplitPlan
from slipform.engine.setup import Options
from slipform.ir import ModelRequest
from slipform.providers.http import HttpProvider
from slipform.schema import OutputStrategy, ResponseFormat
from slipform.schema.limits import json_text
from slipform.schema.splitting import SchemaPart, can_split, halve_schema, split_schema

_Planner: TypeAlias = Callable[[ModelRequest, Options], Plan]

_NARROW: Final = 500
"""Bytes of a schema that every vendor accepts."""
_MOST_HALVINGS: Final = 3
"""How often a refused schema is halved; a part refused after that falls back to other strategies, as a whole does."""


def split_plan(
    request: ModelRequest, options: Options, provider: HttpProvider, plan_part: _Planner, halvings: int = 0
) -> SplitPlan | None:
    """Plan how a schema is requested in parts on the native channel; None if that is impossible or unnecessary.

    Parts are requested at once if the vendor's limits exclude the whole, or the vendor has refused it before.
    """
    whole = request.response_format
    if whole is None or whole.strategy is not OutputStrategy.AUTO or halvings > _MOST_HALVINGS:
        return None
    schema = whole.json_schema.schema
    capabilities = provider.codec_for(request.model, whole).capabilities
    is_native = capabilities.auto_strategy is OutputStrategy.NATIVE
    if not is_native or len(json_text(schema)) < _NARROW or not can_split(schema):
        return None

    def plans_of(parts: Sequence[SchemaPart]) -> tuple[PartPlan, ...]:
        own = dataclasses.replace(options, validators=(), split="never")  # validators check the whole answer
        plans: list[PartPlan] = []
        for number, part in enumerate(parts, 1):
            response_format = _part_format(whole, number, part.document)
            part_request = request.replace(response_format=response_format)
            split = split_plan(part_request, options, provider, plan_part, halvings + 1)
            plans.append(
                PartPlan(part, response_format, dataclasses.replace(plan_part(part_request, own), split=split))
            )
        return tuple(plans)

    def halves() -> tuple[PartPlan, ...]:
        return plans_of(halve_schema(schema))

    def fits(document: Mapping[str, Any]) -> bool:
        part_request = request.replace(response_format=_part_format(whole, 0, document))
        return provider.capabilities_for(part_request).native

    if "split_schema" in capabilities.quirks:
        return SplitPlan(halves(), halves)
    if provider.capabilities_for(request).native:
        return SplitPlan((), halves)
    parts = plans_of(split_schema(schema, fits))
    return SplitPlan(parts, halves) if parts else None


def _part_format(whole: ResponseFormat, number: int, document: Mapping[str, Any]) -> ResponseFormat:
    return dataclasses.replace(whole, json_schema=whole.json_schema.part(number, document))

"""Write a caller's value in the vendor's shape: the way there, of which the product only needs the way back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.errors import SchemaError
from slipform.schema.lowering.lift_plan import (
    ChoicePlan,
    FieldPlan,
    Items,
    LiftPlan,
    NullBox,
    Pairs,
    RecordPlan,
    Ref,
    TextPlan,
    Tuple,
    UnionPlan,
    ValuePlan,
    Wrapped,
)
from slipform.schema.lowering.lowered import Lowered
from slipform.schema.validator import Compiled
from slipform.text.lifted import LiftedText


class Misfit(Exception):  # noqa: N818 — control flow: the next alternative is tried
    """The value has no spelling under this plan."""


def encode(lowered: Lowered, value: Any) -> Any:
    """The value as the vendor would write it; a `SchemaError` when the lowered schema has no words for it."""
    plan = lowered.plan
    if plan is None:
        return value
    encoder = Encoder(plan.defs, plan.active)
    try:
        found = encoder.encode(plan.root, value)
    except Misfit as misfit:
        raise SchemaError(f"The lowered schema has no words for this value: {misfit}") from misfit
    if not encoder.fits(plan.schema, found):
        raise SchemaError("The lowered schema has no words for this value")
    return found


@dataclass(slots=True)
class Encoder:
    """Writes values under plans; the lowered schemas decide between alternatives."""

    defs: Mapping[str, Any]
    active: frozenset[int]
    _validators: dict[int, Compiled] = field(default_factory=dict)

    def fits(self, schema: Mapping[str, Any], value: Any) -> bool:
        """Whether a value of the vendor's shape is an instance of a lowered schema."""
        found = self._validators.get(id(schema))
        if found is None:
            document = {**schema, "$defs": self.defs}
            found = self._validators[id(schema)] = Compiled(document, formats="ignored")
        return found.is_valid(value)

    def encode(self, plan: ValuePlan, value: Any) -> Any:
        """The value as the vendor's shape has it; raises Misfit when it has no spelling."""
        if id(plan) not in self.active:
            return value
        match plan:
            case TextPlan():
                return json.dumps(value, ensure_ascii=False)
            case RecordPlan():
                return self._record(plan, value)
            case Items():
                return self._items(plan, value)
            case Pairs():
                return self._pairs(plan.value, _as_object(value))
            case Tuple():
                return self._tuple(plan, value)
            case Wrapped():
                return {plan.key: self.encode(plan.plan, value)}
            case NullBox():
                return [] if value is None else [self.encode(plan.plan, value)]
            case ChoicePlan():
                return self._choice(plan, value)
            case UnionPlan():
                return self._union(plan, value)
            case Ref():
                assert plan.target is not None
                return self.encode(plan.target, value)
            case _:
                return value

    def _field(self, entry: FieldPlan, value: Any) -> Any:
        inner = self.encode(entry.plan, value)
        return [inner] if entry.mode == "box" else inner

    def _record(self, plan: RecordPlan, value: Any) -> Any:
        value = _as_object(value)
        out: dict[str, Any] = {}
        for name, entry in plan.fields.items():
            own = plan.names.get(name, name)
            if own in value:
                out[name] = self._field(entry, value[own])
            elif entry.mode == "plain":
                raise Misfit(name)
            elif entry.mode != "native":
                out[name] = None if entry.mode == "null" else []
        listed = {plan.names.get(name, name) for name in plan.fields}
        others = {name: each for name, each in value.items() if name not in listed}
        if plan.extra is not None:
            out[plan.extra] = self._pairs(plan.values, others)
        elif others:
            if plan.closed:
                raise Misfit(next(iter(others)))
            out |= {name: self.encode(plan.values, each) for name, each in others.items()}
        return out

    def _pairs(self, plan: ValuePlan, value: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"key": name, "value": self.encode(plan, each)} for name, each in value.items()]

    def _items(self, plan: Items, value: Any) -> Any:
        if not isinstance(value, list):
            raise Misfit
        plans = (*plan.prefix, *[plan.rest] * (len(value) - len(plan.prefix)))
        return [self.encode(inner, each) for inner, each in zip(plans, value, strict=False)]

    def _tuple(self, plan: Tuple, value: Any) -> Any:
        if not isinstance(value, list):
            raise Misfit
        out: dict[str, Any] = {}
        for index, (name, entry) in enumerate(plan.places.items()):
            if index < len(value):
                out[name] = self._field(entry, value[index])
            elif entry.mode == "plain":
                raise Misfit(name)
            elif entry.mode != "native":
                out[name] = None if entry.mode == "null" else []
        rest = value[len(plan.places) :]
        if plan.rest_key is not None:
            out[plan.rest_key] = [self.encode(plan.rest, each) for each in rest]
        elif rest:
            raise Misfit
        return out

    def _choice(self, plan: ChoicePlan, value: Any) -> Any:
        for name, (inner, schema) in plan.options.items():
            try:
                found = self.encode(inner, value)
            except Misfit:
                continue
            if self.fits(schema, found):
                return {other: [found] if other == name else [] for other in plan.options}
        raise Misfit

    def _union(self, plan: UnionPlan, value: Any) -> Any:
        for branch in plan.branches:
            try:
                found = self.encode(branch.plan, value)
            except Misfit:
                continue
            if self.fits(branch.schema, found):
                return found
        raise Misfit


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Misfit
    return value


def lifted_text(plan: LiftPlan, sent: Any, size: int = 5) -> str:
    """Return a vendor's value as the text that is lifted while it grows, in pieces of this size."""
    lifted = LiftedText(plan)
    text = json.dumps(sent)
    pieces = [lifted.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert not lifted.failed
    return "".join(pieces)

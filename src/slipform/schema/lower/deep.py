"""Lifting without recursion, for answers nested deeper than the interpreter's stack."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeAlias

from slipform.schema.lower.lift import holds, parse_text
from slipform.schema.lower.plan import (
    PENDING,
    Choice,
    Field,
    Items,
    NullBox,
    Pairs,
    Plan,
    Record,
    Ref,
    Text,
    Tuple,
    Union,
    Wrapped,
    kind_of,
)

Steps: TypeAlias = Generator[tuple[Plan, Any], Any, Any]


def lift_deep(plan: Plan, value: Any, active: frozenset[int]) -> Any:
    """What `Lifter` gives, on a stack of its own."""
    stack = [_steps(plan, value)]
    result: Any = None
    while stack:
        try:
            inner, each = stack[-1].send(result)
        except StopIteration as stop:
            result = stop.value
            stack.pop()
            continue
        # A generator that has not begun takes nothing; a value that stands for itself goes straight back.
        result = None if id(inner) in active else each
        if id(inner) in active:
            stack.append(_steps(inner, each))
    return result


def _steps(plan: Plan, value: Any) -> Steps:
    """One plan: asks for each child to be lifted, and returns the value made of them."""
    match plan:
        case Text():
            return parse_text(value)
        case Ref() if plan.target is not None:
            return (yield plan.target, value)
        case Union() if plan.table is not None:
            found = _alternative(plan, value)
            return value if found is None else (yield found, value)
        case Wrapped() if isinstance(value, dict) and plan.key in value:
            return (yield plan.plan, value[plan.key])
        case NullBox() if isinstance(value, list):
            return (yield plan.plan, value[0]) if value else None
        case Record() if isinstance(value, dict):
            return (yield from _record(plan, value))
        case Items() if isinstance(value, list):
            plans = (*plan.prefix, *[plan.rest] * (len(value) - len(plan.prefix)))
            out = []
            for inner, each in zip(plans, value, strict=False):
                out.append((yield inner, each))
            return out
        case Pairs() if isinstance(value, list):
            return (yield from _pairs(plan.value, value))
        case Tuple() if isinstance(value, dict):
            return (yield from _tuple(plan, value))
        case Choice() if isinstance(value, dict):
            for name, each in value.items():
                if name in plan.options and isinstance(each, list) and each:
                    return (yield plan.options[name][0], each[0])
            return None
        case _:
            return value


def _alternative(plan: Union, value: Any) -> Plan | None:
    if plan.table is None:
        return None
    if isinstance(value, dict):
        return next((inner for tests, inner in plan.table.objects if holds(tests, value)), None)
    return plan.table.by_kind.get(kind_of(value))


def _field(entry: Field, value: Any) -> Steps:
    if (entry.mode == "null" and value is None) or (entry.mode in ("empty", "box") and value == []):
        return PENDING
    if entry.mode == "box" and isinstance(value, list):
        value = value[0]
    return (yield entry.plan, value)


def _record(plan: Record, value: dict[str, Any]) -> Steps:
    out = {}
    for name, each in value.items():
        entry = plan.fields.get(name)
        if entry is not None:
            lifted = yield from _field(entry, each)
            if lifted is not PENDING:
                out[name] = lifted
        elif name != plan.extra:
            out[name] = each if plan.extra is not None else (yield plan.values, each)
    if plan.extra is not None and plan.extra in value:
        more = value[plan.extra]
        if not isinstance(more, list):
            return out | (
                {key: more[key] for key in more if key not in out} if isinstance(more, dict) else {plan.extra: more}
            )
        pairs = yield from _pairs(plan.values, more)
        out |= {key: each for key, each in pairs.items() if key not in out}
    return out


def _pairs(plan: Plan, value: list[Any]) -> Steps:
    out: dict[str, Any] = {}
    for pair in value:
        if isinstance(pair, dict) and isinstance(pair.get("key"), str) and "value" in pair:
            lifted = yield plan, pair["value"]
            out.setdefault(pair["key"], lifted)
    return out


def _tuple(plan: Tuple, value: dict[str, Any]) -> Steps:
    out: list[Any] = []
    for name, entry in plan.places.items():
        lifted = (yield from _field(entry, value[name])) if name in value else PENDING
        if lifted is PENDING:
            return out
        out.append(lifted)
    more = value.get(plan.rest_key) if plan.rest_key is not None else None
    if isinstance(more, list):
        out += yield from _steps(Items((), plan.rest), more)
    return out

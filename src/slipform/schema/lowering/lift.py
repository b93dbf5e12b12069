"""Lift an answer to the caller's shape, at any depth."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from slipform.schema.keywords import json_key
from slipform.schema.lowering.lift_plan import (
    PENDING,
    ChoicePlan,
    FieldPlan,
    Items,
    NullBox,
    Pairs,
    RecordPlan,
    Ref,
    Test,
    TextPlan,
    Tuple,
    UnionPlan,
    ValuePlan,
    Wrapped,
    kind_of,
)

LiftFunction: TypeAlias = Callable[[Any], Any]


def same(value: Any) -> Any:
    """Return the value unchanged: nothing is encoded."""
    return value


def parse_text(text: Any) -> Any:
    """Return the value of JSON text; anything else unchanged."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


@dataclass(slots=True)
class Lifter:
    """Builds functions from plans; None for the identity."""

    active: frozenset[int]
    _made: dict[int, list[LiftFunction]] = field(default_factory=dict)

    def of(self, plan: ValuePlan) -> LiftFunction | None:
        """Return the function that lifts values of a plan; None for the identity."""
        if id(plan) not in self.active:
            return None
        cell = self._made.get(id(plan))
        if cell is None:
            cell = self._made[id(plan)] = []
            cell.append(self._make(plan))
        if cell:
            return cell[0]
        return _deferred(cell)

    def _make(self, plan: ValuePlan) -> LiftFunction:
        """Return the function that lifts values of a plan."""
        match plan:
            case TextPlan():
                return parse_text
            case RecordPlan():
                return self._record(plan)
            case Items():
                return self._items(plan)
            case Pairs():
                return _pairs(self.of(plan.value) or same)
            case Tuple():
                return self._tuple(plan)
            case Wrapped():
                return _wrapped(plan.key, self.of(plan.plan) or same)
            case NullBox():
                return _null_box(self.of(plan.plan) or same)
            case ChoicePlan():
                return _choice({name: self.of(inner) or same for name, (inner, _) in plan.options.items()})
            case UnionPlan():
                return self._union(plan)
            case Ref() if plan.target is not None:
                return self.of(plan.target) or same
            case _:
                return same

    def entry(self, entry: FieldPlan) -> LiftFunction | None:
        """Return the function for one property: it returns PENDING when the property is absent."""
        inner = self.of(entry.plan)
        if entry.mode in ("plain", "native"):
            return inner
        lift = inner or same
        if entry.mode == "null":
            return lambda value: PENDING if value is None else lift(value)
        if entry.mode == "empty":
            return lambda value: PENDING if value == [] else lift(value)
        return _absent_box(lift)

    def _record(self, plan: RecordPlan) -> LiftFunction:
        made = {name: self.entry(entry) for name, entry in plan.fields.items()}
        fields = {name: lift for name, lift in made.items() if lift is not None}
        others = self.of(plan.values)
        if plan.extra is not None:
            return _record_with_extra(fields, plan.names, plan.extra, others or same)
        if others is not None:
            return _record_with_others(fields, plan, others)
        return _record(fields, plan.names)

    def _items(self, plan: Items) -> LiftFunction:
        """Return the function that lifts an array, whose first items may have separate plans."""
        rest = self.of(plan.rest)
        if not plan.prefix:
            item = rest or same
            return lambda value: [item(each) for each in value] if isinstance(value, list) else value
        prefix = [self.of(inner) or same for inner in plan.prefix]
        tail = rest or same

        def lift(value: Any) -> Any:
            if not isinstance(value, list):
                return value
            head = [one(each) for one, each in zip(prefix, value, strict=False)]
            return head + [tail(each) for each in value[len(prefix) :]]

        return lift

    def _tuple(self, plan: Tuple) -> LiftFunction:
        """Return the function that turns an object with a key for each place into an array."""
        places = [(name, self.entry(entry) or same) for name, entry in plan.places.items()]
        rest_key = plan.rest_key
        rest = self.of(plan.rest) or same

        def lift(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            out: list[Any] = []
            for name, place in places:
                each = place(value[name]) if name in value else PENDING
                if each is PENDING:
                    return out
                out.append(each)
            more = value.get(rest_key)
            if isinstance(more, list):
                return out + [rest(each) for each in more]
            return out

        return lift

    def _union(self, plan: UnionPlan) -> LiftFunction:
        """Return the function that determines a value's alternative, and lifts it by that plan."""
        table = plan.table
        assert table is not None  # noqa: S101 — every union has its table before lifting
        by_kind = {kind: made for kind, inner in table.by_kind.items() if (made := self.of(inner)) is not None}
        objects = [(tests, self.of(inner) or same) for tests, inner in table.objects]
        get = by_kind.get

        def lift(value: Any) -> Any:
            if isinstance(value, dict):
                for tests, inner in objects:
                    if holds(tests, value):
                        return inner(value)
                return value
            lift_branch = get(kind_of(value))
            if lift_branch is None:
                return value
            return lift_branch(value)

        return lift


def _deferred(cell: list[LiftFunction]) -> LiftFunction:
    """Return a function that is still being built, for recursive plans."""
    return lambda value: cell[0](value)  # noqa: PLW0108 — the cell is empty until then


def _record(fields: Mapping[str, LiftFunction], names: Mapping[str, str]) -> LiftFunction:
    get = fields.get
    renamed = names.get

    def lift(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        out = {}
        for name, each in value.items():
            entry = get(name)
            if entry is not None:
                each = entry(each)
                if each is PENDING:
                    continue
            out[renamed(name, name)] = each
        return out

    return lift


def _record_with_others(fields: Mapping[str, LiftFunction], plan: RecordPlan, others: LiftFunction) -> LiftFunction:
    every = {name: fields.get(name, same) for name in plan.fields}
    names = plan.names

    def lift(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        out = {name: every.get(name, others)(each) for name, each in value.items()}
        return {names.get(name, name): each for name, each in out.items() if each is not PENDING}

    return lift


def _record_with_extra(
    fields: Mapping[str, LiftFunction], names: Mapping[str, str], extra: str, values: LiftFunction
) -> LiftFunction:
    plain = _record(fields, names)
    pairs = _pairs(values)

    def lift(value: Any) -> Any:
        if not isinstance(value, dict) or extra not in value:
            return plain(value)
        out = plain({name: each for name, each in value.items() if name != extra})
        more = pairs(value[extra])
        if isinstance(more, dict):
            return out | {key: each for key, each in more.items() if key not in out}
        return {**out, extra: more}

    return lift


def _pairs(values: LiftFunction) -> LiftFunction:
    def lift(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        out: dict[str, Any] = {}
        for pair in value:
            if isinstance(pair, dict) and isinstance(pair.get("key"), str) and "value" in pair:
                out.setdefault(pair["key"], values(pair["value"]))
        return out

    return lift


def _wrapped(key: str, inner: LiftFunction) -> LiftFunction:
    return lambda value: inner(value[key]) if isinstance(value, dict) and key in value else value


def _absent_box(inner: LiftFunction) -> LiftFunction:
    """Return the function for a property that travels as a list of at most one item."""

    def lift(value: Any) -> Any:
        if not isinstance(value, list):
            return inner(value)
        return inner(value[0]) if value else PENDING

    return lift


def _null_box(inner: LiftFunction) -> LiftFunction:
    def lift(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return inner(value[0]) if value else None

    return lift


def _choice(options: Mapping[str, LiftFunction]) -> LiftFunction:
    def lift(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        for name, each in value.items():
            if name in options and isinstance(each, list) and each:
                return options[name](each[0])
        return None

    return lift


def holds(tests: tuple[Test, ...], value: Mapping[str, Any]) -> bool:
    """Return whether an object passes every test."""
    return all(passes(test, value) for test in tests)


def passes(test: Test, value: Mapping[str, Any]) -> bool:
    """Return whether an object passes one test."""
    word, key, allowed = test
    there = key in value
    if word == "has":
        return there
    if word == "lacks":
        return not there
    if word == "kind":
        return there and kind_of(value[key]) in allowed
    if word == "other_kind":
        return not there or kind_of(value[key]) not in allowed
    matches = there and not isinstance(value[key], dict | list) and json_key(value[key]) in allowed
    return matches if word == "in" else not matches


LiftSteps: TypeAlias = Generator[tuple[ValuePlan, Any], Any, Any]


def lift_deep(plan: ValuePlan, value: Any, active: frozenset[int]) -> Any:
    """Lift a value like the functions of `Lifter`, but with an explicit stack."""
    stack = [_steps(plan, value)]
    result: Any = None
    while stack:
        try:
            inner, each = stack[-1].send(result)
        except StopIteration as stop:
            result = stop.value
            stack.pop()
            continue
        # A new generator accepts only None; a value that needs no lifting is returned directly.
        result = None if id(inner) in active else each
        if id(inner) in active:
            stack.append(_steps(inner, each))
    return result


def _items_at_depth(plan: Items, value: list[Any]) -> LiftSteps:
    plans = (*plan.prefix, *[plan.rest] * (len(value) - len(plan.prefix)))
    out = []
    for inner, each in zip(plans, value, strict=False):
        out.append((yield inner, each))
    return out


def _choice_at_depth(plan: ChoicePlan, value: dict[str, Any]) -> LiftSteps:
    for name, each in value.items():
        if name in plan.options and isinstance(each, list) and each:
            return (yield plan.options[name][0], each[0])
    return None


def _steps(plan: ValuePlan, value: Any) -> LiftSteps:
    """Lift one plan: yield each child to be lifted, and return the resulting value."""
    match plan:
        case TextPlan():
            return parse_text(value)
        case Ref() if plan.target is not None:
            return (yield plan.target, value)
        case UnionPlan() if plan.table is not None:
            alternative = _alternative(plan, value)
            return value if alternative is None else (yield alternative, value)
        case Wrapped() if isinstance(value, dict) and plan.key in value:
            return (yield plan.plan, value[plan.key])
        case NullBox() if isinstance(value, list):
            return (yield plan.plan, value[0]) if value else None
        case RecordPlan() if isinstance(value, dict):
            return (yield from _record_at_depth(plan, value))
        case Items() if isinstance(value, list):
            return (yield from _items_at_depth(plan, value))
        case Pairs() if isinstance(value, list):
            return (yield from _pairs_at_depth(plan.value, value))
        case Tuple() if isinstance(value, dict):
            return (yield from _tuple(plan, value))
        case ChoicePlan() if isinstance(value, dict):
            return (yield from _choice_at_depth(plan, value))
        case _:
            return value


def _alternative(plan: UnionPlan, value: Any) -> ValuePlan | None:
    if plan.table is None:
        return None
    if isinstance(value, dict):
        return next((inner for tests, inner in plan.table.objects if holds(tests, value)), None)
    return plan.table.by_kind.get(kind_of(value))


def _field(entry: FieldPlan, value: Any) -> LiftSteps:
    """Lift a property; return PENDING for an absent one."""
    if (entry.mode == "null" and value is None) or (entry.mode in ("empty", "box") and value == []):
        return PENDING
    if entry.mode == "box" and isinstance(value, list):
        value = value[0]
    return (yield entry.plan, value)


def _record_at_depth(plan: RecordPlan, value: dict[str, Any]) -> LiftSteps:
    """Lift an object property by property, then the pairs of its further keys."""
    out = {}
    for name, each in value.items():
        entry = plan.fields.get(name)
        if entry is not None:
            lifted = yield from _field(entry, each)
            if lifted is not PENDING:
                out[plan.names.get(name, name)] = lifted
        elif name != plan.extra:
            out[name] = each if plan.extra is not None else (yield plan.values, each)
    if plan.extra is not None and plan.extra in value:
        more = value[plan.extra]
        if not isinstance(more, list):
            return out | (
                {key: more[key] for key in more if key not in out} if isinstance(more, dict) else {plan.extra: more}
            )
        pairs = yield from _pairs_at_depth(plan.values, more)
        out |= {key: each for key, each in pairs.items() if key not in out}
    return out


def _pairs_at_depth(plan: ValuePlan, value: list[Any]) -> LiftSteps:
    out: dict[str, Any] = {}
    for pair in value:
        if isinstance(pair, dict) and isinstance(pair.get("key"), str) and "value" in pair:
            lifted = yield plan, pair["value"]
            out.setdefault(pair["key"], lifted)
    return out


def _tuple(plan: Tuple, value: dict[str, Any]) -> LiftSteps:
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

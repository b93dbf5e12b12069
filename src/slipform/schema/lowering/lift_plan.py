"""Represent the conversion of a vendor's value to the caller's shape as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

AbsenceMode: TypeAlias = Literal["plain", "native", "null", "empty", "box"]
"""How a property may be absent: never, by omission, as null, as [], or as an array of zero or one items."""


@dataclass(slots=True, eq=False)
class Same:
    """The value is lifted unchanged."""


@dataclass(slots=True, eq=False)
class TextPlan:
    """JSON text in a string."""


@dataclass(slots=True, eq=False)
class FieldPlan:
    """One property of a record or one place of a tuple."""

    mode: AbsenceMode
    plan: ValuePlan
    kinds: frozenset[str] = frozenset()
    """The JSON types that the vendor's value may have when the property is present."""


@dataclass(slots=True, eq=False)
class RecordPlan:
    """An object that is lifted to an object."""

    fields: dict[str, FieldPlan]
    extra: str | None = None
    """The property that contains the unlisted keys as key/value pairs."""
    values: ValuePlan = field(default_factory=Same)
    """The plan of the values of those keys."""
    closed: bool = True
    names: dict[str, str] = field(default_factory=dict)
    """The caller's names of renamed properties."""


@dataclass(slots=True, eq=False)
class Items:
    """An array that is lifted to an array."""

    prefix: tuple[ValuePlan, ...]
    rest: ValuePlan


@dataclass(slots=True, eq=False)
class Pairs:
    """An array of key/value objects that is lifted to an object."""

    value: ValuePlan


@dataclass(slots=True, eq=False)
class Tuple:
    """An object with one property per index that is lifted to an array."""

    places: dict[str, FieldPlan]
    rest_key: str | None
    rest: ValuePlan


@dataclass(slots=True, eq=False)
class Wrapped:
    """An object with one property, which holds the value."""

    key: str
    plan: ValuePlan


@dataclass(slots=True, eq=False)
class NullBox:
    """An array of at most one item; an empty one is lifted to null."""

    plan: ValuePlan


@dataclass(slots=True, eq=False)
class ChoicePlan:
    """An object of arrays, one per alternative; the first non-empty one contains the value."""

    options: dict[str, tuple[ValuePlan, dict[str, Any]]]


@dataclass(slots=True, eq=False)
class Branch:
    """One alternative of a union: its lowered schema and its plan."""

    schema: dict[str, Any]
    plan: ValuePlan
    name: str


@dataclass(slots=True, eq=False)
class UnionPlan:
    """Alternatives that the vendor's value itself distinguishes, once `table` is built."""

    branches: list[Branch]
    schema: dict[str, Any]
    table: Table | None = None
    tagged: bool = False


@dataclass(slots=True, eq=False)
class Ref:
    """A reference to another plan, which may still be under construction."""

    name: str
    target: ValuePlan | None = None


ValuePlan: TypeAlias = (
    Same | TextPlan | RecordPlan | Items | Pairs | Tuple | Wrapped | NullBox | ChoicePlan | UnionPlan | Ref
)

Test: TypeAlias = tuple[Literal["has", "lacks", "in", "out", "kind", "other_kind"], str, frozenset[str]]
"""A test of one key of an object: whether it is there, or its value or JSON type belongs to a set.

`out` and `other_kind` also hold for objects without the key.
"""


@dataclass(slots=True, eq=False)
class Table:
    """Which plan to follow, by the JSON type of the vendor's value and, for objects, by tests on its keys."""

    by_kind: dict[str, ValuePlan]
    objects: list[tuple[tuple[Test, ...], ValuePlan]]


@dataclass(frozen=True, slots=True, eq=False)
class LiftPlan:
    """The plan of a lowered schema's root, and the plans in it that change values."""

    root: ValuePlan
    active: frozenset[int]
    """The ids of the plans with an encoded part."""
    schema: Mapping[str, Any]
    """The lowered root before definitions were chosen and the vendor's spelling was applied."""
    defs: Mapping[str, Any]


SAME = Same()
TEXT = TextPlan()
ANY = frozenset({"null", "boolean", "number", "string", "array", "object"})
"""The JSON types, integers counting as numbers."""


@dataclass(slots=True)
class Out:
    """A lowered schema, the plan for its values, and the JSON types they may have."""

    schema: dict[str, Any]
    plan: ValuePlan
    kinds: frozenset[str]
    free: bool = False
    """Whether it accepts any JSON value."""


PENDING: Any = object()
"""No value yet: an absent property, or a value of which too little has arrived."""


def children(plan: ValuePlan, *, tables: bool = True) -> Iterator[ValuePlan]:
    """Yield the direct children of a plan, on request with those in the tables of unions."""
    match plan:
        case RecordPlan():
            yield from (entry.plan for entry in plan.fields.values())
            yield plan.values
        case Tuple():
            yield from (entry.plan for entry in plan.places.values())
            yield plan.rest
        case Items():
            yield from plan.prefix
            yield plan.rest
        case Pairs():
            yield plan.value
        case Wrapped() | NullBox():
            yield plan.plan
        case ChoicePlan():
            yield from (inner for inner, _ in plan.options.values())
        case UnionPlan():
            yield from (branch.plan for branch in plan.branches)
            if plan.table is not None and tables:
                yield from plan.table.by_kind.values()
                yield from (inner for _, inner in plan.table.objects)
        case Ref():
            if plan.target is not None:
                yield plan.target
        case _:
            return


def encodes(plan: ValuePlan) -> bool:
    """Return whether a plan itself changes the value."""
    match plan:
        case RecordPlan():
            encodes_absence = any(entry.mode not in ("plain", "native") for entry in plan.fields.values())
            return encodes_absence or plan.extra is not None or bool(plan.names)
        case UnionPlan():
            return plan.tagged
        case Same() | Items() | Ref():
            return False
        case _:
            return True


def reachable(root: ValuePlan, *, tables: bool = True) -> list[ValuePlan]:
    """Return every plan under `root`, each once, outer ones first."""
    visited = {id(root)}
    order: list[ValuePlan] = [root]
    for plan in order:
        for child in children(plan, tables=tables):
            if id(child) not in visited:
                visited.add(id(child))
                order.append(child)
    return order


def active(root: ValuePlan, *, tables: bool = True) -> frozenset[int]:
    """Return the ids of the plans with an encoded part; all others are the identity."""
    order = reachable(root, tables=tables)
    encoding = {id(plan) for plan in order if encodes(plan)}
    if not encoding:
        return frozenset()
    changed = True
    while changed:
        changed = False
        for plan in reversed(order):
            if id(plan) not in encoding and any(id(child) in encoding for child in children(plan, tables=tables)):
                encoding.add(id(plan))
                changed = True
    return frozenset(encoding)


def kind_of(value: object) -> str:
    """Return the JSON type of a value, integers counting as numbers."""
    return KINDS.get(type(value), "object" if isinstance(value, Mapping) else "string")


KINDS: Mapping[type, str] = {
    dict: "object",
    list: "array",
    tuple: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}

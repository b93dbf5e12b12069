"""Find, for each union, the tests that decide which alternative a vendor's value is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.errors import UnsupportedSchemaError
from slipform.schema.document import definition_of
from slipform.schema.keywords import json_key
from slipform.schema.lowering.lift_plan import (
    ANY,
    SAME,
    AbsenceMode,
    Branch,
    FieldPlan,
    Items,
    Pairs,
    RecordPlan,
    Ref,
    Table,
    Test,
    TextPlan,
    UnionPlan,
    ValuePlan,
    Wrapped,
    active,
    reachable,
)
from slipform.schema.lowering.unions import kinds_of

_MAX_LEAVES = 400
"""The most alternatives of one union, as each is compared with every other."""
_MAX_DEPTH = 30


@dataclass(slots=True, eq=False)
class _Leaf:
    """One alternative, with its schema after resolving references."""

    schema: Mapping[str, Any]
    plan: ValuePlan
    branch: Branch
    required: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = field(default_factory=dict)
    closed: bool = False
    _values: dict[str, frozenset[str] | None] = field(default_factory=dict)

    def values_of(self, key: str) -> frozenset[str] | None:
        """Return the possible values of a property, where they are listed.

        Called for every pair of alternatives.
        """
        if key not in self._values:
            self._values[key] = _values(self.properties[key])
        return self._values[key]


class _Clash(Exception):  # noqa: N818 — control flow: this branch needs a tag
    def __init__(self, branch: Branch) -> None:
        super().__init__(branch.name)
        self.branch = branch


def separate(root: ValuePlan, defs: Mapping[str, Any]) -> None:
    """Tag the objects of a union that begin with the same key, for vendors that distinguish them by it."""
    for union in reachable(root):
        if not isinstance(union, UnionPlan):
            continue
        firsts: dict[str, list[Branch]] = {}
        for branch in union.branches:
            schema: Mapping[str, Any] = branch.schema
            while (name := definition_of(schema)) is not None:
                schema = defs[name]
            for first in list(schema.get("properties", ()))[:1]:
                firsts.setdefault(first, []).append(branch)
        for branches in firsts.values():
            for branch in branches if len(branches) > 1 else ():
                _tag(union, branch)


def settle(root: ValuePlan, defs: Mapping[str, Any], *, closed: bool) -> frozenset[int]:
    """Build the table of every union under `root`, tagging branches in place; return the ids of active plans.

    `closed` says that objects cannot have other keys even if the schema does not say so.
    """
    now = active(root)
    unions = [plan for plan in reachable(root) if isinstance(plan, UnionPlan)] if now else []
    while unions:
        for union in unions:
            union.table = None
        settler = _Settler(defs, set(now), closed)
        for union in unions:
            if id(union) in now:
                settler.settle(union)
        then = active(root, tables=False)
        if then == now:
            return active(root)
        now = then
    return now


@dataclass(slots=True)
class _Settler:
    defs: Mapping[str, Any]
    active: set[int]
    closed: bool
    _made: list[ValuePlan] = field(default_factory=list)
    _pairs: dict[tuple[int, int], ValuePlan] = field(default_factory=dict)

    def settle(self, union: UnionPlan) -> None:
        while True:
            try:
                union.table = self._table(union)
            except _Clash as clash:
                _tag(union, clash.branch)
            else:
                return

    def _new(self, plan: ValuePlan) -> ValuePlan:
        """Return a merged plan, which counts as active because its parts differed."""
        self._made.append(plan)
        self.active.add(id(plan))
        return plan

    def _table(self, union: UnionPlan) -> Table:
        """Return the table that distinguishes a union's alternatives: by JSON type, objects by tests on their keys."""
        by_kind: dict[str, ValuePlan] = {}
        groups: list[tuple[list[_Leaf], ValuePlan]] = []
        if len(union.branches) > _MAX_LEAVES:
            raise _too_many(len(union.branches))
        leaves = [leaf for branch in union.branches for leaf in self._leaves(branch)]
        if len(leaves) > _MAX_LEAVES:
            raise _Clash(_untagged(union))
        for leaf in leaves:
            for kind in kinds_of(dict(leaf.schema)):
                if kind == "object":
                    groups = self._grouped(groups, leaf)
                elif kind in by_kind:
                    by_kind[kind] = self._merge(by_kind[kind], leaf.plan, leaf.branch)
                else:
                    by_kind[kind] = leaf.plan
        objects = []
        for index, (members, plan) in enumerate(groups):
            others = [leaf for at, (rest, _) in enumerate(groups) if at != index for leaf in rest]
            objects += [(self._tests(leaf, others), plan) for leaf in members]
        return Table(by_kind, objects)

    def _leaves(self, branch: Branch) -> list[_Leaf]:
        """Return the alternatives of a branch, including those of nested unions."""
        leaves: list[_Leaf] = []
        stack: list[tuple[Mapping[str, Any], ValuePlan]] = [(branch.schema, branch.plan)]
        visited: set[int] = set()
        while stack:
            schema, plan = stack.pop()
            schema, plan = self._deref(schema, plan)
            if id(schema) in visited:
                continue
            visited.add(id(schema))
            if isinstance(plan, UnionPlan) and "anyOf" in schema:
                stack += [(inner.schema, inner.plan) for inner in reversed(plan.branches)]
                planned = {id(inner.schema) for inner in plan.branches}
                stack += [(extra, SAME) for extra in schema["anyOf"] if id(extra) not in planned]
            else:
                leaves.append(self._leaf(schema, plan, branch))
        return leaves

    def _deref(self, schema: Mapping[str, Any], plan: ValuePlan) -> tuple[Mapping[str, Any], ValuePlan]:
        """Return the schema and plan that a reference resolves to."""
        for _ in range(100):
            if not isinstance(plan, Ref) or plan.target is None:
                break
            schema = self.defs[plan.name]
            plan = plan.target
        return schema, plan

    def _leaf(self, schema: Mapping[str, Any], plan: ValuePlan, branch: Branch) -> _Leaf:
        return _Leaf(
            schema,
            plan,
            branch,
            frozenset(schema.get("required", ())),
            schema.get("properties", {}),
            self.closed or schema.get("additionalProperties") is False,
        )

    def _grouped(self, groups: list[tuple[list[_Leaf], ValuePlan]], leaf: _Leaf) -> list[tuple[list[_Leaf], ValuePlan]]:
        apart = []
        members = [leaf]
        plan = leaf.plan
        for group, group_plan in groups:
            if all(self._feature(leaf, other) is not None for other in group):
                apart.append((group, group_plan))
            else:
                plan = self._merge(group_plan, plan, leaf.branch)
                members = [*group, *members]
        return [*apart, (members, plan)]

    def _tests(self, leaf: _Leaf, others: list[_Leaf]) -> tuple[Test, ...]:
        features = {self._feature(leaf, other): None for other in others}
        return tuple(test for test in features if test is not None)

    @staticmethod
    def _by_values(one: _Leaf, other: _Leaf, shared: list[str]) -> Test | None:
        """Return a test on a key whose listed values differ."""
        for key in shared:
            mine = one.values_of(key)
            theirs = other.values_of(key)
            if mine is not None and theirs is not None and mine.isdisjoint(theirs):
                if key in one.required:
                    return ("in", key, mine)
                if key in other.required:
                    return ("out", key, theirs)
        return None

    def _feature(self, one: _Leaf, other: _Leaf) -> Test | None:
        """Return a test that every object of `one` passes and none of `other`."""
        shared = [key for key in one.properties if key in other.properties]
        if (by_values := self._by_values(one, other, shared)) is not None:
            return by_values
        for key in one.properties:
            if key in one.required and other.closed and key not in other.properties:
                return ("has", key, frozenset())
        for key in shared:
            kinds = self._kinds(one.properties[key])
            other_kinds = self._kinds(other.properties[key])
            if kinds.isdisjoint(other_kinds):
                if key in one.required:
                    return ("kind", key, kinds)
                if key in other.required:
                    return ("other_kind", key, other_kinds)
        for key in other.properties:
            if key in other.required and one.closed and key not in one.properties:
                return ("lacks", key, frozenset())
        return None

    def _kinds(self, schema: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
        if (name := definition_of(schema)) is not None:
            if depth > 20:
                return ANY
            return self._kinds(self.defs[name], depth + 1)
        if "type" not in schema and "anyOf" in schema:
            return frozenset().union(*(self._kinds(branch, depth + 1) for branch in schema["anyOf"]))
        return kinds_of(dict(schema))

    def _merge(self, one: ValuePlan, other: ValuePlan, branch: Branch) -> ValuePlan:
        merged = self._merged(one, other, 0)
        if merged is None:
            raise _Clash(branch)
        return merged

    def _merged(self, one: ValuePlan, other: ValuePlan, depth: int) -> ValuePlan | None:
        """Return a plan that fits values of both; None when there is none."""
        while isinstance(one, Ref) and one.target is not None:
            one = one.target
        while isinstance(other, Ref) and other.target is not None:
            other = other.target
        if one is other or (isinstance(one, TextPlan) and isinstance(other, TextPlan)):
            return one
        pair = (id(one), id(other))
        if pair in self._pairs:
            return self._pairs[pair]
        count_before = len(self._pairs)
        # A pair that recurs inside itself refers to the merged plan in progress.
        waiting = Ref("")
        self._pairs[pair] = waiting
        merged = None if depth > _MAX_DEPTH else self._merge_plans(one, other, depth)
        if merged is not None:
            waiting.target = merged
            self._pairs[pair] = self._new(merged)
            self._new(waiting)
            return merged
        for stale in list(self._pairs)[count_before:]:
            del self._pairs[stale]
        if id(one) not in self.active and id(other) not in self.active:
            return SAME
        return None

    def _merge_plans(self, one: ValuePlan, other: ValuePlan, depth: int) -> ValuePlan | None:
        match one, other:
            case RecordPlan(), RecordPlan():
                return self._merged_records(one, other, depth)
            case Items(), Items():
                return self._merged_items(one, other, depth)
            case Pairs(), Pairs():
                value = self._merged(one.value, other.value, depth + 1)
                return None if value is None else Pairs(value)
            case _:
                return None

    def _merged_items(self, one: Items, other: Items, depth: int) -> Items | None:
        if one.prefix or other.prefix:
            return None
        rest = self._merged(one.rest, other.rest, depth + 1)
        return None if rest is None else Items((), rest)

    def _merged_extra_values(self, one: RecordPlan, other: RecordPlan, depth: int) -> ValuePlan | None:
        if one.extra is None and other.extra is None:
            return SAME
        if one.extra is not None and other.extra is not None:
            return self._merged(one.values, other.values, depth + 1)
        return (one if one.extra else other).values

    def _merged_records(self, one: RecordPlan, other: RecordPlan, depth: int) -> RecordPlan | None:
        """Return a plan that fits objects of both; None where a key has different meanings."""
        if one.extra is not None and other.extra is not None and one.extra != other.extra:
            return None
        if not (self.closed or (one.closed and other.closed)):
            return None
        values = self._merged_extra_values(one, other, depth)
        fields = {**one.fields, **other.fields}
        for name in one.fields.keys() & other.fields.keys():
            merged = self._merged_fields(one.fields[name], other.fields[name], depth)
            if merged is None:
                return None
            fields[name] = merged
        if values is None or {one.extra, other.extra} & fields.keys():
            return None
        shared = one.fields.keys() & other.fields.keys()
        if any(one.names.get(name) != other.names.get(name) for name in shared):
            return None
        return RecordPlan(fields, one.extra or other.extra, values, names={**one.names, **other.names})

    def _merged_fields(self, one: FieldPlan, other: FieldPlan, depth: int) -> FieldPlan | None:
        """Return a plan that fits a property of both; None where its absence is encoded in different ways."""
        plan = self._merged(one.plan, other.plan, depth + 1)
        if plan is None:
            return None
        kinds = one.kinds | other.kinds
        modes = {one.mode, other.mode} - {"plain", "native"}
        if len(modes) > 1:
            return None
        if not modes:
            return FieldPlan("native", plan, kinds)
        mode: AbsenceMode = modes.pop()
        marker = {"null": "null", "empty": "array", "box": "array"}[mode]
        for entry in (one, other):
            if entry.mode in ("plain", "native") and (marker in entry.kinds or mode == "box"):
                return None
        return FieldPlan(mode, plan, kinds)


def _untagged(union: UnionPlan) -> Branch:
    branch_without_tag = next((branch for branch in union.branches if not isinstance(branch.plan, Wrapped)), None)
    if branch_without_tag is None:
        raise _too_many(len(union.branches))
    return branch_without_tag


def _too_many(count: int) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"A union has {count} alternatives to distinguish; up to {_MAX_LEAVES} are possible",
        hint="Use fewer, or the next channel: a tool call or a prompt.",
    )


def _tag(union: UnionPlan, branch: Branch) -> None:
    """Put a branch under its own key."""
    if isinstance(branch.plan, Wrapped):
        branch = _untagged(union)
    taken = {name for other in union.branches for name in other.schema.get("properties", {})}
    key = f"as_{branch.name}"
    while key in taken:
        key += "_"
    index = next(at for at, schema in enumerate(union.schema["anyOf"]) if schema is branch.schema)
    tagged = {
        "type": "object",
        "properties": {key: branch.schema},
        "required": [key],
        "additionalProperties": False,
    }
    branch.schema, branch.plan = tagged, Wrapped(key, branch.plan)
    union.schema["anyOf"][index] = tagged
    union.tagged = True


def _values(schema: Mapping[str, Any]) -> frozenset[str] | None:
    values = schema.get("enum")
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return frozenset(json_key(value) for value in values)

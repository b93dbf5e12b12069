"""Lower unions: distributed, tagged, or encoded without `anyOf`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from slipform.schema.document import REF
from slipform.schema.keywords import JSON_TYPES
from slipform.schema.lowering.descriptions import describe
from slipform.schema.lowering.lift_plan import (
    ANY,
    SAME,
    Branch,
    ChoicePlan,
    NullBox,
    Out,
    Ref,
    Same,
    TextPlan,
    UnionPlan,
    ValuePlan,
)
from slipform.schema.normal_form import Bound, Conjunction, SourceNode, flatten, keywords_in
from slipform.schema.shape import to_text

if TYPE_CHECKING:
    from slipform.schema.lowering.emit import Emitter

Split: TypeAlias = tuple[SourceNode, str]

_STRUCTURE = frozenset(
    {
        "type", "properties", "patternProperties", "additionalProperties", "items", "prefixItems", "enum", "const",
        "anyOf", "oneOf",
    }
)  # fmt: skip
_MAX_PRODUCT = 64
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]+")


def sort_groups(emitter: Emitter, shape: Conjunction) -> tuple[Split | None, list[SourceNode]]:
    """Return the union to distribute over alternatives, and those that are only described and validated."""
    split: Split | None = None
    loosened: list[SourceNode] = []
    product = 1
    for part, word in shape.groups:
        strength, live = _strength(emitter, shape, part, word)
        if strength == "never":
            shape.types = frozenset()
        elif strength == "weak":
            loosened += live
            _tell(shape, Bound(word, part.get(word), f"{part.pointer}/{word}"))
        elif strength == "strong":
            split = split or (part, word)
            product *= len(live)
    if product > _MAX_PRODUCT and len(shape.groups) > 1:
        first = next(bound for bound in shape.groups)
        _tell(shape, Bound(first[1], first[0].get(first[1]), f"{first[0].pointer}/{first[1]}"))
        for part, word in shape.groups:
            loosened += _branches(emitter, part, word)
        return None, loosened
    return split, loosened


def _tell(shape: Conjunction, bound: Bound) -> None:
    if all(local.pointer != bound.pointer for local in shape.local):
        shape.local.append(bound)


def _branches(emitter: Emitter, part: SourceNode, word: str) -> list[SourceNode]:
    return [emitter.source.child(part, word, str(index)) for index in range(len(part.get(word)))]


def _strength(emitter: Emitter, shape: Conjunction, part: SourceNode, word: str) -> tuple[str, list[SourceNode]]:
    """Return whether a union has structure ("strong"), only excludes values ("weak"), or accepts all or no values."""
    live: list[SourceNode] = []
    strong = False
    for branch in _branches(emitter, part, word):
        parts, _, never = flatten(emitter.source, [branch])
        if never:
            continue
        if not parts:
            return "vacuous", []
        live.append(branch)
        keywords = _STRUCTURE & frozenset().union(*(keywords_in(one) for one in parts))
        if keywords == {"type"} and shape.types != JSON_TYPES:
            keywords = frozenset() if emitter.shape((branch,)).types >= shape.types else keywords
        strong = strong or bool(keywords)
    if not live:
        return "never", []
    return ("strong" if strong else "weak"), live


def distribute(emitter: Emitter, shape: Conjunction, split: Split) -> Out | None:
    """Lower a union: each branch together with the union's siblings."""
    part, word = split
    base = [emitter.source.alone(one, *((word,) if one is part else ())) for one in shape.parts]
    base = [one for one in base if keywords_in(one)]
    only_type = all(keywords_in(one) == {"type"} for one in base)
    if word == "oneOf":
        emitter.report.add(f"{part.pointer}/oneOf", "oneOf", part.get("oneOf"), "approximated")
    outs: list[tuple[str, Out]] = []
    visited: set[tuple[SourceNode, ...]] = set()
    for index, branch in enumerate(_branches(emitter, part, word)):
        target = emitter.follow((branch,))[0]
        if target in visited:
            continue
        visited.add(target)
        alone = only_type and emitter.shape((branch,)).types <= shape.types
        out = emitter.emit([branch] if alone else [*base, branch])
        if out is not None:
            outs.append((_name(branch, out, index), out))
    if not outs:
        return None
    return union(emitter, outs, f"{part.pointer}/{word}", shape)


def _name(branch: SourceNode, out: Out, index: int) -> str:
    for title in (branch.get("title"), out.schema.get("title"), out.schema.get("type")):
        if isinstance(title, str) and title != "object":
            return _NOT_IN_A_NAME.sub("_", title).strip("_").lower()[:40] or f"option_{index + 1}"
    if isinstance(out.plan, Ref):
        return out.plan.name[:40]
    return f"option_{index + 1}"


def union(emitter: Emitter, outs: list[tuple[str, Out]], pointer: str, shape: Conjunction | None) -> Out:
    """Return one of several lowered schemas."""
    outs = _flat(outs)
    wide = next((out for _, out in outs if out.free), None)
    if wide is not None:
        return wide
    head = {} if shape is None else describe(emitter, {}, shape)
    if len(outs) == 1:
        return _with_note(emitter, outs[0][1], head, pointer)
    counted = "unions" in emitter.dialect.limits
    if counted and pointer in emitter.policy.chosen:
        return _chosen(outs, head, emitter)
    if counted:
        emitter.unions.append((emitter.depth, pointer))
    listed = _type_list(emitter, outs)
    if listed is not None:
        return Out({**head, **listed.schema}, listed.plan, listed.kinds)
    schema: dict[str, Any] = {**head, "anyOf": [out.schema for _, out in outs]}
    branches = [Branch(out.schema, out.plan, name) for name, out in outs]
    return Out(schema, UnionPlan(branches, schema), frozenset().union(*(out.kinds for _, out in outs)))


def _with_note(emitter: Emitter, out: Out, head: dict[str, Any], site: str) -> Out:
    """Return a union of one branch: the branch, with the union's note unless it has its own."""
    if not head or "description" in out.schema:
        return out
    if REF in out.schema:
        if "description" not in head:
            return out
        return Out(emitter.noted(out.schema, head["description"], site), out.plan, out.kinds)
    out.schema.update({key: value for key, value in head.items() if key not in out.schema})
    return out


def _flat(outs: list[tuple[str, Out]]) -> list[tuple[str, Out]]:
    """Flatten unions inside a union, and remove duplicates."""
    flat: list[tuple[str, Out]] = []
    for name, out in outs:
        if isinstance(out.plan, UnionPlan) and out.schema.keys() == {"anyOf"} and out.plan.schema is out.schema:
            flat += [(inner.name, Out(inner.schema, inner.plan, kinds_of(inner.schema))) for inner in out.plan.branches]
        else:
            flat.append((name, out))
    distinct: list[tuple[str, Out]] = []
    by_text: dict[bytes, list[Out]] = {}
    for name, out in flat:
        same = by_text.setdefault(to_text(out.schema), [])
        if not any(_is_same_output(out, other) for other in same):
            same.append(out)
            distinct.append((name, out))
    return distinct


def _is_same_output(one: Out, other: Out) -> bool:
    if one.schema != other.schema:
        return False
    if isinstance(one.plan, Ref) and isinstance(other.plan, Ref):
        return one.plan.name == other.plan.name
    return type(one.plan) is type(other.plan) and isinstance(one.plan, Same | TextPlan)


def _type_list(emitter: Emitter, outs: list[tuple[str, Out]]) -> Out | None:
    """Return one scalar type or null, as a list of two types."""
    if len(outs) != 2 or sum(out.schema == {"type": "null"} for _, out in outs) != 1:
        return None
    other = next(out for _, out in outs if out.schema != {"type": "null"})
    name = other.schema.get("type")
    if name not in ("string", "number", "integer", "boolean") or not isinstance(other.plan, Same):
        return None
    schema = nullable_scalar(emitter, other.schema)
    if schema is None:
        return None
    return Out(schema, SAME, other.kinds | {"null"})


def nullable_scalar(emitter: Emitter, scalar: dict[str, Any]) -> dict[str, Any] | None:
    """Return a scalar that may also be null; None where the dialect's enum cannot hold null."""
    schema = {**scalar, "type": [scalar["type"], "null"]}
    if "enum" in schema:
        if "null" not in emitter.dialect.enum_types or emitter.dialect.null_enum == "anyOf":
            return None
        schema["enum"] = [*schema["enum"], None]
    return schema


def _chosen(outs: list[tuple[str, Out]], head: dict[str, Any], emitter: Emitter) -> Out:
    """Return a union without `anyOf`: an object with an array per alternative, one of which has one item."""
    rest = [(name, out) for name, out in outs if out.schema != {"type": "null"}]
    if len(rest) < len(outs):
        inner = rest[0][1] if len(rest) == 1 else _chosen(rest, {}, emitter)
        return Out(
            box(emitter, inner.schema, "[] for null, else one item", head), NullBox(inner.plan), frozenset({"array"})
        )
    options: dict[str, tuple[ValuePlan, dict[str, Any]]] = {}
    properties: dict[str, Any] = {}
    for name, out in rest:
        count = 1
        unique = name
        while unique in options:
            count += 1
            unique = f"{name}_{count}"
        options[unique] = (out.plan, out.schema)
        properties[unique] = box(emitter, out.schema, None, {})
    text = "exactly one of these arrays holds one item, the others are empty"
    note = f"{head['description']} ({text})" if "description" in head else text
    schema = {**head, "description": note, **closed_object(emitter, properties, list(properties))}
    return Out(schema, ChoicePlan(options), frozenset({"object"}))


def box(emitter: Emitter, schema: dict[str, Any], text: str | None, head: dict[str, Any]) -> dict[str, Any]:
    """Return an array of zero or one items."""
    boxed = {**head, "type": "array", "items": schema}
    if text is not None:
        boxed["description"] = f"{head['description']} ({text})" if "description" in head else text
    if "maxItems" in emitter.dialect.keywords:
        boxed["maxItems"] = 1
    return boxed


def closed_object(emitter: Emitter, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Return an object with these properties and no others, as the dialect spells it."""
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    schema["additionalProperties"] = False
    if emitter.dialect.ordering:
        schema["propertyOrdering"] = list(properties)
    return schema


def kinds_of(schema: dict[str, Any]) -> frozenset[str]:
    """Return the JSON types that a lowered schema accepts by itself; all of them for a reference."""
    kinds = schema.get("type")
    if kinds is None and "anyOf" in schema:
        return frozenset().union(*(kinds_of(branch) for branch in schema["anyOf"]))
    if kinds is None:
        return ANY
    names = kinds if isinstance(kinds, list) else [kinds]
    return frozenset("number" if name == "integer" else name for name in names)

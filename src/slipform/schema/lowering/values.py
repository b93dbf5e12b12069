"""Lower arrays, scalars and enumerations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slipform.schema.keywords import json_type
from slipform.schema.lowering import unions
from slipform.schema.lowering.descriptions import constraints, describe, note
from slipform.schema.lowering.lift_plan import SAME, TEXT, FieldPlan, Items, Out, Same, Tuple
from slipform.schema.lowering.objects import absence, spell_absence
from slipform.schema.lowering.unions import closed_object
from slipform.schema.normal_form import ArrayView, Bound, Conjunction, array_view

if TYPE_CHECKING:
    from slipform.schema.lowering.emit import Emitter

_ARRAY = frozenset({"array"})
_LENGTHS = ("minItems", "maxItems")


def _emit_prefix(emitter: Emitter, view: ArrayView, least: int) -> list[Out]:
    """Lower the first items, up to one that no value matches."""
    prefix: list[Out] = []
    for parts in view.prefix:
        out = emitter.emit(parts, optional=len(prefix) >= least)
        if out is None:
            break
        prefix.append(out)
    return prefix


def _ends_with_prefix(shape: Conjunction, view: ArrayView) -> bool:
    """Return whether no item may follow the first ones."""
    most = shape.bounds["maxItems"].value if "maxItems" in shape.bounds else None
    return view.openness == "closed" or (most is not None and most <= len(view.prefix))


def emit_array(emitter: Emitter, shape: Conjunction) -> Out | None:
    """Lower the array part of a shape; None when no array matches.

    `prefix` is the items at fixed positions, `rest` is any item after them; None where none may follow.
    """
    view = array_view(emitter.source, shape.parts)
    least = shape.bounds["minItems"].value if "minItems" in shape.bounds else 0
    prefix = _emit_prefix(emitter, view, least)
    is_native_tuple = bool(prefix) and emitter.dialect.tuples == "native"
    rest: Out | None = None
    # A prefix that is shorter than the schema's ends at an item that no value fits, so nothing may follow it.
    if len(prefix) == len(view.prefix) and not _ends_with_prefix(shape, view):
        if view.openness == "implicit" and not is_native_tuple and emitter.dialect.free == "json":
            return _emit_untyped_items(emitter, shape, view, prefix, least)
        rest = emitter.emit(view.rest, optional=True)
    if rest is None and least > len(prefix):
        return None
    if not prefix:
        return _plain(emitter, shape, view, rest)
    if is_native_tuple:
        return _native(emitter, shape, prefix, rest)
    if _uniform(prefix, rest):
        most = len(prefix) if rest is None else None
        return _plain(emitter, shape, view, prefix[0], most)
    return _as_object(emitter, shape, view, prefix, rest, least)


def _emit_untyped_items(emitter: Emitter, shape: Conjunction, view: ArrayView, prefix: list[Out], least: int) -> Out:
    """Note that unconstrained items are encoded as JSON text, because the dialect requires types."""
    pointer = shape.parts[0].pointer if shape.parts else ""
    if not prefix:
        emitter.report.add(f"{pointer}/type", "type", "array", "encoded")
        notes = _untaken_lengths(emitter, shape)
        schema = describe(emitter, {"type": "string"}, shape, ["a JSON array, written as JSON text", *notes])
        return Out(schema, TEXT, frozenset({"string"}))
    if least <= len(prefix):
        emitter.report.add(f"{pointer}/items", "items", None, "closed")
        if _uniform(prefix, None):
            return _plain(emitter, shape, view, prefix[0])
        return _as_object(emitter, shape, view, prefix, None, least)
    return _as_object(emitter, shape, view, prefix, emitter.free((), None), least)


def _lengths(
    emitter: Emitter, shape: Conjunction, most: int | None, kinds: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], list[str]]:
    """Return the bounds on the number of items that the dialect supports, and notes on the others."""
    if not _affords_bounds(emitter, shape, kinds):
        notes_on_lengths = _untaken_lengths(emitter, shape)
        return {}, notes_on_lengths if most is None else [*notes_on_lengths, f"at most {most} items"]
    bounds, notes = constraints(emitter, shape, _LENGTHS)
    if most is not None:
        if "maxItems" in emitter.dialect.keywords:
            bounds["maxItems"] = min(most, bounds.get("maxItems", most))
        else:
            notes.append(f"at most {most} items")
    return bounds, notes


def _untaken_lengths(emitter: Emitter, shape: Conjunction) -> list[str]:
    """Report the bounds on the number of items as dropped; notes on them."""
    bounds = [shape.bounds[name] for name in _LENGTHS if name in shape.bounds]
    for bound in bounds:
        emitter.report.add(bound.pointer, bound.keyword, bound.value, "dropped")
    return [note(bound) for bound in bounds]


def _affords_bounds(emitter: Emitter, shape: Conjunction, kinds: frozenset[str]) -> bool:
    """Return whether the vendor's limit leaves room for bounds, by which the vendor may unroll an array."""
    high = max((shape.bounds[name].value for name in _LENGTHS if name in shape.bounds), default=0)
    if high > 1 and "object" in kinds and not emitter.dialect.object_bounds:
        return False
    most = emitter.dialect.limits.get("items")
    if most is not None and emitter.items + high > most:
        return False
    emitter.items += high
    return True


def _plain(emitter: Emitter, shape: Conjunction, view: ArrayView, item: Out | None, most: int | None = None) -> Out:
    """Return an array of equal items; without an item schema, only the empty array matches."""
    if item is None:
        bounds, notes = _lengths(emitter, shape, 0)
        empty = {"type": "array", "items": {"type": "null"}, **bounds}
        return Out(describe(emitter, empty, shape, notes), SAME, _ARRAY)
    bounds, notes = _lengths(emitter, shape, most, item.kinds)
    bare = view.openness == "implicit" and not view.prefix and item.schema == {}
    schema = {"type": "array", **({} if bare else {"items": item.schema}), **bounds}
    return Out(describe(emitter, schema, shape, notes), Items((), item.plan), _ARRAY)


def _native(emitter: Emitter, shape: Conjunction, prefix: list[Out], rest: Out | None) -> Out:
    """Return an array with `prefixItems`, for dialects that have it."""
    kinds = frozenset().union(*(out.kinds for out in prefix if rest is None))
    bounds, notes = _lengths(emitter, shape, len(prefix) if rest is None else None, kinds)
    schema: dict[str, Any] = {"type": "array", "prefixItems": [out.schema for out in prefix], **bounds}
    if rest is not None and rest.schema != {}:
        schema["items"] = rest.schema
    plan = Items(tuple(out.plan for out in prefix), SAME if rest is None else rest.plan)
    return Out(describe(emitter, schema, shape, notes), plan, _ARRAY)


def _uniform(prefix: list[Out], rest: Out | None) -> bool:
    """Return whether one schema fits every position."""
    first = prefix[0]
    others = prefix[1:] if rest is None else [*prefix[1:], rest]
    return isinstance(first.plan, Same) and all(
        isinstance(out.plan, Same) and out.schema == first.schema for out in others
    )


def _as_object(
    emitter: Emitter, shape: Conjunction, view: ArrayView, prefix: list[Out], rest: Out | None, least: int
) -> Out:
    """Return a tuple as an object with one property per position."""
    pointer = shape.parts[0].pointer if shape.parts else ""
    emitter.report.add(f"{pointer}/prefixItems", "prefixItems", None, "encoded")
    plan = Tuple({}, None, SAME)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for index, out in enumerate(prefix):
        name = f"item_{index + 1}"
        parts = view.prefix[index]
        mode = "plain" if index < least else absence(emitter, out, parts, f"{parts[0].pointer}")
        properties[name] = spell_absence(emitter, out, mode) if mode != "plain" else out.schema
        plan.places[name] = FieldPlan(mode, out.plan, out.kinds)
        if mode != "native":
            required.append(name)
    if rest is not None:
        plan.rest_key = "rest"
        plan.rest = rest.plan
        properties["rest"] = {"type": "array", "items": rest.schema}
        required.append("rest")
    bounds = {name: bound for name, bound in shape.bounds.items() if name in _LENGTHS}
    for name, bound in bounds.items():
        emitter.report.add(bound.pointer, name, bound.value, "encoded")
    schema = closed_object(emitter, properties, required)
    return Out(describe(emitter, schema, shape, ["the places of a list, in order"]), plan, frozenset({"object"}))


_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTUAL = ("minLength", "maxLength", "pattern", "format")


def emit_scalars(emitter: Emitter, shape: Conjunction, types: frozenset[str]) -> Out | None:
    """Lower a shape of these scalar types, or with listed values."""
    if shape.enum is not None:
        return _enumeration(emitter, shape, shape.enum)
    outs: list[tuple[str, Out]] = []
    if "string" in types:
        outs.append(("string", _emit_scalar(emitter, shape, "string", _TEXTUAL)))
    if "number" in types or "integer" in types:
        name = "number" if "number" in types else "integer"
        outs.append((name, _emit_scalar(emitter, shape, name, _NUMERIC)))
    outs += [(name, _emit_scalar(emitter, shape, name, ())) for name in ("boolean", "null") if name in types]
    if len(outs) == 1:
        return outs[0][1]
    return unions.union(emitter, outs, shape.parts[0].pointer if shape.parts else "", None)


def _emit_scalar(emitter: Emitter, shape: Conjunction, name: str, keywords: tuple[str, ...]) -> Out:
    bounds, notes = constraints(emitter, shape, keywords, whole=name == "integer")
    schema = describe(emitter, {"type": name, **bounds}, shape if name != "null" else None, notes)
    return Out(schema, SAME, frozenset({"number" if name == "integer" else name}))


def _enumeration(emitter: Emitter, shape: Conjunction, values: list[Any]) -> Out | None:
    """Return listed values in the dialect: a list per type, or their JSON as texts; None without values."""
    if not values:
        return None
    pointer = shape.enum_pointer
    keyword = pointer.rpartition("/")[2]
    groups: dict[str, list[Any]] = {}
    for value in values:
        name = json_type(value)
        groups.setdefault("number" if name == "integer" else name, []).append(value)
    composite = [value for name in ("array", "object") if name in groups for value in groups[name]]
    unsayable = "" in values and not emitter.dialect.empty_enum
    if unsayable or (composite and not {"array", "object"} <= emitter.dialect.enum_types):
        emitter.report.add(pointer, keyword, None, "encoded", emitter.dialect.engine)
        if "string" in groups:
            composite = values
            groups = {}
        rest = {name: listed for name, listed in groups.items() if name not in ("array", "object")}
        outs = [("json", _texts(emitter, shape, composite))]
        outs += [(name, _emit_enumeration(emitter, shape, name, listed)) for name, listed in rest.items()]
    else:
        outs = [(name, _emit_enumeration(emitter, shape, name, listed)) for name, listed in groups.items()]
    if len(outs) == 1:
        return outs[0][1]
    return unions.union(emitter, outs, pointer, None)


def _texts(emitter: Emitter, shape: Conjunction, values: list[Any]) -> Out:
    """Return values that the dialect's enum does not support as JSON texts."""
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    taken = _affordable(emitter, texts)
    _say_enum(emitter, shape, values, taken=taken)
    schema = {"type": "string", "enum": texts} if taken else {"type": "string"}
    return Out(describe(emitter, schema, shape, ["one of these JSON texts"]), TEXT, frozenset({"string"}))


def _say_enum(emitter: Emitter, shape: Conjunction, values: list[Any], *, taken: bool) -> None:
    """Report the change to a list of values, and to the constraints that were applied to it."""
    keyword = shape.enum_pointer.rpartition("/")[2]
    if taken:
        emitter.report.add(shape.enum_pointer, keyword, None, "kept", emitter.dialect.engine)
    else:
        emitter.report.add(shape.enum_pointer, keyword, values[:50], "dropped")
    for bound in shape.applied_bounds:
        by = emitter.dialect.engine if taken else "local"
        emitter.report.add(bound.pointer, bound.keyword, bound.value, "kept" if taken else "dropped", by)


def _emit_enumeration(emitter: Emitter, shape: Conjunction, name: str, values: list[Any]) -> Out:
    """Return listed values of one type, as `enum` where the dialect allows that, else as a note."""
    kinds = frozenset({name})
    if name == "null" and len(values) == 1:
        _say_enum(emitter, shape, values, taken=True)
        return Out({"type": "null"}, SAME, kinds)
    if name == "number" and all(json_type(value) == "integer" for value in values):
        name = "integer"
        values = [int(value) for value in values]
    schema: dict[str, Any] = {"type": name}
    notes: list[str] = []
    taken = {"integer": "number"}.get(name, name) in emitter.dialect.enum_types
    if taken and _affordable(emitter, values):
        schema["enum"] = values
    elif name != "boolean" or len(values) < 2:
        notes.append(note(Bound("one of", values, shape.enum_pointer)))
    _say_enum(emitter, shape, values, taken=not notes)
    return Out(describe(emitter, schema, shape, notes), SAME, kinds)


def _affordable(emitter: Emitter, values: list[Any]) -> bool:
    """Return whether the vendor's limits on enumerations leave room for one more."""
    limits = emitter.dialect.limits
    most = limits.get("enum_values")
    if most is not None and emitter.enum_values + len(values) > most:
        return False
    chars = limits.get("enum_chars")
    if chars is not None and len(values) > 250 and sum(len(str(value)) for value in values) > chars:
        return False
    emitter.enum_values += len(values)
    return True

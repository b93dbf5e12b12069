"""Lowering of arrays and tuples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipform.schema.lower.alternatives import closed_object
from slipform.schema.lower.objects import absence, spell_absence
from slipform.schema.lower.plan import SAME, TEXT, Field, Items, Out, Same, Tuple
from slipform.schema.lower.shape import Shape
from slipform.schema.lower.views import ArrayView, array_view
from slipform.schema.lower.writing import constraints, describe

if TYPE_CHECKING:
    from slipform.schema.lower.emit import Emitter

_ARRAY = frozenset({"array"})
_LENGTHS = ("minItems", "maxItems")


def emit_array(emitter: Emitter, shape: Shape) -> Out | None:
    """Lower the array side of a shape; None when no array fits."""
    view = array_view(emitter.source, shape.parts)
    least = shape.bounds["minItems"].value if "minItems" in shape.bounds else 0
    prefix: list[Out] = []
    most = shape.bounds["maxItems"].value if "maxItems" in shape.bounds else None
    shut = view.openness == "closed" or (most is not None and most <= len(view.prefix))
    for parts in view.prefix:
        out = emitter.emit(parts, optional=len(prefix) >= least)
        if out is None:
            shut = True
            break
        prefix.append(out)
    if view.openness == "implicit" and not shut and emitter.dialect.free == "json":
        return _unsaid(emitter, shape, view, prefix, least)
    rest = None if shut else emitter.emit(view.rest, optional=True)
    shut = shut or rest is None
    if shut and least > len(prefix):
        return None
    if not prefix:
        return _plain(emitter, shape, view, rest)
    if emitter.dialect.tuples == "native":
        return _native(emitter, shape, prefix, rest)
    if _uniform(prefix, rest):
        return _plain(emitter, shape, view, prefix[0], len(prefix) if shut else None)
    return _as_object(emitter, shape, view, prefix, rest, least)


def _unsaid(emitter: Emitter, shape: Shape, view: ArrayView, prefix: list[Out], least: int) -> Out:
    """Nothing is said of the items, or of those after the first few, and the dialect wants each to have a type."""
    pointer = shape.parts[0].pointer if shape.parts else ""
    if not prefix:
        emitter.report.add(f"{pointer}/type", "type", "array", "encoded")
        _, notes = constraints(emitter, shape, _LENGTHS)
        schema = describe(emitter, {"type": "string"}, shape, ["a JSON array, written as JSON text", *notes])
        return Out(schema, TEXT, frozenset({"string"}))
    if least <= len(prefix):
        emitter.report.add(f"{pointer}/items", "items", None, "closed")
        if _uniform(prefix, None):
            return _plain(emitter, shape, view, prefix[0])
        return _as_object(emitter, shape, view, prefix, None, least)
    return _as_object(emitter, shape, view, prefix, emitter.free((), None), least)


def _lengths(emitter: Emitter, shape: Shape, most: int | None) -> tuple[dict[str, Any], list[str]]:
    kept, notes = constraints(emitter, shape, _LENGTHS)
    if most is not None:
        if "maxItems" in emitter.dialect.keywords:
            kept["maxItems"] = min(most, kept.get("maxItems", most))
        else:
            notes.append(f"at most {most} items")
    return kept, notes


def _plain(emitter: Emitter, shape: Shape, view: ArrayView, item: Out | None, most: int | None = None) -> Out:
    """All places alike; no item at all means that only the empty array fits."""
    if item is None:
        kept, notes = _lengths(emitter, shape, 0)
        empty = {"type": "array", "items": {"type": "null"}, **kept}
        return Out(describe(emitter, empty, shape, notes), SAME, _ARRAY)
    kept, notes = _lengths(emitter, shape, most)
    bare = view.openness == "implicit" and not view.prefix and item.schema == {}
    schema = {"type": "array", **({} if bare else {"items": item.schema}), **kept}
    return Out(describe(emitter, schema, shape, notes), Items((), item.plan), _ARRAY)


def _native(emitter: Emitter, shape: Shape, prefix: list[Out], rest: Out | None) -> Out:
    kept, notes = _lengths(emitter, shape, len(prefix) if rest is None else None)
    schema: dict[str, Any] = {"type": "array", "prefixItems": [out.schema for out in prefix], **kept}
    if rest is not None and rest.schema != {}:
        schema["items"] = rest.schema
    plan = Items(tuple(out.plan for out in prefix), SAME if rest is None else rest.plan)
    return Out(describe(emitter, schema, shape, notes), plan, _ARRAY)


def _uniform(prefix: list[Out], rest: Out | None) -> bool:
    """Whether one schema serves every place."""
    first = prefix[0]
    others = prefix[1:] if rest is None else [*prefix[1:], rest]
    return isinstance(first.plan, Same) and all(
        isinstance(out.plan, Same) and out.schema == first.schema for out in others
    )


def _as_object(emitter: Emitter, shape: Shape, view: ArrayView, prefix: list[Out], rest: Out | None, least: int) -> Out:
    """A tuple as an object with one property per place."""
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
        plan.places[name] = Field(mode, out.plan, out.kinds)
        if mode != "native":
            required.append(name)
    if rest is not None:
        plan.rest_key, plan.rest = "rest", rest.plan
        properties["rest"] = {"type": "array", "items": rest.schema}
        required.append("rest")
    kept = {name: bound for name, bound in shape.bounds.items() if name in _LENGTHS}
    for name, bound in kept.items():
        emitter.report.add(bound.pointer, name, bound.value, "encoded")
    schema = closed_object(emitter, properties, required)
    return Out(describe(emitter, schema, shape, ["the places of a list, in order"]), plan, frozenset({"object"}))

"""Lowering of strings, numbers, booleans, null and enumerations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slipform.schema.lower import alternatives
from slipform.schema.lower.plan import SAME, TEXT, Out
from slipform.schema.lower.shape import Bound, Shape, type_of
from slipform.schema.lower.writing import constraints, describe, note

if TYPE_CHECKING:
    from slipform.schema.lower.emit import Emitter

_KIND = {"integer": "number", "fraction": "number"}
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXTUAL = ("minLength", "maxLength", "pattern", "format")


def emit_scalars(emitter: Emitter, shape: Shape, types: frozenset[str]) -> Out | None:
    """Lower a shape that admits these scalar types, or that lists its values."""
    if shape.enum is not None:
        return _enumeration(emitter, shape, shape.enum)
    outs: list[tuple[str, Out]] = []
    if "string" in types:
        outs.append(("string", _one(emitter, shape, "string", _TEXTUAL)))
    if "fraction" in types or "integer" in types:
        name = "number" if "fraction" in types else "integer"
        outs.append((name, _one(emitter, shape, name, _NUMERIC)))
    outs += [(name, _one(emitter, shape, name, ())) for name in ("boolean", "null") if name in types]
    if len(outs) == 1:
        return outs[0][1]
    return alternatives.union(emitter, outs, shape.parts[0].pointer if shape.parts else "", None)


def _one(emitter: Emitter, shape: Shape, name: str, keywords: tuple[str, ...]) -> Out:
    kept, notes = constraints(emitter, shape, keywords, whole=name == "integer")
    schema = describe(emitter, {"type": name, **kept}, shape if name != "null" else None, notes)
    return Out(schema, SAME, frozenset({_KIND.get(name, name)}))


def _enumeration(emitter: Emitter, shape: Shape, values: list[Any]) -> Out | None:
    if not values:
        return None
    pointer = shape.enum_pointer
    keyword = pointer.rpartition("/")[2]
    emitter.report.add(pointer, keyword, None, "kept", emitter.dialect.engine)
    groups: dict[str, list[Any]] = {}
    for value in values:
        name = type_of(value)
        groups.setdefault({"fraction": "number", "integer": "number"}.get(name, name), []).append(value)
    composite = [value for name in ("array", "object") if name in groups for value in groups[name]]
    if composite and not {"array", "object"} <= emitter.dialect.enum_types:
        emitter.report.add(pointer, keyword, None, "encoded", emitter.dialect.engine)
        if "string" in groups:
            composite, groups = values, {}
        rest = {name: listed for name, listed in groups.items() if name not in ("array", "object")}
        outs = [("json", _texts(emitter, shape, composite))]
        outs += [(name, _listed(emitter, shape, name, listed)) for name, listed in rest.items()]
    else:
        outs = [(name, _listed(emitter, shape, name, listed)) for name, listed in groups.items()]
    return outs[0][1] if len(outs) == 1 else alternatives.union(emitter, outs, pointer, None)


def _texts(emitter: Emitter, shape: Shape, values: list[Any]) -> Out:
    """Values that the dialect's enum cannot hold, as their JSON texts."""
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    schema = {"type": "string", "enum": texts} if _affordable(emitter, texts) else {"type": "string"}
    return Out(describe(emitter, schema, shape, ["one of these JSON texts"]), TEXT, frozenset({"string"}))


def _listed(emitter: Emitter, shape: Shape, name: str, values: list[Any]) -> Out:
    kinds = frozenset({name})
    if name == "null" and len(values) == 1:
        return Out({"type": "null"}, SAME, kinds)
    if name == "number" and all(type_of(value) == "integer" for value in values):
        name = "integer"
    schema: dict[str, Any] = {"type": name}
    notes: list[str] = []
    taken = {"integer": "number"}.get(name, name) in emitter.dialect.enum_types
    if taken and _affordable(emitter, values):
        schema["enum"] = values
    elif name != "boolean" or len(values) < 2:
        emitter.report.add(shape.enum_pointer, shape.enum_pointer.rpartition("/")[2], values[:50], "dropped")
        notes.append(note(Bound("one of", values, shape.enum_pointer)))
    return Out(describe(emitter, schema, shape, notes), SAME, kinds)


def _affordable(emitter: Emitter, values: list[Any]) -> bool:
    """Whether the vendor's limits on enumerations leave room for one more."""
    limits = emitter.dialect.limits
    most = limits.get("enum_values")
    if most is not None and emitter.enum_values + len(values) > most:
        return False
    chars = limits.get("enum_chars")
    if chars is not None and len(values) > 250 and sum(len(str(value)) for value in values) > chars:
        return False
    emitter.enum_values += len(values)
    return True

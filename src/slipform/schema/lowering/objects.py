"""Lower objects: listed keys, absent ones, and those that are not listed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipform.schema.document import REF
from slipform.schema.lowering.descriptions import describe, note, takes_pattern
from slipform.schema.lowering.lift_plan import SAME, TEXT, AbsenceMode, FieldPlan, Out, Pairs, RecordPlan, TextPlan
from slipform.schema.lowering.unions import box, closed_object, nullable_scalar, union
from slipform.schema.normal_form import Bound, Conjunction, ObjectView, SourceNode, object_view

if TYPE_CHECKING:
    from slipform.schema.lowering.emit import Emitter

EXTRA_KEY = "extra_properties"
_OBJECT = frozenset({"object"})


@dataclass(slots=True)
class _Draft:
    """An object under construction."""

    properties: dict[str, Any] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)
    fields: dict[str, FieldPlan] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The caller's names of renamed properties."""
    taken: frozenset[str] = frozenset()
    """The names of all properties, renamed or not."""


def emit_object(emitter: Emitter, shape: Conjunction, loosened: list[SourceNode]) -> Out | None:
    """Lower the object part of a shape; None when no object matches."""
    view = object_view(emitter.source, shape.parts, loosened)
    draft = _Draft(taken=frozenset((*view.properties, *view.loose)))
    for name, parts in view.properties.items():
        required = name in view.required
        out = emitter.emit(parts, optional=not required)
        if out is None and required:
            return None
        if out is not None:
            _place(emitter, draft, name, out, parts, required)
    if not emitter.dialect.closes and (draft.properties or emitter.dialect.empty_objects):
        for name in view.loose:
            _place(emitter, draft, name, emitter.free((), None), [], required=False)
        return _open(emitter, shape, view, draft)
    keeps = _keeps_open(emitter, shape, view)
    if not keeps or view.openness == "closed":  # otherwise the pairs of further keys include these, too
        for name, variants in view.loose.items():
            loose = _any_of(emitter, variants)
            if loose is not None:
                _place(emitter, draft, name, loose, variants, required=False)
    return _emit_closed(emitter, shape, view, draft, keeps=keeps)


def _keeps_open(emitter: Emitter, shape: Conjunction, view: ObjectView) -> bool:
    """Return whether an object gets a property for further keys.

    With `open_objects: auto`, an object with optional properties gets one even if its schema does not mention others:
    where a schema has too many such objects, the policy closes the deepest.
    """
    if view.openness != "implicit" or emitter.open_objects != "auto":
        return emitter.open_objects != "closed"
    pointer = shape.parts[0].pointer if shape.parts else ""
    has_only_required = view.required.keys() >= view.properties.keys()
    if pointer in emitter.policy.shut or has_only_required:
        return False
    emitter.opened.append((emitter.depth, pointer))
    return True


def _any_of(emitter: Emitter, variants: list[SourceNode]) -> Out | None:
    if not variants:
        return emitter.free((), None)
    outs = [(f"option_{index + 1}", emitter.emit([part], optional=True)) for index, part in enumerate(variants)]
    alternatives = [(name, out) for name, out in outs if out is not None]
    if alternatives:
        return union(emitter, alternatives, variants[0].pointer, None)
    return None


def _place(emitter: Emitter, draft: _Draft, name: str, out: Out, parts: list[SourceNode], required: bool) -> None:
    """Add one property, with an encoding of its absence where it is optional."""
    pointer = parts[0].pointer if parts else f"/{name}"
    mode: AbsenceMode = "plain"
    schema = out.schema
    if not required:
        mode = absence(emitter, out, parts, pointer)
        schema = spell_absence(emitter, out, mode)
        if mode != "native":
            emitter.report.add(pointer, "required", None, "encoded", emitter.dialect.engine)
    key = emitter.dialect.fit_name(name, draft.taken | draft.properties.keys())
    if key != name:
        emitter.report.add(pointer, "properties", name, "encoded")
        draft.names[key] = name
        if REF not in schema and "description" not in schema:
            schema = {"description": f"the property {name!r}", **schema}
    draft.properties[key] = schema
    draft.fields[key] = FieldPlan(mode, out.plan, out.kinds)
    if mode != "native":
        draft.required.append(key)


def absence(emitter: Emitter, out: Out, parts: list[SourceNode], site: str) -> AbsenceMode:
    """Return how the absence of an optional value is encoded."""
    if emitter.dialect.optional == "native":
        if site in emitter.policy.boxed:
            return "box"
        emitter.optionals.append((emitter.depth, site))
        return "native"
    if isinstance(out.plan, TextPlan) and "null" not in out.kinds:
        return "null"
    if not admits_null(emitter, tuple(parts), 0):
        return "null"
    return "box" if "array" in out.kinds else "empty"


def admits_null(emitter: Emitter, parts: tuple[SourceNode, ...], depth: int) -> bool:
    """Return whether null may match the caller's schema; True in doubt."""
    shape = emitter.shape(parts)
    if "null" not in shape.types or shape.never:
        return False
    if depth > 8:
        return True
    for part, word in shape.groups:
        branches = (emitter.source.child(part, word, str(index)) for index in range(len(part.get(word))))
        if not any(admits_null(emitter, (branch,), depth + 1) for branch in branches):
            return False
    return True


def spell_absence(emitter: Emitter, out: Out, mode: AbsenceMode) -> dict[str, Any]:
    """Return the lowered schema of an optional value."""
    schema = out.schema
    if mode == "native":
        return schema
    if mode == "box":
        return box(emitter, schema, "[] when absent, else one item", {})
    other: dict[str, Any] = {"type": "null"}
    if mode == "empty":
        other = {"type": "array", "items": {"type": "null"}, "description": "when absent"}
        if "maxItems" in emitter.dialect.keywords:
            other["maxItems"] = 0
    if "anyOf" in schema and REF not in schema:
        schema["anyOf"].append(other)
        return schema
    if mode == "null" and schema.get("type") in ("string", "number", "integer", "boolean"):
        scalar = nullable_scalar(emitter, schema)
        if scalar is not None:
            return scalar
    if mode == "null" and "null" in out.kinds and schema.get("type") is not None:
        return schema
    notes: tuple[str, ...] = ("title", "description")
    head = {word: schema.pop(word) for word in notes if word in schema}
    return {**head, "anyOf": [schema, other]}


def _as_text(emitter: Emitter, shape: Conjunction, view: ObjectView) -> Out:
    """Return an object without properties as a string that contains its JSON."""
    pointer = shape.parts[0].pointer if shape.parts else ""
    emitter.report.add(f"{pointer}/type", "type", "object", "encoded")
    notes = ["a JSON object, written as JSON text"]
    for part in shape.parts:
        if view.required and part.get("required"):
            bound = Bound("required", part.get("required"), f"{part.pointer}/required")
            emitter.report.add(bound.pointer, bound.keyword, bound.value, "dropped")
            notes.append(note(bound))
    return Out(describe(emitter, {"type": "string"}, shape, notes), TEXT, _STRING)


def _add_pairs(draft: _Draft, pairs: dict[str, Any], notes: list[str]) -> str:
    """Add the property that carries all other keys as pairs, and return its name."""
    key = EXTRA_KEY
    while key in draft.properties or key in draft.taken:
        key += "_"
    text = "other properties, as key and value"
    draft.properties[key] = {"description": "; ".join([text, *notes]), **pairs}
    draft.required.append(key)
    return key


def _emit_closed(emitter: Emitter, shape: Conjunction, view: ObjectView, draft: _Draft, *, keeps: bool) -> Out:
    """Return an object in a dialect that does not allow other keys: they travel as key/value pairs."""
    pointer = shape.parts[0].pointer if shape.parts else ""
    unsaid = not any(view.properties.values()) and not view.loose
    if unsaid and not view.patterns and view.openness == "implicit":
        return _as_text(emitter, shape, view)
    if view.openness == "implicit":
        if keeps:
            view.openness = "true"
        else:
            emitter.report.add(f"{pointer}/additionalProperties", "additionalProperties", None, "closed")
    plan = RecordPlan(draft.fields, names=draft.names)
    if view.patterns or view.openness in ("schema", "true"):
        value = _other_values(emitter, view)
        if value is not None:
            where = view.additional_pointer or f"{pointer}/patternProperties"
            originals = [part.schema for part in view.additional] or [view.openness == "true"]
            emitter.report.add(where, where.rpartition("/")[2], originals[0], "encoded")
            pairs, notes = _pairs(emitter, view, value)
            if not draft.properties:
                return Out(describe(emitter, pairs, shape, notes), Pairs(value.plan), frozenset({"array"}))
            plan.extra = _add_pairs(draft, pairs, notes)
            plan.values = value.plan
    if not draft.properties and not emitter.dialect.empty_objects:
        schema = describe(emitter, {"type": "string", "enum": ["{}"]}, shape, ["an empty object, written as JSON text"])
        return Out(schema, TEXT, _STRING)
    _need_one(emitter, draft)
    return Out(describe(emitter, closed_object(emitter, draft.properties, draft.required), shape), plan, _OBJECT)


_STRING = frozenset({"string"})


def _need_one(emitter: Emitter, draft: _Draft) -> None:
    """Replace the first property by a required array, where an object must require something."""
    if not emitter.dialect.needs_required or draft.required or not draft.properties:
        return
    name = next(iter(draft.properties))
    entry = draft.fields[name]
    draft.fields[name] = FieldPlan("box", entry.plan, entry.kinds)
    draft.properties[name] = box(emitter, draft.properties[name], "[] when absent, else one item", {})
    draft.required.append(name)


def _other_values(emitter: Emitter, view: ObjectView) -> Out | None:
    """Return the schema of the values of unlisted keys."""
    if view.openness == "true":
        return emitter.free((), "the value of that key")
    outs = [
        (f"value_{index + 1}", emitter.emit(parts, optional=True)) for index, parts in enumerate(view.patterns.values())
    ]
    if view.openness == "schema":
        outs.append(("value", emitter.emit(view.additional, optional=True)))
    alternatives = [(name, out) for name, out in outs if out is not None]
    where = next(iter(view.patterns.values()), view.additional)
    if alternatives:
        return union(emitter, alternatives, f"{where[0].pointer}/*", None)
    return None


def _pairs(emitter: Emitter, view: ObjectView, value: Out) -> tuple[dict[str, Any], list[str]]:
    """Return the schema of key/value pairs with the constraints on keys, and notes on unsupported ones."""
    key: dict[str, Any] = {"type": "string"}
    notes: list[str] = []
    for part in view.names:
        names = emitter.shape((part,))
        if names.enum is not None and all(isinstance(name, str) for name in names.enum):
            key["enum"] = names.enum
        emitter.report.add(part.pointer, "propertyNames", None, "approximated")
    if len(view.patterns) == 1 and view.openness in ("closed", "implicit"):
        pattern = next(iter(view.patterns))
        if takes_pattern(emitter, pattern) and "enum" not in key:
            key["pattern"] = pattern
        else:
            _loosened_keys(emitter, view)
            notes.append(f"keys match {pattern}")
    elif view.patterns:
        _loosened_keys(emitter, view)
        notes.append(f"keys match one of {', '.join(view.patterns)}"[:300])
    item = closed_object(emitter, {"key": key, "value": value.schema}, ["key", "value"])
    return {"type": "array", "items": item}, notes


def _loosened_keys(emitter: Emitter, view: ObjectView) -> None:
    """Report that any key may have any of the values, because the dialect has no patterns of keys."""
    for pattern, parts in view.patterns.items():
        emitter.report.add(parts[0].pointer, "patternProperties", pattern, "approximated")
    if view.openness in ("closed", "schema"):
        original = False if view.openness == "closed" else view.additional[0].schema
        emitter.report.add(view.additional_pointer, "additionalProperties", original, "approximated")


def _open(emitter: Emitter, shape: Conjunction, view: ObjectView, draft: _Draft) -> Out:
    """Lower an object for a dialect that supports additionalProperties."""
    schema: dict[str, Any] = {"type": "object"}
    if draft.properties:
        schema["properties"] = draft.properties
    if draft.required:
        schema["required"] = draft.required
    plan = RecordPlan(draft.fields, closed=view.openness == "closed" and not view.patterns, names=draft.names)
    notes: list[str] = []
    for part in view.names:
        emitter.report.add(part.pointer, "propertyNames", part.schema, "dropped")
        notes.append("keys are restricted")
    native = emitter.dialect.pattern_keys and len(view.patterns) == 1
    if native:
        _native_patterns(emitter, view, schema)
    elif view.patterns:
        _loosened_keys(emitter, view)
        notes.append(f"other keys match one of {', '.join(view.patterns)}"[:300])
    spread = bool(view.patterns) and not native
    if view.openness == "schema" or (spread and view.openness == "closed"):
        value = _other_values(emitter, view)
        schema["additionalProperties"] = False if value is None else value.schema
        plan.values = SAME if value is None else value.plan
    elif view.openness != "implicit":
        schema["additionalProperties"] = view.openness == "true"
    if emitter.dialect.ordering and draft.properties:
        schema["propertyOrdering"] = list(draft.properties)
    return Out(describe(emitter, schema, shape, notes), plan, _OBJECT)


def _native_patterns(emitter: Emitter, view: ObjectView, schema: dict[str, Any]) -> None:
    lowered = {pattern: emitter.emit(parts, optional=True) for pattern, parts in view.patterns.items()}
    schema["patternProperties"] = {pattern: out.schema for pattern, out in lowered.items() if out is not None}

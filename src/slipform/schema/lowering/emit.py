"""Walk the caller's schema and write the vendor's schema and the lift plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slipform.errors import UnsupportedSchemaError
from slipform.schema.document import REF, REFERENCES, reference_to, split_pointer
from slipform.schema.keywords import JSON_TYPES
from slipform.schema.lowering import unions
from slipform.schema.lowering.descriptions import describe
from slipform.schema.lowering.dialects import Dialect, OpenObjects
from slipform.schema.lowering.lift_plan import ANY, SAME, TEXT, Out, Ref, ValuePlan
from slipform.schema.lowering.objects import emit_object
from slipform.schema.lowering.values import emit_array, emit_scalars
from slipform.schema.normal_form import (
    CONSTRAINING,
    Conjunction,
    SchemaSource,
    SourceNode,
    conjunction_of,
    infer,
)

Action: TypeAlias = Literal["kept", "encoded", "approximated", "dropped", "closed"]
EnforcedBy: TypeAlias = Literal["vendor", "engine", "local"]


@dataclass(frozen=True, slots=True)
class LoweringLoss:
    """A change to one keyword: `pointer` is its place in the caller's schema.

    `closed` means that valid values can no longer be expressed, for example further keys of an object.

    >>> LoweringLoss("/properties/age/minimum", "minimum", 0, "dropped", "local").action
    'dropped'
    """

    pointer: str
    keyword: str
    value: Any
    action: Action
    enforced_by: EnforcedBy


@dataclass(slots=True)
class LoweringReport:
    """The losses in their order, without duplicates."""

    losses: dict[tuple[str, str, str], LoweringLoss] = field(default_factory=dict)

    def add(self, pointer: str, keyword: str, value: Any, action: Action, by: EnforcedBy = "local") -> None:
        """Record the change to a keyword."""
        self.losses.setdefault((pointer, keyword, action), LoweringLoss(pointer, keyword, value, action, by))


MAX_NODES = 10_000
MAX_DEPTH = 48
_COMPOSITE = frozenset({"object", "array"})
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(slots=True)
class Policy:
    """Choices that depend on the whole schema: made after one walk, for the next."""

    boxed: frozenset[str] = frozenset()
    """Optional properties encoded as arrays of zero or one items."""
    chosen: frozenset[str] = frozenset()
    """Unions encoded without `anyOf`."""
    cut: frozenset[Any] = frozenset()
    """Definitions that must not be recursive."""
    shut: frozenset[str] = frozenset()
    """Open objects that are closed because too many are open."""


@dataclass(slots=True)
class LoweredPlace:
    """A place that is being lowered or has been."""

    pointer: str
    ref: Ref
    optional_edges: int
    """The number of optional properties and items around the place."""
    done: bool = False
    named: bool = False
    """Whether it becomes a definition, to which other places refer."""
    out: Out | None = None
    """None while it is being lowered, and where no value fits it."""
    kinds: frozenset[str] = ANY


@dataclass(slots=True)
class Emitter:
    """One walk over the caller's schema."""

    source: SchemaSource
    dialect: Dialect
    report: LoweringReport
    policy: Policy = field(default_factory=Policy)
    open_objects: OpenObjects = "closed"
    defs: dict[str, dict[str, Any]] = field(default_factory=dict)
    keys: dict[str, tuple[SourceNode, ...]] = field(default_factory=dict)
    optionals: list[tuple[int, str]] = field(default_factory=list)
    unions: list[tuple[int, str]] = field(default_factory=list)
    opened: list[tuple[int, str]] = field(default_factory=list)
    enum_values: int = 0
    items: int = 0
    """The sum of all `maxItems` so far."""
    bounds: int = 0
    """The number of other constraints so far."""
    depth: int = 0
    _optional_edges: int = 0
    _nodes: int = 0
    _entries: dict[tuple[SourceNode, ...], LoweredPlace] = field(default_factory=dict)
    _shapes: dict[tuple[SourceNode, ...], Conjunction] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def root(self) -> tuple[Out, str | None]:
        """Lower the whole document; the name is the root's own definition, when something refers to it."""
        parts, _, _ = self.follow((self.source.root,))
        entry = self._enter(parts, "/root")
        out = self._body(parts)
        if out is None:
            raise UnsupportedSchemaError("No value fits this schema", where="#", hint="Correct the contradiction.")
        out = self._leave(entry, parts, out)
        return out, self._name(entry) if entry.named else None

    def emit(self, parts: Sequence[SourceNode], *, optional: bool = False) -> Out | None:
        """Lower the conjunction of some parts; None when no value matches them."""
        if not parts:
            return self.free((), None)
        self._optional_edges += optional
        self.depth += 1
        try:
            return self._emit(tuple(dict.fromkeys(parts)))
        finally:
            self.depth -= 1
            self._optional_edges -= optional

    def _emit(self, parts: tuple[SourceNode, ...]) -> Out | None:
        """Lower a place at its first occurrence, and refer to its definition at later ones.

        A place becomes a definition when the schema refers to it, or when it is an object or array that has
        been lowered before. Where the dialect has no references it is lowered again each time.
        """
        site = _pointer(parts)
        parts, note, via = self.follow(parts)
        entry = self._entries.get(parts)
        if entry is not None and not entry.done:
            return self._emit_recursion(entry, parts, note, site)
        if self.depth > MAX_DEPTH:
            self.report.add(_pointer(parts), "type", None, "approximated")
            return self.free(parts, "the rest is nested too deeply to be spelled out")
        is_repeated = entry is not None and entry.out is not None and not entry.kinds.isdisjoint(_COMPOSITE)
        has_definition = self.dialect.refs != "none" and (via is not None or is_repeated)
        if entry is None or not has_definition or not entry.named:
            entry = self._enter(parts, via or _pointer(parts))
            entry.named = has_definition
            out = self._body(parts)
            if out is None:
                if entry.ref.name:  # parts of it that were already lowered refer to it
                    self._leave(entry, parts, self.free(parts, None))
                    entry.out = None
                entry.done = True
                return None
            out = self._leave(entry, parts, out)
            if not entry.named:
                return out
        if entry.out is None:
            return None
        return self._reference(entry, note, site)

    def follow(self, parts: tuple[SourceNode, ...]) -> tuple[tuple[SourceNode, ...], str | None, str | None]:
        """Resolve a place that is only a reference: return its target, its note, and its name."""
        note = via = None
        visited = set()
        while len(parts) == 1 and parts[0] not in visited:
            part = parts[0]
            visited.add(part)
            schema = part.schema
            if isinstance(schema, bool) or not isinstance(part.get(REF), str):
                break
            if self.source.draft > 7 and not CONSTRAINING.isdisjoint(schema):
                break
            target = self.source.resolve(part, schema[REF], REF)
            if target is None:
                self.report.add(f"{part.pointer}/{REF}", REF, schema[REF], "approximated")
                break
            if isinstance(schema.get("description"), str):
                note = note or schema["description"]
            parts = (target,)
            via = target.pointer
        return parts, note, via

    def _enter(self, parts: tuple[SourceNode, ...], pointer: str) -> LoweredPlace:
        entry = self._entries[parts] = LoweredPlace(pointer, Ref(""), self._optional_edges)
        return entry

    def _name(self, entry: LoweredPlace) -> str:
        """Return the entry's name among the definitions, which is chosen when it is first needed."""
        if not entry.ref.name:
            last = (split_pointer(entry.pointer) or ("",))[-1]
            entry.ref.name = self._unique(_NOT_IN_A_NAME.sub("_", last).strip("_") or "root")
        return entry.ref.name

    def _leave(self, entry: LoweredPlace, parts: tuple[SourceNode, ...], out: Out) -> Out:
        at: ValuePlan | None = out.plan
        while isinstance(at, Ref) and at is not entry.ref:
            at = at.target
        if at is entry.ref:
            # The place only refers to itself: any value.
            out = self.free(parts, None)
        entry.done = True
        entry.out = out
        entry.kinds = out.kinds
        entry.ref.target = out.plan
        if entry.named:
            name = self._name(entry)
            self.defs[name] = out.schema
            self.keys[name] = parts
        return out

    def _emit_recursion(self, entry: LoweredPlace, parts: tuple[SourceNode, ...], note: str | None, site: str) -> Out:
        """Emit a place that occurs again inside itself."""
        recursion = self.dialect.recursion
        through_optional = self._optional_edges > entry.optional_edges
        if recursion == "none" or (recursion == "optional" and not through_optional) or parts in self.policy.cut:
            self.report.add(_pointer(parts), REF, None, "approximated")
            return self.free(parts, f"of the same form as the {self._name(entry)} that holds it")
        entry.named = True
        if self._surely_object(parts):
            entry.kinds = frozenset({"object"})
        return self._reference(entry, note, site)

    def _surely_object(self, parts: tuple[SourceNode, ...]) -> bool:
        """Return whether a place in progress can only become an object with properties."""
        shape = self.shape(parts)
        if shape.types != {"object"} or len(shape.parts) != 1:
            return False
        named = shape.parts[0].get("properties")
        required = shape.parts[0].get("required")
        return isinstance(named, dict) and isinstance(required, list) and any(name in named for name in required)

    def _reference(self, entry: LoweredPlace, note: str | None, site: str) -> Out:
        reference = reference_to("$defs", self._name(entry))
        return Out(reference if note is None else self.noted(reference, note, site), entry.ref, entry.kinds)

    def noted(self, reference: dict[str, Any], note: str, site: str) -> dict[str, Any]:
        """Return a reference with a description; without it where the limit on unions is reached."""
        if self.dialect.ref_note == "plain":
            return {"description": note, **reference}
        if "unions" in self.dialect.limits:
            site = f"{site} description"
            if site in self.policy.chosen:
                self.report.add(site.removesuffix(" description"), "description", note, "dropped")
                return reference
            self.unions.append((self.depth + MAX_DEPTH, site))  # as if at maximum depth: notes are dropped first
        return {"description": note, "anyOf": [reference]}

    def _body(self, parts: tuple[SourceNode, ...]) -> Out | None:
        """Lower a place; return None where no value matches."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UnsupportedSchemaError(
                f"Not expressible in {self.dialect.name}: spelled out, this schema has more than {MAX_NODES} parts",
                hint="Use the next channel: a tool call or a prompt.",
            )
        shape = self.shape(parts)
        if shape.never:
            return None
        split, loosened = unions.sort_groups(self, shape)
        if split is not None:
            if not shape.types:
                return None
            return unions.distribute(self, shape, split)
        if not shape.types:
            return None
        if shape.groups and shape.types == JSON_TYPES and shape.enum is None:
            infer(shape)
        return self.typed(shape, loosened)

    def typed(self, shape: Conjunction, loosened: list[SourceNode]) -> Out | None:
        """Lower a shape without unions, one JSON type at a time."""
        self._say_links(shape)
        if shape.inferred:
            self.report.add(f"{_pointer(shape.parts)}/type", "type", None, "closed")
        if shape.types == JSON_TYPES and shape.enum is None:
            return self.free(shape.parts, None, shape)
        if shape.enum is not None:
            return emit_scalars(self, shape, shape.types)
        outs: dict[str, Out | None] = {}
        if "object" in shape.types:
            outs["object"] = emit_object(self, shape, loosened)
        if "array" in shape.types:
            outs["array"] = emit_array(self, shape)
        scalar = shape.types - {"object", "array"}
        if not outs:
            return emit_scalars(self, shape, scalar)
        if scalar:
            outs["value"] = emit_scalars(self, shape, scalar)
        alternatives = [(name, out) for name, out in outs.items() if out is not None]
        if alternatives:
            return unions.union(self, alternatives, _pointer(shape.parts), None)
        return None

    def free(self, parts: Sequence[SourceNode], why: str | None, shape: Conjunction | None = None) -> Out:
        """Return a schema of any value: JSON text where the dialect requires types everywhere."""
        notes = [] if why is None else [why]
        if self.dialect.free == "native":
            schema = describe(self, {}, shape, notes)
            return Out(schema, SAME, ANY, free=True)
        if why is None:
            self.report.add(_pointer(parts), "type", None, "encoded")
        schema = describe(self, {"type": "string"}, shape, ["any JSON value, written as JSON text", *notes])
        return Out(schema, TEXT, frozenset({"string"}), free=True)

    def shape(self, parts: tuple[SourceNode, ...]) -> Conjunction:
        """Return the combined shape of some parts; computed once."""
        shape = self._shapes.get(parts)
        if shape is None:
            shape = self._shapes[parts] = conjunction_of(self.source, parts)
        return shape

    def _say_links(self, shape: Conjunction) -> None:
        for part in shape.parts:
            for word in REFERENCES[1:]:
                if part.get(word) is not None:
                    self.report.add(f"{part.pointer}/{word}", word, part.get(word), "approximated")

    def _unique(self, name: str) -> str:
        base = name[:50]
        name = base
        count = self._names.get(base, 1)
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names[base] = count
        self._names.setdefault(name, 1)
        return name


def _pointer(parts: Sequence[SourceNode]) -> str:
    return parts[0].pointer if parts else ""

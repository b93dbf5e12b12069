"""Combine all constraints that references and `allOf` put on one place of a schema into one record.

Unions are not multiplied out: `Conjunction.groups` lists them, and the caller decides which of them to distribute.
Every constraint has the pointer of its place, for reports. The views collect
its constraints on an object's keys and on an array's positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.schema.document import (
    REF,
    REFERENCES,
    draft_of,
    join_pointer,
    lookup,
    reference_steps,
    with_plain_references,
)
from slipform.schema.keywords import (
    CHOICES,
    JSON_TYPES,
    KEYWORDS_OF,
    TIGHTER,
    common_values,
    implied_types,
    json_key,
    json_type,
    property_places,
    widened,
)
from slipform.schema.patterns import survey
from slipform.schema.shape import to_text
from slipform.schema.validator import Compiled

_METASCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
_BESIDE = frozenset({*REFERENCES, "allOf", "title", "description", "default"})


@dataclass(frozen=True, slots=True, eq=False)
class SourceNode:
    """One subschema at one place. `skip` names keywords that are handled elsewhere."""

    schema: Mapping[str, Any] | bool
    pointer: str
    skip: frozenset[str] = frozenset()

    def get(self, keyword: str) -> Any:
        """Return the keyword's value, or None when it is absent or handled elsewhere."""
        if isinstance(self.schema, bool) or keyword in self.skip:
            return None
        return self.schema.get(keyword)


@dataclass(slots=True)
class SchemaSource:
    """A parsed schema document; parts are interned, so that one place is one object."""

    document: Mapping[str, Any]
    draft: int
    _parts: dict[tuple[str, frozenset[str]], SourceNode] = field(default_factory=dict)

    @classmethod
    def read(cls, text: bytes) -> SchemaSource:
        """Parse a schema's JSON text."""
        document = with_plain_references(json.loads(text))
        return cls(document, draft_of(document))

    @property
    def root(self) -> SourceNode:
        """The whole document."""
        return self.part(self.document, "")

    def knows(self, keyword: str) -> bool:
        """Return whether the document's draft has the keyword; unknown keywords constrain nothing."""
        return self.draft >= _SINCE.get(keyword, 0)

    def part(self, schema: Any, pointer: str, skip: frozenset[str] = frozenset()) -> SourceNode:
        """Return the part at a place; raises for anything but an object or boolean."""
        part = self._parts.get((pointer, skip))
        if part is None:
            if not isinstance(schema, Mapping | bool):
                raise SchemaError(
                    f"A schema must be an object or a boolean, not {type(schema).__name__}", where=f"#{pointer}"
                )
            part = self._parts[pointer, skip] = SourceNode(schema, pointer, skip)
        return part

    def child(self, part: SourceNode, *steps: str) -> SourceNode:
        """Return the part under one or more keys of another."""
        value: Any = part.schema
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        return self.part(value, part.pointer + join_pointer(steps))

    def alone(self, part: SourceNode, *keywords: str) -> SourceNode:
        """Return the same place without references, merged schemas, notes and the named keywords."""
        skip = part.skip | _BESIDE | frozenset(keywords)
        return self.part(part.schema, part.pointer, skip)

    def resolve(self, part: SourceNode, ref: Any, keyword: str) -> SourceNode | None:
        """Return the target of a reference; None for one of the meta-schemas, which every validator knows."""
        if not isinstance(ref, str):
            raise SchemaError(f"{keyword} must be a string", where=f"#{part.pointer}{join_pointer([keyword])}")
        steps = reference_steps(ref)
        if steps is not None and isinstance(target := lookup(self.document, ref), Mapping | bool):
            return self.part(target, join_pointer(steps))
        if ref.startswith(_METASCHEMAS) and "/draft" in ref:
            return None
        raise SchemaError(
            f"{keyword} {ref!r} points at nothing in this document",
            where=f"#{part.pointer}",
            hint="Put what it names under $defs: references outside the document are never fetched.",
        )


LOCAL_KEYWORDS = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "uniqueItems",
    "minProperties", "maxProperties",
)  # fmt: skip
"""Keywords that no vendor's dialect supports."""

_LINKS = frozenset({*REFERENCES, "allOf"})
_KEYWORDS = frozenset().union(*KEYWORDS_OF.values()) | {"type", "enum", "const", "not", "if", *CHOICES}
CONSTRAINING = _KEYWORDS | {"allOf", *REFERENCES[1:]}
"""Keywords that constrain the value beside a `$ref`."""
_BOUNDS = tuple(keyword for keyword in TIGHTER if keyword not in LOCAL_KEYWORDS)
_BOUNDING = frozenset({*_BOUNDS, *LOCAL_KEYWORDS, "pattern", "format", "multipleOf"})
_SINCE = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "unevaluatedProperties": 2019,
    "unevaluatedItems": 2019,
}
_NOTES = frozenset({"title", "description", "default"})
_MAX_PARTS = 2_000


@dataclass(slots=True)
class Bound:
    """The tightest constraint of all the parts, and its place."""

    keyword: str
    value: Any
    pointer: str


@dataclass(slots=True)
class Conjunction:
    """The combination of all parts."""

    parts: tuple[SourceNode, ...]
    types: frozenset[str] = JSON_TYPES
    inferred: bool = False
    """Whether no part names a type, so that the types were inferred from other keywords."""
    enum: list[Any] | None = None
    enum_pointer: str = ""
    bounds: dict[str, Bound] = field(default_factory=dict)
    local: list[Bound] = field(default_factory=list)
    applied_bounds: list[Bound] = field(default_factory=list)
    """Constraints that were applied to the listed values, so that the list implies them."""
    groups: list[tuple[SourceNode, str]] = field(default_factory=list)
    title: str | None = None
    description: str | None = None
    default: Bound | None = None

    @property
    def never(self) -> bool:
        """Whether no value matches."""
        return not self.types or self.enum == []


def flatten(
    source: SchemaSource, starts: Iterable[SourceNode]
) -> tuple[tuple[SourceNode, ...], list[SourceNode], bool]:
    """Resolve references and allOf: return the constraining parts, all parts, and whether one of them is false.

    A part is visited once, so loops end and repeated references cost nothing.
    """
    begin = list(starts)
    if len(begin) == 1 and not isinstance(begin[0].schema, bool) and _LINKS.isdisjoint(begin[0].schema):
        return (tuple(begin) if keywords_in(begin[0]) else ()), begin, False
    visited: dict[SourceNode, None] = {}
    constraining: list[SourceNode] = []
    never = False
    stack = [(part, False) for part in reversed(begin)]
    while stack:
        part, ready = stack.pop()
        if ready:
            constraining.append(part)
            continue
        if part in visited:
            continue
        visited[part] = None
        if len(visited) > _MAX_PARTS:
            raise UnsupportedSchemaError(
                f"More than {_MAX_PARTS} subschemas apply to one place", where=f"#{part.pointer}"
            )
        if isinstance(part.schema, bool):
            never = never or not part.schema
            continue
        only_ref = source.draft <= 7 and part.get(REF) is not None
        below = _conjuncts(source, part, only_ref)
        if not only_ref and keywords_in(part):
            if below and _first_keyword(part.schema, "properties", "allOf", *REFERENCES) != "properties":
                stack.append((part, True))
            else:
                constraining.append(part)
        stack.extend((child, False) for child in reversed(below))
    return tuple(constraining), list(visited), never


def keywords_in(part: SourceNode) -> frozenset[str]:
    """Return the constraining keywords of a part, without its references."""
    if isinstance(part.schema, bool):
        return frozenset()
    return _KEYWORDS.intersection(part.schema) - part.skip


def _conjuncts(source: SchemaSource, part: SourceNode, only_ref: bool) -> list[SourceNode]:
    """Return the parts that a part refers to or merges, which apply to the same value."""
    below = []
    for keyword in (REF,) if only_ref else REFERENCES:
        ref = part.get(keyword)
        if ref is not None:
            target = source.resolve(part, ref, keyword)
            below += [] if target is None else [target]
    branches = None if only_ref else part.get("allOf")
    if isinstance(branches, list):
        below += [source.child(part, "allOf", str(index)) for index in range(len(branches))]
    return below


def _first_keyword(schema: Mapping[str, Any], *keywords: str) -> str | None:
    return next((key for key in schema if key in keywords), None)


def conjunction_of(source: SchemaSource, starts: Iterable[SourceNode]) -> Conjunction:
    """Return the combination of all parts."""
    parts, met, never = flatten(source, starts)
    shape = Conjunction(parts)
    for part in met:
        _annotate(shape, part)
    if never:
        shape.types = frozenset()
        return shape
    typed = False
    for part in parts:
        typed = _type(shape, part) or typed
        _enum(source, shape, part)
        _bounds(source, shape, part)
        shape.groups += [(part, word) for word in CHOICES if isinstance(part.get(word), list) and part.get(word)]
    if shape.enum is not None:
        fits = [value for value in shape.enum if json_type(value) in shape.types]
        shape.enum = _fitting_values(source, shape, fits)
        shape.types = frozenset(json_type(value) for value in shape.enum)
    elif not typed and not shape.groups:
        infer(shape)
    return shape


def _compiled_parts(source: SchemaSource, schemas: list[dict[str, Any]]) -> Compiled | None:
    """Compile schemas that all apply; None where that is not possible.

    Patterns that have to be counted may be given up, and then do not constrain anything.
    """
    draft = {"$schema": source.document["$schema"]} if "$schema" in source.document else {}
    try:
        if survey(list(schemas)).counted:
            return None
        return Compiled({**draft, "allOf": schemas})
    except SchemaError:
        return None


def _fitting_values(source: SchemaSource, shape: Conjunction, values: list[Any]) -> list[Any]:
    """Return the listed values that match the list's siblings; references are left to the final validation."""
    beside = [
        {word: part.get(word) for word in keywords_in(part) - {"enum", "const"} if not _has_reference(part.get(word))}
        for part in shape.parts
    ]
    if not any(words.keys() - {"type"} for words in beside):
        return values
    compiled = _compiled_parts(source, beside)
    every = [*shape.bounds.values(), *shape.local]
    shape.bounds = {}
    if compiled is None:
        shape.local = every
        return values
    every += [Bound(word, part.get(word), f"{part.pointer}/{word}") for part, word in shape.groups]
    shape.applied_bounds = [bound for bound in every if not _has_reference(bound.value)]
    shape.local = [bound for bound in every if _has_reference(bound.value) and bound.keyword not in CHOICES]
    shape.groups = [(part, word) for part, word in shape.groups if _has_reference(part.get(word))]
    return [value for value in values if compiled.is_valid(value)]


def _has_reference(value: Any) -> bool:
    """Return whether a keyword's value contains a reference, which has no meaning outside its document."""
    return isinstance(value, dict | list) and any(word.encode() in to_text({"": value}) for word in REFERENCES)


def _annotate(shape: Conjunction, part: SourceNode) -> None:
    """Take over the first title, description and default."""
    if isinstance(part.schema, bool) or _NOTES.isdisjoint(part.schema):
        return
    if shape.title is None and isinstance(part.get("title"), str):
        shape.title = part.get("title")
    if shape.description is None and isinstance(part.get("description"), str):
        shape.description = part.get("description")
    if shape.default is None and part.get("default") is not None:
        shape.default = Bound("default", part.get("default"), f"{part.pointer}/default")


def _type(shape: Conjunction, part: SourceNode) -> bool:
    """Narrow the types to those that a part names; return whether it names any."""
    kinds = part.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(names, list) or not names:
        return False
    for name in names:
        if not isinstance(name, str) or name not in JSON_TYPES:
            raise SchemaError(f"Unknown type {name!r}", where=f"#{part.pointer}/type")
    shape.types &= widened(frozenset(names))
    return True


def _enum(source: SchemaSource, shape: Conjunction, part: SourceNode) -> None:
    """Narrow the listed values to those that a part lists too."""
    for keyword in ("enum", "const"):
        if isinstance(part.schema, bool) or keyword not in part.schema or not source.knows(keyword):
            continue
        listed = part.schema[keyword]
        values = [listed] if keyword == "const" else listed
        if not isinstance(values, list):
            continue
        if shape.enum is None:
            unique = {json_key(value): value for value in values}
            shape.enum = list(unique.values())
            shape.enum_pointer = f"{part.pointer}/{keyword}"
        else:
            shape.enum = common_values(shape.enum, values)


def _tighten_bound(shape: Conjunction, part: SourceNode, keyword: str) -> None:
    """Store a bound if it is tighter than the current one."""
    value = part.get(keyword)
    if value is True and keyword.startswith("exclusive"):  # draft 4
        value = part.get(keyword[9:].lower())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    tightest = shape.bounds.get(keyword)
    if tightest is None or (TIGHTER[keyword](tightest.value, value) == value and tightest.value != value):
        shape.bounds[keyword] = Bound(keyword, value, f"{part.pointer}/{keyword}")


def _bounds(source: SchemaSource, shape: Conjunction, part: SourceNode) -> None:
    """Collect a part's bounds, and keywords that only the validator checks."""
    keywords = keywords_in(part) & _BOUNDING
    if not keywords:
        return
    for keyword in _BOUNDS:
        if keyword in keywords:
            _tighten_bound(shape, part, keyword)
    for keyword in ("pattern", "format", "multipleOf"):
        value = part.get(keyword)
        if keyword not in keywords or value is None:
            continue
        bound = Bound(keyword, value, f"{part.pointer}/{keyword}")
        tightest = shape.bounds.setdefault(keyword, bound)
        if tightest.value != value:
            shape.local.append(bound)
    for keyword in LOCAL_KEYWORDS:
        if keyword in keywords:
            _add_local_keyword(source, shape, part, keyword)


def _add_local_keyword(source: SchemaSource, shape: Conjunction, part: SourceNode, keyword: str) -> None:
    """Record a keyword that only the validator checks; `if` together with its branches."""
    value = part.get(keyword)
    if value is None or (keyword, value) == ("uniqueItems", False) or not source.knows(keyword):
        return
    for each in (keyword, "then", "else") if keyword == "if" else (keyword,):
        if part.get(each) is not None:
            shape.local.append(Bound(each, part.get(each), f"{part.pointer}/{each}"))


def infer(shape: Conjunction) -> None:
    """Infer the types from the other keywords, for a shape without types."""
    types = implied_types(keyword for part in shape.parts for keyword in keywords_in(part))
    if types and shape.types == JSON_TYPES:
        shape.types = widened(frozenset(types))
        shape.inferred = True


Openness: TypeAlias = Literal["closed", "schema", "true", "implicit"]
"""Whether other keys are refused, must match a schema, are explicitly allowed, or are not mentioned."""


@dataclass(slots=True)
class ObjectView:
    """An object's keys: the parts that apply to each."""

    properties: dict[str, list[SourceNode]] = field(default_factory=dict)
    loose: dict[str, list[SourceNode]] = field(default_factory=dict)
    """Keys that only a condition names: each part is one alternative."""
    required: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, list[SourceNode]] = field(default_factory=dict)
    openness: Openness = "implicit"
    additional: list[SourceNode] = field(default_factory=list)
    additional_pointer: str = ""
    unevaluated: bool = False
    """Whether it is closed only to keys that no subschema mentions, conditional ones included."""
    names: list[SourceNode] = field(default_factory=list)


@dataclass(slots=True)
class ArrayView:
    """The positions of an array: the parts that apply to each, and to all further items."""

    prefix: list[list[SourceNode]] = field(default_factory=list)
    rest: list[SourceNode] = field(default_factory=list)
    openness: Openness = "implicit"
    pointer: str = ""


def object_view(source: SchemaSource, parts: tuple[SourceNode, ...], loosened: list[SourceNode]) -> ObjectView:
    """Return the keys of an object to which all `parts` apply; `loosened` are conditional subschemas."""
    view = ObjectView()
    for part in parts:
        _requirements(source, view, part)
    for part in parts:
        for name in _mapping(part, "properties"):
            view.properties.setdefault(name, [])
        for pattern in _mapping(part, "patternProperties"):
            view.patterns.setdefault(pattern, [])
    for name in [*view.required, *_dependent_names(parts)]:
        view.properties.setdefault(name, [])
    for part in parts:
        _keys(source, view, part)
    for pattern in list(view.patterns):
        _pattern_keys(source, view, parts, pattern)
    if view.openness == "implicit" or view.unevaluated:
        _loosen(source, view, [*loosened, *_conditional(source, parts)])
    return view


def _requirements(source: SchemaSource, view: ObjectView, part: SourceNode) -> None:
    """Collect a part's required keys, and its constraint on unlisted keys."""
    required = part.get("required")
    if isinstance(required, list):
        view.required |= {name: None for name in required if isinstance(name, str)}
    additional = part.get("additionalProperties")
    word = "additionalProperties"
    if additional is None and source.knows("unevaluatedProperties"):
        word = "unevaluatedProperties"
        additional = part.get(word)
    if additional is None:
        return
    view.additional_pointer = f"{part.pointer}/{word}"
    if additional is False:
        view.unevaluated = word == "unevaluatedProperties" and (view.unevaluated or view.openness != "closed")
        view.openness = "closed"
    elif view.openness != "closed":
        if additional is True or additional == {}:
            view.openness = "true" if view.openness == "implicit" else view.openness
        else:
            view.openness = "schema"
            view.additional.append(source.child(part, word))


def _keys(source: SchemaSource, view: ObjectView, part: SourceNode) -> None:
    """Add the constraints of one part on each listed key."""
    assert isinstance(part.schema, Mapping)  # noqa: S101 — `flatten` keeps no booleans
    for name, parts in view.properties.items():
        for steps in property_places(part.schema, name)[0]:
            if len(steps) > 1 or (part.schema[steps[0]] is not None and part.schema[steps[0]] is not True):
                parts.append(source.child(part, *steps))
    if isinstance(part.get("propertyNames"), dict) and source.knows("propertyNames"):
        view.names.append(source.child(part, "propertyNames"))


def _pattern_keys(source: SchemaSource, view: ObjectView, parts: tuple[SourceNode, ...], pattern: str) -> None:
    """Collect the constraints of all parts on keys that match a pattern; a part that forbids them removes it."""
    for part in parts:
        other = part.get("additionalProperties")
        if pattern in _mapping(part, "patternProperties"):
            view.patterns[pattern].append(source.child(part, "patternProperties", pattern))
        elif other is False and not _mapping(part, "patternProperties"):
            del view.patterns[pattern]
            return
        elif isinstance(other, dict) and other:
            view.patterns[pattern].append(source.child(part, "additionalProperties"))


def _conditional(source: SchemaSource, parts: tuple[SourceNode, ...]) -> list[SourceNode]:
    """Return subschemas that apply to the same object conditionally."""
    subschemas = []
    for part in parts:
        if part.get("if") is not None:
            subschemas += [source.child(part, word) for word in ("then", "else") if part.get(word) is not None]
        for word in ("dependentSchemas", "dependencies"):
            below = _mapping(part, word)
            subschemas += [
                source.child(part, word, name) for name, sub in below.items() if isinstance(sub, dict | bool)
            ]
    return subschemas


def _dependent_names(parts: tuple[SourceNode, ...]) -> list[str]:
    names_of_keys: list[str] = []
    for part in parts:
        for word in ("dependentRequired", "dependencies"):
            for name, names in _mapping(part, word).items():
                if isinstance(names, list):
                    names_of_keys += [name, *(other for other in names if isinstance(other, str))]
    return names_of_keys


def _loosen(source: SchemaSource, view: ObjectView, conditional: list[SourceNode]) -> None:
    """List the keys that conditional subschemas mention, so that closing the object does not exclude them."""
    queue = list(conditional)
    visited: set[SourceNode] = set()
    while queue and len(visited) < 200:
        start = queue.pop(0)
        if start in visited:
            continue
        visited.add(start)
        parts, _, never = flatten(source, [start])
        if never:
            continue
        for part in parts:
            for name in _mapping(part, "properties"):
                if name not in view.properties:
                    view.loose.setdefault(name, []).append(source.child(part, "properties", name))
            for word in CHOICES:
                branches = part.get(word)
                if isinstance(branches, list):
                    queue += [source.child(part, word, str(index)) for index in range(len(branches))]
            for name in part.get("required") or ():
                if isinstance(name, str) and name not in view.properties:
                    view.loose.setdefault(name, [])
        queue += _conditional(source, parts)


def _prefix_of(source: SchemaSource, part: SourceNode) -> tuple[list[SourceNode], str]:
    """Return the schemas of the first items, and the keyword for the items after them."""
    items = part.get("items")
    if isinstance(items, list):  # before 2020-12
        return [source.child(part, "items", str(index)) for index in range(len(items))], "additionalItems"
    head = part.get("prefixItems") if source.draft >= 2020 else None
    return [source.child(part, "prefixItems", str(index)) for index in range(len(head or ()))], "items"


def array_view(source: SchemaSource, parts: tuple[SourceNode, ...]) -> ArrayView:
    """Return the positions of an array to which all `parts` apply."""
    view = ArrayView()
    rows: list[tuple[list[SourceNode], SourceNode | None]] = []
    for part in parts:
        prefix, word = _prefix_of(source, part)
        if part.get(word) is None and source.draft >= 2019:
            word = "unevaluatedItems"
        other_items = part.get(word)
        if other_items is not None:
            view.pointer = f"{part.pointer}/{word}"
            view.openness = _widest_openness(view.openness, other_items)
        rows.append((prefix, None if other_items is None else source.child(part, word)))
    length = max((len(prefix) for prefix, _ in rows), default=0)
    for place in range(length):
        at = [prefix[place] if place < len(prefix) else rest for prefix, rest in rows]
        view.prefix.append([part for part in at if part is not None])
    view.rest = [rest for _, rest in rows if rest is not None]
    return view


def _widest_openness(before: Openness, additional: Any) -> Openness:
    if additional is False or before == "closed":
        return "closed"
    if additional is True or additional == {}:
        return "true" if before == "implicit" else before
    return "schema"


def _mapping(part: SourceNode, keyword: str) -> dict[str, Any]:
    value = part.get(keyword)
    return value if isinstance(value, dict) else {}

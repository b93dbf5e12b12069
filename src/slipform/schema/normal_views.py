"""Read off a conjunction what it says of an object's keys and of an array's items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slipform.schema.keywords import CHOICES, property_places
from slipform.schema.normal_form import SchemaSource, SourceNode, flatten

Openness: TypeAlias = Literal["closed", "schema", "true", "implicit"]
"""Other keys are refused, must fit a schema, are allowed in so many words, or are not spoken of."""


@dataclass(slots=True)
class ObjectView:
    """An object's keys: the parts that apply to each."""

    properties: dict[str, list[SourceNode]] = field(default_factory=dict)
    loose: dict[str, list[SourceNode]] = field(default_factory=dict)
    """Keys named only under a condition: each part is one alternative."""
    required: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, list[SourceNode]] = field(default_factory=dict)
    openness: Openness = "implicit"
    additional: list[SourceNode] = field(default_factory=list)
    additional_pointer: str = ""
    unevaluated: bool = False
    """Closed only to keys that no subschema speaks of, conditional ones included."""
    names: list[SourceNode] = field(default_factory=list)


@dataclass(slots=True)
class ArrayView:
    """An array's places: the parts that apply to each, and to all that follow."""

    prefix: list[list[SourceNode]] = field(default_factory=list)
    rest: list[SourceNode] = field(default_factory=list)
    openness: Openness = "implicit"
    pointer: str = ""


def object_view(source: SchemaSource, parts: tuple[SourceNode, ...], loosened: list[SourceNode]) -> ObjectView:
    """The keys of an object to which all `parts` apply; `loosened` are subschemas that may apply."""
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
    """Add what one part says of each listed key."""
    assert isinstance(part.schema, Mapping)  # noqa: S101 — `flatten` keeps no booleans
    for name, parts in view.properties.items():
        for steps in property_places(part.schema, name)[0]:
            if len(steps) > 1 or (part.schema[steps[0]] is not None and part.schema[steps[0]] is not True):
                parts.append(source.child(part, *steps))
    if isinstance(part.get("propertyNames"), dict) and source.knows("propertyNames"):
        view.names.append(source.child(part, "propertyNames"))


def _pattern_keys(source: SchemaSource, view: ObjectView, parts: tuple[SourceNode, ...], pattern: str) -> None:
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
    """Subschemas that apply to the same object under a condition."""
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
    """List the keys that conditional subschemas speak of, so that closing the object does not shut them out."""
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
    """The places of an array to which all `parts` apply."""
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

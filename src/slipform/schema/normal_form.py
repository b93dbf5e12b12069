"""Combine all that references and `allOf` say at one place of a schema into one record.

Unions are not multiplied out: `Conjunction.groups` lists them, and whoever asks decides which of them to spread. Every
constraint keeps the pointer of the place that says it, for reports. What the conjunction says of an object's keys and
of an array's places is in `normal_views`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    widened,
)
from slipform.schema.patterns import survey
from slipform.schema.shape import to_text
from slipform.schema.validator import Compiled

_METASCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
_BESIDE = frozenset({*REFERENCES, "allOf", "title", "description", "default"})


@dataclass(frozen=True, slots=True, eq=False)
class SourceNode:
    """One subschema at one place. `skip` names keywords of it that are dealt with elsewhere."""

    schema: Mapping[str, Any] | bool
    pointer: str
    skip: frozenset[str] = frozenset()

    def get(self, keyword: str) -> Any:
        """The keyword's value, or None when it is absent or dealt with elsewhere."""
        if isinstance(self.schema, bool) or keyword in self.skip:
            return None
        return self.schema.get(keyword)


@dataclass(slots=True)
class SchemaSource:
    """A schema document, read once; parts are interned, so that one place is one object."""

    document: Mapping[str, Any]
    draft: int
    _parts: dict[tuple[str, frozenset[str]], SourceNode] = field(default_factory=dict)

    @classmethod
    def read(cls, text: bytes) -> SchemaSource:
        """Take a schema's JSON text."""
        document = with_plain_references(json.loads(text))
        return cls(document, draft_of(document))

    @property
    def root(self) -> SourceNode:
        """The whole document."""
        return self.part(self.document, "")

    def knows(self, keyword: str) -> bool:
        """Whether the document's draft has the keyword; one it does not have refuses nothing."""
        return self.draft >= _SINCE.get(keyword, 0)

    def part(self, schema: Any, pointer: str, skip: frozenset[str] = frozenset()) -> SourceNode:
        """The part at a place; what is neither an object nor a boolean there is an error."""
        part = self._parts.get((pointer, skip))
        if part is None:
            if not isinstance(schema, Mapping | bool):
                raise SchemaError(
                    f"A schema must be an object or a boolean, not {type(schema).__name__}", where=f"#{pointer}"
                )
            part = self._parts[pointer, skip] = SourceNode(schema, pointer, skip)
        return part

    def child(self, part: SourceNode, *steps: str) -> SourceNode:
        """The part under one or more keys of another."""
        value: Any = part.schema
        for step in steps:
            value = value[int(step)] if isinstance(value, list) else value[step]
        return self.part(value, part.pointer + join_pointer(steps))

    def alone(self, part: SourceNode, *keywords: str) -> SourceNode:
        """The same place without what it refers to or merges, without its notes, and without the keywords named."""
        skip = part.skip | _BESIDE | frozenset(keywords)
        return self.part(part.schema, part.pointer, skip)

    def resolve(self, part: SourceNode, ref: Any, keyword: str) -> SourceNode | None:
        """What a reference points at; None for one of the meta-schemas, which every schema validator knows."""
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
"""Keywords that no vendor's dialect has a place for."""

_LINKS = frozenset({*REFERENCES, "allOf"})
_KEYWORDS = frozenset().union(*KEYWORDS_OF.values()) | {"type", "enum", "const", "not", "if", *CHOICES}
CONSTRAINING = _KEYWORDS | {"allOf", *REFERENCES[1:]}
"""Keywords beside which a $ref is not alone."""
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
    """One constraint, as tight as all the parts together make it, and where it stands."""

    keyword: str
    value: Any
    pointer: str


@dataclass(slots=True)
class Conjunction:
    """What all parts together say."""

    parts: tuple[SourceNode, ...]
    types: frozenset[str] = JSON_TYPES
    inferred: bool = False
    """No part names a type; the types were read off the other keywords."""
    enum: list[Any] | None = None
    enum_pointer: str = ""
    bounds: dict[str, Bound] = field(default_factory=dict)
    local: list[Bound] = field(default_factory=list)
    settled: list[Bound] = field(default_factory=list)
    """Constraints that the listed values were held against, so that listing them says all."""
    groups: list[tuple[SourceNode, str]] = field(default_factory=list)
    title: str | None = None
    description: str | None = None
    default: Bound | None = None

    @property
    def never(self) -> bool:
        """Whether no value fits."""
        return not self.types or self.enum == []


def flatten(
    source: SchemaSource, starts: Iterable[SourceNode]
) -> tuple[tuple[SourceNode, ...], list[SourceNode], bool]:
    """Follow references and allOf: the parts that constrain, all parts met, and whether one of them is false.

    A part is met once, so loops end and doubling references cost nothing.
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
    """The keywords with which a part constrains, apart from what it refers to."""
    if isinstance(part.schema, bool):
        return frozenset()
    return _KEYWORDS.intersection(part.schema) - part.skip


def _conjuncts(source: SchemaSource, part: SourceNode, only_ref: bool) -> list[SourceNode]:
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
    """All that the parts say together."""
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

    Patterns that have to be counted may be given up on, and then say nothing of a value.
    """
    draft = {"$schema": source.document["$schema"]} if "$schema" in source.document else {}
    try:
        if survey(list(schemas)).counted:
            return None
        return Compiled({**draft, "allOf": schemas})
    except SchemaError:
        return None


def _fitting_values(source: SchemaSource, shape: Conjunction, values: list[Any]) -> list[Any]:
    """The listed values that fit what stands beside the list; what refers elsewhere is left to the final check."""
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
    shape.settled = [bound for bound in every if not _has_reference(bound.value)]
    shape.local = [bound for bound in every if _has_reference(bound.value) and bound.keyword not in CHOICES]
    shape.groups = [(part, word) for part, word in shape.groups if _has_reference(part.get(word))]
    return [value for value in values if compiled.is_valid(value)]


def _has_reference(value: Any) -> bool:
    """Whether a keyword's value holds a reference, which means nothing outside its document."""
    return isinstance(value, dict | list) and any(word.encode() in to_text({"": value}) for word in REFERENCES)


def _annotate(shape: Conjunction, part: SourceNode) -> None:
    if isinstance(part.schema, bool) or _NOTES.isdisjoint(part.schema):
        return
    if shape.title is None and isinstance(part.get("title"), str):
        shape.title = part.get("title")
    if shape.description is None and isinstance(part.get("description"), str):
        shape.description = part.get("description")
    if shape.default is None and part.get("default") is not None:
        shape.default = Bound("default", part.get("default"), f"{part.pointer}/default")


def _type(shape: Conjunction, part: SourceNode) -> bool:
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
    value = part.get(keyword)
    if value is True and keyword.startswith("exclusive"):  # draft 4
        value = part.get(keyword[9:].lower())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    tightest = shape.bounds.get(keyword)
    if tightest is None or (TIGHTER[keyword](tightest.value, value) == value and tightest.value != value):
        shape.bounds[keyword] = Bound(keyword, value, f"{part.pointer}/{keyword}")


def _bounds(source: SchemaSource, shape: Conjunction, part: SourceNode) -> None:
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
        value = part.get(keyword) if keyword in keywords else None
        if value is None or (keyword, value) == ("uniqueItems", False) or not source.knows(keyword):
            continue
        for word in (keyword, "then", "else") if keyword == "if" else (keyword,):
            if part.get(word) is not None:
                shape.local.append(Bound(word, part.get(word), f"{part.pointer}/{word}"))


def infer(shape: Conjunction) -> None:
    """Read the types off the other keywords, for a shape of which no part names one."""
    types = implied_types(keyword for part in shape.parts for keyword in keywords_in(part))
    if types and shape.types == JSON_TYPES:
        shape.types = widened(frozenset(types))
        shape.inferred = True

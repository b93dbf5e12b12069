"""Conjunctions: all that several subschemas say together about one value, as one shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.schema.document import REF, REFERENCES
from slipform.schema.lowering.source import SchemaSource, SourceNode

ALL_TYPES = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
"""The JSON types; a number is an integer or a fraction."""

OBJECT_WORDS = frozenset(
    {
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties",
    }
)  # fmt: skip
ARRAY_WORDS = frozenset(
    {
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
        "maxContains", "unevaluatedItems",
    }
)  # fmt: skip
STRING_WORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
NUMBER_WORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
GROUPS = ("anyOf", "oneOf")
LOCAL_WORDS = (
    "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "contains", "uniqueItems",
    "minProperties", "maxProperties",
)  # fmt: skip
"""Keywords that no vendor's dialect has a place for."""

_LINKS = frozenset({*REFERENCES, "allOf"})
_WORDS = OBJECT_WORDS | ARRAY_WORDS | STRING_WORDS | NUMBER_WORDS | {"type", "enum", "const", "not", "if", *GROUPS}
CONSTRAINING = _WORDS | {"allOf", *REFERENCES[1:]}
"""Keywords beside which a $ref is not alone."""
_TIGHTEST = {
    "minimum": max, "exclusiveMinimum": max, "minLength": max, "minItems": max,
    "maximum": min, "exclusiveMaximum": min, "maxLength": min, "maxItems": min,
}  # fmt: skip
_BOUNDING = frozenset({*_TIGHTEST, *LOCAL_WORDS, "pattern", "format", "multipleOf"})
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
    types: frozenset[str] = ALL_TYPES
    inferred: bool = False
    """No part names a type; the types were read off the other keywords."""
    enum: list[Any] | None = None
    enum_pointer: str = ""
    bounds: dict[str, Bound] = field(default_factory=dict)
    local: list[Bound] = field(default_factory=list)
    groups: list[tuple[SourceNode, str]] = field(default_factory=list)
    title: str | None = None
    description: str | None = None
    default: Bound | None = None

    @property
    def never(self) -> bool:
        """Whether no value fits."""
        return not self.types or self.enum == []


def knows(source: SchemaSource, keyword: str) -> bool:
    """Whether the document's draft has the keyword; one it does not have refuses nothing."""
    return source.draft >= _SINCE.get(keyword, 0)


def flatten(
    source: SchemaSource, starts: Iterable[SourceNode]
) -> tuple[tuple[SourceNode, ...], list[SourceNode], bool]:
    """Follow references and allOf: the parts that constrain, all parts met, and whether one of them is false.

    A part is met once, so loops end and doubling references cost nothing.
    """
    begin = list(starts)
    if len(begin) == 1 and not isinstance(begin[0].schema, bool) and _LINKS.isdisjoint(begin[0].schema):
        return (tuple(begin) if words(begin[0]) else ()), begin, False
    seen: dict[SourceNode, None] = {}
    found: list[SourceNode] = []
    never = False
    stack = [(part, False) for part in reversed(begin)]
    while stack:
        part, ready = stack.pop()
        if ready:
            found.append(part)
            continue
        if part in seen:
            continue
        seen[part] = None
        if len(seen) > _MAX_PARTS:
            raise UnsupportedSchemaError(
                f"More than {_MAX_PARTS} subschemas apply to one place", where=f"#{part.pointer}"
            )
        if isinstance(part.schema, bool):
            never = never or not part.schema
            continue
        only_ref = source.draft <= 7 and part.get(REF) is not None
        below = _conjuncts(source, part, only_ref)
        if not only_ref and words(part):
            if below and _first(part.schema, "properties", "allOf", *REFERENCES) != "properties":
                stack.append((part, True))
            else:
                found.append(part)
        stack.extend((child, False) for child in reversed(below))
    return tuple(found), list(seen), never


def words(part: SourceNode) -> frozenset[str]:
    """The keywords with which a part constrains, apart from what it refers to."""
    return frozenset() if isinstance(part.schema, bool) else _WORDS.intersection(part.schema) - part.skip


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


def _first(schema: Mapping[str, Any], *keywords: str) -> str | None:
    return next((key for key in schema if key in keywords), None)


def shape_of(source: SchemaSource, starts: Iterable[SourceNode]) -> Conjunction:
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
        shape.groups += [(part, word) for word in GROUPS if isinstance(part.get(word), list) and part.get(word)]
    if shape.enum is not None:
        fits = [value for value in shape.enum if type_of(value) in shape.types]
        shape.enum = fits
        shape.types = frozenset(type_of(value) for value in fits)
    elif not typed and not shape.groups:
        infer(shape)
    return shape


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
    said = part.get("type")
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not names:
        return False
    allowed: set[str] = set()
    for name in names:
        if name == "number":
            allowed |= {"integer", "fraction"}
        elif name in ALL_TYPES and name != "fraction":
            allowed.add(name)
        else:
            raise SchemaError(f"Unknown type {name!r}", where=f"#{part.pointer}/type")
    shape.types &= allowed
    return True


def _enum(source: SchemaSource, shape: Conjunction, part: SourceNode) -> None:
    for keyword in ("enum", "const"):
        if isinstance(part.schema, bool) or keyword not in part.schema or not knows(source, keyword):
            continue
        said = part.schema[keyword]
        values = [said] if keyword == "const" else said
        if not isinstance(values, list):
            continue
        unique = {key_of(value): value for value in values}
        if shape.enum is None:
            shape.enum, shape.enum_pointer = list(unique.values()), f"{part.pointer}/{keyword}"
        else:
            shape.enum = [value for value in shape.enum if key_of(value) in unique]


def _bounds(source: SchemaSource, shape: Conjunction, part: SourceNode) -> None:
    said = words(part) & _BOUNDING
    if not said:
        return
    for keyword, tightest in _TIGHTEST.items():
        if keyword not in said:
            continue
        value = part.get(keyword)
        if value is True and keyword.startswith("exclusive"):
            value = part.get(keyword[9:].lower())
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        known = shape.bounds.get(keyword)
        if known is None or (tightest(known.value, value) == value and known.value != value):
            shape.bounds[keyword] = Bound(keyword, value, f"{part.pointer}/{keyword}")
    for keyword in ("pattern", "format", "multipleOf"):
        value = part.get(keyword)
        if keyword not in said or value is None:
            continue
        bound = Bound(keyword, value, f"{part.pointer}/{keyword}")
        known = shape.bounds.setdefault(keyword, bound)
        if known.value != value:
            shape.local.append(bound)
    for keyword in LOCAL_WORDS:
        value = part.get(keyword) if keyword in said else None
        if value is not None and (keyword, value) != ("uniqueItems", False) and knows(source, keyword):
            shape.local.append(Bound(keyword, value, f"{part.pointer}/{keyword}"))


def infer(shape: Conjunction) -> None:
    """Read the types off the other keywords, for a shape of which no part names one."""
    found = frozenset().union(*(words(part) for part in shape.parts))
    types: set[str] = set()
    for said, names in (
        (OBJECT_WORDS, {"object"}),
        (ARRAY_WORDS, {"array"}),
        (STRING_WORDS, {"string"}),
        (NUMBER_WORDS, {"integer", "fraction"}),
    ):
        if not said.isdisjoint(found):
            types |= names
    if types and shape.types == ALL_TYPES:
        shape.types = frozenset(types)
        shape.inferred = True


def type_of(value: Any) -> str:
    """The JSON type of a value; a whole number is an integer however it is written."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def key_of(value: Any) -> str:
    """A text that is the same for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, str):
        return '"' + value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list | dict):
        return json.dumps(_whole(value), sort_keys=True)
    return json.dumps(value)


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value

"""Walking a JSON Schema by keyword: a property that is named like a keyword is never taken for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Json: TypeAlias = Any
Pointer: TypeAlias = tuple[str, ...]
"""The steps of a JSON Pointer."""

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
CONTENTS = ("items", "additionalProperties", "additionalItems")
"""The single subschemas that speak of what a value holds, not of the value itself."""
SINGLES = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "additionalItems",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
)


def subschemas(schema: Json, at: Pointer = ()) -> Iterator[tuple[Pointer, Mapping[str, Any]]]:
    """Every subschema that is an object, the root first, with its pointer.

    >>> [pointer for pointer, _ in subschemas({"properties": {"items": {"type": "integer"}}})]
    [(), ('properties', 'items')]
    """
    pending = [(at, schema)]
    while pending:
        pointer, sub = pending.pop()
        if isinstance(sub, Mapping):
            yield pointer, sub
            pending.extend(reversed(list(children(pointer, sub))))


def children(pointer: Pointer, sub: Mapping[str, Any]) -> Iterator[tuple[Pointer, Json]]:
    """The subschemas directly under one, in the order of its keywords."""
    for key, held in sub.items():
        if key in MAPS and isinstance(held, Mapping):
            for name, each in held.items():
                yield (*pointer, key, name), each
        elif key in LISTS and isinstance(held, list):
            for number, each in enumerate(held):
                yield (*pointer, key, str(number)), each
        elif key in SINGLES:
            yield (*pointer, key), held


def lookup(schema: Json, reference: object) -> Json:
    """What a reference within the document points at; None when that is nothing, or elsewhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = schema
    for step in filter(None, reference[1:].split("/")):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def found_at(schema: Json, pointer: Pointer) -> Json:
    """What stands at a pointer.

    >>> found_at({"anyOf": [{"type": "null"}]}, ("anyOf", "0"))
    {'type': 'null'}
    """
    for step in pointer:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


def changed_at(schema: Json, pointer: Pointer, value: Json) -> Json:
    """A copy of the schema with `value` at `pointer`; None takes out what is there."""
    if not pointer:
        return value
    step, rest = pointer[0], pointer[1:]
    if isinstance(schema, list):
        number = int(step)
        inner = changed_at(schema[number], rest, value)
        return [inner if index == number else each for index, each in enumerate(schema)]
    if not rest and value is None:
        return {name: each for name, each in schema.items() if name != step}
    return {**schema, step: changed_at(schema.get(step, {}), rest, value)}


def written(pointer: Pointer) -> str:
    """The pointer as RFC 6901 writes it.

    >>> written(("properties", "a/b"))
    '/properties/a~1b'
    """
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in pointer)

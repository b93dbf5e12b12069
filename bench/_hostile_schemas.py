"""Build schemas that are costly to compile or to validate, each as large as the proxy accepts by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from slipform.config import ServerSettings
from slipform.errors import TooLargeError
from slipform.schema.limits import check_size

Schema: TypeAlias = dict[str, Any]
_LIMITS = ServerSettings()
_SMALL = 2_000
"""Bytes of a schema that is worked on without leaving the event loop."""


def _web(count: int, fan: int) -> Schema:
    """Definitions that refer to each other, `fan` at a time."""
    count = max(count, 2)
    definitions = {
        f"d{at}": {
            "type": "object",
            "properties": {f"p{each}": {"$ref": f"#/$defs/d{(at * 7 + each * 13) % count}"} for each in range(fan)},
        }
        for at in range(count)
    }
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def _deep(count: int) -> Schema:
    inner: Schema = {"type": "object"}
    for at in range(min(count, 70)):
        inner = {"allOf": [inner, {"properties": {f"a{at}": {"type": "string"}}}]}
    return inner


def _objects(properties: Callable[[int], Schema], count: int) -> Schema:
    return {"type": "object", "properties": {f"p{at}": properties(at) for at in range(count)}}


FAMILIES: dict[str, Callable[[int], Schema]] = {
    "oneOf of objects": lambda count: {
        "oneOf": [
            {"type": "object", "properties": {"k": {"const": at}, "v": {"type": "string"}}, "required": ["k"]}
            for at in range(count)
        ]
    },
    "oneOf of open objects": lambda count: {
        "oneOf": [{"type": "object", "properties": {f"k{at}": {"type": "string"}}} for at in range(count)]
    },
    "anyOf of constants": lambda count: {"anyOf": [{"const": at} for at in range(count)]},
    "properties": lambda count: _objects(lambda _: {"type": "integer"}, count),
    "allOf in allOf": _deep,
    "enum": lambda count: {"enum": [f"v{at}" for at in range(count)]},
    "required": lambda count: {"type": "object", "required": [f"k{at}" for at in range(count)]},
    "patterns": lambda count: _objects(lambda at: {"pattern": f"^[a-z]{{1,{20 + at}}}x{at}$"}, count),
    "patterns of Unicode": lambda count: _objects(lambda at: {"pattern": f"^(\\w{{1,30}}|\\p{{L}}{{30}}){at}$"}, count),
    "names by patterns": lambda count: {
        "type": "object", "patternProperties": {f"^p{at}_": {"type": "integer"} for at in range(count)},
    },
    "a web of definitions": lambda count: _web(count, 20),
    "a thin web of definitions": lambda count: _web(count, 3),
    "allOf of anyOf": lambda count: {
        "allOf": [
            {"anyOf": [{"properties": {f"{name}{at}": {"type": "string"}}} for name in "ab"]} for at in range(count)
        ]
    },
    "if and then": lambda count: {
        "allOf": [
            {"if": {"properties": {"k": {"const": at}}}, "then": {"required": [f"x{at}"]}} for at in range(count)
        ]
    },
}  # fmt: skip


def schemas() -> Iterator[tuple[str, Schema]]:
    """Each family at its largest within the limits, and at its largest below what counts as large."""
    for name, make in FAMILIES.items():
        for kind, most in (("largest", _LIMITS.max_schema_bytes), ("small", _SMALL)):
            yield f"{name}, {kind}", make(_most(make, most))


def _most(make: Callable[[int], Schema], max_bytes: int) -> int:
    """How many parts a family may have; never more than 16,384."""
    low, high = 1, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        try:
            check_size({"": make(middle)}, max_bytes, _LIMITS.max_schema_nodes)
            low = middle
        except TooLargeError:
            high = middle
    return low

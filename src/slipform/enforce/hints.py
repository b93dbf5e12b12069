"""What the text tools are told of the wanted shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from slipform.enforce.fixes import locate
from slipform.schema import Schema

_MOST_NODES = 100


class SchemaHint:
    """A schema, seen from the text: which roots it takes, and how badly a value misses it.

    `lift` turns a value as the vendor was asked for it into one of the caller's shape.

    >>> SchemaHint(Schema.of({"type": "array"})).root_types
    frozenset({'array'})
    """

    __slots__ = ("_lift", "_schema")

    def __init__(self, schema: Schema[Any], lift: Callable[[Any], Any] | None = None) -> None:
        self._schema = schema
        self._lift = lift

    @property
    def root_types(self) -> frozenset[str] | None:
        """The JSON types the value itself may have; most answers are read without asking."""
        return None if self._lift else root_types(self._schema.document)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema, where it is the one the text was written to."""
        return None if self._lift else self._schema.document

    def violations(self, value: Any) -> int:
        """In how many ways a value does not fit."""
        return len(self._schema.validate(lifted(value, self._lift)))


def lifted(value: Any, lift: Callable[[Any], Any] | None) -> Any:
    """The value in the caller's shape; as it is where the vendor strayed so far that nothing can be lifted."""
    if lift is None:
        return value
    try:
        return lift(value)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        return value


def root_types(document: Mapping[str, Any]) -> frozenset[str] | None:
    """The JSON types a schema's root may have, or None where it cannot be read off.

    >>> sorted(root_types({"anyOf": [{"type": "object"}, {"type": ["null", "string"]}]}))
    ['null', 'object', 'string']
    """
    types: set[str] = set()
    pending: list[Any] = [document]
    for _ in range(_MOST_NODES):
        if not pending:
            return frozenset(types)
        node = pending.pop()
        if not isinstance(node, Mapping):
            return None
        kind = node.get("type")
        union = node.get("anyOf", node.get("oneOf"))
        reference = node.get("$ref")
        if isinstance(kind, str):
            types.add(kind)
        elif isinstance(kind, list):
            types.update(each for each in kind if isinstance(each, str))
        elif isinstance(union, list):
            pending.extend(union)
        elif isinstance(reference, str) and reference.startswith("#"):
            pending.append(locate(document, reference[1:]))
        else:
            return None
    return None

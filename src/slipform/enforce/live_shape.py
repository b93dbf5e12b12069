"""A JSON Schema made ready for texts that are followed while they grow.

The resolver's plan says what may stand where by type, value and limit. It lets the other keywords pass; here they are
found again, so that what they speak about is held back until it can be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipform.bounded import BoundedCache
from slipform.errors import SlipformError
from slipform.schema import Schema
from slipform.schema.graph import Index
from slipform.schema.limits import plain_copy
from slipform.text.resolve_plan import Alternative, Leaf, Node, Plan

_SCALAR = ("pattern", "format", "multipleOf", "contentEncoding", "contentMediaType", "contentSchema")
_OPAQUE = frozenset(
    {
        "not", "if", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "dependentRequired",
        "dependentSchemas", "dependencies", "uniqueItems", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
"""What can only be judged when all of a value is there."""
_SAID = (*_SCALAR, *sorted(_OPAQUE), "then", "else")
_OF_NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LIMITS: Mapping[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength"}),
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "boolean": frozenset(),
    "null": frozenset(),
}
"""The types of scalars, and the limits that each may be held to."""
_ALL = ["object", "array", "string", "number", "boolean", "null"]


@dataclass(frozen=True, slots=True)
class Beyond:
    """What the plan does not know of one schema."""

    check: Schema[Any] | None = None
    """For a scalar, once it is whole."""
    pattern: str | None = None
    opaque: bool = False
    """Whether a container can only be judged when the whole answer is there."""
    unknown: bool = False
    """Whether a scalar, too, can only be judged then."""


_NONE = Beyond()


class Facts:
    """What there is to know of a place before anything stands there."""

    __slots__ = ("any_of", "free_text", "strings")

    def __init__(self, strings: list[Alternative], free_text: bool, any_of: frozenset[str]) -> None:
        self.strings = strings
        """The alternatives that a string may follow."""
        self.free_text = free_text
        """Whether any string may stand there, so that what has been written of one stays."""
        self.any_of = any_of
        """The types of scalars of which any value may stand there."""


class Shape:
    """A schema made ready. One serves any number of texts at a time."""

    __slots__ = ("_by_leaf", "_checks", "_extras", "_facts", "_known", "_opaque", "document", "has_unknown", "plan")

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._extras: dict[int, Beyond] = {}
        self.document = plain_copy(document)
        index = Index(self.document)
        for subschema in index.subschemas:
            self._typed(subschema)
        self.plan = Plan(self.document, index)
        self.has_unknown = any(each.unknown for each in self._extras.values())
        self._by_leaf: dict[int, Beyond] = {}
        self._known = 0
        self._opaque: dict[Alternative, bool] = {}
        self._checks: dict[Alternative, list[Schema[Any]]] = {}
        self._facts: dict[Node, Facts] = {}

    def beyond(self, leaf: Leaf) -> Beyond:
        """What the plan does not know of a leaf."""
        if len(self.plan.leaves) != self._known:
            self._known = len(self.plan.leaves)
            self._by_leaf = {id(each): self._extras.get(key, _NONE) for key, each in self.plan.leaves.items()}
        return self._by_leaf.get(id(leaf), _NONE)

    def opaque(self, alternative: Alternative) -> bool:
        """Whether only the whole of a value can be held to it."""
        known = self._opaque.get(alternative)
        if known is None:
            known = self._opaque[alternative] = any(self.beyond(leaf).opaque for leaf in alternative.leaves)
        return known

    def facts(self, node: Node) -> Facts:
        """What there is to know of a place beforehand."""
        known = self._facts.get(node)
        if known is None:
            strings = [each for each in node.alternatives if each.admits("string")]
            free = any(self._takes_any(each, "string") for each in strings)
            any_of = [kind for kind in _LIMITS if any(self._takes_any(each, kind) for each in node.alternatives)]
            known = self._facts[node] = Facts(strings, free, frozenset(_LIMITS if node.free else any_of))
        return known

    def accepts(self, value: Any, alternative: Alternative) -> bool:
        """Whether a whole scalar has what the plan does not look at."""
        checks = self._checks.get(alternative)
        if checks is None:
            found = (self.beyond(leaf).check for leaf in alternative.leaves)
            checks = self._checks[alternative] = [check for check in found if check is not None]
        return not checks or all(not check.validate(value) for check in checks)

    def _takes_any(self, alternative: Alternative, kind: str) -> bool:
        return alternative.admits(kind) and all(
            leaf.values is None and not leaf.limits.keys() & _LIMITS[kind] and self.beyond(leaf) is _NONE
            for leaf in alternative.leaves
        )

    def unknown(self, alternative: Alternative) -> bool:
        """Whether even a scalar there can only be judged when the whole answer is there."""
        return any(self.beyond(leaf).unknown for leaf in alternative.leaves)

    def patterns(self, alternative: Alternative) -> list[str]:
        """The patterns that a string there has to match."""
        found = (self.beyond(leaf).pattern for leaf in alternative.leaves)
        return [pattern for pattern in found if pattern is not None]

    def _typed(self, schema: dict[str, Any]) -> None:
        """Give a part that says something a type, so that the plan keeps it."""
        extra = _extra(schema)
        if extra is not _NONE:
            schema.setdefault("type", _ALL)
            self._extras[id(schema)] = extra


def _extra(schema: Mapping[str, Any]) -> Beyond:
    said = {name: schema[name] for name in _SAID if name in schema}
    opaque = any(said.get(name, False) is not False for name in _OPAQUE)
    if not any(name in said for name in _SCALAR) and not opaque:
        return _NONE
    check: Schema[Any] | None = None
    try:
        # References would lead nowhere from here.
        check = None if "$ref" in str(said) else Schema("part", said)
    except SlipformError:
        check = None
    pattern = said.get("pattern")
    return Beyond(check, pattern if isinstance(pattern, str) else None, opaque, check is None)


def shape_of(schema: Schema[Any]) -> Shape:
    """The schema made ready, kept for the next text.

    >>> shape_of(Schema.of({"type": "integer"})) is shape_of(Schema.of({"type": "integer"}))
    True
    """
    known = _SHAPES.use(schema.fingerprint)
    if known is None:
        known = Shape(schema.document)
        _SHAPES.put(schema.fingerprint, known, 10_000 + schema.size)
    return known


_SHAPES = BoundedCache[str, Shape]("followed schemas", entries=128, max_bytes=48_000_000)

"""A JSON Schema made ready for texts that are followed while they grow.

The resolver's plan says what may stand where by type, value and limit. It lets the other keywords pass; here they are
found again, so that what they speak about is held back until it can be judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.bounded import BoundedCache
from slipform.enforce.coercion import Switches, coercions
from slipform.errors import SlipformError
from slipform.schema import Schema
from slipform.schema.document import DYNAMIC_REF, RECURSIVE_REF, REF, SchemaDocument, with_plain_references
from slipform.schema.limits import plain_copy
from slipform.text.resolve_plan import Alternative, Leaf, Node, NormalForm

_LIKE_NUMBER = re.compile(r"\s*[+-]?[0-9.,_’'\u00a0\u202f eE+-]*\Z")
_BLANK = " \t\r\n"


def wanted_types(alternatives: Iterable[Alternative]) -> frozenset[str] | None:
    """The types that may stand there; None when any may."""
    found: set[str] = set()
    for alternative in alternatives:
        sets = [leaf.types for leaf in alternative.leaves if leaf.types is not None]
        if not sets:
            return None
        found |= frozenset.intersection(*sets)
    return frozenset(found)


def wanted_values(alternatives: Iterable[Alternative]) -> list[Any]:
    """The values that are listed there."""
    lists = (leaf.values for each in alternatives for leaf in each.leaves if leaf.values is not None)
    return [value for values in lists for value in values]


def scalar_may_be_patched(value: Any, alternatives: list[Alternative], switches: Switches, *, optional: bool) -> bool:
    """Whether a whole scalar in the wrong place may be mended; `optional` says that its key may be left out.

    >>> from slipform.text.resolve_plan import NormalForm
    >>> number = NormalForm({"type": "integer"}).root.alternatives
    >>> [scalar_may_be_patched(each, number, Switches(), optional=False) for each in ("42", "many", None)]
    [True, False, False]
    """
    if value is None and optional:
        return True
    types = wanted_types(alternatives)
    if types is None:
        return switches.coerce  # a value of the right type and the wrong content
    if switches.wrap_scalars and "array" in types:
        return True
    if not switches.coerce:
        return False
    if isinstance(value, str):
        said = value.strip().casefold()
        if any(_as_json(member).casefold() == said for member in wanted_values(alternatives)):
            return True
    return next(coercions(value, types, units=switches.units), None) is not None


def text_may_be_patched(text: str, alternatives: list[Alternative], switches: Switches) -> bool:
    """The same for a string of which this much is there."""
    types = wanted_types(alternatives)
    if types is None or (switches.wrap_scalars and "array" in types):
        return True
    if not switches.coerce:
        return False
    said = text.lstrip(_BLANK)
    folded = said.casefold()
    words = [_as_json(member) for member in wanted_values(alternatives)]
    words += ["true", "false"] if "boolean" in types else []
    words += ["null"] if "null" in types else []
    if any(word.casefold().startswith(folded.rstrip()) for word in words):
        return True
    if types & {"object", "array"} and (not said or said[0] in "{["):
        return True
    if types & {"integer", "number"}:
        return switches.units or _LIKE_NUMBER.match(said) is not None
    return False


def container_may_be_patched(alternatives: list[Alternative], switches: Switches, *, root: bool) -> bool:
    """The same for an object or array where none may stand."""
    types = wanted_types(alternatives)
    # At the root the answer may stand under a key of its own.
    return root or types is None or (switches.wrap_scalars and "array" in types)


def folded(name: str) -> str:
    """A key as the patch that renames keys compares it."""
    return "".join(sign for sign in name.casefold() if sign not in "_- ")


def _as_json(member: Any) -> str:
    if isinstance(member, bool):
        return "true" if member else "false"
    return member.strip() if isinstance(member, str) else str(member)


_SCALAR = ("pattern", "format", "multipleOf", "contentEncoding", "contentMediaType", "contentSchema")
_OPAQUE = frozenset(
    {
        "not", "if", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "dependentRequired",
        "dependentSchemas", "dependencies", "uniqueItems", DYNAMIC_REF, RECURSIVE_REF,
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
class LeafFacts:
    """What the plan does not know of one schema."""

    check: Schema[Any] | None = None
    """For a scalar, once it is whole."""
    pattern: str | None = None
    opaque: bool = False
    """Whether a container can only be judged when the whole answer is there."""
    unknown: bool = False
    """Whether a scalar, too, can only be judged then."""


_NONE = LeafFacts()


class NodeFacts:
    """What there is to know of a place before anything stands there."""

    __slots__ = ("any_of", "free_text", "strings")

    def __init__(self, strings: list[Alternative], free_text: bool, any_of: frozenset[str]) -> None:
        self.strings = strings
        """The alternatives that a string may follow."""
        self.free_text = free_text
        """Whether any string may stand there, so that what has been written of one stays."""
        self.any_of = any_of
        """The types of scalars of which any value may stand there."""


class TrackerFacts:
    """A schema made ready. One serves any number of texts at a time."""

    __slots__ = ("_by_leaf", "_checks", "_extras", "_facts", "_known", "_opaque", "document", "has_unknown", "plan")

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._extras: dict[int, LeafFacts] = {}
        self.document = plain_copy(with_plain_references(document))
        for place in SchemaDocument(self.document).walk():
            self._typed(place.node)
        self.plan = NormalForm(self.document, self.document)
        self.has_unknown = any(each.unknown for each in self._extras.values())
        self._by_leaf: dict[int, LeafFacts] = {}
        self._known = 0
        self._opaque: dict[Alternative, bool] = {}
        self._checks: dict[Alternative, list[Schema[Any]]] = {}
        self._facts: dict[Node, NodeFacts] = {}

    def beyond(self, leaf: Leaf) -> LeafFacts:
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

    def facts(self, node: Node) -> NodeFacts:
        """What there is to know of a place beforehand."""
        known = self._facts.get(node)
        if known is None:
            strings = [each for each in node.alternatives if each.admits("string")]
            free = any(self._takes_any(each, "string") for each in strings)
            any_of = [kind for kind in _LIMITS if any(self._takes_any(each, kind) for each in node.alternatives)]
            known = self._facts[node] = NodeFacts(strings, free, frozenset(_LIMITS if node.free else any_of))
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


def _extra(schema: Mapping[str, Any]) -> LeafFacts:
    said = {name: schema[name] for name in _SAID if name in schema}
    opaque = any(said.get(name, False) is not False for name in _OPAQUE)
    if not any(name in said for name in _SCALAR) and not opaque:
        return _NONE
    check: Schema[Any] | None = None
    try:
        # References would lead nowhere from here.
        check = None if REF in str(said) else Schema("part", said)
    except SlipformError:
        check = None
    pattern = said.get("pattern")
    return LeafFacts(check, pattern if isinstance(pattern, str) else None, opaque, check is None)


def shape_of(schema: Schema[Any]) -> TrackerFacts:
    """The schema made ready, kept for the next text.

    >>> shape_of(Schema.of({"type": "integer"})) is shape_of(Schema.of({"type": "integer"}))
    True
    """
    known = _SHAPES.use(schema.fingerprint)
    if known is None:
        known = TrackerFacts(schema.document)
        _SHAPES.put(schema.fingerprint, known, 10_000 + schema.size)
    return known


_SHAPES = BoundedCache[str, TrackerFacts]("followed schemas", entries=128, max_bytes=48_000_000)

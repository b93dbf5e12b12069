"""A JSON Schema made ready for `resolve`: at each place, the alternatives that a value there may follow.

A schema is a tree of keywords, references, conjunctions (`allOf`) and choices (`anyOf`, `oneOf`). A `Node` is the same
as a flat list of `Alternative`s, each a conjunction of `Leaf`s, and a `Leaf` has plain keywords only. Children are made
ready when a value gets there, so recursion in the schema is no concern. Keywords that are not listed in `resolve` are
let through: the validator has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slipform.schema.document import lookup, reference_of, with_plain_references
from slipform.schema.patterns import search

MAX_ALTERNATIVES: Final = 64
"""A choice with more branches than this is not followed; everything is let through there."""

_MAX_NESTING: Final = 100
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_LOW: Final = ("minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum")
_HIGH: Final = ("maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum")


class Leaf:
    """The plain keywords of one schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.types: frozenset[str] | None = _types(schema.get("type"))
        self.values: list[Any] | None = _values(schema)
        properties = schema.get("properties")
        self.properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        patterns = schema.get("patternProperties")
        self.patterns: Mapping[str, Any] = patterns if isinstance(patterns, Mapping) else {}
        self.additional: Any = schema.get("additionalProperties", True)
        required = schema.get("required")
        self.required: list[str] = [k for k in required if isinstance(k, str)] if isinstance(required, list) else []
        items = schema.get("items", True)
        prefix = schema.get("prefixItems")
        if isinstance(items, list):  # how drafts before 2020-12 spell prefixItems
            prefix, items = items, schema.get("additionalItems", True)
        self.prefix: list[Any] = prefix if isinstance(prefix, list) else []
        self.items: Any = items
        self.limits: dict[str, Any] = {
            name: schema[name]
            for name in (*_LOW, *_HIGH)
            if isinstance(schema.get(name), int | float) and not isinstance(schema[name], bool)
        }
        self.structural: bool = self.values is not None or any(
            keyword in schema
            for keyword in ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")
        )

    def property_schemas(self, key: str, out: list[Any]) -> bool:
        """Add the schemas for that key; false when the key is not allowed."""
        found = False
        if key in self.properties:
            out.append(self.properties[key])
            found = True
        for pattern, schema in self.patterns.items():
            match = search(pattern, key)
            if match is not False:
                # Where it cannot be told whether the key is meant, it is not refused: the validator has the last word.
                out.append(schema if match else True)
                found = True
        if not found:
            if self.additional is False:
                return False
            out.append(self.additional)
        return True

    def item_schemas(self, index: int, out: list[Any]) -> bool:
        """Add the schema for the item at `index`; false when there may be none."""
        schema = self.prefix[index] if index < len(self.prefix) else self.items
        if schema is False:
            return False
        out.append(schema)
        return True


class Alternative:
    """One way to be valid: all of its leaves hold."""

    def __init__(self, plan: NormalForm, leaves: tuple[Leaf, ...]) -> None:
        self.plan: NormalForm = plan
        self.leaves: tuple[Leaf, ...] = leaves
        self.shape: tuple[int, ...] = tuple(id(leaf) for leaf in leaves if leaf.structural)
        """Equal for alternatives that differ only in what they require, not in what may stand where."""
        self.declared: frozenset[str] = frozenset(key for leaf in leaves for key in leaf.properties)
        self.has_patterns: bool = any(leaf.patterns for leaf in leaves)
        self.max_prefix: int = max((len(leaf.prefix) for leaf in leaves), default=0)
        limits = [leaf.limits["maxItems"] for leaf in leaves if "maxItems" in leaf.limits]
        self.most_items: float = min(limits, default=float("inf"))
        self.known_properties: dict[str, Node | None] = {}
        self.known_items: dict[int, Node | None] = {}
        self.others: Node | None = None
        """What a property that is not declared must be, once `knows_others`."""
        self.knows_others: bool = False

    def admits(self, kind: str) -> bool:
        """Whether a value of that JSON type may stand here."""
        for leaf in self.leaves:
            types = leaf.types
            if types is not None and kind not in types:
                return False
        return True

    def child(self, name: str | int) -> Node | None:
        """What the child of that key or index must be; None when there may be none."""
        return self.property(name) if isinstance(name, str) else self.item(name)

    def property(self, key: str) -> Node | None:
        """What the property of that name must be; None when it is not allowed."""
        known = self.known_properties.get(key)
        if known is not None or key in self.known_properties:
            return known
        declared = key in self.declared
        if not declared and self.knows_others:
            return self.others
        schemas: list[Any] = []
        node: Node | None = None
        if all(leaf.property_schemas(key, schemas) for leaf in self.leaves):
            node = self.plan.node(schemas)
        if declared:
            self.known_properties[key] = node
        elif not self.has_patterns:
            self.others = node
            self.knows_others = True
        return node

    def item(self, index: int) -> Node | None:
        """What the item at that index must be; None when there may be none."""
        index = min(index, self.max_prefix)
        known = self.known_items.get(index)
        if known is not None or index in self.known_items:
            return known
        schemas: list[Any] = []
        node: Node | None = None
        if all(leaf.item_schemas(index, schemas) for leaf in self.leaves):
            node = self.plan.node(schemas)
        self.known_items[index] = node
        return node


class Node:
    """What a value at some place must be: one of these alternatives."""

    def __init__(self, alternatives: list[Alternative]) -> None:
        self.alternatives: list[Alternative] = alternatives
        self.free: bool = any(not alternative.leaves for alternative in alternatives)
        """Whether anything may stand here."""


class NormalForm:
    """A schema made ready; it holds the schema, so that the parts of it keep their identity."""

    def __init__(self, schema: Any, document: Any = None) -> None:
        self.schema: Any = schema
        if document is None:
            document = with_plain_references(schema) if isinstance(schema, Mapping) else schema
        self.document: Any = document
        """The schema with plain references."""
        self.leaves: dict[int, Leaf] = {}
        self.nodes: dict[tuple[int, ...], Node] = {}
        self.root: Node = self.node([document])

    def node(self, schemas: list[Any]) -> Node:
        """The node for a value that must follow all these schemas."""
        key = tuple(id(schema) for schema in schemas if schema is not True)
        node = self.nodes.get(key)
        if node is None:
            ways: list[tuple[Leaf, ...]] = [()]
            for schema in schemas:
                ways = _both(ways, self.expand(schema, (), 0))
            node = Node([Alternative(self, leaves) for leaves in ways])
            self.nodes[key] = node
        return node

    def expand(self, schema: Any, targets: tuple[int, ...], nesting: int) -> list[tuple[Leaf, ...]]:
        """The alternatives of a schema, each as the leaves that must hold together."""
        if schema is False:
            return []
        if not isinstance(schema, Mapping) or nesting > _MAX_NESTING:
            return [()]
        ways: list[tuple[Leaf, ...]] = [self.leaf(schema)]
        reference = reference_of(schema)
        if reference is not None:
            target = self.target(reference)
            # A reference that leads back to itself before any child says nothing.
            if id(target) not in targets:
                ways = _both(ways, self.expand(target, (*targets, id(target)), nesting + 1))
        parts = schema.get("allOf")
        if isinstance(parts, list):
            for part in parts:
                ways = _both(ways, self.expand(part, targets, nesting + 1))
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list):
                choice: list[tuple[Leaf, ...]] = []
                for branch in branches:
                    choice.extend(self.expand(branch, targets, nesting + 1))
                ways = _both(ways, choice)
        return ways

    def leaf(self, schema: Mapping[str, Any]) -> tuple[Leaf, ...]:
        """The plain keywords of a schema, if they say anything."""
        leaf = self.leaves.get(id(schema))
        if leaf is None:
            leaf = Leaf(schema)
            self.leaves[id(schema)] = leaf
        says_something = leaf.structural or leaf.types is not None or bool(leaf.required) or bool(leaf.limits)
        return (leaf,) if says_something else ()

    def target(self, reference: str) -> Any:
        """What a reference leads to; one that leads out of the document lets everything through."""
        found = lookup(self.document, reference)
        return True if found is None else found


def _both(left: list[tuple[Leaf, ...]], right: list[tuple[Leaf, ...]]) -> list[tuple[Leaf, ...]]:
    if len(left) * len(right) > MAX_ALTERNATIVES:
        return [()]
    return [(*a, *b) for a in left for b in right]


def _types(keyword: Any) -> frozenset[str] | None:
    names = [keyword] if isinstance(keyword, str) else keyword
    if not isinstance(names, list) or not all(isinstance(name, str) and name in _TYPES for name in names):
        return None
    return frozenset((*names, "integer")) if "number" in names else frozenset(names)


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    values = schema.get("enum")
    allowed: list[Any] | None = values if isinstance(values, list) else None
    if "const" in schema:
        const = schema["const"]
        allowed = [const] if allowed is None or const in allowed else []
    return allowed

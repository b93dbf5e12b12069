"""Prepare a JSON Schema for the tracker: at each place, the alternatives that a value there may follow.

A schema is a tree of keywords, references, conjunctions (`allOf`) and choices (`anyOf`, `oneOf`). A `Node` is the same
as a flat list of `Alternative`s, each a conjunction of `Leaf`s, and a `Leaf` has plain keywords only. Children are
prepared when a value reaches them, so recursive schemas need no special case.

Values that are only shown (`resolve`) need to match the plain keywords only: the validator decides later. Values that
are sent to a caller must match all. An exact form (`form_of`) therefore includes the other keywords: a scalar is
validated when it has ended. `container_needs_whole` and `scalar_needs_whole` mark what needs the whole answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from slipform.errors import SlipformError
from slipform.schema import Schema
from slipform.schema.document import (
    DYNAMIC_REF,
    RECURSIVE_REF,
    REF,
    draft_of,
    found_at,
    lookup,
    reference_of,
    with_plain_references,
)
from slipform.schema.keywords import JSON_TYPES, TIGHTER, common_values, property_places, tuple_parts, widened
from slipform.schema.shape import Shape

MAX_ALTERNATIVES: Final = 64
"""The most branches of a choice; one with more is not tracked, and allows everything."""

NO_LIMIT: Final = float("inf")
_CONTAINER_NEEDS_WHOLE: Final = attrgetter("container_needs_whole")
_CONTAINER_IS_UNDECIDED: Final = attrgetter("container_is_undecided")
_MAX_NESTING: Final = 100
_OF_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_SCALARS: Final[dict[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength"}),
    "integer": _OF_NUMBERS,
    "number": _OF_NUMBERS,
    "boolean": frozenset(),
    "null": frozenset(),
}
"""The types of scalars, and the limits of each."""
_OF_SCALARS: Final = ("pattern", "format", "multipleOf", "contentEncoding", "contentMediaType", "contentSchema")
_OF_THE_WHOLE: Final = (
    "not", "if", "contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "dependentRequired",
    "dependentSchemas", "dependencies", "uniqueItems", DYNAMIC_REF, RECURSIVE_REF,
)  # fmt: skip
"""Keywords that can only be decided for the complete value."""
_OF_CLOSED_CONTAINERS: Final = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames", "dependentRequired",
    "dependentSchemas", "dependencies", "uniqueItems",
)  # fmt: skip
"""Those that the container itself decides when it closes, and related keywords."""
_IDLE: Final[dict[str, bool]] = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
"""Values with which they do not constrain anything."""


class Leaf:
    """The plain keywords of one schema, and the constraints of its other keywords in an exact form."""

    def __init__(self, schema: Mapping[str, Any], exact: bool = False, draft: str = "") -> None:
        """Take `draft`, the document's `$schema`, which changes the meaning of some keywords."""
        self.schema: Mapping[str, Any] = schema
        self.types: frozenset[str] | None = _types(schema.get("type"))
        self.values: list[Any] | None = _values(schema)
        properties = schema.get("properties")
        self.properties: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        patterns = schema.get("patternProperties")
        self.patterns: Mapping[str, Any] = patterns if isinstance(patterns, Mapping) else {}
        required = schema.get("required")
        self.required: list[str] = [k for k in required if isinstance(k, str)] if isinstance(required, list) else []
        prefix, items = tuple_parts(schema)
        self.prefix: list[Any] = prefix
        self.items: Any = items
        self.limits: dict[str, Any] = {
            name: schema[name]
            for name in TIGHTER
            if isinstance(schema.get(name), int | float) and not isinstance(schema[name], bool)
        }
        self.structural: bool = self.values is not None or any(
            keyword in schema
            for keyword in ("properties", "patternProperties", "additionalProperties", "items", "prefixItems")
        )
        self.has_other_keywords: bool = False
        """Whether there are keywords beyond the plain ones."""
        self.check: Schema[Any] | None = None
        """Checks those keywords for a complete scalar."""
        self.pattern: str | None = None
        self.container_needs_whole: bool = False
        """Whether a container can only be decided with the complete answer."""
        self.container_is_undecided: bool = False
        """Whether a container can be decided neither while it grows nor when it closes."""
        self.container_check: Schema[Any] | None = None
        """Those keywords that can be decided when a container closes."""
        self.scalar_needs_whole: bool = False
        """Whether scalars can only be decided then, too."""
        self.choice: int = 0
        """Marks a branch of a `oneOf`, of which only one may match; 0 for any other leaf."""
        if exact:
            self._read_other_keywords(schema, draft)

    def _read_other_keywords(self, schema: Mapping[str, Any], draft: str) -> None:
        """Prepare the checks of the other keywords, and note what only the complete answer decides."""
        names = (*_OF_SCALARS, *_OF_THE_WHOLE, "then", "else")
        other_keywords = {name: schema[name] for name in names if name in schema}
        self.container_needs_whole = any(
            name in other_keywords and other_keywords[name] is not _IDLE.get(name) for name in _OF_THE_WHOLE
        )
        self.has_other_keywords = self.container_needs_whole or any(name in other_keywords for name in _OF_SCALARS)
        if schema.get("exclusiveMinimum") is True or schema.get("exclusiveMaximum") is True:  # in draft 4
            self.scalar_needs_whole = True
            self.has_other_keywords = True
        if not self.has_other_keywords:
            return
        if self.types is None:
            self.types = JSON_TYPES
        pattern = other_keywords.get("pattern")
        self.pattern = pattern if isinstance(pattern, str) else None
        try:
            # References would lead nowhere from here.
            self.check = None if REF in str(other_keywords) else Schema("part", other_keywords)
        except SlipformError:
            self.check = None
        self.scalar_needs_whole = self.scalar_needs_whole or self.check is None
        if self.container_needs_whole:
            self._prepare_container_check(schema, draft)

    def _prepare_container_check(self, schema: Mapping[str, Any], draft: str) -> None:
        """Prepare the check of a container that closes; some keywords depend on more than the container itself."""
        other_keywords = {name: schema[name] for name in _OF_CLOSED_CONTAINERS if name in schema}
        beyond = [name for name in _OF_THE_WHOLE if name in schema and name not in other_keywords]
        active = [name for name in beyond if schema[name] is not _IDLE.get(name)]
        if active or REF in str(other_keywords):
            self.container_is_undecided = True
            return
        try:
            self.container_check = Schema("part", {"$schema": draft, **other_keywords} if draft else other_keywords)
        except SlipformError:
            self.container_is_undecided = True

    def says_something(self) -> bool:
        """Return whether it refuses any value, or cannot be decided."""
        if self.structural or self.types is not None or self.scalar_needs_whole or self.choice:
            return True
        return bool(self.required) or bool(self.limits)

    def takes_any(self, kind: str) -> bool:
        """Return whether it accepts every scalar of an accepted type."""
        return self.values is None and not self.has_other_keywords and not self.limits.keys() & _SCALARS[kind]

    def property_schemas(self, key: str, out: list[Any]) -> bool:
        """Add the schemas for that key; false when the key is not allowed."""
        places, certain = property_places(self.schema, key)
        for steps in places:
            schema = found_at(self.schema, steps)
            if schema is False and len(steps) == 1:  # those of `additionalProperties`
                return False
            out.append(schema)
        # Where it is unknown whether the key is intended, it is accepted: the validator decides.
        if not certain or not places:
            out.append(True)
        return True

    def item_schemas(self, index: int, out: list[Any]) -> bool:
        """Add the schema for the item at `index`; false when there may be none."""
        schema = self.prefix[index] if index < len(self.prefix) else self.items
        if schema is False:
            return False
        out.append(schema)
        return True


class Alternative:
    """One way to be valid: all of its leaves apply."""

    def __init__(self, plan: NormalForm, leaves: tuple[Leaf, ...]) -> None:
        self.plan: NormalForm = plan
        self.leaves: tuple[Leaf, ...] = leaves
        self.shape: tuple[int, ...] = tuple(id(leaf) for leaf in leaves if leaf.structural)
        """Equal for alternatives that differ only in required keys."""
        self.declared: frozenset[str] = frozenset(key for leaf in leaves for key in leaf.properties)
        self.has_patterns: bool = any(leaf.patterns for leaf in leaves)
        self.max_prefix: int = max((len(leaf.prefix) for leaf in leaves), default=0)
        self.most_items: float = min([leaf.limits.get("maxItems", NO_LIMIT) for leaf in leaves], default=NO_LIMIT)
        most_members = [leaf.limits.get("maxProperties", NO_LIMIT) for leaf in leaves]
        self.most_members: float = min(most_members, default=NO_LIMIT)
        self.limits_items: bool = self.most_items != NO_LIMIT
        self.limits_members: bool = self.most_members != NO_LIMIT
        self.listed: bool = any(leaf.values is not None for leaf in leaves)
        """Whether only listed values are allowed here."""
        self.container_needs_whole: bool = any(map(_CONTAINER_NEEDS_WHOLE, leaves))
        self.container_is_undecided: bool = any(map(_CONTAINER_IS_UNDECIDED, leaves))
        self.container_checks: list[Schema[Any]] = [
            leaf.container_check for leaf in leaves if leaf.container_check is not None
        ]
        self.scalar_needs_whole: bool = any(leaf.scalar_needs_whole for leaf in leaves)
        self.exclusive: bool = any(leaf.choice for leaf in leaves)
        """Whether it is a branch of a `oneOf`, so that a value must not match another branch."""
        self.checks: list[Schema[Any]] = [leaf.check for leaf in leaves if leaf.check is not None]
        self.patterns: list[str] = [leaf.pattern for leaf in leaves if leaf.pattern is not None]
        self.known_properties: dict[str, Node | None] = {}
        self.known_items: dict[int, Node | None] = {}
        self.others: Node | None = None
        """The node of an undeclared property, once `knows_others`."""
        self.knows_others: bool = False

    def admits(self, kind: str) -> bool:
        """Return whether a value of that JSON type is allowed."""
        for leaf in self.leaves:
            types = leaf.types
            if types is not None and kind not in types:
                return False
        return True

    def takes_any(self, kind: str) -> bool:
        """Return whether every scalar of that type is allowed."""
        return self.admits(kind) and all(leaf.takes_any(kind) for leaf in self.leaves)

    def accepts(self, scalar: Any) -> bool:
        """Return whether a complete scalar meets the keywords beyond the plain ones."""
        return not self.checks or all(not check.validate(scalar) for check in self.checks)

    def accepts_container(self, container: Any) -> bool:
        """Return the same for a closed container."""
        return not self.container_checks or all(check.fits(container) for check in self.container_checks)

    def property(self, key: str) -> Node | None:
        """Return the node of the property of that name; None when it is not allowed."""
        cached = self.known_properties.get(key)
        if cached is not None or key in self.known_properties:
            return cached
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

    def may_begin_key(self, text: str) -> bool:
        """Return whether a property whose name begins with this may be allowed."""
        if self.has_patterns or self.property(text) is not None:
            return True
        return any(key.startswith(text) and self.property(key) is not None for key in self.declared)

    def item(self, index: int) -> Node | None:
        """Return the node of the item at that index; None when there may be none."""
        index = min(index, self.max_prefix)
        cached = self.known_items.get(index)
        if cached is not None or index in self.known_items:
            return cached
        schemas: list[Any] = []
        node: Node | None = None
        if all(leaf.item_schemas(index, schemas) for leaf in self.leaves):
            node = self.plan.node(schemas)
        self.known_items[index] = node
        return node


class Node:
    """The alternatives of a value at some place."""

    def __init__(self, alternatives: list[Alternative]) -> None:
        self.alternatives: list[Alternative] = alternatives
        self.free: bool = any(not alternative.leaves for alternative in alternatives)
        """Whether anything is allowed here."""
        self.strings: list[Alternative] = [each for each in alternatives if each.admits("string")]
        """The alternatives that a string may follow."""
        self.scalar_needs_whole: bool = any(alternative.scalar_needs_whole for alternative in alternatives)
        self.exclusive: bool = any(alternative.exclusive for alternative in alternatives)
        self.any_of: frozenset[str] = frozenset(kind for kind in _SCALARS if self._takes_any(kind))
        """The types of scalars of which every value is allowed here."""

    def _takes_any(self, kind: str) -> bool:
        if self.exclusive and sum(alternative.admits(kind) for alternative in self.alternatives) > 1:
            return False
        return any(alternative.takes_any(kind) for alternative in self.alternatives)


class NormalForm:
    """A prepared schema; it holds the schema, so that the parts of it keep their identity.

    One serves any number of texts at a time.
    """

    def __init__(self, schema: Any, *, exact: bool = False) -> None:
        self.schema: Any = schema
        self.exact: bool = exact
        self.document: Any = with_plain_references(schema) if isinstance(schema, Mapping) else schema
        """The schema with plain references."""
        self.reference_hides_siblings: bool = isinstance(schema, Mapping) and draft_of(schema) <= 7
        """Whether keywords beside a `$ref` are ignored, as the validator does up to draft 7."""
        named_draft = schema.get("$schema") if isinstance(schema, Mapping) else None
        self.draft: str = named_draft if isinstance(named_draft, str) else ""
        self.leaves: dict[int, Leaf] = {}
        self.nodes: dict[tuple[int, ...], Node] = {}
        self.choices: int = 0
        self.anything: list[tuple[Leaf, ...]] = [()]
        """The alternatives of a schema that is not tracked further."""
        if exact:
            undecided = Leaf({})
            undecided.container_needs_whole = True
            undecided.container_is_undecided = True
            undecided.scalar_needs_whole = True
            undecided.has_other_keywords = True
            self.anything = [(undecided,)]
        self.root: Node = self.node([self.document])

    def node(self, schemas: list[Any]) -> Node:
        """Return the node for a value to which all these schemas apply."""
        key = tuple(id(schema) for schema in schemas if schema is not True)
        node = self.nodes.get(key)
        if node is None:
            alternatives: list[tuple[Leaf, ...]] = [()]
            for schema in schemas:
                alternatives = self.both(alternatives, self.expand(schema, (), 0))
            node = Node([Alternative(self, leaves) for leaves in alternatives])
            self.nodes[key] = node
        return node

    def expand(self, schema: Any, targets: tuple[int, ...], nesting: int) -> list[tuple[Leaf, ...]]:
        """Return the alternatives of a schema, each as the leaves that must hold together."""
        if schema is False:
            return []
        if not isinstance(schema, Mapping):
            return [()]
        if nesting > _MAX_NESTING:
            return self.anything
        reference = reference_of(schema)
        if reference is not None and self.reference_hides_siblings:
            return self.referenced(reference, targets, nesting)
        alternatives: list[tuple[Leaf, ...]] = [self.leaf(schema)]
        if reference is not None:
            alternatives = self.both(alternatives, self.referenced(reference, targets, nesting))
        parts = schema.get("allOf")
        if isinstance(parts, list):
            for part in parts:
                alternatives = self.both(alternatives, self.expand(part, targets, nesting + 1))
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list):
                choice: list[tuple[Leaf, ...]] = []
                for branch in branches:
                    expanded = self.expand(branch, targets, nesting + 1)
                    choice.extend(expanded if keyword == "anyOf" or len(branches) < 2 else self.marked(expanded))
                alternatives = self.both(alternatives, choice)
        return alternatives

    def referenced(self, reference: str, targets: tuple[int, ...], nesting: int) -> list[tuple[Leaf, ...]]:
        """Return the alternatives of the schema that a reference leads to."""
        target = lookup(self.document, reference)
        if target is None:  # it leads out of the document
            return self.anything
        if id(target) in targets:  # a reference that leads back to itself before any child says nothing
            return [()]
        return self.expand(target, (*targets, id(target)), nesting + 1)

    def marked(self, alternatives: list[tuple[Leaf, ...]]) -> list[tuple[Leaf, ...]]:
        """Return the same alternatives in an exact form, marked as one branch of a `oneOf`."""
        if not self.exact:
            return alternatives
        self.choices += 1
        mark = Leaf({})
        mark.choice = self.choices
        return [(*leaves, mark) for leaves in alternatives]

    def both(self, left: list[tuple[Leaf, ...]], right: list[tuple[Leaf, ...]]) -> list[tuple[Leaf, ...]]:
        """Return the alternatives of a value that must match one of each."""
        if len(left) * len(right) > MAX_ALTERNATIVES:
            return self.anything
        return [(*a, *b) for a in left for b in right]

    def leaf(self, schema: Mapping[str, Any]) -> tuple[Leaf, ...]:
        """Return the plain keywords of a schema, or nothing if it has none."""
        leaf = self.leaves.get(id(schema))
        if leaf is None:
            leaf = Leaf(schema, self.exact, self.draft)
            self.leaves[id(schema)] = leaf
        return (leaf,) if leaf.says_something() else ()


def form_of(schema: Schema[Any]) -> NormalForm:
    """Return the exact form of a schema, kept for the next text.

    >>> form_of(Schema.of({"type": "integer"})) is form_of(Schema.of({"type": "integer"}))
    True
    """
    form: NormalForm = Shape.of_text(schema.text).derived(
        "followed", lambda: NormalForm(schema.document, exact=True), lambda _: 10_000 + schema.size
    )
    return form


def _types(keyword: Any) -> frozenset[str] | None:
    names = [keyword] if isinstance(keyword, str) else keyword
    if not isinstance(names, list) or not all(isinstance(name, str) and name in JSON_TYPES for name in names):
        return None
    return widened(frozenset(names))


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    values = schema.get("enum")
    allowed: list[Any] | None = values if isinstance(values, list) else None
    if "const" in schema:
        const = [schema["const"]]
        allowed = const if allowed is None else common_values(const, allowed)
    return allowed

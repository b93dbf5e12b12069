"""The graph of a schema's subschemas: where references lead, what recurses, and what would explode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from slipform.errors import SchemaError
from slipform.schema.violations import pointer

MAX_EXPANSION = 10_000
"""How often one place of a value may be visited by a schema whose references fan out."""

ROOT = "http://slipform.invalid/schema"
"""The address of a document that names none of its own; never asked for, only joined with."""
IN_PLACE_LISTS = ("allOf", "anyOf", "oneOf")
IN_PLACE = ("not", "if", "then", "else")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_APPLICATORS = frozenset({
    *IN_PLACE_LISTS, *IN_PLACE, *REFERENCES, "dependentSchemas", "dependencies", "properties", "patternProperties",
    "additionalProperties", "unevaluatedProperties", "propertyNames", "prefixItems", "items", "additionalItems",
    "contains", "unevaluatedItems",
})  # fmt: skip
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_DATA = frozenset({"const", "enum", "default", "examples", "example"})


class Place(NamedTuple):
    """One subschema: where it stands, in which document and under which base URI."""

    node: Any
    document: str
    path: str
    base: str


class Index:
    """All subschemas of a document and of the documents it may refer to.

    >>> Index({"$defs": {"a": {"type": "integer"}}}).resolve("#/$defs/a", ROOT).path
    '/$defs/a'
    """

    def __init__(self, document: Mapping[str, Any], resources: Mapping[str, Any] | None = None) -> None:
        self._id = "id" if "draft-04" in str(document.get("$schema", "")) else "$id"
        self._identified: dict[str, Place] = {}
        self._dynamic: dict[str, list[Place]] = {}
        self._places: dict[int, Place] = {}
        self._resolved: dict[tuple[str, str], Place | None] = {}
        own = document.get(self._id)
        address = urldefrag(_join(ROOT, own))[0] if isinstance(own, str) else ROOT
        self.root = self._add(document, address)
        for uri, other in (resources or {}).items():
            self._add(other, uri)

    def _add(self, document: Any, uri: str) -> Place:
        root = Place(document, uri, "", uri)
        self._identified.setdefault(uri.rstrip("#"), root)
        stack: list[tuple[Any, tuple[str | int, ...], str, bool]] = [(document, (), uri, False)]
        while stack:
            node, steps, base, is_map = stack.pop()
            if isinstance(node, dict) and is_map:  # its keys are names, not keywords
                stack.extend((sub, (*steps, key), base, False) for key, sub in node.items())
            elif isinstance(node, dict):
                base = self._identify(node, steps, base, uri)
                self._places[id(node)] = Place(node, uri, pointer(steps), base)
                stack.extend((sub, (*steps, key), base, key in _MAPS) for key, sub in node.items() if key not in _DATA)
            elif isinstance(node, list):
                stack.extend((sub, (*steps, place), base, False) for place, sub in enumerate(node))
        return self._places.get(id(document), root)

    def _identify(self, node: Mapping[str, Any], steps: tuple[str | int, ...], base: str, uri: str) -> str:
        if isinstance(name := node.get(self._id), str) and name:
            full = _join(base, name)
            base, fragment = urldefrag(full)
            self._identified.setdefault(full if fragment else base, Place(node, uri, pointer(steps), base))
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(key), str):
                place = Place(node, uri, pointer(steps), base)
                self._identified.setdefault(f"{base}#{anchor}", place)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(place)
        if node.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(Place(node, uri, pointer(steps), base))
        return base

    def base_of(self, node: Any, default: str) -> str:
        """The base URI that holds inside a node."""
        place = self._places.get(id(node))
        return default if place is None else place.base

    def place_of(self, node: Any) -> Place | None:
        """Where a subschema stands, known by its identity."""
        return self._places.get(id(node))

    @property
    def subschemas(self) -> list[dict[str, Any]]:
        """Every subschema that is an object, of all documents."""
        return [place.node for place in self._places.values()]

    def resolve(self, reference: str, base: str) -> Place | None:
        """Where a reference leads, or None when no known document holds it."""
        key = (reference, base)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(reference, base)
        return self._resolved[key]

    def _resolve(self, reference: str, base: str) -> Place | None:
        target, fragment = urldefrag(_join(base, reference))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._identified.get(f"{target}#{fragment}")
        place = self._identified.get(target)
        if place is None or not fragment:
            return place
        return self._descend(place, fragment)

    def _descend(self, place: Place, fragment: str) -> Place | None:
        node, base = place.node, place.base
        path = place.path
        for part in fragment[1:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isdecimal() and len(key) < 10 and int(key) < len(node):
                node = node[int(key)]
            elif isinstance(node, dict) and key in node:
                node = node[key]
            else:
                return None
            path += "/" + part
            base = self.base_of(node, base)
        return Place(node, place.document, path, base)

    def target(self, place: Place, reference: str) -> Place | None:
        """Where a reference in a subschema leads, or None when no known document holds it."""
        # A fragment may be meant for the whole document where an `$id` is not to be taken for one.
        return self.resolve(reference, place.base) or self.resolve(reference, place.document)

    def references(self, place: Place, keyword: str) -> Iterator[Place]:
        """Where a reference of a subschema may lead."""
        reference = place.node[keyword]
        if not isinstance(reference, str):
            return
        target = self.target(place, reference)
        if target is not None:
            yield target
        if keyword != "$ref":
            yield from self._dynamic.get(urldefrag(reference)[1], ())

    def below(self, place: Place, *steps: str | int) -> Place:
        """The subschema some steps down."""
        node = place.node
        for step in steps:
            node = node[step]
        known = self._places.get(id(node)) if isinstance(node, dict) else None
        return known or Place(node, place.document, place.path + pointer(steps), place.base)


def _join(base: str, reference: str) -> str:
    """`urljoin`, which knows no fragments under a `urn:` and raises on what is no URI."""
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:
        return f"{base}#{reference}"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the graph shows: whether the schema recurses, and how far it fans out."""

    recursive: bool
    expansion: int


def examine(index: Index) -> Shape:
    """Walk everything the root can reach; refuse loops that lead nowhere and references that explode.

    >>> examine(Index({"items": {"$ref": "#"}})).recursive
    True
    """
    graph = _Graph(index)
    graph.walk(index.root)
    expansion = graph.weight.get(id(index.root.node), 1)
    if expansion > MAX_EXPANSION:
        raise SchemaError(
            f"The branches of this schema multiply to over {MAX_EXPANSION:,} checks of one place in a value",
            hint="Use fewer alternatives, and reference each definition once instead of in every branch.",
        )
    return Shape(graph.recursive, expansion)


class _Graph:
    """Depth-first, by hand: Tarjan's components in reverse topological order, weighed as they close."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.recursive = False
        self.weight: dict[int, int] = {}
        self._order: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: list[Place] = []
        self._is_open: set[int] = set()
        self._here: dict[int, list[Place]] = {}
        self._below: dict[int, list[Parts]] = {}

    def walk(self, root: Place) -> None:
        if not isinstance(root.node, dict):
            return
        calls: list[tuple[Place, Iterator[Place]]] = [(root, self._enter(root))]
        while calls:
            place, children = calls[-1]
            child = next(children, None)
            key = id(place.node)
            if child is None:
                calls.pop()
                if calls:
                    parent = id(calls[-1][0].node)
                    self._low[parent] = min(self._low[parent], self._low[key])
                if self._low[key] == self._order[key]:
                    self._close(key)
            elif not isinstance(child.node, dict) or _APPLICATORS.isdisjoint(child.node):
                continue  # a leaf weighs one, as does all that is not known
            elif id(child.node) not in self._order:
                calls.append((child, self._enter(child)))
            elif id(child.node) in self._is_open:
                self._low[key] = min(self._low[key], self._order[id(child.node)])

    def _enter(self, place: Place) -> Iterator[Place]:
        key = id(place.node)
        self._order[key] = self._low[key] = len(self._order)
        self._open.append(place)
        self._is_open.add(key)
        self._here[key], self._below[key] = edges(self.index, place)
        return iter(self._neighbours(key))

    def _neighbours(self, key: int) -> list[Place]:
        return [*self._here[key], *(sub for alone, shared in self._below[key] for sub in (*alone, *shared))]

    def _close(self, key: int) -> None:
        members: list[Place] = []
        while True:
            place = self._open.pop()
            self._is_open.discard(id(place.node))
            members.append(place)
            if id(place.node) == key:
                break
        if len(members) > 1 or any(id(sub.node) == key for sub in self._neighbours(key)):
            self.recursive = True
            self._refuse_loops(members)
        self.weight.update({id(place.node): self._weigh(id(place.node)) for place in members})

    def _weigh(self, key: int) -> int:
        """Visits of one place in a value: in-place branches add up, of the children only the heaviest counts.

        What recurses counts once: the validator remembers its verdict on recursive references.
        """
        total = 1 + sum(map(self._known, self._here[key]))
        parts = (
            max(map(self._known, alone), default=0) + sum(map(self._known, shared))
            for alone, shared in self._below[key]
        )
        return min(total + max(parts, default=0), MAX_EXPANSION + 1)

    def _known(self, place: Place) -> int:
        return self.weight.get(id(place.node), 1)

    def _refuse_loops(self, members: list[Place]) -> None:
        """A loop of references that never goes into the value means nothing, and could cost anything."""
        inside = {id(place.node) for place in members}
        edges = {key: [id(sub.node) for sub in self._here[key] if id(sub.node) in inside] for key in inside}
        left = dict.fromkeys(edges, 0)
        for targets in edges.values():
            for target in targets:
                left[target] += 1
        ready = [node for node, count in left.items() if not count]
        done = 0
        while ready:
            done += 1
            for target in edges[ready.pop()]:
                left[target] -= 1
                if not left[target]:
                    ready.append(target)
        if done < len(edges):
            place = next(place for place in members if left[id(place.node)])
            raise SchemaError(
                "A reference leads back to itself without going into the value, so it says nothing",
                where=f"#{place.path}",
                hint="Put the recursion under `properties` or `items`.",
            )


Parts: TypeAlias = tuple[list[Place], list[Place]]
"""Subschemas for parts of a value: of the first list one meets a part, of the second perhaps all do."""

_MEMBER, _MEMBERS, _NAME, _ITEM, _ITEMS = range(5)
_PARTS = {
    "properties": _MEMBER,
    "additionalProperties": _MEMBER,
    "patternProperties": _MEMBERS,
    "unevaluatedProperties": _MEMBERS,
    "propertyNames": _NAME,
    "prefixItems": _ITEM,
    "items": _ITEM,
    "additionalItems": _ITEM,
    "contains": _ITEMS,
    "unevaluatedItems": _ITEMS,
}


def edges(index: Index, place: Place) -> tuple[list[Place], list[Parts]]:
    """The subschemas applied to the same value, and those applied to its parts."""
    here: list[Place] = []
    groups: list[list[Place]] = [[], [], [], [], []]
    for keyword, value in place.node.items():
        if keyword in _PARTS:
            groups[_PARTS[keyword]].extend(_subschemas(index, place, keyword, value))
        elif keyword in REFERENCES:
            here.extend(index.references(place, keyword))
        elif keyword in _APPLICATORS:
            here.extend(_subschemas(index, place, keyword, value))
    parts = [(groups[_MEMBER], groups[_MEMBERS]), (groups[_NAME], []), (groups[_ITEM], groups[_ITEMS])]
    return here, [pair for pair in parts if pair[0] or pair[1]]


def _subschemas(index: Index, place: Place, keyword: str, value: Any) -> Iterator[Place]:
    if isinstance(value, list):
        yield from (index.below(place, keyword, number) for number in range(len(value)))
    elif keyword in _MAPS and isinstance(value, dict):
        yield from (index.below(place, keyword, name) for name, sub in value.items() if isinstance(sub, dict))
    elif isinstance(value, dict):
        yield index.below(place, keyword)

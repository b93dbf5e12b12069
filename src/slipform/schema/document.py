"""Where a reference leads: the only reader of $ref, $id, $anchor, %-escapes, pointers, drafts; the only walker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from slipform.schema.violations import pointer

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


class SubSchema(NamedTuple):
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
        self._identified: dict[str, SubSchema] = {}
        self._dynamic: dict[str, list[SubSchema]] = {}
        self._places: dict[int, SubSchema] = {}
        self._resolved: dict[tuple[str, str], SubSchema | None] = {}
        own = document.get(self._id)
        address = urldefrag(_join(ROOT, own))[0] if isinstance(own, str) else ROOT
        self.root = self._add(document, address)
        for uri, other in (resources or {}).items():
            self._add(other, uri)

    def _add(self, document: Any, uri: str) -> SubSchema:
        root = SubSchema(document, uri, "", uri)
        self._identified.setdefault(uri.rstrip("#"), root)
        stack: list[tuple[Any, tuple[str | int, ...], str, bool]] = [(document, (), uri, False)]
        while stack:
            node, steps, base, is_map = stack.pop()
            if isinstance(node, dict) and is_map:  # its keys are names, not keywords
                stack.extend((sub, (*steps, key), base, False) for key, sub in node.items())
            elif isinstance(node, dict):
                base = self._identify(node, steps, base, uri)
                self._places[id(node)] = SubSchema(node, uri, pointer(steps), base)
                stack.extend((sub, (*steps, key), base, key in _MAPS) for key, sub in node.items() if key not in _DATA)
            elif isinstance(node, list):
                stack.extend((sub, (*steps, place), base, False) for place, sub in enumerate(node))
        return self._places.get(id(document), root)

    def _identify(self, node: Mapping[str, Any], steps: tuple[str | int, ...], base: str, uri: str) -> str:
        if isinstance(name := node.get(self._id), str) and name:
            full = _join(base, name)
            base, fragment = urldefrag(full)
            self._identified.setdefault(full if fragment else base, SubSchema(node, uri, pointer(steps), base))
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(key), str):
                place = SubSchema(node, uri, pointer(steps), base)
                self._identified.setdefault(f"{base}#{anchor}", place)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(place)
        if node.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(SubSchema(node, uri, pointer(steps), base))
        return base

    def base_of(self, node: Any, default: str) -> str:
        """The base URI that holds inside a node."""
        place = self._places.get(id(node))
        return default if place is None else place.base

    def place_of(self, node: Any) -> SubSchema | None:
        """Where a subschema stands, known by its identity."""
        return self._places.get(id(node))

    @property
    def subschemas(self) -> list[dict[str, Any]]:
        """Every subschema that is an object, of all documents."""
        return [place.node for place in self._places.values()]

    def resolve(self, reference: str, base: str) -> SubSchema | None:
        """Where a reference leads, or None when no known document holds it."""
        key = (reference, base)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(reference, base)
        return self._resolved[key]

    def _resolve(self, reference: str, base: str) -> SubSchema | None:
        target, fragment = urldefrag(_join(base, reference))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._identified.get(f"{target}#{fragment}")
        place = self._identified.get(target)
        if place is None or not fragment:
            return place
        return self._descend(place, fragment)

    def _descend(self, place: SubSchema, fragment: str) -> SubSchema | None:
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
        return SubSchema(node, place.document, path, base)

    def target(self, place: SubSchema, reference: str) -> SubSchema | None:
        """Where a reference in a subschema leads, or None when no known document holds it."""
        # A fragment may be meant for the whole document where an `$id` is not to be taken for one.
        return self.resolve(reference, place.base) or self.resolve(reference, place.document)

    def references(self, place: SubSchema, keyword: str) -> Iterator[SubSchema]:
        """Where a reference of a subschema may lead."""
        reference = place.node[keyword]
        if not isinstance(reference, str):
            return
        target = self.target(place, reference)
        if target is not None:
            yield target
        if keyword != "$ref":
            yield from self._dynamic.get(urldefrag(reference)[1], ())

    def below(self, place: SubSchema, *steps: str | int) -> SubSchema:
        """The subschema some steps down."""
        node = place.node
        for step in steps:
            node = node[step]
        known = self._places.get(id(node)) if isinstance(node, dict) else None
        return known or SubSchema(node, place.document, place.path + pointer(steps), place.base)


def _join(base: str, reference: str) -> str:
    """`urljoin`, which knows no fragments under a `urn:` and raises on what is no URI."""
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:
        return f"{base}#{reference}"


_MEMBER, _MEMBERS, _NAME, _ITEM, _ITEMS = range(5)

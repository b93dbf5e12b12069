"""Read a schema document: resolve its references, and find its subschemas.

Only this module knows the spelling of references, names and pointers: `$ref` and its dynamic variants, `$id`, `id`,
`$anchor`, percent escapes, `~0` and `~1`. There are two ways to use it:

* `with_plain_references` returns an equal document in which every reference is a pointer from the root, and `lookup`
  resolves such a reference. That is sufficient for work on one document.
* `SchemaDocument` knows the place of every subschema, also in other documents that may be referred to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote, urldefrag, urljoin

from slipform.errors import SchemaError
from slipform.schema.shape import Shape, estimated_bytes, to_text

ROOT: Final = "http://slipform.invalid/schema"
"""The address of a document without its own; used to join references, never fetched."""

REF: Final = "$ref"
DYNAMIC_REF: Final = "$dynamicRef"
RECURSIVE_REF: Final = "$recursiveRef"
REFERENCES: Final = (REF, DYNAMIC_REF, RECURSIVE_REF)
_DYNAMIC: Final = {2019: RECURSIVE_REF, 2020: DYNAMIC_REF}
DEFINITIONS: Final = ("$defs", "definitions")

IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
MAPS: Final = ("properties", "patternProperties", "dependentSchemas", "dependencies", *DEFINITIONS)
"""Keywords whose keys are names and whose values are schemas."""
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
SINGLES: Final = (
    "items", "additionalProperties", "not", "if", "then", "else", "additionalItems", "contains", "propertyNames",
    "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
CONTENTS: Final = ("items", "additionalProperties", "additionalItems")
"""Keywords whose single subschema applies to a value's children, not to the value itself."""
APPLICATORS: Final = (frozenset({*MAPS, *LISTS, *SINGLES, *REFERENCES})) - {*DEFINITIONS}
DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})
ADDRESSES: Final = frozenset({"$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"})

Json: TypeAlias = Any
Pointer: TypeAlias = tuple[str, ...]
"""The steps of a JSON Pointer."""
PathSteps: TypeAlias = tuple[str | int, ...]
"""The keys and indexes that lead to one part of a value."""


def join_pointer(steps: Sequence[str | int]) -> str:
    """Return the JSON Pointer of a path.

    >>> join_pointer(["a/b", 0])
    '/a~1b/0'
    """
    plain = "/".join(["", *map(str, steps)])
    if "~" not in plain and plain.count("/") == len(steps):  # the usual case, and called for every part that is lowered
        return plain
    return "".join(["/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps])


def split_pointer(pointer: str) -> Pointer:
    """Parse a JSON Pointer into its steps.

    >>> split_pointer("/a~1b/0")
    ('a/b', '0')
    """
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def reference_of(node: object) -> str | None:
    """Return the reference of a schema, or None."""
    reference = node.get(REF) if isinstance(node, Mapping) else None
    return reference if isinstance(reference, str) else None


def reference_to(*steps: str) -> dict[str, str]:
    """Return a schema that refers to a place of its own document.

    >>> reference_to("$defs", "a/b")
    {'$ref': '#/$defs/a~1b'}
    """
    return {REF: _pointer_text(steps)}


def _pointer_text(steps: Sequence[str]) -> str:
    return "#" + join_pointer(steps).replace("%", "%25")


def reference_steps(reference: object) -> Pointer | None:
    """Return the path of a reference within the document; None for a name or another document.

    >>> reference_steps("#/$defs/List%3Cint%3E"), reference_steps("#name")
    (('$defs', 'List<int>'), None)
    """
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    return split_pointer(unquote(reference[1:]))


def definition_of(node: object) -> str | None:
    """Return the name of the definition (under `$defs`) that a whole schema refers to, or None.

    >>> definition_of({"$ref": "#/$defs/a~1b"})
    'a/b'
    """
    steps = reference_steps(reference_of(node))
    if steps is not None and len(steps) == 2 and steps[0] == "$defs":
        return steps[1]
    return None


def locate(schema: Json, pointer: str) -> Json:
    """Return the value at a JSON Pointer, or None."""
    return _descend(schema, split_pointer(pointer))


def lookup(schema: Json, reference: object) -> Json:
    """Return the target of a reference within the document; None where it does not exist, or is elsewhere.

    >>> lookup({"$defs": {"A": {"type": "null"}}}, "#/$defs/A")
    {'type': 'null'}
    """
    steps = reference_steps(reference)
    return None if steps is None else _descend(schema, steps)


def _descend(node: Json, steps: Pointer) -> Json:
    """Return the part of a document at a path; None where it does not exist."""
    for step in steps:
        if isinstance(node, Mapping):
            node = node.get(step)
        elif isinstance(node, list) and step.isdecimal() and len(step) < 10 and int(step) < len(node):
            node = node[int(step)]
        else:
            return None
    return node


def followed(node: Json, document: Json, most: int = 20) -> Mapping[str, Any]:
    """Return the target of a chain of references within the document; empty where there is none.

    >>> followed({"$ref": "#/$defs/A"}, {"$defs": {"A": {"type": "null"}}})
    {'type': 'null'}
    """
    for _ in range(most):
        reference = reference_of(node)
        if reference is None or reference_steps(reference) is None:
            break
        node = lookup(document, reference)
    return node if isinstance(node, Mapping) else {}


def found_at(schema: Json, steps: Pointer) -> Json:
    """Return the value at a path that must exist.

    >>> found_at({"anyOf": [{"type": "null"}]}, ("anyOf", "0"))
    {'type': 'null'}
    """
    for step in steps:
        schema = schema[int(step)] if isinstance(schema, list) else schema[step]
    return schema


def replaced(schema: Json, steps: Pointer, value: Json) -> Json:
    """Return a copy of the schema with `value` at a path; None removes the current value."""
    if not steps:
        return value
    step = steps[0]
    rest = steps[1:]
    if isinstance(schema, list):
        number = int(step)
        inner = replaced(schema[number], rest, value)
        return [inner if index == number else each for index, each in enumerate(schema)]
    if not rest and value is None:
        return {name: each for name, each in schema.items() if name != step}
    return {**schema, step: replaced(schema.get(step, {}), rest, value)}


def subschemas(schema: Json, at: Pointer = ()) -> Iterator[tuple[Pointer, Mapping[str, Any]]]:
    """Yield every subschema that is an object, the root first, with its path.

    A property with the name of a keyword is not mistaken for one.

    >>> [steps for steps, _ in subschemas({"properties": {"items": {"type": "integer"}}})]
    [(), ('properties', 'items')]
    """
    pending = [(at, schema)]
    while pending:
        steps, sub = pending.pop()
        if isinstance(sub, Mapping):
            yield steps, sub
            pending.extend(reversed(list(children(steps, sub))))


def children(steps: Pointer, sub: Mapping[str, Any]) -> Iterator[tuple[Pointer, Json]]:
    """Yield the subschemas directly under one, in the order of its keywords."""
    for key, value in sub.items():
        if key in MAPS and isinstance(value, Mapping):
            for name, each in value.items():
                yield (*steps, key, name), each
        elif key in LISTS and isinstance(value, list | tuple):
            for number, each in enumerate(value):
                yield (*steps, key, str(number)), each
        elif key in SINGLES:
            yield (*steps, key), value


def with_children(
    sub: Mapping[str, Any], change: Callable[[Json, Pointer], Json], singles: Sequence[str] = SINGLES
) -> dict[str, Any]:
    """Return a copy of a schema in which `change` was applied to each direct subschema and its steps.

    >>> with_children({"items": {"type": "null"}, "not": {}}, lambda sub, steps: steps, CONTENTS)
    {'items': ('items',), 'not': {}}
    """
    changed = dict(sub)
    for key, value in sub.items():
        if key in MAPS and isinstance(value, Mapping):
            changed[key] = {name: change(each, (key, name)) for name, each in value.items()}
        elif key in LISTS and isinstance(value, list | tuple):
            changed[key] = [change(each, (key, str(number))) for number, each in enumerate(value)]
        elif key in singles:
            changed[key] = change(value, (key,))
    return changed


def rewritten(node: Json, change: Callable[[dict[str, Any]], Mapping[str, Any]], *, is_map: bool = False) -> Json:
    """Return a copy of a schema in which `change` was applied to every subschema, outer ones first."""
    if isinstance(node, list):
        return [rewritten(each, change) for each in node]
    if not isinstance(node, dict):
        return node
    if is_map:  # its keys are names, not keywords
        return {name: rewritten(each, change) for name, each in node.items()}
    return {
        key: value if key in DATA else rewritten(value, change, is_map=key in MAPS)
        for key, value in change(node).items()
    }


def moved(schema: Mapping[str, Any], *steps: str) -> dict[str, Any]:
    """Return a copy of a document with plain references that is moved to these steps of another document.

    >>> moved({"items": {"$ref": "#"}}, "properties", "value")
    {'items': {'$ref': '#/properties/value'}}
    """

    def lead(node: dict[str, Any]) -> dict[str, Any]:
        inside = {key: reference_steps(node[key]) for key in REFERENCES if key in node}
        return node | {key: _pointer_text((*steps, *rest)) for key, rest in inside.items() if rest is not None}

    copy: dict[str, Any] = rewritten(dict(schema), lead)
    return copy


def draft_of(document: Mapping[str, Any]) -> int:
    """The draft: 4, 6, 7, 2019 or 2020; the newest for a document that does not name one."""
    named = str(document.get("$schema", ""))
    for mark, draft in (("draft-03", 4), ("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if mark in named:
            return draft
    return 2020


class SubSchema(NamedTuple):
    """A subschema with its place, its document and its base URI."""

    node: Any
    document: str
    path: str
    base: str


class SchemaDocument:
    """Index of all subschemas of a document and of the documents that it may refer to.

    >>> SchemaDocument({"$defs": {"a": {"type": "integer"}}}).resolve("#/$defs/a", ROOT).path
    '/$defs/a'
    """

    def __init__(self, document: Mapping[str, Any], resources: Mapping[str, Any] | None = None) -> None:
        self._draft = draft_of(document)
        self._id = "id" if self._draft == 4 else "$id"
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
        """Index every subschema of a document by its identity, and by its address where it has one."""
        root = SubSchema(document, uri, "", uri)
        self._identified.setdefault(uri.rstrip("#"), root)
        stack: list[tuple[Any, tuple[str | int, ...], str, bool]] = [(document, (), uri, False)]
        while stack:
            node, steps, base, is_map = stack.pop()
            if isinstance(node, dict) and is_map:  # its keys are names, not keywords
                stack.extend((sub, (*steps, key), base, False) for key, sub in node.items())
            elif isinstance(node, dict):
                base = self._identify(node, steps, base, uri)
                self._places[id(node)] = SubSchema(node, uri, join_pointer(steps), base)
                stack.extend((sub, (*steps, key), base, key in MAPS) for key, sub in node.items() if key not in DATA)
            elif isinstance(node, list):
                stack.extend((sub, (*steps, place), base, False) for place, sub in enumerate(node))
        return self._places.get(id(document), root)

    def _identify(self, node: Mapping[str, Any], steps: tuple[str | int, ...], base: str, uri: str) -> str:
        """Index a subschema by its `$id` and anchors; return the base address of its parts."""
        if isinstance(name := node.get(self._id), str) and name:
            full = _join(base, name)
            base, fragment = urldefrag(full)
            self._identified.setdefault(full if fragment else base, SubSchema(node, uri, join_pointer(steps), base))
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(key), str):
                place = SubSchema(node, uri, join_pointer(steps), base)
                self._identified.setdefault(f"{base}#{anchor}", place)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(anchor, []).append(place)
        if node.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(SubSchema(node, uri, join_pointer(steps), base))
        return base

    def place_of(self, node: Any) -> SubSchema | None:
        """Return the place of a subschema by its identity."""
        return self._places.get(id(node))

    def resolve(self, reference: str, base: str) -> SubSchema | None:
        """Return the target of a reference, or None when no known document contains it."""
        key = (reference, base)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(reference, base)
        return self._resolved[key]

    def _resolve(self, reference: str, base: str) -> SubSchema | None:
        """Return the target of a reference from a base address; None when it is unknown."""
        target, fragment = urldefrag(_join(base, reference))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._identified.get(f"{target}#{fragment}")
        place = self._identified.get(target)
        if place is None or not fragment:
            return place
        node = place.node
        base = place.base
        for step in split_pointer(fragment):
            node = _descend(node, (step,))
            if node is None:
                return None
            base = place_of_node.base if (place_of_node := self.place_of(node)) else base
        return SubSchema(node, place.document, place.path + fragment, base)

    def target(self, place: SubSchema, reference: str) -> SubSchema | None:
        """Return the target of a reference in a subschema, or None when no known document contains it."""
        # A fragment may refer to the whole document if an `$id` is not meant as one.
        return self.resolve(reference, place.base) or self.resolve(reference, place.document)

    def targets(self, place: SubSchema, keyword: str) -> Iterator[SubSchema]:
        """Yield the possible targets of a subschema's reference: for a dynamic one, any anchor of its name."""
        reference = place.node[keyword]
        if not isinstance(reference, str):
            return
        target = self.target(place, reference)
        if target is not None:
            yield target
        if keyword != REF:
            yield from self._dynamic.get(urldefrag(reference)[1], ())

    def child(self, place: SubSchema, *steps: str | int) -> SubSchema:
        """Return the subschema some steps below a place."""
        node = place.node
        for step in steps:
            node = node[step]
        indexed = self._places.get(id(node)) if isinstance(node, dict) else None
        return indexed or SubSchema(node, place.document, place.path + join_pointer(steps), place.base)

    def with_plain_references(self) -> dict[str, Any]:
        """Rewrites a document so that every reference is a pointer from the root, and names are not needed."""
        written: dict[str, Any] = rewritten(self.root.node, self._without_names)
        return written

    def _without_names(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return a subschema with references as pointers, and without unneeded addresses."""
        renamed: dict[str, Any] = {}
        for key, value in node.items():
            if key in REFERENCES and isinstance(value, str):
                renamed.update(self._plain(self._places[id(node)], key))
            elif key not in ADDRESSES or (key == "id" != self._id) or (key == self._id and node is self.root.node):
                renamed[key] = value
        return renamed

    def _plain(self, place: SubSchema, keyword: str) -> dict[str, str]:
        """Return one reference as a pointer; one without a target stays unchanged."""
        reference = place.node[keyword]
        targets = list({each.path: each for each in self.targets(place, keyword)}.values())
        if not targets:
            return {keyword: reference}
        # Which of several anchors applies depends on the path of validation: only the first is certainly possible.
        static = len(targets) == 1 and keyword == _DYNAMIC.get(self._draft) and REF not in place.node
        name = REF if static else keyword
        if lookup(self.root.node, reference) is targets[0].node:
            return {name: reference}
        return {name: _pointer_text(split_pointer(targets[0].path))}


def with_plain_references(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document with every reference as a pointer from the root that `lookup` can follow.

    References without a target, or to another document, stay unchanged.

    >>> with_plain_references({"$ref": "#a", "$defs": {"A": {"$anchor": "a", "type": "null"}}})
    {'$ref': '#/$defs/A', '$defs': {'A': {'type': 'null'}}}
    """
    try:
        text = to_text(document)
    except SchemaError:  # the validator will report it, too
        return document
    if _says_plainly(text):
        return document
    return Shape.of_text(text).derived(
        "plain references",
        lambda: SchemaDocument(json.loads(text)).with_plain_references(),
        lambda _: estimated_bytes(text, 12),
    )


def _says_plainly(text: bytes) -> bool:
    """Return whether all references are pointers from the root already."""
    if text.count(b'"$ref":"') != text.count(b'"$ref":"#/') + text.count(b'"$ref":"#"'):
        return False
    if b'"$dynamicRef":"' in text or b'"$recursiveRef":"' in text:
        return False
    names = b'"id":"' if b"draft-04" in text or b"draft-03" in text else b'"$id":"'
    return names not in text or b'"$ref":"' not in text


def _join(base: str, reference: str) -> str:
    """Join addresses like `urljoin`, but also fragments of a `urn:`, and without raising on invalid URIs."""
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:
        return f"{base}#{reference}"


def absolute_reference(place: SubSchema) -> dict[str, str]:
    """Return a schema that refers to a place of any document."""
    return {REF: f"{place.document}#{quote(place.path, safe=_FRAGMENT)}"}


_FRAGMENT: Final = "/~$!*'()+,;=:@"

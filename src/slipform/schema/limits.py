"""Refuse schemas and values that are not JSON, too large, too deep, or whose references multiply.

Schemas come from untrusted callers. Nothing here recurses, so no input can exhaust the interpreter's stack.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from slipform.errors import SchemaError, TooLargeError
from slipform.schema.document import APPLICATORS, MAPS, REFERENCES, SchemaDocument, SubSchema, join_pointer
from slipform.schema.patterns import pattern_weight
from slipform.schema.violations import Violation

MAX_SCHEMA_BYTES = 5_000_000
MAX_SCHEMA_DEPTH = 240
"""JSON levels of a schema document; the validator itself stops a little above."""
MAX_VALUE_DEPTH = 1_000
"""JSON levels of a value; parsers stop at about the same depth, the validator's stack is much larger."""
LARGE_BYTES = 1_000_000
"""From about this size on, work belongs off an event loop."""
LIGHT_BYTES = 2_048
"""Schemas of at most this length without patterns are light: they have fewer values than this."""
_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_SURROGATE = re.compile("[\ud800-\udfff]")
_PATTERN = b'"pattern'
_PATTERN_NODES = 20
_WEIGHT_OF_NODE = 8
"""States of a pattern's automaton that take as long to compile as one value: about 4 µs."""
_QUICK_WITH_PATTERNS = 512
_REPEATED = re.compile(rb"\{\d*,?\d\d")
"""A part of a pattern that is repeated ten times or more; no other `{` in JSON is followed by a digit."""
_HINT = "Correct the schema and send it again."


def canonical_text(document: Mapping[str, Any]) -> bytes:
    """Return a schema document as JSON text with sorted keys; anything that is not JSON is a `SchemaError`.

    >>> canonical_text({"type": "integer", "maximum": 3})
    b'{"maximum":3,"type":"integer"}'
    """
    try:
        text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS | _STRICT)
    except TypeError:
        text = _canonical_slow(document)
    else:
        if b"null" in text:  # orjson writes NaN as null
            _refuse(document)
    if len(text) > MAX_SCHEMA_BYTES:
        raise SchemaError(
            f"The schema is {len(text):,} bytes long; the limit is {MAX_SCHEMA_BYTES:,}",
            hint="Send a smaller schema.",
        )
    return text


def plain_copy(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document as plain dicts and lists, which no other code can change."""
    try:
        return cast("dict[str, Any]", orjson.loads(orjson.dumps(document, option=_STRICT)))
    except TypeError:
        return cast("dict[str, Any]", json.loads(json.dumps(_unwrapped(document))))


def _canonical_slow(document: Mapping[str, Any]) -> bytes:
    _refuse(document)
    # Only integers beyond 64 bits and unusual containers need this.
    return json.dumps(_unwrapped(document), sort_keys=True, separators=(",", ":")).encode()


def _unwrapped(value: Any) -> Any:
    """Return plain dicts and lists; the depth is known to be small."""
    if isinstance(value, Mapping):
        return {str(key): _unwrapped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_unwrapped(item) for item in value]
    return value


def _refuse(document: Mapping[str, Any]) -> None:
    for violation in not_json(document, MAX_SCHEMA_DEPTH):
        raise SchemaError(f"The schema is not JSON: {violation.message}", where=violation.json_path, hint=_HINT)


def not_json(value: Any, max_depth: int = MAX_VALUE_DEPTH) -> Iterator[Violation]:
    """Yield every place where a Python value is not JSON, without recursion: NaN, odd keys and types, lone surrogates.

    >>> [violation.message for violation in not_json({"a": {1, 2}})]
    ['expected a JSON value, found a Python set']
    """
    stack: list[tuple[Any, _Place]] = [(value, None)]
    while stack:
        item, place = stack.pop()
        trouble = _fault_in(item)
        if trouble is not None:
            yield _violation(place, trouble)
        elif isinstance(item, (Mapping, list, tuple)):
            depth = 1 if place is None else place[2] + 1
            if depth > max_depth:
                yield _violation(place, f"nested more than {max_depth} levels deep", "depth")
                return
            pairs = list(item.items() if isinstance(item, Mapping) else enumerate(item))
            for key, child in reversed(pairs):
                if isinstance(item, Mapping) and (wrong := _key_trouble(key)):
                    yield _violation(place, wrong)
                else:
                    stack.append((child, (place, key, depth)))


def plainly_json(value: Any) -> bool:
    """Return whether a value certainly is ordinary JSON; where False, `not_json` has to decide.

    It is if it survives encoding and decoding unchanged. NaN becomes null, so nulls are left to `not_json`.

    >>> plainly_json({"a": [1, "b", 2.5]}), plainly_json({"a": (1, 2)})
    (True, False)
    """
    try:
        text = orjson.dumps(value, option=_AS_THEY_ARE)
        return b"null" not in text and bool(orjson.loads(text) == value)
    except (TypeError, orjson.JSONDecodeError):
        return False


_AS_THEY_ARE = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
_Place = tuple[Any, Any, int] | None
"""A path as a linked list, so that a deep one costs no more than a flat one."""


def _violation(place: _Place, message: str, keyword: str = "json") -> Violation:
    steps: list[str | int] = []
    while place is not None:
        steps.append(place[1])
        place = place[0]
    path = tuple(reversed(steps))
    if len(path) > 100:  # the path is too long to be readable
        path = path[:100]
    return Violation(join_pointer(path), "", keyword, message, expected="a JSON value", steps=path)


def _fault_in(item: Any) -> str | None:
    """Return why a value itself is not JSON; None when it is."""
    if item is None or isinstance(item, (bool, int)):
        return None
    if isinstance(item, str):
        bad = None if item.isascii() else _SURROGATE.search(item)
        if bad is None:
            return None
        return f"expected Unicode text, found the lone surrogate U+{ord(bad[0]):04X}"
    if isinstance(item, float):
        if math.isfinite(item):
            return None
        return f"expected a JSON value, found {item}"
    if isinstance(item, (Mapping, list, tuple)):
        return None
    return f"expected a JSON value, found a Python {type(item).__name__}"


def _key_trouble(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"expected text as key, found {key!r:.40}"
    return _fault_in(key)


def is_plain(value: Any) -> bool:
    """Return whether a value certainly is JSON of ordinary depth; where False, `not_json` has to decide."""
    try:
        text = orjson.dumps(value, option=_STRICT)
    except TypeError:
        return False
    return b"null" not in text  # orjson writes NaN as null


def too_deep(value: Any) -> bool:
    """Return whether a value nests so deeply that the validator's stack would be at risk."""
    try:
        orjson.dumps(value)
    except TypeError:
        return any(violation.keyword == "depth" for violation in not_json(value))
    return False


def is_large(size: int | bytes | str) -> bool:
    """Return whether work on a text of this size should be kept off an event loop (the validator holds the GIL).

    >>> is_large(2_000_000), is_large("{}")
    (True, False)
    """
    return (size if isinstance(size, int) else len(size)) >= LARGE_BYTES


def check_size(documents: Mapping[str, Mapping[str, Any]], max_bytes: int, max_nodes: int) -> None:
    """Refuse schemas, by their place in a request, that together exceed a length or a number of values.

    A pattern counts as 20 values, and as more where it repeats much: that is the cost of compiling it.

    >>> check_size({"tools[0]": {"enum": [1, 2, 3]}}, max_bytes=100, max_nodes=4)
    Traceback (most recent call last):
    slipform.errors.TooLargeError: The schemas of this request have more than 4 values, at tools[0]...
    """
    texts = {where: json_text(document) for where, document in documents.items()}
    length = 0
    for where, text in texts.items():
        length += len(text)
        if length > max_bytes:
            raise TooLargeError(
                f"The schemas of this request are longer than {max_bytes:,} bytes",
                where=where,
                hint="Send smaller ones; `server.max_schema_bytes` is the limit here.",
            )
    # A value takes at least two characters.
    if length <= 2 * max_nodes and not any(_PATTERN in text for text in texts.values()):
        return
    nodes = 0
    for where, document in documents.items():
        nodes += _count(document, max_nodes - nodes)
        if nodes > max_nodes:
            raise TooLargeError(
                f"The schemas of this request have more than {max_nodes:,} values",
                where=where,
                hint="Send smaller ones; `server.max_schema_nodes` is the limit here.",
            )


def is_light_text(text: bytes) -> bool:
    """Return whether a schema's text is certainly short and simple enough for an event loop.

    >>> is_light_text(b'{"type":"object"}'), is_light_text(b'{"pattern":"a*"}')
    (True, False)
    """
    return len(text) <= LIGHT_BYTES and _PATTERN not in text


def is_heavy_text(text: bytes, most: int = LIGHT_BYTES) -> bool:
    """Return whether work on schemas with this text must stay off event loops: it is long, or may repeat patterns.

    >>> is_heavy_text(b'{"type":"object"}')
    False
    """
    if len(text) > most:
        return True
    return _PATTERN in text and (len(text) > _QUICK_WITH_PATTERNS or _REPEATED.search(text) is not None)


def json_text(document: Any) -> bytes:
    """Return an approximate JSON text of a document that may not be JSON."""
    try:
        return orjson.dumps(document)
    except TypeError:
        return repr(document).encode("utf-8", "replace")


def _count(document: Any, most: int) -> int:
    """Return the number of values in a document; a pattern counts by its cost.

    It stops counting when they are more than `most`.
    """
    total = 0
    stack: list[Any] = [document]
    while stack and total <= most:
        item = stack.pop()
        total += 1
        if type(item) is dict or isinstance(item, Mapping):
            total += sum([_PATTERN_NODES + pattern_weight(each) // _WEIGHT_OF_NODE for each in _patterns(item)])
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
    return total


def _patterns(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patterns that a node itself has."""
    if isinstance(pattern := node.get("pattern"), str):
        yield pattern
    if isinstance(keyed := node.get("patternProperties"), dict):
        yield from keyed


MAX_EXPANSION = 10_000
"""The most visits of one place of a value by a schema whose references fan out."""


@dataclass(frozen=True, slots=True)
class Recursion:
    """The result of the walk: whether the schema recurses, and how far it fans out."""

    recursive: bool
    expansion: int


def examine(index: SchemaDocument) -> Recursion:
    """Walk everything the root can reach; refuse loops that lead nowhere and references that explode.

    >>> examine(SchemaDocument({"items": {"$ref": "#"}})).recursive
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
    return Recursion(graph.recursive, expansion)


class _Graph:
    """Walk depth-first without recursion: Tarjan's components in reverse topological order, weighed as they close."""

    def __init__(self, index: SchemaDocument) -> None:
        self.index = index
        self.recursive = False
        self.weight: dict[int, int] = {}
        self._order: dict[int, int] = {}
        self._low: dict[int, int] = {}
        self._open: list[SubSchema] = []
        self._is_open: set[int] = set()
        self._here: dict[int, list[SubSchema]] = {}
        self._below: dict[int, list[PartSchemas]] = {}

    def walk(self, root: SubSchema) -> None:
        """Weigh every place that the root reaches, recursive ones as a group (Tarjan's algorithm)."""
        if not isinstance(root.node, dict):
            return
        calls: list[tuple[SubSchema, Iterator[SubSchema]]] = [(root, self._enter(root))]
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
            elif not isinstance(child.node, dict) or APPLICATORS.isdisjoint(child.node):
                continue  # a leaf, or an unknown target, weighs one
            elif id(child.node) not in self._order:
                calls.append((child, self._enter(child)))
            elif id(child.node) in self._is_open:
                self._low[key] = min(self._low[key], self._order[id(child.node)])

    def _enter(self, place: SubSchema) -> Iterator[SubSchema]:
        key = id(place.node)
        self._order[key] = self._low[key] = len(self._order)
        self._open.append(place)
        self._is_open.add(key)
        self._here[key], self._below[key] = edges(self.index, place)
        return iter(self._neighbours(key))

    def _neighbours(self, key: int) -> list[SubSchema]:
        return [*self._here[key], *(sub for alone, shared in self._below[key] for sub in (*alone, *shared))]

    def _close(self, key: int) -> None:
        """Weigh a finished group of mutually recursive places; refuse a loop that never descends into the value."""
        members: list[SubSchema] = []
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
        """Return the visits of one place in a value: branches for it add up, of its children the heaviest counts.

        Recursive parts count once: the validator remembers its verdict on recursive references.
        """
        total = 1 + sum(map(self._index_of, self._here[key]))
        parts = (
            max(map(self._index_of, alone), default=0) + sum(map(self._index_of, shared))
            for alone, shared in self._below[key]
        )
        return min(total + max(parts, default=0), MAX_EXPANSION + 1)

    def _index_of(self, place: SubSchema) -> int:
        return self.weight.get(id(place.node), 1)

    def _refuse_loops(self, members: list[SubSchema]) -> None:
        """Return the error for a loop of references that never descends into the value."""
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


PartSchemas: TypeAlias = tuple[list[SubSchema], list[SubSchema]]
"""The keywords for parts of a value: exactly one subschema of the first list applies, perhaps all of the second."""
_MEMBER, _MEMBERS, _NAME, _ITEM, _ITEMS = range(5)
"""The groups of these keywords; of those in the plural, several subschemas may apply to one part."""
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


def edges(index: SchemaDocument, place: SubSchema) -> tuple[list[SubSchema], list[PartSchemas]]:
    """Return the subschemas applied to the same value, and those applied to its parts."""
    same_value: list[SubSchema] = []
    groups: list[list[SubSchema]] = [[] for _ in range(5)]
    for keyword, value in place.node.items():
        if keyword in _PARTS:
            groups[_PARTS[keyword]].extend(_subschemas(index, place, keyword, value))
        elif keyword in REFERENCES:
            same_value.extend(index.targets(place, keyword))
        elif keyword in APPLICATORS:
            same_value.extend(_subschemas(index, place, keyword, value))
    parts = [(groups[_MEMBER], groups[_MEMBERS]), (groups[_NAME], []), (groups[_ITEM], groups[_ITEMS])]
    return same_value, [pair for pair in parts if pair[0] or pair[1]]


def _subschemas(index: SchemaDocument, place: SubSchema, keyword: str, value: Any) -> Iterator[SubSchema]:
    """Yield the subschemas that a keyword holds: one, a list of them, or a map."""
    if isinstance(value, list):
        yield from (index.child(place, keyword, number) for number in range(len(value)))
    elif keyword in MAPS and isinstance(value, dict):
        yield from (index.child(place, keyword, name) for name, sub in value.items() if isinstance(sub, dict))
    elif isinstance(value, dict):
        yield index.child(place, keyword)

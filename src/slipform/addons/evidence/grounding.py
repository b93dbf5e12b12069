"""Locate each value of an answer in the text it was taken from.

`ground` asks no model: every leaf is looked up in the source, and where it occurs several times, the words around it,
the other values of its record and the order of equal values decide. What stays undecided is `ambiguous`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from slipform.addons.evidence.folding import fold
from slipform.addons.evidence.lifting import MOST_STEPS
from slipform.addons.evidence.occurrences import Lookup
from slipform.addons.evidence.placing import AnswerLeaf, Labels, place_leaves
from slipform.addons.evidence.source_index import LookupBudget, SourceIndex
from slipform.ir.evidence import FieldEvidence, Span
from slipform.schema.document import followed, join_pointer, with_plain_references

_KEY_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")


def ground(value: Any, text: str, schema: Mapping[str, Any] | None = None) -> dict[str, tuple[Span, ...]]:
    """Return the places of each leaf of `value` in `text`, by JSON Pointer; an empty tuple for a missing value.

    The schema names listed values and gives labels (titles, descriptions); without one the keys have to do. The work is
    bounded: of very many values in a very long text, the last may not be looked up and have an empty tuple, too.

    >>> ground({"total": 1234.5, "city": "Rome"}, "Total: EUR 1.234,50")
    {'/total': (Span(start=11, end=19, how='normalised', ambiguous=False),), '/city': ()}
    """
    return ground_in(SourceIndex(text), value, schema).spans


class Grounding(NamedTuple):
    """The places of the leaves of a value, by JSON Pointer."""

    spans: dict[str, tuple[Span, ...]]
    unsearched: frozenset[str] = frozenset()
    """The leaves that were not looked up, because that would have taken too much work."""
    listed: frozenset[str] = frozenset()
    """The leaves whose values the schema lists."""
    missing: frozenset[str] = frozenset()
    """The leaves that are empty texts where the schema requires one."""

    def fields(self) -> dict[str, FieldEvidence]:
        """Return what is known of each leaf, by JSON Pointer."""
        return {
            pointer: FieldEvidence(
                spans,
                searched=pointer not in self.unsearched,
                listed=pointer in self.listed,
                missing=pointer in self.missing,
            )
            for pointer, spans in self.spans.items()
        }


def ground_in(source: SourceIndex, value: Any, schema: Mapping[str, Any] | None) -> Grounding:
    """`ground` in a source that was read already, with what was not looked up."""
    described = list(_leaves(value, with_plain_references(schema) if schema else {}))
    budget = LookupBudget(len(source.text), len(described))
    lookup = Lookup(source, budget)
    leaves: list[AnswerLeaf] = []
    unsearched: set[str] = set()
    listed: set[str] = set()
    missing: set[str] = set()
    for path, leaf, about in described:
        places = lookup.find(leaf, is_listed=about.is_listed)
        if places is None:
            unsearched.add(join_pointer(path))
        if about.is_listed:
            listed.add(join_pointer(path))
        elif about.is_required and leaf == "":
            missing.add(join_pointer(path))
        leaves.append(AnswerLeaf(path, leaf, about.labels, places or []))
    place_leaves(source, leaves, budget)
    spans = {join_pointer(leaf.path): leaf.spans for leaf in leaves}
    return Grounding(spans, frozenset(unsearched), frozenset(listed), frozenset(missing))


# -- leaves and what the schema says of them ----------------------------------------------------------

_Path = tuple[str | int, ...]
_Nodes = list[Mapping[str, Any]]


class _About(NamedTuple):
    """What the schema says of a leaf."""

    labels: Labels
    is_listed: bool
    is_required: bool = False


def _leaves(value: Any, document: Mapping[str, Any]) -> Iterator[tuple[_Path, Any, _About]]:
    """Yield every scalar of a value with its path and what the schema says of it, in order, without recursion."""
    schema = _SchemaWords(document)
    nodes = schema.in_place([document] if document else [])
    if not isinstance(value, Mapping | list | tuple):
        yield (), value, schema.about((), nodes)._replace(is_required=True)
        return
    steps: list[str | int] = []
    stack = [(_members(value), nodes)]
    left = MOST_STEPS
    while stack and left > 0:
        members, nodes = stack[-1]
        member = next(members, None)
        if member is None:
            stack.pop()
            if stack:
                steps.pop()
            continue
        step, value = member
        steps.append(step)
        inner = schema.in_place(_of_property(nodes, step) if isinstance(step, str) else _of_item(nodes, step))
        if isinstance(value, Mapping | list | tuple):
            stack.append((_members(value), inner))
            continue
        left -= len(steps)
        about = schema.about(steps, inner)
        if value == "" and _is_required(nodes, step):
            about = about._replace(is_required=True)
        yield tuple(steps), value, about
        steps.pop()


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    return enumerate(value)


class _SchemaWords:
    """Reads what a schema says of leaves, once for all leaves with the same subschemas."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._in_place: dict[tuple[int, ...], _Nodes] = {}
        self._about: dict[tuple[str, tuple[int, ...]], _About] = {}

    def in_place(self, nodes: _Nodes) -> _Nodes:
        """Subschemas with all their alternatives beside them, references followed."""
        key = tuple(map(id, nodes))
        if key not in self._in_place:
            self._in_place[key] = _in_place(nodes, self._document)
        return self._in_place[key]

    def about(self, path: Sequence[str | int], nodes: _Nodes) -> _About:
        """Return the words that may be beside a leaf, and whether its values are listed."""
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        key = (name, tuple(map(id, nodes)))
        if key not in self._about:
            self._about[key] = _About(_labels(name, nodes), any("enum" in node or "const" in node for node in nodes))
        return self._about[key]


def _in_place(nodes: list[Mapping[str, Any]], document: Mapping[str, Any], most: int = 64) -> list[Mapping[str, Any]]:
    """Subschemas with all their alternatives beside them, references followed."""
    subschemas: list[Mapping[str, Any]] = []
    open_nodes = list(nodes)
    while open_nodes and len(subschemas) < most:
        node = open_nodes.pop()
        target = followed(node, document) or node
        for each in (node,) if target is node else (node, target):
            if any(each is visited for visited in subschemas):
                continue
            subschemas.append(each)
            for keyword in ("anyOf", "oneOf", "allOf"):
                open_nodes += [branch for branch in each.get(keyword) or () if isinstance(branch, Mapping)]
    return subschemas


def _of_property(nodes: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    subschemas = []
    for node in nodes:
        named = (node.get("properties") or {}).get(key, node.get("additionalProperties"))
        if isinstance(named, Mapping):
            subschemas.append(named)
    return subschemas


def _of_item(nodes: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    subschemas = []
    for node in nodes:
        places = node.get("prefixItems")
        items = places[number] if isinstance(places, list) and number < len(places) else node.get("items")
        if isinstance(items, Mapping):
            subschemas.append(items)
    return subschemas


def _is_required(nodes: Sequence[Mapping[str, Any]], step: str | int) -> bool:
    """Whether a schema requires a key; drafts before the fourth have a boolean there."""
    return any(isinstance(names := node.get("required"), list) and step in names for node in nodes)


def _labels(name: str, nodes: Sequence[Mapping[str, Any]]) -> Labels:
    """Return the words of a leaf's key, then those of the schema's titles and descriptions."""
    labels = [_key_words(name)]
    for node in nodes:
        labels += [
            _key_words(text) for keyword in ("title", "description") if isinstance(text := node.get(keyword), str)
        ]
    return tuple(words for words in labels if words)


def _key_words(name: str) -> tuple[str, ...]:
    return tuple(fold(word) for word in _KEY_WORD.findall(name)[:12])

"""Locate each value of an answer in the text it was taken from.

`ground` calls no model: every leaf is looked up in the source, and where it occurs several times, the words around
it, the other values of its record and the order of equal values decide. Undecided leaves are `ambiguous`.
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

    The schema lists values and provides labels (titles, descriptions); without one, only keys are labels. The work is
    bounded: of very many values in a very long text, the last may not be looked up, and also have an empty tuple.

    >>> ground({"total": 1234.5, "city": "Rome"}, "Total: EUR 1.234,50")
    {'/total': (Span(start=11, end=19, how='normalised', ambiguous=False),), '/city': ()}
    """
    return ground_in(SourceIndex(text), value, schema).spans


class Grounding(NamedTuple):
    """The places of the leaves of a value, by JSON Pointer, and the leaves without a lookup."""

    spans: dict[str, tuple[Span, ...]]
    unsearched: frozenset[str] = frozenset()
    """The leaves that were not looked up, because the budget of work was spent."""
    listed: frozenset[str] = frozenset()
    """The leaves whose values the schema lists."""
    missing: frozenset[str] = frozenset()
    """The leaves that are empty although the schema requires a text."""

    def fields(self) -> dict[str, FieldEvidence]:
        """Return the evidence of each leaf, by JSON Pointer."""
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
    """Return the places of each leaf in an indexed source, and the leaves that were not looked up."""
    described = list(_leaves(value, with_plain_references(schema) if schema else {}))
    budget = LookupBudget(len(source.text), len(described))
    lookup = Lookup(source, budget)
    leaves: list[AnswerLeaf] = []
    unsearched: set[str] = set()
    listed: set[str] = set()
    missing: set[str] = set()
    for path, leaf, facts in described:
        places = lookup.find(leaf, is_listed=facts.is_listed)
        if places is None:
            unsearched.add(join_pointer(path))
        if facts.is_listed:
            listed.add(join_pointer(path))
        elif facts.is_required and leaf == "":
            missing.add(join_pointer(path))
        leaves.append(AnswerLeaf(path, leaf, facts.labels, places or []))
    place_leaves(source, leaves, budget)
    spans = {join_pointer(leaf.path): leaf.spans for leaf in leaves}
    return Grounding(spans, frozenset(unsearched), frozenset(listed), frozenset(missing))


# -- leaves and their subschemas -----------------------------------------------------------------------

_Path = tuple[str | int, ...]
_Nodes = list[Mapping[str, Any]]


class _LeafFacts(NamedTuple):
    """The facts that the schema states about a leaf."""

    labels: Labels
    is_listed: bool
    is_required: bool = False


def _leaves(value: Any, document: Mapping[str, Any]) -> Iterator[tuple[_Path, Any, _LeafFacts]]:
    """Yield every scalar of a value with its path and its facts, in order, without recursion."""
    schema = _FactReader(document)
    nodes = schema.expanded([document] if document else [])
    if not isinstance(value, Mapping | list | tuple):
        yield (), value, schema.facts((), nodes)._replace(is_required=True)
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
        inner = schema.expanded(_of_property(nodes, step) if isinstance(step, str) else _of_item(nodes, step))
        if isinstance(value, Mapping | list | tuple):
            stack.append((_members(value), inner))
            continue
        left -= len(steps)
        facts = schema.facts(steps, inner)
        if value == "" and _is_required(nodes, step):
            facts = facts._replace(is_required=True)
        yield tuple(steps), value, facts
        steps.pop()


def _members(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    return enumerate(value)


class _FactReader:
    """Reads the facts of leaves from a schema, once for all leaves with the same subschemas."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._expanded: dict[tuple[int, ...], _Nodes] = {}
        self._facts: dict[tuple[str, tuple[int, ...]], _LeafFacts] = {}

    def expanded(self, nodes: _Nodes) -> _Nodes:
        """Subschemas with all their alternatives, references resolved."""
        key = tuple(map(id, nodes))
        if key not in self._expanded:
            self._expanded[key] = _expanded(nodes, self._document)
        return self._expanded[key]

    def facts(self, path: Sequence[str | int], nodes: _Nodes) -> _LeafFacts:
        """Return the words that may be beside a leaf, and whether its values are listed."""
        name = next((step for step in reversed(path) if isinstance(step, str)), "")
        key = (name, tuple(map(id, nodes)))
        if key not in self._facts:
            self._facts[key] = _LeafFacts(
                _labels(name, nodes), any("enum" in node or "const" in node for node in nodes)
            )
        return self._facts[key]


def _expanded(nodes: list[Mapping[str, Any]], document: Mapping[str, Any], most: int = 64) -> list[Mapping[str, Any]]:
    """Return subschemas with all their alternatives, references resolved."""
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
        subschema = (node.get("properties") or {}).get(key, node.get("additionalProperties"))
        if isinstance(subschema, Mapping):
            subschemas.append(subschema)
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
    """Return whether a schema requires a key; `required` is a boolean in drafts before the fourth."""
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

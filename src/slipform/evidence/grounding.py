"""Say where each value of an answer stands in the text it was taken from.

`ground` asks no model: every leaf is looked up in the source, and where it stands several times, the words around it,
the other values of its record and the order of equal values decide. What stays undecided is `ambiguous`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipform.evidence.folding import fold
from slipform.evidence.occurrences import find_occurrences
from slipform.evidence.source_index import Occurrence, SourceIndex
from slipform.ir.evidence import Span
from slipform.schema.document import followed, join_pointer, with_plain_references

_MARGIN = 0.05
"""How much better than the next a place has to be, to be the one."""
_MOST_TIED = 20
_MOST_WEIGHED = 200
_LABEL_REACH = 60
_HEAD_NEARNESS = 0.9
"""Of the head of the column that a place is in: the word right before it has 1."""
_HAS_DECIMALS = re.compile(r"[.,]\d{1,2}(?!\d)")
_MINUS_BEFORE, _MINUS_AT_END = re.compile(r"(?<![\w)%])-$"), re.compile(r"-(?![\w-])")
_KEY_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")
_LABEL_WORD = re.compile(r"[^\W_]+")
_LABEL_AFTER = re.compile(r"[^\W_]+(?![\w]*\s?[:=])")
"""What stands after a value may name it (3 rooms), unless it names what follows (3 rooms: 4)."""


@dataclass
class _Leaf:
    """A value of the answer with the places it may stand at."""

    path: tuple[str | int, ...]
    value: Any
    labels: list[list[str]]
    """Words that may stand beside the value: of its key, then of the schema's title and description."""
    places: list[Occurrence]
    chosen: list[Occurrence] = field(default_factory=list)

    @property
    def record(self) -> tuple[str | int, ...]:
        """The object that the leaf is a field of."""
        end = len(self.path)
        while end and isinstance(self.path[end - 1], int):
            end -= 1
        return self.path[: max(end - 1, 0)]


def ground(value: Any, text: str, schema: Mapping[str, Any] | None = None) -> dict[str, tuple[Span, ...]]:
    """Where each leaf of `value` stands in `text`, by JSON Pointer; an empty tuple for a value that is not there.

    The schema tells listed values and gives labels (titles, descriptions); without one the keys have to do.

    >>> ground({"total": 1234.5, "city": "Rome"}, "Total: EUR 1.234,50")
    {'/total': (Span(start=11, end=19, how='normalised', ambiguous=False),), '/city': ()}
    """
    return ground_in(SourceIndex(text), value, schema)


def ground_in(source: SourceIndex, value: Any, schema: Mapping[str, Any] | None) -> dict[str, tuple[Span, ...]]:
    """`ground` in a source that was read already."""
    document = with_plain_references(schema) if schema else {}
    leaves = [
        _Leaf(
            path,
            leaf,
            _labels(path, nodes),
            find_occurrences(source, leaf, is_listed=any("enum" in node for node in nodes)),
        )
        for path, leaf, nodes in _leaves(value, (), [document] if document else [], document)
    ]
    _Chooser(source, leaves).choose()
    return {join_pointer(leaf.path): _spans(leaf) for leaf in leaves}


def _spans(leaf: _Leaf) -> tuple[Span, ...]:
    is_tied = len(leaf.chosen) > 1
    return tuple(Span(*place, is_tied) for place in leaf.chosen)


# -- leaves and what the schema says of them ----------------------------------------------------------


def _leaves(
    value: Any, path: tuple[str | int, ...], nodes: list[Mapping[str, Any]], document: Mapping[str, Any]
) -> Iterator[tuple[tuple[str | int, ...], Any, list[Mapping[str, Any]]]]:
    """Every scalar of a value with its path and the subschemas that speak of it, in order, without recursion."""
    stack = [(path, value, _in_place(nodes, document))]
    while stack:
        path, value, nodes = stack.pop()
        if isinstance(value, Mapping):
            inner = [((*path, key), each, _of_property(nodes, key)) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            inner = [((*path, number), each, _of_item(nodes, number)) for number, each in enumerate(value)]
        else:
            yield path, value, nodes
            continue
        stack.extend((where, each, _in_place(found, document)) for where, each, found in reversed(inner))


def _in_place(nodes: list[Mapping[str, Any]], document: Mapping[str, Any], most: int = 64) -> list[Mapping[str, Any]]:
    """Subschemas with all their alternatives beside them, references followed."""
    found: list[Mapping[str, Any]] = []
    open_nodes = list(nodes)
    while open_nodes and len(found) < most:
        node = open_nodes.pop()
        target = followed(node, document) or node
        for each in (node,) if target is node else (node, target):
            if any(each is known for known in found):
                continue
            found.append(each)
            for keyword in ("anyOf", "oneOf", "allOf"):
                open_nodes += [branch for branch in each.get(keyword) or () if isinstance(branch, Mapping)]
    return found


def _of_property(nodes: Sequence[Mapping[str, Any]], key: str) -> list[Mapping[str, Any]]:
    found = []
    for node in nodes:
        named = (node.get("properties") or {}).get(key, node.get("additionalProperties"))
        if isinstance(named, Mapping):
            found.append(named)
    return found


def _of_item(nodes: Sequence[Mapping[str, Any]], number: int) -> list[Mapping[str, Any]]:
    found = []
    for node in nodes:
        places = node.get("prefixItems")
        items = places[number] if isinstance(places, list) and number < len(places) else node.get("items")
        if isinstance(items, Mapping):
            found.append(items)
    return found


def _labels(path: tuple[str | int, ...], nodes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    names = [step for step in path if isinstance(step, str)]
    labels = [_words(names[-1])] if names else []
    for node in nodes:
        labels += [_words(text) for keyword in ("title", "description") if isinstance(text := node.get(keyword), str)]
    return [words for words in labels if words]


def _words(name: str) -> list[str]:
    return [fold(word) for word in _KEY_WORD.findall(name)][:12]


# -- which of several places --------------------------------------------------------------------------


class _Chooser:
    """Decides for every leaf which of its places is meant, the clear ones first: they tell where their records are."""

    def __init__(self, source: SourceIndex, leaves: list[_Leaf]) -> None:
        self._source = source
        self._leaves = leaves
        self._records: dict[tuple[str | int, ...], list[_Leaf]] = defaultdict(list)
        self._equal: dict[tuple[tuple[int, int], ...], list[_Leaf]] = defaultdict(list)
        for leaf in leaves:
            self._records[leaf.record].append(leaf)
        self._by_label: dict[tuple[str | int, ...], list[_Leaf]] = {}
        self._beside: dict[Occurrence, list[tuple[str, float]]] = {}

    def choose(self) -> None:
        """Give every leaf its place, or all places that stay equally likely."""
        for leaf in self._leaves:
            leaf.places = [place for place in leaf.places if self._may_be_meant(place, leaf)]
            self._equal[_where(leaf)].append(leaf)
        for leaf in self._leaves:
            if len(leaf.places) == 1 and len(self._equal[_where(leaf)]) <= 1:
                leaf.chosen = leaf.places
        for least_label in (0.3, 0.0, 0.0):
            for leaf in self._leaves:
                if leaf.places and not leaf.chosen:
                    self._decide(leaf, least_label)
        self._in_order()
        for leaf in self._leaves:
            if leaf.places and not leaf.chosen:
                self._decide(leaf, 0.0, is_last=True)

    def _may_be_meant(self, place: Occurrence, leaf: _Leaf) -> bool:
        """Whether a place says a value at all: `true` among others, and 5 where -5 stands, need their key beside."""
        if isinstance(leaf.value, bool):
            return len(leaf.places) == 1 or self._label(place, leaf) > 0
        if not isinstance(leaf.value, int | float) or leaf.value <= 0:
            return True
        plain = self._source.plain
        is_negative = _MINUS_BEFORE.search(plain, max(0, place.start - 2), place.start) or (
            _MINUS_AT_END.match(plain, place.end) and plain[place.end - 3 : place.end - 2] in (".", ",")
        )
        return not is_negative or self._label(place, leaf) > 0

    def _decide(self, leaf: _Leaf, least_label: float, *, is_last: bool = False) -> None:
        taken = {each.chosen[0][:2] for each in self._equal[_where(leaf)] if len(each.chosen) == 1}
        free = [place for place in leaf.places if place[:2] not in taken] or leaf.places
        anchors = [each.chosen[0] for each in self._records[leaf.record] if len(each.chosen) == 1 and each is not leaf]
        free = self._near(free, anchors)
        if len(free) == 1 and (not least_label or len(leaf.places) == 1):
            leaf.chosen = free
            return
        scored = sorted(
            ((self._score(place, leaf, anchors), place) for place in free), key=lambda each: (-each[0], each[1].start)
        )
        best, place = scored[0]
        if least_label and self._label(place, leaf) < least_label:
            return
        if best - scored[1][0] > _MARGIN if len(scored) > 1 else True:
            leaf.chosen = [place]
        elif is_last:
            tied = [each for score, each in scored if best - score <= _MARGIN]
            leaf.chosen = sorted(tied)[:_MOST_TIED]

    def _near(self, places: list[Occurrence], anchors: list[Occurrence]) -> list[Occurrence]:
        """Of very many places those around the record's other values."""
        if len(places) <= _MOST_WEIGHED:
            return places
        centres = [anchor.start for anchor in anchors] or [0]
        return sorted(sorted(places, key=lambda place: min(abs(place.start - at) for at in centres))[:_MOST_WEIGHED])

    def _score(self, place: Occurrence, leaf: _Leaf, anchors: list[Occurrence]) -> float:
        own = self._label(place, leaf)
        others = [self._label(place, each, but=leaf) for each in self._rivals(leaf)]
        score = 2 * (own - max(others, default=0.0)) + (0.2 if place.how == "exact" else 0.0)
        if isinstance(leaf.value, int | float) and _HAS_DECIMALS.search(self._source.plain, place.start, place.end):
            score += 0.2 if isinstance(leaf.value, float) else -0.2
        if anchors:
            line = self._source.line_of(place.start)
            lines = min(abs(line - self._source.line_of(anchor.start)) for anchor in anchors)
            characters = min(abs(place.start - anchor.start) for anchor in anchors)
            sentence = self._source.sentence_of(place.start)
            sentences = min(abs(sentence - self._source.sentence_of(anchor.start)) for anchor in anchors)
            score += 1 / (1 + lines) + 0.8 / (1 + sentences) + 0.7 / (1 + characters / 40)
        return score

    def _rivals(self, leaf: _Leaf) -> list[_Leaf]:
        """One leaf of the record for each other key: items of a list have the same."""
        if leaf.record not in self._by_label:
            keys: dict[tuple[str, ...], _Leaf] = {}
            for each in self._records[leaf.record]:
                keys.setdefault(tuple(each.labels[0]) if each.labels else (), each)
            self._by_label[leaf.record] = list(keys.values())[:40]
        return [each for each in self._by_label[leaf.record] if each.labels[:1] != leaf.labels[:1]]

    def _label(self, place: Occurrence, leaf: _Leaf, *, but: _Leaf | None = None) -> float:
        """How much the words around a place name a leaf: the nearer the more, and those before it more than others."""
        if not leaf.labels:
            return 0.0
        around = self._around(place)
        shared = set(but.labels[0]) if but is not None and but.labels else ()
        best = 0.0
        for number, label in enumerate(leaf.labels[:3]):
            words = [word for word in label if word not in shared]
            found = sum(max((near for word, near in around if _names(word, key)), default=0.0) for key in words)
            best = max(best, found / (len(words) ** 0.5 or 1) * (1.0 if number == 0 else 0.7))
        return best

    def _around(self, place: Occurrence) -> list[tuple[str, float]]:
        """The words beside a place with their nearness, from 1 for the word right before it."""
        if place not in self._beside:
            self._beside[place] = self._read_around(place)
        return self._beside[place]

    def _read_around(self, place: Occurrence) -> list[tuple[str, float]]:
        text, start = self._source.text, place.start
        begin = self._source.line_starts[self._source.line_of(start)]
        if not text[begin:start].strip(" \t|*-#>") and begin:
            begin = self._source.line_starts[self._source.line_of(begin - 1)]
        before = _LABEL_WORD.findall(text[max(begin, start - _LABEL_REACH) : start])
        end = text.find("\n", place.end)
        after = _LABEL_AFTER.findall(text, place.end, min(place.end + 25, len(text) if end < 0 else end))
        near = [(fold(word), 1 / (1 + distance)) for distance, word in enumerate(reversed(before[-8:]))]
        head = self._source.tables.head(self._source.line_of(start), start, place.end)
        near += [(fold(word), _HEAD_NEARNESS) for word in _LABEL_WORD.findall(head)]
        return near + [(fold(word), 0.6 / (1 + distance)) for distance, word in enumerate(after[:2])]

    def _in_order(self) -> None:
        """Equal values that stand as often as they are in the answer: the first is the first."""
        for leaves in self._equal.values():
            taken = {leaf.chosen[0][:2] for leaf in leaves if len(leaf.chosen) == 1}
            open_leaves = [leaf for leaf in leaves if not leaf.chosen]
            free = [at for at, place in enumerate(leaves[0].places) if place[:2] not in taken]
            if open_leaves and len(open_leaves) == len(free):
                for leaf, at in zip(open_leaves, free, strict=True):
                    leaf.chosen = [leaf.places[at]]


def _where(leaf: _Leaf) -> tuple[tuple[int, int], ...]:
    """The places of a leaf, however it stands there: 6 and 6.0 are equal values."""
    return tuple((place.start, place.end) for place in leaf.places)


def _names(word: str, key: str) -> bool:
    """Whether a word of the text is a word of a key: itself, in another form, or spelled out (`qty`, `quantity`)."""
    if word == key:
        return True
    if len(key) >= 4 and len(word) >= 4:
        return word.startswith(key[: max(4, len(key) - 2)]) or key.startswith(word[: max(4, len(word) - 2)])
    if len(key) < 2 or len(word) <= len(key) or word[0] != key[0]:
        return False
    letters = iter(word)
    return all(letter in letters for letter in key)

"""Choose the place from which each leaf of an answer was taken, among several in a source.

Unambiguous leaves are assigned first, because they show the places of their records. Scores of places, and of equal
leaves, are computed once, so that the work grows with the leaves and not with leaves times places.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from slipform.addons.evidence.differences import NEGATIONS, has_negation, is_negated
from slipform.addons.evidence.folding import fold, word_table
from slipform.addons.evidence.source_index import LookupBudget, Occurrence, SourceIndex, Spot
from slipform.ir.evidence import Span

Labels: TypeAlias = tuple[tuple[str, ...], ...]
"""The words of a value's key, then those of the schema's titles and descriptions."""

_MARGIN = 0.05
"""The score by which a place must exceed the next best to be chosen."""
_MOST_TIED = 20
_MOST_WEIGHED = 100
_MOST_RIVALS = 40
_MOST_CENTRES = 64
_LABEL_REACH = 60
_HEAD_NEARNESS = 0.9
"""The nearness of a column's head to the places in it; the word directly before a place has 1."""
_HAS_DECIMALS = re.compile(r"[.,]\d{1,2}(?!\d)")
_MINUS_BEFORE = re.compile(r"(?<![\w)%])-$")
_MINUS_AT_END = re.compile(r"-(?![\w-])")
_LABEL_WORD = re.compile(r"[^\W_]+")
_LABEL_AFTER = re.compile(r"[^\W_]+(?![\w]*\s?[:=])")
"""A word after a value may label it (3 rooms), unless it labels the next value (3 rooms: 4)."""
_TIME_WORDS = frozenset(word_table("keys")["times"])
"""Words of keys whose values may be parts of a time of day."""
_ABSENCE_WORDS = NEGATIONS | frozenset(word_table("keys")["absence"])
"""Words of keys whose values may be negated in the text."""
_DIGIT = re.compile(r"\d")
_BESIDE = 0.6
"""The least nearness of a label directly before or after a place."""
_WEIGHING_WORK = 20
_READING_WORK = 200
_NEAREST_WORK = 3_000
_NEGATION_WORK = 20
"""Units of work for scoring a place, for reading its surroundings, for finding the nearest places, and for
the words before one."""


class AnswerLeaf:
    """A leaf of the answer with its possible places; equal values share their list of places."""

    __slots__ = ("best_place", "chosen", "group", "labels", "own_scores", "path", "places", "record", "value")
    group: _Group
    record: _Record
    own_scores: list[float | None]
    """The score of each place without its record, where it is computed; similar leaves share the list."""

    def __init__(self, path: tuple[str | int, ...], value: Any, labels: Labels, places: list[Occurrence]) -> None:
        self.path = path
        self.value = value
        self.labels = labels
        self.places = places
        self.chosen: list[Occurrence] = []
        self.best_place: _BestPlace | None = None

    @property
    def spans(self) -> tuple[Span, ...]:
        """The chosen places."""
        is_tied = len(self.chosen) > 1
        return tuple([Span(*place, is_tied) for place in self.chosen])


class _Group:
    """The leaves with the same possible places: equal values, including 6 and 6.0."""

    __slots__ = ("free", "leaves", "spots", "starts")

    def __init__(self, places: Sequence[Occurrence], source: SourceIndex) -> None:
        self.leaves: list[AnswerLeaf] = []
        self.starts = [place.start for place in places]
        self.spots = [source.spot(start) for start in self.starts] if len(places) > 1 else []
        """The lines and sentences of the places."""
        self.free = list(range(len(places)))
        """The indices of the places that no leaf has been assigned."""

    def mark_assigned(self, start: int) -> None:
        """Mark the place that begins here as assigned."""
        number = bisect_left(self.starts, start)
        at = bisect_left(self.free, number)
        if at < len(self.free) and self.free[at] == number:
            del self.free[at]


class _Record:
    """The object that leaves are fields of: their labels, and the places of its assigned leaves."""

    __slots__ = ("anchors", "labels")

    def __init__(self) -> None:
        self.anchors: list[Spot] = []
        self.labels: tuple[Labels, ...] = ()
        """The labels of one leaf for each key: items of a list have the same."""


class _BestPlace:
    """The best place of a leaf in a given situation."""

    __slots__ = ("lead", "place", "situation")

    def __init__(self, situation: tuple[int, int], place: Occurrence, lead: float) -> None:
        self.situation = situation
        self.place = place
        """The place with the highest score."""
        self.lead = lead
        """The difference to the next highest score."""


def place_leaves(source: SourceIndex, leaves: Sequence[AnswerLeaf], budget: LookupBudget) -> None:
    """Assign every leaf its place, or all places that are equally likely."""
    placer = _Placer(source, budget)
    placer.prepare(leaves)
    placer.choose([leaf for leaf in leaves if leaf.places])


class _Placer:
    def __init__(self, source: SourceIndex, budget: LookupBudget) -> None:
        self._source = source
        self._budget = budget
        self._groups: dict[tuple[tuple[int, int], ...], _Group] = {}
        self._surroundings: dict[tuple[int, int], _Surroundings] = {}
        self._own_scores: dict[tuple[int, Labels, tuple[Labels, ...]], list[float | None]] = {}

    def prepare(self, leaves: Sequence[AnswerLeaf]) -> None:
        """Find the group and the record of every leaf, and drop places that do not state its value."""
        records: dict[tuple[str | int, ...], _Record] = {}
        labels: dict[int, dict[tuple[str, ...], Labels]] = {}
        grouped: dict[tuple[int, Labels], tuple[list[Occurrence], _Group]] = {}
        retained: list[list[Occurrence]] = []
        """Lists whose `id` is a key, so that no other list gets the same one."""
        for leaf in leaves:
            leaf.record = records.setdefault(_record_path(leaf.path), _Record())
            first = leaf.labels[0] if leaf.labels else ()
            labels.setdefault(id(leaf.record), {}).setdefault(first, leaf.labels)
            key = (id(leaf.places), leaf.labels)
            if key not in grouped:
                retained.append(leaf.places)
                places = self._eligible_places(leaf)
                spans = tuple([(place.start, place.end) for place in places])
                if spans not in self._groups:
                    self._groups[spans] = _Group(places, self._source)
                grouped[key] = (places, self._groups[spans])
            leaf.places, leaf.group = grouped[key]
            leaf.group.leaves.append(leaf)
        for record in records.values():
            record.labels = tuple(labels[id(record)].values())[:_MOST_RIVALS]
        for leaf in leaves:
            score_key = (id(leaf.places), leaf.labels, leaf.record.labels)
            if score_key not in self._own_scores:
                self._own_scores[score_key] = [None] * len(leaf.places)
            leaf.own_scores = self._own_scores[score_key]

    def choose(self, leaves: Sequence[AnswerLeaf]) -> None:
        """Choose the places of all leaves that have any."""
        for leaf in leaves:
            if len(leaf.places) == 1 and len(leaf.group.leaves) <= 1:
                self._assign(leaf, leaf.places[0])
        for least_label in (0.3, 0.0, 0.0):
            for leaf in leaves:
                if not leaf.chosen and not self._budget.is_spent:
                    self._choose_if_clear(leaf, least_label)
        self._assign_in_order()
        for leaf in leaves:
            if not leaf.chosen:
                self._choose_best(leaf)

    def _assign(self, leaf: AnswerLeaf, place: Occurrence) -> None:
        leaf.chosen = [place]
        leaf.group.mark_assigned(place.start)
        insort(leaf.record.anchors, self._source.spot(place.start))

    # -- which places state the value

    def _eligible_places(self, leaf: AnswerLeaf) -> list[Occurrence]:
        """Return the places that may state a value.

        `true`, for example, and 5 where the text has -5, need their key beside them.
        """
        places = leaf.places
        if isinstance(leaf.value, bool):
            if len(places) <= 1:
                return places
            return [place for place in places if self._label_strength(place, leaf.labels) > 0]
        if not isinstance(leaf.value, int | float):
            return self._unnegated_places(leaf)
        self._budget.spend(2 * len(places))
        if any(map(self._source.is_in_time, places)):
            in_time = self._source.is_in_time
            places = [place for place in places if not in_time(place) or self._may_be_in_time(place, leaf)]
        if leaf.value <= 0 or not any(map(self._is_negative, places)):
            return places
        return [
            place for place in places if not self._is_negative(place) or self._label_strength(place, leaf.labels) > 0
        ]

    def _unnegated_places(self, leaf: AnswerLeaf) -> list[Occurrence]:
        """Return the places without a negation directly before them.

        If all places have one, they are `partial`: fever in "no fever".
        """
        if not leaf.places or _DIGIT.search(leaf.value) or has_negation(leaf.value):
            return leaf.places
        self._budget.spend(_NEGATION_WORK * len(leaf.places))
        plain = [place for place in leaf.places if not is_negated(self._source, place.start)]
        if plain or any(word in _ABSENCE_WORDS for label in leaf.labels for word in label):
            return plain or leaf.places
        return [place._replace(how="partial") for place in leaf.places]

    def _may_be_in_time(self, place: Occurrence, leaf: AnswerLeaf) -> bool:
        """Return whether a leaf can be part of a time or of a score (21:18): by its key, or a word beside the place."""
        if any(word in _TIME_WORDS for label in leaf.labels for word in label):
            return True
        return self._label_strength(place, leaf.labels) >= _BESIDE

    def _is_negative(self, place: Occurrence) -> bool:
        plain = self._source.plain
        if _MINUS_BEFORE.search(plain, max(0, place.start - 2), place.start):
            return True
        return bool(_MINUS_AT_END.match(plain, place.end)) and plain[place.end - 3 : place.end - 2] in (".", ",")

    # -- which of several places

    def _choose_if_clear(self, leaf: AnswerLeaf, least_label: float) -> None:
        """Assign a leaf its place if it has only one, or one that is clearly better than the next."""
        free = leaf.group.free
        is_only = len(free or leaf.places) == 1
        if is_only and (not least_label or len(leaf.places) == 1):
            self._assign(leaf, leaf.places[free[0] if free else 0])
            return
        situation = (len(leaf.record.anchors), len(free))
        if leaf.best_place is None or leaf.best_place.situation != situation:
            scored = self._scored_places(leaf)
            lead = scored[0][0] - scored[1][0] if len(scored) > 1 else _MARGIN + 1
            leaf.best_place = _BestPlace(situation, scored[0][1], lead)
        best = leaf.best_place
        if least_label and self._label_strength(best.place, leaf.labels) < least_label:
            return
        if best.lead > _MARGIN:
            self._assign(leaf, best.place)

    def _choose_best(self, leaf: AnswerLeaf) -> None:
        """Assign the best place, or all that are as good; when the budget is spent, the first places."""
        free = leaf.group.free or range(len(leaf.places))
        if len(free) == 1:
            self._assign(leaf, leaf.places[free[0]])
            return
        if self._budget.is_spent:
            leaf.chosen = [leaf.places[number] for number in free[:_MOST_TIED]]
            return
        scored = self._scored_places(leaf)
        best = scored[0][0]
        tied = [place for score, place in scored if best - score <= _MARGIN]
        if len(tied) == 1:
            self._assign(leaf, tied[0])
        else:
            leaf.chosen = sorted(tied)[:_MOST_TIED]

    def _scored_places(self, leaf: AnswerLeaf) -> list[tuple[float, Occurrence]]:
        """Return the possible places of a leaf by score; of many, only those near its record's other values."""
        group = leaf.group
        anchors = leaf.record.anchors
        own_scores = leaf.own_scores
        numbers = group.free or range(len(leaf.places))
        if len(numbers) > _MOST_WEIGHED:
            numbers = _nearest(numbers, group.starts, anchors)
            self._budget.spend(_NEAREST_WORK)
        self._budget.spend(_WEIGHING_WORK * len(numbers))
        scored: list[tuple[float, Occurrence]] = []
        for number in numbers:
            own = own_scores[number]
            if own is None:
                own = own_scores[number] = self._own_score(leaf.places[number], leaf)
            score = own + _nearness(group.spots[number], anchors) if anchors else own
            scored.append((score, leaf.places[number]))
        return sorted(scored, key=_best_first)

    def _own_score(self, place: Occurrence, leaf: AnswerLeaf) -> float:
        """Return how well a place fits a leaf, regardless of the other fields of its record."""
        score = self._label_score(place, leaf) + (0.2 if place.how == "exact" else 0.0)
        if isinstance(leaf.value, int | float) and _HAS_DECIMALS.search(self._source.plain, place.start, place.end):
            score += 0.2 if isinstance(leaf.value, float) else -0.2
        return score

    def _label_score(self, place: Occurrence, leaf: AnswerLeaf) -> float:
        """Return how much more the words around a place label this leaf than other fields of its record."""
        own = leaf.labels[0] if leaf.labels else ()
        rivals = [labels for labels in leaf.record.labels if labels[:1] != leaf.labels[:1]]
        self._budget.spend(_WEIGHING_WORK * (1 + len(rivals)))
        others = [self._label_strength(place, labels, excluded=own) for labels in rivals]
        return 2 * (self._label_strength(place, leaf.labels) - max(others, default=0.0))

    def _label_strength(self, place: Occurrence, labels: Labels, *, excluded: tuple[str, ...] = ()) -> float:
        """Return how strongly the words around a place label a leaf.

        Nearer words count more, and words before the place more than others.
        """
        if not labels:
            return 0.0
        surroundings = self._surroundings_of(place)
        best = 0.0
        for number, label in enumerate(labels[:3]):
            words = [word for word in label if word not in excluded]
            total = sum([surroundings.nearness(word) for word in words])
            best = max(best, total / (len(words) ** 0.5 or 1) * (1.0 if number == 0 else 0.7))
        return best

    def _surroundings_of(self, place: Occurrence) -> _Surroundings:
        key = (place.start, place.end)
        surroundings = self._surroundings.get(key)
        if surroundings is None:
            self._budget.spend(_READING_WORK)
            surroundings = self._surroundings[key] = _Surroundings(_words_around(self._source, place))
        return surroundings

    def _assign_in_order(self) -> None:
        """Assign equal values in order where they occur as often in the source as in the answer."""
        for group in self._groups.values():
            undecided = [leaf for leaf in group.leaves if not leaf.chosen]
            if undecided and len(undecided) == len(group.free):
                for leaf, number in zip(undecided, list(group.free), strict=True):
                    self._assign(leaf, leaf.places[number])


class _Surroundings:
    """The words around a place with their nearness: 1 for the word directly before it."""

    __slots__ = ("_by_key", "_words")

    def __init__(self, words: list[tuple[str, float]]) -> None:
        self._words = words
        self._by_key: dict[str, float] = {}

    def nearness(self, key: str) -> float:
        """Return the nearness of the nearest word that matches a word of a key; 0 without one."""
        nearness = self._by_key.get(key)
        if nearness is None:
            nearness = max([near for word, near in self._words if _is_form_of(word, key)], default=0.0)
            self._by_key[key] = nearness
        return nearness


def _words_around(source: SourceIndex, place: Occurrence) -> list[tuple[str, float]]:
    text = source.text
    start = place.start
    line = source.line_of(start)
    begin = source.line_starts[line]
    if begin and source.content_start(line) >= start:
        begin = source.line_starts[line - 1]
    before = _LABEL_WORD.findall(text[max(begin, start - _LABEL_REACH) : start])
    after = _LABEL_AFTER.findall(text, place.end, min(place.end + 25, source.line_end(place.end)))
    words = [(fold(word), 1 / (1 + distance)) for distance, word in enumerate(reversed(before[-8:]))]
    head = source.tables.head(line, start, place.end)
    words += [(fold(word), _HEAD_NEARNESS) for word in _LABEL_WORD.findall(head)]
    return words + [(fold(word), 0.6 / (1 + distance)) for distance, word in enumerate(after[:2])]


def _best_first(scored: tuple[float, Occurrence]) -> tuple[float, int]:
    return -scored[0], scored[1].start


def _nearness(spot: Spot, anchors: Sequence[Spot]) -> float:
    """Return the nearness of a place to the nearest of some sorted others, by line, sentence and character."""
    at = bisect_left(anchors, spot)
    start, line, sentence = spot
    other = anchors[at] if at < len(anchors) else anchors[-1]
    characters = abs(start - other[0])
    lines = abs(line - other[1])
    sentences = abs(sentence - other[2])
    if 0 < at < len(anchors):
        before = anchors[at - 1]
        characters = min(characters, start - before[0])
        lines = min(lines, line - before[1])
        sentences = min(sentences, sentence - before[2])
    return 1 / (1 + lines) + 0.8 / (1 + sentences) + 0.7 / (1 + characters / 40)


def _nearest(numbers: Sequence[int], starts: Sequence[int], anchors: Sequence[Spot]) -> list[int]:
    """Return the indices of the places nearest to some sorted anchors, or of the first ones without anchors."""
    if not anchors:
        return list(numbers[:_MOST_WEIGHED])
    centres = [anchor[0] for anchor in anchors]
    if len(centres) > _MOST_CENTRES:
        centres = [centres[len(centres) * part // _MOST_CENTRES] for part in range(_MOST_CENTRES)]
    # Search from every centre in both directions: the heap has the next place of each.
    heap: list[tuple[int, int, int, int]] = []
    for centre in centres:
        first = bisect_left(numbers, centre, key=starts.__getitem__)
        for at, step in ((first, 1), (first - 1, -1)):
            if 0 <= at < len(numbers):
                heap.append((abs(starts[numbers[at]] - centre), at, step, centre))
    heapq.heapify(heap)
    nearest: set[int] = set()
    while heap and len(nearest) < _MOST_WEIGHED:
        _, at, step, centre = heap[0]
        nearest.add(at)
        at += step
        if 0 <= at < len(numbers):
            heapq.heapreplace(heap, (abs(starts[numbers[at]] - centre), at, step, centre))
        else:
            heapq.heappop(heap)
    return [numbers[at] for at in sorted(nearest)]


def _record_path(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the path of the object that a leaf is a field of."""
    end = len(path)
    while end and isinstance(path[end - 1], int):
        end -= 1
    return path[: max(end - 1, 0)]


@lru_cache(maxsize=1 << 15)
def _is_form_of(word: str, key: str) -> bool:
    """Return whether a word of the text matches a word of a key: equal, inflected, or in full (`qty`, `quantity`)."""
    if word == key:
        return True
    if len(key) >= 4 and len(word) >= 4:
        return word.startswith(key[: max(4, len(key) - 2)]) or key.startswith(word[: max(4, len(word) - 2)])
    if len(key) < 2 or len(word) <= len(key) or word[0] != key[0]:
        return False
    letters = iter(word)
    return all(letter in letters for letter in key)

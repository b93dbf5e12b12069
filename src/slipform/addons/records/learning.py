"""Derive from placed records what a record of this source looks like: its first line, its height, its values."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipform.addons.records.lines import (
    Features,
    Line,
    LineSignature,
    LineTable,
    column_text,
    fills_cell,
    form_of,
    has_phrase,
    resembles,
)
from slipform.addons.records.regions import Region, RegionIndex, find_regions

_LEAST_EXAMPLES = 3
"""With fewer placed records nothing general is derived from them."""
_LITERAL_RATE = 0.5
_REGULAR_SHARE = 0.85
_MOST_FORMS = 4
_RARE_FORM = 0.02
_SHARED_RATE = 0.03
_MISREAD_RATE = 0.04
_LEAST_CELLS = 20
_CELL_SHARE = 0.98
_STRICTEST = 6.0
_WEAKEST = -2.0
_FEW_OTHERS = 0.5
"""Where nearly every line begins a record, odds say little, and only the threshold counts."""
_LEAST_HEIGHT = 80
DEFAULT_HEIGHT = 900
"""Characters that a record may take before its height is measured."""

Places = list[tuple[int, int]]


class RecordLeaf(NamedTuple):
    """A value of a record, the field it belongs to (list positions as `*`), and its places in the source."""

    field: str
    pointer: str
    value: Any
    places: Places


@dataclass(slots=True, eq=False)
class RecordCandidate:
    """A record of an answer, with the places of its values."""

    value: Any
    leaves: tuple[RecordLeaf, ...]
    question: int
    """The number of the question it answers."""
    lines: tuple[int, int] | None = None
    """The lines that the model named, where it was asked for them: the first, and that after the last."""


class Placed(NamedTuple):
    """A candidate, the line that it begins at, and the place of each of its values that is near."""

    line: int
    candidate: RecordCandidate
    near: Mapping[str, tuple[int, int]]


class Beginnings:
    """Recognises lines that begin a record: naive Bayes over the features of lines."""

    def __init__(self, first: Sequence[Features], other: Sequence[Features], inside: Sequence[Features]) -> None:
        self.count = len(first)
        self._weakest = _WEAKEST if len(other) > _FEW_OTHERS * len(first) else -math.inf
        self._log_odds = _log_odds(first, other)
        self._scores: dict[Features, float] = {}
        self._threshold = self._find_threshold(first, inside)

    def _find_threshold(self, first: Sequence[Features], inside: Sequence[Features]) -> float:
        """Between the lowest of the lines that begin records and the highest of those that continue one."""
        scores = sorted(map(self.score, first))
        if not scores:
            return 0.0
        low = scores[len(scores) // 100]
        high = low - 4
        if len(inside) > 20:
            continuing = sorted(map(self.score, inside))
            high = continuing[int(len(continuing) * 0.8)]
        return (low + high) / 2 if high < low else low

    def score(self, features: Features) -> float:
        """The logarithm of the odds that a line with these features begins a record."""
        score = self._scores.get(features)
        if score is None:
            neutral = self._log_odds[""]
            score = sum(self._log_odds.get(feature, neutral) for feature in features)
            self._scores[features] = score
        return score

    def exceeds_threshold(self, features: Features) -> bool:
        """Whether a line is on the side of the first lines, however few of them there were."""
        return self.score(features) >= self._threshold

    def begins(self, features: Features) -> bool:
        """Whether a line with these features begins a record."""
        if not features or self.count < _LEAST_EXAMPLES:
            return False
        score = self.score(features)
        return score >= min(self._threshold, _STRICTEST) and score > self._weakest


def _log_odds(first: Sequence[Features], other: Sequence[Features]) -> dict[str, float]:
    """Return the log-odds of each feature; those of a feature on no line are under the empty string."""
    positive = Counter(feature for features in first for feature in features)
    negative = Counter(feature for features in other for feature in features)

    def odds(feature: str) -> float:
        in_first = math.log((positive[feature] + 0.5) / (len(first) + 1))
        in_other = math.log((negative[feature] + 0.5) / (len(other) + 1))
        return in_first - in_other

    return {feature: odds(feature) for feature in ("", *positive, *(negative.keys() - positive.keys()))}


@dataclass(slots=True)
class RecordModel:
    """What a record of this source looks like."""

    beginnings: Mapping[int, Beginnings] = field(default_factory=lambda: {0: Beginnings((), (), ())})
    """By the layouts of regions."""
    regions: RegionIndex = field(default_factory=lambda: RegionIndex.of([Region(0, 0, 0)]))
    height: int = DEFAULT_HEIGHT
    """Characters from the first line of a record to its last value, of 98 % of the records."""
    rates: dict[str, float] = field(default_factory=dict)
    """The share of records that have the value of a field near their first line."""
    forms: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The forms of the values of regular fields."""
    carriers: frozenset[LineSignature] = frozenset()
    """The signatures of lines (headings) that hold a value for the records below them."""
    carrier_features: Beginnings | None = None
    """Tells carriers from the lines of records, where both have these signatures."""
    carried_fields: frozenset[str] = frozenset()
    carried_cells: dict[str, frozenset[str]] = field(default_factory=dict)
    """Fields whose value is printed only in the first of several records, and the forms of that cell."""

    shared: frozenset[frozenset[str]] = frozenset()
    """Pairs of fields whose equal values this source usually says once."""

    whole_cells: frozenset[str] = frozenset()
    """Fields whose values are whole cells of a table, nearly always."""

    misread: frozenset[str] = frozenset()
    """Fields whose values the source often has with some letters wrong, as scanned texts do."""

    def begins(self, line: int, features: Features) -> bool:
        """Whether the line with this number and these features begins a record."""
        return self.beginnings[self.regions.layout_at(line)].begins(features)

    def score(self, line: int, features: Features) -> float:
        """Return the logarithm of the odds that a line begins a record."""
        return self.beginnings[self.regions.layout_at(line)].score(features)

    def is_carrier(self, line: Line) -> bool:
        """Whether a line holds a value for the records below it."""
        if line.is_blank or line.signature not in self.carriers:
            return False
        return self.carrier_features is None or self.carrier_features.exceeds_threshold(line.features)

    def is_literal(self, name: str) -> bool:
        """Whether the values of a field are usually in the text of their record."""
        return self.rates.get(name, 1.0) >= _LITERAL_RATE


@dataclass(slots=True)
class _FieldCounts:
    """How often the values of each field are in their record, and how they are written there."""

    totals: Counter[str] = field(default_factory=Counter)
    inside: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    """How many of those inside are whole cells."""
    forms: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    above: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """How many values are in which line above their record."""

    def add(self, table: LineTable, record: Placed, leaf: RecordLeaf) -> None:
        """Count a value of a record."""
        name = leaf.field
        start = table.lines[record.line].start
        self.totals[name] += 1
        place = record.near.get(leaf.pointer)
        if place is not None:
            self.inside[name] += 1
            self.cells[name] += fills_cell(table.text, *place)
            self.forms[name][form_of(table.text[place[0] : place[1]])] += 1
        elif _is_in_column(table.text[start : start + DEFAULT_HEIGHT], leaf.value):
            self.inside[name] += 1
        elif (before := bisect_left(leaf.places, (start, 0))) > 0:
            self.above[name][table.line_at(leaf.places[before - 1][0])] += 1


def derive_model(table: LineTable, placed: Sequence[Placed], shown: Iterable[int]) -> RecordModel:
    """Return what the placed records have in common; `shown` are the lines that questions have had."""
    regions = RegionIndex.of(find_regions(table, [each.line for each in placed]))
    model = RecordModel(_beginnings(table, placed, shown, regions), regions, _height(table, placed))
    counts = _FieldCounts()
    for each in placed:
        for leaf in each.candidate.leaves:
            counts.add(table, each, leaf)
    inside = counts.inside
    model.rates = {name: inside[name] / total for name, total in counts.totals.items()}
    model.forms = _regular_forms(counts.forms, counts.totals)
    model.whole_cells = frozenset(
        name for name, count in counts.cells.items() if count >= max(_LEAST_CELLS, _CELL_SHARE * inside[name])
    )
    model.shared = _shared_fields(placed)
    model.misread = _misread_fields(table, placed, model.height, counts.totals)
    _add_carriers(model, table, placed, counts.above, counts.totals)
    return model


def _is_in_column(text: str, value: Any) -> bool:
    """Whether the words of a value continue below each other in a stretch of lines."""
    words = value.casefold().split() if isinstance(value, str) else []
    return len(words) > 1 and has_phrase(column_text(text), " ".join(words))


def _misread_fields(table: LineTable, placed: Sequence[Placed], height: int, totals: Counter[str]) -> frozenset[str]:
    resembling: Counter[str] = Counter()
    for each in placed:
        start = table.lines[each.line].start
        for leaf in each.candidate.leaves:
            if leaf.pointer not in each.near and isinstance(leaf.value, str):
                resembling[leaf.field] += resembles(leaf.value, table.text[start : start + height])
    return frozenset(name for name, count in resembling.items() if count > _MISREAD_RATE * totals[name])


def _shared_fields(placed: Sequence[Placed]) -> frozenset[frozenset[str]]:
    pairs: Counter[frozenset[str]] = Counter()
    for each in placed:
        fields: dict[tuple[int, int], str] = {}
        for leaf in each.candidate.leaves:
            place = each.near.get(leaf.pointer)
            if place is not None:
                other = fields.setdefault(place, leaf.field)
                if other != leaf.field:
                    pairs[frozenset((other, leaf.field))] += 1
    return frozenset(pair for pair, count in pairs.items() if count > _SHARED_RATE * len(placed))


def _beginnings(
    table: LineTable, placed: Sequence[Placed], shown: Iterable[int], regions: RegionIndex
) -> dict[int, Beginnings]:
    """Return what records begin with, by layout."""
    layouts = {region.layout for region in regions.regions}
    if len(layouts) == 1:
        return {layout: _beginnings_of(table, placed, shown) for layout in layouts}
    placed_in: dict[int, list[Placed]] = {layout: [] for layout in layouts}
    for each in placed:
        placed_in[regions.layout_at(each.line)].append(each)
    shown_in: dict[int, list[int]] = {layout: [] for layout in layouts}
    for line in shown:
        shown_in[regions.layout_at(line)].append(line)
    return {layout: _beginnings_of(table, placed_in[layout], shown_in[layout]) for layout in layouts}


def _beginnings_of(table: LineTable, placed: Sequence[Placed], shown: Iterable[int]) -> Beginnings:
    firsts = {each.line for each in placed}
    inside = _continuing_lines(table, placed)
    others = [table.lines[number].features for number in set(shown) - firsts if table.lines[number].features]
    continuing = [table.lines[number].features for number in inside - firsts if table.lines[number].features]
    return Beginnings([table.lines[number].features for number in firsts], others, continuing)


def _continuing_lines(table: LineTable, placed: Sequence[Placed]) -> set[int]:
    """Return the lines after the first of each record, up to that of its last value."""
    inside: set[int] = set()
    for each in placed:
        if each.near:
            last = table.line_at(max(end for _, end in each.near.values()) - 1)
            inside.update(range(each.line + 1, last + 1))
    return inside


def _height(table: LineTable, placed: Sequence[Placed]) -> int:
    extents = sorted(
        max(end for _, end in each.near.values()) - table.lines[each.line].start for each in placed if each.near
    )
    if not extents:
        return DEFAULT_HEIGHT
    return max(_LEAST_HEIGHT, extents[int(len(extents) * 0.98)] + 40)


def _regular_forms(forms: Mapping[str, Counter[str]], totals: Counter[str]) -> dict[str, tuple[str, ...]]:
    """Return the commonest forms of the fields whose four commonest cover most of their values."""
    regular: dict[str, tuple[str, ...]] = {}
    for name, counts in forms.items():
        common = counts.most_common(_MOST_FORMS)
        count = counts.total()
        if totals[name] > 5 and sum(times for _, times in common) >= _REGULAR_SHARE * count:
            regular[name] = tuple(form for form, times in common if form and times >= _RARE_FORM * count)
    return regular


def _add_carriers(
    model: RecordModel,
    table: LineTable,
    placed: Sequence[Placed],
    above: Mapping[str, Counter[int]],
    totals: Counter[str],
) -> None:
    """Add the lines or cells that hold the values of fields which are usually not in their record's text.

    `above` has how many records have the value of a field in which line above them.
    """
    carriers: set[LineSignature] = set()
    fields: set[str] = set()
    lines: set[int] = set()
    for name, times_by_line in above.items():
        counts: Counter[LineSignature] = Counter()
        for line, count in times_by_line.items():
            counts[table.lines[line].signature] += count
        signature, times = counts.most_common(1)[0]
        is_usual = times >= 0.6 * counts.total() and counts.total() > 0.5 * totals[name]
        if model.is_literal(name) or not is_usual:
            continue
        if _is_first_line(signature, table, placed):
            model.carried_cells[name] = _cell_forms(name, placed)
        else:
            carriers.add(signature)
            fields.add(name)
            lines.update(line for line in times_by_line if table.lines[line].signature == signature)
    model.carriers = frozenset(carriers)
    model.carried_fields = frozenset(fields)
    model.carrier_features = _carrier_features(table, placed, model.carriers, lines)


def _carrier_features(
    table: LineTable, placed: Sequence[Placed], carriers: frozenset[LineSignature], lines: set[int]
) -> Beginnings | None:
    """Return what tells carriers from the lines of records; None where no line of a record has their signature."""
    first = {each.line for each in placed}
    others = [
        table.lines[number].features
        for number in first | _continuing_lines(table, placed)
        if number not in lines and table.lines[number].signature in carriers
    ]
    return Beginnings([table.lines[number].features for number in lines], others, others) if others else None


def _is_first_line(signature: LineSignature, table: LineTable, placed: Sequence[Placed]) -> bool:
    """Whether lines of this signature are first lines of records: most of them hold three or more of its values."""
    values = [
        sum(table.line_at(start) == each.line for start, _ in each.near.values())
        for each in placed
        if table.lines[each.line].signature == signature
    ]
    return bool(values) and sum(count > 2 for count in values) > 0.5 * len(values)


def _cell_forms(name: str, placed: Sequence[Placed]) -> frozenset[str]:
    forms = Counter(form_of(str(leaf.value)) for each in placed for leaf in each.candidate.leaves if leaf.field == name)
    return frozenset(form for form, count in forms.items() if count >= _RARE_FORM * len(placed))

"""Locate each record of an answer in the source, and assign it to the block of text it belongs to."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slipform.addons.evidence.occurrences import Lookup, percentages
from slipform.addons.evidence.source_index import LookupBudget, Occurrence, SourceIndex
from slipform.addons.records.learning import DEFAULT_HEIGHT, Placed, Places, RecordCandidate, RecordLeaf, RecordModel
from slipform.addons.records.lines import COLUMN_END, LineTable, column_text, fills_cell, has_phrase, resembles
from slipform.addons.records.segments import Context, Question
from slipform.schema.document import join_pointer

_MOST_PLACES = 400
"""A value with more places does not show where its record is."""
_MOST_BLOCKS = 40
_LEAST_FIT = 0.5
_LITTLE = 1e-9
_FUZZY_SHARE = 0.05
"""Values that are only nearly in the text count for a field where they are more frequent than this, as after OCR."""


PAGE_HEAD = 600
"""Characters that the foot of a page and the head of the next may have."""


class RecordBlock(NamedTuple):
    """A stretch of the source that holds one record, if the derived model is right."""

    line: int
    start: int
    end: int


def build_blocks(table: LineTable, model: RecordModel, forced: set[int], crossing: set[int]) -> list[RecordBlock]:
    """Return the blocks: from a line that begins a record to the next, to a carrier line, or to a page break.

    `forced` are lines at which a block begins whatever they look like, `crossing` those whose block crosses pages.
    """
    anchors = [
        number
        for number, line in enumerate(table.lines)
        if number in forced or (model.begins(number, line.features) and not model.is_carrier(line))
    ]
    blocks: list[RecordBlock] = []
    for index, anchor in enumerate(anchors):
        following = anchors[index + 1] if index + 1 < len(anchors) else len(table)
        start = table.lines[anchor].start
        stop = table.lines[following].start if following < len(table) else len(table.text)
        end = start + max(2 * model.height, 300)
        if anchor in crossing:
            end += PAGE_HEAD
        end = min(end, _block_end(table, model, range(anchor + 1, following), stop, pages=anchor not in crossing))
        blocks.append(RecordBlock(anchor, start, max(end, table.lines[anchor].end)))
    return blocks


def _block_end(table: LineTable, model: RecordModel, numbers: range, stop: int, *, pages: bool) -> int:
    """Return where a block ends: at a carrier line, at the end of its page if `pages`, else at `stop`."""
    for number in numbers:
        line = table.lines[number]
        is_page_break = pages and table.text[line.end - 1] == "\f"
        if is_page_break or model.is_carrier(line):
            return line.start
    return stop


def next_page_part(table: LineTable, end: int, following: int, height: int) -> tuple[int, int] | None:
    """Return where the record of a block that a page break ends may continue, after the head of the next page.

    `following` is where the next block begins, `height` the size of a record.
    """
    text = table.text[end:following]
    if not text.lstrip("\n").startswith("\f"):
        return None
    body = table.page_body(end + text.index("\f"))
    stop = min(following, end + PAGE_HEAD + height)
    return (body, stop) if table.text[body:stop].strip() else None


class Locator:
    """Finds the values of answers in the texts of their questions."""

    def __init__(self, listed: frozenset[str] = frozenset()) -> None:
        self._listed = listed
        self._literal: Counter[str] = Counter()
        self._fuzzy: Counter[str] = Counter()

    def locate(self, question: Question, values: Iterable[Any]) -> list[RecordCandidate]:
        """Return the records of an answer with the places of their values in the source."""
        index = SourceIndex(question.text)
        records = [list(_leaves(value)) for value in values]
        lookup = Lookup(index, LookupBudget(len(question.text), sum(map(len, records))))
        cache: dict[tuple[type, Any, bool], tuple[Places, Places]] = {}
        candidates: list[RecordCandidate] = []
        for value, leaves in zip(values, records, strict=True):
            placed = tuple(self._leaf(question, index, lookup, leaf, cache) for leaf in leaves)
            candidates.append(RecordCandidate(value, placed, question.number))
        return candidates

    def _leaf(
        self,
        question: Question,
        index: SourceIndex,
        lookup: Lookup,
        leaf: RecordLeaf,
        cache: dict[tuple[type, Any, bool], tuple[Places, Places]],
    ) -> RecordLeaf:
        name = leaf.field
        is_listed = name in self._listed
        key = (type(leaf.value), leaf.value, is_listed)
        places = cache.get(key)
        if places is None:
            occurrences = list(lookup.find(leaf.value, is_listed=is_listed) or ())
            if isinstance(leaf.value, int | float):
                occurrences += percentages(index, leaf.value)
            places = _places(question, occurrences)
            cache[key] = places
        literal, fuzzy = places
        self._literal[name] += bool(literal)
        self._fuzzy[name] += bool(fuzzy and not literal)
        if literal or self._fuzzy[name] <= _FUZZY_SHARE * self._literal[name]:
            return leaf._replace(places=literal)
        return leaf._replace(places=fuzzy)


def _places(question: Question, occurrences: Iterable[Occurrence]) -> tuple[Places, Places]:
    """Return where a value is to the letter or written otherwise, and where it nearly is."""
    literal: set[tuple[int, int]] = set()
    fuzzy: set[tuple[int, int]] = set()
    for occurrence in occurrences:
        place = question.in_source(occurrence.start, occurrence.end)
        if place is None or occurrence.how == "partial":
            continue
        (fuzzy if occurrence.how == "fuzzy" else literal).add(place)
    return sorted(literal), sorted(fuzzy)


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[RecordLeaf]:
    """Yield the values of a record that can be looked up: not booleans, nulls or empty strings."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _leaves(child, (*path, number))
    elif value is not None and value != "" and not isinstance(value, bool):
        field_name = join_pointer(["*" if isinstance(step, int) else step for step in path])
        yield RecordLeaf(field_name, join_pointer(path), value, [])


def tightest_place(table: LineTable, candidate: RecordCandidate) -> Placed | None:
    """Return where a record is by its values alone."""
    return _tightest(table, candidate, set(), -1)


def bootstrap(table: LineTable, candidates: Sequence[RecordCandidate]) -> Iterator[Placed]:
    """Place records by their values alone: each at the tightest group of its values, in the order of the answers."""
    used: set[int] = set()
    latest = -1
    for candidate in candidates:
        placed = _tightest(table, candidate, used, latest)
        if placed is not None:
            used.add(placed.line)
            latest = max(latest, placed.line)
            yield placed


def _tightest(table: LineTable, candidate: RecordCandidate, used: set[int], latest: int) -> Placed | None:
    leaves = [leaf for leaf in candidate.leaves if leaf.places]
    lines = {table.line_at(start) for leaf in leaves for start, _ in leaf.places[:_MOST_PLACES]}
    best: Placed | None = None
    best_score = -math.inf
    for line in sorted(lines - used):
        start, end, _, _ = table.lines[line]
        near = _near_places(leaves, start)
        on_line = sum(place[0] < end for place in near.values())
        if not on_line:
            continue
        extent = max(place[1] for place in near.values()) - start
        penalty = 0.3 if line <= latest else 0.0
        score = len(near) - extent / DEFAULT_HEIGHT * 1.5 + 0.2 * on_line - penalty
        if score > best_score:
            best_score = score
            best = Placed(line, candidate, near)
    least = min(len(leaves), max(2, 0.6 * len(leaves)))
    if best is None or len(best.near) < least:
        return None
    return best


def _near_places(leaves: Sequence[RecordLeaf], start: int) -> dict[str, tuple[int, int]]:
    """Return the first place of each value after an offset, of those that have one near."""
    near: dict[str, tuple[int, int]] = {}
    for leaf in leaves:
        index = bisect_left(leaf.places, (start, 0))
        if index < len(leaf.places) and leaf.places[index][0] < start + DEFAULT_HEIGHT:
            near[leaf.pointer] = leaf.places[index]
    return near


class Option(NamedTuple):
    """A block that a candidate may belong to."""

    fit: float
    block: int
    missing: tuple[str, ...]
    """Fields whose value should be in the block, and is not."""


@dataclass(slots=True)
class Claim:
    """The candidate that a block is assigned to."""

    candidate: int
    fit: float
    missing: tuple[str, ...]
    votes: int = 1
    others: list[Claim] = field(default_factory=list)
    """Further records in the same block, as where a line has several."""


@dataclass(slots=True)
class Placement:
    """Which candidate has which block; what fits nowhere."""

    blocks: list[RecordBlock]
    claims: dict[int, Claim] = field(default_factory=dict)
    """By the line that the block begins at."""
    homeless: list[int] = field(default_factory=list)
    displaced: list[int] = field(default_factory=list)
    """Candidates that lack a value in their best block, which another one has."""
    repeats: int = 0
    contested: list[tuple[int, int]] = field(default_factory=list)
    """Candidates that fit a block wholly which another one has, and the blocks."""


class Placer:
    """Assigns candidates to blocks; it remembers options as long as the blocks stay the same."""

    def __init__(self, table: LineTable) -> None:
        self._table = table
        self._model: RecordModel | None = None
        self._blocks: list[RecordBlock] = []
        self._options: dict[int, tuple[Option, ...]] = {}

    def place(
        self, candidates: Sequence[RecordCandidate], model: RecordModel, context: Context, blocks: list[RecordBlock]
    ) -> Placement:
        """Return the assignment: candidates with one best block first, then equal ones in order to free blocks."""
        if model is not self._model or blocks != self._blocks:
            self._model = model
            self._blocks = blocks
            self._options = {}
        search = _OptionSearch(self._table, model, context, blocks)
        placement = Placement(blocks)
        waiting: list[tuple[int, tuple[Option, ...]]] = []
        for number, candidate in enumerate(candidates):
            if number not in self._options:
                self._options[number] = search.find(candidate)
            options = self._options[number]
            if not options:
                placement.homeless.append(number)
            elif len(options) == 1:
                _claim(placement, candidates, number, options[0])
            else:
                waiting.append((number, options))
        tried: Counter[int] = Counter()
        for number, options in waiting:
            free = _next_free(placement, options, tried)
            _claim(placement, candidates, number, free or _equal_option(placement, candidates, number, options))
        return placement


class _OptionSearch:
    """Finds the blocks that have most of a record's values."""

    def __init__(self, table: LineTable, model: RecordModel, context: Context, blocks: Sequence[RecordBlock]) -> None:
        self._table = table
        self._model = model
        self._context = context
        self._blocks = blocks
        self._starts = [block.start for block in blocks]
        self._results: dict[tuple[int, str], tuple[Option, ...]] = {}

    def find(self, candidate: RecordCandidate) -> tuple[Option, ...]:
        """Return the blocks that fit a record best, in source order; several if they fit equally well.

        Equal records of one answer share one result: a text may have very many of them.
        """
        key = (candidate.question, repr(candidate.value))
        if key not in self._results:
            self._results[key] = self._find(candidate)
        return self._results[key]

    def _find(self, candidate: RecordCandidate) -> tuple[Option, ...]:
        weighed = [leaf for leaf in candidate.leaves if self._model.is_literal(leaf.field)]
        options: list[Option] = []
        votes = self._votes(weighed)
        most = max(votes.values(), default=0)
        for number, (index, count) in enumerate(votes.most_common()):
            is_weak = count < 0.4 * len(weighed) and bool(options)
            if is_weak or (number >= _MOST_BLOCKS and count < most):
                break
            option = self._option(candidate, index, len(weighed))
            if option is not None:
                options.append(option)
        best = max((option.fit for option in options), default=0.0)
        return tuple(sorted((each for each in options if each.fit >= best - _LITTLE), key=lambda each: each.block))

    def _votes(self, leaves: Sequence[RecordLeaf]) -> Counter[int]:
        """Return how many values have a place in each block."""
        votes: Counter[int] = Counter()
        telling = [leaf for leaf in leaves if len(leaf.places) < _MOST_PLACES] or leaves
        for leaf in telling:
            votes.update({bisect_right(self._starts, start) - 1 for start, _ in leaf.places})
        del votes[-1]
        return votes

    def _option(self, candidate: RecordCandidate, index: int, whole: int) -> Option | None:
        block = self._blocks[index]
        missing = missing_leaves(self._table, candidate, self._model, block.start, block.end)
        fields = [leaf.field for leaf in missing if self._model.is_literal(leaf.field)]
        fit = (whole - len(fields)) / whole
        if fit < _LEAST_FIT:
            return None
        fields += _wrongly_carried(self._table, candidate, self._model, self._context, block)
        return Option(fit - 0.01 * len(fields), index, tuple(fields))


def _next_free(placement: Placement, options: tuple[Option, ...], tried: Counter[int]) -> Option | None:
    """Return the first block among equally good ones that is free, or whose record fits less; `tried` counts others."""
    key = id(options)
    while tried[key] < len(options):
        option = options[tried[key]]
        claim = placement.claims.get(placement.blocks[option.block].line)
        if claim is None or claim.fit < option.fit - _LITTLE:
            return option
        tried[key] += 1
    return None


def _equal_option(
    placement: Placement, candidates: Sequence[RecordCandidate], number: int, options: Sequence[Option]
) -> Option:
    """Return a block that has an equal record, else the first."""
    return next((each for each in options if _has_equal(placement, candidates, number, each)), options[0])


def _claim(placement: Placement, candidates: Sequence[RecordCandidate], number: int, option: Option) -> None:
    line = placement.blocks[option.block].line
    claim = placement.claims.get(line)
    if claim is None:
        placement.claims[line] = Claim(number, option.fit, option.missing)
        return
    residents = [claim, *claim.others]
    equal = next((each for each in residents if candidates[each.candidate].value == candidates[number].value), None)
    if equal is not None:
        equal.votes += 1
        placement.repeats += 1
        return
    block = placement.blocks[option.block]
    if not option.missing and not claim.missing:
        placement.contested += [(number, option.block), (claim.candidate, option.block)]
        if all(is_independent(candidates[number], candidates[each.candidate], block) for each in residents):
            claim.others.append(Claim(number, option.fit, option.missing))
            return
    rival = max(residents, key=lambda each: _shared_places(candidates[number], candidates[each.candidate], block))
    size = len(candidates[number].leaves)
    if (option.fit, size) <= (rival.fit, len(candidates[rival.candidate].leaves)):
        if option.missing:
            placement.displaced.append(number)
    else:
        if rival.missing:
            placement.displaced.append(rival.candidate)
        rival.candidate = number
        rival.fit = option.fit
        rival.missing = option.missing
        rival.votes = 1


def is_independent(candidate: RecordCandidate, other: RecordCandidate, block: RecordBlock) -> bool:
    """Whether two records of one block are two records, and not two readings of one: their values have other places."""
    present = sum(bool(places_in(leaf, block)) for leaf in candidate.leaves)
    return present > 0 and 3 * _shared_places(candidate, other, block) <= present


def _shared_places(candidate: RecordCandidate, other: RecordCandidate, block: RecordBlock) -> int:
    """Return how many values of a record have no place in the block that is not part of a value of the other."""
    taken = [place for leaf in other.leaves for place in places_in(leaf, block)]
    shared = 0
    for leaf in candidate.leaves:
        places = places_in(leaf, block)
        shared += bool(places) and all(any(_overlap(place, each) for each in taken) for place in places)
    return shared


def places_in(leaf: RecordLeaf, block: RecordBlock) -> Places:
    """Return the places of a value in a block."""
    first = bisect_left(leaf.places, (block.start, 0))
    return leaf.places[first : bisect_left(leaf.places, (block.end, 0), first)]


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _has_equal(placement: Placement, candidates: Sequence[RecordCandidate], number: int, option: Option) -> bool:
    claim = placement.claims.get(placement.blocks[option.block].line)
    if claim is None:
        return False
    return any(candidates[each.candidate].value == candidates[number].value for each in (claim, *claim.others))


def missing_leaves(
    table: LineTable, candidate: RecordCandidate, model: RecordModel, start: int, end: int
) -> list[RecordLeaf]:
    """Return the values of a record that are not in a stretch of the source.

    A value that is there only inside another one (30 in `M12 x 30`) is missing, and so is one of two equal values that
    are there once, unless this source usually says both at once, and a part of a cell where values are whole cells. One
    whose words continue below each other in a column is there.
    """
    present: list[tuple[RecordLeaf, Places]] = []
    missing: list[RecordLeaf] = []
    columns: str | None = None
    for leaf in candidate.leaves:
        first = bisect_left(leaf.places, (start, 0))
        places = leaf.places[first : bisect_left(leaf.places, (end, 0), first)]
        is_cell = isinstance(leaf.value, str) and leaf.field in model.whole_cells
        if is_cell:
            places = [place for place in places if fills_cell(table.text, *place)]
        if places:
            present.append((leaf, places))
            continue
        if isinstance(leaf.value, str):
            if columns is None:
                columns = column_text(table.text[start:end])
            phrase = " ".join(leaf.value.casefold().split())
            if phrase in columns.split(COLUMN_END) if is_cell else has_phrase(columns, phrase):
                continue
            if leaf.field in model.misread and resembles(leaf.value, table.text[start:end]):
                continue
        missing.append(leaf)
    for number, (leaf, places) in enumerate(present):
        if _is_inside_others(leaf, places, present) or _is_taken(leaf, places, present[:number], model):
            missing.append(leaf)
    return missing


def _is_taken(
    leaf: RecordLeaf, places: Places, earlier: Sequence[tuple[RecordLeaf, Places]], model: RecordModel
) -> bool:
    """Whether other fields with the same value need all the places of a value."""
    if len(places) > len(earlier):
        return False
    equal = sum(
        other.field != leaf.field and others == places and frozenset((other.field, leaf.field)) not in model.shared
        for other, others in earlier
    )
    return equal >= len(places)


def _is_inside_others(leaf: RecordLeaf, places: Places, present: Sequence[tuple[RecordLeaf, Places]]) -> bool:
    """Whether each place of a value is a part of a place of another value."""
    return all(
        any(
            other is not leaf and low <= start and end <= high and high - low > end - start
            for other, others in present
            for low, high in others
        )
        for start, end in places
    )


def _wrongly_carried(
    table: LineTable, candidate: RecordCandidate, model: RecordModel, context: Context, block: RecordBlock
) -> Iterator[str]:
    """Yield the carried fields whose value is not that of the nearest carrier above the block."""
    if not model.carried_cells and not model.carried_fields:
        return
    if model.carried_fields and context.carrier_above(block.line) is not None:
        yield from model.carried_fields - {leaf.field for leaf in candidate.leaves}
    for leaf in candidate.leaves:
        if leaf.field in model.carried_cells:
            place = context.cell_above(leaf.field, block.line)
            if place is None or table.text[place[0] : place[1]] != leaf.value:
                yield leaf.field
        elif leaf.field in model.carried_fields and isinstance(leaf.value, str):
            carrier = context.carrier_above(block.line)
            if carrier is None or leaf.value.casefold() not in carrier.casefold():
                yield leaf.field


def text_besides(table: LineTable, candidate: RecordCandidate, block: RecordBlock) -> str:
    """Return the text of a block without the values of a record."""
    rest = list(table.text[block.start : block.end])
    for leaf in candidate.leaves:
        for start, end in leaf.places[bisect_left(leaf.places, (block.start, 0)) :]:
            if start >= block.end:
                break
            rest[start - block.start : end - block.start] = " " * (min(end, block.end) - start)
    return "".join(rest)


def first_place(candidate: RecordCandidate, start: int, end: int, counts: Callable[[RecordLeaf], bool]) -> int:
    """Return the first offset of the record's last-beginning value in a stretch: where a second record may begin."""
    offsets = []
    for leaf in candidate.leaves:
        if counts(leaf):
            index = bisect_left(leaf.places, (start, 0))
            is_inside = index < len(leaf.places) and leaf.places[index][0] < end
            offsets.append(leaf.places[index][0] if is_inside else start)
    return max(offsets, default=start)


def tight_span(candidate: RecordCandidate, block: RecordBlock, model: RecordModel) -> tuple[int, int]:
    """Return the shortest span of a block with all literal values of a record; the block may have several records."""
    places_by_value = [places_in(leaf, block) for leaf in candidate.leaves if model.is_literal(leaf.field)]
    places_by_value = [places for places in places_by_value if places]
    spans = []
    # From each start, a span reaches to the end of the furthest of the next places of all values.
    for start in sorted({start for places in places_by_value for start, _ in places}):
        next_places = []
        for places in places_by_value:
            index = bisect_left(places, (start, 0))
            if index < len(places):
                next_places.append(places[index])
        if len(next_places) < len(places_by_value):
            break  # a value does not occur any more
        spans.append((start, max(end for _, end in next_places)))
    return min(spans, key=lambda span: span[1] - span[0], default=(block.start, block.end))


def record_span(table: LineTable, candidate: RecordCandidate, block: RecordBlock) -> tuple[int, int]:
    """Return where a record is: from the first character of its block to the end of its last value's line."""
    text = table.text
    start = block.start
    while start < block.end and text[start].isspace():
        start += 1
    ends = []
    for leaf in candidate.leaves:
        index = bisect_left(leaf.places, (block.start, 0))
        if index < len(leaf.places) and leaf.places[index][0] < block.end:
            ends.append(leaf.places[index][1])
        elif isinstance(leaf.value, str) and " " in leaf.value:  # its words may continue below each other
            ends.append(start + len(text[start : block.end].rstrip()))
    last = table.lines[table.line_at(max(ends, default=block.end) - 1)]
    end = min(last.end, block.end)
    return start, start + len(text[start:end].rstrip())

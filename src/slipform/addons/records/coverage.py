"""Find the stretches of the source that look like a record and have none: suspects while asking, gaps at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from slipform.addons.records.learning import RecordCandidate, RecordModel
from slipform.addons.records.lines import LineTable, form_of
from slipform.addons.records.placing import Placement, RecordBlock, next_page_part, text_besides

SuspectReason: TypeAlias = Literal["empty", "misfit", "crowded", "outside", "invalid"]
_SAMPLE = 200
_LEAST_USUAL = 0.5
_ENOUGH_VOTES = 2
"""Equal answers after which a value that is left out counts as not there."""
_UNREACHABLE = 1_000_000
_RELIABLE_SHARE = 0.7
_FEW_UNUSUAL = 3
_UNUSUAL_SHARE = 0.02
_MOST_UNUSUAL_SHOWN = 3


class Suspect(NamedTuple):
    """A stretch that is to be shown again."""

    line: int
    start: int
    end: int
    reason: SuspectReason


class ShownLines(NamedTuple):
    """How often lines were shown, and how often they may be where they only may hold a record."""

    times: Counter[int]
    most: int

    def may_guess(self, line: int) -> bool:
        """Whether a line was not yet shown too often for a guess."""
        return self.times[line] < self.most


class FormCounter:
    """Counts the values of regular form in stretches of the source."""

    def __init__(self, table: LineTable, model: RecordModel, reliable_share: float = _RELIABLE_SHARE) -> None:
        self.reliable_share: Final = reliable_share
        """Where values have no regular form, an empty block is suspect if this share of all blocks has its record."""
        self._table = table
        self._patterns = {
            name: _pattern(forms) for name, forms in model.forms.items() if forms and model.is_literal(name)
        }
        self._counts: dict[tuple[int, int], dict[str, int]] = {}
        self._distinctive = {name for name in self._patterns if any("9" in form for form in model.forms[name])}
        self._usual_counts: dict[str, float] = {}
        """How many values of each regular field's form a record usually has."""

    @property
    def is_empty(self) -> bool:
        """Whether no field has values of a regular form."""
        return not self._patterns

    def counts(self, start: int, end: int) -> dict[str, int]:
        """Return how many values of each regular field's form a stretch has."""
        counts = self._counts.get((start, end))
        if counts is None:
            form = f" {form_of(self._table.text[start:end])} "
            counts = {name: len(pattern.findall(form)) for name, pattern in self._patterns.items()}
            self._counts[start, end] = counts
        return counts

    def likeness(self, *stretches: tuple[int, int]) -> int:
        """Return how many of the regular fields have a value of their form in one of these stretches."""
        counts = [self.counts(*stretch) for stretch in stretches]
        return sum(any(count[name] for count in counts) for name in self._patterns)

    def has_form(self, name: str, text: str) -> bool:
        """Whether a text has a value of a field's form, where that form is distinctive."""
        return name in self._distinctive and bool(self._patterns[name].search(f" {form_of(text)} "))

    def optional_fields(self, candidate: RecordCandidate) -> set[str]:
        """Return the fields with distinctive forms that a record has no value for."""
        return self._distinctive - {leaf.field for leaf in candidate.leaves}

    def measure(self, blocks: Sequence[tuple[RecordBlock, int]]) -> None:
        """Set the usual counts of a record to the medians over these blocks, each with the number of its records."""
        sample = blocks[:: max(1, len(blocks) // _SAMPLE)]
        self._usual_counts = {}
        for name in self._patterns:
            counts = sorted(self.counts(block.start, block.end)[name] / records for block, records in sample)
            self._usual_counts[name] = counts[len(counts) // 2] if counts else 0.0

    def is_crowded(self, start: int, end: int, records: int = 1) -> bool:
        """Whether most distinctive forms occur twice as often as usual: there are values of further records."""
        counts = self.counts(start, end)
        usual = {name: count for name, count in self._usual_counts.items() if count >= _LEAST_USUAL}
        distinctive = {name: count for name, count in usual.items() if count <= 2 and name in self._distinctive}
        compared = distinctive or usual
        if not compared:
            return False
        doubled = sum(counts[name] >= (records + 1) * count for name, count in compared.items())
        return doubled >= 0.6 * len(compared)


def _pattern(forms: Sequence[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)")


def least_likeness(placement: Placement, forms: FormCounter) -> int | None:
    """Return the likeness that 99 % of the blocks with a fitting record have; None where blocks cannot be compared."""
    fitting = [
        (block, 1 + len(claim.others))
        for block in placement.blocks
        if (claim := placement.claims.get(block.line)) is not None and not claim.missing
    ]
    if not fitting:
        return None
    if forms.is_empty:
        return 0 if len(placement.claims) >= forms.reliable_share * len(placement.blocks) else None
    forms.measure(fitting)
    counts = sorted(forms.likeness((block.start, block.end)) for block, _ in fitting)
    return counts[len(counts) // 100] or max(1, counts[len(counts) // 20])


def find_suspects(
    table: LineTable,
    candidates: Sequence[RecordCandidate],
    placement: Placement,
    forms: FormCounter,
    shown: ShownLines,
    height: int,
) -> list[Suspect]:
    """Return the stretches to show again.

    `height` is the size of a record: one that a page break cuts is looked for on both pages.
    """
    least = least_likeness(placement, forms)
    if least is None:
        least = _UNREACHABLE
    suspects = _unusual_blocks(placement, forms, least, shown)
    starts = [*(block.start for block in placement.blocks[1:]), len(table.text)]
    for block, following in zip(placement.blocks, starts, strict=False):
        claim = placement.claims.get(block.line)
        reason = _block_reason(block, placement, forms, least, shown)
        end = block.end
        if claim is None and reason is None and (part := next_page_part(table, end, following, height)):
            end = part[1]
            reason = "empty" if forms.likeness((block.start, block.end), part) >= least else None
        if reason is None and claim is not None and claim.votes < _ENOUGH_VOTES:
            reason = _omission(table, candidates[claim.candidate], block, forms)
        if reason is not None:
            suspects.append(Suspect(block.line, block.start, end, reason))
    for start, end in between(table.text, placement.blocks):
        line = table.line_at(start)
        if not forms.is_empty and forms.likeness((start, end)) >= least and shown.may_guess(line):
            suspects.append(Suspect(line, start, end, "outside"))
    return sorted(suspects)


def _unusual_blocks(placement: Placement, forms: FormCounter, least: int, shown: ShownLines) -> list[Suspect]:
    """Return the blocks without a record that lack one form more than nearly all records, where they are few.

    One value may be written as in no other record; the block is a gap only if it was not shown often enough.
    """
    unusual = [
        block
        for block in placement.blocks
        if block.line not in placement.claims and least > 1 and forms.likeness((block.start, block.end)) == least - 1
    ]
    if len(unusual) > max(_FEW_UNUSUAL, _UNUSUAL_SHARE * len(placement.blocks)):
        return []
    return [
        Suspect(block.line, block.start, block.end, "empty")
        for block in unusual
        if shown.times[block.line] < _MOST_UNUSUAL_SHOWN
    ]


def _block_reason(
    block: RecordBlock, placement: Placement, forms: FormCounter, least: int, shown: ShownLines
) -> SuspectReason | None:
    claim = placement.claims.get(block.line)
    if claim is None:
        return "empty" if forms.likeness((block.start, block.end)) >= least else None
    if claim.missing:
        return "misfit"
    if shown.may_guess(block.line) and forms.is_crowded(block.start, block.end, 1 + len(claim.others)):
        return "crowded"
    return None


def _omission(
    table: LineTable, candidate: RecordCandidate, block: RecordBlock, forms: FormCounter
) -> SuspectReason | None:
    """Return `misfit` for a record without a value for a field where the block has one of its form left."""
    optional = forms.optional_fields(candidate)
    if not optional:
        return None
    rest = text_besides(table, candidate, block)
    return "misfit" if any(forms.has_form(name, rest) for name in optional) else None


def between(text: str, blocks: Sequence[RecordBlock]) -> Iterator[tuple[int, int]]:
    """Yield the stretches that belong to no block, from their first character that is not blank."""
    at = 0
    for start, end in [*((block.start, block.end) for block in blocks), (len(text), len(text))]:
        stretch = text[at:start]
        if stretch.strip():
            yield at + len(stretch) - len(stretch.lstrip()), start
        at = max(at, end)

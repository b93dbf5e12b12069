"""Divide a source into regions with records of one layout each: a table, then a list, then an appendix."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from slipform.addons.records.lines import HEADING, LineSignature, LineTable

_LEAST_RECORDS: Final = 5
"""Records in a row that make a region."""
_MIXED_SHARE: Final = 0.1
"""Signatures that follow each other more often than in this share of their lines belong to one layout."""


class Region(NamedTuple):
    """Lines whose records have one layout."""

    start: int
    stop: int
    layout: int


def find_regions(table: LineTable, firsts: Sequence[int]) -> list[Region]:
    r"""Return the regions of a source, from the first lines of its records; one where there is one layout.

    Two forms of first lines are one layout if they alternate, and two if one only follows the other.

    >>> table = LineTable("a 1\n" * 9 + "* b\n" * 9)
    >>> [(region.start, region.stop) for region in find_regions(table, range(18))]
    [(0, 9), (9, 18)]
    """
    lines = sorted(firsts)
    signatures = [table.lines[line].signature for line in lines]
    layout_of = _layouts(signatures)
    runs: list[list[int]] = []
    for number, signature in enumerate(signatures):
        layout = layout_of[signature]
        if runs and layout == runs[-1][0]:
            runs[-1].append(lines[number])
        else:
            runs.append([layout, lines[number]])
    long_runs = _joined([run for run in runs if len(run) > _LEAST_RECORDS])
    if len(long_runs) < 2:
        return [Region(0, len(table), 0)]
    starts = [0, *(_boundary(table, before[-1], after[1]) for before, after in pairwise(long_runs)), len(table)]
    return [Region(start, stop, run[0]) for (start, stop), run in zip(pairwise(starts), long_runs, strict=True)]


def _layouts(signatures: Sequence[LineSignature]) -> dict[LineSignature, int]:
    """Return the number of each signature's layout."""
    counts = Counter(signatures)
    following = Counter(frozenset(pair) for pair in pairwise(signatures) if pair[0] != pair[1])
    layout_of = {signature: number for number, signature in enumerate(counts)}
    for pair, times in following.items():
        one, other = pair
        if times > max(2, _MIXED_SHARE * min(counts[one], counts[other])):
            joined = {layout_of[one], layout_of[other]}
            layout_of = {name: min(joined) if each in joined else each for name, each in layout_of.items()}
    return layout_of


def _joined(runs: Sequence[list[int]]) -> list[list[int]]:
    """Join neighbours of one layout: what lay between them was too short for a region."""
    joined: list[list[int]] = []
    for run in runs:
        if joined and joined[-1][0] == run[0]:
            joined[-1] += run[1:]
        else:
            joined.append(list(run))
    return joined


def _boundary(table: LineTable, last: int, first: int) -> int:
    """Return where a region begins between the last record of one and the first of the next."""
    for line in range(first, last, -1):
        if HEADING.match(table.lines[line].text):
            return line
    for line in range(first, last, -1):
        if table.lines[line - 1].is_blank:
            return line
    return first


class RegionIndex(NamedTuple):
    """Finds the region of a line."""

    regions: Sequence[Region]
    starts: Sequence[int]

    @classmethod
    def of(cls, regions: Sequence[Region]) -> RegionIndex:
        """Return the index of these regions."""
        return cls(regions, [region.start for region in regions])

    def layout_at(self, line: int) -> int:
        """Return the number of the layout at a line."""
        return self.regions[max(0, bisect_right(self.starts, line) - 1)].layout

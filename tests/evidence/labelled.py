"""Read the labelled sets for grounding, and score an aligner on them.

A case is a name, a value (`= JSON`), a schema or none (`~ JSON`) and a source in which `⟦/pointer|text⟧` marks where
the value at that pointer stands. Several marks of one pointer: any of them is right. `⟦?/pointer|…⟧`: right, but may be
left out. A leaf without a mark is not in the source. Right is a span that covers half of the union with a mark.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipform.schema.document import join_pointer

HERE = Path(__file__).parent
_MARK = re.compile(r"⟦(\??)([^|⟦]*)\|([^⟧]*)⟧")


@dataclass(frozen=True)
class Case:
    """A value, its source, and where each of its leaves stands there."""

    name: str
    value: Any
    schema: Mapping[str, Any] | None
    text: str
    spans: Mapping[str, list[tuple[int, int]]]
    optional: frozenset[str]


def cases(kind: str) -> list[Case]:
    """All cases of one of the files `grounding_*.txt`; `test_grounding.py` says how each was made."""
    text = (HERE / f"grounding_{kind}.txt").read_text(encoding="utf-8")
    return [_case(block) for block in text.removesuffix("\n").split("\n---\n")]


def _case(block: str) -> Case:
    name, value, *lines = block.split("\n")
    schema = json.loads(lines.pop(0)[2:]) if lines[0].startswith("~ ") else None
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    optional = set()
    source, at = "", 0
    marked = "\n".join(lines)
    for mark in _MARK.finditer(marked):
        source += marked[at : mark.start()]
        spans[mark[2]].append((len(source), len(source) + len(mark[3])))
        if mark[1]:
            optional.add(mark[2])
        source += mark[3]
        at = mark.end()
    return Case(name[2:], json.loads(value[2:]), schema, source + marked[at:], spans, frozenset(optional))


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """The pointers of all scalars of a value."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from leaves(each, (*path, number))
    else:
        yield join_pointer(path)


@dataclass
class Score:
    """What an aligner got right, over the leaves of all cases."""

    right: int = 0
    wrong: int = 0
    missed: int = 0
    false_spans: int = 0
    absent: int = 0
    failed: tuple[str, ...] = ()

    @property
    def precision(self) -> float:
        """The share of spans that are right."""
        return self.right / max(1, self.right + self.wrong + self.false_spans)

    @property
    def recall(self) -> float:
        """The share of evidence that was found."""
        return self.right / max(1, self.right + self.wrong + self.missed)


def score(kind: str, align: Callable[[Any, str, Mapping[str, Any] | None], Mapping[str, Any]]) -> Score:
    """How an aligner does; it gives spans (their first two fields) by pointer, the first one is what it says."""
    total = Score()
    for case in cases(kind):
        found = align(case.value, case.text, case.schema)
        for pointer in leaves(case.value):
            said, wanted = list(found.get(pointer, ())), case.spans.get(pointer, [])
            if not wanted:
                total.absent += 1
                if said:
                    total.false_spans += 1
                    total.failed += (f"{case.name}: {pointer} → {case.text[said[0][0] : said[0][1]]!r}, is not there",)
            elif not said:
                if pointer not in case.optional:
                    total.missed += 1
                    total.failed += (f"{case.name}: {pointer} not found",)
            elif any(_overlap(said[0], span) >= (0.3 if pointer in case.optional else 0.5) for span in wanted):
                total.right += 1
            else:
                total.wrong += 1
                total.failed += (f"{case.name}: {pointer} → {case.text[said[0][0] : said[0][1]]!r} at {said[0][0]}",)
    return total


def _overlap(one: tuple[int, ...], other: tuple[int, int]) -> float:
    shared = min(one[1], other[1]) - max(one[0], other[0])
    return max(0, shared) / (max(one[1], other[1]) - min(one[0], other[0]))

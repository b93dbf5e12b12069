"""Place records by the lines that the model names: for records whose values are not in the text as they are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slipform.addons.records.learning import Placed, RecordCandidate, RecordModel
from slipform.addons.records.lines import LineTable
from slipform.addons.records.placing import Claim, Locator, Placement, RecordBlock, build_blocks
from slipform.addons.records.segments import LineRange, Question

LINES = "lines"
"""The key of a record's first and last line in an answer."""
RECORD = "record"
RELIABLE_SHARE = 0.4
"""The share of blocks that have a record, from which the others are suspects: lines say where answers ended early."""
UNKNOWN_LINES = "its lines are not in the text"


def wrapped_item(item: Any) -> dict[str, Any]:
    """Return the schema of a record with its lines, as models are asked for it."""
    lines = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    properties = {LINES: lines, RECORD: item}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def locate_by_lines(
    locator: Locator, question: Question, values: Sequence[Any]
) -> tuple[list[RecordCandidate], list[RecordCandidate]]:
    """Return the records of an answer with their lines, and those whose lines were not shown."""
    candidates = locator.locate(question, [value[RECORD] for value in values])
    placed: list[RecordCandidate] = []
    rejected: list[RecordCandidate] = []
    for candidate, value in zip(candidates, values, strict=True):
        candidate.lines = _shown_lines(question, value[LINES])
        (rejected if candidate.lines is None else placed).append(candidate)
    return placed, rejected


def _shown_lines(question: Question, numbers: Sequence[int]) -> LineRange | None:
    """Return the lines with these numbers, which begin at 1; None where they are not in the question."""
    if not numbers:
        return None
    first = min(numbers) - 1
    stop = max(numbers)
    is_shown = any(low <= first and stop <= high for low, high in question.ranges)
    return (first, stop) if is_shown else None


def placed_by_lines(table: LineTable, candidates: Sequence[RecordCandidate]) -> Iterator[Placed]:
    """Yield the records at their lines, each with the places of those of its values that are in them."""
    for candidate in candidates:
        if candidate.lines is not None:
            start, end = lines_span(table, candidate.lines)
            near = {
                leaf.pointer: place for leaf in candidate.leaves for place in leaf.places[:1] if start <= place[0] < end
            }
            yield Placed(candidate.lines[0], candidate, {**near, "": (start, end)})


def lines_span(table: LineTable, lines: LineRange) -> tuple[int, int]:
    """Return where lines begin and end, without blanks around them."""
    start = table.lines[lines[0]].start
    text = table.text[start : table.lines[lines[1] - 1].end]
    return start + len(text) - len(text.lstrip()), start + len(text.rstrip())


def placement_by_lines(table: LineTable, candidates: Sequence[RecordCandidate], model: RecordModel) -> Placement:
    """Return which record has which lines; what begins within the lines of another answer's record is that record.

    Further blocks are where a line begins like those of records, and no record has it.
    """
    claims: dict[int, Claim] = {}
    owner: dict[int, int] = {}
    stops: dict[int, int] = {}
    for number, candidate in enumerate(candidates):
        first, stop = candidate.lines or (0, 0)
        if first not in owner:
            claims[first] = Claim(number, 1.0, ())
            stops[first] = stop
            owner.update(dict.fromkeys(range(first, stop), number))
        elif first in claims:
            _add_resident(claims[first], number, candidates)
    blocks: list[RecordBlock] = []
    for block in build_blocks(table, model, set(claims), set()):
        if block.line in claims:
            blocks.append(block._replace(end=table.lines[stops[block.line] - 1].end))
        elif block.line not in owner:
            blocks.append(block)
    return Placement(blocks, claims)


def _add_resident(claim: Claim, number: int, candidates: Sequence[RecordCandidate]) -> None:
    """Count an equal record, and add another one of the same answer: a line may have several."""
    residents = [claim, *claim.others]
    equal = next((each for each in residents if candidates[each.candidate].value == candidates[number].value), None)
    if equal is not None:
        equal.votes += 1
    elif candidates[claim.candidate].question == candidates[number].question:
        claim.others.append(Claim(number, 1.0, ()))


def unwrapped(value: Any) -> tuple[Any, Any]:
    """Return the lines and the record of an item of an answer; None for lines that are none."""
    if not isinstance(value, Mapping) or RECORD not in value:
        return None, value
    lines = value.get(LINES)
    is_valid = isinstance(lines, list) and lines and all(type(each) is int for each in lines)
    return (lines if is_valid else None), value[RECORD]

"""Choose among the JSON candidates of a text: by the hint if there is one, else the first.

A module of its own because it loads the repair, whose regular expressions take longer to compile than programs run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slipform.errors import JsonEnforcementError
from slipform.text.candidates import RepairedCandidate, find_candidates
from slipform.text.loads import OPENING_BRACKET, Hint, Loaded, LoadWarning, accepts, load, type_of
from slipform.text.repair import NanPolicy, Repaired, not_json, repair_at
from slipform.text.repair.machine import CannotRepair

_ARGUMENTS: Final = ("arguments", "parameters", "input", "args")


def search(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    """Load the JSON in a text that is not valid JSON as a whole; raises `JsonEnforcementError` without one."""
    candidates = find_candidates(text, nan=nan, include_cited=hint is not None)
    if not candidates:
        raise not_json(text, _failure_reason(text, nan))
    if hint is None:
        return _loaded(text, candidates[0], candidates[0].repaired, len(candidates))
    return _choose(text, candidates, hint, nan)


def _failure_reason(text: str, nan: NanPolicy) -> CannotRepair:
    first = OPENING_BRACKET.search(text)
    if first is None:
        return CannotRepair(0, "there is no bracket that could open it")
    try:
        repair_at(text, first.start(), len(text), nan=nan)
    except CannotRepair as error:
        return error
    return CannotRepair(first.start(), "what looks like it is part of a sentence or of a closed reasoning block")


def _choose(text: str, candidates: list[RepairedCandidate], hint: Hint, nan: NanPolicy) -> Loaded:
    """Return the first valid candidate, else the first of an accepted type, else the largest."""
    typed: Loaded | None = None
    largest: Loaded | None = None
    for candidate in candidates:
        for loaded in _interpretations(text, candidate, hint, nan, len(candidates)):
            if hint.violations(loaded.value) == 0:
                return loaded
            if candidate.kind == "cited":
                continue
            if typed is None and accepts(hint, type_of(loaded.value)):
                typed = loaded
            if largest is None or loaded.end - loaded.start > largest.end - largest.start:
                largest = loaded
    best = typed or largest
    if best is None:
        raise not_json(text, _failure_reason(text, nan))
    return best


def _interpretations(
    text: str, candidate: RepairedCandidate, hint: Hint, nan: NanPolicy, count: int
) -> Iterator[Loaded]:
    repaired = candidate.repaired
    if repaired.edits and hint.violations(repaired.value):
        repaired = repair_at(text, repaired.start, repaired.end, nan=nan, check=hint.violations)
    yield _loaded(text, candidate, repaired, count)
    for start, end in repaired.parts:
        try:
            part = repair_at(text, start, end, nan=nan, check=hint.violations, many=False)
        except CannotRepair:
            continue
        yield _loaded(text, candidate, part, count)
    value = repaired.value
    if isinstance(value, dict) and ("name" in value or "function" in value or "type" in value):
        for name in _ARGUMENTS:
            inner = value.get(name)
            if isinstance(inner, str):
                try:
                    inner = load(inner, hint, nan=nan).value
                except JsonEnforcementError:
                    continue
            if isinstance(inner, dict | list):
                note = LoadWarning("tool_call", repaired.start, f'The value is the "{name}" of a tool call.')
                yield _loaded(text, candidate, repaired, count)._replace(value=inner, notes=(note,))


def _loaded(text: str, candidate: RepairedCandidate, repaired: Repaired, count: int) -> Loaded:
    return Loaded(
        repaired.value,
        repaired.start,
        repaired.end,
        repaired.edits,
        _notes(text, candidate, repaired, count),
        repaired.text,
    )


def _notes(text: str, candidate: RepairedCandidate, repaired: Repaired, count: int) -> tuple[LoadWarning, ...]:
    notes: list[LoadWarning] = []
    start = repaired.start
    if count > 1:
        notes.append(
            LoadWarning("several_candidates", start, f"The text holds {count} pieces of JSON; this is one of them.")
        )
    if text[repaired.end : repaired.end + 20].lstrip()[:1] in (",", ":", "}", "]"):
        notes.append(
            LoadWarning("ignored_text", repaired.end, "The text goes on after the JSON as if it were not over.")
        )
    if candidate.kind == "thought":
        notes.append(LoadWarning("thought", start, "The JSON stands in a reasoning block that was never closed."))
    if candidate.kind in ("weak", "cited"):
        notes.append(LoadWarning("weak", start, "The JSON stands in a sentence and may be part of it."))
    if repaired.hinted:
        notes.append(
            LoadWarning("schema_hint", start, "The text can be read in several ways; the schema settled which.")
        )
    return tuple(notes)

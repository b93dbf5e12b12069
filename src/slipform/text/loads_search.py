"""Choose among the JSON candidates of a text: by the hint if there is one, then by corrections, else the first.

A separate module because it loads the repair, whose regular expressions take longer to compile than programs run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from slipform.errors import JsonEnforcementError
from slipform.text.candidates import Candidates, GivenUp, RepairedCandidate, find_candidates
from slipform.text.loads import (
    OPENING_BRACKET,
    UNFINISHED_REASONING,
    Hint,
    Loaded,
    LoadWarning,
    accepts,
    load,
    type_of,
)
from slipform.text.loads_scalar import load_valid_scalar
from slipform.text.reasoning import call_arguments
from slipform.text.repair import NanPolicy, Repaired, RepairSource, not_json, repair_at
from slipform.text.repair.continuation import REASON as CONTINUED
from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.tokens import RepairEdit, apply_edits

_CLASSES: Final = {"bare": 1, "sequence": 1, "weak": 2, "struck": 3, "cited": 3}
_IN_PROSE: Final = frozenset({"bare", "sequence", "weak", "cited"})
_COMMAS: Final = frozenset({"missing_comma", "guessed_comma"})
_MAX_PATCHED: Final = 20
"""The most candidates of a text that are compared after patches; later ones are compared without."""
_MAX_EXPLAINED: Final = 200
"""The most candidates whose violations are counted and whose other readings are tried."""
_MAX_CUE: Final = 120
"""Characters before a candidate that are searched for a heading, or for words that exclude it."""
_UNCOUNTED: Final = 1_000_000
"""The number of violations of a candidate whose violations are not counted."""
CORRECTION: Final = re.compile(
    r"\b(?:correct(?:ed|ion)|rectifi\w+|instead(?! of)|final (?:answer|result|version|output|response|json)|actually"
    r"|revised|updated|fixed|sorry|apolog\w+|my mistake|(?:an|the) (?:error|mistake)|on reflection|second thought"
    r"|(?:scratch|strike|ignore|disregard|forget) (?:that|this|the (?:above|previous|first))|better|improved|wait|oops"
    r"|(?:the )?right (?:answer|one|version|value)|(?:double|re)-?check\w*|reconsider\w*|recalculat\w*"
    r"|should (?:be|read|have been)"
    r"|(?:is|was|'s) (?:wrong|incorrect|not right|not correct)|let me (?:fix|correct|redo|restart|try again)"
    r"|filled[- ]in|korrigiert\w*|korrektur\w*|berichtigt\w*|stattdessen|endgültig\w*|richtig (?:ist|wäre|lautet)"
    r"|corrig\w+|plutôt|réponse finale|le bon (?:résultat|json)"
    r"|corregid\w+|correcci[oó]n|respuesta final|en su lugar|corrett\w+|risposta finale|resposta final"
    r"|исправлен\w*|итоговый)"
    r"|\n[ \t#*_>-]*edit(?: \d+)?[*_]*[:：]|更正|修正|改正|订正|訂正|最终|最終|수정|정정",
    re.IGNORECASE,
)
"""Text between two candidates: the second replaces the first."""
_OPENING_FENCE: Final = r"(?:```+[\w ]*+|~~~+[\w ]*+)?+\s*+\Z"
LABEL: Final = re.compile(
    r"(?:\A|[\n.!?)#*:]|[,;] )[ \t#*_>(→⇒=-]*(final\w*|(?:(?:so|thus|hence|therefore),? )?(?:my|the) answer is"
    r"|answer|result|output|response|solution|after|new(?: version)?|now|edit(?: \d+)?|update"
    r"|(?:v|version|revision|attempt|take|try) ?\d+)(?: \(final\))?[ \t*_)]*[:：=]?[ \t*_]*\s*+" + _OPENING_FENCE,
    re.IGNORECASE,
)
"""Text directly before a candidate: a heading that marks the answer, unless the previous candidate has the same."""
_NOUN: Final = r"(?:answer|version|value|draft|attempt|try|guess|result|output|json|one|thought)"
REPLACED: Final = re.compile(
    r"(?:\b(?:instead of|rather than|in place of|not|replac(?:es?|ed|ing)|supersed(?:es?|ed|ing)"
    r"|(?:first|initially|originally|previously|earlier) (?:thought|wrote|said|had|answered|gave|got)"
    r"|anstatt|statt|au lieu de|en lugar de|invece di)(?: (?:it|of|that|was|is))?"
    r"|(?:\A|[\n.!?(])[ \t#*_>(-]*(?:(?:the|my|an?) )?"
    rf"(?:(?:before|draft|old|original|previous|earlier|initial|wrong|incorrect)(?: {_NOUN})?|first {_NOUN})"
    r"[ \t]*(?:[:：=]|\*\*|\n|is\b|was\b))"
    r"[ \t*_:：=\"'`(-]{0,8}+\s*+" + _OPENING_FENCE,
    re.IGNORECASE,
)
"""Text directly before a candidate: it is replaced by another one."""
REJECTED: Final = re.compile(
    r"[\s`*~,.;)\"']{0,8}(?:(?:that|this|it|which|but that) )?(?:(?:is|was|'s|would be) (?:wrong|incorrect|not right"
    r"|not correct|my first|the first|the old|a draft|only a draft|outdated|no longer)|would not (?:do|work|fit)"
    r"|as I (?:first|initially|originally)|(?:is|was) what I (?:first|initially|originally))",
    re.IGNORECASE,
)
"""Text directly after a candidate: it is not the answer."""
EXAMPLE: Final = re.compile(
    r"(?:\b(?:examples?|e\.g\.|for instance|such as|sample|format|template|beispiel|exemple|ejemplo|esempio|exemplo)"
    r"|例|示例)[^\n{}\[\]]{0,30}\Z",
    re.IGNORECASE,
)
"""Text directly before a candidate: it only shows the format of an answer."""


def search(text: str, hint: Hint | None, nan: NanPolicy) -> Loaded:
    """Load the JSON in a text that is not valid JSON as a whole; raises `JsonEnforcementError` without one."""
    # With a hint, NaN may become null if the schema allows that.
    matches = find_candidates(text, nan=nan if hint is None else "null", include_cited=hint is not None)
    if not matches.found:
        if not matches.given_up and (scalar := load_valid_scalar(text, hint)) is not None:
            return scalar
        raise not_json(text, matches.given_up[0].error if matches.given_up else _failure_reason(matches.source, nan))
    first = matches.found[0]
    if first.kind == "thought":
        raise not_json(text, CannotRepair(first.repaired.start, UNFINISHED_REASONING))
    if hint is None:
        if len(matches.found) == 1 and not (matches.given_up or first.repaired.parts) and matches.skipped < 0:
            return _loaded(first.repaired, _notes(first, first.repaired))
        return _load_without_hint(text, matches, nan)
    return _choose(text, matches, hint, nan)


def _load_without_hint(text: str, matches: Candidates, nan: NanPolicy) -> Loaded:
    """Return the candidate after a correction, else the first; for values in a row one, unless they are a list."""
    candidates = matches.found
    given_up = matches.given_up
    cues = _corrections(text, candidates)
    best = _after_correction(candidates, cues)
    repaired = best.repaired
    start, end, cue = _piece(best, cues)
    count = _count(candidates) + len(given_up)
    is_doubt = _has_equal(best, cue, candidates, cues)
    if given_up and best.kind in _IN_PROSE and given_up[0].start < repaired.start:
        raise not_json(text, given_up[0].error)
    if repaired.parts and best.kind != "lines":
        if not _is_joined(repaired):
            count += len(repaired.parts) - 1
            is_doubt = is_doubt or cue <= 0
            repaired = repair_at(matches.source, start, end, nan=nan, many=False)
        elif best.kind in _IN_PROSE and (text[: repaired.start] + text[repaired.end :]).strip():
            raise not_json(text, CannotRepair(repaired.parts[1][0], CONTINUED))
    several = ""
    if count > 1:
        which = "follows a correction" if cue > 0 else "is the first"
        several = f"The text holds {count} pieces of JSON; this one {which}."
    if not several and 0 <= matches.skipped < repaired.start:
        several = "The text holds a list of numbers, or an empty value, before this JSON."
    notes = _notes(best, repaired)
    if several:
        notes = (LoadWarning("several_candidates", repaired.start, several, is_doubt), *notes)
    return _loaded(repaired, notes + _unreadable(given_up) if given_up else notes)


def _after_correction(candidates: list[RepairedCandidate], cues: dict[int, int]) -> RepairedCandidate:
    """Return the candidate after the most corrections, the first of equals; weak ones only if all are weak."""
    if len(candidates) == 1:
        return candidates[0]
    place = max(_CLASSES["bare"], _class(candidates[0]))
    return min([each for each in candidates if _class(each) <= place], key=lambda each: -_piece(each, cues)[2])


def _piece(candidate: RepairedCandidate, cues: dict[int, int]) -> tuple[int, int, int]:
    """Return the span of the piece of a candidate after the most corrections, and their number."""
    if not cues:
        start, end, _ = next(_pieces([candidate]))
        return start, end, 0
    pieces = [(start, end, cues.get(start, 0)) for start, end, _ in _pieces([candidate])]
    return min(pieces, key=lambda each: -each[2])


def _has_equal(best: RepairedCandidate, cue: int, candidates: list[RepairedCandidate], cues: dict[int, int]) -> bool:
    """Return whether a candidate has another value, and neither its position nor the text around it decides."""
    return any(
        each.repaired.value != best.repaired.value and _class(each) == _class(best) and _piece(each, cues)[2] == cue
        for each in candidates
    )


def _class(candidate: RepairedCandidate) -> int:
    """Return the rank of a candidate by its kind, 0 being best."""
    return _CLASSES.get(candidate.kind, 0)


def _is_joined(repaired: Repaired) -> bool:
    """Return whether a comma separates values in a row: then only the brackets of a list are missing."""
    inserted = {position for kind, position, _, _ in repaired.edits if kind in _COMMAS}
    return not all(start in inserted for start, _ in repaired.parts[1:])


def _count(candidates: list[RepairedCandidate]) -> int:
    """Return how many candidates there are beside brackets of prose."""
    if len(candidates) == 1:
        return 1
    strong = sum(each.kind not in ("weak", "cited") for each in candidates)
    return strong or len(candidates)


def _failure_reason(source: RepairSource, nan: NanPolicy) -> CannotRepair:
    first = OPENING_BRACKET.search(source.text)
    if first is None:
        return CannotRepair(0, "no bracket could open it")
    try:
        repair_at(source, first.start(), len(source.text), nan=nan)
    except CannotRepair as error:
        return error
    return CannotRepair(first.start(), "what looks like it is part of a sentence or of a closed reasoning block")


class _Ranked(NamedTuple):
    """One reading of a candidate, and its penalty: the lowest is best."""

    rank: tuple[int, ...]
    loaded: Loaded
    place: int
    """The class of its candidate."""

    @property
    def fits(self) -> bool:
        return self.rank[0] == 0

    @property
    def cues(self) -> int:
        """The evidence for it in the text around its candidate."""
        return -self.rank[3]


def _choose(text: str, matches: Candidates, hint: Hint, nan: NanPolicy) -> Loaded:
    """Return the candidate with the fewest violations after patches, then one after a correction, then the first."""
    candidates = matches.found
    given_up = list(matches.given_up)
    corrections = _corrections(text, candidates)
    is_corrected = any(corrections.values())
    ranked: list[_Ranked] = []
    for order, candidate in enumerate(candidates):
        if not is_corrected and _needs_no_more(ranked, candidate, order):
            continue
        for loaded in _interpretations(matches.source, candidate, hint, order):
            if nan == "refuse" and (undefined := _nan_edit(loaded)) and _violations(loaded.value, hint, order):
                error = CannotRepair(undefined.position, _not_a_number(undefined))
                given_up.append(GivenUp(loaded.start, error))
                continue
            rank = _rank(loaded.value, hint, order)
            if rank[0] == 0 or candidate.kind != "cited":
                full = (*rank[:3], -corrections.get(loaded.start, 0), *rank[3:], order)
                ranked.append(_Ranked(full, loaded, _class(candidate)))
    if accepts(hint, "array") and (joined := _load_as_list(text, candidates)) is not None:
        rank = _rank(joined.value, hint, 0)
        if rank[0] == 0:
            ranked.append(_Ranked((*rank[:3], 0, *rank[3:], len(candidates)), joined, 0))
    if not ranked:
        raise not_json(text, given_up[0].error if given_up else _failure_reason(matches.source, nan))
    best = min(ranked, key=lambda each: each.rank)
    several = _several_note(candidates, given_up, best, is_doubt=_has_rival(best, ranked))
    return best.loaded._replace(notes=(*several, *best.loaded.notes, *_unreadable(given_up)))


def _needs_no_more(ranked: list[_Ranked], candidate: RepairedCandidate, order: int) -> bool:
    """Return whether a candidate cannot be chosen, nor raise doubts, because an earlier one is valid."""
    if not ranked or not ranked[0].fits:
        return False
    best = ranked[0]
    return (
        order >= _MAX_EXPLAINED
        or _class(candidate) > best.place
        or _has_rival(best, ranked)
        or (candidate.repaired.value == best.loaded.value)
    )


def _has_rival(best: _Ranked, ranked: list[_Ranked]) -> bool:
    """Return whether another value is as valid, and neither its position nor the text around it decides."""
    return best.fits and any(
        each.fits and each.place == best.place and each.cues == best.cues and each.loaded.value != best.loaded.value
        for each in ranked
    )


def _violations(value: Any, hint: Hint, order: int) -> int:
    """Return the number of violations of the candidate with this number."""
    if order < _MAX_EXPLAINED:
        return hint.violations(value)
    return 0 if hint.fits(value) else _UNCOUNTED


def _rank(value: Any, hint: Hint, order: int) -> tuple[int, ...]:
    """Return the penalty of a value: for the wrong type, then for each violation."""
    violations = _violations(value, hint, order)
    if violations == 0:
        return (0, 0, 0, 0)
    left = hint.remaining(value) if order < _MAX_PATCHED else violations
    return (int(left > 0), 0 if left == 0 or accepts(hint, type_of(value)) else 1, left, 1)


def _corrections(text: str, candidates: list[RepairedCandidate]) -> dict[int, int]:
    """Return the number of corrections before each piece of JSON; less for an example or a draft."""
    counts: dict[int, int] = {}
    if len(candidates) == 1 and not candidates[0].repaired.parts:
        return counts
    pieces = sorted(_pieces(candidates))
    if _are_adjacent(text, pieces):
        return counts
    corrected = 0
    last = 0
    label = ""
    for start, end, is_struck in pieces:
        before = text[max(last, start - _MAX_CUE) : start]
        heading = LABEL.search(before)
        earlier = label
        label = heading.group(1).lower() if heading else ""
        if last and (CORRECTION.search(text, last, start) or (label and label != earlier)):
            corrected += 1
        is_replaced = is_struck or REPLACED.search(before) is not None or REJECTED.match(text, end) is not None
        counts[start] = corrected - (is_replaced or EXAMPLE.search(before) is not None)
        last = end
    return counts


def _are_adjacent(text: str, pieces: list[tuple[int, int, bool]]) -> bool:
    """Return whether only blanks are before, between and after the pieces, as in JSON Lines."""
    last = 0
    for start, end, _ in pieces:
        if start > last and text[last:start].strip():
            return False
        last = end
    return not text[last:].strip()


def _pieces(candidates: list[RepairedCandidate]) -> Iterator[tuple[int, int, bool]]:
    """Yield the span of each piece of JSON, also those in a row, and whether it is struck out."""
    for kind, repaired in candidates:
        if repaired.parts and not _is_joined(repaired):
            for start, end in repaired.parts:
                yield start, end, kind == "struck"
        else:
            yield repaired.start, repaired.end, kind == "struck"


def _nan_edit(loaded: Loaded) -> RepairEdit | None:
    return next((edit for edit in loaded.edits if edit.kind == "nan"), None)


def _not_a_number(edit: RepairEdit) -> str:
    return f"{edit.before} is not a JSON number"


def _several_note(
    candidates: list[RepairedCandidate], given_up: list[GivenUp], best: _Ranked, *, is_doubt: bool
) -> tuple[LoadWarning, ...]:
    """Return the warning that a text has several pieces of JSON, and why this one was chosen; None for one piece."""
    loaded = best.loaded
    count = _count(candidates) + len(given_up) - sum(each.start == loaded.start for each in given_up)
    if len(candidates) == 1 and (parts := candidates[0].repaired.parts) and not isinstance(loaded.value, list):
        count = len(parts)
    if count < 2 or (loaded.edits and loaded.edits[0].after == "["):
        return ()
    chosen = "it fits best, or is the first that does"
    if is_doubt:
        chosen = "it is the first that fits; nothing says which of them is meant"
    elif best.cues > 0:
        chosen = "it follows a correction"
    message = f"The text holds {count} pieces of JSON; this one is taken because {chosen}."
    return (LoadWarning("several_candidates", loaded.start, message, is_doubt),)


def _load_as_list(text: str, candidates: list[RepairedCandidate]) -> Loaded | None:
    """Return the objects of a text as one list, as in `Record 1: {…} Record 2: {…}`; None with other JSON there."""
    bare = [each.repaired for each in candidates if each.kind == "bare"]
    if len(bare) < 2 or len(bare) != _count(candidates) or not all(isinstance(each.value, dict) for each in bare):
        return None
    edits = [RepairEdit("missing_bracket", bare[0].start, "", "[")]
    for i, each in enumerate(bare):
        if i:
            before = bare[i - 1].end
            edits.append(RepairEdit("stray_text", before, text[before : each.start], ","))
        edits.extend(each.edits)
    end = bare[-1].end
    edits.append(RepairEdit("missing_bracket", end, "", "]"))
    value = [each.value for each in bare]
    return Loaded(value, bare[0].start, end, tuple(edits), (), apply_edits(text, edits, bare[0].start, end))


def _interpretations(source: RepairSource, candidate: RepairedCandidate, hint: Hint, order: int) -> Iterator[Loaded]:
    """Yield the readings of a candidate: its parts one by one, the whole, and the arguments of a call in it."""
    repaired = candidate.repaired
    if repaired.parts and candidate.kind != "lines" and not _is_joined(repaired):
        for start, end in repaired.parts[:_MAX_PATCHED]:
            try:
                part = repair_at(source, start, end, nan="null", check=hint.violations, many=False)
            except CannotRepair:
                continue
            yield _loaded(part, _notes(candidate, part))
    if repaired.edits and order < _MAX_EXPLAINED and hint.violations(repaired.value):
        with suppress(CannotRepair):  # the text around the candidate, which is missing here, decided how to read it
            repaired = repair_at(source, repaired.start, repaired.end, nan="null", check=hint.violations)
    loaded = _loaded(repaired, _notes(candidate, repaired))
    yield loaded
    for name, arguments in call_arguments(repaired.value):
        if isinstance(arguments, str):
            try:
                arguments = load(arguments, hint, nan="null").value
            except JsonEnforcementError:
                continue
        if isinstance(arguments, dict | list):
            note = LoadWarning("tool_call", repaired.start, f'The value is the "{name}" of a tool call.')
            yield loaded._replace(value=arguments, notes=(*loaded.notes, note))


def _loaded(repaired: Repaired, notes: tuple[LoadWarning, ...]) -> Loaded:
    return Loaded(repaired.value, repaired.start, repaired.end, repaired.edits, notes, repaired.text)


def _unreadable(given_up: list[GivenUp]) -> tuple[LoadWarning, ...]:
    return tuple(
        LoadWarning(
            "unreadable", each.start, f"Other JSON in the text cannot be read: {each.error.reason}.", is_doubt=True
        )
        for each in given_up[:1]
    )


def _notes(candidate: RepairedCandidate, repaired: Repaired) -> tuple[LoadWarning, ...]:
    notes: list[LoadWarning] = []
    start = repaired.start
    if candidate.kind in ("weak", "cited"):
        notes.append(LoadWarning("weak", start, "The JSON is inside a sentence and may be part of it."))
    if repaired.hinted:
        notes.append(
            LoadWarning("schema_hint", start, "The text can be read in several ways; the schema settled which.")
        )
    return tuple(notes)

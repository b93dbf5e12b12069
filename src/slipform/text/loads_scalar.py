"""Load a scalar from a text where the schema allows nothing else.

It is read from the body of a fence, else from the whole text. Sentences are not searched: `It is 41, or 42` has no
answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from slipform.text.candidates import only_comments
from slipform.text.loads import Hint, Loaded, LoadWarning, accepts
from slipform.text.reasoning import answer_span
from slipform.text.repair import RepairSource, repair_at
from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.strings import quoted
from slipform.text.repair.tokens import RepairEdit
from slipform.text.strict import parse

_FENCE_LINE: Final = re.compile(r"^[ \t]*+(```+|~~~+)([^\n`]{0,40})\n", re.MULTILINE)
_EMPHASISED: Final = re.compile(r"(\*{1,3}|_{1,3}|`)([^\n*_`]+)\1")
"""A text that consists of words in Markdown's emphasis, or in backticks."""
_MAX_FENCES: Final = 100
"""The most fenced blocks of a text that are checked."""
_TEXT: Final = (frozenset({"string"}), frozenset({"string", "null"}))


class FencedBlock(NamedTuple):
    """A fenced block: its span, the end of its body, and the words after the opening fence."""

    start: int
    end: int
    body: tuple[int, int]
    label: str


def fenced_blocks(text: str, start: int, end: int) -> Iterator[FencedBlock]:
    r"""Yield the fenced blocks of a part of a text, without those that never close.

    >>> [text[slice(*each.body)] for text in ["```json\n42\n```"] for each in fenced_blocks(text, 0, len(text))]
    ['42']
    """
    at = start
    while opening := _FENCE_LINE.search(text, at, end):
        at = opening.end()
        fence = opening.group(1)
        closing = text.find(fence, at, end)
        if closing < 0 and fence[0] == "~":
            fence = fence[:3]
            closing = text.find(fence, at, end)
        if closing >= 0:
            inside = text[at:closing].rstrip(" \t")
            stop = at + len(inside.removesuffix("\n"))
            yield FencedBlock(opening.start(), closing + len(fence), (at, stop), opening.group(2))
            at = closing + len(fence)


def load_valid_scalar(text: str, hint: Hint | None) -> Loaded | None:
    """Return the scalar in a fence marked as JSON, or with a hint in any fence or the whole text; else None.

    For texts without an object or array, where other types than scalars are accepted: only valid JSON counts.
    """
    start, end = answer_span(text)
    blocks = islice(fenced_blocks(text, start, end), _MAX_FENCES)
    spans = [block.body for block in blocks if hint or "json" in block.label.lower()]
    for span in [*spans, (start, end)] if hint else spans:
        start, end = _stripped(text, *span)
        try:
            value = parse(text[start:end])
        except ValueError:
            continue
        if hint is None or hint.violations(value) == 0:
            return Loaded(value, start, end, (), (), text[start:end])
    return None


def load_scalar(text: str, hint: Hint) -> Loaded | None:
    """Return the scalar that a whole text is; None when `hint` accepts none.

    A text that is not a valid string is also returned where a string is required, so that its violations are reported.
    """
    start, end = answer_span(text)
    start, end = _stripped(text, start, end)
    if start == end:
        return None
    loaded = [each for span in _fenced(text, start, end, hint) for each in _fitting(text, *span, hint)]
    loaded = loaded or _fitting(text, start, end, hint)
    if not loaded and (emphasis := _EMPHASISED.fullmatch(text, start, end)) is not None:
        loaded = _fitting(text, *emphasis.span(2), hint)
    if loaded:
        distinct = [each for each in loaded if each.value != loaded[0].value]
        if distinct:
            message = f"The text holds {len(distinct) + 1} answers; this is the first."
            return loaded[0]._replace(
                notes=(LoadWarning("several_candidates", loaded[0].start, message, is_doubt=True),)
            )
        return loaded[0]
    if accepts(hint, "string"):
        return _as_text(text, start, end)
    return None


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    inside = text[start:end]
    return start + len(inside) - len(inside.lstrip()), end - (len(inside) - len(inside.rstrip()))


def _fenced(text: str, start: int, end: int, hint: Hint) -> Iterator[tuple[int, int]]:
    """Yield the bodies of fences; where any text is accepted, only if there is nothing else, or they are JSON."""
    blocks = list(islice(fenced_blocks(text, start, end), _MAX_FENCES))
    says_anything = hint.root_types in _TEXT and hint.violations("") == 0 == hint.violations("a b c")
    if says_anything and not (len(blocks) == 1 and _stripped(text, blocks[0].start, blocks[0].end) == (start, end)):
        blocks = [
            block for block in blocks if "json" in block.label.lower() and _is_valid(text[slice(*block.body)], hint)
        ]
    for block in blocks:
        yield _stripped(text, *block.body)


def _is_valid(body: str, hint: Hint) -> bool:
    """Return whether a text is JSON of an accepted type."""
    try:
        return hint.violations(parse(body)) == 0
    except ValueError:
        return False


def _fitting(text: str, start: int, end: int, hint: Hint) -> list[Loaded]:
    """Return the first valid reading, else the first that patches make valid, as a list of at most one."""
    readings = list(_readings(text, start, end))
    valid = [each for each in readings if hint.violations(each.value) == 0]
    return (valid or [each for each in readings if hint.remaining(each.value) == 0])[:1]


def _readings(text: str, start: int, end: int) -> Iterator[Loaded]:
    body = text[start:end]
    try:
        value: Any = parse(body)
    except ValueError:
        pass
    else:
        yield Loaded(value, start, end, (), (), body)
        return
    try:
        repaired = repair_at(RepairSource(body), 0, len(body), nan="refuse", many=False)
    except CannotRepair:
        pass
    else:
        if only_comments(body, repaired.end):
            edits = tuple(edit._replace(position=edit.position + start) for edit in repaired.edits)
            yield Loaded(repaired.value, start + repaired.start, start + repaired.end, edits, (), repaired.text)
    yield _as_text(text, start, end)


def _as_text(text: str, start: int, end: int) -> Loaded:
    """Return a stretch of text as a string."""
    body = text[start:end]
    source = quoted(body.replace("\\", "\\\\"))
    return Loaded(parse(source), start, end, (RepairEdit("unquoted_value", start, body, source),), (), source)

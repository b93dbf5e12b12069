"""Load a scalar from a text: a string, a number, a boolean, null or a listed value, where nothing else is wanted.

It is read from the body of a fence, else from the whole text. Sentences are not searched: `It is 41, or 42` has no
answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from slipform.text.candidates import only_comments
from slipform.text.loads import Hint, Loaded, LoadWarning, accepts
from slipform.text.reasoning import answer_span
from slipform.text.repair import repair_at
from slipform.text.repair.machine import CannotRepair
from slipform.text.repair.strings import quoted
from slipform.text.repair.tokens import RepairEdit
from slipform.text.strict import parse

_FENCE: Final = re.compile(r"^[ \t]*(```+|~~~+)([^\n`]{0,40})\n(.*?)\n?[ \t]*\1", re.DOTALL | re.MULTILINE)

_TEXT: Final = (frozenset({"string"}), frozenset({"string", "null"}))


def load_valid_scalar(text: str, hint: Hint | None) -> Loaded | None:
    """Return the scalar that a fence marked as JSON holds, or with a hint any fence or the whole text; else None.

    For texts without an object or array, where a scalar is not all that is wanted: only valid JSON counts.
    """
    start, end = answer_span(text)
    spans = [fence.span(3) for fence in _FENCE.finditer(text, start, end) if hint or "json" in fence.group(2).lower()]
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
    """Return the scalar that a text is; None when it is none that `hint` accepts.

    A text that is no valid string is returned all the same where a string is wanted, for its violations to be named.
    """
    start, end = answer_span(text)
    start, end = _stripped(text, start, end)
    if start == end:
        return None
    loaded = [each for span in _fenced(text, start, end, hint) for each in _fitting(text, *span, hint)]
    loaded = loaded or _fitting(text, start, end, hint)
    if loaded:
        distinct = [each for each in loaded if each.value != loaded[0].value]
        if distinct:
            message = f"The text holds {len(distinct) + 1} answers; this is the first."
            return loaded[0]._replace(notes=(LoadWarning("several_candidates", loaded[0].start, message),))
        return loaded[0]
    return _as_text(text, start, end) if accepts(hint, "string") else None


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    inside = text[start:end]
    return start + len(inside) - len(inside.lstrip()), end - (len(inside) - len(inside.rstrip()))


def _fenced(text: str, start: int, end: int, hint: Hint) -> Iterator[tuple[int, int]]:
    """Yield the bodies of fences; those of a text that may say anything only if it is nothing else, or JSON there."""
    fences = list(_FENCE.finditer(text, start, end))
    says_anything = hint.root_types in _TEXT and hint.violations("") == 0 == hint.violations("a b c")
    if says_anything and not (len(fences) == 1 and _stripped(text, *fences[0].span()) == (start, end)):
        fences = [each for each in fences if "json" in each.group(2).lower() and _is_valid(each.group(3), hint)]
    for fence in fences:
        yield _stripped(text, *fence.span(3))


def _is_valid(body: str, hint: Hint) -> bool:
    """Whether a text is JSON of a value that is wanted."""
    try:
        return hint.violations(parse(body)) == 0
    except ValueError:
        return False


def _fitting(text: str, start: int, end: int, hint: Hint) -> list[Loaded]:
    """Return the first reading that is valid, else the first that patches make valid, as a list of at most one."""
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
        repaired = repair_at(body, 0, len(body), nan="refuse", many=False)
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

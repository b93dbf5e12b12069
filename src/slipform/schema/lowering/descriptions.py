"""Describe constraints that a dialect cannot enforce, and report them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slipform.schema.keywords import TIGHTER
from slipform.schema.normal_form import Bound, Conjunction
from slipform.schema.patterns import accepted, is_pattern

if TYPE_CHECKING:
    from slipform.schema.lowering.emit import Emitter

_MAX_NOTE = 200
_LOOKING = ("(?=", "(?!", "(?<", "\\1", "\\2", "\\3", "\\k<", "(?P", "(?>")


def describe(
    emitter: Emitter, schema: dict[str, Any], shape: Conjunction | None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the schema with its title and description, and descriptions of what the dialect cannot enforce."""
    remarks = list(notes)
    if shape is not None:
        for bound in shape.local:
            emitter.report.add(bound.pointer, bound.keyword, bound.value, "dropped")
            remarks.append(note(bound))
        if shape.default is not None:
            emitter.report.add(shape.default.pointer, "default", shape.default.value, "dropped")
            remarks.append(note(shape.default))
    head: dict[str, Any] = {}
    if shape is not None and shape.title is not None:
        head["title"] = shape.title
    text = shape.description if shape is not None else None
    if remarks:
        text = f"{text} ({'; '.join(remarks)})" if text else "; ".join(remarks)
    if text:
        head["description"] = text
    return {**head, **schema}


def note(bound: Bound) -> str:
    """Return one constraint in a few words."""
    text = json.dumps(bound.value, ensure_ascii=False)
    if len(text) > _MAX_NOTE:
        text = text[:_MAX_NOTE] + "…"
    return f"{bound.keyword}: {text}"


def constraints(
    emitter: Emitter, shape: Conjunction, keywords: Sequence[str], *, whole: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return the constraints of a shape that the dialect supports, and notes on the others."""
    accepted_bounds: dict[str, Any] = {}
    notes: list[str] = []
    for keyword in keywords:
        bound = shape.bounds.get(keyword)
        if bound is None:
            continue
        near = _nearest_constraint(emitter, bound, whole=whole)
        if near is not None and not _affordable(emitter, keyword):
            near = None
        if near is not None:
            limit = accepted(near[1]) if keyword == "pattern" else near[1]
            accepted_bounds[near[0]] = (
                limit if near[0] not in accepted_bounds else TIGHTER[near[0]](limit, accepted_bounds[near[0]])
            )
        if near == (keyword, bound.value):
            emitter.report.add(bound.pointer, keyword, bound.value, "kept", emitter.dialect.engine)
            continue
        emitter.report.add(bound.pointer, keyword, bound.value, "dropped" if near is None else "approximated")
        notes.append(note(bound))
    return accepted_bounds, notes


def _affordable(emitter: Emitter, keyword: str) -> bool:
    """Return whether the vendor's limit on constraints leaves room for one more."""
    most = emitter.dialect.limits.get("bounds")
    if most is None or keyword in ("minItems", "maxItems"):  # those have a separate limit
        return True
    emitter.bounds += 1
    return emitter.bounds <= most


def _nearest_constraint(emitter: Emitter, bound: Bound, *, whole: bool) -> tuple[str, Any] | None:
    """Return the constraint in the dialect, perhaps wider; None when it cannot express it."""
    dialect = emitter.dialect
    keyword = bound.keyword
    value = bound.value
    if keyword in dialect.keywords:
        if keyword == "pattern" and not takes_pattern(emitter, value):
            return None
        if keyword == "format" and value not in dialect.formats:
            return None
        if keyword == "minItems" and dialect.min_items_max is not None:
            if value:
                return (keyword, min(value, dialect.min_items_max))
            return None
        return keyword, value
    plain = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}.get(keyword)
    if plain in dialect.keywords and plain is not None:
        if not whole or value != int(value):
            return plain, value
        return plain, value + (1 if plain == "minimum" else -1)
    return None


def takes_pattern(emitter: Emitter, pattern: Any) -> bool:
    """Return whether the dialect supports a regular expression."""
    if not isinstance(pattern, str) or "pattern" not in emitter.dialect.keywords or not is_pattern(pattern):
        return False
    if emitter.dialect.regex == "any":
        return True
    if any(mark in pattern for mark in _LOOKING):
        return False
    return emitter.dialect.regex == "plain" or not any(mark in pattern for mark in "^$")

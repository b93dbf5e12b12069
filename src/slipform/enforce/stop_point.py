"""Separate the model's mistakes from what it had no chance to write, in an answer that slipform stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

import msgspec

from slipform.enforce.judging import Verdict, violation_error
from slipform.ir.response import StopPoint
from slipform.schema import Violation
from slipform.schema.document import join_pointer
from slipform.schema.explain import nearest_alternative

_FINAL_IN_CONTAINER: Final = frozenset(
    {"type", "maxItems", "maxProperties", "maxContains", "uniqueItems", "falseSchema"}
)
"""Violations of a container that more members or items cannot cure."""
_FINAL_IN_TEXT: Final = frozenset({"type", "enum", "const", "maxLength", "pattern", "anyOf", "oneOf", "falseSchema"})
"""Violations that more characters cannot cure once a string can no longer become valid."""
_OF_KEY: Final = frozenset({"additionalProperties", "unevaluatedProperties", "propertyNames", "falseSchema"})
"""Violations of a key, whatever its value is."""


def caused_by_model(violations: Iterable[Violation], stop: StopPoint) -> tuple[Violation, ...]:
    """Return the violations that the rest of the answer could not have cured.

    >>> stop = StopPoint(("qty",), "expected at most 9", frozenset({()}))
    >>> missing = Violation("", "/required", "required", 'the key "price" is missing', steps=())
    >>> wrong = Violation("/qty", "/properties/qty/maximum", "maximum", "expected at most 9", steps=("qty",))
    >>> [each.keyword for each in caused_by_model([missing, wrong], stop)]
    ['maximum']
    """
    caused: list[Violation] = []
    has_text = False
    for violation in violations:
        final = _final_part(violation, stop)
        if final is None:
            continue
        is_text = stop.text is not None and final.steps == stop.text
        if is_text and has_text:
            continue  # the others concern a string that was cut off here
        has_text = has_text or is_text
        caused.append(final)
    return tuple(caused)


def _final_part(violation: Violation, stop: StopPoint) -> Violation | None:
    """Return the final part of a violation; None if the rest of the answer could have cured all of it."""
    steps = violation.steps or ()
    member = stop.member
    if member is not None and steps[: len(member)] == member:
        return violation if violation.keyword in _OF_KEY else None
    if stop.text is not None and steps == stop.text:
        if violation.keyword in _FINAL_IN_TEXT:
            return violation
        return None
    if steps not in stop.containers or violation.keyword in _FINAL_IN_CONTAINER:
        return violation
    closest = caused_by_model(violation.closest, stop)
    if closest:
        message = nearest_alternative(violation.message, closest, steps)
        return dataclasses.replace(violation, closest=closest, message=message)
    is_wrong_kind = violation.keyword in ("anyOf", "oneOf") and not violation.closest
    if is_wrong_kind and violation.message.startswith("expected "):
        return violation
    return None


def at_stop(verdict: Verdict, stop: StopPoint) -> Verdict:
    """Return the verdict on a stopped answer, without violations that the rest of the answer could have cured."""
    if verdict.error is None or not verdict.violations:
        return verdict
    if stop.call_id is None:
        violations = _or_fault(caused_by_model(verdict.violations, stop), stop)
        return msgspec.structs.replace(verdict, violations=violations, error=violation_error(violations), is_cut=True)
    wrong_calls = dict(verdict.wrong_calls)
    if stop.call_id in wrong_calls:
        wrong_calls[stop.call_id] = _or_fault(caused_by_model(wrong_calls[stop.call_id], stop), stop)
    violations = tuple(violation for each in wrong_calls.values() for violation in each)
    error = violation_error(violations, what="A tool call's arguments are")
    return msgspec.structs.replace(verdict, violations=violations, error=error, wrong_calls=wrong_calls, is_cut=True)


def _or_fault(violations: tuple[Violation, ...], stop: StopPoint) -> tuple[Violation, ...]:
    if violations:
        return violations
    return (Violation(join_pointer(stop.path), "", "schema", stop.message, steps=stop.path),)

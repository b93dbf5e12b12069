"""Collect the evidence of one enforced call: ask for what it needs, and say what is known of each value.

`collected` is `enforce` with more around it, and like it a generator without I/O. So every interface has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from slipform.enforce.loop import enforce
from slipform.enforce.plan import Outcome, Plan, Steps
from slipform.evidence.grounding import ground_in
from slipform.evidence.occurrences import SourceIndex
from slipform.ir import ModelRequest
from slipform.ir.evidence import Evidence, FieldEvidence, Span
from slipform.schema import Schema, Violation
from slipform.schema.document import locate, split_pointer
from slipform.schema.violations import violation_at


def with_evidence(plan: Plan, request: ModelRequest, wanted: Evidence) -> Plan:
    """The plan of a request whose answer is to come with evidence."""
    if wanted.source is None:
        wanted = dataclasses.replace(wanted, source=_prompt(request))
    grounding = GroundedCheck(wanted.source or "", plan.schema, wanted.require_grounded)
    return dataclasses.replace(plan, evidence=wanted, checks=(*plan.checks, grounding))


def _prompt(request: ModelRequest) -> str:
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


class GroundedCheck:
    """Looks values up in one source; as a check it says which of those that must stand there do not."""

    def __init__(self, source: str, schema: Schema[Any] | None, required: Sequence[str] = ()) -> None:
        self._source = source
        self._schema = None if schema is None else schema.document
        self._required = [split_pointer(pointer) for pointer in required]

    @cached_property
    def _index(self) -> SourceIndex:
        return SourceIndex(self._source)

    def spans(self, value: Any) -> dict[str, tuple[Span, ...]]:
        """Where each leaf of a value stands."""
        return ground_in(self._index, value, self._schema)

    def __call__(self, value: Any) -> Sequence[Violation]:
        """What does not stand in the source and must."""
        if not self._required:
            return ()
        return [
            violation_at(_steps(value, pointer), "grounded", _NOT_THERE, value)
            for pointer, spans in self.spans(value).items()
            if self._is_required(pointer) and not FieldEvidence(spans).grounded and _says_something(value, pointer)
        ]

    def _is_required(self, pointer: str) -> bool:
        path = split_pointer(pointer)
        return any(
            len(wanted) <= len(path) and all(step in ("*", each) for step, each in zip(wanted, path, strict=False))
            for wanted in self._required
        )


_NOT_THERE = "it does not stand in the source text; take the value from there as it is written"


def _steps(value: Any, pointer: str) -> tuple[str | int, ...]:
    """A pointer into a value, taken apart: keys are strings, places in lists numbers."""
    steps: list[str | int] = []
    for part in split_pointer(pointer):
        step = int(part) if isinstance(value, list) else part
        steps.append(step)
        value = value[step]
    return tuple(steps)


def _says_something(value: Any, pointer: str) -> bool:
    """Whether a value should stand in its source: null, booleans and empty strings need not."""
    leaf = locate(value, pointer) if pointer else value
    return leaf is not None and leaf != "" and not isinstance(leaf, bool)


def collected(request: ModelRequest, plan: Plan) -> Steps:
    """`enforce`, with the evidence in the report of the outcome."""
    outcome = yield from enforce(request, plan)
    if not outcome.is_valid or outcome.value is None:
        return outcome
    return msgspec.structs.replace(outcome, report=outcome.report.replace(evidence=_fields(outcome, plan)))


def _fields(outcome: Outcome, plan: Plan) -> Mapping[str, FieldEvidence]:
    check = next(check for check in plan.checks if isinstance(check, GroundedCheck))
    return {pointer: FieldEvidence(spans) for pointer, spans in check.spans(outcome.value).items()}

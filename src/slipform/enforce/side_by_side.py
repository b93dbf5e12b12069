"""Request the parts of a wide schema concurrently, join their values, and validate the whole: `enforce_split`."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from slipform.enforce.loop import counted, enforce
from slipform.enforce.plan import Outcome, PartPlan, Plan, Report, Steps
from slipform.errors import SlipformError, TruncatedError, UpstreamError
from slipform.ir import ModelNote, ModelRequest, ModelResponse
from slipform.schema.splitting import join_parts
from slipform.text.strict import compact_json

SCHEMA_SPLIT = "schema_split"
"""The code of the note that a schema was requested in parts, and the detail of a refusal that requires it."""


def steps_of(request: ModelRequest, plan: Plan) -> Steps:
    """Return the steps of a call: those of `enforce`, or those that request its schema in parts."""
    return enforce(request, plan) if plan.split is None else enforce_split(request, plan)


def enforce_split(request: ModelRequest, plan: Plan) -> Steps:
    """Enforce a schema that is requested in parts: at once, or after the vendor has refused the whole.

    Meanwhile each yielded request carries in `beside` the requests to be sent at the same time; the response carries
    their answers.
    """
    request = counted(request, plan)
    whole = dataclasses.replace(plan, split=None, reask_scope="parts")
    parts: Sequence[PartPlan] = ()
    if plan.split is not None:
        parts = plan.split.parts
    if plan.split is not None and not parts:
        try:
            return (yield from enforce(request.replace(can_split=True), dataclasses.replace(plan, split=None)))
        except UpstreamError as error:
            parts = plan.split.halves() if SCHEMA_SPLIT in error.details else ()
            if not parts:
                raise
    outcomes = yield from _outcomes(request, parts)
    value = join_parts([outcome.value for outcome in outcomes], [part.shape for part in parts])
    last = outcomes[-1].response
    joined = ModelResponse(compact_json(value), model=last.model, id=last.id, raw_finish=last.raw_finish)
    try:
        outcome = yield from enforce(request, whole, joined)
    except SlipformError as error:
        own = error.report if isinstance(error.report, Report) else Report()
        error.report = _report(outcomes, own, len(parts))
        raise
    own = outcome.report
    if len(own.attempts) == 1:  # joining cost no call
        own = own.replace(attempts=())
    return msgspec.structs.replace(outcome, report=_report(outcomes, own, len(parts)))


def _outcomes(
    request: ModelRequest, parts: Sequence[PartPlan]
) -> Generator[ModelRequest, ModelResponse, list[Outcome]]:
    """Enforce each part as a separate call, all pending ones concurrently; raise the first error."""
    steps = [steps_of(request.replace(response_format=part.response_format), part.plan) for part in parts]
    waiting = {number: next(each) for number, each in enumerate(steps)}
    outcomes: dict[int, Outcome] = {}
    failures: dict[int, SlipformError] = {}
    while waiting:
        response = yield request.replace(beside=tuple(waiting.values()))
        for number, answer in zip(tuple(waiting), response.beside, strict=True):
            del waiting[number]
            try:
                if isinstance(answer, SlipformError):
                    waiting[number] = steps[number].throw(answer)
                else:
                    waiting[number] = steps[number].send(answer)
            except StopIteration as stop:
                outcomes[number] = stop.value
            except SlipformError as error:
                failures[number] = error
    done = [outcomes[number] for number in sorted(outcomes)]
    if failures:
        failed = min(failures)
        failure = failures[failed]
        own = failure.report if isinstance(failure.report, Report) else Report()
        failure.report = _report(done, own, len(parts))
        if isinstance(failure, TruncatedError):
            failure.partial = _partial(failure.partial, failed, outcomes, parts)
        raise failure
    return done


def _partial(own: Any, failed: int, outcomes: dict[int, Outcome], parts: Sequence[PartPlan]) -> Any:
    """Return the complete parts of the whole after one part was cut off."""
    values = {number: outcome.value for number, outcome in outcomes.items()}
    if isinstance(own, dict):
        values[failed] = own
    numbers = sorted(values)
    return join_parts([values[number] for number in numbers], [parts[number].shape for number in numbers])


def _report(outcomes: Sequence[Outcome], own: Report, count: int) -> Report:
    """Return one report of the parts and of the attempts after them."""
    reports = [*(outcome.report for outcome in outcomes), own]
    note = ModelNote(SCHEMA_SPLIT, f"The schema is too wide for the model: its {count} parts were asked side by side.")
    return own.replace(
        attempts=tuple(attempt for report in reports for attempt in report.attempts),
        warnings=tuple(dict.fromkeys(each for report in reports for each in report.warnings)),
        notes=tuple(dict.fromkeys([note, *(each for report in reports for each in report.notes)])),
    )

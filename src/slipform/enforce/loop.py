"""The enforcement loop: ask, judge, ask again. A generator, so that sync, async and streaming share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from slipform.enforce.judge import Verdict, judge
from slipform.enforce.prompts import first_request, reask_request
from slipform.enforce.report import Attempt, Report
from slipform.errors import EnforcementError
from slipform.ir import ModelRequest, ModelResponse
from slipform.schema import OutputStrategy, Schema


@dataclass(frozen=True, slots=True)
class Plan:
    """How one answer is to be enforced; `max_attempts` counts all calls."""

    schema: Schema[Any]
    strategy: OutputStrategy = OutputStrategy.PROMPTED
    max_attempts: int = 1
    list_keys: bool = False
    """Whether the prompt names the keys although the channel carries the schema: small models need it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A valid value, its compact JSON, and the way there."""

    value: Any
    text: str
    response: ModelResponse
    report: Report


Steps: TypeAlias = Generator[ModelRequest, ModelResponse, Outcome]


def enforce(request: ModelRequest, plan: Plan) -> Steps:
    """Yield each request to be sent, take its response, and return the outcome or raise.

    >>> steps = enforce(ModelRequest("m", ()), Plan(Schema.of(int)))
    >>> request = next(steps)
    >>> try:
    ...     steps.send(ModelResponse(text="36"))
    ... except StopIteration as stop:
    ...     stop.value.value
    36
    """
    first = attempt_request = first_request(request, plan.strategy, list_keys=plan.list_keys)
    report = Report(plan.strategy)
    while True:
        response = yield attempt_request
        verdict = judge(response, plan.schema)
        report = _record(report, response, verdict)
        if verdict.ok:
            return Outcome(verdict.value, verdict.candidate, response, report)
        if verdict.final or len(report.attempts) >= plan.max_attempts:
            raise _failure(verdict, report)
        attempt_request = reask_request(first, verdict.candidate, verdict.violations)


def _record(report: Report, response: ModelResponse, verdict: Verdict) -> Report:
    attempt = Attempt("ok" if verdict.error is None else verdict.error.code, verdict.violations, response.usage)
    fresh = tuple(warning for warning in response.warnings if warning not in report.warnings)
    return dataclasses.replace(report, attempts=(*report.attempts, attempt), warnings=(*report.warnings, *fresh))


def _failure(verdict: Verdict, report: Report) -> EnforcementError:
    error = verdict.error or EnforcementError("The answer could not be judged")
    error.report = report
    return error

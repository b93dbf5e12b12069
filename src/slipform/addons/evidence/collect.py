"""Collect the evidence of one enforced call: request what it needs, and combine it for each value.

`collected` wraps `enforce` and is, like it, a generator without I/O, so that every interface can use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from slipform.addons.evidence.comparison import compare
from slipform.addons.evidence.confidence import (
    NO_TOKENS,
    NOT_JOINED,
    Confidence,
    Written,
    patched_paths,
    path_confidence,
    touched,
)
from slipform.addons.evidence.grounding import Grounding, ground_in
from slipform.addons.evidence.lifting import FieldPath, scalars
from slipform.addons.evidence.source_index import SourceIndex
from slipform.enforce.coercion import ABSENT, json_size
from slipform.enforce.judging import Requirement, SchemaHint, answer_text, judge, lifted
from slipform.enforce.loop import LOGPROBS_LEFT_OUT
from slipform.enforce.plan import Attempt, Collector, Outcome, Plan, Report, Steps
from slipform.enforce.prompts import Parts
from slipform.enforce.side_by_side import steps_of
from slipform.errors import SlipformError
from slipform.ir import ModelRequest, ModelResponse, ModelWarning
from slipform.ir.evidence import Evidence, FieldEvidence, Signal
from slipform.ir.logprobs import LOGPROBS, tokens_of
from slipform.schema import Schema, Violation
from slipform.schema.document import join_pointer, locate, split_pointer
from slipform.schema.violations import violation_at
from slipform.text.loads import load
from slipform.text.work import bounded_work


def with_evidence(plan: Plan, request: ModelRequest, options: Evidence) -> Plan:
    """Return a plan that collects evidence for the answer to a request."""
    if options.source is None:
        options = dataclasses.replace(options, source=_prompt(request))
    grounding = GroundedCheck(options.source or "", plan.schema, options.require_grounded)
    return dataclasses.replace(plan, evidence=options, checks=(*plan.checks, grounding))


def _prompt(request: ModelRequest) -> str:
    return next((message.text for message in reversed(request.messages) if message.role == "user"), "")


def ungrounded(value: Any, fields: Mapping[str, FieldEvidence]) -> list[str]:
    """Return the pointers of values that should be in the source but are not, and of missing texts."""
    return [
        pointer
        for pointer, field in fields.items()
        if not field.grounded and field.should_be_there(locate(value, pointer) if pointer else value)
    ]


class GroundedCheck:
    """Looks up values in one source; as a check, it reports required ones that the source lacks."""

    def __init__(self, source: str, schema: Schema[Any] | None, required: Sequence[str] = ()) -> None:
        self._source = source
        self._schema = None if schema is None else schema.document
        self._required = [split_pointer(pointer) for pointer in required]

    @cached_property
    def _index(self) -> SourceIndex:
        return SourceIndex(self._source)

    def ground(self, value: Any) -> Grounding:
        """Return the places of each leaf of a value."""
        return ground_in(self._index, value, self._schema)

    def __call__(self, value: Any) -> Sequence[Violation]:
        """Return the values that must be in the source and are not."""
        if not self._required:
            return ()
        fields = self.ground(value).fields()
        return [
            violation_at(_steps(value, pointer), "grounded", _NOT_THERE, value)
            for pointer in ungrounded(value, fields)
            if self._is_required(pointer) and not fields[pointer].missing
        ]

    def _is_required(self, pointer: str) -> bool:
        path = split_pointer(pointer)
        return any(
            len(required_path) <= len(path)
            and all(step in ("*", each) for step, each in zip(required_path, path, strict=False))
            for required_path in self._required
        )


_UNKNOWN = Confidence(None, reason="the text does not hold the value")
_NOT_THERE = "it does not stand in the source text; take the value from there as it is written"


def _steps(value: Any, pointer: str) -> tuple[str | int, ...]:
    """Return the steps of a pointer into a value: keys as strings, positions in lists as integers."""
    steps: list[str | int] = []
    for part in split_pointer(pointer):
        step = int(part) if isinstance(value, list) else part
        steps.append(step)
        value = value[step]
    return tuple(steps)


def collected(request: ModelRequest, plan: Plan) -> Steps:
    """Run `enforce`, and add the evidence to the report of the outcome."""
    options = plan.evidence or Evidence()
    needs_logprobs = options.confidence == "logprobs" and request.logprobs is None
    outcome = yield from steps_of(request.replace(logprobs=0) if needs_logprobs else request, plan)
    if needs_logprobs:
        outcome = _without_logprobs(outcome)
    if not outcome.is_valid or outcome.value is None:
        return outcome
    others: list[Any] = []
    if options.samples:
        others, outcome = yield from _sampled(request, plan, options.samples, outcome)
    report = outcome.report.replace(evidence=_fields(outcome, plan, options, others))
    return msgspec.structs.replace(outcome, report=report)


def _without_logprobs(outcome: Outcome) -> Outcome:
    """Return the outcome without the tokens and the warning that only the evidence caused."""
    warnings = tuple(each for each in outcome.report.warnings if each.code != LOGPROBS_LEFT_OUT.code)
    extra = {name: each for name, each in outcome.response.extra.items() if name != LOGPROBS}
    return msgspec.structs.replace(
        outcome, response=outcome.response.replace(extra=extra), report=outcome.report.replace(warnings=warnings)
    )


def _sampled(
    request: ModelRequest, plan: Plan, count: int, outcome: Outcome
) -> Generator[ModelRequest, ModelResponse, tuple[list[Any], Outcome]]:
    """Return further answers to the same request, and the outcome with their cost; a failed one is a warning."""
    sampling = dataclasses.replace(request.sampling, temperature=1.0, seed=None)
    sample_request = request.replace(sampling=sampling, logprobs=None)
    values = []
    report = outcome.report
    plan = dataclasses.replace(plan, evidence=None)
    for number in range(count):
        if sample_request.calls is not None and sample_request.calls.is_spent:
            report = _with_warning(report, f"The limit of calls leaves {number} of {count} further answers.")
            break
        try:
            other = yield from steps_of(sample_request, plan)
        except SlipformError as error:
            attempts = error.report.attempts if isinstance(error.report, Report) else ()
            report = _with_warning(report, f"A further answer failed and is not counted: {error.message}")
            report = report.replace(samples=(*report.samples, *attempts))
        else:
            values.append(other.value)
            report = report.replace(samples=(*report.samples, *other.report.attempts))
    return values, msgspec.structs.replace(outcome, report=report)


def _with_warning(report: Report, message: str) -> Report:
    return report.replace(warnings=(*report.warnings, ModelWarning("sample_missing", message, "evidence.samples")))


def _fields(outcome: Outcome, plan: Plan, options: Evidence, others: Sequence[Any]) -> Mapping[str, FieldEvidence]:
    """Return the evidence of each leaf: its place in the source, confidence, and agreement of the samples."""
    check = next(check for check in plan.checks if isinstance(check, GroundedCheck))
    origins = value_origins(outcome.value, outcome.report.attempts, plan)
    agreement = votes(outcome.value, others) if options.samples else {}
    fields: dict[str, FieldEvidence] = {}
    for pointer, grounded in check.ground(outcome.value).fields().items():
        origin = origins.get(pointer, _UNKNOWN)
        field = dataclasses.replace(grounded, touched=origin.touched)
        if options.samples:
            field = dataclasses.replace(field, votes=agreement.get(pointer, 0), samples=len(others))
        if options.confidence == "logprobs":
            signal: Signal | None = None if origin.score is None else "logprobs"
            field = dataclasses.replace(
                field,
                confidence=origin.score,
                signal=signal,
                reason=origin.reason,
                least=origin.least,
                tokens=origin.tokens,
            )
        elif options.samples and others:
            field = dataclasses.replace(field, confidence=agreement.get(pointer, 0) / len(others), signal="agreement")
        elif options.samples:
            field = dataclasses.replace(field, reason="no further answer was valid")
        fields[pointer] = field
    return fields


def votes(value: Any, others: Sequence[Any]) -> dict[str, int]:
    """Return how many of the other answers have the same value as each leaf, by JSON Pointer.

    Lists are aligned by content.

    >>> votes({"tags": ["new", "red"]}, [{"tags": ["Red"]}, {"tags": ["red", "new"]}])
    {'/tags/0': 1, '/tags/1': 2}
    """
    counted = {join_pointer(path): 0 for path, _ in scalars(value)}
    with bounded_work(json_size(value)):
        for other in others:
            for match in compare(value, other):
                if match.verdict == "right" and match.expected_at in counted:
                    counted[match.expected_at] += 1
    return counted


def value_origins(value: Any, attempts: Sequence[Attempt], plan: Plan) -> dict[str, Confidence]:
    """Return the confidence of each leaf of the value that these attempts produced, and what changed it.

    The answer of a retry for some parts replaces those parts, with its own tokens.
    """
    scores: dict[FieldPath, Confidence] = {}
    for number, attempt in enumerate(attempts):
        if attempt.response is None or plan.schema is None:
            continue
        loaded_value: Any = ABSENT
        if attempt.parts is None:
            scores, loaded_value = _origins(attempt.response, plan.schema, plan)
            scores = {path: touched(each, "re-asked") if number else each for path, each in scores.items()}
        else:
            scores = _with_parts(scores, attempt.response, attempt.parts, plan)
        if attempt.patched is not None:
            scores = patched_paths(scores, attempt.patched.operations, loaded_value)
    paths = {join_pointer(path): path for path, _ in scalars(value)}
    if set(paths.values()) != scores.keys():  # the attempts do not explain the value
        return dict.fromkeys(paths, _UNKNOWN)
    return {pointer: scores[path] for pointer, path in paths.items()}


def _with_parts(
    scores: Mapping[FieldPath, Confidence], response: ModelResponse, parts: Parts, plan: Plan
) -> dict[FieldPath, Confidence]:
    """Return the scores, with those of the retried parts replaced."""
    schema: Schema[Any] = Schema("parts", parts.schema)
    verdict = judge(response, Requirement(schema, switches=plan.switches))
    if not isinstance(verdict.value, Mapping):
        return dict(scores)
    retried, loaded_value = _origins(response, schema, plan)
    if verdict.patched is not None:
        retried = patched_paths(retried, verdict.patched.operations, loaded_value)
    merged = dict(scores)
    for name, steps in parts.places.items():
        if name in verdict.value:
            place = tuple(str(step) for step in steps)
            merged = {path: each for path, each in merged.items() if path[: len(place)] != place}
            merged |= {
                (*place, *path[1:]): touched(each, "re-asked") for path, each in retried.items() if path[:1] == (name,)
            }
    return merged


def _origins(response: ModelResponse, schema: Schema[Any], plan: Plan) -> tuple[dict[FieldPath, Confidence], Any]:
    """Return the confidence of each leaf of one answer, and that answer.

    The answer is in the caller's shape, before any patch.
    """
    text = answer_text(response, plan.answer_tool)
    try:
        loaded = load(text, SchemaHint(schema, response.lift, plan.switches))
    except SlipformError:
        return {}, ABSENT
    written = Written(text, loaded.start, loaded.end, loaded.edits, value=loaded.value, lift=response.lift)
    scores = path_confidence(tokens_of(response.extra.get(LOGPROBS)), written)
    if text is not response.text:
        scores = {
            path: each._replace(reason=_IN_A_CALL) if each.reason in (NO_TOKENS, NOT_JOINED) else each
            for path, each in scores.items()
        }
    return scores, lifted(loaded.value, response.lift)


_IN_A_CALL = "the answer came as a tool call, for which vendors give no token probabilities"
COLLECTOR: Final = Collector(with_evidence, collected)

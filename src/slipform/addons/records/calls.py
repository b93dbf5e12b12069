"""Make the calls of an extraction: one enforced call for a question, every valid record of its answer counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from slipform.addons.records.numbered import LINES, RECORD, unwrapped
from slipform.addons.records.prompts import messages_for, page_messages
from slipform.addons.records.segments import Question
from slipform.addons.records.session import PieceAnswer
from slipform.addons.records.shapes import RecordShape
from slipform.enforce import Outcome, Report
from slipform.enforce.options import for_many
from slipform.enforce.patching import patch
from slipform.engine.fallback import respond_async
from slipform.engine.setup import Options
from slipform.errors import (
    EnforcementError,
    PromptCutError,
    RefusalError,
    RequestError,
    SlipformError,
    TruncatedError,
    UnknownModelError,
    UpstreamRequestError,
)
from slipform.ir import ModelRequest, Usage
from slipform.providers.router import Router
from slipform.schema import ResponseFormat, Schema
from slipform.text.loads import encode_answer
from slipform.text.parser import Parser

_ALL_SPLITS = 8
"""Halvings that make a piece of any size small."""


class FinishedCall(msgspec.Struct, frozen=True):
    """An answer with what it took."""

    answer: PieceAnswer
    usage: Usage = Usage()
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class PieceCaller:
    """Asks one model, or a list of fallbacks, about pieces of a source."""

    router: Router
    models: str | Sequence[str]
    options: Options
    shape: RecordShape
    instructions: str | None
    max_tokens: int | None = None

    async def ask(self, question: Question) -> FinishedCall:
        """Return the valid records of the answer; raises `UpstreamError` when the vendor fails."""
        request, options = self.plan_request(question)
        try:
            outcome = await respond_async(self.router, self.models, request, options, self.shape.question)
        except SlipformError as error:
            return self.read_outcome(error)
        return self.read_outcome(outcome)

    def plan_request(self, question: Question) -> tuple[ModelRequest, Options]:
        """Return the request for a question, and the options for enforcing its answer."""
        shape = self.shape
        has_list = shape.item is not None
        budget = dataclasses.replace(self.options.budget, attempts=1)
        if question.image:
            messages = page_messages(question.image, self.instructions, has_list=has_list)
        else:
            messages = messages_for(question.text, self.instructions, has_list=has_list, numbered=shape.is_numbered)
            # A text whose answer is truncated is halved instead; a page cannot be, so its answer is continued.
            budget = dataclasses.replace(budget, continuations=0)
        request = ModelRequest(
            self.models if isinstance(self.models, str) else self.models[0],
            messages,
            response_format=ResponseFormat.strict(shape.question.spec),
            max_tokens=self.max_tokens,
        )
        options = dataclasses.replace(self.options, budget=budget, on_failure="raise", validators=(), evidence=None)
        return request, for_many(options)

    def read_outcome(self, outcome: Outcome | SlipformError) -> FinishedCall:
        """Return the valid records of an answer; raises an error that is not about this question."""
        is_refused = isinstance(outcome, RequestError | UpstreamRequestError)
        is_unknown = isinstance(outcome, UnknownModelError) or getattr(outcome, "status", None) == 404
        if is_refused and not is_unknown:  # perhaps too long for the model
            return FinishedCall(PieceAnswer(failure=str(outcome), splits=_ALL_SPLITS, is_refused=True))
        if isinstance(outcome, EnforcementError):
            return _failed_call(outcome, self.shape)
        if isinstance(outcome, SlipformError):
            raise outcome
        report = outcome.report
        if any(warning.code == PromptCutError.code for warning in report.warnings):
            return _finished(PieceAnswer(failure="the server cut the prompt", splits=_ALL_SPLITS), report)
        return _finished(_read_answer(outcome.value, self.shape, truncated=False), report)


def _finished(answer: PieceAnswer, report: Report) -> FinishedCall:
    return FinishedCall(answer, report.usage, report.cost)


def _failed_call(error: EnforcementError, shape: RecordShape) -> FinishedCall:
    """Return what an invalid or truncated answer has that is valid."""
    report = error.report if isinstance(error.report, Report) else Report()
    if isinstance(error, PromptCutError):
        return _finished(PieceAnswer(failure=error.message, splits=_ALL_SPLITS), report)
    if isinstance(error, RefusalError):
        return _finished(PieceAnswer(failure=error.message, splits=1), report)
    is_truncated = isinstance(error, TruncatedError)
    answer = PieceAnswer()
    if error.response is not None:
        answer = _read_answer(_whole_records(error.response.text, shape.answer_key), shape, truncated=is_truncated)
    if answer.values or answer.rest:
        return _finished(answer, report)
    splits = _ALL_SPLITS if is_truncated else 1
    answer = PieceAnswer(truncated=is_truncated, failure=error.message, splits=splits, retryable=True)
    return _finished(answer, report)


def _whole_records(text: str, key: str) -> dict[str, Any]:
    """Return the JSON of a text up to where it broke off, without the record or field that was not finished."""
    parser = Parser(lenient=True).feed(text).finish()
    value = parser.value
    if isinstance(value, list):
        value = {key: value}
    if not isinstance(value, Mapping):
        return {}
    path = parser.open_path or ()
    if isinstance(parser.value, list):
        path = (key, *path)
    if parser.complete or not path:
        return dict(value)
    whole = {name: part for name, part in value.items() if name != path[0]}
    records = value.get(key)
    if path[0] == key and isinstance(records, list):
        whole[key] = records[: path[1]] if len(path) > 1 and isinstance(path[1], int) else records
    return whole


def _read_answer(value: Any, shape: RecordShape, *, truncated: bool) -> PieceAnswer:
    """Return the records of an answer that are valid each by itself."""
    if not isinstance(value, Mapping):
        return PieceAnswer()
    rest = {name: value[name] for name in shape.scalars if value.get(name) is not None}
    records = value.get(shape.answer_key)
    if shape.item is None or not isinstance(records, list):
        return PieceAnswer((), truncated, rest=rest or None)
    valid: list[Any] = []
    invalid: list[Any] = []
    for each in records:
        lines, record = unwrapped(each) if shape.is_numbered else (None, each)
        fitting, is_valid = _fitting(record, shape.item)
        if shape.is_numbered:
            fitting = {LINES: lines, RECORD: fitting}
            is_valid = is_valid and lines is not None
        (valid if is_valid else invalid).append(fitting)
    return PieceAnswer(tuple(valid), truncated, invalid=tuple(invalid), rest=rest or None)


def _fitting(record: Any, item: Schema[Any]) -> tuple[Any, bool]:
    """Return a record, patched if that makes it valid, and whether it is valid for its type, too."""
    fitting = record
    if not item.fits(record):
        patched = patch(record, item)
        if patched.violations:
            return record, False
        fitting = patched.value
    _, violations = item.read(fitting, encode_answer(fitting).encode())
    return fitting, not violations

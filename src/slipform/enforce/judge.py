"""`judge`: one answer → a verdict. The same text gives the same verdict on every face."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from slipform.errors import (
    EmptyAnswerError,
    EnforcementError,
    JsonEnforcementError,
    RefusalError,
    SchemaViolationError,
    TruncatedError,
)
from slipform.ir import RESERVED_TOOL, ModelResponse
from slipform.schema import Schema, Violation
from slipform.text.loads import load


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one answer: a valid value, or the error that says why there is none."""

    value: Any = None
    candidate: str = ""
    """The text that was judged: the value's JSON when there is one, else what the model wrote."""
    violations: tuple[Violation, ...] = ()
    error: EnforcementError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a valid value."""
        return self.error is None

    @property
    def final(self) -> bool:
        """Whether asking again is pointless: the answer is good, was refused, or will not fit the token limit."""
        return self.ok or isinstance(self.error, RefusalError | TruncatedError)


def judge(response: ModelResponse, schema: Schema[Any]) -> Verdict:
    """Find the JSON in an answer and hold it against the full schema.

    >>> judge(ModelResponse(text='{"a": 1}'), Schema.of(dict[str, int])).value
    {'a': 1}
    """
    text = _spoken(response)
    if failed := _not_an_answer(response, text):
        return Verdict(candidate=text, error=failed)
    try:
        value = load(text).value
    except JsonEnforcementError as error:
        return Verdict(candidate=text, error=error)
    compact = orjson.dumps(value).decode()
    found = schema.validate(value)
    if not found:
        return Verdict(value=value, candidate=compact)
    return Verdict(candidate=compact, violations=tuple(found), error=violation_error(found))


def violation_error(found: list[Violation]) -> SchemaViolationError:
    """The error for JSON that breaks its schema."""
    first = found[0]
    rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return SchemaViolationError(
        f"The answer is JSON but not valid: {first.message}{rest}",
        where=first.json_path,
        hint="Allow more attempts, relax the schema, or ask a stronger model.",
        details={"validation_errors": [violation.to_dict() for violation in found]},
    )


def _spoken(response: ModelResponse) -> str:
    for call in response.tool_calls:
        if call.name == RESERVED_TOOL:
            return call.arguments
    return response.text


def _not_an_answer(response: ModelResponse, text: str) -> EnforcementError | None:
    """Refusals, filters, truncation and silence are their own outcomes, never parse errors."""
    if response.refusal is not None or response.finish == "refusal":
        return RefusalError(f"The model refused: {response.refusal or text}", hint="Change the request.")
    if response.finish == "content_filter":
        return RefusalError("A safety filter stopped the answer", hint="Change the request.")
    if response.finish == "length":
        return TruncatedError(
            "The answer was cut off by the token limit before its JSON closed", hint="Raise `max_tokens`."
        )
    if not text.strip():
        return EmptyAnswerError("The model gave back nothing", hint="Ask again, or ask another model.")
    return None

"""`judge`: one answer → a verdict. The same text gives the same verdict on every face."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import orjson

from slipform.enforce.hints import SchemaHint, lifted
from slipform.enforce.patch import Patched, patch
from slipform.enforce.verdict import NOT_TYPED, Standard, Validator, Verdict
from slipform.enforce.whole import is_whole
from slipform.errors import (
    EmptyAnswerError,
    EnforcementError,
    JsonEnforcementError,
    RefusalError,
    SchemaViolationError,
    TruncatedError,
)
from slipform.ir import RESERVED_TOOL, ModelResponse, ModelWarning, ToolCall
from slipform.schema import Schema, Violation
from slipform.text.loads import Loaded, load
from slipform.text.repair_edits import Edit

__all__ = [
    "NOT_TYPED",
    "Standard",
    "Validator",
    "Verdict",
    "dumps",
    "judge",
    "judge_value",
    "spoken",
    "violation_error",
]


def judge(response: ModelResponse, standard: Standard) -> Verdict:
    """Find the JSON in an answer, repair it, hold it against the full schema, and patch what is mechanical.

    >>> judge(ModelResponse(text='{"a": "1",}'), Standard(Schema.of(dict[str, int]))).value
    {'a': 1}
    """
    own_calls = [call for call in response.tool_calls if call.name != RESERVED_TOOL] if response.tool_calls else []
    text = spoken(response)
    if own_calls and not standard.calls:
        text = text if text.strip() else own_calls[0].arguments
        own_calls = []
    if response.stopped is not None:
        return Verdict(candidate=text, error=response.stopped)
    failed = _declined(response, text)
    if failed is not None and not (own_calls and isinstance(failed, EmptyAnswerError)):
        return Verdict(candidate=text, error=failed, hopeless=isinstance(failed, RefusalError))
    if own_calls:
        return _judge_calls(response, own_calls, standard)
    if standard.must_call:
        return _judge_missing_call(text, response, standard)
    if standard.schema is None:
        return Verdict(value=text, candidate=text)
    return _judge_text(text, response, standard, standard.schema)


def judge_value(value: Any, standard: Standard) -> Verdict:
    """Hold a value that is already parsed to the same standard."""
    if standard.schema is None:
        return Verdict(value=value, candidate=dumps(value))
    return _held_to(value, Loaded(value, 0, 0), standard, standard.schema)


def _judge_text(text: str, response: ModelResponse, standard: Standard, schema: Schema[Any]) -> Verdict:
    hint = SchemaHint(schema, response.lift)
    try:
        loaded = load(text, hint, strict=not standard.repair)
    except JsonEnforcementError as error:
        if response.finish == "length":
            return Verdict(candidate=text, error=cut_off())
        return Verdict(candidate=text, error=error)
    if response.finish == "length" and loaded.edits and not is_whole(text, loaded, schema.document, response.lift):
        return Verdict(candidate=text, repairs=loaded.edits, error=cut_off())
    if loaded.edits and _is_cut(text, loaded):
        return Verdict(candidate=text, repairs=loaded.edits, error=_cut_short())
    return _held_to(lifted(loaded.value, response.lift), loaded, standard, schema)


def _is_cut(text: str, loaded: Loaded) -> bool:
    """Whether a value was cut in the middle. Closing what is open is safe; half a value is not the one that was meant.

    A number that the text ends with may have had more digits to come; one with a blank after it is whole.
    """
    kinds = {edit.kind for edit in loaded.edits}
    return "truncated" in kinds or ("missing_bracket" in kinds and text[-1:].isdigit())


def _held_to(value: Any, loaded: Loaded, standard: Standard, schema: Schema[Any]) -> Verdict:
    patched: Patched | None = None
    found: Sequence[Violation] = ()
    if not schema.fits(value):
        patched = patch(value, schema, standard.switches)
        value, found = patched.value, patched.violations
    candidate, text = _written(value)
    if candidate == loaded.source:  # what reads the same when it is written again holds no key twice
        notes = loaded.notes
    else:
        notes = loaded.warnings_given(text if value is loaded.value else None)
    typed = NOT_TYPED
    if not found:
        typed, said = schema.read(value, text)
        found = said or _own_validators(value, standard)
    return Verdict(
        value,
        candidate,
        loaded.edits,
        patched if patched is not None and patched.edits else None,
        tuple(found),
        tuple([ModelWarning(note.kind, note.message) for note in notes]) if notes else (),
        violation_error(found) if found else None,
        NOT_TYPED if found else typed,
    )


def _own_validators(value: Any, standard: Standard) -> list[Violation]:
    """What the caller's validators say of a value that fits the schema and its Python type."""
    said = [validator(value) for validator in standard.validators]
    return [Violation("", "", "validator", each, steps=()) for each in said if each is not None]


def _judge_calls(response: ModelResponse, calls: Sequence[ToolCall], standard: Standard) -> Verdict:
    """Arguments of the caller's own tools are repaired, validated and patched like any other answer."""
    mended: list[ToolCall] = []
    wrong: dict[str, tuple[Violation, ...]] = {}
    repairs: tuple[Edit, ...] = ()
    for call in calls:
        schema = standard.tools.get(call.name)
        if schema is None:
            mended.append(call)
            if standard.tools:
                known = ", ".join(standard.tools)
                wrong[call.id] = (Violation("", "", "tool", f"there is no tool {call.name!r}; the tools are {known}"),)
            continue
        said = dataclasses.replace(response, lift=None)
        verdict = _judge_text(call.arguments or "{}", said, dataclasses.replace(standard, validators=()), schema)
        repairs += verdict.repairs
        if verdict.ok:
            mended.append(dataclasses.replace(call, arguments=verdict.candidate, arguments_resolved=verdict.value))
        else:
            found = verdict.violations or (Violation("", "", "json", str(verdict.error), steps=()),)
            wrong[call.id] = found
            mended.append(call)
    found = tuple(violation for each in wrong.values() for violation in each)
    error = violation_error(found, what="A tool call's arguments are") if found else None
    cut = response.finish == "length" and error is not None
    return Verdict(
        candidate=response.text,
        repairs=repairs,
        violations=found,
        error=cut_off() if cut else error,
        tool_calls=tuple(mended),
        wrong_calls=wrong,
    )


def _judge_missing_call(text: str, response: ModelResponse, standard: Standard) -> Verdict:
    """A tool had to be called and the model wrote text: text that is one tool's arguments is that call."""
    plain = dataclasses.replace(standard, validators=())
    said = dataclasses.replace(response, lift=None)
    held = {name: _judge_text(text, said, plain, standard.tools[name]) for name in standard.must_call}
    fitting = {name: verdict for name, verdict in held.items() if verdict.ok} or _spelt_out(text, plain)
    if len(fitting) == 1:
        name, verdict = next(iter(fitting.items()))
        call = ToolCall("call_1", name, verdict.candidate, arguments_resolved=verdict.value)
        told = ModelWarning("tool_call_from_text", f"The model wrote the arguments of {name!r} instead of calling it.")
        warnings = (*verdict.warnings, told)
        return dataclasses.replace(verdict, value=None, candidate="", warnings=warnings, tool_calls=(call,))
    first = next(iter(held.values()))
    if response.finish == "length" or len(held) == 1:
        return first
    names = " or ".join(standard.must_call)
    found = (Violation("", "", "tool", f"no tool was called; {names} has to be", steps=()),)
    return Verdict(candidate=text, violations=found, error=violation_error(found, what="The answer is"))


def _spelt_out(text: str, standard: Standard) -> dict[str, Verdict]:
    """A call written as `{"name": …, "arguments": {…}}`."""
    try:
        written = load(text).value
    except JsonEnforcementError:
        return {}
    name = written.get("name") if isinstance(written, dict) else None
    if name not in standard.must_call:
        return {}
    arguments = next((written[key] for key in ("arguments", "parameters", "input") if key in written), None)
    verdict = _held_to(arguments, Loaded(arguments, 0, 0), standard, standard.tools[name])
    return {name: verdict} if verdict.ok else {}


def violation_error(found: Sequence[Violation], what: str = "The answer is JSON but") -> SchemaViolationError:
    """The error for JSON that breaks its schema."""
    first = found[0]
    rest = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return SchemaViolationError(
        f"{what} not valid: {first.message}{rest}",
        where=first.json_path,
        hint="Allow more attempts, relax the schema, or ask a stronger model.",
        details={"validation_errors": [violation.to_dict() for violation in found]},
    )


def spoken(response: ModelResponse) -> str:
    """The text that holds the answer: the reserved tool's arguments if it was called, else the content."""
    if not response.tool_calls:
        return response.text
    return next((call.arguments for call in response.tool_calls if call.name == RESERVED_TOOL), response.text)


def dumps(value: Any) -> str:
    """Compact JSON; integers of any size and lone surrogates are kept."""
    return _written(value)[0]


def _written(value: Any) -> tuple[str, bytes | None]:
    """Compact JSON, and the same as bytes unless it holds what strict writers refuse."""
    try:
        text = orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")), None
    return text.decode(), text


def _declined(response: ModelResponse, text: str) -> EnforcementError | None:
    """Refusals, filters and silence are their own outcomes, never parse errors."""
    if response.refusal is not None or response.finish == "refusal":
        return RefusalError(f"The model refused: {response.refusal or text}", hint="Change the request.")
    if response.finish == "content_filter":
        return RefusalError("A safety filter stopped the answer", hint="Change the request.")
    if not text.strip():
        if response.finish == "length":
            return cut_off()
        return EmptyAnswerError("The model gave back nothing", hint="Ask again, or ask another model.")
    return None


def cut_off() -> TruncatedError:
    """The error for an answer that met its token limit."""
    return TruncatedError(
        "The answer was cut off by the token limit before its JSON closed", hint="Raise `max_tokens`."
    )


def _cut_short() -> TruncatedError:
    return TruncatedError("The answer ends in the middle of a value", hint="Ask again, or ask another model.")

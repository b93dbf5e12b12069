"""Decode the common parts of all vendors' responses: the JSON object, tool arguments, token counts and parts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import JsonEnforcementError, UpstreamError
from slipform.ir import (
    RESERVED_TOOL,
    FinishReason,
    Lift,
    ModelResponse,
    ModelWarning,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from slipform.ir.logprobs import LOGPROBS
from slipform.ir.response import ENVELOPE, NO_USAGE, resolve_finish
from slipform.schema import OutputStrategy
from slipform.text.loads import load
from slipform.text.strict import compact_json, parse

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_NOTHING: Final[Mapping[str, Any]] = {}


def read_json(body: bytes) -> dict[str, Any]:
    """Return a whole answer as a JSON object; an error is raised, whatever its HTTP status was."""
    try:
        data = parse(body.removeprefix(_BYTE_ORDER_MARK))
    except ValueError as error:
        shown = body[:200].decode("utf-8", "replace")
        raise UpstreamError(
            f"The model's answer is not JSON: {shown or '(nothing)'}",
            details={"category": "unreadable", "retryable": True},
        ) from error
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if not isinstance(data, dict):
        raise UpstreamError("The model's answer is not a JSON object", details={"category": "unreadable"})
    if data.get("error"):
        raise fault_error(data, status=None)
    return data


MALFORMED = (AttributeError, TypeError, KeyError, ValueError, IndexError)
"""The exceptions raised by reading JSON of an unexpected shape."""


def malformed(error: Exception) -> UpstreamError:
    """Return the error for JSON that does not have the vendor's shape."""
    return UpstreamError(
        f"The model's answer is not in the shape of its API: {error}",
        details={"category": "unreadable", "retryable": True},
    )


def arguments_text(value: Any) -> str:
    """Return tool arguments as JSON text; the vendor may send text, an object or nothing.

    >>> arguments_text({"a": 1}), arguments_text(None)
    ('{"a":1}', '{}')
    """
    if isinstance(value, str):
        return value or "{}"
    return "{}" if value is None else compact_json(value)


def function_calls(calls: Any) -> list[Part]:
    """Return calls in the form of Chat Completions and similar APIs; one without an id gets its position as id."""
    parts: list[Part] = []
    for index, call in enumerate(calls or ()):
        function = call.get("function") or {}
        name = str(function.get("name") or "")
        arguments = arguments_text(function.get("arguments"))
        parts.append(ToolCall(str(call.get("id") or f"call_{index}"), name, arguments))
    return parts


def arguments_object(text: str) -> Any:
    """Return tool arguments as the object that some vendors require; other text goes under the key `arguments`.

    >>> arguments_object('{"city": "Par'), arguments_object("Paris")
    ({'city': 'Par'}, {'arguments': 'Paris'})
    """
    try:
        value = parse(text or "{}")
    except ValueError:
        value = _repaired_object(text)
    if isinstance(value, dict):
        return value
    return {"arguments": value}


def _repaired_object(text: str) -> Any:
    """Return the object at the beginning of broken JSON, as far as it was written; without one, the text itself."""
    if text.lstrip()[:1] != "{":
        return text
    try:
        return load(text).value
    except JsonEnforcementError:
        return text


MAX_TOKENS: Final = 10**12
"""A larger number cannot be the token count of one answer."""


def count(value: Any) -> int | None:
    """Return a token count (Cohere counts in floats); None for invalid ones, as if the vendor had reported none.

    >>> count(3.0), count(-1), count(1e300), count("7"), count(True)
    (3, None, None, None, None)
    """
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) else None
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    return None


def details_of(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within a usage; empty if the vendor has something else there.

    >>> details_of({"prompt_tokens_details": [1]}, "prompt_tokens_details")
    {}
    """
    details = usage.get(name)
    if details is None:
        return _NOTHING
    return details if isinstance(details, dict) else _NOTHING


Finishes: TypeAlias = dict[str, FinishReason]
"""A vendor's finish reasons, mapped to slipform's."""
FINISH_MISSING = ModelWarning("finish_missing", "The server did not say why the answer ended.")


def name_or_none(value: Any) -> str | None:
    """Return a name or an id as text; None for an empty one.

    >>> name_or_none("chatcmpl-1"), name_or_none(7), name_or_none("")
    ('chatcmpl-1', '7', None)
    """
    return str(value) if value else None


def usage_of(
    input_: int | None,
    output: int | None,
    cached: int | None = None,
    reasoning: int | None = None,
    total: int | None = None,
) -> Usage:
    """Return usage that includes reasoning in the output, with a computed total if the vendor reports none.

    Some vendors count reasoning separately from the output (xAI), or only in the total (Gemini's OpenAI endpoint).

    >>> usage_of(291, 26, reasoning=189, total=506).output, usage_of(66, 6, total=100).reasoning
    (215, 28)
    """
    if input_ is not None and output is not None:
        beside = 0 if total is None else total - input_ - output
        if reasoning is None and beside > 0:
            reasoning = beside
            output += beside
        elif reasoning is not None and reasoning > 0 and (beside == reasoning or reasoning > output):
            output += reasoning
        if total is None:
            total = input_ + output
    return Usage(input_, output, cached, reasoning, total)


_PRICED_TIERS: Final = frozenset({"batch", "fast", "flex", "priority"})


def at_tier(usage: Usage | None, tier: Any) -> Usage | None:
    """Return the usage with the vendor's service tier, if calls at that tier have a different price.

    >>> at_tier(Usage(3, 2), "flex").service_tier, at_tier(Usage(3, 2), "default").service_tier
    ('flex', None)
    """
    if usage is None or not isinstance(tier, str) or tier not in _PRICED_TIERS:
        return usage
    return usage.replace(service_tier=tier)


def build_answer(
    plan: SchemaChannel,
    parts: Sequence[Part],
    *,
    finish: FinishReason,
    raw_finish: object,
    refusal: object = None,
    usage: Usage | None = None,
    model: object = None,
    id_: object = None,
    extra: Mapping[str, Any] | None = None,
    warnings: Sequence[ModelWarning] = (),
    others: tuple[ModelResponse, ...] = (),
) -> ModelResponse:
    """Return an answer built from its parts: the reserved tool's call becomes text, a lifted shape is converted."""
    refused = name_or_none(refusal)
    noted = [*plan.warnings, *warnings]
    text = "".join([part.text for part in parts if isinstance(part, Text)])
    thought = "".join([part.text for part in parts if isinstance(part, Reasoning)])
    calls = tuple([part for part in parts if isinstance(part, ToolCall)])
    if plan.strategy is OutputStrategy.TOOL and calls:
        text, calls, parts = unwrap_output(text, calls, parts, noted)
    if plan.tool_lifts and calls:
        back = {id(call): lifted_call(call, plan.tool_lifts) for call in calls}
        calls = tuple(back.values())
        parts = [back.get(id(part), part) for part in parts]
    answer = ModelResponse(
        text,
        calls,
        thought,
        refused,
        resolve_finish(finish, bool(calls), refused),
        None if raw_finish is None else str(raw_finish),
        usage if usage is not None else NO_USAGE,
        name_or_none(model),
        name_or_none(id_),
        tuple(noted),
        extra if extra is not None else {},
        tuple(parts),
        others,
    )
    if plan.lift is None:
        return answer
    return lifted(answer, plan.lift)


def unwrap_output(
    text: str, calls: tuple[ToolCall, ...], parts: Sequence[Part], warnings: list[ModelWarning]
) -> tuple[str, tuple[ToolCall, ...], Sequence[Part]]:
    """Turn the call of the reserved tool into the answer's text."""
    outputs = [call for call in calls if call.name == RESERVED_TOOL]
    if not outputs:
        return text, calls, parts
    if len(outputs) > 1:
        warnings.append(
            ModelWarning("extra_output_calls", "The model answered more than once; the first answer counts.")
        )
    shown: list[Part] = []
    for part in parts:
        if part is outputs[0]:
            shown.append(Text(outputs[0].arguments))
        elif not (isinstance(part, ToolCall) and part.name == RESERVED_TOOL):
            shown.append(part)
    return outputs[0].arguments, tuple(call for call in calls if call.name != RESERVED_TOOL), shown


def lifted_call(call: ToolCall, lifts: Mapping[str, Lift]) -> ToolCall:
    """Return a call with its arguments in the caller's shape, if the vendor was given a rewritten schema."""
    lift = lifts.get(call.name)
    if lift is None:
        return call
    return dataclasses.replace(call, arguments=lifted_arguments(call.arguments, lift))


def lifted_arguments(arguments: str, lift: Lift) -> str:
    """Return arguments in the caller's shape; text that is not JSON stays unchanged, to be repaired later."""
    try:
        value = parse(arguments or "{}")
    except ValueError:
        return arguments
    moved = lift(value)
    if moved == value:
        return arguments
    return compact_json(moved)


def lifted(answer: ModelResponse, lift: Lift) -> ModelResponse:
    """Return the answer in the caller's shape; text that is not JSON yet keeps `lift`, to be repaired later.

    Text with token probabilities keeps it, too: they belong to the text as the model wrote it.
    """
    if LOGPROBS in answer.extra:
        return answer.replace(lift=lift)
    try:
        value = parse(answer.text)
    except ValueError:
        return answer.replace(lift=lift)
    moved = lift(value)
    if moved == value:
        return answer
    text = compact_json(moved)
    parts = tuple(Text(text) if isinstance(part, Text) and part.text == answer.text else part for part in answer.parts)
    return answer.replace(text=text, parts=parts)


def rest_of(data: Mapping[str, Any], ir_fields: frozenset[str], usage: Any = None) -> dict[str, Any]:
    """Return the non-empty fields of `data` without a name in the IR, and the vendor's usage unchanged."""
    rest: dict[str, Any] = {}
    if not ir_fields.issuperset(data):
        rest = {key: value for key, value in data.items() if key not in ir_fields and value is not None}
    if usage:
        rest["usage"] = usage
    return rest


def envelope_of(extra: Mapping[str, Any], api: str) -> Mapping[str, Any]:
    """Return the fields around the answer of a vendor of this API, for a client of the same API; else nothing.

    >>> envelope_of({"envelope": {"openai-chat": {"provider": "Mistral"}}}, "openai-chat")
    {'provider': 'Mistral'}
    """
    return extra.get(ENVELOPE, _NOTHING).get(api) or _NOTHING


def with_vendor_counts(
    encoded: dict[str, Any],
    usage: Usage,
    envelope: Mapping[str, Any],
    read_usage: Callable[[Any], Usage | None],
) -> dict[str, Any]:
    """Return the encoded usage with the counts that only the vendor has, unless it is the sum of several answers.

    >>> with_vendor_counts({"n": 3}, Usage(3), {"usage": {"n": 3, "audio": 0}}, lambda own: Usage(own["n"]))
    {'n': 3, 'audio': 0}
    """
    own = envelope.get("usage")
    if not isinstance(own, dict):
        return encoded
    if "cost" not in own and encoded.keys() >= own.keys() and dict not in map(type, own.values()):
        return encoded  # the vendor has no further counts
    vendor_usage = read_usage(own)
    if vendor_usage is None or vendor_usage.replace(service_tier=None) != usage.replace(cost=None, service_tier=None):
        return encoded
    for key, value in own.items():
        counts = encoded.get(key)
        if counts is None or key == "cost":
            encoded[key] = value
        elif isinstance(value, dict) and isinstance(counts, dict):
            encoded[key] = {**value, **counts}
    return encoded

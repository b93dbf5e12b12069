"""What slipform says to a model, as named templates."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slipform.enforce.small import asked_for, worked_examples
from slipform.ir import Message, ModelRequest, ModelResponse, ModelWarning, Text, ToolResult
from slipform.schema import OutputStrategy, Violation
from slipform.schema.summary import summarize

FIRST_WITH_SCHEMA = "Return ONLY valid JSON matching this schema: {schema}. No prose."
FIRST_WITHOUT_SCHEMA = "Return JSON only."
REPAIR = "Return ONLY valid compact JSON. No markdown, no prose."
REASK = "Return corrected JSON only. No prose. No code fences."
KEYS = "Reply in JSON with the keys: {keys}."
TOO_LONG = "Your last answer was cut off because it was too long. " + REPAIR
FORMAT = "Re-shape the text into JSON. Use only what the text says; leave out what it does not say."
CALL_AGAIN = "The arguments are not valid:\n{faults}\nCall the tool again with corrected arguments."


@dataclass(frozen=True, slots=True)
class Wording:
    """How the shape is told to the model."""

    list_keys: bool = False
    """Whether the prompt names the keys although the channel carries the schema: small models need it. Where there is
    only the prompt, they are also told the kinds, and shown worked examples."""
    max_schema_chars: int = 2000
    descriptions: bool = False
    """Whether a schema in the prompt keeps its descriptions."""


class Worded:
    """A request with what the model must be told, and what the caller should know of that."""

    __slots__ = ("request", "warnings")

    def __init__(self, request: ModelRequest, warnings: tuple[ModelWarning, ...] = ()) -> None:
        self.request: Final = request
        self.warnings: Final = warnings


def first_request(request: ModelRequest, strategy: OutputStrategy, wording: Wording) -> Worded:
    """The request with what the model must be told about the shape, for this strategy."""
    schema = request.response_format.json_schema.schema if request.response_format else None
    if strategy is OutputStrategy.PROMPTED and (schema is not None or request.json_mode):
        return _prompted(request, schema, wording)
    if wording.list_keys and schema is not None and (keys := _keys(schema)):
        return Worded(_append_to_last_user(request, KEYS.format(keys=", ".join(keys))))
    return Worded(request)


def reask_request(base: ModelRequest, answer: str, violations: Sequence[Violation]) -> ModelRequest:
    """The request again, with the answer it got and what was wrong with it."""
    said = f"That JSON is not valid:\n{faults(violations)}\n{REASK}" if violations else REPAIR
    previous = (Message.assistant(answer),) if answer.strip() else ()
    return base.replace(messages=(*base.messages, *previous, Message.user(said)))


def shorter_request(base: ModelRequest) -> ModelRequest:
    """The request again after an answer that did not fit the token limit; that answer is not shown, it was too long."""
    return base.replace(messages=(*base.messages, Message.user(TOO_LONG)))


def ask_plainly(request: ModelRequest, wording: Wording) -> ModelRequest:
    """The question once more for a small model, without the schema: what it made of that was no good."""
    schema = request.response_format.json_schema.schema if request.response_format else None
    if schema is None:
        return first_request(request, OutputStrategy.PROMPTED, wording).request
    return _for_a_small_model(request, schema, FIRST_WITHOUT_SCHEMA)


def call_again_request(
    base: ModelRequest, response: ModelResponse, wrong: Mapping[str, Sequence[Violation]]
) -> ModelRequest:
    """The request again, with the model's tool calls and, as their results, what was wrong with their arguments."""
    results = tuple(
        ToolResult(call.id, (Text(_call_result(wrong.get(call.id, ()))),), is_error=True, name=call.name)
        for call in response.tool_calls
    )
    return base.replace(messages=(*base.messages, response.message, Message("tool", results)))


def formatter_request(request: ModelRequest, model: str, text: str) -> ModelRequest:
    """Ask another model to re-shape what the first one said."""
    return request.replace(
        model=model, messages=(Message.system(FORMAT), Message.user(text)), tools=(), tool_choice=None
    )


def faults(violations: Sequence[Violation]) -> str:
    """What is wrong, a line each: where, and what was expected and found."""
    return "\n".join(f"- {violation.json_path}: {violation.message}" for violation in violations)


def _call_result(violations: Sequence[Violation]) -> str:
    if not violations:
        return "Not run, because another call in this turn had invalid arguments. Call it again."
    return CALL_AGAIN.format(faults=faults(violations))


def _prompted(request: ModelRequest, schema: Mapping[str, Any] | None, wording: Wording) -> Worded:
    said, warnings = FIRST_WITHOUT_SCHEMA, tuple[ModelWarning, ...]()
    if schema is not None:
        summary = summarize(schema, max_chars=wording.max_schema_chars, descriptions=wording.descriptions)
        said = FIRST_WITH_SCHEMA.format(schema=summary.text)
        warnings = (_CUT,) if summary.cut else ()
    if wording.list_keys and schema is not None:
        return Worded(_for_a_small_model(request, schema, said), warnings)
    return Worded(request.replace(messages=(Message.system(said), *request.messages)), warnings)


def _for_a_small_model(request: ModelRequest, schema: Mapping[str, Any], said: str) -> ModelRequest:
    """What is said first, then how such questions are answered well, then the question with the keys it asks for."""
    own = next((at for at, message in enumerate(request.messages) if message.role != "system"), len(request.messages))
    told = _append_to_last_user(request, asked_for(schema)).messages
    return request.replace(messages=(Message.system(said), *told[:own], *worked_examples(), *told[own:]))


_CUT = ModelWarning(
    "schema_summary_cut",
    "The schema shown to the model was shortened to fit the prompt; the answer is validated against the full schema.",
)


def _keys(schema: Mapping[str, Any]) -> list[str]:
    """The names a small model should use: listing them beats showing the schema, in speed and in accuracy."""
    shape: Any = schema
    if isinstance(items := schema.get("items"), Mapping):
        shape = items
    reference = shape.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        shape = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    properties = shape.get("properties") if isinstance(shape, Mapping) else None
    return list(properties) if isinstance(properties, Mapping) else []


def _append_to_last_user(request: ModelRequest, sentence: str) -> ModelRequest:
    messages = list(request.messages)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            parts = (*messages[index].parts, Text(f"\n{sentence}"))
            messages[index] = dataclasses.replace(messages[index], parts=parts)
            return request.replace(messages=tuple(messages))
    return request.replace(messages=(*messages, Message.user(sentence)))

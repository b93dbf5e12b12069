"""What slipform says to a model, as named templates."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.ir import Message, ModelRequest, Text
from slipform.schema import OutputStrategy, Violation

FIRST_WITH_SCHEMA = "Return ONLY valid JSON matching this schema: {schema}. No prose."
FIRST_WITHOUT_SCHEMA = "Return JSON only."
REPAIR = "Return ONLY valid compact JSON. No markdown, no prose."
REASK = "Return corrected JSON only. No prose. No code fences."
KEYS = "Reply in JSON with the keys: {keys}."


def first_request(request: ModelRequest, strategy: OutputStrategy, *, list_keys: bool) -> ModelRequest:
    """The request with what the model must be told about the shape, for this strategy."""
    schema = request.response_format.json_schema.schema if request.response_format else None
    if strategy is OutputStrategy.PROMPTED:
        said = FIRST_WITHOUT_SCHEMA if schema is None else FIRST_WITH_SCHEMA.format(schema=_compact(schema))
        return request.replace(messages=(Message.system(said), *request.messages))
    if list_keys and schema is not None and (keys := _keys(schema)):
        return _append_to_last_user(request, KEYS.format(keys=", ".join(keys)))
    return request


def reask_request(first: ModelRequest, answer: str, violations: Sequence[Violation]) -> ModelRequest:
    """The first request again, with the answer it got and what was wrong with it."""
    if violations:
        found = "\n".join(f"- {violation.json_path}: {violation.message}" for violation in violations)
        said = f"That JSON is not valid:\n{found}\n{REASK}"
    else:
        said = REPAIR
    return first.replace(messages=(*first.messages, Message.assistant(answer), Message.user(said)))


def _compact(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


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

"""The SDKs' `parse` calls: a Python type in place of a schema, and the typed object in the SDK's own response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from slipform.ir import Lift
from slipform.schema import Schema
from slipform.schema.lowering import PENDING, lower


@dataclass(frozen=True, slots=True)
class ParseCall:
    """One `parse`: `shape` is the argument with the type; `spelled` makes of it what `create` takes."""

    create: str
    shape: str
    dialect: str
    spelled: Callable[[Mapping[str, Any], str, Mapping[str, Any]], dict[str, Any]]
    parsed: Callable[[Any, Any], Any]
    """The SDK's parsed response, of the plain one and the typed object."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A Python type as one call sends it: the arguments for `create`, and the way back."""

    schema: Schema[Any]
    given: dict[str, Any]
    lift: Lift | None


def typed_call(parse: ParseCall, given: Mapping[str, Any]) -> Typed | None:
    """The call with its type written as a schema of the vendor's dialect; None when no type is given."""
    shape = given.get(parse.shape)
    if not isinstance(shape, type):
        return None
    schema: Schema[Any] = Schema.of(shape)
    lowered = lower(schema.document, parse.dialect, open_objects="closed")
    lift = None if lowered.identity else Lift(lowered.schema, lowered.lift, lowered.lift_stream, PENDING)
    rest = {name: value for name, value in given.items() if name != parse.shape}
    return Typed(schema, {**rest, **parse.spelled(rest, schema.name, lowered.schema)}, lift)


def _chat_format(_given: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"name": name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": wanted}}


def _responses_format(given: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "name": name, "strict": True, "schema": schema}
    return {"text": {**_mapping(given.get("text")), "format": wanted}}


def _messages_format(given: Mapping[str, Any], _name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    wanted = {"type": "json_schema", "schema": schema}
    return {"output_config": {**_mapping(given.get("output_config")), "format": wanted}}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _chat_parsed(response: Any, value: Any) -> Any:
    made = import_module("openai.types.chat").ParsedChatCompletion.construct(**response.model_dump())
    made.choices[0].message.parsed = value
    return made


def _responses_parsed(response: Any, value: Any) -> Any:
    made = import_module("openai.types.responses").ParsedResponse.construct(**response.model_dump())
    for item in made.output:
        for block in item.content if item.type == "message" else ():
            if block.type == "output_text":
                block.parsed = value
    return made


def _messages_parsed(response: Any, value: Any) -> Any:
    made = import_module("anthropic.types").ParsedMessage.construct(**response.model_dump())
    for block in made.content:
        if block.type == "text":
            block.parsed_output = value
    return made


PARSES: Final[Mapping[str, ParseCall]] = {
    "chat.completions.parse": ParseCall("create", "response_format", "openai", _chat_format, _chat_parsed),
    "responses.parse": ParseCall("create", "text_format", "openai", _responses_format, _responses_parsed),
    "messages.parse": ParseCall("create", "output_format", "anthropic", _messages_format, _messages_parsed),
}

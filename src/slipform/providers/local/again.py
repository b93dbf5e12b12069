"""The constraint of a schema in a conversation: a model that has just missed it is held to less, but surely."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.errors import SchemaError
from slipform.ir import Message, ToolCall
from slipform.providers.local.constraint import Constraint, constrain
from slipform.schema.validator import compile_schema


def constrain_next(
    schema: Mapping[str, Any], max_tokens: int, messages: Sequence[Message], *, tool: str | None = None
) -> Constraint:
    """The constraint for the next answer, or for the arguments of a call to `tool`.

    The conversation itself tells whether this is a second try: it then ends in an answer that is not valid, and in
    what was said about it.

    >>> messages = (Message.user("Two letters."), Message.assistant('["a", "a"]'), Message.user("They must differ."))
    >>> constrain_next({"type": "array", "uniqueItems": True}, 100, messages).exact
    True
    """
    first = constrain(schema, max_tokens)
    if first.exact or not _is_missed(schema, messages, tool):
        return first
    return constrain(schema, max_tokens, certain=True)


def _is_missed(schema: Mapping[str, Any], messages: Sequence[Message], tool: str | None) -> bool:
    if len(messages) < 2 or messages[-2].role != "assistant":
        return False
    answer = messages[-2]
    said = [answer.text]
    if tool is not None:
        said = [part.arguments for part in answer.parts if isinstance(part, ToolCall) and part.name == tool]
    return any(_is_invalid(text, schema) for text in said)


def _is_invalid(text: str, schema: Mapping[str, Any]) -> bool:
    try:
        return not compile_schema(schema).is_valid(json.loads(text))
    except (ValueError, SchemaError):
        return False

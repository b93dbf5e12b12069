"""What the callers of both clients give, as a vendor-neutral request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from slipform.ir import Message, ModelRequest
from slipform.partial_kinds import ANY, Kind, kind_of
from slipform.schema import JsonSchemaSpec, ResponseFormat, Schema

Prompt: TypeAlias = str | Sequence[Message]
RawSchema: TypeAlias = Mapping[str, Any] | JsonSchemaSpec | str


def request_for(schema: Schema[Any], prompt: Prompt, model: str | None, max_tokens: int | None) -> ModelRequest:
    """A request for an answer of this shape."""
    return ModelRequest(model or "", messages_of(prompt), _format(schema), max_tokens=max_tokens)


@lru_cache(maxsize=512)
def _format(schema: Schema[Any]) -> ResponseFormat:
    return ResponseFormat.strict(schema.spec)


def messages_of(prompt: Prompt) -> tuple[Message, ...]:
    """A prompt as messages: a text is what the user says.

    >>> messages_of("Hello")[0].role
    'user'
    """
    return (Message.user(prompt),) if isinstance(prompt, str) else tuple(prompt)


def shape_kind(shape: Any) -> Kind:
    """What the parts of a shape are; a JSON Schema, and a `Schema` made before, have plain JSON for parts."""
    return ANY if isinstance(shape, Schema | Mapping | JsonSchemaSpec | str) else kind_of(shape)

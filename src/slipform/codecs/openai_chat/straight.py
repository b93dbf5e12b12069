"""Requests and answers of the plainest kind, known for what they are without being read into the IR."""

from __future__ import annotations

from typing import Any, Final

import orjson

from slipform.codecs.openai_chat.decode import read_usage
from slipform.codecs.openai_chat.serve_decode import is_plain_turn
from slipform.ir import ModelResponse, ModelWarning
from slipform.ir.response import NO_USAGE

_ANSWER = frozenset({"id", "object", "created", "model", "choices", "usage", "service_tier", "system_fingerprint"})
_CHOICE = frozenset({"index", "message", "logprobs", "finish_reason"})
_MESSAGE = frozenset({"role", "content", "refusal", "annotations"})
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_NOTHING: Final[dict[str, Any]] = {}
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


def is_plain_talk(turns: Any) -> bool:
    """Whether these turns are words of the system's and the user's and nothing else: they are sent as they are.

    >>> is_plain_talk([{"role": "user", "content": "Hello"}]), is_plain_talk([{"role": "tool", "content": "1"}])
    (True, False)
    """
    return type(turns) is list and bool(turns) and all(is_plain_turn(turn) for turn in turns)


def plain_answer(data: Any, warnings: tuple[ModelWarning, ...] = ()) -> ModelResponse | None:
    """A whole answer that could be handed on as it is, if its text will do; None when anything is unusual about it.

    >>> plain_answer({"choices": []}) is None
    True
    """
    if type(data) is not dict or not _ANSWER.issuperset(data) or data.get("object") != "chat.completion":
        return None
    choices, usage = data.get("choices"), data.get("usage")
    if type(choices) is not list or len(choices) != 1 or type(usage) is not dict:
        return None
    text, id_, model = _plain_text(choices[0]), data.get("id"), data.get("model")
    if text is None or not id_ or type(id_) is not str or not model or type(model) is not str:
        return None
    if type(data.get("created")) is not int or not _is_plain_usage(usage):
        return None
    return ModelResponse(text, (), "", None, "stop", "stop", read_usage(usage) or NO_USAGE, model, id_, warnings)


def _plain_text(choice: Any) -> str | None:
    if type(choice) is not dict or not _CHOICE.issuperset(choice) or choice.get("finish_reason") != "stop":
        return None
    message = choice.get("message")
    if type(message) is not dict or not _MESSAGE.issuperset(message) or message.get("role") != "assistant":
        return None
    content = message.get("content")
    return content if type(content) is str and message.get("refusal") is None else None


def _is_plain_usage(usage: Any) -> bool:
    if not all(type(usage.get(name)) is int for name in _COUNTS):
        return False
    return all(type(usage.get(name, _NOTHING)) is dict for name in _DETAILS)


def with_text(data: Any, text: str) -> bytes:
    """A plain answer, with this text in place of its own."""
    choice = data["choices"][0]
    return orjson.dumps({**data, "choices": [{**choice, "message": {**choice["message"], "content": text}}]})

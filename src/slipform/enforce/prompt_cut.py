"""Detect a prompt that the server truncated: it reports far fewer prompt tokens than the text must have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from slipform.errors import PromptCutError
from slipform.ir import Message, ModelRequest, ModelWarning, Text, Usage
from slipform.ir.messages import PlainTurns

_LEAST_BYTES: Final = 4096
"""Shorter prompts are never cut: every server's context is larger."""
_BYTES_PER_TOKEN: Final = 12
"""Texts have 2 to 6 bytes per token, in every script and tokenizer that was measured."""
_MOST_BYTES_PER_CHARACTER: Final = 4
_LARGEST_CUT: Final = 65_536
"""Servers that cut prompts have small contexts (Ollama: 4,096 tokens by default); a larger count means no cut."""
_RUNS: Final = re.compile(r"(.)\1{3,}", re.DOTALL)
"""Runs of one character: a single token may hold dozens of them."""
_PIECE: Final = 512
"""Characters searched for runs at a time."""


def prompt_cut(request: ModelRequest, usage: Usage) -> ModelWarning | None:
    """Return the warning `prompt_cut` if the server cannot have read all of the request's text; else None.

    >>> from slipform.ir import Message
    >>> request = ModelRequest("m", (Message.user("Who wrote this? " * 5_000),))
    >>> prompt_cut(request, Usage(input=2_048)).code, prompt_cut(request, Usage(input=20_000))
    ('prompt_cut', None)
    """
    tokens = usage.input
    if not tokens or tokens > _LARGEST_CUT:
        return None
    messages = request.messages
    if type(messages) is PlainTurns and messages.size is not None and messages.size < _LEAST_BYTES:
        return None
    words = _words(messages)
    if words is None or len(words) * _MOST_BYTES_PER_CHARACTER < _LEAST_BYTES:
        return None
    size = _bytes(words)
    if size < _LEAST_BYTES or size <= tokens * _BYTES_PER_TOKEN or not _exceeds(words, tokens):
        return None
    about = size // 4
    text = f"The server read {tokens:,} tokens of a prompt of about {about:,}: it cut the rest without an error."
    return ModelWarning("prompt_cut", text, "messages")


def prompt_cut_error(warning: ModelWarning) -> PromptCutError:
    """Return the error for calls whose values have to be found in the prompt."""
    return PromptCutError(
        warning.message,
        where=warning.path,
        hint="Raise the server's context length (Ollama: `num_ctx`), shorten the messages, or ask another model.",
    )


def _words(messages: Sequence[Message]) -> str | None:
    """Return all text of a conversation; None if it contains other parts, whose tokens cannot be estimated."""
    if isinstance(messages, PlainTurns):
        return "".join([turn.content for turn in messages.turns])
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            if type(part) is not Text:
                return None
            texts.append(part.text)
    return "".join(texts)


def _exceeds(words: str, tokens: int) -> bool:
    """Return whether a text takes more than this many tokens; reads no more of it than needed."""
    left = (tokens + 1) * _BYTES_PER_TOKEN
    for start in range(0, len(words), _PIECE):
        left -= _bytes(_RUNS.sub(r"\1", words[start : start + _PIECE]))
        if left <= 0:
            return True
    return False


def _bytes(text: str) -> int:
    if text.isascii():
        return len(text)
    return len(text.encode("utf-8", "surrogatepass"))

"""Tokens that an answer tells of which nobody decodes: looked up at its end, where every vendor puts them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

from slipform.codecs.anthropic.response import read_usage as _anthropic
from slipform.codecs.gemini.response import read_usage as _gemini
from slipform.codecs.openai_chat.response import read_usage as _chat
from slipform.codecs.openai_responses.response import read_usage as _responses
from slipform.ir import Usage

_READERS: dict[str, tuple[bytes, Callable[[dict[str, Any]], Usage | None]]] = {
    "openai-chat": (b'"usage"', _chat),
    "openai-responses": (b'"usage"', _responses),
    "anthropic": (b'"usage"', _anthropic),
    "gemini": (b'"usageMetadata"', _gemini),
}
_OBJECT = re.compile(rb"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")
"""An object with objects in it, which hold none in turn."""
_PIECES = 3
"""An event may be split between two pieces, and the one that only says that it is over comes after them."""
_LOOKS = 4
_MOST_KEPT = 64 * 1024


def looked_up(look: Callable[[], Usage | None], size: int) -> Usage | Callable[[], Usage | None] | None:
    """What looks for tokens, or what it finds where too much would have to be kept until then."""
    return look if size <= _MOST_KEPT else look()


class Tail:
    """The last pieces of an answer, and its first, which in Anthropic's streams tells what was read."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first = b""
        self._last: deque[bytes] = deque(maxlen=_PIECES)

    def add(self, piece: bytes) -> None:
        """The next piece."""
        if not self._first:
            self._first = piece
        self._last.append(piece)

    @property
    def size(self) -> int:
        """How much is kept."""
        return len(self._first) + sum(map(len, self._last))

    def usage(self, api: str) -> Usage | None:
        """What the whole of them tells."""
        last = self._last
        found = usage_in(api, last[0] if len(last) == 1 else b"".join(last))
        if found is None or found.input is not None:
            return found
        begun = usage_in(api, self._first)
        return found if begun is None else Usage(begun.input, found.output, begun.cached, found.reasoning)


def usage_in(api: str, said: bytes) -> Usage | None:
    r"""The last usage in an answer's bytes that tells of tokens; None where there is none.

    >>> usage_in("openai-chat", b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}').total
    9
    """
    name, read = _READERS[api]
    at = len(said)
    for _ in range(_LOOKS):
        at = said.rfind(name, 0, at)
        if at < 0:
            return None
        try:
            found = read(_object_at(said, at + len(name)))
        except (AttributeError, TypeError):  # no vendor's: they may hold what they like
            continue
        if found is not None and (found.input is not None or found.output is not None):
            return found
    return None


def _object_at(said: bytes, at: int) -> Any:
    """The object that follows a name; None when something else does."""
    found = _OBJECT.match(said, at)
    if found is None:
        return None
    try:
        return orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None

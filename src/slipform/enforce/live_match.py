"""Whether what is written of a string can still match its pattern, byte by byte. Needs llguidance; does without it."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

_KEPT = 256
_UNLIKE = re.compile(r"\\[DWSpPbBxuck0-9]|\(\?[^:]|\[\^[^\]]*\\[dws]|\[:")
"""What one engine reads more narrowly than the other; what it reads more widely does no harm here."""


class TextMatcher:
    """Follows one string under one pattern.

    >>> matcher = matcher_for("^[A-Z]+-[0-9]+$")
    >>> matcher is None or (matcher.feed("AB-"), matcher.feed("x"))
    (True, False)
    """

    __slots__ = ("_matcher",)

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._matcher.try_consume_tokens([34])

    def feed(self, piece: str) -> bool:
        """Whether the string can still match after this piece, which has no escapes in it."""
        data = list(piece.encode("utf-8", "surrogatepass"))
        return bool(self._matcher.try_consume_tokens(data) == len(data))


def matcher_for(pattern: str) -> TextMatcher | None:
    """A matcher at the start of a string; None where the pattern is not one that both engines read alike."""
    compiled = _compiled(pattern)
    return None if compiled is None else TextMatcher(compiled.deep_copy())


@lru_cache(maxsize=_KEPT)
def _compiled(pattern: str) -> Any:
    tokenizer = _tokenizer()
    if tokenizer is None or _UNLIKE.search(pattern):
        return None
    from llguidance import LLMatcher

    made = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern}))
    return None if made.is_error() else made


@cache
def _tokenizer() -> Any:
    try:
        from llguidance import LLTokenizer
    except ImportError:
        return None
    return LLTokenizer("byte")

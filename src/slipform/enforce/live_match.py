"""Whether what is written of a string can still match its pattern, byte by byte. Needs llguidance; does without it."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from slipform.bounded import BoundedCache
from slipform.schema.patterns import pattern_weight

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
        if self._matcher.try_consume_tokens(data) == len(data):
            return True
        # An engine that has run out of the work it allows itself has not said no: the whole string will tell.
        return bool(self._matcher.is_error())


def matcher_for(pattern: str) -> TextMatcher | None:
    """A matcher at the start of a string; None where the pattern is not one that both engines read alike."""
    compiled = _compiled(pattern)
    return None if compiled is None else TextMatcher(compiled.deep_copy())


def _compiled(pattern: str) -> Any:
    if pattern in _MATCHERS:
        return _MATCHERS.get(pattern)
    made = _made(pattern)
    _MATCHERS.put(pattern, made, 50_000 + 80 * len(pattern) + 2 * pattern_weight(pattern))
    return made


_MATCHERS = BoundedCache[str, Any]("matchers of patterns", entries=256, max_bytes=16_000_000)


def _made(pattern: str) -> Any:
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

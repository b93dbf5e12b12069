"""Close an answer that was cut off: find the shortest text that completes it under its grammar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from slipform.schema.document import subschemas
from slipform.schema.examples import FORMATS, matching

_MOST_STEPS = 2_000
_LONGEST_DETOUR = 300
"""Bytes of a text before it may end, because of its pattern or minimum length."""
_MOST_TRIES = 4_000
"""Prefixes of such texts that are tried."""
_MOST_EXAMPLES = 60
_VARIANTS = 3
"""Examples of one pattern, which follow different branches."""
_WIDEST = 24
"""Prefixes of such a text that are extended at a time."""
_ENDS_OF_TEXT = (b'"',)
_ENDS_OF_NUMBER = (b"}", b"]", b", ")
_VALUES = (b"null", b'""', b"0", b"[]", b"{}", b"false", b"true")
_OPENINGS = (b'"', b"[", b"{", b", ", b'{"', b", ")


@dataclass(frozen=True, slots=True)
class Hints:
    """Hints for short answers from a schema: the keys that it requires, and examples of its patterns and formats."""

    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Hints:
        """Collect the hints of all parts of a schema."""
        names: dict[str, None] = {}
        texts: dict[str, None] = {}
        for _, sub in subschemas(schema):
            required = sub.get("required")
            names.update(dict.fromkeys(each for each in required or () if isinstance(each, str)))
            if len(texts) < _MOST_EXAMPLES:
                texts.update(dict.fromkeys(_examples(sub)))
        return cls(tuple(names), tuple(texts))


def _examples(sub: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(pattern := sub.get("pattern"), str):
        texts = [matching(pattern, variant) for variant in range(_VARIANTS)]
        texts.append(matching(pattern, least=sub.get("minLength", 0)))
        yield from [text for text in texts if text is not None]
    if (text := FORMATS.get(str(sub.get("format")))) is not None:
        yield text


def closing_text(grammar: str, text: str, hints: Hints | None = None) -> str | None:
    r"""Return a short text that completes an answer under a grammar; None where none is found.

    >>> grammar = '%llguidance {}\nstart: %json {"type": "object", "properties": {"a": {"type": "string"}}}'
    >>> closing_text(grammar, '{"a": "b')
    '"}'
    """
    closer = AnswerCloser.at(grammar, text, hints or Hints())
    if closer is not None and closer.close():
        return closer.text
    return None


@cache
def _tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


class _Position:
    """Whether a growing JSON text is inside a string, and directly after a backslash."""

    __slots__ = ("in_string", "is_escaped")

    def __init__(self, written: bytes) -> None:
        self.in_string = False
        self.is_escaped = False
        self.feed(written)

    def feed(self, written: bytes) -> None:
        for byte in written:
            if self.is_escaped:
                self.is_escaped = False
            elif byte == 0x22:
                self.in_string = not self.in_string
            elif byte == 0x5C:
                self.is_escaped = self.in_string


class AnswerCloser:
    """Completes an answer step by step, each in few characters; `text` is what it has added."""

    def __init__(self, matcher: Any, hints: Hints, position: _Position) -> None:
        self._matcher = matcher
        self._position = position
        self._closing = bytearray()
        keys = [json.dumps(name, ensure_ascii=False).encode("utf-8", "replace") + b": " for name in hints.names]
        self._texts = [json.dumps(text, ensure_ascii=False)[1:].encode("utf-8", "replace") for text in hints.texts]
        self._candidates = (b"}", b"]", *keys, *(b", " + key for key in keys), *_VALUES, *_OPENINGS)

    @classmethod
    def at(cls, grammar: str, text: str, hints: Hints) -> AnswerCloser | None:
        """Return the closer of an answer under a grammar; None where the grammar does not accept its text."""
        import llguidance

        matcher = llguidance.LLMatcher(_tokenizer(), grammar, log_level=0)
        written = text.encode("utf-8", "replace")
        if matcher.validate_tokens(list(written)) < len(written) or not matcher.consume_tokens(list(written)):
            return None
        return cls(matcher, hints, _Position(written))

    @property
    def text(self) -> str:
        """The text added so far."""
        return self._closing.decode()

    def close(self) -> bool:
        """Complete the answer; return False where no end was found."""
        for _ in range(_MOST_STEPS):
            if self._matcher.is_accepting():
                return True
            if not self.step():
                return False
        return False

    def step(self) -> str:
        """Add the text that must follow, or the next choice; return it, empty where there is none."""
        following = self._matcher.compute_ff_bytes() or self._next()
        if not following or not self._matcher.consume_tokens(list(following)):
            return ""
        self._closing += following
        self._position.feed(following)
        return following.decode()

    def _next(self) -> bytes:
        """Return bytes that bring the answer closer to its end; empty when none are accepted."""
        position = self._position
        if position.in_string and position.is_escaped:
            candidates: Sequence[bytes] = (b"n", b'"', b"u")
        else:
            candidates = _ENDS_OF_TEXT if position.in_string else self._candidates
        for candidate in candidates:
            if self.is_admitted(candidate):
                return candidate
        if not position.in_string:
            return self._detour(_ENDS_OF_NUMBER)
        endings = {text[at:] for text in self._texts for at in range(len(text))}
        for ending in sorted(endings, key=lambda each: (len(each), each)):
            if self.is_admitted(ending):
                return ending
        return self._detour(_ENDS_OF_TEXT)

    def is_admitted(self, candidate: bytes) -> bool:
        """Return whether the grammar accepts these bytes next."""
        return self._matcher.validate_tokens(list(candidate)) == len(candidate)  # type: ignore[no-any-return]

    def _detour(self, ends: Sequence[bytes]) -> bytes:
        """Return the shortest text after which a string or number may end; empty where none is found."""
        beginnings = [b""]
        left = _MOST_TRIES
        while left > 0 and len(beginnings[0]) < _LONGEST_DETOUR:
            longer: dict[bytes, None] = {}
            left -= len(beginnings)
            for beginning in beginnings:
                for byte in self._choices(beginning):
                    each = beginning + bytes([byte])
                    if any(self.is_admitted(each + end) for end in ends):
                        return each
                    longer.setdefault(each)
            if not longer:
                return b""
            beginnings = list(longer)[:_WIDEST] if len(longer) <= _WIDEST else _spread_sample(list(longer))
        return b""

    def _choices(self, beginning: bytes) -> list[int]:
        """Return candidates for the next byte: one of each class, or all if there are few."""
        if beginning and not self._matcher.consume_tokens(list(beginning)):
            return []
        mask = int.from_bytes(self._matcher.compute_bitmask(), "little")
        if beginning:
            self._matcher.rollback(len(beginning))
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if len(allowed) <= _WIDEST:
            return allowed
        kinds: dict[int, int] = {}
        for byte in allowed:
            if byte != 0x5C:
                kinds.setdefault(_kind(byte), byte)
        return sorted(kinds.values(), key=lambda byte: not chr(byte).isalnum())


def _kind(byte: int) -> int:
    """Return the class of a byte: letters of one case, digits, non-ASCII bytes; any other byte is its own class."""
    if 0x61 <= byte <= 0x7A:
        return 0x61
    if 0x41 <= byte <= 0x5A:
        return 0x41
    if 0x30 <= byte <= 0x39:
        return 0x30
    return min(byte, 0x80)


def _spread_sample(beginnings: list[bytes]) -> list[bytes]:
    """Return an evenly spread sample of prefixes."""
    return [beginnings[len(beginnings) * part // _WIDEST] for part in range(_WIDEST)]

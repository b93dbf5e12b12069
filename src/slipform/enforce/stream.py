"""Streaming under enforcement: what may leave while the answer still grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipform.ir import CompletionChunk, ModelResponse, Usage


@dataclass(slots=True)
class LiveText:
    r"""Lets JSON text through as it grows, compacted, always one character behind.

    The character held back is the one that would close the answer: it leaves once the whole has been judged, so that
    nobody can take an invalid answer for a finished one.

    >>> live = LiveText()
    >>> live.feed('{ "a": ') + live.feed("[1, 2]\n}")
    '{"a":[1,2]'
    >>> live.held
    '}'
    """

    held: str = ""
    sent: bool = False
    _in_string: bool = False
    _escaped: bool = False

    def feed(self, text: str) -> str:
        """What may leave now, of this text and of what was held before."""
        leaving = self.held + "".join(char for char in text if self._keep(char))
        self.held = leaving[-1:]
        self.sent = self.sent or len(leaving) > 1
        return leaving[:-1]

    def _keep(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = self._in_string
        elif char == '"':
            self._in_string = not self._in_string
        elif not self._in_string:
            return char not in " \t\r\n"
        return True


def fold(chunks: Sequence[CompletionChunk]) -> ModelResponse:
    """The response that the chunks of a stream add up to.

    >>> fold([CompletionChunk(text="3"), CompletionChunk(text="6"), CompletionChunk(finish="stop")]).text
    '36'
    """
    ended = next((chunk for chunk in reversed(chunks) if chunk.finish), None)
    return ModelResponse(
        text="".join(chunk.text for chunk in chunks),
        finish=ended.finish if ended and ended.finish else "unknown",
        raw_finish=ended.raw_finish if ended else None,
        usage=next((chunk.usage for chunk in reversed(chunks) if chunk.usage), Usage()),
        model=chunks[-1].model if chunks else None,
        id=chunks[-1].id if chunks else None,
        warnings=tuple(warning for chunk in chunks for warning in chunk.warnings),
    )

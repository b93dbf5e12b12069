"""Streaming under enforcement: what may leave while the answer still grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slipform.ir import CompletionChunk, ModelResponse, ToolDelta


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


def closing_chunks(answer: ModelResponse, rest: str) -> Iterator[CompletionChunk]:
    """What ends a stream: the text that has not left yet, tool calls, why it ended, and what it cost."""
    if rest:
        yield CompletionChunk(text=rest)
    for index, call in enumerate(answer.tool_calls):
        yield CompletionChunk(tool_calls=(ToolDelta(index, call.id, call.name, call.arguments),))
    yield CompletionChunk(finish=answer.finish, usage=answer.usage, id=answer.id)

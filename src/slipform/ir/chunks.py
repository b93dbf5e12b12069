"""What a model gives back while it is still speaking: raw pieces, nothing accumulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from slipform.ir.lift import Lift
from slipform.ir.messages import Media, Opaque, Reasoning
from slipform.ir.response import FinishReason, Usage
from slipform.ir.warnings import ModelWarning

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a tool call; any field may come late, or never."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


class CompletionChunk(NamedTuple):
    """One piece of a streamed answer. A chunk with `finish` set ends its choice; usage may come after it.

    `parts` are pieces that come whole: a finished block of reasoning with its signature (its text was streamed in
    `reasoning` already), or a part of a kind slipform does not know. `lift` comes at most once, with the first chunk:
    see `ModelResponse.lift`.

    A named tuple, because there is one for every token and a frozen dataclass takes five times as long to make.

    >>> CompletionChunk(text='{"a"').text
    '{"a"'
    """

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    tool_calls: tuple[ToolDelta, ...] = ()
    finish: FinishReason | None = None
    raw_finish: str | None = None
    usage: Usage | None = None
    choice: int = 0
    model: str | None = None
    id: str | None = None
    warnings: tuple[ModelWarning, ...] = ()
    extra: Mapping[str, Any] = _NOTHING
    parts: tuple[Reasoning | Opaque | Media, ...] = ()
    lift: Lift | None = None

    @property
    def only_text(self) -> bool:
        """Whether it adds to the text of the first choice and does nothing else; who says it does not matter.

        >>> CompletionChunk("a", id="1").only_text, CompletionChunk("a", finish="stop").only_text
        (True, False)
        """
        return self[1:8] == _NO_MORE and self[10:] == _NO_REST


_NO_MORE, _NO_REST = CompletionChunk()[1:8], CompletionChunk()[10:]

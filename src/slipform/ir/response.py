"""What came back: ModelResponse, Usage, CompletionChunk, Lift."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from slipform.errors import EnforcementError
from slipform.ir.messages import UNRESOLVED, Media, Message, Opaque, Part, Reasoning, Text, ToolCall
from slipform.ir.request import ModelWarning, shown


@dataclass(frozen=True, slots=True)
class Lift:
    """Turns a value of the vendor's shape into one of the caller's; call it with a whole value.

    `schema` is the shape as the vendor sees it. `growing` starts the lifting of one growing value: what it gives is
    called with each value so far, and with `done=True` at the end; it answers `pending` while there is nothing to show.

    >>> Lift({"type": "object"}, lambda value: value["value"])({"value": 3})
    3
    """

    schema: Mapping[str, Any]
    whole: Callable[[Any], Any]
    growing: Callable[[], Callable[..., Any]] | None = None
    pending: Any = None

    def __call__(self, value: Any) -> Any:
        """The value in the caller's shape."""
        return self.whole(value)


FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error", "unknown"
]
"""Why an answer ended; `pause` means the vendor stopped half-way and wants to be asked to go on."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens spent. None means the vendor did not say, which is not the same as 0.

    >>> Usage(input=3, output=2) + Usage(input=1, cached=1)
    Usage(input=4, output=2, cached=1, reasoning=None, total=6)
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    total: int | None = None

    def __add__(self, other: Usage) -> Usage:
        totals = (self._total(), other._total())
        return Usage(
            input=_add(self.input, other.input),
            output=_add(self.output, other.output),
            cached=_add(self.cached, other.cached),
            reasoning=_add(self.reasoning, other.reasoning),
            total=_add(*totals),
        )

    def replace(self, **changes: Any) -> Usage:
        """A copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, int]:
        """What the vendor said, ready for JSON.

        >>> Usage(input=3, output=2).to_dict()
        {'input': 3, 'output': 2}
        """
        return {name: count for name, count in msgspec.structs.asdict(self).items() if count is not None}

    def _total(self) -> int | None:
        return self.total if self.total is not None else _add(self.input, self.output)


NO_USAGE: Final = Usage()
"""The vendor said nothing."""


def _add(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


class ModelResponse(msgspec.Struct, frozen=True):
    """One answer, in no vendor's spelling; `raw_finish` is the vendor's own word for why it ended.

    `parts` is the turn in the order it was spoken, with what must go back untouched; `message` is the turn to replay.
    `others` holds the choices after the first. `content_resolved` is the value of the text where the reducer was given
    a schema. `lift` is set when the text is still in the vendor's shape of the schema: it turns a parsed value into the
    caller's shape. `stopped` says what was wrong with an answer that was not read to its end. `extra["usage"]` is the
    vendor's own usage object.

    >>> ModelResponse(text="hi").message.text
    'hi'
    """

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    refusal: str | None = None
    finish: FinishReason = "stop"
    raw_finish: str | None = None
    usage: Usage = NO_USAGE
    model: str | None = None
    id: str | None = None
    warnings: tuple[ModelWarning, ...] = ()
    extra: Mapping[str, Any] = msgspec.field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    others: tuple[ModelResponse, ...] = ()
    content_resolved: Any = UNRESOLVED
    lift: Lift | None = None
    stopped: EnforcementError | None = None

    def replace(self, **changes: Any) -> ModelResponse:
        """A copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        return _said(self) == _said(other) if isinstance(other, ModelResponse) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds mappings

    def __repr__(self) -> str:
        return shown("ModelResponse", _SAID, _said(self))

    @property
    def message(self) -> Message:
        """The assistant's turn, ready to be said again."""
        return Message("assistant", self.parts or _parts(self.reasoning, self.text, self.tool_calls))


_SAID: Final = tuple(
    name for name in ModelResponse.__struct_fields__ if name not in ("content_resolved", "lift", "stopped")
)
"""What is compared and shown; the rest follows from it, or is slipform's own."""
_said: Final = attrgetter(*_SAID)


def settle_finish(finish: FinishReason, has_calls: bool, refusal: str | None) -> FinishReason:
    """Calls decide `tool_calls`, not the vendor's word; a refusal is one whatever the word.

    >>> settle_finish("stop", True, None)
    'tool_calls'
    """
    if refusal:
        return "refusal"
    if has_calls and finish in ("stop", "unknown"):
        return "tool_calls"
    return "stop" if finish == "tool_calls" and not has_calls else finish


def _parts(reasoning: str, text: str, calls: tuple[ToolCall, ...]) -> tuple[Part, ...]:
    thought: tuple[Part, ...] = (Reasoning(reasoning),) if reasoning else ()
    said: tuple[Part, ...] = (Text(text),) if text else ()
    return (*thought, *said, *calls)


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


class ChunkSink(Protocol):
    """Takes the chunks of a streamed answer where they arrive, so that nobody has to be woken for each of them."""

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Take the chunks that arrived together; None, or what has to be handed to who reads the stream."""
        ...

    def push_texts(self, texts: list[str]) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that are no more than text of the first choice, by who spoke last."""
        ...


class PassOn:
    """A sink that takes nothing: who reads the stream is handed all of it, batch by batch."""

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """The chunks, as they are."""
        return chunks

    def push_texts(self, texts: list[str]) -> Sequence[CompletionChunk] | None:
        """The texts, as chunks."""
        return [CompletionChunk(text) for text in texts]

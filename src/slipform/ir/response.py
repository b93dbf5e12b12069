"""Represent a model's response: whole (`ModelResponse`), in chunks (`CompletionChunk`), and `Usage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from slipform.errors import EnforcementError, SlipformError
from slipform.ir.messages import UNRESOLVED, Media, Message, Opaque, Part, Reasoning, Text, ToolCall, record_repr
from slipform.ir.request import ModelWarning
from slipform.schema.lowering.lift_plan import LiftPlan


@dataclass(frozen=True, slots=True)
class Lift:
    """Converts a whole value of the lowered schema into one of the caller's schema.

    `schema` is the lowered one, as the vendor sees it. `plan` is the same as data, for texts that are lifted while they
    grow (`slipform.text.lifted`); without it, only the complete text can be lifted.

    >>> Lift({"type": "object"}, lambda value: value["value"])({"value": 3})
    3
    """

    schema: Mapping[str, Any]
    whole: Callable[[Any], Any]
    plan: LiftPlan | None = None

    def __call__(self, value: Any) -> Any:
        """Return the value in the caller's shape."""
        return self.whole(value)


FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error", "unknown"
]
"""Why an answer ended; `pause` means that the vendor stopped early and expects a request to continue."""


class Usage(msgspec.Struct, frozen=True):
    """The tokens of a call; None means that the vendor did not report them, which is not 0.

    >>> Usage(input=3, output=2) + Usage(input=1, cached=1)
    Usage(input=4, output=2, cached=1, reasoning=None, total=6, cost=None, cache_write=None, service_tier=None)
    """

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    total: int | None = None
    cost: float | None = None
    """The cost, where slipform knows the price; vendors do not report it."""
    cache_write: int | None = None
    """Input tokens that the vendor wrote to its cache, where that has a separate price."""
    service_tier: str | None = None
    """The vendor's name of the tier that served the call, where prices differ: `flex`, `priority`, `batch`."""

    def __add__(self, other: Usage) -> Usage:
        totals = (self._total(), other._total())
        return Usage(
            input=_add(self.input, other.input),
            output=_add(self.output, other.output),
            cached=_add(self.cached, other.cached),
            reasoning=_add(self.reasoning, other.reasoning),
            total=_add(*totals),
            cost=self.cost if other.cost is None else other.cost + (self.cost or 0),
            cache_write=_add(self.cache_write, other.cache_write),
            service_tier=self.service_tier if self.service_tier == other.service_tier else None,
        )

    def replace(self, **changes: Any) -> Usage:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    def to_dict(self) -> dict[str, int | float]:
        """Return the known counts as a JSON object.

        >>> Usage(input=3, output=2).to_dict()
        {'input': 3, 'output': 2}
        """
        counts = msgspec.structs.asdict(self.replace(service_tier=None))
        return {name: count for name, count in counts.items() if count is not None}

    def _total(self) -> int | None:
        if self.total is not None:
            return self.total
        return _add(self.input, self.output)


_BYTES_PER_TOKEN: Final = 4


def guess_tokens(text: str | bytes) -> int:
    """Estimate the tokens of a text: one for every four bytes of UTF-8, rounded up.

    >>> guess_tokens("Who is Ada?")
    3
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES_PER_TOKEN)


NO_USAGE: Final = Usage()
"""The vendor reported nothing."""


def _add(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


class StreamFault(NamedTuple):
    """The position in the model's text, in characters and UTF-8 bytes, where a streamed answer became invalid."""

    at: int
    byte: int
    path: str
    message: str


class StreamFigures(NamedTuple):
    """The fate of the characters of a tracked streamed answer."""

    received: int
    released: int
    """Characters that were sent as soon as they were certain."""
    held: int
    """Characters of JSON that had not been sent when the answer ended."""
    dropped: int
    """Characters outside the JSON: prose, fences, reasoning, blanks."""
    fault: StreamFault | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        fields = {"received": self.received, "released": self.released, "held": self.held, "dropped": self.dropped}
        if self.fault is None:
            return fields
        return {**fields, "fault": self.fault._asdict()}


class StopPoint(NamedTuple):
    """Where slipform stopped an answer that could no longer become valid, and its open parts."""

    path: tuple[str | int, ...]
    message: str
    containers: frozenset[tuple[str | int, ...]]
    """The open objects and arrays: the model may have had more to write in each."""
    text: tuple[str | int, ...] | None = None
    """The open string."""
    member: tuple[str | int, ...] | None = None
    """The member with a key but no value yet."""
    call_id: str | None = None
    """The tool call whose arguments these are; None for the answer itself."""


class ModelResponse(msgspec.Struct, frozen=True):
    """One answer, in a vendor-neutral form; `raw_finish` is the vendor's own finish reason.

    `parts` are in the order they arrived, with what must be sent back unchanged; `message` is the message to replay.
    `others` are the choices after the first. `content_resolved` is the value of the text where the reducer had a
    schema. `lift` is set when the text still follows the lowered schema: it converts a parsed value to the caller's
    shape. `stopped` is the error of an answer that was not read to its end, `stop` where that was because it could no
    longer become valid. `stream` is what became of a streamed one's characters.
    `continues` says whether an outcome continues what has been sent. `beside` has the answers to the requests that were
    sent side by side in place of one, and the errors of those that failed.
    `extra["usage"]` is the vendor's own usage object.

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
    stream: StreamFigures | None = None
    stop: StopPoint | None = None
    continues: Callable[[Any], bool] | None = None
    beside: tuple[ModelResponse | SlipformError, ...] = ()

    def replace(self, **changes: Any) -> ModelResponse:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ModelResponse):
            return _compared_values(self) == _compared_values(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it holds mappings

    def __repr__(self) -> str:
        return record_repr("ModelResponse", _COMPARED, _compared_values(self))

    @property
    def message(self) -> Message:
        """The assistant's message, as it is sent back in the next request."""
        parts = self.parts or _parts(self.reasoning, self.text, self.tool_calls)
        return Message("assistant", parts, content_resolved=self.content_resolved)

    @property
    def view(self) -> Any:
        """The value of the text where it is known, else the text."""
        if self.content_resolved is UNRESOLVED:
            return self.text
        return self.content_resolved


_NOT_COMPARED: Final = ("content_resolved", "lift", "stopped", "stream", "stop", "continues", "beside")
_COMPARED: Final = tuple(name for name in ModelResponse.__struct_fields__ if name not in _NOT_COMPARED)
"""The fields that are compared and shown; the others follow from them, or are slipform's own."""
_compared_values: Final = attrgetter(*_COMPARED)


def resolve_finish(finish: FinishReason, has_calls: bool, refusal: str | None) -> FinishReason:
    """Return the finish reason: calls decide `tool_calls`, and a refusal `refusal`, whatever the vendor reported.

    >>> resolve_finish("stop", True, None)
    'tool_calls'
    """
    if refusal:
        return "refusal"
    if has_calls and finish in ("stop", "unknown"):
        return "tool_calls"
    if finish == "tool_calls" and not has_calls:
        return "stop"
    return finish


def _parts(reasoning: str, text: str, calls: tuple[ToolCall, ...]) -> tuple[Part, ...]:
    reasoning_parts: tuple[Part, ...] = (Reasoning(reasoning),) if reasoning else ()
    text_parts: tuple[Part, ...] = (Text(text),) if text else ()
    return (*reasoning_parts, *text_parts, *calls)


_NO_EXTRA: Mapping[str, Any] = MappingProxyType({})
ENVELOPE: Final = "envelope"
"""The key of `extra` with the fields around the vendor's answer, by its API."""
HEAD_FIELDS: Final = ("created", "system_fingerprint", "service_tier", ENVELOPE)
"""Fields of `extra` that a streamed answer has from its first chunk on."""


def head_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `extra` that belong to the first chunk of a stream."""
    return {name: extra[name] for name in HEAD_FIELDS if name in extra}


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of a tool call; any field may arrive late, or never. `done` marks a piece known to be the last."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False


class CompletionChunk(NamedTuple):
    """One chunk of a streamed answer. A chunk with `finish` ends its choice; usage may follow it.

    `parts` arrive whole: a finished block of reasoning with its signature (its text was streamed in `reasoning`), or a
    part of a kind slipform does not know. An empty `Text` among them ends the text before it, and its `extra` is what
    the vendor says about that text. `lift` comes with the first chunk only: see `ModelResponse.lift`.

    A named tuple, because there is one for every token and a frozen dataclass takes five times as long to build.

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
    extra: Mapping[str, Any] = _NO_EXTRA
    parts: tuple[Reasoning | Opaque | Media | Text, ...] = ()
    lift: Lift | None = None

    @property
    def only_text(self) -> bool:
        """Whether the chunk only adds text to the first choice; its `model` and `id` do not matter.

        >>> CompletionChunk("a", id="1").only_text, CompletionChunk("a", finish="stop").only_text
        (True, False)
        """
        return self[1:8] == _EMPTY_MIDDLE and self[10:] == _EMPTY_END

    @property
    def only_arguments(self) -> bool:
        """Whether the chunk only adds to the arguments of one call of the first choice; as `only_text`."""
        if len(self.tool_calls) != 1 or self[:3] != _EMPTY_START or self[4:8] != _EMPTY_MIDDLE[3:]:
            return False
        delta = self.tool_calls[0]
        is_plain = delta.id is None and delta.name is None and not delta.extra and not delta.done
        return is_plain and delta.index is not None and self[10:] == _EMPTY_END


_EMPTY_START = CompletionChunk()[:3]
_EMPTY_MIDDLE = CompletionChunk()[1:8]
_EMPTY_END = CompletionChunk()[10:]


def plain_chunks(texts: Sequence[str], call: int = -1) -> list[CompletionChunk]:
    """Return chunks that only add these texts to the first choice, or to the arguments of one of its calls.

    >>> plain_chunks(["a"])[0].text, plain_chunks(["{"], 0)[0].tool_calls[0].arguments
    ('a', '{')
    """
    if call < 0:
        return [CompletionChunk(text) for text in texts]
    return [CompletionChunk("", "", "", (ToolDelta(call, None, None, text, _NO_EXTRA),)) for text in texts]


class ChunkSink(Protocol):
    """Takes the chunks of a streamed answer inside the data_received callback, so that no task wakes for each."""

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Take the chunks of one read; return those that the stream's reader must handle, or None."""

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that only add text to the first choice, with the last chunk's `model` and `id`.

        With `call`, they add to the arguments of the call with that index instead.
        """


class PassThroughSink:
    """A sink that leaves all chunks to the reader of the stream."""

    def push(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Return the chunks."""
        return chunks

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """Return the texts as chunks."""
        return plain_chunks(texts, call)

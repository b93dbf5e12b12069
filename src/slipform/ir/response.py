"""What a model gave back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from slipform.errors import EnforcementError
from slipform.ir.lift import Lift
from slipform.ir.messages import UNRESOLVED, Message, Part, Reasoning, Text, ToolCall
from slipform.ir.quick import quick
from slipform.ir.warnings import ModelWarning

FinishReason: TypeAlias = Literal[
    "stop", "length", "tool_calls", "content_filter", "refusal", "pause", "error", "unknown"
]
"""Why an answer ended; `pause` means the vendor stopped half-way and wants to be asked to go on."""


@quick
@dataclass(frozen=True, slots=True)
class Usage:
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

    def _total(self) -> int | None:
        return self.total if self.total is not None else _add(self.input, self.output)


NO_USAGE: Final = Usage()
"""The vendor said nothing."""


def _add(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


@quick
@dataclass(frozen=True, slots=True)
class ModelResponse:
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
    extra: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    others: tuple[ModelResponse, ...] = ()
    content_resolved: Any = field(default=UNRESOLVED, compare=False, repr=False)
    lift: Lift | None = field(default=None, compare=False, repr=False)
    stopped: EnforcementError | None = field(default=None, compare=False, repr=False)

    @property
    def message(self) -> Message:
        """The assistant's turn, ready to be said again."""
        return Message("assistant", self.parts or _parts(self.reasoning, self.text, self.tool_calls))


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

"""What a model gave back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from slipform.ir.messages import ToolCall
from slipform.ir.warnings import ModelWarning

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "error", "unknown"]


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


def _add(left: int | None, right: int | None) -> int | None:
    if left is None:
        return right
    return left if right is None else left + right


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One answer, in no vendor's spelling; `raw_finish` is the vendor's own word for why it ended."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    refusal: str | None = None
    finish: FinishReason = "stop"
    raw_finish: str | None = None
    usage: Usage = field(default_factory=Usage)
    model: str | None = None
    id: str | None = None
    warnings: tuple[ModelWarning, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

"""What is decided for one request, apart from how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slipform.ir import Lift, ModelWarning, Tool, ToolChoice
from slipform.schema import OutputStrategy

_NOTHING: Final[dict[str, Any]] = {}


class Plan:
    """What was decided for one request, and what the same codec needs to read the answer.

    `strategy` is None when no schema was asked for, `schema` is as the vendor sees it, and `json_object` switches the
    vendor's schema-less JSON mode on. No dataclass: compiled, plain classes are made many times faster.
    """

    __slots__ = (
        "json_object", "lift", "name", "parallel_tool_calls", "reasoning", "schema", "strategy", "strict",
        "tool_choice", "tools", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        strategy: OutputStrategy | None = None,
        name: str = "",
        schema: Mapping[str, Any] = _NOTHING,
        strict: bool = False,
        json_object: bool = False,
        reasoning: Mapping[str, Any] = _NOTHING,
        tools: tuple[Tool, ...] = (),
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        lift: Lift | None = None,
        warnings: tuple[ModelWarning, ...] = (),
    ) -> None:
        self.strategy: Final = strategy
        self.name: Final = name
        self.schema: Final = schema
        self.strict: Final = strict
        self.json_object: Final = json_object
        self.reasoning: Final = reasoning
        self.tools: Final = tools
        self.tool_choice: Final = tool_choice
        self.parallel_tool_calls: Final = parallel_tool_calls
        self.lift: Final = lift
        self.warnings: Final = warnings


class Shape:
    """A schema as one channel takes it."""

    __slots__ = ("lift", "losses", "schema", "strict")

    def __init__(
        self, schema: Mapping[str, Any], strict: bool, lift: Lift | None, losses: tuple[ModelWarning, ...]
    ) -> None:
        self.schema: Final = schema
        self.strict: Final = strict
        self.lift: Final = lift
        self.losses: Final = losses

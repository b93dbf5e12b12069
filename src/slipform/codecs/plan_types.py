"""What is decided for one request, apart from how: plain classes, because `plan` is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slipform.ir import Lift, ModelWarning, Tool, ToolChoice
from slipform.ir.quick import quick
from slipform.schema import OutputStrategy


@quick
@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for one request, and what the same codec needs to read the answer."""

    strategy: OutputStrategy | None = None
    """None when no schema was asked for."""
    name: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """The schema as the vendor sees it."""
    strict: bool = False
    json_object: bool = False
    """Whether to switch the vendor's schema-less JSON mode on."""
    reasoning: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    lift: Lift | None = None
    warnings: tuple[ModelWarning, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """A schema as one channel takes it."""

    schema: Mapping[str, Any]
    strict: bool
    lift: Lift | None
    losses: tuple[ModelWarning, ...]

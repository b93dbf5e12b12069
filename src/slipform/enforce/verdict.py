"""What an answer is held to, and what became of it: plain classes, because `judge` is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from slipform.enforce.fixes import Switches
from slipform.enforce.patch import Patched
from slipform.errors import EnforcementError
from slipform.ir import ModelWarning, ToolCall
from slipform.ir.quick import quick
from slipform.schema import Schema, Violation
from slipform.text.repair_edits import Edit

Validator: TypeAlias = Callable[[Any], str | None]
"""A check of the caller's own: what is wrong with a valid value, or None."""


NOT_TYPED: Final = object()
"""There is no object of the schema's Python type (which may well be None)."""


@dataclass(frozen=True, slots=True)
class Standard:
    """What answers are held to: a schema for the content (or None for any text), and one for each tool's arguments."""

    schema: Schema[Any] | None
    tools: Mapping[str, Schema[Any]] = field(default_factory=dict)
    switches: Switches = field(default_factory=Switches)
    repair: bool = True
    validators: tuple[Validator, ...] = ()
    must_call: tuple[str, ...] = ()
    """One of these tools has to be called; none has to when empty."""
    calls: bool = True
    """Whether tools were offered; where none were, the arguments of a call that came all the same are read as text."""


@quick
@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one answer: a valid value, or the error that says why there is none."""

    value: Any = None
    candidate: str = ""
    """The text that was judged: the value's JSON when there is one, else what the model wrote."""
    repairs: tuple[Edit, ...] = ()
    patched: Patched | None = None
    violations: tuple[Violation, ...] = ()
    warnings: tuple[ModelWarning, ...] = ()
    error: EnforcementError | None = None
    typed: Any = NOT_TYPED
    """The value as an object of the schema's Python type, where there is a valid one."""
    hopeless: bool = False
    """Whether asking again is pointless: it was refused."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The model's calls of the caller's tools, with their arguments mended."""
    wrong_calls: Mapping[str, tuple[Violation, ...]] = field(default_factory=dict)
    """What is wrong with the arguments of which call."""

    @property
    def ok(self) -> bool:
        """Whether there is a valid value."""
        return self.error is None

"""What happened on the way to an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipform.enforce.fixes import Edit as PatchEdit
from slipform.enforce.patch import Patched
from slipform.ir import ModelWarning, Usage
from slipform.ir.quick import quick
from slipform.schema import OutputStrategy, Violation
from slipform.text.repair_edits import Edit

_NOTHING = Usage()


@quick
@dataclass(frozen=True, slots=True)
class Attempt:
    """One model call and what became of its answer; `outcome` is "ok" or an error's code."""

    outcome: str
    strategy: OutputStrategy
    model: str = ""
    candidate: str = ""
    """The JSON that was judged, or what stood in its place."""
    text: str | None = None
    """What the model wrote, kept only when asked for."""
    repairs: tuple[Edit, ...] = ()
    patched: Patched | None = None
    violations: tuple[Violation, ...] = ()
    usage: Usage = _NOTHING
    seconds: float | None = None
    cost: float | None = None

    @property
    def patches(self) -> tuple[PatchEdit, ...]:
        """The mechanical edits that were made."""
        return self.patched.edits if self.patched else ()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        fields: dict[str, Any] = {"outcome": self.outcome, "strategy": self.strategy.value, "model": self.model}
        if self.repairs:
            fields["repairs"] = [edit._asdict() for edit in self.repairs]
        if self.patched:
            fields["patch"] = [
                {**operation, "reason": edit.reason, "risk": edit.risk}
                for operation, edit in zip(self.patched.operations, self.patched.edits, strict=True)
            ]
        if self.violations:
            fields["violations"] = [each.to_dict() for each in self.violations]
        optional = {"text": self.text, "seconds": self.seconds, "cost": self.cost}
        return {**fields, **{name: value for name, value in optional.items() if value is not None}}


@quick
@dataclass(frozen=True, slots=True)
class Report:
    """All attempts of one enforcement, what they cost, and what the caller should know."""

    attempts: tuple[Attempt, ...] = ()
    warnings: tuple[ModelWarning, ...] = ()

    @property
    def usage(self) -> Usage:
        """Tokens over all attempts."""
        if len(self.attempts) == 1 and self.attempts[0].usage.total is not None:
            return self.attempts[0].usage
        total = _NOTHING
        for attempt in self.attempts:
            total += attempt.usage
        return total

    @property
    def cost(self) -> float | None:
        """Money over all attempts, when prices are known."""
        known = [attempt.cost for attempt in self.attempts if attempt.cost is not None]
        return sum(known) if known else None

    @property
    def repaired(self) -> bool:
        """Whether the last answer's text had to be repaired."""
        return bool(self.attempts and self.attempts[-1].repairs)

    @property
    def patched(self) -> bool:
        """Whether the last answer's value had to be patched."""
        return bool(self.attempts and self.attempts[-1].patches)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        usage = self.usage
        spent = {"input": usage.input, "output": usage.output, "total": usage.total}
        fields: dict[str, Any] = {
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "warnings": [_warning(each) for each in self.warnings],
            "usage": {name: value for name, value in spent.items() if value is not None},
        }
        return fields if self.cost is None else {**fields, "cost": self.cost}


def _warning(warning: ModelWarning) -> Mapping[str, Any]:
    fields = {"code": warning.code, "message": warning.message}
    return fields if warning.path is None else {**fields, "path": warning.path}

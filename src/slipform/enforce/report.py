"""What happened on the way to an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slipform.ir import ModelWarning, Usage
from slipform.schema import OutputStrategy, Violation


@dataclass(frozen=True, slots=True)
class Attempt:
    """One model call and what became of its answer; `outcome` is "ok" or an error's code."""

    outcome: str
    violations: tuple[Violation, ...] = ()
    usage: Usage = Usage()  # noqa: RUF009 — Usage is frozen


@dataclass(frozen=True, slots=True)
class Report:
    """All attempts of one enforcement, what they cost, and what the caller should know."""

    strategy: OutputStrategy
    attempts: tuple[Attempt, ...] = ()
    warnings: tuple[ModelWarning, ...] = ()

    @property
    def usage(self) -> Usage:
        """Tokens over all attempts."""
        total = Usage()
        for attempt in self.attempts:
            total += attempt.usage
        return total

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "strategy": self.strategy.value,
            "attempts": [
                {"outcome": attempt.outcome, "violations": [each.to_dict() for each in attempt.violations]}
                for attempt in self.attempts
            ],
            "warnings": [{"code": each.code, "message": each.message} for each in self.warnings],
        }

"""Define the options of enforcement, and override them by path: `Options`, `Budget`, `override`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from slipform.enforce.coercion import Switches
from slipform.enforce.validators import Validator, checked_validators
from slipform.ir.evidence import Evidence
from slipform.ir.request import Guard
from slipform.prices import Price

if TYPE_CHECKING:
    from slipform.enforce.plan import Report


@dataclass(frozen=True, slots=True)
class Budget:
    """What one answer may cost in all; whichever ends first ends the loop."""

    attempts: int = 1
    seconds: float | None = None
    tokens: int | None = None
    money: float | None = None
    calls: int = 24
    """Calls over all models of a fallback list, their attempts and transport retries together."""
    continuations: int = 20
    """How often an answer that is cut off by its token limit is continued; such calls are not attempts."""

    def spent_by(self, report: Report, seconds: float) -> str | None:
        """Which limit is reached, if any."""
        tokens = report.tokens
        limits = (
            ("attempts", self.attempts, len(report.attempts) - report.continuations),
            ("seconds", self.seconds, seconds),
            ("tokens", self.tokens, tokens.total if tokens.total is not None else tokens.output or 0),
            ("money", self.money, 0 if self.money is None else report.cost or 0),
        )
        return next((name for name, limit, used in limits if limit is not None and used >= limit), None)


@dataclass(frozen=True, slots=True)
class Options:
    """How answers are enforced; a client has some, and a call may have others."""

    budget: Budget = field(default_factory=Budget)
    switches: Switches = field(default_factory=Switches)
    repair: bool = True
    validators: tuple[Validator, ...] = ()
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    formatter: str | None = None
    """A model that re-shapes what the first one said, on the last attempt; `auto` is the embedded model, where it is
    installed and not the one that was asked."""
    tools: Literal["enforce", "pass"] = "enforce"
    max_schema_chars: int = 2000
    descriptions: bool = False
    on_failure: Literal["raise", "raw"] = "raise"
    guard: Guard = field(default_factory=Guard)
    """What is done about an answer while it is written; a request's `extra` may ask for more."""
    backoff_seconds: float = 0
    """The pause before an answer is asked for again; streams do not pause."""
    keep_text: bool = False
    prices: Mapping[str, Price] = field(default_factory=dict)
    """What models cost, by `provider/model`, in which `*` stands for any run of characters; the first that fits.
    Other models have the prices that ship with slipform."""
    schema_shown: bool = False
    """Whether the caller's own messages show the schema: nothing is added to them."""
    evidence: Evidence | None = None
    """What is collected for each value of an answer, if anything is."""
    on_incomplete: Literal["respond", "raise"] = "raise"
    """Whether the caller takes refused and truncated answers as they are; the proxy's callers do."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "validators", checked_validators(self.validators))


def override(options: Options, changes: Mapping[str, Any]) -> Options:
    """Return the options with these values, by their paths; None leaves a value unchanged.

    >>> override(Options(), {"budget.attempts": 2, "repair": None}).budget.attempts
    2
    """
    values: dict[str, Any] = {}
    records: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        record, _, name = path.rpartition(".")
        if value is not None:
            (records.setdefault(record, {}) if record else values)[name] = value
    for record, inner in records.items():
        values[record] = replace(getattr(options, record), **inner)
    return replace(options, **values) if values else options

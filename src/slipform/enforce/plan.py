"""Define how answers are enforced and how the results are reported: `Plan`, `Attempt`, `Report`, `Outcome`."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from slipform.enforce.coercion import PatchEdit, Switches
from slipform.enforce.early_stop import EarlyStop
from slipform.enforce.judging import NOT_TYPED, Requirement, Validator
from slipform.enforce.options import Budget, Options
from slipform.enforce.patching import Patched
from slipform.enforce.prompts import Parts, Wording
from slipform.ir import RESERVED_TOOL, FinishReason, ModelRequest, ModelResponse, ModelWarning, ToolCall, Usage
from slipform.ir.evidence import Evidence, FieldEvidence
from slipform.ir.logprobs import LOGPROBS, fit_logprobs
from slipform.ir.parts import with_content
from slipform.ir.request import Guard
from slipform.ir.response import StreamFigures
from slipform.prices import AnyPrice, Price, cost_of
from slipform.schema import OutputStrategy, ResponseFormat, Schema, Violation
from slipform.schema.splitting import SchemaPart
from slipform.text.repair.tokens import RepairEdit

_NOTHING = Usage()


CONTINUED = "continued"
"""The outcome of an attempt that was cut off by its token limit and continued by the next one."""


class CallVerdict(NamedTuple):
    """A call of one of the caller's tools, as the model wrote it, and its violations."""

    call: ToolCall
    violations: tuple[Violation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict as plain data for JSON."""
        violations = [each.to_dict() for each in self.violations]
        return {
            "id": self.call.id,
            "name": self.call.name,
            "arguments": self.call.arguments,
            "violations": violations,
        }


class Attempt(msgspec.Struct, frozen=True):
    """One model call and its result; `outcome` is "ok", "continued" or an error's code."""

    outcome: str
    strategy: OutputStrategy
    model: str = ""
    candidate: str = ""
    """The JSON that was validated; without JSON, the text."""
    text: str | None = None
    """The model's text, recorded only on request."""
    repairs: tuple[RepairEdit, ...] = ()
    patched: Patched | None = None
    violations: tuple[Violation, ...] = ()
    usage: Usage = _NOTHING
    seconds: float | None = None
    price: AnyPrice | None = None
    """The price of its model, if known."""
    asked: str | None = None
    """The text of the retry prompt; if texts are recorded, also the last message of the first request."""
    stream: StreamFigures | None = None
    """How many characters of a streamed answer were received, released and held back."""
    response: ModelResponse | None = None
    """The response, recorded only for evidence."""
    parts: Parts | None = None
    """The requested parts of the earlier answer, if not all of it was requested; recorded only for evidence."""
    error: str | None = None
    """Why the answer broke off, if it did."""
    calls: tuple[CallVerdict, ...] = ()
    """The calls of the caller's tools; not part of the report's JSON, which contains no text of the model."""

    @property
    def cost(self) -> float | None:
        """The cost of the attempt, if price and tokens are known."""
        if self.price is None:
            return None
        return cost_of(self.price, self.usage)

    @property
    def patches(self) -> tuple[PatchEdit, ...]:
        """The mechanical edits that were applied."""
        return self.patched.edits if self.patched else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the attempt as plain data for JSON."""
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
        if usage := self.usage.to_dict():
            fields["usage"] = usage
        if self.stream is not None:
            fields["stream"] = self.stream.to_dict()
        optional = {
            "asked": self.asked,
            "text": self.text,
            "error": self.error,
            "seconds": self.seconds,
            "cost": self.cost,
        }
        return {**fields, **{name: value for name, value in optional.items() if value is not None}}


def _summary(attempt: Attempt) -> str:
    counts = {"repairs": attempt.repairs, "patches": attempt.patches, "violations": attempt.violations}
    details = [f", {name}: {len(entries)}" for name, entries in counts.items() if entries]
    return f"{attempt.model} ({attempt.strategy.value}): {attempt.outcome}{''.join(details)}"


class Report(msgspec.Struct, frozen=True):
    """All attempts of one enforcement, their cost, and the warnings for the caller."""

    attempts: tuple[Attempt, ...] = ()
    warnings: tuple[ModelWarning, ...] = ()
    fallbacks: int = 0
    """The number of models of a fallback list that failed; their attempts are included."""
    notes: tuple[ModelWarning, ...] = ()
    """Notes on lossless changes: text left out around the JSON, objects closed for a vendor."""
    fallback_errors: tuple[Mapping[str, Any], ...] = ()
    """Why each of these models failed: its name, the code and the message of the error."""
    evidence: Mapping[str, FieldEvidence] | None = None
    """The evidence for each value of the answer, by JSON Pointer, if requested."""
    samples: tuple[Attempt, ...] = ()
    """The further answers that the values were compared with."""

    def __str__(self) -> str:
        lines = [f"{number}. {_summary(attempt)}" for number, attempt in enumerate(self.attempts, 1)]
        return "\n".join([*lines, *[f"Warning: {warning.message}" for warning in self.warnings]])

    def replace(self, **changes: Any) -> Report:
        """Return a copy with these fields changed."""
        return msgspec.structs.replace(self, **changes)

    @property
    def tokens(self) -> Usage:
        """The tokens of all attempts."""
        if len(self.attempts) == 1 and not self.samples:
            usage = self.attempts[0].usage
            if usage.total is not None or (usage.input is None and usage.output is None):
                return usage
        total = _NOTHING
        for attempt in (*self.attempts, *self.samples):
            total += attempt.usage
        return total

    @property
    def usage(self) -> Usage:
        """The tokens of all attempts, with their cost if prices are known."""
        cost = self.cost
        if cost is None:
            return self.tokens
        return msgspec.structs.replace(self.tokens, cost=cost)

    @property
    def cost(self) -> float | None:
        """The cost of all attempts, if prices are known."""
        if len(self.attempts) == 1 and not self.samples:
            attempt = self.attempts[0]
            return None if attempt.price is None else cost_of(attempt.price, attempt.usage)
        costs = [cost for attempt in (*self.attempts, *self.samples) if (cost := attempt.cost) is not None]
        return sum(costs) if costs else None

    @property
    def continuations(self) -> int:
        """How often the answer was cut off by its token limit and continued."""
        return sum([attempt.outcome == CONTINUED for attempt in self.attempts])

    @property
    def repaired(self) -> bool:
        """Whether the last answer's text had to be repaired."""
        return bool(self.attempts and self.attempts[-1].repairs)

    @property
    def patched(self) -> bool:
        """Whether the last answer's value had to be patched."""
        return bool(self.attempts and self.attempts[-1].patches)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        usage = self.usage
        spent = {"input": usage.input, "output": usage.output, "total": usage.total}
        fields: dict[str, Any] = {
            "attempts": [attempt.to_dict() for attempt in self.attempts],
            "warnings": [_warning(each) for each in self.warnings],
            "usage": {name: value for name, value in spent.items() if value is not None},
        }
        if self.notes:
            fields["notes"] = [_warning(each) for each in self.notes]
        if self.fallbacks:
            fields["fallbacks"] = self.fallbacks
            fields["fallback_errors"] = list(self.fallback_errors)
        if self.samples:
            fields["samples"] = [attempt.to_dict() for attempt in self.samples]
        if self.evidence is not None:
            fields["evidence"] = {pointer: each.to_dict() for pointer, each in self.evidence.items()}
        if usage.cost is None:
            return fields
        return {**fields, "cost": usage.cost}


def _warning(warning: ModelWarning) -> Mapping[str, Any]:
    fields = {"code": warning.code, "message": warning.message}
    if warning.path is None:
        return fields
    return {**fields, "path": warning.path}


@dataclass(frozen=True, slots=True)
class Formatter:
    """A second model that reformats the first model's answer on the last attempt."""

    model: str
    strategy: OutputStrategy = OutputStrategy.NATIVE
    wording: Wording = field(default_factory=Wording)


class PartPlan(NamedTuple):
    """A part of a wide schema: its fields, and how its answer is enforced."""

    shape: SchemaPart
    response_format: ResponseFormat
    plan: Plan


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How a wide schema is requested in parts."""

    parts: tuple[PartPlan, ...]
    """The parts that are requested at the same time; empty if the whole is tried first."""
    halves: Callable[[], tuple[PartPlan, ...]]
    """Returns the parts to request after the vendor has refused the whole as too large."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one answer is enforced; without a schema, only tool calls are validated."""

    schema: Schema[Any] | None
    strategy: OutputStrategy = OutputStrategy.PROMPTED
    budget: Budget = field(default_factory=Budget)
    wording: Wording = field(default_factory=Wording)
    tools: Mapping[str, Schema[Any]] = field(default_factory=dict)
    must_call: tuple[str, ...] = ()
    """The model must call one of these tools; empty if it need not call any."""
    answer_tool: str | None = RESERVED_TOOL
    """The reserved tool whose arguments are the answer; None if the caller has a tool of this name."""
    calls: bool = True
    """Whether the caller accepts tool calls as an answer; not if no tools were offered."""
    loads_tools: bool = False
    """Whether the vendor may call tools that it has loaded itself."""
    stronger: tuple[OutputStrategy, ...] = ()
    """Strategies to continue with after two failures of the first."""
    formatter: Formatter | None = None
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    switches: Switches = field(default_factory=Switches)
    repair: bool = True
    validators: tuple[Validator, ...] = ()
    on_failure: Literal["raise", "raw"] = "raise"
    """What a failed enforcement returns: an error, or the unchanged text with a warning."""
    on_incomplete: Literal["respond", "raise"] = "raise"
    """Whether the caller accepts an answer cut off by its token limit, which is then not retried."""
    prompt_cache: Literal["auto", "on", "off"] = "auto"
    """Whether the part that requests share is marked for the vendor's cache; `auto` means off here."""
    guard: Guard = field(default_factory=Guard)
    guarded_decoding: bool = False
    """Whether the provider supports the guard's options."""
    keep_text: bool = False
    """Whether the report records the model's text."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """The caller's own prices, by `provider/model`."""
    backoff_seconds: float = 0
    """The delay before each further call, observed by the driver of the loop."""
    checks: tuple[Callable[[Any], Sequence[Violation]], ...] = ()
    """slipform's own checks of a valid value."""
    evidence: Evidence | None = None
    """The evidence to collect for each value of the answer, if any."""
    clock: Callable[[], float] = time.monotonic
    heavy: bool | None = None
    """Whether work on its schemas must not run on event loops; None if that is not yet known."""
    split: SplitPlan | None = None
    """How the schema is requested in parts, if it is so wide that the vendor may refuse it."""
    standard: Requirement = field(init=False, repr=False, compare=False)
    """The requirement that answers are validated against."""

    @staticmethod
    def shared(options: Options) -> dict[str, Any]:
        """Return the plan's fields that come from the options and have the same names there."""
        return {name: getattr(options, name) for name in _SHARED}

    def __post_init__(self) -> None:
        standard = Requirement(
            self.schema,
            self.tools,
            self.switches,
            self.repair,
            self.validators,
            self.must_call,
            self.calls,
            self.guard.strict_trailing,
            self.checks,
            self.answer_tool,
            self.loads_tools,
        )
        object.__setattr__(self, "standard", standard)

    def watch(self, request: ModelRequest) -> EarlyStop | None:
        """Return a new guard for the answer to this request, or None if nothing is checked while it is generated."""
        if not self.guard.watches or self.schema is None or request.tools:
            return None
        response_format = request.response_format
        strategy = OutputStrategy.AUTO if response_format is None else response_format.strategy
        if (self.strategy if strategy is OutputStrategy.AUTO else strategy) is OutputStrategy.TOOL:
            return None  # the answer is the call's arguments, whose end the vendor marks
        schema = self.schema if response_format is None else Schema.of(response_format.json_schema)
        return EarlyStop(self.guard, schema, self.switches)


_RESOLVED = frozenset({"tools", "formatter", "guard", "evidence", "split"})
"""Fields of a plan that also depend on the request and the model."""
_SHARED = tuple({each.name for each in fields(Options)} & {each.name for each in fields(Plan)} - _RESOLVED)


class Outcome(msgspec.Struct, frozen=True, dict=True):
    """A valid value, its compact JSON, and the report; `response` is the last one, with its tool calls patched."""

    value: Any
    text: str
    response: ModelResponse
    report: Report
    typed: Any = NOT_TYPED
    """The value as an object of the schema's Python type; `NOT_TYPED` if the answer was returned unchanged."""

    @property
    def is_valid(self) -> bool:
        """Whether the answer is valid; False if `on_failure` returned it unchanged."""
        return self.report.attempts[-1].outcome == "ok"

    @property
    def _finish(self) -> FinishReason:
        """The finish reason of an answer without calls: valid JSON has ended normally, even at a token limit."""
        finish = self.response.finish
        is_any_text = isinstance(self.value, str) and self.value == self.text
        if finish == "pause" or (finish == "length" and is_any_text):
            return finish
        return "stop"

    @property
    def _has_value(self) -> bool:
        """Whether the text was read as JSON; without a schema, the value of an answer is its text."""
        return self.value is not self.text and self.is_valid

    @cached_property
    def answer(self) -> ModelResponse:
        """The last response with its text in the caller's shape and the usage of all attempts."""
        response = self.response
        calls = response.tool_calls
        return ModelResponse(
            self.text,
            calls,
            response.reasoning,
            response.refusal,
            "tool_calls" if calls else self._finish,
            response.raw_finish,
            self.report.usage,
            response.model,
            response.id,
            response.warnings,
            _extra(response, self.text) if LOGPROBS in response.extra else response.extra,
            with_content(response.parts, self.text, calls) if response.parts else (),
            content_resolved=response.content_resolved if calls or not self._has_value else self.value,
            stopped=response.stopped,
        )


def _extra(response: ModelResponse, text: str) -> Mapping[str, Any]:
    """Return the vendor's further fields, with the probabilities of the tokens of the returned text."""
    fitted = response.extra[LOGPROBS] if text == response.text else fit_logprobs(response.extra[LOGPROBS], text)
    return {**response.extra, LOGPROBS: fitted or response.extra[LOGPROBS]}


Steps: TypeAlias = Generator[ModelRequest, ModelResponse, Outcome]


class Collector(NamedTuple):
    """An add-on that collects more about the answers of enforced calls; it does no I/O."""

    prepare: Callable[[Plan, ModelRequest, Evidence], Plan]
    """Returns the plan with the checks and options that collecting needs."""
    collect: Callable[[ModelRequest, Plan], Steps]
    """Enforces a request like `enforce`, sends further requests if needed, and completes the report."""

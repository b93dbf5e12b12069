"""Define the options of enforcement, and override them by path: `Options`, `Budget`, `override`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from slipform.enforce.coercion import Switches
from slipform.errors import ConfigError
from slipform.ir.evidence import Evidence
from slipform.ir.request import Guard
from slipform.prices import Price
from slipform.schema.violations import Violation, path_steps, violation_at

if TYPE_CHECKING:
    from slipform.enforce.plan import Report

Place: TypeAlias = str | Sequence[str | int]
"""A path in the answer's JSON: `items[0].price`, or its steps `("items", 0, "price")`."""
Complaint: TypeAlias = str | tuple[Place, str]
"""A description of a fault in an answer, with or without its path."""
Validator: TypeAlias = Callable[[Any], Complaint | Sequence[Complaint] | None]
"""A check of a valid answer: receives the typed value; returns a complaint or None, or raises `ValueError`."""


def checked_validators(validators: object) -> tuple[Validator, ...]:
    """Return the validators as a tuple; raises `ConfigError` for objects that cannot be called with one value.

    >>> checked_validators([print]) == (print,)
    True
    """
    if not isinstance(validators, list | tuple):
        raise ConfigError("`validators` is a list of functions", hint="Write `validators=[check]`.")
    for validator in validators:
        if not callable(validator):
            raise ConfigError(f"A validator must be a function, not {validator!r:.80}")
        if inspect.iscoroutinefunction(validator):
            raise ConfigError(
                f"The validator {_name(validator)} is async, and validators are plain functions",
                hint="Check what has to be awaited after the call.",
            )
        try:
            inspect.signature(validator).bind(None)
        except TypeError as error:
            raise ConfigError(
                f"The validator {_name(validator)} cannot be called with the answer alone: {error}",
                hint="It takes one argument, the typed answer.",
            ) from error
        except ValueError:  # some built-in functions have no signature
            continue
    return tuple(validators)


def complaints(validators: Sequence[Validator], typed: Any, value: Any) -> list[Violation]:
    """Return the complaints of the validators about an answer, given as its typed object and as its JSON value.

    >>> [found.json_path for found in complaints([lambda age: ("$", "too young")], 3, 3)]
    ['$']
    """
    violations: list[Violation] = []
    for validator in validators:
        try:
            returned = validator(typed)
        except (ValueError, AssertionError) as error:
            returned = str(error) or type(error).__name__
        except Exception as error:
            error.add_note(f"It was raised by the validator {_name(validator)}, which gets a {type(typed).__name__}.")
            raise
        violations += [_violation(each, validator, value) for each in _as_list(returned)]
    return violations


def _as_list(returned: Any) -> Sequence[Any]:
    """Return the result of a validator as a list of complaints; a pair of path and text is one complaint."""
    if returned is None:
        return ()
    if isinstance(returned, list):
        return returned
    pair = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], str)
    if isinstance(returned, tuple) and not pair:
        return returned
    return (returned,)


def _violation(complaint: Any, validator: Validator, value: Any) -> Violation:
    """Return a validator's complaint as a violation; raises `TypeError` for any other value."""
    if isinstance(complaint, str):
        return violation_at((), "validator", complaint, value)
    place, message = complaint if isinstance(complaint, tuple) and len(complaint) == 2 else (None, None)
    if isinstance(place, str | tuple | list) and isinstance(message, str):
        steps = path_steps(place) if isinstance(place, str) else tuple(place)
        return violation_at(steps, "validator", message, value)
    raise TypeError(
        f"The validator {_name(validator)} returned {complaint!r:.80}; "
        "return None, a text that says what is wrong, or a pair of the place and the text"
    )


def _name(validator: Any) -> str:
    return repr(getattr(validator, "__name__", type(validator).__name__))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the cost of one answer; the first limit that is reached ends the loop."""

    attempts: int = 3
    """Model calls per answer: the default of every interface, from Python to the proxy."""
    seconds: float | None = None
    tokens: int | None = None
    money: float | None = None
    calls: int = 24
    """Calls over all models of a fallback list, including attempts and transport retries."""
    continuations: int = 20
    """How often a cut-off answer is continued; continuations do not count as attempts."""

    def spent_by(self, report: Report, seconds: float) -> str | None:
        """Return the name of the limit that is reached, or None."""
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
    """The options of enforcement: a client's defaults, which one call may override."""

    budget: Budget = field(default_factory=Budget)
    switches: Switches = field(default_factory=Switches)
    repair: bool = True
    validators: tuple[Validator, ...] = ()
    reask_scope: Literal["auto", "full", "parts"] = "auto"
    formatter: str | None = None
    """A model that reformats the first model's answer on the last attempt; `auto` is the embedded model, if it is
    installed and not the model in use."""
    tools: Literal["enforce", "pass"] = "enforce"
    max_schema_chars: int = 2000
    descriptions: bool = False
    on_failure: Literal["raise", "raw"] = "raise"
    guard: Guard = field(default_factory=Guard)
    """Checks of an answer while it is generated; a request's `extra` may enable more."""
    backoff_seconds: float = 0
    """The delay before a retry; streams do not wait."""
    keep_text: bool = False
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices by `provider/model`, in which `*` matches any characters; the first match counts. Other models have the
    prices that ship with slipform."""
    schema_shown: bool = False
    """Whether the caller's own messages show the schema, so that the prompt does not repeat it."""
    evidence: Evidence | None = None
    """The evidence to collect for each value of an answer, if any."""
    on_incomplete: Literal["respond", "raise"] = "raise"
    """Whether refused and truncated answers are returned instead of raised; the proxy's callers accept them."""
    prompt_cache: Literal["auto", "on", "off"] = "auto"
    """Whether the part that requests share (system, tools, schema) is marked for the vendor's prompt cache. `auto`: in
    jobs of many requests."""
    split: Literal["auto", "never"] = "auto"
    """Whether a schema that the vendor refuses as too large is requested in parts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "validators", checked_validators(self.validators))


def for_many(options: Options) -> Options:
    """Return these options for a job of many requests.

    >>> for_many(Options()).prompt_cache
    'on'
    """
    return replace(options, prompt_cache="on") if options.prompt_cache == "auto" else options


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

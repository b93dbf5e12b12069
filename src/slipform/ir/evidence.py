"""Represent the evidence for an answer: what is requested (`Evidence`), and per value (`FieldEvidence`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from slipform.errors import ConfigError

How: TypeAlias = Literal["exact", "normalised", "fuzzy", "partial"]
Signal: TypeAlias = Literal["logprobs", "agreement"]
Touch: TypeAlias = Literal["repaired", "patched", "re-asked", "filled"]
"""A change of a value by slipform: its text was repaired, it was changed or moved, retried, or inserted."""
MOST_SAMPLES = 20


class Span(NamedTuple):
    """A place of the source, in characters: `source[start:end]`."""

    start: int
    end: int
    how: How
    """`exact`: letter by letter; `normalised`: another notation; `fuzzy`: similar; `partial`: a part of the value."""
    ambiguous: bool = False
    """Whether other places are equally likely; all of them are listed."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence that a call collects for each value of its answer.

    >>> Evidence(source="Ada, 36", require_grounded=["/name"]).require_grounded
    ('/name',)
    """

    source: str | None = None
    """The text that the answer is taken from; None for the last user message."""
    confidence: Literal["logprobs"] | None = None
    """`logprobs`: the probabilities of tokens are requested from the model's vendor."""
    samples: int = 0
    """Further answers to the same request, at temperature 1, that each value is compared with; each is a model call."""
    require_grounded: Sequence[str] = ()
    """Places whose values must be in the source: JSON Pointers, `*` for any key or item. One that does not is a
    violation, and the request is retried. Null, booleans, empty strings and values that the schema lists (`enum`,
    `const`) need not be there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "require_grounded", _pointers(self.require_grounded))
        if self.source is not None and not isinstance(self.source, str):
            raise ConfigError("`source` is the text itself", where="evidence.source")
        if self.confidence not in (None, "logprobs"):
            raise ConfigError(
                f"{self.confidence!r:.60} is not a signal", where="evidence.confidence", hint="Use `logprobs`."
            )
        count = self.samples
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_SAMPLES:
            raise ConfigError(
                f"`samples` is a number from 0 to {MOST_SAMPLES}, not {count!r:.60}", where="evidence.samples"
            )

    @classmethod
    def of(cls, value: Any) -> Evidence:
        """Read the JSON form: `true` for the defaults, or an object with these fields; raises `ConfigError`.

        >>> Evidence.of({"confidence": "logprobs"}).confidence
        'logprobs'
        """
        if value is True:
            return cls()
        names = cls.__match_args__
        if not isinstance(value, Mapping) or not set(value) <= set(names):
            raise ConfigError(
                "`evidence` is true or an object", where="evidence", hint=f"Its fields are {', '.join(names)}."
            )
        return cls(**value)


def _pointers(pointers: Any) -> tuple[str, ...]:
    """Return the JSON Pointers of `require_grounded`; raises `ConfigError` for anything else."""
    if not isinstance(pointers, list | tuple) or not all(isinstance(each, str) for each in pointers):
        raise ConfigError("`require_grounded` is a list of JSON Pointers", where="evidence.require_grounded")
    wrong = next((each for each in pointers if each and not each.startswith("/")), None)
    if wrong is not None:
        raise ConfigError(
            f"{wrong!r:.60} is not a JSON Pointer", where="evidence.require_grounded", hint=f"Write /{wrong:.60}."
        )
    return tuple(pointers)


def needs_a_place(leaf: Any) -> bool:
    """Return whether a value should be in its source: null, booleans and empty strings need not.

    >>> needs_a_place(0), needs_a_place(False), needs_a_place("")
    (True, False, False)
    """
    return leaf is not None and leaf != "" and not isinstance(leaf, bool)


@dataclass(frozen=True, slots=True)
class FieldEvidence:
    """The evidence for one value of an answer.

    >>> FieldEvidence((Span(0, 3, "exact"),), confidence=0.93, signal="logprobs").to_dict()
    {'spans': [{'start': 0, 'end': 3, 'how': 'exact'}], 'confidence': 0.93, 'signal': 'logprobs'}
    """

    spans: tuple[Span, ...] = ()
    """Its places in the source; empty if there are none."""
    confidence: float | None = None
    """A score between 0 and 1, not a probability of being right; None where it is unknown."""
    signal: Signal | None = None
    """The source of the score: the value's tokens, or the votes of other answers."""
    reason: str | None = None
    """Why the score is missing, where one was requested."""
    least: float | None = None
    """The probability of the value's least likely token."""
    tokens: int = 0
    """The number of tokens in the score."""
    votes: int | None = None
    """The number of further answers with the same value at this place."""
    samples: int = 0
    """The number of further answers."""
    touched: tuple[Touch, ...] = ()
    """The changes of the value by slipform."""
    searched: bool = True
    """Whether it was looked up in the source; False where that would take too much work."""
    listed: bool = False
    """Whether the schema lists its values (`enum`, `const`): such words need not be in the source."""
    missing: bool = False
    """Whether it is an empty text where the schema requires one."""

    @property
    def ambiguous(self) -> bool:
        """Whether it has several places that are equally likely."""
        return any(span.ambiguous for span in self.spans)

    @property
    def grounded(self) -> bool:
        """Whether all of it is in the source."""
        return any(span.how != "partial" for span in self.spans)

    def should_be_there(self, leaf: Any) -> bool:
        """Return whether the value should be in its source; so should one that is `missing`.

        >>> FieldEvidence().should_be_there("Rome"), FieldEvidence(listed=True).should_be_there("positive")
        (True, False)
        """
        return self.missing or (needs_a_place(leaf) and not self.listed)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `spans` and `confidence` always, other fields where they are set."""
        spans = [{name: each for name, each in span._asdict().items() if each is not False} for span in self.spans]
        fields: dict[str, Any] = {"spans": spans, "confidence": self.confidence}
        optional = {
            "signal": self.signal,
            "reason": self.reason,
            "least": self.least,
            "tokens": self.tokens or None,
            "votes": self.votes,
            "samples": self.samples or None,
            "touched": list(self.touched) or None,
            "searched": None if self.searched else False,
            "listed": self.listed or None,
            "missing": self.missing or None,
        }
        return fields | {name: value for name, value in optional.items() if value is not None}

    @classmethod
    def from_dict(cls, fields_by_name: Mapping[str, Any]) -> FieldEvidence:
        """Read the result of `to_dict`.

        >>> FieldEvidence.from_dict({"spans": [{"start": 0, "end": 3, "how": "fuzzy"}]}).spans[0].how
        'fuzzy'
        """
        spans = tuple(Span(**span) for span in fields_by_name.get("spans", ()))
        if wrong := next((span for span in spans if span.how not in get_args(How)), None):
            raise ValueError(f"{wrong.how!r} is not a kind of match in a source")
        return cls(**{**fields_by_name, "spans": spans, "touched": tuple(fields_by_name.get("touched", ()))})

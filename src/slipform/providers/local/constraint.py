"""A JSON Schema → a grammar that the engine decodes under.

The engine goes on *unconstrained* when a grammar does not compile, so every grammar is compiled here first.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slipform.bounded import BoundedCache
from slipform.ir import ModelWarning
from slipform.providers.local.bounds import limits_for, narrow
from slipform.providers.local.fit import fit
from slipform.providers.local.formats import with_whole_formats
from slipform.providers.local.grammar import grammar_problem
from slipform.providers.local.hold import Held, holdings
from slipform.providers.local.patterns import with_twins, without_escapes
from slipform.providers.local.reach import Bounds
from slipform.providers.local.walk import Pointer, written
from slipform.providers.local.weaken import Loss
from slipform.providers.local.wrap import KEY, needs_wrapping

# On one line, spaced as most JSON is. Left to choose, a small model may go on writing blanks: however short the blanks
# that a grammar allows, it allows them again. Without any (`{"a":1}`) answers get worse; like this they do not.
_WEAKENED = "constraint_weakened"
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A value's rule in a grammar, known to compile; `warnings` names what it leaves to the validator."""

    rule: str
    warnings: tuple[ModelWarning, ...] = ()
    wrapped: bool = False
    """Whether the answer comes under one key; see `wrap`."""
    bounds: Bounds | None = None
    """What the token limit left no room for."""

    @property
    def exact(self) -> bool:
        """Whether every answer under this grammar is valid, if it is not cut off."""
        return all(warning.code != _WEAKENED for warning in self.warnings)

    def reached(self, text: str) -> tuple[ModelWarning, ...]:
        """What the bounds that decoding adds took from a finished answer, in the engine's own words."""
        if self.bounds is None:
            return ()
        return self.bounds.warnings(text, KEY if self.wrapped else None)

    @property
    def grammar(self) -> str:
        """The whole grammar, as the engine reads it."""
        if not self.wrapped:
            return f"%llguidance {{}}\nstart: {self.rule}"
        return f"%llguidance {{}}\nstart: {under(KEY, 'value')}\nvalue: {self.rule}"


def constrain(schema: Mapping[str, Any], max_tokens: int, *, certain: bool = False) -> Constraint:
    """The strongest grammar for `schema` whose answers can close within `max_tokens`.

    Where the schema says what no grammar can hold, the grammar takes more than the schema does. A `certain` one takes
    less instead, wherever something valid is left then: for a model whose first answer was not valid.

    >>> constrain({"type": "array", "uniqueItems": True}, 100).warnings[0].path
    '/uniqueItems'
    >>> constrain({"type": "array", "uniqueItems": True}, 100, certain=True).exact
    True
    """
    return _constrain(json.dumps(schema), max_tokens, certain)


def any_object(max_tokens: int) -> Constraint:
    """The grammar of JSON mode: an object of any shape."""
    return constrain({"type": "object"}, max_tokens)


def under(key: str, rule: str) -> str:
    """The rule for an object that holds one key with a value of another rule."""
    return f'{literal(f"{{{json.dumps(key)}: ")} {rule} "}}"'


def literal(text: str) -> str:
    """A text as the grammar quotes it."""
    return json.dumps(text)


def _constrain(source: str, max_tokens: int, certain: bool) -> Constraint:
    key = (source, max_tokens, certain)
    made = _CONSTRAINTS.use(key)
    if made is None:
        made = _constrained(*key)
        _CONSTRAINTS.put(key, made, 5_000 + 50 * len(source) + 4 * len(made.rule))
    return made


_CONSTRAINTS = BoundedCache[tuple[str, int, bool], Constraint]("grammars", entries=256, max_bytes=32_000_000)


def _constrained(source: str, max_tokens: int, certain: bool) -> Constraint:
    schema = json.loads(source)
    wrapped = needs_wrapping(schema)
    for held in holdings(schema, certain=certain):
        if narrowed := _narrowed(held, max_tokens, wrapped):
            return narrowed
    plainer, dropped = without_escapes(held.schema)
    losses = held.losses + tuple(Loss(pointer, "the engine does not take it") for pointer in dropped)
    return Constraint(_spell(plainer), _warnings(dataclasses.replace(held, losses=losses)), wrapped)


def _narrowed(held: Held, max_tokens: int, wrapped: bool) -> Constraint | None:
    """The first of several narrowings that compiles."""
    for narrowed, left_out in _narrowings(held.schema, max_tokens):
        bounds = Bounds(narrowed, held.schema, left_out, max_tokens)
        for rule in dict.fromkeys((_spell(with_whole_formats(narrowed)), _spell(narrowed))):
            constraint = Constraint(rule, _warnings(held), wrapped, bounds)
            if grammar_problem(constraint.grammar) is None:
                return constraint
    return None


def _narrowings(schema: Mapping[str, Any], max_tokens: int) -> Iterator[tuple[dict[str, Any], tuple[Pointer, ...]]]:
    """The schema with its ends closed, in several ways: what is too much for the compiler one way may do another."""
    for patterns in (True, False):
        fitted = fit(schema, max_tokens, patterns=patterns)
        yield fitted.schema, fitted.left_out
    limits = limits_for(schema, max_tokens)
    for patterns, close in ((True, True), (False, True), (True, False), (False, False)):
        yield narrow(schema, dataclasses.replace(limits, patterns=patterns, close=close and limits.close)), ()
    yield dict(schema), ()


def _spell(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**with_twins(schema), "x-guidance": _STYLE})


def _warnings(held: Held) -> tuple[ModelWarning, ...]:
    weakened = tuple(
        ModelWarning(
            _WEAKENED,
            f"Decoding is not held to {written(loss.pointer) or 'the root'} ({loss.action}: {_brief(loss.reason)}); "
            "the answer is checked against all of the schema.",
            written(loss.pointer),
        )
        for loss in held.losses
    )
    return weakened + tuple(
        ModelWarning(
            "constraint_narrowed",
            f"Decoding takes less at {written(place) or 'the root'} than the schema does, so that the answer is valid.",
            written(place),
        )
        for place in dict.fromkeys(held.narrowed)
    )


def _brief(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines()]
    return next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")

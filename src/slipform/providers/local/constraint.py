"""A JSON Schema → a grammar that the engine decodes under.

The engine goes on *unconstrained* when a grammar does not compile, so every grammar is compiled here first.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from slipform.errors import UnsupportedSchemaError
from slipform.ir import ModelWarning
from slipform.providers.local.bounds import limits_for, narrow
from slipform.providers.local.fit import fit
from slipform.providers.local.grammar import grammar_problem
from slipform.providers.local.walk import written
from slipform.providers.local.weaken import Loss, weaken
from slipform.providers.local.wrap import KEY, needs_wrapping

# On one line, spaced as most JSON is. Left to choose, a small model may go on writing blanks: however short the blanks
# that a grammar allows, it allows them again. Without any (`{"a":1}`) answers get worse; like this they do not.
_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True)
class Constraint:
    """A value's rule in a grammar, known to compile; `warnings` names what it leaves to the validator."""

    rule: str
    warnings: tuple[ModelWarning, ...] = ()
    wrapped: bool = False
    """Whether the answer comes under one key; see `wrap`."""

    @property
    def exact(self) -> bool:
        """Whether every answer under this grammar is valid, if it is not cut off."""
        return not self.warnings

    @property
    def grammar(self) -> str:
        """The whole grammar, as the engine reads it."""
        if not self.wrapped:
            return f"%llguidance {{}}\nstart: {self.rule}"
        return f"%llguidance {{}}\nstart: {under(KEY, 'value')}\nvalue: {self.rule}"


def constrain(schema: Mapping[str, Any], max_tokens: int) -> Constraint:
    """The strongest grammar for `schema` whose answers can close within `max_tokens`.

    >>> constrain({"type": "array", "uniqueItems": True}, 100).warnings[0].path
    '/uniqueItems'
    """
    return _constrain(json.dumps(schema), max_tokens)


def any_object(max_tokens: int) -> Constraint:
    """The grammar of JSON mode: an object of any shape."""
    return constrain({"type": "object"}, max_tokens)


def under(key: str, rule: str) -> str:
    """The rule for an object that holds one key with a value of another rule."""
    return f'{literal(f"{{{json.dumps(key)}: ")} {rule} "}}"'


def literal(text: str) -> str:
    """A text as the grammar quotes it."""
    return json.dumps(text)


@lru_cache(maxsize=256)
def _constrain(source: str, max_tokens: int) -> Constraint:
    schema = json.loads(source)
    wrapped = needs_wrapping(schema)
    weakened, losses, fatal = weaken(schema)
    if fatal is not None:
        weakened, losses = _shape_only(schema, fatal)
    limits = limits_for(weakened, max_tokens)
    attempts = (
        limits,
        dataclasses.replace(limits, patterns=False),
        dataclasses.replace(limits, close=False),
        dataclasses.replace(limits, patterns=False, close=False),
    )
    for patterns in (True, False):
        fitted = fit(weakened, max_tokens, patterns=patterns)
        constraint = Constraint(_spell(fitted.schema), _warnings(losses), wrapped)
        if grammar_problem(constraint.grammar) is None:
            return constraint
    for attempt in attempts:
        constraint = Constraint(_spell(narrow(weakened, attempt)), _warnings(losses), wrapped)
        if grammar_problem(constraint.grammar) is None:
            return constraint
    return Constraint(_spell(weakened), _warnings(losses), wrapped)


def _spell(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _STYLE})


def _shape_only(schema: Mapping[str, Any], fatal: str) -> tuple[dict[str, Any], tuple[Loss, ...]]:
    """The root's type and nothing else: still JSON of the right kind, and all the rest is the validator's."""
    kind = schema.get("type")
    if "Unsatisfiable" in fatal or kind is None:
        raise UnsupportedSchemaError(
            f"The embedded model cannot decode under this schema: {fatal}",
            hint="Take that keyword out of the schema, or send the request to another provider.",
        )
    return {"type": kind}, (Loss((), fatal, "all but the type dropped"),)


def _warnings(losses: tuple[Loss, ...]) -> tuple[ModelWarning, ...]:
    return tuple(
        ModelWarning(
            "constraint_weakened",
            f"Decoding is not held to {written(loss.pointer) or 'the root'} ({loss.action}: {_brief(loss.reason)}); "
            "the answer is checked against all of the schema.",
            written(loss.pointer),
        )
        for loss in losses
    )


def _brief(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines()]
    return next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")

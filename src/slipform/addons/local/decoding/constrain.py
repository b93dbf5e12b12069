"""Build the strongest grammar for a schema that the engine accepts.

Left alone with a bare number, a small model writes digits until the token limit; inside an object it stops.

The engine continues *unconstrained* when a grammar does not compile, so every grammar is compiled here first.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipform.addons.local.decoding.budget import AddedBounds, limits_for, narrow, no_limits, with_merged_forms
from slipform.addons.local.decoding.fit import fit
from slipform.addons.local.decoding.patterns import (
    grammar_problem,
    json_rule,
    with_whole_formats,
    without_escapes,
)
from slipform.addons.local.decoding.rewrite import Rewritten, rewrite_schema
from slipform.addons.local.decoding.weaken import DroppedKeyword, is_cycle, prune, weaken
from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.ir import Message, ModelWarning, ToolCall
from slipform.schema.document import REF, Pointer, join_pointer, lookup, with_plain_references
from slipform.schema.shape import Shape, estimated_bytes
from slipform.schema.validator import compile_schema


@dataclass(frozen=True, slots=True)
class ConstraintCandidate:
    """A schema that decoding could be constrained to."""

    schema: dict[str, Any]
    losses: tuple[DroppedKeyword, ...] = ()
    """Keywords of the caller's schema that it does not enforce."""
    narrowed: tuple[Pointer, ...] = ()
    """Places where it excludes valid values."""


def constraint_candidates(schema: Mapping[str, Any], *, exact: bool) -> Iterator[ConstraintCandidate]:
    """Yield candidates, the strongest first; with `exact`, they exclude valid values rather than accept invalid ones.

    Raises after the last candidate, if none of them compiles.

    >>> first = next(constraint_candidates({"type": "array", "uniqueItems": True}, exact=False))
    >>> [loss.pointer for loss in first.losses]
    [('uniqueItems',)]
    """
    rewritten = rewrite_schema(schema, exact=exact)
    starts = [rewritten]
    if rewritten.schema != schema:
        starts.append(Rewritten(dict(schema)))
    for start in starts:
        weakened, losses, fatal = weaken(start.schema, cycles=False, exact=exact)
        if is_cycle(fatal):
            # Fitting the schema to the token limit may unroll the cycle; if not, the cycle is broken.
            yield _constraint_candidate(start, weakened, losses, exact)
            weakened, losses, fatal = weaken(start.schema, exact=exact)
        if fatal is None:
            yield _constraint_candidate(start, weakened, losses, exact)
    if fatal is not None:
        yield _shape_only(schema, fatal)


def _constraint_candidate(
    start: Rewritten, weakened: dict[str, Any], losses: tuple[DroppedKeyword, ...], exact: bool
) -> ConstraintCandidate:
    """Build the candidate, with pointers into the caller's schema instead of the rewritten one.

    With `exact`, places that lost a keyword are removed from the schema where they are optional.
    """
    narrowed = start.narrowed
    if exact and losses:
        weakened, left_out = prune(start.schema, weakened, [loss.pointer for loss in losses])
        losses = tuple(loss for loss in losses if loss.pointer not in left_out)
        narrowed += tuple(start.origin(pointer) for pointer in left_out)
    with_origins = [dataclasses.replace(loss, pointer=start.origin(loss.pointer)) for loss in losses]
    return ConstraintCandidate(weakened, tuple(dict.fromkeys(with_origins)), narrowed)


def _shape_only(schema: Mapping[str, Any], fatal: str) -> ConstraintCandidate:
    """Return a candidate with only the root's type: JSON of the right type, all else is left to the validator."""
    kind = schema.get("type")
    if "Unsatisfiable" in fatal or kind is None:
        raise UnsupportedSchemaError(
            f"The embedded model cannot decode under this schema: {fatal}",
            hint="Take that keyword out of the schema, or send the request to another provider.",
        )
    return ConstraintCandidate({"type": kind}, (DroppedKeyword((), fatal, "all but the type dropped"),))


KEY = "answer"
_CONTAINERS = frozenset({"object", "array"})
_DEEPEST = 8


def needs_wrapping(schema: Mapping[str, Any]) -> bool:
    """Return whether answers of this schema may be bare strings, numbers or literals.

    >>> needs_wrapping({"type": "integer"}), needs_wrapping({"type": "array"})
    (True, False)
    """
    return not _contained(schema, schema, 0)


def _contained(sub: Any, root: Mapping[str, Any], depth: int) -> bool:
    """Return whether every value of a subschema is an object or array."""
    if not isinstance(sub, Mapping) or depth > _DEEPEST:
        return False
    if "type" in sub:
        kinds = [sub["type"]] if isinstance(sub["type"], str) else sub["type"]
        return bool(kinds) and _CONTAINERS.issuperset(kinds)
    if "properties" in sub:
        return True
    if REF in sub:
        return _contained(lookup(root, sub[REF]), root, depth + 1)
    if any(_contained(each, root, depth + 1) for each in sub.get("allOf", ())):
        return True
    for key in ("anyOf", "oneOf"):
        if sub.get(key):
            return all(_contained(each, root, depth + 1) for each in sub[key])
    return False


@dataclass(slots=True)
class ClosingBraceFilter:
    """Passes text on, except for the closing brace at its end, which belongs to the wrapper."""

    _pending: str = ""

    def feed(self, text: str) -> str:
        """Return the text that certainly belongs to the value."""
        self._pending += text
        if not self._pending.rstrip().endswith("}"):
            released = self._pending
            self._pending = ""
            return released
        at = self._pending.rindex("}")
        released = self._pending[:at]
        self._pending = self._pending[at:]
        return released


@dataclass(slots=True)
class Unwrap:
    """Extracts the value from a wrapped answer's text, piece by piece.

    >>> unwrap = Unwrap()
    >>> unwrap.feed('{ "ans') + unwrap.feed('wer": 4') + unwrap.feed("2 }")
    ' 42 '
    """

    _head: str | None = ""
    _tail: ClosingBraceFilter = field(default_factory=ClosingBraceFilter)

    def feed(self, text: str) -> str:
        """Return the part of this text that belongs to the value."""
        if self._head is None:
            return self._tail.feed(text)
        self._head, colon, rest = (self._head + text).partition(":")
        if not colon:
            return ""
        self._head = None
        return self._tail.feed(rest)


_WEAKENED = "constraint_weakened"


@dataclass(frozen=True, slots=True)
class Constraint:
    """A value's rule in a grammar that compiles; `warnings` list what only the validator enforces."""

    rule: str
    warnings: tuple[ModelWarning, ...] = ()
    wrapped: bool = False
    """Whether the answer is the value of a single key; see `under`."""
    bounds: AddedBounds | None = None
    """The bounds that decoding added to stay within the token limit."""

    @property
    def exact(self) -> bool:
        """Whether every complete answer under this grammar is valid."""
        return all(warning.code != _WEAKENED for warning in self.warnings)

    def reached(self, text: str) -> tuple[ModelWarning, ...]:
        """Return warnings for the bounds that a finished answer reached."""
        if self.bounds is None:
            return ()
        return self.bounds.warnings(text, KEY if self.wrapped else None)

    @property
    def grammar(self) -> str:
        """The whole grammar in the engine's format."""
        if not self.wrapped:
            return f"%llguidance {{}}\nstart: {self.rule}"
        return f"%llguidance {{}}\nstart: {under(KEY, 'value')}\nvalue: {self.rule}"


def constrain(schema: Mapping[str, Any], max_tokens: int, *, exact: bool = False) -> Constraint:
    """Return the strongest grammar for `schema` whose answers can close within `max_tokens`.

    Where no grammar can enforce the schema, the grammar accepts more than the schema does. With `exact`, it accepts
    less instead, wherever some valid value remains: for a model whose first answer was not valid.

    >>> constrain({"type": "array", "uniqueItems": True}, 100).warnings[0].path
    '/uniqueItems'
    >>> constrain({"type": "array", "uniqueItems": True}, 100, exact=True).exact
    True
    """
    return _constrain(json.dumps(schema), max_tokens, exact)


def any_object(max_tokens: int) -> Constraint:
    """Return the grammar of JSON mode: any object."""
    return constrain({"type": "object"}, max_tokens)


def under(key: str, rule: str) -> str:
    """Return the rule for an object with one key, whose value has another rule."""
    return f'{literal(opening_of(key))} {rule} "}}"'


def opening_of(key: str) -> str:
    """Return the text before the value of an object with one key.

    >>> opening_of("answer")
    '{"answer": '
    """
    return f"{{{json.dumps(key)}: "


def literal(text: str) -> str:
    """Return a text quoted for the grammar."""
    return json.dumps(text)


def _constrain(source: str, max_tokens: int, exact: bool) -> Constraint:
    text = source.encode()
    return Shape.of_text(text).derived(
        ("grammar", max_tokens, exact),
        lambda: _constrained(source, max_tokens, exact),
        lambda made: estimated_bytes(text) + 4 * len(made.rule),
    )


def _constrained(source: str, max_tokens: int, exact: bool) -> Constraint:
    """Return the constraint of the first candidate that compiles; else of the last one without its special patterns."""
    schema = with_plain_references(json.loads(source))
    wrapped = needs_wrapping(schema)
    for candidate in constraint_candidates(schema, exact=exact):
        if constraint := _narrowed(candidate, max_tokens, wrapped):
            return constraint
    weakest = candidate
    plainer, dropped = without_escapes(weakest.schema)
    losses = weakest.losses + tuple(DroppedKeyword(pointer, "the engine does not take it") for pointer in dropped)
    weaker = dataclasses.replace(weakest, schema=plainer, losses=losses)
    return _narrowed(weaker, max_tokens, wrapped) or Constraint(json_rule(plainer), _warnings(weaker), wrapped)


def _narrowed(candidate: ConstraintCandidate, max_tokens: int, wrapped: bool) -> Constraint | None:
    """Return the constraint of the first narrowing that compiles; None where none does."""
    for narrowed, left_out in _narrowings(candidate.schema, max_tokens):
        bounds = AddedBounds(narrowed, candidate.schema, left_out, max_tokens)
        for rule in dict.fromkeys((json_rule(with_whole_formats(narrowed)), json_rule(narrowed))):
            constraint = Constraint(rule, _warnings(candidate), wrapped, bounds)
            if grammar_problem(constraint.grammar) is None:
                return constraint
    return None


def _narrowings(schema: Mapping[str, Any], max_tokens: int) -> Iterator[tuple[dict[str, Any], tuple[Pointer, ...]]]:
    """Yield the schema without added bounds, then with different bounds: the compiler may reject some of them.

    A schema that is too large for the compiler in one form may compile in another.
    """
    for open_ended in (with_merged_forms(schema), schema):
        yield narrow(open_ended, no_limits(open_ended)), ()
    for patterns in (True, False):
        fitted = fit(schema, max_tokens, patterns=patterns)
        yield fitted.schema, fitted.left_out
    limits = limits_for(schema, max_tokens)
    for patterns, close in ((True, True), (False, True), (True, False), (False, False)):
        yield narrow(schema, dataclasses.replace(limits, patterns=patterns, close=close and limits.close)), ()
    yield dict(schema), ()


def _warnings(candidate: ConstraintCandidate) -> tuple[ModelWarning, ...]:
    weakened = tuple(
        ModelWarning(
            _WEAKENED,
            f"Decoding is not held to {join_pointer(loss.pointer) or 'the root'} "
            f"({loss.action}: {_brief(loss.reason)}); the answer is checked against all of the schema.",
            join_pointer(loss.pointer),
        )
        for loss in candidate.losses
    )
    return weakened + tuple(
        ModelWarning(
            "constraint_narrowed",
            f"Decoding takes less at {join_pointer(place) or 'the root'} than the schema does, "
            "so that the answer is valid.",
            join_pointer(place),
        )
        for place in dict.fromkeys(candidate.narrowed)
    )


def _brief(reason: str) -> str:
    lines = [line.strip() for line in reason.splitlines()]
    return next((line for line in lines if line.startswith("error:")), lines[0] if lines else "")


def constrain_retry(
    schema: Mapping[str, Any], max_tokens: int, messages: Sequence[Message], *, tool: str | None = None
) -> Constraint:
    """Return the constraint for the next answer, or for the arguments of a call to `tool`.

    The conversation itself shows whether this is a retry: it then ends with an invalid answer, and the response to
    it.

    >>> messages = (Message.user("Two letters."), Message.assistant('["a", "a"]'), Message.user("They must differ."))
    >>> constrain_retry({"type": "array", "uniqueItems": True}, 100, messages).exact
    True
    """
    first = constrain(schema, max_tokens)
    if first.exact or not _is_missed(schema, messages, tool):
        return first
    return constrain(schema, max_tokens, exact=True)


def _is_missed(schema: Mapping[str, Any], messages: Sequence[Message], tool: str | None) -> bool:
    """Return whether the last answer, or the last call of the tool, was invalid: the grammar accepted too much."""
    if len(messages) < 2 or messages[-2].role != "assistant":
        return False
    answer = messages[-2]
    texts = [answer.text]
    if tool is not None:
        texts = [part.arguments for part in answer.parts if isinstance(part, ToolCall) and part.name == tool]
    return any(_is_invalid(text, schema) for text in texts)


def _is_invalid(text: str, schema: Mapping[str, Any]) -> bool:
    try:
        return not compile_schema(schema).is_valid(json.loads(text))
    except (ValueError, SchemaError):
        return False

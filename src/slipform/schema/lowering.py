"""Lowering: the caller's schema → a vendor's dialect, and the answer → back to the caller's shape.

The vendor sees what its channel can take; the answer is lifted back and is then, always, checked against the schema
the caller gave. `Lowered.report` lists every keyword the vendor does not enforce.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slipform.bounded import BoundedCache
from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.schema.lower.deep import lift_deep
from slipform.schema.lower.dialects import Dialect, dialect_names
from slipform.schema.lower.dialects import dialect as dialect_named
from slipform.schema.lower.emit import Emitter, Policy
from slipform.schema.lower.encode import Encoder, Misfit, too_deep
from slipform.schema.lower.lift import Lifter, same
from slipform.schema.lower.limits import check, hoist, next_policy
from slipform.schema.lower.plan import PENDING, SAME, Out, Plan, Wrapped, active
from slipform.schema.lower.report import Action, EnforcedBy, Loss, Report
from slipform.schema.lower.rewrap import is_plain_object, wrap
from slipform.schema.lower.settle import settle
from slipform.schema.lower.source import Source, to_text
from slipform.schema.lower.spelling import document
from slipform.schema.lower.stream import LiftStream, Streamer

__all__ = [
    "PENDING",
    "ROOT_KEY",
    "Action",
    "Dialect",
    "EnforcedBy",
    "LiftStream",
    "Loss",
    "Lowered",
    "dialect_named",
    "dialect_names",
    "lower",
]

ROOT_KEY = "value"
"""The reserved key under which a root that is no plain object travels."""

_MAX_PASSES = 8
_TIMES_TEXT = 50
"""How many bytes a lowered schema and the way back keep alive for each byte of the schema's text."""


def _identity_stream() -> LiftStream:
    return LiftStream(Streamer(frozenset()).of(SAME), same)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema in a vendor's dialect, the way back, and what the way cost.

    >>> lowered = lower({"type": "object", "properties": {"age": {"type": "integer"}}}, "openai")
    >>> lowered.schema["properties"]["age"]["type"], lowered.lift({"age": None})
    (['integer', 'null'], {})
    """

    schema: Mapping[str, Any]
    """What to send. It is shared with later calls: do not change it."""
    lift: Callable[[Any], Any]
    """Turns a value of the vendor's shape into one of the caller's; never raises on an instance of `schema`."""
    report: tuple[Loss, ...] = ()
    encode: Callable[[Any], Any] = field(default=same)
    """Turns a value of the caller's shape into one of the vendor's; a SchemaError when that has no words for it."""
    lift_stream: Callable[[], LiftStream] = field(default=_identity_stream)
    """Starts the lifting of one growing value; see `LiftStream`."""

    @property
    def identity(self) -> bool:
        """Whether the vendor's values are the caller's as they stand."""
        return self.lift is same


def lower(schema: Mapping[str, Any], dialect: str, *, open_objects: Literal["closed", "kept"] = "kept") -> Lowered:
    """Express `schema` in `dialect`.

    JSON Schema lets an object hold other keys unless it says otherwise. Where the vendor wants every key listed, the
    other keys travel as key/value pairs; with `open_objects="closed"` there are none, and the report says so.

    A `ConfigError` for a dialect that is none, an `UnsupportedSchemaError` where the dialect has no words for the
    schema, a `SchemaError` where the schema itself is at fault.

    >>> lower({"type": "integer"}, "identity").lift(3)
    3
    >>> lower({"type": "array", "items": {"type": "integer"}}, "openai").lift({"value": [1, 2]})
    [1, 2]
    """
    rules = dialect_named(dialect)
    if rules.mode == "pass" and rules.root == "any":
        return Lowered(schema, same)
    text = to_text(schema)
    key = (text, rules.name, open_objects == "kept")
    lowered = _LOWERED.use(key)
    if lowered is None:
        lowered = _lower(*key)
        _LOWERED.put(key, lowered, _TIMES_TEXT * len(text) + 2_000)
    return lowered


_LOWERED = BoundedCache[tuple[bytes, str, bool], Lowered]("lowered schemas", entries=256, max_bytes=48_000_000)


def _lower(text: bytes, name: str, keep_open: bool) -> Lowered:
    rules = dialect_named(name)
    try:
        source = Source.read(text)
        if rules.mode == "pass":
            return _passed(source, rules)
        emitter, out, root_name = _walk(source, rules, keep_open)
    except RecursionError as error:
        raise SchemaError("This schema is nested too deeply", hint="Flatten it with $defs and $ref.") from error
    plan = out.plan
    root = out.schema
    if rules.root == "object" and root.get("type") != "object":
        emitter.report.add("", "type", None, "encoded", rules.engine)
        root = {"type": "object", "properties": {ROOT_KEY: root}, "required": [ROOT_KEY], "additionalProperties": False}
        plan, root_name = Wrapped(ROOT_KEY, plan), None
    live = settle(plan, emitter.defs, closed=rules.closes)
    hoist(root, emitter.defs, rules)
    check(root, emitter.defs, rules)
    lowered = document(root, emitter.defs, root_name, rules)
    return _bound(lowered, root, emitter.defs, plan, live, tuple(emitter.report.losses.values()), rules.name)


def _walk(source: Source, rules: Dialect, keep_open: bool) -> tuple[Emitter, Out, str | None]:
    policy: Policy | None = Policy()
    for _ in range(_MAX_PASSES):
        assert policy is not None  # noqa: S101 — set above, and the loop ends when there is none
        emitter = Emitter(source, rules, Report(), policy, keep_open)
        out, root_name = emitter.root()
        policy = next_policy(emitter, out.schema)
        if policy is None:
            return emitter, out, root_name
    raise UnsupportedSchemaError(
        f"Not expressible in {rules.name}: over its limits however it is spelled",
        hint="Use the next channel: a tool call or a prompt.",
    )


def _bound(
    lowered: Mapping[str, Any],
    root: Mapping[str, Any],
    defs: Mapping[str, Any],
    plan: Plan,
    live: frozenset[int],
    report: tuple[Loss, ...],
    name: str,
) -> Lowered:
    """Tie the plan to functions."""
    fast = Lifter(live).of(plan)
    encoder = Encoder(defs, live)

    def lift(value: Any) -> Any:
        try:
            return fast(value) if fast is not None else value
        except RecursionError:
            return lift_deep(plan, value, live)

    def encode(value: Any) -> Any:
        if too_deep(value):
            raise _no_words(name, "", "it is nested too deeply")
        try:
            found = encoder.encode(plan, value)
        except Misfit as misfit:
            raise _no_words(name, str(misfit)) from misfit
        except RecursionError as error:
            raise _no_words(name, "", "it is nested too deeply") from error
        if not encoder.fits(root, found):
            raise _no_words(name, "")
        return found

    def lift_stream() -> LiftStream:
        return LiftStream(Streamer(live).of(plan), lift)

    return Lowered(lowered, same if fast is None else lift, report, encode, lift_stream)


def _no_words(name: str, key: str, why: str = "") -> SchemaError:
    about = f" (at {key!r})" if key else f": {why}" if why else ""
    return SchemaError(
        f"The lowered schema has no words for this value in {name}{about}",
        hint="The report lists what was closed: extra keys of open objects, for one.",
    )


def _passed(source: Source, rules: Dialect) -> Lowered:
    if is_plain_object(source.document):
        return Lowered(source.document, same)
    schema = wrap(source.document, ROOT_KEY)
    plan = Wrapped(ROOT_KEY, SAME)
    losses = (Loss("", "type", None, "encoded", rules.engine),)
    return _bound(schema, {}, {}, plan, active(plan), losses, rules.name)

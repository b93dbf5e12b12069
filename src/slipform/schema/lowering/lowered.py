"""Lower a schema to a dialect within the vendor's limits, and report what was lost: `lower`.

The vendor receives the part that its channel supports; the answer is lifted back and always validated against the
caller's schema. `Lowered.report` lists every keyword that the vendor does not enforce.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from slipform.errors import SchemaError, UnsupportedSchemaError
from slipform.schema.document import REF, definition_of, moved, reference_to
from slipform.schema.lowering.dialects import MAX_OPENED, Dialect, OpenObjects, dialect_names
from slipform.schema.lowering.dialects import dialect as dialect_named
from slipform.schema.lowering.discriminate import separate, settle
from slipform.schema.lowering.emit import Action, Emitter, EnforcedBy, LoweringLoss, LoweringReport, Policy
from slipform.schema.lowering.lift import Lifter, lift_deep, same
from slipform.schema.lowering.lift_plan import PENDING, SAME, LiftPlan, Out, Wrapped, active
from slipform.schema.normal_form import SchemaSource
from slipform.schema.shape import Shape

_LISTS = ("anyOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties")


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Yield each subschema of a lowered schema, with the container and the key that hold it."""
    for word in ("properties", "patternProperties"):
        if word in schema:
            for name, sub in schema[word].items():
                yield schema[word], name, sub
    for word in _SINGLES:
        if isinstance(schema.get(word), dict):
            yield schema, word, schema[word]
    for word in _LISTS:
        if word in schema:
            for index, sub in enumerate(schema[word]):
                yield schema[word], index, sub


def walk(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a lowered schema and its subschemas, except definitions."""
    stack = [schema]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(sub for _, _, sub in subschemas(node))


def next_policy(emitter: Emitter, root: Mapping[str, Any]) -> Policy | None:
    """Return the choices for another walk, if this one exceeded a limit or left a forbidden loop."""
    limits = emitter.dialect.limits
    boxed = _beyond_limit(emitter.optionals, limits.get("optionals"))
    chosen = _beyond_limit(emitter.unions, limits.get("unions"))
    shut = _beyond_limit(emitter.opened, MAX_OPENED)
    cut = set()
    if emitter.dialect.recursion == "optional":
        name = _bad_loop({**emitter.defs, "": dict(root)})
        if name is not None:
            cut.add(emitter.keys[name])
    if not (boxed or chosen or cut or shut):
        return None
    old = emitter.policy
    return Policy(old.boxed | boxed, old.chosen | chosen, old.cut | cut, old.shut | shut)


def _beyond_limit(sites: list[tuple[int, str]], most: int | None) -> frozenset[str]:
    """Return the places to encode differently, so that at most `most` remain: the outermost stay."""
    if most is None or len(sites) <= most:
        return frozenset()
    counts: dict[str, list[int]] = {}
    for depth, site in sites:
        entry = counts.setdefault(site, [depth, 0])
        entry[0] = min(entry[0], depth)
        entry[1] += 1
    left = most
    excess = []
    for site, (_, count) in sorted(counts.items(), key=lambda item: item[1][0]):
        if count <= left:
            left -= count
        else:
            excess.append(site)
    return frozenset(excess)


def _bad_loop(defs: Mapping[str, dict[str, Any]]) -> str | None:
    """Return a definition that is recursive through required values only."""
    edges = {name: _required_refs(schema) for name, schema in defs.items()}
    state: dict[str, int] = {}
    for start, first in edges.items():
        if start in state:
            continue
        stack = [(start, iter(first))]
        state[start] = 1
        while stack:
            name, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                state[name] = 2
                stack.pop()
            elif state.get(target) == 1:
                return target
            elif target not in state:
                state[target] = 1
                stack.append((target, iter(edges[target])))
    return None


def _required_refs(schema: dict[str, Any]) -> list[str]:
    names = []
    stack = [schema]
    while stack:
        node = stack.pop()
        if (name := definition_of(node)) is not None:
            names.append(name)
        required = node.get("required", ())
        for holder, key, sub in subschemas(node):
            if holder is not node.get("properties") or key in required:
                stack.append(sub)
    return names


def hoist(root: dict[str, Any], defs: dict[str, dict[str, Any]], dialect: Dialect) -> None:
    """Move deeply nested parts into definitions, where depth is counted again."""
    most = dialect.limits.get("levels", dialect.limits.get("depth"))
    if most is None:
        return
    counts_arrays = "levels" in dialect.limits

    def is_level(node: Mapping[str, Any]) -> bool:
        return "properties" in node or (counts_arrays and node.get("type") == "array")

    queue = [root, *defs.values()]
    count = 0
    for schema in queue:
        stack = [(schema, 1)]
        while stack:
            node, depth = stack.pop()
            below = depth + is_level(node)
            for holder, key, sub in list(subschemas(node)):
                if below > most and is_level(sub):
                    if dialect.refs == "none":
                        raise _not_expressible(dialect, f"objects are nested more than {most} deep")
                    count += 1
                    name = f"deep_{count}"
                    while name in defs:
                        name += "_"
                    defs[name] = sub
                    holder[key] = reference_to("$defs", name)
                    queue.append(sub)
                else:
                    stack.append((sub, below))


def check(schema: dict[str, Any], defs: Mapping[str, dict[str, Any]], dialect: Dialect) -> None:
    """Raise when the lowered schema still exceeds a limit."""
    limits = dialect.limits
    if not limits:
        return
    counts = limit_counts({**schema, "$defs": defs})
    for name, count in counts.items():
        if count > limits.get(name, count):
            words = name.replace("_", " ").replace("name chars", "characters of names and enum values")
            raise _not_expressible(dialect, f"{count} {words}, at most {limits[name]}")


def limit_counts(schema: Mapping[str, Any]) -> dict[str, int]:
    """Return the amounts in a lowered schema that vendors limit, definitions included."""
    defs = schema.get("$defs", {})
    counts = dict.fromkeys(("properties", "name_chars", "enum_values", "optionals", "unions"), 0)
    counts["name_chars"] = sum(map(len, defs))
    for top in (schema, *defs.values()):
        for node in walk(dict(top)):
            _count(node, counts)
    return counts


def _count(node: Mapping[str, Any], counts: dict[str, int]) -> None:
    properties = node.get("properties", {})
    counts["properties"] += len(properties)
    counts["name_chars"] += sum(map(len, properties))
    counts["optionals"] += len(properties.keys() - set(node.get("required", ())))
    counts["unions"] += len(node.get("anyOf", ())) > 1 or isinstance(node.get("type"), list)
    values = node.get("enum", ())
    counts["enum_values"] += len(values)
    counts["name_chars"] += sum(len(str(value)) for value in values)


def _not_expressible(dialect: Dialect, why: str) -> UnsupportedSchemaError:
    return UnsupportedSchemaError(
        f"Not expressible in {dialect.name}: {why}",
        hint="Use the next channel: a tool call or a prompt.",
        details={"dialect": dialect.name},
    )


_UNIONS = ("anyOf", "oneOf", "allOf", "enum", "not", "const", REF)


def is_plain_object(document: Mapping[str, Any]) -> bool:
    """Return whether the root is an object, explicitly, and without siblings."""
    return document.get("type") == "object" and not any(word in document for word in _UNIONS)


def wrap(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Wrap a schema in one required key of an object, and adjust the references in it."""
    inner = {word: value for word, value in document.items() if word not in ("$schema", "$id")}
    properties = {key: moved(inner, "properties", key)}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": [key]}
    schema["additionalProperties"] = False
    if "$schema" in document:
        return {"$schema": document["$schema"], **schema}
    return schema


def document(
    root: dict[str, Any], defs: Mapping[str, dict[str, Any]], root_name: str | None, dialect: Dialect
) -> dict[str, Any]:
    """Return one document: the root, and the definitions that it uses."""
    itself = None
    if root_name is not None and dialect.refs == "root" and defs.get(root_name) is root:
        itself = root_name
    used = _used_definitions(root, defs)
    if itself is not None:
        used.pop(itself, None)
    schema = _copied({**root, "$defs": used} if used else root)
    if itself is not None:
        for top in (schema, *schema.get("$defs", {}).values()):
            for node in walk(top):
                if definition_of(node) == itself:
                    node.update(reference_to())
    if dialect.additional == "none":
        for top in (schema, *schema.get("$defs", {}).values()):
            for node in walk(top):
                node.pop("additionalProperties", None)
    if dialect.spelling == "openapi":
        return _openapi(schema)
    return schema


def _copied(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        copied: dict[str, Any] = orjson.loads(orjson.dumps(schema))
    except (TypeError, ValueError):
        return copy.deepcopy(schema)
    return copied


def _used_definitions(root: dict[str, Any], defs: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the definitions that a lowered schema uses, in their own order."""
    used: dict[str, None] = {}
    queue = [root]
    for top in queue:
        for node in walk(top):
            name = definition_of(node)
            if name is not None and name in defs and name not in used:
                used[name] = None
                queue.append(defs[name])
    return {name: defs[name] for name in defs if name in used}


def _openapi(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI spelling: upper-case types, and `nullable` for null."""
    for holder, key, sub in list(subschemas(schema)):
        holder[key] = _openapi(sub)
    if "anyOf" in schema:
        branches = [branch for branch in schema["anyOf"] if branch.get("type") != "NULL"]
        if len(branches) < len(schema["anyOf"]):
            schema["nullable"] = True
            schema["anyOf"] = branches
        if len(branches) == 1:
            only = branches[0]
            schema = {**only, **{word: value for word, value in schema.items() if word != "anyOf"}}
    kind = schema.get("type")
    if isinstance(kind, list):
        schema["nullable"] = True
        kind = next((name for name in kind if name != "null"), "null")
        if "enum" in schema:
            schema["enum"] = [value for value in schema["enum"] if value is not None]
    if isinstance(kind, str):
        schema["type"] = kind.upper()
    return schema


__all__ = [
    "PENDING",
    "ROOT_KEY",
    "Action",
    "Dialect",
    "EnforcedBy",
    "Lowered",
    "LoweringLoss",
    "dialect_named",
    "dialect_names",
    "lower",
]
ROOT_KEY = "value"
"""The reserved key of a root that is not a plain object."""
_MAX_PASSES = 8


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema in a vendor's dialect, the function that lifts values back, and the losses.

    >>> lowered = lower({"type": "object", "properties": {"age": {"type": "integer"}}}, "openai")
    >>> lowered.schema["properties"]["age"]["type"], lowered.lift({"age": None})
    (['integer', 'null'], {})
    """

    schema: Mapping[str, Any]
    """The schema to send. It is shared with later calls: do not change it."""
    lift: Callable[[Any], Any]
    """Converts a value of the vendor's shape to the caller's; never raises on an instance of `schema`."""
    report: tuple[LoweringLoss, ...] = ()
    plan: LiftPlan | None = None
    """The plan of `lift`; None where it is the identity."""

    @property
    def identity(self) -> bool:
        """Whether the vendor's values are the caller's, unchanged."""
        return self.lift is same


def lower(schema: Mapping[str, Any], dialect: str, *, open_objects: OpenObjects = "kept") -> Lowered:
    """Express `schema` in `dialect`.

    In JSON Schema, objects may have other keys unless the schema excludes them. If the vendor requires a list of all
    keys, other keys are encoded as key/value pairs; with `open_objects="closed"` they are dropped, and reported. `auto`
    keeps them in objects with optional properties, unless there are too many of those.

    Raises `ConfigError` for an unknown dialect, `UnsupportedSchemaError` where the dialect cannot express the schema,
    and `SchemaError` for an invalid schema.

    >>> lower({"type": "integer"}, "identity").lift(3)
    3
    >>> lower({"type": "array", "items": {"type": "integer"}}, "openai").lift({"value": [1, 2]})
    [1, 2]
    """
    rules = dialect_named(dialect)
    if rules.mode == "pass" and rules.root == "any":
        return Lowered(schema, same)
    shape = Shape.of(schema)
    return shape.derived(("lowered", rules.name, open_objects), lambda: _lower(shape.text, rules.name, open_objects))


def _lower(text: bytes, name: str, open_objects: OpenObjects) -> Lowered:
    rules = dialect_named(name)
    try:
        source = SchemaSource.read(text)
        if rules.mode == "pass":
            return _pass_through(source, rules)
        emitter, out, root_name = _walk(source, rules, open_objects)
    except RecursionError as error:
        raise SchemaError("This schema is nested too deeply", hint="Flatten it with $defs and $ref.") from error
    plan = out.plan
    root = out.schema
    if rules.root == "object" and root.get("type") != "object":
        emitter.report.add("", "type", None, "encoded", rules.engine)
        root = {"type": "object", "properties": {ROOT_KEY: root}, "required": [ROOT_KEY], "additionalProperties": False}
        plan = Wrapped(ROOT_KEY, plan)
        root_name = None
    if not rules.first_keys:
        separate(plan, emitter.defs)
    live = settle(plan, emitter.defs, closed=rules.closes)
    hoist(root, emitter.defs, rules)
    check(root, emitter.defs, rules)
    lowered = document(root, emitter.defs, root_name, rules)
    return _bound(lowered, LiftPlan(plan, live, root, emitter.defs), tuple(emitter.report.losses.values()))


def _walk(source: SchemaSource, rules: Dialect, open_objects: OpenObjects) -> tuple[Emitter, Out, str | None]:
    policy: Policy | None = Policy()
    for _ in range(_MAX_PASSES):
        assert policy is not None  # noqa: S101 — set above, and the loop ends when there is none
        emitter = Emitter(source, rules, LoweringReport(), policy, open_objects)
        out, root_name = emitter.root()
        policy = next_policy(emitter, out.schema)
        if policy is None:
            return emitter, out, root_name
    raise UnsupportedSchemaError(
        f"Not expressible in {rules.name}: over its limits however it is spelled",
        hint="Use the next channel: a tool call or a prompt.",
    )


def _bound(schema: Mapping[str, Any], plan: LiftPlan, report: tuple[LoweringLoss, ...]) -> Lowered:
    """Bind the plan to its functions."""
    fast = Lifter(plan.active).of(plan.root)

    def lift(value: Any) -> Any:
        try:
            return fast(value) if fast is not None else value
        except RecursionError:
            return lift_deep(plan.root, value, plan.active)

    return Lowered(schema, same if fast is None else lift, report, plan)


def _pass_through(source: SchemaSource, rules: Dialect) -> Lowered:
    if is_plain_object(source.document):
        return Lowered(source.document, same)
    schema = wrap(source.document, ROOT_KEY)
    plan = Wrapped(ROOT_KEY, SAME)
    losses = (LoweringLoss("", "type", None, "encoded", rules.engine),)
    return _bound(schema, LiftPlan(plan, active(plan), {}, {}), losses)

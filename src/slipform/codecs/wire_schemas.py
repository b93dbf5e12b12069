"""Write the schemas of a request's format and strict tools in the form that a vendor's channels accept."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from slipform.codecs.request_fields import Capabilities, Encoding
from slipform.errors import RequestError, RequiredMissingProperties, StrictSchemaError, UnsupportedSchemaError
from slipform.ir import Lift, LossyEncode, ModelNote, ModelWarning, Tool
from slipform.schema import ResponseFormat
from slipform.schema.lowering import lower
from slipform.schema.lowering.dialects import Dialect, OpenObjects, dialect
from slipform.schema.lowering.lowered import limit_counts
from slipform.schema.shape import Shape
from slipform.schema.strict import strict_preflight

StrictRule: TypeAlias = Literal["openai", "closed", "always"]
"""When a channel's strict mode accepts a schema: every property required, objects closed, or no conditions."""
ANY_TOOL = "tool"
"""The dialect of tools that are not strict: any object."""


class WireSchema(msgspec.Struct, frozen=True):
    """A schema in the form that one channel accepts."""

    schema: Mapping[str, Any]
    strict: bool
    lift: Lift | None
    losses: tuple[ModelWarning, ...]


_AS_IT_IS = "identity"


def format_schema(response_format: ResponseFormat, capabilities: Capabilities, rule: StrictRule) -> WireSchema:
    """Return the requested schema in the native channel's dialect; raises `UnsupportedSchemaError` if it cannot be."""
    is_sent_as_it_is = (
        _is_best_effort(response_format, rule) and response_format.json_schema.schema.get("type") == "object"
    )
    return _format(response_format, capabilities, _AS_IT_IS if is_sent_as_it_is else capabilities.dialect, rule)


def _is_best_effort(response_format: ResponseFormat, rule: StrictRule) -> bool:
    """Return whether the caller does not want strict mode and the API allows that: then a schema needs no rewriting."""
    return not response_format.strict and rule != "always"


def tool_schema(response_format: ResponseFormat, out: Encoding, rule: StrictRule) -> WireSchema:
    """Return the requested schema as a tool's parameters; not strict if the strict dialect cannot express it."""
    dialect_name = ANY_TOOL if _is_best_effort(response_format, rule) else out.capabilities.tool_dialect
    try:
        return _format(response_format, out.capabilities, dialect_name, rule)
    except UnsupportedSchemaError as error:
        out.lose("response_format.strict", f"Sent without strict mode: {error.message}.", "approximated")
        return _format(dataclasses.replace(response_format, strict=False), out.capabilities, ANY_TOOL, rule)


def _format(response_format: ResponseFormat, capabilities: Capabilities, name: str, rule: StrictRule) -> WireSchema:
    spec = response_format.json_schema
    strict = response_format.strict and "no_strict" not in capabilities.quirks
    open_objects = capabilities.open_objects
    if spec.is_typed and open_objects == "auto":
        open_objects = "closed"
    return wire_schema(spec.schema, name, strict, rule, open_objects, spec.text)


def wire_schema(
    schema: Any, name: str, strict: bool, rule: StrictRule, open_objects: OpenObjects, text: bytes | None = None
) -> WireSchema:
    """Return the schema in this dialect; `text` is its JSON, if it cannot change."""
    if type(schema) is not dict and not isinstance(schema, Mapping):
        raise RequestError(
            "The schema must be a JSON object at the top level", where="response_format.json_schema.schema"
        )
    shape = Shape.of(schema) if text is None else Shape.of_text(text)
    encoded = shape.derived(
        ("wire", name, strict, rule, open_objects),
        lambda: _lowered(shape.document, name, strict, rule, open_objects),
    )
    if isinstance(encoded, WireSchema):
        return encoded
    raise UnsupportedSchemaError(encoded.message, where=encoded.where, hint=encoded.hint, details=dict(encoded.details))


def _lowered(
    schema: Mapping[str, Any], name: str, strict: bool, rule: StrictRule, open_objects: OpenObjects
) -> WireSchema | UnsupportedSchemaError:
    try:
        lowered = lower(schema, name, open_objects=open_objects)
    except UnsupportedSchemaError as error:
        return error
    losses: list[ModelWarning] = []
    closed = [loss.pointer for loss in lowered.report if loss.action == "closed"]
    if closed:
        more = f" (and {len(closed) - 1} more)" if len(closed) > 1 else ""
        message = f"The object at {closed[0]}{more} was closed for the {name} dialect: no other keys will be written."
        losses.append(ModelNote("schema_closed", message, closed[0]))
    for loss in lowered.report:
        if loss.action in ("dropped", "approximated"):
            message = f"`{loss.keyword}` was {loss.action} for the {name} dialect; it is checked here instead."
            losses.append(LossyEncode("lossy_encode", message, loss.pointer, loss.action))
    breach = None
    if strict and rule != "always":
        breach = _breach(lowered.schema)
    if breach is not None and not (rule == "closed" and isinstance(breach, RequiredMissingProperties)):
        message = f"Sent without strict mode: {breach}."
        losses.append(LossyEncode("lossy_encode", message, breach.path, "approximated"))
        strict = False
    # The converter of the answer, if the schema was changed.
    lift = None if lowered.identity else Lift(lowered.schema, lowered.lift, lowered.plan)
    return WireSchema(lowered.schema, strict, lift, tuple(losses))


def _breach(schema: Mapping[str, Any]) -> StrictSchemaError | None:
    try:
        strict_preflight(schema)
    except StrictSchemaError as error:
        return error
    return None


def lower_tools(
    tools: Sequence[Tool], out: Encoding, rule: StrictRule, *, beside: WireSchema | None = None
) -> tuple[tuple[Tool, ...], Mapping[str, Lift]]:
    """Return the caller's tools, strict ones in the vendor's dialect, and the converters of their arguments.

    A tool that the dialect cannot express, or that exceeds the limits on all strict schemas of a request (`beside` is
    the format's), loses `strict` with a warning.
    """
    if not tools:
        return (), {}
    rules = dialect(out.capabilities.tool_dialect)
    if not rules.names and not any(tool.strict for tool in tools):
        return tuple(tools), {}
    used = {name: 0 for name in ("optionals", "unions", "strict_tools") if name in rules.limits}
    if beside is not None and beside.strict:
        _add(used, beside.schema, tool=False)
    encoded_tools: list[Tool] = []
    lifts: dict[str, Lift] = {}
    for tool in tools:
        if tool.vendor is not None:
            encoded_tools.append(tool)
            continue
        shape = _strict_shape(tool, out, rule, used) if tool.strict else None
        shape = shape or _renamed(tool.parameters, rules)
        encoded_tools.append(_with_shape(tool, shape))
        if shape is not None and shape.lift is not None:
            lifts[tool.name] = shape.lift
    return tuple(encoded_tools), lifts


def _with_shape(tool: Tool, shape: WireSchema | None) -> Tool:
    if shape is None:
        return dataclasses.replace(tool, strict=None) if tool.strict else tool
    strict = shape.strict or (None if tool.strict else tool.strict)
    return dataclasses.replace(tool, parameters=shape.schema, strict=strict)


def _strict_shape(tool: Tool, out: Encoding, rule: StrictRule, used: dict[str, int]) -> WireSchema | None:
    """Return a strict tool's parameters in the dialect; None, with `strict` recorded as lost, if they are unchanged."""
    path = f"tools.{tool.name}"
    if "no_strict" in out.quirks:
        out.lose(f"{path}.strict", "This model has no strict tools; the arguments are checked here.", "approximated")
        return None
    open_objects = out.capabilities.open_objects
    dialect_name = out.capabilities.tool_dialect
    closed: OpenObjects = "closed" if open_objects == "auto" else open_objects
    try:
        shape = wire_schema(tool.parameters, dialect_name, True, rule, closed)
    except UnsupportedSchemaError as error:
        out.lose(f"{path}.strict", f"Sent without strict mode: {error.message}.", "approximated")
        return None
    if shape.strict and used:
        limits = dialect(dialect_name).limits
        total = _add(dict(used), shape.schema, tool=True)
        exceeded = next((name for name in used if total[name] > limits[name]), None)
        if exceeded is not None:
            count = f"{total[exceeded]} {exceeded.replace('_', ' ')}"
            why = f"all strict schemas together have {count}, at most {limits[exceeded]}"
            out.lose(f"{path}.strict", f"Sent without strict mode: {why}.", "approximated")
            return None
        used.update(total)
    where = f"{path}.parameters"
    out.losses.extend(dataclasses.replace(loss, path=f"{where}{loss.path or ''}") for loss in shape.losses)
    return shape


def _renamed(parameters: Mapping[str, Any], rules: Dialect) -> WireSchema | None:
    """Return a tool's parameters with the names changed that the vendor refuses; None if it accepts all of them."""
    properties = parameters.get("properties")
    if not rules.names or not isinstance(properties, Mapping):
        return None
    taken = set(properties)
    names: dict[str, str] = {}
    for name in properties:
        fitting = rules.fit_name(name, taken)
        if fitting != name:
            names[name] = fitting
            taken.add(fitting)
    if not names:
        return None
    back = {fitting: name for name, fitting in names.items()}
    schema = {**parameters, "properties": {names.get(name, name): value for name, value in properties.items()}}
    if isinstance(required := parameters.get("required"), list):
        schema["required"] = [names.get(name, name) for name in required]

    def lift(value: Any) -> Any:
        if isinstance(value, dict):
            return {back.get(name, name): each for name, each in value.items()}
        return value

    return WireSchema(schema, False, Lift(schema, lift), ())


def _add(used: dict[str, int], schema: Mapping[str, Any], *, tool: bool) -> dict[str, int]:
    """Count one more strict schema."""
    counts = {**limit_counts(schema), "strict_tools": int(tool)}
    for name in used:
        used[name] += counts[name]
    return used

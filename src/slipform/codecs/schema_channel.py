"""How one request asks for its shape.

Quirks a codec knows (`Capabilities.quirks`):

- `no_native_with_tools`: a schema on the native channel and tools exclude each other; the tool channel is used then.
- `required_only`: a tool call can be required, but not of one named tool.
- `no_strict`: the vendor does not know `strict`; it is left out.
- `no_parallel_switch`: `parallel_tool_calls` is left out.
- `usage_always`: usage comes in streams without asking; `stream_options` is left out.
- `random_seed`: the seed is spelled `random_seed` (Mistral).
- `short_tool_ids`: tool call ids must be nine letters or digits (Mistral).
- `reasoning_object`: effort goes in `reasoning: {"effort": …}` (OpenRouter).
- `thinking_object`: thinking is switched with `thinking: {"type": …}` (DeepSeek, Z.ai).
- `require_parameters`: routes that ignore a parameter are refused (OpenRouter).
- `replay_reasoning`: tool-calling turns must be sent back with their `reasoning_content` (DeepSeek).
- `top_k`: Chat Completions servers that take `top_k` all the same.
- `mid_system`: system messages may stand between other turns (some Claude models).
- `body_version`: `anthropic_version` goes in the body and the model in the path (Claude on Vertex and Bedrock).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import orjson

from slipform.bounded import BoundedCache
from slipform.codecs.codec import Capabilities
from slipform.errors import RequestError, RequiredMissingProperties, StrictSchemaError, UpstreamError
from slipform.ir import RESERVED_TOOL, Lift, LossyEncode, ModelRequest, ModelWarning, NamedTool, Tool, ToolChoice
from slipform.ir.request import USUAL
from slipform.schema import OutputStrategy, ResponseFormat
from slipform.schema.document import to_text
from slipform.schema.lowering import lower
from slipform.schema.lowering.lift_plan import PENDING
from slipform.schema.strict import strict_preflight

_NOTHING: Final[dict[str, Any]] = {}


class SchemaChannel:
    """What was decided for one request, and what the same codec needs to read the answer.

    `strategy` is None when no schema was asked for, `schema` is as the vendor sees it, and `json_object` switches the
    vendor's schema-less JSON mode on. No dataclass: compiled, plain classes are made many times faster.
    """

    __slots__ = (
        "json_object", "lift", "name", "parallel_tool_calls", "reasoning", "schema", "strategy", "strict",
        "tool_choice", "tools", "warnings",
    )  # fmt: skip

    def __init__(
        self,
        strategy: OutputStrategy | None = None,
        name: str = "",
        schema: Mapping[str, Any] = _NOTHING,
        strict: bool = False,
        json_object: bool = False,
        reasoning: Mapping[str, Any] = _NOTHING,
        tools: tuple[Tool, ...] = (),
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool | None = None,
        lift: Lift | None = None,
        warnings: tuple[ModelWarning, ...] = (),
    ) -> None:
        self.strategy: Final = strategy
        self.name: Final = name
        self.schema: Final = schema
        self.strict: Final = strict
        self.json_object: Final = json_object
        self.reasoning: Final = reasoning
        self.tools: Final = tools
        self.tool_choice: Final = tool_choice
        self.parallel_tool_calls: Final = parallel_tool_calls
        self.lift: Final = lift
        self.warnings: Final = warnings


class WireSchema:
    """A schema as one channel takes it."""

    __slots__ = ("lift", "losses", "schema", "strict")

    def __init__(
        self, schema: Mapping[str, Any], strict: bool, lift: Lift | None, losses: tuple[ModelWarning, ...]
    ) -> None:
        self.schema: Final = schema
        self.strict: Final = strict
        self.lift: Final = lift
        self.losses: Final = losses


Losses = list[ModelWarning]


def add_loss(path: str, message: str, action: str = "dropped") -> LossyEncode:
    """The warning for a field that the wire cannot carry.

    >>> add_loss("sampling.seed", "This API has no seed.").action
    'dropped'
    """
    return LossyEncode("lossy_encode", message, path, action)


StrictRule: TypeAlias = Literal["openai", "closed", "always"]
"""When a channel's strict mode takes a schema: every property required, objects closed, or no switch to care for."""


def choose_channel(
    request: ModelRequest,
    capabilities: Capabilities,
    auto: OutputStrategy,
    losses: Losses,
    *,
    native_rule: StrictRule = "always",
    tool_rule: StrictRule = "always",
) -> SchemaChannel:
    """Decide the channel for this request; `auto` is what the codec settled on when it was made."""
    refuse_reserved(request)
    wanted = request.response_format
    if request.reasoning and not capabilities.reasoning:
        losses.append(add_loss("reasoning", "This model does not reason on demand."))
    reasoning = request.reasoning if request.reasoning and capabilities.reasoning else {}
    if wanted is None:
        return _plain(request, capabilities, reasoning, losses)
    strategy = auto if wanted.strategy is OutputStrategy.AUTO else wanted.strategy
    if strategy is OutputStrategy.NATIVE and request.tools and "no_native_with_tools" in capabilities.quirks:
        losses.append(
            add_loss("response_format", "This API takes a schema or tools; the schema goes in a tool.", "approximated")
        )
        strategy = OutputStrategy.TOOL
    if strategy is OutputStrategy.NATIVE:
        shape = _shape(wanted, capabilities, capabilities.dialect, native_rule)
        return _native(wanted, shape, request, reasoning, losses)
    if strategy is OutputStrategy.TOOL:
        shape = _shape(wanted, capabilities, capabilities.tool_dialect, tool_rule)
        return _tool(wanted, shape, request, reasoning, capabilities, losses)
    return _prompted(wanted, request, reasoning, capabilities, losses)


def refuse_reserved(request: ModelRequest) -> None:
    """Callers may not name a tool as slipform names its own."""
    for index, tool in enumerate(request.tools):
        if tool.name == RESERVED_TOOL:
            raise RequestError(
                f"The tool name `{RESERVED_TOOL}` is reserved for structured output",
                where=f"tools[{index}].name",
                hint="Give the tool another name.",
            )


def _plain(
    request: ModelRequest, capabilities: Capabilities, reasoning: Mapping[str, Any], losses: Losses
) -> SchemaChannel:
    if request.json_mode and not capabilities.json_mode:
        losses.append(add_loss("json_mode", "This API has no JSON mode; only the prompt asks for JSON."))
    return SchemaChannel(
        json_object=request.json_mode and capabilities.json_mode,
        reasoning=reasoning,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
    )


def _native(
    wanted: ResponseFormat, shape: WireSchema, request: ModelRequest, reasoning: Mapping[str, Any], losses: Losses
) -> SchemaChannel:
    losses.extend(shape.losses)
    return SchemaChannel(
        OutputStrategy.NATIVE,
        wanted.json_schema.name,
        shape.schema,
        shape.strict,
        reasoning=reasoning,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        lift=shape.lift,
    )


def _tool(
    wanted: ResponseFormat,
    shape: WireSchema,
    request: ModelRequest,
    reasoning: Mapping[str, Any],
    capabilities: Capabilities,
    losses: Losses,
) -> SchemaChannel:
    losses.extend(shape.losses)
    described = wanted.json_schema.schema.get("description")
    text = f"Give the final answer, {wanted.json_schema.name}, as the arguments of this tool."
    tool = Tool(
        RESERVED_TOOL,
        shape.schema,
        description=f"{text} {described}" if isinstance(described, str) else text,
        strict=True if shape.strict else None,
    )
    return SchemaChannel(
        OutputStrategy.TOOL,
        wanted.json_schema.name,
        shape.schema,
        shape.strict,
        reasoning=reasoning,
        tools=(*request.tools, tool),
        tool_choice=_forced(request, capabilities, losses),
        parallel_tool_calls=request.parallel_tool_calls if request.tools else False,
        lift=shape.lift,
    )


def _forced(request: ModelRequest, capabilities: Capabilities, losses: Losses) -> ToolChoice:
    if not capabilities.forced_tool:
        losses.append(
            add_loss(
                "tool_choice", "This model cannot be made to call a tool; the answer may come as text.", "approximated"
            )
        )
        return "auto"
    if request.tools:
        # A tool of the caller's may have its turn first; the answer comes by some call in any case.
        return request.tool_choice if isinstance(request.tool_choice, NamedTool) else "required"
    return "required" if "required_only" in capabilities.quirks else NamedTool(RESERVED_TOOL)


def _prompted(
    wanted: ResponseFormat,
    request: ModelRequest,
    reasoning: Mapping[str, Any],
    capabilities: Capabilities,
    losses: Losses,
) -> SchemaChannel:
    if wanted.strict:
        losses.append(
            add_loss("response_format.strict", "A schema in the prompt cannot be made binding.", "approximated")
        )
    if request.tools:
        losses.append(
            ModelWarning("tools_with_prompted", "Tools and a schema in the prompt do not go well together.", "tools")
        )
    return SchemaChannel(
        OutputStrategy.PROMPTED,
        wanted.json_schema.name,
        wanted.json_schema.schema,
        json_object=capabilities.json_mode and not request.tools,
        reasoning=reasoning,
        tools=request.tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
    )


_SHAPES = BoundedCache[tuple[bytes, str, bool, StrictRule], WireSchema](
    "encoded schemas", entries=256, max_bytes=32_000_000
)
"""By the schema's text, so that a schema which is changed, or comes with every request, is no danger."""
_LEAST = 2_000
_TIMES_TEXT = 50
"""How many bytes a lowered schema and the way back keep alive for each byte of the schema's text."""


def _shape(wanted: ResponseFormat, capabilities: Capabilities, dialect: str, rule: StrictRule) -> WireSchema:
    spec, strict = wanted.json_schema, wanted.strict and "no_strict" not in capabilities.quirks
    return _shaped(spec.schema, dialect, strict, rule, spec.text)


def _shaped(schema: Any, dialect: str, strict: bool, rule: StrictRule, text: bytes | None = None) -> WireSchema:
    """The schema in the vendor's dialect; `text` is its own, where nobody can change it."""
    if type(schema) is not dict and not isinstance(schema, Mapping):
        raise RequestError(
            "The schema must be a JSON object at the top level", where="response_format.json_schema.schema"
        )
    key = (text or to_text(schema), dialect, strict, rule)
    shape = _SHAPES.get(key)
    if shape is None:
        shape = _lowered(schema, dialect, strict, rule)
        if text is not None or shape.schema is not schema:
            _SHAPES.put(key, shape, _LEAST + _TIMES_TEXT * len(key[0]))
    return shape


def _lowered(schema: Mapping[str, Any], dialect: str, strict: bool, rule: StrictRule) -> WireSchema:
    lowered = lower(schema, dialect, open_objects="closed")
    losses: Losses = []
    for loss in lowered.report:
        if loss.action in ("dropped", "approximated", "closed"):
            message = f"`{loss.keyword}` was {loss.action} for the {dialect} dialect; it is checked here instead."
            losses.append(add_loss(loss.pointer, message, loss.action))
    breach = _breach(lowered.schema) if strict and rule != "always" else None
    if breach is not None and not (rule == "closed" and isinstance(breach, RequiredMissingProperties)):
        losses.append(add_loss(breach.path, f"Sent without strict mode: {breach}.", "approximated"))
        strict = False
    # The way back, when there is a way to go.
    lift = None if lowered.identity else Lift(lowered.schema, lowered.lift, lowered.lift_stream, PENDING)
    return WireSchema(lowered.schema, strict, lift, tuple(losses))


def _breach(schema: Mapping[str, Any]) -> StrictSchemaError | None:
    try:
        strict_preflight(schema)
    except StrictSchemaError as error:
        return error
    return None


def finish_channel(plan: SchemaChannel, losses: Losses) -> SchemaChannel:
    """The plan with everything that was lost while encoding."""
    if not losses:
        return plan
    return SchemaChannel(
        plan.strategy,
        plan.name,
        plan.schema,
        plan.strict,
        plan.json_object,
        plan.reasoning,
        plan.tools,
        plan.tool_choice,
        plan.parallel_tool_calls,
        plan.lift,
        tuple(losses),
    )


def drop_sampling(request: ModelRequest, names: Mapping[str, str], losses: Losses, allowed: bool) -> dict[str, Any]:
    """The sampling fields spelled by `names` (IR name → wire name); what cannot be sent is reported."""
    values: dict[str, Any] = {}
    sampling = request.sampling
    if sampling is USUAL or sampling == USUAL:
        return values
    for name in ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty", "stop"):
        value = getattr(sampling, name)
        if value is None or value == ():
            continue
        if name not in names:
            losses.append(add_loss(f"sampling.{name}", f"This API has no {name}."))
        elif not allowed and name != "stop":
            losses.append(add_loss(f"sampling.{name}", "This model takes no sampling parameters."))
        else:
            values[names[name]] = list(value) if name == "stop" else value
    return values


def add_extra(body: dict[str, Any], request: ModelRequest, codec: str, losses: Losses) -> None:
    """Pass vendor fields through untouched, or say that they were meant for another API."""
    if request.extra_for in (None, codec):
        _merge(body, request.extra)
        return
    losses.extend(add_loss(key, f"A field of {request.extra_for} that {codec} does not have.") for key in request.extra)


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, Mapping):
            into[key] = dict(old)
            _merge(into[key], value)
        else:
            into[key] = value


def own_extra(extra: Mapping[str, Any], codec: str, path: str, losses: Losses) -> Mapping[str, Any]:
    """The part of a nested `extra` that is meant for this codec; the rest is reported."""
    if not extra:
        return extra
    losses.extend(add_loss(path, f"Fields meant for {other} are left out.") for other in extra if other != codec)
    own = extra.get(codec, {})
    return own if isinstance(own, Mapping) else {}


def dumps(value: Any) -> bytes:
    """JSON as compact bytes; keys keep their order."""
    try:
        return orjson.dumps(value, default=_plain_mapping)
    except TypeError:
        return _dumps_unusual(value)


def _dumps_unusual(value: Any) -> bytes:
    """The same for what `orjson` does not write: arguments that a model has nested more than 254 levels deep."""
    try:
        return json.dumps(value, default=_plain_mapping, separators=(",", ":")).encode()
    except RecursionError:
        raise UpstreamError(
            "The answer is nested too deeply to be written", details={"category": "unreadable"}
        ) from None


def _plain_mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")

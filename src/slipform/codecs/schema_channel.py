"""Choose how a request asks for its schema: the vendor's native mode, a forced tool or the prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from slipform.codecs.request_fields import Capabilities, Encoding
from slipform.codecs.wire_schemas import StrictRule, WireSchema, format_schema, lower_tools, tool_schema
from slipform.errors import RequestError, UnsupportedSchemaError
from slipform.ir import RESERVED_TOOL, Lift, ModelRequest, ModelWarning, NamedTool, Tool, ToolChoice
from slipform.schema import OutputStrategy, ResponseFormat
from slipform.schema.lowering.lift_plan import SAME, LiftPlan, Wrapped


class SchemaChannel(msgspec.Struct, frozen=True):
    """The decisions for one request, and the information that the same codec needs to read the answer."""

    strategy: OutputStrategy | None = None
    """None if no schema was requested."""
    name: str = ""
    schema: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The schema as the vendor sees it."""
    strict: bool = False
    json_object: bool = False
    """Whether the vendor's JSON mode without a schema is used."""
    reasoning: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    lift: Lift | None = None
    warnings: tuple[ModelWarning, ...] = ()
    tool_lifts: Mapping[str, Lift] = msgspec.field(default_factory=dict)
    """Converters of the arguments of the caller's own tools, if their schemas were lowered."""
    tool_names: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The caller's own names of tools, by the vendor's names, if those differ."""


def choose_channel(
    request: ModelRequest,
    out: Encoding,
    auto: OutputStrategy,
    *,
    native_rule: StrictRule = "always",
    tool_rule: StrictRule = "always",
) -> SchemaChannel:
    """Choose the channel for this request; `auto` is the strategy that the codec resolved on its creation."""
    capabilities = out.capabilities
    response_format = request.response_format
    choice = request.tool_choice
    parallel = request.parallel_tool_calls
    if request.reasoning and not capabilities.reasoning:
        out.lose("reasoning", "This model does not reason on demand.")
    reasoning = request.reasoning if request.reasoning and capabilities.reasoning else {}
    if response_format is None:
        return _channel_without_schema(request, out, reasoning, tool_rule)
    name = response_format.json_schema.name
    if not isinstance(name, str) or not name.strip():
        raise RequestError("JsonSchemaSpec: name must be non-empty", where="response_format.json_schema.name")
    strategy, native, why = serving_strategy(request, capabilities, auto, native_rule)
    if why:
        out.lose("response_format", why, "approximated")
    if strategy is not OutputStrategy.NATIVE and strategy is not OutputStrategy.TOOL:
        return _prompted_channel(request, response_format, out, reasoning, tool_rule)
    if response_format.strict and "no_strict" in capabilities.quirks:
        out.lose("response_format.strict", "This model has no strict mode; the answer is checked here.", "approximated")
    shape = native or tool_schema(response_format, out, tool_rule)
    out.losses.extend(shape.losses)
    tools, lifts = lower_tools(request.tools, out, tool_rule, beside=shape)
    if strategy is OutputStrategy.TOOL:
        refuse_reserved(request)
        choice = _forced(request, out)
        parallel = parallel if tools else False
        tools = (*tools, _output_tool(response_format, shape))
    return SchemaChannel(
        strategy, name, shape.schema, shape.strict, False, reasoning, tools, choice, parallel, shape.lift, (), lifts
    )


def _channel_without_schema(
    request: ModelRequest, out: Encoding, reasoning: Mapping[str, Any], tool_rule: StrictRule
) -> SchemaChannel:
    """Return the channel of a request for text, or for any JSON object."""
    capabilities = out.capabilities
    if forces_object(request, capabilities):
        # Arguments of a call are always JSON: this is the strongest JSON-only mode of the API.
        return SchemaChannel(
            OutputStrategy.TOOL,
            reasoning=reasoning,
            tools=(_OBJECT_TOOL,),
            tool_choice=_forced(request, out),
            parallel_tool_calls=False,
        )
    if request.json_mode and not capabilities.json_mode:
        out.lose("json_mode", "This API has no JSON mode; only the prompt asks for JSON.")
    tools, lifts = lower_tools(request.tools, out, tool_rule)
    return SchemaChannel(
        json_object=request.json_mode and capabilities.json_mode,
        reasoning=reasoning,
        tools=tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        tool_lifts=lifts,
    )


def _prompted_channel(
    request: ModelRequest,
    response_format: ResponseFormat,
    out: Encoding,
    reasoning: Mapping[str, Any],
    tool_rule: StrictRule,
) -> SchemaChannel:
    """Return the channel of a request whose schema is in its prompt."""
    if response_format.strict:
        out.lose("response_format.strict", "A schema in the prompt cannot be made binding.", "approximated")
    if request.tools:
        message = "Tools and a schema in the prompt do not go well together."
        out.losses.append(ModelWarning("tools_with_prompted", message, "tools"))
    tools, lifts = lower_tools(request.tools, out, tool_rule)
    return SchemaChannel(
        OutputStrategy.PROMPTED,
        response_format.json_schema.name,
        response_format.json_schema.schema,
        # A JSON mode would start the JSON again after the beginning that is sent along.
        json_object=out.capabilities.json_mode and not request.tools and request.continues != "prefill",
        reasoning=reasoning,
        tools=tools,
        tool_choice=request.tool_choice,
        parallel_tool_calls=request.parallel_tool_calls,
        lift=_UNWRAPPING if wraps_root(out.capabilities, request) else None,
        tool_lifts=lifts,
    )


def forces_object(request: ModelRequest, capabilities: Capabilities) -> bool:
    """Return whether JSON without a schema is requested by a tool, since the API has no mode for it."""
    if request.response_format is not None or not request.json_mode or capabilities.json_mode:
        return False
    return capabilities.forced_tool and not request.tools and not request.reasoning


def serving_strategy(
    request: ModelRequest, capabilities: Capabilities, auto: OutputStrategy, native_rule: StrictRule
) -> tuple[OutputStrategy, WireSchema | None, str]:
    """Return the strategy for this request, its schema on the native channel, and why another strategy is used.

    `auto` uses the next channel if the native one cannot express the schema: the tool, then the prompt.
    """
    response_format = request.response_format
    if response_format is None:
        return auto, None, ""
    is_auto = response_format.strategy is OutputStrategy.AUTO
    strategy = auto if is_auto else response_format.strategy
    if strategy is not OutputStrategy.NATIVE:
        return strategy, None, ""
    if request.tools and "no_native_with_tools" in capabilities.quirks:
        return OutputStrategy.TOOL, None, "This API takes a schema or tools; the schema goes in a tool."
    try:
        return strategy, format_schema(response_format, capabilities, native_rule), ""
    except UnsupportedSchemaError as error:
        if not is_auto or capabilities.strategy is not OutputStrategy.AUTO:  # the caller insists on this channel
            raise
        below = OutputStrategy.TOOL if capabilities.forced_tool else OutputStrategy.PROMPTED
        return below, None, f"{error.message}; the schema goes in {_PLACES[below]}."


_PLACES = {OutputStrategy.TOOL: "a tool", OutputStrategy.PROMPTED: "the prompt"}


def wraps_root(capabilities: Capabilities, request: ModelRequest) -> bool:
    """Whether a prompted schema is combined with a JSON mode that allows only objects, although its root is not one.

    The prompt then asks for the value under the key `value`.
    """
    response_format = request.response_format
    if response_format is None or not capabilities.json_mode or request.tools:
        return False
    root = response_format.json_schema.schema
    return root.get("type") in ("array", "string", "integer", "number", "boolean", "null") or "enum" in root


def _unwrapped(value: Any) -> Any:
    """Return the value under the key `value`; an answer of a model that ignored the key is accepted as well."""
    if isinstance(value, dict) and list(value) == ["value"]:
        return value["value"]
    return value


_WRAPPED = Wrapped("value", SAME)
_UNWRAPPING = Lift({}, _unwrapped, LiftPlan(_WRAPPED, frozenset({id(_WRAPPED)}), {}, {}))


def refuse_reserved(request: ModelRequest) -> None:
    """Raise `RequestError` if a caller's tool has the name of the reserved answer tool."""
    for index, tool in enumerate(request.tools):
        if tool.name == RESERVED_TOOL:
            raise RequestError(
                f"The tool name `{RESERVED_TOOL}` is reserved for structured output",
                where=f"tools[{index}].name",
                hint="Give the tool another name, or ask for the schema with another strategy.",
            )


def _output_tool(response_format: ResponseFormat, shape: WireSchema) -> Tool:
    described = response_format.json_schema.schema.get("description")
    text = f"Give the final answer, {response_format.json_schema.name}, as the arguments of this tool."
    description = f"{text} {described}" if isinstance(described, str) else text
    return Tool(RESERVED_TOOL, shape.schema, description, strict=True if shape.strict else None)


_OBJECT_TOOL: Final = Tool(
    RESERVED_TOOL, {"type": "object"}, "Give the whole answer, a JSON object, as the arguments of this tool."
)


def _forced(request: ModelRequest, out: Encoding) -> ToolChoice:
    if not out.capabilities.forced_tool:
        message = "This model cannot be made to call a tool; the answer may come as text."
        out.lose("tool_choice", message, "approximated")
        return "auto"
    if request.tools:
        # The model may call one of the caller's tools first; the answer arrives by some call in any case.
        if isinstance(request.tool_choice, NamedTool):
            return request.tool_choice
        return "required"
    if "required_only" in out.quirks:
        return "required"
    return NamedTool(RESERVED_TOOL)


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def schema_name(name: str, out: Encoding) -> str:
    """Return the schema's name in the characters that OpenAI allows.

    >>> from slipform.codecs.request_fields import Capabilities
    >>> schema_name("My schema!", Encoding("openai-chat", Capabilities()))
    'My_schema_'
    """
    clean = _NOT_IN_NAMES.sub("_", name)[:64]
    if clean != name:
        out.lose("response_format.json_schema.name", f"The name was spelled {clean!r}.", "approximated")
    return clean

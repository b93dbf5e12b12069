"""Choose how a request asks for its shape: the vendor's native mode, a forced tool or the prompt.

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
- `schema_in_prompt`: the server holds the model to a schema without showing it; the prompt shows it, too.
- `list_keys`: a small model, whose prompt names the keys although the channel carries the schema.
- `guided`: it takes `guided_regex`, `guided_grammar` and grammars in `structured_outputs` (vLLM).
- `gbnf`: it takes a `grammar` (llama.cpp).
- `body_version`: `anthropic_version` goes in the body and the model in the path (Claude on Vertex and Bedrock).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from slipform.bounded import BoundedCache
from slipform.codecs.request_fields import Encoding
from slipform.errors import RequestError, RequiredMissingProperties, StrictSchemaError
from slipform.ir import (
    RESERVED_TOOL,
    Lift,
    LossyEncode,
    ModelNote,
    ModelRequest,
    ModelWarning,
    NamedTool,
    Tool,
    ToolChoice,
)
from slipform.schema import OutputStrategy, ResponseFormat
from slipform.schema.document import to_text
from slipform.schema.lowering import lower
from slipform.schema.lowering.dialects import OpenObjects
from slipform.schema.lowering.lift_plan import PENDING
from slipform.schema.strict import strict_preflight


class SchemaChannel(msgspec.Struct, frozen=True):
    """What was decided for one request, and what the same codec needs to read the answer."""

    strategy: OutputStrategy | None = None
    """None when no schema was asked for."""
    name: str = ""
    schema: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """As the vendor sees it."""
    strict: bool = False
    json_object: bool = False
    """Whether the vendor's schema-less JSON mode is switched on."""
    reasoning: Mapping[str, Any] = msgspec.field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    lift: Lift | None = None
    warnings: tuple[ModelWarning, ...] = ()


class WireSchema(msgspec.Struct, frozen=True):
    """A schema as one channel takes it."""

    schema: Mapping[str, Any]
    strict: bool
    lift: Lift | None
    losses: tuple[ModelWarning, ...]


StrictRule: TypeAlias = Literal["openai", "closed", "always"]
"""When a channel's strict mode takes a schema: every property required, objects closed, or no switch to care for."""


def choose_channel(
    request: ModelRequest,
    out: Encoding,
    auto: OutputStrategy,
    *,
    native_rule: StrictRule = "always",
    tool_rule: StrictRule = "always",
) -> SchemaChannel:
    """Decide the channel for this request; `auto` is what the codec settled on when it was made."""
    refuse_reserved(request)
    capabilities = out.capabilities
    wanted, tools, choice, parallel = (
        request.response_format, request.tools, request.tool_choice, request.parallel_tool_calls,
    )  # fmt: skip
    if request.reasoning and not capabilities.reasoning:
        out.lose("reasoning", "This model does not reason on demand.")
    reasoning = request.reasoning if request.reasoning and capabilities.reasoning else {}
    if wanted is None:
        if request.json_mode and not capabilities.json_mode:
            out.lose("json_mode", "This API has no JSON mode; only the prompt asks for JSON.")
        json_object = request.json_mode and capabilities.json_mode
        return SchemaChannel(None, "", {}, False, json_object, reasoning, tools, choice, parallel)
    name, strategy = wanted.json_schema.name, auto if wanted.strategy is OutputStrategy.AUTO else wanted.strategy
    if strategy is OutputStrategy.NATIVE and tools and "no_native_with_tools" in capabilities.quirks:
        message = "This API takes a schema or tools; the schema goes in a tool."
        out.lose("response_format", message, "approximated")
        strategy = OutputStrategy.TOOL
    if strategy is not OutputStrategy.NATIVE and strategy is not OutputStrategy.TOOL:
        if wanted.strict:
            out.lose("response_format.strict", "A schema in the prompt cannot be made binding.", "approximated")
        if tools:
            message = "Tools and a schema in the prompt do not go well together."
            out.losses.append(ModelWarning("tools_with_prompted", message, "tools"))
        json_object = capabilities.json_mode and not tools
        schema = wanted.json_schema.schema
        prompted = OutputStrategy.PROMPTED
        return SchemaChannel(prompted, name, schema, False, json_object, reasoning, tools, choice, parallel)
    if strategy is OutputStrategy.NATIVE:
        shape = _shape(wanted, out, capabilities.dialect, native_rule)
        out.losses.extend(shape.losses)
    else:
        shape = _shape(wanted, out, capabilities.tool_dialect, tool_rule)
        out.losses.extend(shape.losses)
        choice, parallel = _forced(request, out), parallel if tools else False
        tools = (*tools, _output_tool(wanted, shape))
    return SchemaChannel(
        strategy, name, shape.schema, shape.strict, False, reasoning, tools, choice, parallel, shape.lift
    )


def refuse_reserved(request: ModelRequest) -> None:
    """Callers may not name a tool as slipform names its own."""
    for index, tool in enumerate(request.tools):
        if tool.name == RESERVED_TOOL:
            raise RequestError(
                f"The tool name `{RESERVED_TOOL}` is reserved for structured output",
                where=f"tools[{index}].name",
                hint="Give the tool another name.",
            )


def _output_tool(wanted: ResponseFormat, shape: WireSchema) -> Tool:
    described = wanted.json_schema.schema.get("description")
    text = f"Give the final answer, {wanted.json_schema.name}, as the arguments of this tool."
    description = f"{text} {described}" if isinstance(described, str) else text
    return Tool(RESERVED_TOOL, shape.schema, description, strict=True if shape.strict else None)


def _forced(request: ModelRequest, out: Encoding) -> ToolChoice:
    if not out.capabilities.forced_tool:
        message = "This model cannot be made to call a tool; the answer may come as text."
        out.lose("tool_choice", message, "approximated")
        return "auto"
    if request.tools:
        # A tool of the caller's may have its turn first; the answer comes by some call in any case.
        return request.tool_choice if isinstance(request.tool_choice, NamedTool) else "required"
    return "required" if "required_only" in out.quirks else NamedTool(RESERVED_TOOL)


_SHAPES = BoundedCache[tuple[bytes, str, bool, StrictRule, OpenObjects], WireSchema](
    "encoded schemas", entries=256, max_bytes=32_000_000
)
"""By the schema's text, so that a schema which is changed, or comes with every request, is no danger."""
_LEAST = 2_000
_TIMES_TEXT = 50
"""How many bytes a lowered schema and the way back keep alive for each byte of the schema's text."""


def _shape(wanted: ResponseFormat, out: Encoding, dialect: str, rule: StrictRule) -> WireSchema:
    spec, strict = wanted.json_schema, wanted.strict
    if strict and "no_strict" in out.quirks:
        out.lose(
            "response_format.strict", "This vendor has no strict mode; the answer is checked here.", "approximated"
        )
        strict = False
    open_objects = out.capabilities.open_objects
    if spec.is_typed and open_objects == "auto":
        open_objects = "closed"
    return _shaped(spec.schema, dialect, strict, rule, open_objects, spec.text)


def _shaped(
    schema: Any, dialect: str, strict: bool, rule: StrictRule, open_objects: OpenObjects, text: bytes | None = None
) -> WireSchema:
    """The schema in the vendor's dialect; `text` is its own, where nobody can change it."""
    if type(schema) is not dict and not isinstance(schema, Mapping):
        raise RequestError(
            "The schema must be a JSON object at the top level", where="response_format.json_schema.schema"
        )
    key = (text or to_text(schema), dialect, strict, rule, open_objects)
    shape = _SHAPES.get(key)
    if shape is None:
        shape = _lowered(schema, dialect, strict, rule, open_objects)
        if text is not None or shape.schema is not schema:
            _SHAPES.put(key, shape, _LEAST + _TIMES_TEXT * len(key[0]))
    return shape


def _lowered(
    schema: Mapping[str, Any], dialect: str, strict: bool, rule: StrictRule, open_objects: OpenObjects
) -> WireSchema:
    lowered = lower(schema, dialect, open_objects=open_objects)
    losses: list[ModelWarning] = []
    closed = [loss.pointer for loss in lowered.report if loss.action == "closed"]
    if closed:
        more = f" (and {len(closed) - 1} more)" if len(closed) > 1 else ""
        message = (
            f"The object at {closed[0]}{more} was closed for the {dialect} dialect: no other keys will be written."
        )
        losses.append(ModelNote("schema_closed", message, closed[0]))
    for loss in lowered.report:
        if loss.action in ("dropped", "approximated"):
            message = f"`{loss.keyword}` was {loss.action} for the {dialect} dialect; it is checked here instead."
            losses.append(LossyEncode("lossy_encode", message, loss.pointer, loss.action))
    breach = _breach(lowered.schema) if strict and rule != "always" else None
    if breach is not None and not (rule == "closed" and isinstance(breach, RequiredMissingProperties)):
        message = f"Sent without strict mode: {breach}."
        losses.append(LossyEncode("lossy_encode", message, breach.path, "approximated"))
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


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def schema_name(name: str, out: Encoding) -> str:
    """The schema's name in the letters that OpenAI allows.

    >>> from slipform.codecs.request_fields import Capabilities
    >>> schema_name("My schema!", Encoding("openai-chat", Capabilities()))
    'My_schema_'
    """
    clean = _NOT_IN_NAMES.sub("_", name)[:64]
    if clean != name:
        out.lose("response_format.json_schema.name", f"The name was spelled {clean!r}.", "approximated")
    return clean

"""What the texts that vendors send with a 400 teach; each is taken from a public report or a vendor's page."""

from __future__ import annotations

import dataclasses

import pytest

from slipform.codecs import Capabilities
from slipform.ir import Message, ModelRequest, Tool
from slipform.providers.refusals import record_refusal
from slipform.providers.retry import apply_downgrades
from slipform.schema import JsonSchemaSpec, OutputStrategy, ResponseFormat

SHAPE = ResponseFormat(JsonSchemaSpec("thing", {"type": "object"}))
REQUEST = ModelRequest("m", (Message.user("hi"),), SHAPE, max_tokens=9)
WITH_TOOLS = REQUEST.replace(tools=(Tool("t", {"type": "object"}),))
ALL = Capabilities(native=True, tools=True, forced_tool=True, json_mode=True, max_tokens_field="max_tokens")
ON_TOOL = dataclasses.replace(ALL, native=False)
ON_JSON_MODE = dataclasses.replace(ON_TOOL, forced_tool=False)

OF_THE_SCHEMA = [
    "Invalid schema for response_format 'x': In context=('properties', 'a'), 'default' is not permitted.",
    "Invalid schema for response_format 'structured_data': 6 levels of nesting exceeds limit of 5.",
    "Invalid schema: Objects provided via 'anyOf' must not share identical first keys. Consider adding a discriminator",
    "output_format.schema: Invalid schema: Enum value 'low' does not match declared type '['string', 'null']'",
    "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
    "output_config.format.schema: For 'integer' type, property 'minimum' is not supported",
    "Schemas contains too many optional parameters (87), which would make grammar compilation inefficient.",
    "Schemas contains too many parameters with union types (28 parameters with type arrays or anyOf).",
    "The compiled grammar is too large, which would cause performance issues. Simplify your tool schemas",
    "Schema is too complex for compilation. Please simplify the schema.",
    "A schema in GenerationConfig in the request exceeds the maximum allowed nesting depth.",
    "The specified schema produces a constraint that has too many states for serving. Typical causes of this error are",
    "* GenerateContentRequest.generation_config.response_schema.properties: should be non-empty for OBJECT type",
    "GenerateContentRequest.generation_config.response_schema.properties[op].enum[3]: cannot be empty",
    "invalid JSON schema for response_format: 'x': /properties/a: `additionalProperties:false` must be set",
    "Unsupported JSON schema fields: {'minimum'}",
    "The provided JSON schema contains features not supported by xgrammar.",
    "Failed to parse grammar",
    "JSON schema conversion failed: unresolved $ref",
    'Grammar error: unimplemented keys: ["uniqueItems"]',
]
OF_THE_MODEL = [
    "JSON mode is not enabled for models/gemma-3-27b-it",
    "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
    "This model does not support response format `json_schema`. See supported models at the documentation",
    "This response_format type is unavailable now",
    "output_config.format: Extra inputs are not permitted",
    "'claude-3-opus' does not support output format.",
    "structured_outputs not supported in your workspace",
    "'response_format.type' must be 'json_schema' or 'text'",
    "response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later",
    "Invalid JSON payload received. Unknown name \"responseJsonSchema\" at 'generation_config': Cannot find field.",
    "Malformed input request: extraneous key [outputConfig] is not permitted, please reformat your input",
    "meta-llama/Llama-Vision-Free is not supported for JSON mode/function calling",
    "No endpoints found that can handle the requested parameters.",
    "body.response_format.type: Input should be 'text' or 'json_object'",
]
OF_TOOLS = [
    "registry.ollama.ai/library/gemma3:4b does not support tools",
    "`tool calling` is not supported with this model",
    "Function calling is not enabled for models/gemma-3-27b-it",
    "This model doesn't support tool use.",
    "This model doesn't support the toolConfig.toolChoice.any field. Remove toolConfig.toolChoice.any and try again.",
    "No endpoints found that support tool use.",
    "Thinking may not be enabled when tool_choice forces tool use.",
    "Thinking mode does not support this tool_choice",
    "tool_choice 'required' is incompatible with thinking enabled",
    "deepseek-reasoner does not support Function Calling",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "tools param requires --jinja flag",
    "tool_choice forces tool use is not compatible with this model.",
]
BESIDE_TOOLS = [
    "Function calling with a response mime type: 'application/json' is unsupported",
    "json mode cannot be combined with tool/function calling",
    "Cannot use custom grammar constraints with tools.",
]


@pytest.mark.parametrize("message", OF_THE_SCHEMA)
def test_what_is_said_of_the_schema_is_learned_of_the_schema(message: str) -> None:
    assert record_refusal(message, REQUEST, ALL) == ("no_native", True)
    assert record_refusal(message, REQUEST, ON_TOOL) == ("no_forced_tool", True)
    assert record_refusal(message, REQUEST, ON_JSON_MODE) is None


@pytest.mark.parametrize("message", OF_THE_MODEL)
def test_what_is_said_of_the_format_is_learned_of_the_model(message: str) -> None:
    assert record_refusal(message, REQUEST, ALL) == ("no_native", False)
    assert record_refusal(message, REQUEST, ON_JSON_MODE) == ("no_json_mode", False)


@pytest.mark.parametrize("message", OF_TOOLS)
def test_what_is_said_of_tools_is_learned_where_slipform_sent_one(message: str) -> None:
    assert record_refusal(message, REQUEST, ON_TOOL) == ("no_forced_tool", False)
    assert record_refusal(message, REQUEST, ALL) is None


@pytest.mark.parametrize("message", BESIDE_TOOLS)
def test_a_format_beside_tools_is_learned_as_that(message: str) -> None:
    assert record_refusal(message, WITH_TOOLS, ALL) == ("no_native_with_tools", False)
    then = apply_downgrades(ALL, frozenset({"no_native_with_tools"}))
    assert then.auto_strategy is OutputStrategy.NATIVE
    assert "no_native_with_tools" in then.quirks


@pytest.mark.parametrize("message", [*OF_THE_SCHEMA, *OF_THE_MODEL, *OF_TOOLS, *BESIDE_TOOLS])
def test_a_channel_that_somebody_insists_on_teaches_nothing(message: str) -> None:
    asked = REQUEST.replace(response_format=SHAPE.with_strategy("native"))
    assert record_refusal(message, asked, ALL) is None
    assert record_refusal(message, REQUEST, dataclasses.replace(ALL, strategy=OutputStrategy.NATIVE)) is None


def test_a_refused_tool_of_the_callers_own_says_nothing_of_the_channel() -> None:
    asked = WITH_TOOLS.replace(tools=(Tool("get_weather", {"type": "object"}),))
    for message in (
        "Invalid schema for function 'get_weather': In context=(), 'required' is required to be supplied",
        "tools.0.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
    ):
        assert record_refusal(message, asked, ALL) is None
    assert record_refusal("tools.1.custom.input_schema: Schema is too complex", asked, ON_TOOL) == (
        "no_forced_tool",
        True,
    )


@pytest.mark.parametrize(
    "message",
    [
        "messages[0].content is missing",
        "prompt is too long: 250000 tokens > 200000 maximum",
        "API key not valid. Please pass a valid API key.",
        "The model `gpt-9` does not exist",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "Error while downloading https://example.com/a.png.",
        "Your credit balance is too low to access the API.",
    ],
)
def test_other_mistakes_teach_nothing(message: str) -> None:
    for capabilities in (ALL, ON_TOOL, ON_JSON_MODE):
        assert record_refusal(message, REQUEST, capabilities) is None

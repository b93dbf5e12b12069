"""Read from a vendor's refusal (a 400) which feature the request must do without: `record_refusal`.

`REFUSALS` lists the texts that vendors send, in the order in which they are tried. A text about the schema downgrades
that schema with that model; a text about a parameter downgrades the model.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

from slipform.codecs import Capabilities
from slipform.codecs.schema_channel import forces_object
from slipform.ir import ModelRequest
from slipform.providers.retry import DowngradeName
from slipform.schema import OutputStrategy

About: TypeAlias = Literal["schema", "tools_beside", "limit", "sampling", "tool", "format", "strict", "logprobs"]
"""The subject of a refusal: the schema itself, a format beside tools, or an unsupported parameter."""


class Refusal(NamedTuple):
    """Texts with the same meaning, with examples of the vendors that send them."""

    about: About
    texts: tuple[str, ...]
    """Case-insensitive regular expressions, one of which matches the message, its field or its code."""
    unsupported: bool = False
    """Whether the message must also say that something is not supported: it may concern a wrong value otherwise."""


_FORMAT = r"(?:response|output|text|structured|json|generation_config)"
REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "tools_beside",
        (
            r"function calling with (?:a )?response.?mime.?type",  # Gemini
            r"json mode cannot be combined with tool",  # Groq
            r"cannot use custom grammar constraints with tools",  # llama.cpp
            r"response_?format.{0,40}(?:with|and|alongside|combined).{0,20}tools?\b.{0,40}(?:not|un)",  # Cerebras
            r"(?:not|un).{0,40}response_?format.{0,30}(?:with|and|alongside|combined).{0,20}tools?\b",  # Cohere
            r"tools?\b.{0,30}(?:with|and|together).{0,20}(?:structured outputs?|response_?format|json_schema)",  # vLLM
        ),
    ),
    Refusal(
        "format",
        (
            r"(?:json mode|structured outputs?|json_schema|response format).{0,30}not (?:enabled|available)",  # Gemini
            rf"does(?:n't| not) support (?:the )?(?:parameter )?['`\"]?{_FORMAT}(?![\w.]*schema:)",  # Groq, Anthropic
            rf"{_FORMAT}[\w .'`\"]{{0,40}}(?:is|are) not supported (?:with|by|for|in) (?:this|the|your)\b",  # OpenAI
            rf"(?:unknown name|cannot find field|unrecognized|extra inputs|extraneous key).{{0,80}}{_FORMAT}",  # Gemini
            rf"{_FORMAT}[\w.]*:? (?:extra inputs are not permitted|is not a known)",  # Anthropic
            r"enabled only for api versions",  # Azure
        ),
    ),
    Refusal(
        "schema",
        (
            r"invalid (?:json )?schema\b",  # OpenAI, Anthropic, Groq
            r"schema (?:is|was) (?:too (?:complex|large|deep)|invalid|not (?:valid|supported))",  # Anthropic, Bedrock
            r"schemas? contains? too many",  # Anthropic: optional parameters, union types
            r"compiled grammar is too large|grammar compilation|grammar error",  # Anthropic, vLLM
            r"(?:failed|unable) to (?:compile|parse|convert|initialize)[^.]{0,40}(?:grammar|schema|samplers)",
            r"(?:grammar|schema)[^.]{0,40}(?:failed|unable) to (?:compile|parse|convert)|schema conversion failed",
            r"too many (?:states|recursive definitions|propert|enum)",  # Gemini, Anthropic
            r"nesting depth|levels of nesting|nested too deep",  # Gemini, OpenAI
            r"response_?(?:json_?)?schema\b|text\.format\.schema|json_schema\.schema",  # the field at fault
            r"output_(?:config|format)[.\w]*schema|input_schema|parameters\.properties",
            r"function_?declarations?\[\d+\]\.parameters",
            r"unsupported json schema|json schema[^.]{0,60}(?:not supported|unsupported|invalid)",  # Cerebras
            r"not supported by (?:xgrammar|outlines|guidance|llguidance)",  # vLLM, SGLang
            r"recursive (?:schemas?|references?|definitions?)|circular reference",
            r"additionalproperties['` ]{0,2}:? ?(?:false['` ]* )?(?:must|is required|should)",  # OpenAI, Anthropic
            r"'required' is required to be supplied",  # OpenAI
            r"share identical first keys",  # Azure
            r"in context=",  # OpenAI
            r"property keys should match",  # Anthropic
            r"should be non-empty for object type|enum\[\d+\]: cannot be empty|items: missing field",  # Gemini
            r"didn't specify the schema type field|reference to undefined schema",  # Vertex
            r"enum value .{0,80} does not match declared type",  # Anthropic
            r"invalid_json_schema|invalid_function_parameters",  # OpenAI's codes
        ),
    ),
    Refusal("logprobs", (r"log_?prob",), unsupported=True),
    Refusal("limit", (r"max_tokens|max_completion_tokens",), unsupported=True),
    Refusal(
        "sampling",
        (r"temperature|top_?p\b|top_?k\b|frequency_penalty|presence_penalty|sampling",),
        unsupported=True,
    ),
    Refusal(
        "tool",
        (
            r"tool_choice|tool choice|forces tool use|toolchoice|function_?calling_?config|forced tool",
            r"support.{0,20}(?:tool|function)[ _-]?(?:s\b|use|call|choice)",  # Ollama, Bedrock, OpenRouter
            r"(?:tool|function)[ _-]?(?:s|use|call(?:ing|s)?)\b.{0,30}(?:not |un)(?:enabled|supported|available)",
            r"json mode/function calling",  # Together
            r"tools param requires --jinja|--enable-auto-tool-choice|--tool-call-parser",  # llama.cpp, vLLM
            r"extraneous key \[toolconfig\]",  # Bedrock
        ),
        unsupported=True,
    ),
    Refusal(
        "format",
        (
            r"response[_ ]?format|output_config|output_format|json_schema|json_object|text\.format|textformat",
            r"outputconfig|response_?mime_?type|structured[ _]outputs?|json mode|output format",
            r"no endpoints? found that can handle the requested parameters",  # OpenRouter
        ),
        unsupported=True,
    ),
    Refusal("strict", (r"\bstrict\b",), unsupported=True),
)
"""The subjects of vendors' messages; the first that matches and allows a downgrade counts."""
_TOO_LARGE = re.compile(
    r"too (?:complex|large)|too many|(?:at most|exceed\w*|limit)\b.{0,40}\b(?:propert|enum|optional|union|parameter)"
    r"|(?:propert|enum|optional|union|parameter).{0,60}(?:at most|exceed|limit)",  # OpenAI, Anthropic, Gemini
    re.IGNORECASE | re.DOTALL,
)
"""Texts about a schema that would be accepted in parts."""
_UNSUPPORTED = re.compile(
    r"not? ?support|n't support|unsupported|unavailable|incompatible|unrecognized|deprecated for this model"
    r"|not (?:allowed|permitted|available|implemented|enabled|compatible)|unknown (?:field|name|parameter)"
    r"|cannot find field|extra inputs|extraneous|forces tool use|must be '?(?:json_schema|text)|input should be"
    r"|only the default|enabled only for|no endpoints? found|requires? --|only supports?\b",
    re.IGNORECASE,
)
_COMPILED = [(refusal, re.compile("|".join(refusal.texts), re.IGNORECASE | re.DOTALL)) for refusal in REFUSALS]


def record_refusal(
    message: str, request: ModelRequest, capabilities: Capabilities
) -> tuple[DowngradeName, bool] | None:
    """Return the downgrade that a refusal with this message calls for, and whether it concerns the schema or the model.

    None if no other form of the same request could avoid the refusal.
    """
    unsupported = _UNSUPPORTED.search(message) is not None
    for refusal, texts in _COMPILED:
        if (unsupported or not refusal.unsupported) and texts.search(message):
            downgrade = _downgrade_for(refusal.about, message, request, capabilities)
            if downgrade is not None:
                return downgrade, refusal.about == "schema"
            if refusal.about == "schema":
                return None
    return None


def _downgrade_for(
    about: About, message: str, request: ModelRequest, capabilities: Capabilities
) -> DowngradeName | None:
    channel = channel_of(request, capabilities)
    if about == "schema":
        return _schema_downgrade(channel, message, request)
    if about == "tools_beside":
        return "no_native_with_tools" if channel == "native" and request.tools else None
    if about == "limit":
        return _other_token_field(message, capabilities) if request.max_tokens is not None else None
    if about == "logprobs":
        return "no_logprobs" if request.logprobs is not None and "no_logprobs" not in capabilities.quirks else None
    if about == "sampling":
        return "no_sampling" if capabilities.sampling else None
    if about == "tool":
        return "no_forced_tool" if channel == "tool" else None
    if about == "format":
        return _NEXT_DOWNGRADE.get(channel)
    return None if "no_strict" in capabilities.quirks else "no_strict"


def _schema_downgrade(channel: Channel, message: str, request: ModelRequest) -> DowngradeName | None:
    if request.can_split and channel == "native" and _TOO_LARGE.search(message):
        return "split_schema"
    # A schema in the prompt cannot be refused by a vendor, and the caller's own tools are not slipform's to change.
    return _NEXT_DOWNGRADE.get(channel) if channel in ("native", "tool") and not _names_tool(message, request) else None


def _names_tool(message: str, request: ModelRequest) -> bool:
    """Return whether a refusal names one of the caller's own tools, by its name or its path."""
    named = {name for names in _TOOL_AT_FAULT.findall(message) for name in names if name}
    return not named.isdisjoint({*(tool.name for tool in request.tools), *map(str, range(len(request.tools)))})


_TOOL_AT_FAULT = re.compile(r"function '([\w.:-]+)'|(?:tools|function_declarations)[.\[](\d+)", re.IGNORECASE)


def _other_token_field(message: str, capabilities: Capabilities) -> DowngradeName | None:
    """Return the downgrade to the other name of the token limit, if the refusal concerns the name.

    A vendor that expects `max_completion_tokens` names it in the refusal of `max_tokens`. A server that knows only
    `max_tokens` need not name it in the refusal of the newer field.
    """
    if capabilities.max_tokens_field == "max_tokens" and "max_completion_tokens" in message:
        return "use_max_completion_tokens"
    if capabilities.max_tokens_field == "max_completion_tokens":
        return "use_max_tokens"
    return None


Channel: TypeAlias = Literal["native", "tool", "json_mode", "none"]
_NEXT_DOWNGRADE: dict[Channel, DowngradeName] = {
    "native": "no_native",
    "tool": "no_forced_tool",
    "json_mode": "no_json_mode",
}
"""The strategies in order, each with the downgrade that leads to the next: native → forced tool → JSON mode →
prompt."""


def channel_of(request: ModelRequest, capabilities: Capabilities) -> Channel:
    """Return the channel that `auto` uses for this request; None if the caller or the settings fix one."""
    response_format = request.response_format
    if response_format is None:
        if forces_object(request, capabilities):
            return "tool"
        return "json_mode" if request.json_mode and capabilities.json_mode else "none"
    if response_format.strategy is not OutputStrategy.AUTO or capabilities.strategy is not OutputStrategy.AUTO:
        return "none"  # an error reports that it does not work; nothing replaces it
    beside_tools = bool(request.tools) and "no_native_with_tools" in capabilities.quirks
    if capabilities.native and not beside_tools:
        return "native"
    if capabilities.forced_tool or beside_tools:
        return "tool"
    return "json_mode" if capabilities.json_mode and not request.tools else "none"

"""A client's request → IR (OpenAPI subset included)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.codec import ServedRequest
from slipform.codecs.gemini.decode import camel, read_part
from slipform.codecs.gemini.encode import NAME
from slipform.codecs.request_fields import (
    base64_bytes,
    flag,
    items,
    mapping,
    number,
    optional_text,
    read_body,
    response_format,
    stops,
    text,
    whole,
)
from slipform.errors import RequestError
from slipform.ir import (
    Media,
    Message,
    ModelRequest,
    NamedTool,
    Part,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from slipform.schema import ResponseFormat

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_NAMES = {
    "any_of": "anyOf",
    "max_items": "maxItems",
    "min_items": "minItems",
    "max_length": "maxLength",
    "min_length": "minLength",
    "max_properties": "maxProperties",
    "min_properties": "minProperties",
    "additional_properties": "additionalProperties",
    "prefix_items": "prefixItems",
}
_DROPPED = frozenset({"nullable", "propertyOrdering", "property_ordering", "example"})


def to_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The same schema in JSON Schema's words; a schema that is JSON Schema already comes out as it was.

    >>> to_json_schema({"type": "STRING", "nullable": True})
    {'type': ['string', 'null']}
    """
    found: dict[str, Any] = {}
    for key, value in schema.items():
        key = _NAMES.get(key, key)
        if key in _DROPPED:
            continue
        found[key] = _value(key, value)
    ordering = schema.get("propertyOrdering") or schema.get("property_ordering")
    if isinstance(ordering, list) and isinstance(found.get("properties"), dict):
        found["properties"] = _ordered(found["properties"], ordering)
    return _nullable(found) if schema.get("nullable") is True else found


def _value(key: str, value: Any) -> Any:
    if key == "type":
        return _type(value)
    if key in ("properties", "$defs", "defs") and isinstance(value, Mapping):
        return {name: _sub(item) for name, item in value.items()}
    if key in ("items", "additionalProperties"):
        return _sub(value)
    if key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
        return [_sub(item) for item in value]
    if key in _COUNTS and isinstance(value, str) and value.isdigit():
        return int(value)
    if key in ("minimum", "maximum") and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _sub(value: Any) -> Any:
    return to_json_schema(value) if isinstance(value, Mapping) else value


def _type(value: Any) -> Any:
    if isinstance(value, list):
        return [_type(item) for item in value]
    return value.lower() if isinstance(value, str) else value


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str):
        nullable = {**schema, "type": [schema["type"], "null"]}
        if isinstance(schema.get("enum"), list):
            nullable["enum"] = [*schema["enum"], None]
        return nullable
    if isinstance(schema.get("anyOf"), list):
        return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
    return schema


def _ordered(properties: dict[str, Any], ordering: list[Any]) -> dict[str, Any]:
    first = {name: properties[name] for name in ordering if isinstance(name, str) and name in properties}
    return {**first, **{name: value for name, value in properties.items() if name not in first}}


_PATH = re.compile(r"(?:^|/)(?:models|tunedModels)/(.+):(generateContent|streamGenerateContent)(?:\?.*)?\Z", re.DOTALL)
_KNOWN = frozenset({"contents", "systemInstruction", "generationConfig", "tools", "toolConfig", "model"})
_CONFIG = frozenset(
    {
        "temperature", "topP", "topK", "seed", "presencePenalty", "frequencyPenalty", "stopSequences",
        "maxOutputTokens", "responseMimeType", "responseSchema", "responseJsonSchema", "thinkingConfig",
    }
)  # fmt: skip
_DEFAULT_NAME = "answer"


def decode_request(body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """Read a request; the model and whether to stream are in the path."""
    data = camel(read_body(body))
    found = _PATH.search(path)
    model = found[1] if found else text(data.get("model"), "model").removeprefix("models/")
    config = camel(mapping(data.get("generationConfig"), "generationConfig"))
    tools = [
        tool for at, group in enumerate(items(data.get("tools"), "tools")) for tool in _tools(group, f"tools[{at}]")
    ]
    choice, kept = _choice(mapping(data.get("toolConfig"), "toolConfig"), tuple(tools))
    extra = {key: value for key, value in data.items() if key not in _KNOWN}
    more = {key: value for key, value in config.items() if key not in _CONFIG}
    if more:
        extra["generationConfig"] = more
    mime = config.get("responseMimeType")
    shape = _format(config)
    request = ModelRequest(
        model=model,
        messages=_messages(data),
        response_format=shape,
        json_mode=mime == "application/json" and shape is None,
        tools=kept,
        tool_choice=choice,
        sampling=Sampling(
            temperature=number(config.get("temperature"), "generationConfig.temperature"),
            top_p=number(config.get("topP"), "generationConfig.topP"),
            top_k=whole(config.get("topK"), "generationConfig.topK"),
            seed=whole(config.get("seed"), "generationConfig.seed"),
            frequency_penalty=number(config.get("frequencyPenalty"), "generationConfig.frequencyPenalty"),
            presence_penalty=number(config.get("presencePenalty"), "generationConfig.presencePenalty"),
            stop=stops(config.get("stopSequences"), "generationConfig.stopSequences"),
        ),
        max_tokens=whole(config.get("maxOutputTokens"), "generationConfig.maxOutputTokens"),
        reasoning=_reasoning(camel(mapping(config.get("thinkingConfig"), "generationConfig.thinkingConfig"))),
        extra=extra,
        extra_for=NAME,
    )
    return ServedRequest(request, stream=found is not None and found[2] == "streamGenerateContent")


def named_in_path(path: str) -> str:
    """The model that a call's path names; raises when it names none.

    >>> named_in_path("/v1beta/models/bedrock/us.amazon.nova-pro-v1:0:generateContent")
    'bedrock/us.amazon.nova-pro-v1:0'
    """
    found = _PATH.search(path)
    if found is None:
        raise RequestError(
            "The path names no model", where="the path", hint="Call /v1beta/models/MODEL:generateContent."
        )
    return found[1]


def _format(config: Mapping[str, Any]) -> ResponseFormat | None:
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = to_json_schema(mapping(config["responseSchema"], "generationConfig.responseSchema"))
    if schema is None:
        return None
    title = schema.get("title") if isinstance(schema, Mapping) else None
    name = title if isinstance(title, str) and title.strip() else _DEFAULT_NAME
    return response_format(name, schema, strict=True, where="generationConfig.responseJsonSchema")


def _reasoning(config: Mapping[str, Any]) -> dict[str, Any] | None:
    wanted: dict[str, Any] = {}
    if config.get("thinkingBudget") is not None:
        budget = whole(config["thinkingBudget"], "generationConfig.thinkingConfig.thinkingBudget")
        wanted |= {"enabled": False} if budget == 0 else {"budget": budget}
    if config.get("thinkingLevel") is not None:
        level = text(config["thinkingLevel"], "generationConfig.thinkingConfig.thinkingLevel")
        wanted["effort"] = level.lower()
    if flag(config.get("includeThoughts"), "generationConfig.thinkingConfig.includeThoughts"):
        wanted["summary"] = True
    return wanted or None


def _tools(group: Any, where: str) -> list[Tool]:
    data = camel(mapping(group, where))
    declared = items(data.get("functionDeclarations"), f"{where}.functionDeclarations")
    tools = [_tool(item, f"{where}.functionDeclarations[{at}]") for at, item in enumerate(declared)]
    hosted = {key: value for key, value in data.items() if key != "functionDeclarations" and value is not None}
    if hosted:
        tools.append(Tool(next(iter(hosted)), {}, extra={NAME: hosted}, vendor=NAME))
    return tools


def _tool(item: Any, where: str) -> Tool:
    data = camel(mapping(item, where))
    parameters = data.get("parametersJsonSchema")
    if parameters is None:
        parameters = to_json_schema(mapping(data.get("parameters"), f"{where}.parameters"))
    known = ("name", "description", "parameters", "parametersJsonSchema")
    extra = {key: value for key, value in data.items() if key not in known and value is not None}
    return Tool(
        text(data.get("name"), f"{where}.name"),
        mapping(parameters, f"{where}.parametersJsonSchema"),
        optional_text(data.get("description"), f"{where}.description"),
        extra={NAME: extra} if extra else {},
    )


def _choice(config: Mapping[str, Any], tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    calling = camel(mapping(camel(config).get("functionCallingConfig"), "toolConfig.functionCallingConfig"))
    mode = calling.get("mode")
    allowed = items(calling.get("allowedFunctionNames"), "toolConfig.functionCallingConfig.allowedFunctionNames")
    if mode is None:
        return None, tools
    words: dict[str, ToolChoice] = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}
    word = str(mode).upper()
    if word not in words:
        where = "toolConfig.functionCallingConfig.mode"
        raise RequestError(f"Unknown mode {mode!r}", where=where, hint="Use AUTO, ANY, NONE or VALIDATED.")
    if word == "ANY" and len(allowed) == 1:
        return NamedTool(text(allowed[0], "toolConfig.functionCallingConfig.allowedFunctionNames[0]")), tools
    return words[word], tuple(tool for tool in tools if tool.name in allowed) if allowed else tools


def _messages(data: Mapping[str, Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    system = data.get("systemInstruction")
    if system is not None:
        content = {"parts": [{"text": system}]} if isinstance(system, str) else system
        messages.append(Message("system", tuple(_parts(content, "systemInstruction", _Ids()))))
    ids = _Ids()
    contents = data.get("contents")
    for at, content in enumerate([contents] if isinstance(contents, Mapping) else items(contents, "contents")):
        where = f"contents[{at}]"
        parts = tuple(_parts(content, where, ids))
        role = mapping(content, where).get("role") or "user"
        if role not in ("user", "model", "function", "tool", "system"):
            raise RequestError(f"Unknown role {role!r}", where=f"{where}.role", hint="Use user or model.")
        if parts and all(isinstance(part, ToolResult) for part in parts):
            messages.append(Message("tool", parts))
        else:
            messages.append(Message("assistant" if role == "model" else "user", parts))
    return tuple(messages)


class _Ids:
    """Gives calls without an id one, and finds it again for the answer, which is matched by name and order."""

    def __init__(self) -> None:
        self._made = 0
        self._waiting: dict[str, list[str]] = {}

    def call(self, name: str, given: Any) -> str:
        identity = str(given) if given else f"call_{self._made}"
        self._made += 1
        self._waiting.setdefault(name, []).append(identity)
        return identity

    def answer(self, name: str, given: Any) -> str:
        waiting = self._waiting.get(name, [])
        if given:
            if given in waiting:
                waiting.remove(given)
            return str(given)
        return waiting.pop(0) if waiting else f"call_{name}"


def _parts(content: Any, where: str, ids: _Ids) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    found: list[Part] = []
    for at, item in enumerate(items(mapping(content, where).get("parts"), f"{where}.parts")):
        found.extend(_part(camel(mapping(item, f"{where}.parts[{at}]")), f"{where}.parts[{at}]", ids))
    return found


def _part(data: Mapping[str, Any], where: str, ids: _Ids) -> list[Part]:
    if data.get("functionResponse") is not None:
        return [_result(mapping(data["functionResponse"], where), where, ids)]
    if data.get("inlineData") is not None:
        inline = camel(mapping(data["inlineData"], f"{where}.inlineData"))
        mime = optional_text(inline.get("mimeType"), f"{where}.inlineData.mimeType")
        payload = base64_bytes(_padded(inline.get("data")), f"{where}.inlineData.data")
        name = optional_text(inline.get("displayName"), f"{where}.inlineData.displayName")
        return [Media(_kind(mime), mime, payload, name=name)]
    if data.get("fileData") is not None:
        file = camel(mapping(data["fileData"], f"{where}.fileData"))
        mime = optional_text(file.get("mimeType"), f"{where}.fileData.mimeType")
        return [Media(_kind(mime), mime, url=text(file.get("fileUri"), f"{where}.fileData.fileUri"))]
    return [_identified(part, data, ids) for part in read_part(data, 0, "")]


def _identified(part: Part, data: Mapping[str, Any], ids: _Ids) -> Part:
    if not isinstance(part, ToolCall):
        return part
    return ToolCall(ids.call(part.name, data["functionCall"].get("id")), part.name, part.arguments, part.extra)


def _result(data: Mapping[str, Any], where: str, ids: _Ids) -> ToolResult:
    name = text(data.get("name"), f"{where}.functionResponse.name")
    response = mapping(data.get("response"), f"{where}.functionResponse.response")
    failed = set(response) == {"error"}
    (key,) = response if len(response) == 1 else ("",)
    said = response[key] if key in ("output", "result", "error") else response
    words = said if isinstance(said, str) else orjson.dumps(said).decode()
    return ToolResult(ids.answer(name, data.get("id")), (Text(words),), is_error=failed, name=name)


def _kind(mime: str | None) -> Any:
    head = (mime or "").partition("/")[0]
    return head if head in ("image", "audio", "video") else "file"


def _padded(value: Any) -> Any:
    """Google's clients write URL-safe base64 without padding."""
    if not isinstance(value, str):
        return value
    value = value.replace("-", "+").replace("_", "/")
    return value + "=" * (-len(value) % 4)

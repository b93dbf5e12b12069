"""Read a client's generateContent request, its schemas in the OpenAPI subset included."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.codec import ServedRequest
from slipform.codecs.gemini.decode import camel, read_part
from slipform.codecs.gemini.encode import NAME, SAMPLING_NAMES
from slipform.codecs.request_fields import Fields, base64_bytes, mapping, read_body, tagged, text
from slipform.errors import RequestError
from slipform.ir import Media, Message, ModelRequest, NamedTool, Part, Text, Tool, ToolCall, ToolChoice, ToolResult
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


def _fields(value: Any, where: str) -> Fields:
    """An object in camelCase: both spellings are on the wire."""
    return Fields(camel(mapping(value, where)), where)


def _part_of(fields: Fields, key: str) -> Fields:
    return _fields(fields.get(key), fields.place(key))


def decode_request(body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """Read a request; the model and whether to stream are in the path."""
    data = Fields(camel(read_body(body)))
    found = _PATH.search(path)
    model = found[1] if found else data.text("model").removeprefix("models/")
    config = _part_of(data, "generationConfig")
    groups = enumerate(data.items("tools"))
    tools = tuple([tool for at, group in groups for tool in _tools(_fields(group, f"tools[{at}]"))])
    choice, tools = _choice(_part_of(_part_of(data, "toolConfig"), "functionCallingConfig"), tools)
    extra = data.rest(_KNOWN, nulls=True)
    if unread := config.rest(_CONFIG, nulls=True):
        extra["generationConfig"] = unread
    shape = _format(config)
    request = ModelRequest(
        model=model,
        messages=_messages(data),
        response_format=shape,
        json_mode=config.get("responseMimeType") == "application/json" and shape is None,
        tools=tools,
        tool_choice=choice,
        sampling=config.sampling(SAMPLING_NAMES),
        max_tokens=config.whole("maxOutputTokens"),
        reasoning=_reasoning(_part_of(config, "thinkingConfig")),
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


def _format(config: Fields) -> ResponseFormat | None:
    schema = config.get("responseJsonSchema")
    if schema is None and config.get("responseSchema") is not None:
        schema = to_json_schema(config.mapping("responseSchema"))
    if schema is None:
        return None
    title = schema.get("title") if isinstance(schema, Mapping) else None
    name = title if isinstance(title, str) and title.strip() else "answer"
    return Fields({}, config.place("responseJsonSchema")).response_format(name, schema, strict=True)


def _reasoning(config: Fields) -> dict[str, Any] | None:
    wanted: dict[str, Any] = {}
    if config.get("thinkingBudget") is not None:
        budget = config.whole("thinkingBudget")
        wanted |= {"enabled": False} if budget == 0 else {"budget": budget}
    if config.get("thinkingLevel") is not None:
        wanted["effort"] = config.text("thinkingLevel").lower()
    if config.flag("includeThoughts"):
        wanted["summary"] = True
    return wanted or None


def _tools(group: Fields) -> list[Tool]:
    where = group.place("functionDeclarations")
    declared = enumerate(group.items("functionDeclarations"))
    tools = [_tool(_fields(item, f"{where}[{at}]")) for at, item in declared]
    hosted = group.rest(("functionDeclarations",))
    if hosted:
        tools.append(Tool(next(iter(hosted)), {}, extra={NAME: hosted}, vendor=NAME))
    return tools


def _tool(tool: Fields) -> Tool:
    parameters = tool.get("parametersJsonSchema")
    if parameters is None:
        parameters = to_json_schema(tool.mapping("parameters"))
    extra = tool.rest(("name", "description", "parameters", "parametersJsonSchema"))
    return Tool(
        tool.text("name"),
        mapping(parameters, tool.place("parametersJsonSchema")),
        tool.optional_text("description"),
        extra=tagged(NAME, extra),
    )


def _choice(calling: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    mode, allowed = calling.get("mode"), calling.items("allowedFunctionNames")
    if mode is None:
        return None, tools
    words: dict[str, ToolChoice] = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}
    word = str(mode).upper()
    if word not in words:
        hint = "Use AUTO, ANY, NONE or VALIDATED."
        raise RequestError(f"Unknown mode {mode!r}", where=calling.place("mode"), hint=hint)
    if word == "ANY" and len(allowed) == 1:
        return NamedTool(text(allowed[0], f"{calling.place('allowedFunctionNames')}[0]")), tools
    return words[word], tuple(tool for tool in tools if tool.name in allowed) if allowed else tools


def _messages(data: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    system = data.get("systemInstruction")
    if system is not None:
        content = {"parts": [{"text": system}]} if isinstance(system, str) else system
        messages.append(Message("system", tuple(_parts(content, "systemInstruction", _Ids()))))
    ids = _Ids()
    contents = data.get("contents")
    for at, content in enumerate([contents] if isinstance(contents, Mapping) else data.items("contents")):
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
    items = enumerate(Fields(content, where).items("parts"))
    return [part for at, item in items for part in _part(_fields(item, f"{where}.parts[{at}]"), ids)]


def _part(part: Fields, ids: _Ids) -> list[Part]:
    if part.get("functionResponse") is not None:
        return [_result(part, ids)]
    if part.get("inlineData") is not None:
        inline = _part_of(part, "inlineData")
        mime = inline.optional_text("mimeType")
        payload = base64_bytes(_padded(inline.get("data")), inline.place("data"))
        return [Media(_kind(mime), mime, payload, name=inline.optional_text("displayName"))]
    if part.get("fileData") is not None:
        file = _part_of(part, "fileData")
        mime = file.optional_text("mimeType")
        return [Media(_kind(mime), mime, url=file.text("fileUri"))]
    return [_identified(each, part.data, ids) for each in read_part(part.data, 0, "")]


def _identified(part: Part, data: Mapping[str, Any], ids: _Ids) -> Part:
    if not isinstance(part, ToolCall):
        return part
    return ToolCall(ids.call(part.name, data["functionCall"].get("id")), part.name, part.arguments, part.extra)


def _result(part: Fields, ids: _Ids) -> ToolResult:
    answer = Fields(mapping(part.get("functionResponse"), part.where), part.place("functionResponse"))
    name = answer.text("name")
    response = answer.mapping("response")
    failed = set(response) == {"error"}
    (key,) = response if len(response) == 1 else ("",)
    said = response[key] if key in ("output", "result", "error") else response
    words = said if isinstance(said, str) else orjson.dumps(said).decode()
    return ToolResult(ids.answer(name, answer.get("id")), (Text(words),), is_error=failed, name=name)


def _kind(mime: str | None) -> Any:
    head = (mime or "").partition("/")[0]
    return head if head in ("image", "audio", "video") else "file"


def _padded(value: Any) -> Any:
    """Google's clients write URL-safe base64 without padding."""
    if not isinstance(value, str):
        return value
    value = value.replace("-", "+").replace("_", "/")
    return value + "=" * (-len(value) % 4)

"""Read a client's generateContent request, its schemas in the OpenAPI subset included."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ServedRequest
from slipform.codecs.gemini.decode import camel_keys
from slipform.codecs.gemini.encode import MADE_ID, NAME, RESPONSE, SAMPLING_NAMES, result_object
from slipform.codecs.request_fields import NO_FIELDS, Fields, base64_bytes, mapping, read_body, tagged, text, wrong
from slipform.errors import RequestError
from slipform.ir import (
    Media,
    Message,
    ModelRequest,
    NamedTool,
    Opaque,
    Part,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from slipform.schema import ResponseFormat
from slipform.text.strict import compact_json

_OWN_FILES = re.compile(r"gs://|https://generativelanguage\.googleapis\.com/|files/")
"""Addresses that only Google can open."""
_DIGITS = re.compile(r"[0-9]{1,18}")
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
    """Return the schema as JSON Schema; one that is JSON Schema already is returned unchanged.

    >>> to_json_schema({"type": "STRING", "nullable": True})
    {'type': ['string', 'null']}
    """
    json_schema: dict[str, Any] = {}
    for key, value in schema.items():
        key = _NAMES.get(key, key)
        if key in _DROPPED:
            continue
        json_schema[key] = _value(key, value)
    ordering = schema.get("propertyOrdering") or schema.get("property_ordering")
    if isinstance(ordering, list) and isinstance(json_schema.get("properties"), dict):
        json_schema["properties"] = _ordered(json_schema["properties"], ordering)
    if schema.get("nullable") is True:
        return _nullable(json_schema)
    return json_schema


def _value(key: str, value: Any) -> Any:
    """Return a keyword's value in JSON Schema: types in lower case, counts as numbers."""
    if key == "type":
        return _type(value)
    if key in ("properties", "$defs", "defs") and isinstance(value, Mapping):
        return {name: _sub(item) for name, item in value.items()}
    if key in ("items", "additionalProperties"):
        return _sub(value)
    if key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
        return [_sub(item) for item in value]
    if key in _COUNTS and isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if key in ("minimum", "maximum") and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _sub(value: Any) -> Any:
    if isinstance(value, Mapping):
        return to_json_schema(value)
    return value


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


def _fields(value: Any, where: str) -> Fields:
    """Return an object in camelCase: both spellings occur on the wire."""
    return Fields(camel_keys(mapping(value, where)), where)


def _part_of(fields: Fields, key: str) -> Fields:
    value = fields.get(key)
    if value is None:
        return NO_FIELDS
    return _fields(value, fields.place(key))


TURN_FIELDS = frozenset({"contents", "systemInstruction", "system_instruction"})


def decode_request(body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """Read a request; the model and whether to stream are in the path."""
    data = Fields(camel_keys(read_body(body)))
    match = _PATH.search(path)
    model = match[1] if match else data.text("model").removeprefix("models/")
    config = _part_of(data, "generationConfig")
    deciding = _part_of(data, "toolConfig")
    thinking = _part_of(config, "thinkingConfig")
    calling = _part_of(deciding, "functionCallingConfig")
    groups = enumerate(data.items("tools"))
    tools = tuple([tool for at, group in groups for tool in _tools(_fields(group, f"tools[{at}]"))])
    choice, tools = _choice(calling, tools)
    shape, json_mode = _format(config)
    data.get("model")
    request = ModelRequest(
        model=model,
        messages=_messages(data),
        response_format=shape,
        json_mode=json_mode,
        tools=tools,
        tool_choice=choice,
        sampling=config.sampling(SAMPLING_NAMES),
        max_tokens=config.whole("maxOutputTokens"),
        reasoning=_reasoning(thinking),
        logprobs=_logprobs(config),
        # After all other fields have been read.
        extra=_unread(data, config, thinking, deciding, calling),
        extra_for=NAME,
    )
    return ServedRequest(request, stream=match is not None and match[2] == "streamGenerateContent")


def _logprobs(config: Fields) -> int | None:
    """Return how many alternatives of each token are requested; other options are left unread."""
    if config.data.get("responseLogprobs") is not True:
        return None
    config.get("responseLogprobs")
    return config.whole("logprobs") or 0


def _unread(data: Fields, config: Fields, thinking: Fields, deciding: Fields, calling: Fields) -> dict[str, Any]:
    settings = config.rest({"thinkingConfig": thinking}, nulls=True)
    if thinking.data.get("thinkingBudget") == -1:
        settings.setdefault("thinkingConfig", {})["thinkingBudget"] = -1
    choosing = deciding.rest({"functionCallingConfig": calling})
    if calling.data.get("mode") == "VALIDATED":
        choosing.setdefault("functionCallingConfig", {})["mode"] = "VALIDATED"
    extra = data.rest(nulls=True)
    if settings:
        extra["generationConfig"] = settings
    if choosing:
        extra["toolConfig"] = choosing
    return extra


def named_in_path(path: str) -> str:
    """Return the model that a call's path names; raises if it names none.

    >>> named_in_path("/v1beta/models/bedrock/us.amazon.nova-pro-v1:0:generateContent")
    'bedrock/us.amazon.nova-pro-v1:0'
    """
    match = _PATH.search(path)
    if match is None:
        raise RequestError(
            "The path names no model", where="the path", hint="Call /v1beta/models/MODEL:generateContent."
        )
    return match[1]


def _format(config: Fields) -> tuple[ResponseFormat | None, bool]:
    """Return the requested shape, and whether any JSON object is requested; other formats are left unread."""
    if config.data.get("responseMimeType") not in (None, "application/json"):
        return None, False
    json_mode = config.get("responseMimeType") is not None
    schema = config.get("responseJsonSchema")
    if schema is None and config.data.get("responseSchema") is not None:
        schema = to_json_schema(config.mapping("responseSchema"))
    if schema is None:
        return None, json_mode
    title = schema.get("title") if isinstance(schema, Mapping) else None
    name = "answer"
    if isinstance(title, str) and title.strip():
        name = title
    return Fields({}, config.place("responseJsonSchema")).response_format(name, schema, strict=True), False


def _reasoning(config: Fields) -> dict[str, Any] | None:
    reasoning: dict[str, Any] = {}
    budget = config.whole("thinkingBudget")
    thoughts = config.flag("includeThoughts")
    if budget is not None:
        # -1 lets the model decide, which is not a number of tokens.
        reasoning |= {"enabled": budget != 0} if budget in (0, -1) else {"budget": budget}
    if config.data.get("thinkingLevel") is not None:
        reasoning["effort"] = config.text("thinkingLevel").lower()
    if thoughts is not None:
        reasoning["summary"] = thoughts
    return reasoning or None


def _tools(group: Fields) -> list[Tool]:
    where = group.place("functionDeclarations")
    declared = enumerate(group.items("functionDeclarations"))
    tools = [_tool(_fields(item, f"{where}[{at}]")) for at, item in declared]
    hosted = group.rest()
    if hosted:
        tools.append(Tool(next(iter(hosted)), {}, extra={NAME: hosted}, vendor=NAME))
    return tools


def _tool(tool: Fields) -> Tool:
    parameters = tool.get("parametersJsonSchema")
    if parameters is None:
        parameters = to_json_schema(tool.mapping("parameters"))
    parameters = mapping(parameters, tool.place("parametersJsonSchema"))
    name = tool.text("name")
    description = tool.optional_text("description")
    return Tool(name, parameters, description, extra=tagged(NAME, tool.rest()))


def _choice(calling: Fields, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    """Return the choice among the tools, and the tools that are allowed."""
    mode = calling.get("mode")
    if mode is None:
        return None, tools
    allowed = calling.items("allowedFunctionNames")
    words: dict[str, ToolChoice] = {"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}
    mode_name = str(mode).upper()
    if mode_name not in words:
        hint = "Use AUTO, ANY, NONE or VALIDATED."
        raise RequestError(f"Unknown mode {mode!r}", where=calling.place("mode"), hint=hint)
    if mode_name == "ANY" and len(allowed) == 1:
        return NamedTool(text(allowed[0], f"{calling.place('allowedFunctionNames')}[0]")), tools
    return words[mode_name], tuple(tool for tool in tools if tool.name in allowed) if allowed else tools


def decode_turns(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    """Read only the conversation of a request, from its fields."""
    return _messages(Fields(camel_keys(fields)))


def _messages(data: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    system = data.get("systemInstruction")
    if system is not None:
        content = _fields({"parts": [{"text": system}]} if isinstance(system, str) else system, "systemInstruction")
        parts = tuple(_parts(content, _Ids()))
        if content.data.get("role") == "user":  # the form in which it is written anyway
            content.get("role")
        messages.append(Message("system", parts, extra=tagged(NAME, content.rest())))
    ids = _Ids()
    contents = data.get("contents")
    if isinstance(contents, Mapping):
        contents = [contents]
    elif contents is not None and not isinstance(contents, list):
        raise wrong("contents", "an array", contents)
    for at, item in enumerate(contents or ()):
        content = _fields({"parts": [{"text": item}]} if isinstance(item, str) else item, f"contents[{at}]")
        parts = tuple(_parts(content, ids))
        role = content.get("role") or "user"
        if role not in ("user", "model", "function", "tool", "system"):
            raise RequestError(f"Unknown role {role!r}", where=content.place("role"), hint="Use user or model.")
        extra = content.rest()
        if role not in ("user", "model"):
            extra["role"] = role
        kind: Role = "assistant" if role == "model" else "user"
        if parts and all(isinstance(part, ToolResult) for part in parts):
            kind = "tool"
        messages.append(Message(kind, parts, extra=tagged(NAME, extra)))
    return tuple(messages)


class _Ids:
    """Assigns ids to calls without one, and finds them for the answers, which are matched by name and order."""

    def __init__(self) -> None:
        self._made = 0
        self._waiting: dict[str, list[str]] = {}

    def call(self, name: str, declared_id: Any) -> str:
        identity = str(declared_id) if declared_id else f"call_{self._made}"
        self._made += 1
        self._waiting.setdefault(name, []).append(identity)
        return identity

    def answer(self, name: str, declared_id: Any) -> str:
        waiting = self._waiting.get(name, [])
        if declared_id:
            if declared_id in waiting:
                waiting.remove(declared_id)
            return str(declared_id)
        return waiting.pop(0) if waiting else f"call_{name}"


def _parts(content: Fields, ids: _Ids) -> list[Part]:
    items = content.items("parts")
    where = content.place("parts")
    return [_part(_fields(item, f"{where}[{at}]"), ids) for at, item in enumerate(items)]


def _part(part: Fields, ids: _Ids) -> Part:
    """Return a part of a turn; one of an unknown kind stays unchanged."""
    fields = part.data
    if fields.get("functionResponse") is not None:
        return _result(part, ids)
    if isinstance(fields.get("functionCall"), Mapping):
        return _call(part, ids)
    if fields.get("inlineData") is not None:
        inline = _part_of(part, "inlineData")
        mime = inline.optional_text("mimeType")
        payload = base64_bytes(_padded(inline.get("data")), inline.place("data"))
        extra = tagged(NAME, part.rest({"inlineData": inline}))
        return Media(_kind(mime), mime, payload, name=inline.optional_text("displayName"), extra=extra)
    if fields.get("fileData") is not None:
        file = _part_of(part, "fileData")
        mime = file.optional_text("mimeType")
        uri = file.text("fileUri")
        extra = tagged(NAME, part.rest({"fileData": file}))
        name = file.optional_text("displayName")
        own = _OWN_FILES.match(uri) is not None
        return Media(_kind(mime), mime, None, None if own else uri, uri if own else None, name, extra)
    if fields.get("thought"):
        return Reasoning(str(fields.get("text") or ""), {NAME: dict(fields)})
    if fields.get("text"):
        return Text(str(part.get("text")), tagged(NAME, part.rest()))
    # Empty text is returned unchanged if it carries a signature.
    return Opaque(NAME, fields)


def _call(part: Fields, ids: _Ids) -> ToolCall:
    call = _part_of(part, "functionCall")
    name = str(call.get("name") or "")
    declared_id = call.get("id")
    arguments = arguments_text(call.get("args"))
    extra = part.rest({"functionCall": call})
    return ToolCall(
        ids.call(name, declared_id), name, arguments, tagged(NAME, _with_id(extra, "functionCall", declared_id))
    )


def _with_id(extra: dict[str, Any], key: str, declared_id: Any) -> dict[str, Any]:
    """Keep an id that looks like a generated one, which would be left out on the way back."""
    if isinstance(declared_id, str) and declared_id.startswith(MADE_ID):
        extra[key] = {**extra.get(key, {}), "id": declared_id}
    return extra


def _result(part: Fields, ids: _Ids) -> ToolResult:
    answer = _part_of(part, "functionResponse")
    name = answer.text("name")
    declared_id = answer.get("id")
    response = answer.mapping("response")
    (key,) = response if len(response) == 1 else ("",)
    failed = key == "error"
    output = response[key] if failed or (key == "output" and isinstance(response[key], str)) else response
    words = output if isinstance(output, str) else compact_json(output)
    extra = _with_id(part.rest({"functionResponse": answer}), "functionResponse", declared_id)
    if result_object(words, failed=failed) != response:
        extra[RESPONSE] = response
    return ToolResult(ids.answer(name, declared_id), (Text(words),), failed, name, tagged(NAME, extra))


def _kind(mime: str | None) -> Any:
    head = (mime or "").partition("/")[0]
    if head in ("image", "audio", "video"):
        return head
    return "file"


def _padded(value: Any) -> Any:
    """Return base64 with padding: Google's clients write the URL-safe form without it."""
    if not isinstance(value, str):
        return value
    value = value.replace("-", "+").replace("_", "/")
    return value + "=" * (-len(value) % 4)

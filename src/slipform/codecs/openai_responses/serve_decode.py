"""A client's request → IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ServedRequest
from slipform.codecs.openai_chat.serve_decode import read_choice
from slipform.codecs.openai_responses.decode import reasoning_text
from slipform.codecs.openai_responses.encode import NAME
from slipform.codecs.request_fields import (
    base64_bytes,
    flag,
    items,
    mapping,
    media_from_url,
    number,
    optional_text,
    read_body,
    response_format,
    text,
    whole,
    wrong,
)
from slipform.errors import RequestError
from slipform.ir import (
    Media,
    Message,
    ModelRequest,
    Opaque,
    Part,
    Reasoning,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)

_KNOWN = frozenset(
    {
        "model", "input", "instructions", "text", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p",
        "max_output_tokens", "reasoning", "metadata", "stream", "stream_options",
    }
)  # fmt: skip
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def decode_request(body: bytes | Mapping[str, Any]) -> ServedRequest:
    """Read a request."""
    data = read_body(body)
    tools = tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(items(data.get("tools"), "tools")))
    choice, tools = read_choice(data.get("tool_choice"), tools)
    extra = {key: value for key, value in data.items() if key not in _KNOWN}
    shaping = dict(mapping(data.get("text"), "text"))
    wanted = mapping(shaping.pop("format", None), "text.format")
    thinking = dict(mapping(data.get("reasoning"), "reasoning"))
    reasoning = {key: thinking.pop(key) for key in ("effort", "summary") if thinking.get(key) is not None}
    extra |= {key: value for key, value in (("text", shaping), ("reasoning", thinking)) if value}
    request = ModelRequest(
        model=text(data.get("model"), "model"),
        messages=_messages(data),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=flag(data.get("parallel_tool_calls"), "parallel_tool_calls"),
        sampling=Sampling(
            temperature=number(data.get("temperature"), "temperature"), top_p=number(data.get("top_p"), "top_p")
        ),
        max_tokens=whole(data.get("max_output_tokens"), "max_output_tokens"),
        reasoning=reasoning or None,
        metadata=mapping(data.get("metadata"), "metadata"),
        extra=extra,
        extra_for=NAME,
    )
    return ServedRequest(_with_format(request, wanted), stream=flag(data.get("stream"), "stream") is True)


def _with_format(request: ModelRequest, wanted: Mapping[str, Any]) -> ModelRequest:
    kind = wanted.get("type", "text")
    if kind == "text":
        return request
    if kind == "json_object":
        return request.replace(json_mode=True)
    if kind != "json_schema":
        hint = "Use text, json_object or json_schema."
        raise RequestError(f"Unknown text format {kind!r}", where="text.format.type", hint=hint)
    shape = response_format(
        wanted.get("name"),
        wanted.get("schema"),
        strict=wanted.get("strict", True),
        where="text.format",
        description=wanted.get("description"),
    )
    return request.replace(response_format=shape)


def _tool(tool: Any, where: str) -> Tool:
    data = mapping(tool, where)
    kind = data.get("type", "function")
    if kind != "function":
        return Tool(str(data.get("name") or kind), {}, extra={NAME: dict(data)}, vendor=NAME)
    return Tool(
        text(data.get("name"), f"{where}.name"),
        mapping(data.get("parameters"), f"{where}.parameters"),
        optional_text(data.get("description"), f"{where}.description"),
        flag(data.get("strict"), f"{where}.strict"),
    )


def _messages(data: Mapping[str, Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    instructions = optional_text(data.get("instructions"), "instructions")
    if instructions is not None:
        messages.append(Message.system(instructions))
    given = data.get("input")
    if isinstance(given, str):
        return (*messages, Message.user(given))
    for at, item in enumerate(items(given, "input")):
        message = _item(mapping(item, f"input[{at}]"), f"input[{at}]")
        last = messages[-1] if messages else None
        if last is not None and _joins(last, message):
            messages[-1] = last.replace(parts=(*last.parts, *message.parts))
        else:
            messages.append(message)
    return tuple(messages)


def _joins(last: Message, message: Message) -> bool:
    """Whether an item goes on with the turn before: a turn is spread over several items here."""
    if last.role != message.role or last.extra or message.extra:
        return False
    return last.role == "tool" or (last.role == "assistant" and not _only_text(message, last))


def _only_text(message: Message, last: Message) -> bool:
    return all(isinstance(part, Text) for part in message.parts) and all(isinstance(part, Text) for part in last.parts)


def _item(item: Mapping[str, Any], where: str) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        extra = {key: value for key, value in item.items() if key in ("id", "namespace", "caller") and value}
        call = ToolCall(
            text(item.get("call_id"), f"{where}.call_id"),
            text(item.get("name"), f"{where}.name"),
            arguments_text(item.get("arguments")),
            {NAME: extra} if extra else {},
        )
        return Message("assistant", (call,))
    if kind == "function_call_output":
        said = _content(item.get("output"), f"{where}.output")
        kept = tuple(part for part in said if isinstance(part, (Text, Media)))
        return Message("tool", (ToolResult(text(item.get("call_id"), f"{where}.call_id"), kept),))
    if kind == "reasoning":
        return Message("assistant", (Reasoning(reasoning_text(item), {NAME: dict(item)}),))
    if kind != "message":
        return Message("assistant", (Opaque(NAME, item),))
    word = text(item.get("role"), f"{where}.role")
    role = _ROLES.get(word)
    if role is None:
        hint = "Use system, developer, user or assistant."
        raise RequestError(f"Unknown role {word!r}", where=f"{where}.role", hint=hint)
    extra = {key: item[key] for key in ("phase",) if item.get(key)}
    if word == "developer":
        extra["role"] = word
    parts = tuple(_content(item.get("content"), f"{where}.content"))
    return Message(role, parts, extra={NAME: extra} if extra else {})


def _content(content: Any, where: str) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    if content is not None and not isinstance(content, list):
        raise wrong(where, "a string or an array of parts", content)
    return [_part(mapping(item, f"{where}[{at}]"), f"{where}[{at}]") for at, item in enumerate(content or ())]


def _part(data: Mapping[str, Any], where: str) -> Part:
    kind = data.get("type")
    if kind in ("input_text", "output_text", "text"):
        return Text(text(data.get("text"), f"{where}.text"))
    if kind == "refusal":
        return Text(text(data.get("refusal"), f"{where}.refusal"))
    if kind == "input_image":
        if data.get("file_id") is not None:
            return Media("image", file_id=text(data["file_id"], f"{where}.file_id"))
        media = media_from_url(text(data.get("image_url"), f"{where}.image_url"), "image")
        detail = data.get("detail")
        return media if detail in (None, "auto") else replace(media, extra={NAME: {"detail": detail}})
    if kind == "input_audio":
        audio = mapping(data.get("input_audio"), f"{where}.input_audio")
        mime = {"mp3": "audio/mpeg"}.get(str(audio.get("format")), f"audio/{audio.get('format')}")
        return Media("audio", mime, base64_bytes(audio.get("data"), f"{where}.input_audio.data"))
    if kind == "input_file":
        return _file(data, where)
    return Opaque(NAME, data)


def _file(data: Mapping[str, Any], where: str) -> Media:
    name = optional_text(data.get("filename"), f"{where}.filename")
    if data.get("file_id") is not None:
        return Media("file", file_id=text(data["file_id"], f"{where}.file_id"), name=name)
    if data.get("file_url") is not None:
        return Media("file", url=text(data["file_url"], f"{where}.file_url"), name=name)
    return media_from_url(text(data.get("file_data"), f"{where}.file_data"), "file", name)

"""Read a client's Responses request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ServedRequest
from slipform.codecs.openai_chat.serve_decode import read_audio, read_choice, read_function, read_schema
from slipform.codecs.openai_responses.decode import reasoning_text
from slipform.codecs.openai_responses.encode import NAME, SAMPLING_NAMES
from slipform.codecs.request_fields import Fields, media_from_url, read_body, tagged, wrong
from slipform.errors import RequestError
from slipform.ir import Media, Message, ModelRequest, Opaque, Part, Reasoning, Role, Text, Tool, ToolCall, ToolResult

_KNOWN = frozenset(
    {
        "model", "input", "instructions", "text", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p",
        "max_output_tokens", "reasoning", "metadata", "stream", "stream_options",
    }
)  # fmt: skip
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def decode_request(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    """Read a request."""
    data = Fields(read_body(body))
    tools = tuple([_tool(tool) for tool in data.objects("tools")])
    choice, tools = read_choice(data.get("tool_choice"), tools)
    extra = data.rest(_KNOWN, nulls=True)
    shaping = data.object("text")
    wanted = shaping.object("format")
    thinking = data.object("reasoning")
    reasoning = {key: thinking.get(key) for key in ("effort", "summary") if thinking.get(key) is not None}
    unread = (("text", shaping.rest(("format",), nulls=True)), ("reasoning", thinking.rest(reasoning, nulls=True)))
    extra |= {key: value for key, value in unread if value}
    request = ModelRequest(
        model=data.text("model"),
        messages=_messages(data),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=data.flag("parallel_tool_calls"),
        sampling=data.sampling(SAMPLING_NAMES),
        max_tokens=data.whole("max_output_tokens"),
        reasoning=reasoning or None,
        metadata=data.mapping("metadata"),
        extra=extra,
        extra_for=NAME,
    )
    return ServedRequest(_with_format(request, wanted), stream=data.flag("stream") is True)


def _with_format(request: ModelRequest, wanted: Fields) -> ModelRequest:
    kind = wanted.get("type", "text")
    if kind == "text":
        return request
    if kind == "json_object":
        return request.replace(json_mode=True)
    if kind != "json_schema":
        hint = "Use text, json_object or json_schema."
        raise RequestError(f"Unknown text format {kind!r}", where=wanted.place("type"), hint=hint)
    return request.replace(response_format=read_schema(wanted, strict=True))


def _tool(tool: Fields) -> Tool:
    kind = tool.get("type", "function")
    if kind != "function":
        return Tool(str(tool.get("name") or kind), {}, extra={NAME: dict(tool.data)}, vendor=NAME)
    return read_function(tool)


def _messages(data: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    instructions = data.optional_text("instructions")
    if instructions is not None:
        messages.append(Message.system(instructions))
    given = data.get("input")
    if isinstance(given, str):
        return (*messages, Message.user(given))
    for item in data.objects("input"):
        message = _item(item)
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
    only_text = all(isinstance(part, Text) for part in (*message.parts, *last.parts))
    return last.role == "tool" or (last.role == "assistant" and not only_text)


def _item(item: Fields) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        extra = {key: value for key, value in item.data.items() if key in ("id", "namespace", "caller") and value}
        identity, name = item.text("call_id"), item.text("name")
        call = ToolCall(identity, name, arguments_text(item.get("arguments")), tagged(NAME, extra))
        return Message("assistant", (call,))
    if kind == "function_call_output":
        kept = tuple(part for part in _content(item, "output") if isinstance(part, (Text, Media)))
        return Message("tool", (ToolResult(item.text("call_id"), kept),))
    if kind == "reasoning":
        return Message("assistant", (Reasoning(reasoning_text(item.data), {NAME: dict(item.data)}),))
    if kind != "message":
        return Message("assistant", (Opaque(NAME, item.data),))
    word = item.text("role")
    role = _ROLES.get(word)
    if role is None:
        hint = "Use system, developer, user or assistant."
        raise RequestError(f"Unknown role {word!r}", where=item.place("role"), hint=hint)
    extra = {"phase": item.get("phase")} if item.get("phase") else {}
    if word == "developer":
        extra["role"] = word
    return Message(role, tuple(_content(item, "content")), extra=tagged(NAME, extra))


def _content(item: Fields, key: str) -> list[Part]:
    content = item.get(key)
    if isinstance(content, str):
        return [Text(content)]
    if content is not None and not isinstance(content, list):
        raise wrong(item.place(key), "a string or an array of parts", content)
    return [_part(part) for part in item.objects(key)]


def _part(part: Fields) -> Part:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return Text(part.text("text"))
    if kind == "refusal":
        return Text(part.text("refusal"))
    if kind == "input_image":
        if part.get("file_id") is not None:
            return Media("image", file_id=part.text("file_id"))
        media = media_from_url(part.text("image_url"), "image")
        detail = part.get("detail")
        return media if detail in (None, "auto") else replace(media, extra={NAME: {"detail": detail}})
    if kind == "input_audio":
        return read_audio(part.object("input_audio"))
    if kind == "input_file":
        name = part.optional_text("filename")
        if part.get("file_id") is not None:
            return Media("file", file_id=part.text("file_id"), name=name)
        if part.get("file_url") is not None:
            return Media("file", url=part.text("file_url"), name=name)
        return media_from_url(part.text("file_data"), "file", name)
    return Opaque(NAME, part.data)

"""Read a client's Responses request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ECHO, ServedRequest
from slipform.codecs.openai_chat.serve_decode import read_audio, read_choice, read_function, read_schema
from slipform.codecs.openai_responses.decode import reasoning_text
from slipform.codecs.openai_responses.encode import (
    INCLUDED,
    LOADED,
    LOADING_ITEM,
    MADE_REASONING,
    NAME,
    NAMESPACE,
    SAMPLING_NAMES,
    namespace_of,
)
from slipform.codecs.request_fields import Fields, media_from_url, read_body, tagged, wrong
from slipform.errors import RequestError
from slipform.ir import Media, Message, ModelRequest, Opaque, Part, Reasoning, Role, Text, Tool, ToolCall, ToolResult
from slipform.schema import ResponseFormat

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_ECHOED = (
    "tools", "tool_choice", "reasoning", "text", "truncation", "background", "max_tool_calls", "top_logprobs",
    "prompt_cache_key", "safety_identifier", "user",
)  # fmt: skip
"""Fields of a request that its answer repeats."""
TURN_FIELDS = frozenset({"instructions", "input"})


def decode_request(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    """Read a request."""
    data = Fields(read_body(body))
    tools = tuple([each for tool in data.objects("tools") for each in _tools(tool)])
    tools = (*tools, *_loaded_tools(data.data.get("input"), {tool.name for tool in tools}))
    choice, tools, unread = read_choice(_with_namespace_tools(data.get("tool_choice"), tools), tools)
    shaping = data.optional("text")
    thinking = data.optional("reasoning")
    streaming = data.optional("stream_options")
    text_format = shaping.optional("format")
    shape, json_mode = _format(text_format)
    reasoning_fields = {key: thinking.optional_text(key) for key in ("effort", "summary")}
    reasoning = {key: value for key, value in reasoning_fields.items() if value is not None}
    stream = data.flag("stream") is True
    request = ModelRequest(
        model=data.text("model"),
        messages=_messages(data),
        response_format=shape,
        json_mode=json_mode,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=data.flag("parallel_tool_calls"),
        sampling=data.sampling(SAMPLING_NAMES),
        max_tokens=data.whole("max_output_tokens"),
        reasoning=reasoning or None,
        metadata=data.mapping("metadata"),
        logprobs=_logprobs(data),
        # After all other fields have been read.
        extra=_unread(data, unread, {"text": shaping, "reasoning": thinking, "stream_options": streaming}, text_format),
        extra_for=NAME,
    )
    echo = {key: data.data[key] for key in _ECHOED if data.data.get(key) is not None}
    return ServedRequest(request, stream=stream, options={ECHO: echo} if echo else {})


def _logprobs(data: Fields) -> int | None:
    """Return how many alternatives of each token are requested, by `include` or by a number of them."""
    included = data.data.get("include")
    count = data.whole("top_logprobs")
    if not isinstance(included, list) or INCLUDED not in included:
        return count
    others = [each for each in data.get("include") if each != INCLUDED]
    if others:
        data.keep("include", others)
    return count or 0


def _unread(data: Fields, choice: dict[str, Any], objects: dict[str, Fields], shape: Fields) -> dict[str, Any]:
    extra = data.rest(objects, nulls=True)
    if more := shape.rest():
        extra.setdefault("text", {})["format"] = more
    if choice.get("tool_choice"):
        extra |= choice
    return extra


def _format(fields: Fields) -> tuple[ResponseFormat | None, bool]:
    """Return the requested shape, and whether any JSON object is requested."""
    kind = fields.get("type", "text")
    if kind in ("text", "json_object"):
        return None, kind == "json_object"
    if kind != "json_schema":
        hint = "Use text, json_object or json_schema."
        raise RequestError(f"Unknown text format {kind!r}", where=fields.place("type"), hint=hint)
    return read_schema(fields, strict=True), False


def _tools(tool: Fields) -> list[Tool]:
    """Return a tool, or those of a namespace, each with its namespace: other vendors have only tools."""
    if tool.data.get("type") != NAMESPACE:
        return [_tool(tool)]
    namespace = {key: value for key, value in tool.data.items() if key not in ("type", "tools")}
    tool.text("name")
    return [_with_extra(_tool(each), NAMESPACE, namespace) for each in tool.objects("tools")]


def _tool(tool: Fields) -> Tool:
    kind = tool.get("type", "function")
    if kind != "function":
        return Tool(str(tool.get("name") or kind), {}, extra={NAME: dict(tool.data)}, vendor=NAME)
    return read_function(tool, NAME, tool.rest)


def _with_extra(tool: Tool, name: str, value: Any) -> Tool:
    return replace(tool, extra={**tool.extra, NAME: {**tool.extra.get(NAME, {}), name: value}})


def _loaded_tools(items: Any, names: Collection[str]) -> Iterator[Tool]:
    """Yield the tools that an earlier search has loaded into the conversation, except those with these names."""
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or item.get("type") != LOADING_ITEM:
            continue
        for fields in Fields(item, "input").objects("tools"):
            for tool in _tools(fields):
                if tool.name not in names:
                    names = {*names, tool.name}
                    yield _with_extra(tool, LOADED, True)


def _with_namespace_tools(choice: Any, tools: Sequence[Tool]) -> Any:
    """Return a choice among tools with the tools of a namespace in place of the namespace."""
    if (
        not isinstance(choice, dict)
        or choice.get("type") != "allowed_tools"
        or not isinstance(choice.get("tools"), list)
    ):
        return choice
    allowed: list[Any] = []
    for each in choice["tools"]:
        if isinstance(each, dict) and each.get("type") == NAMESPACE:
            inner = (tool for tool in tools if namespace_of(tool) == each.get("name"))
            allowed += [{"type": "function", "name": tool.name} for tool in inner]
        else:
            allowed.append(each)
    return {**choice, "tools": allowed}


def decode_turns(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    """Read only the conversation of a request, from its fields."""
    return _messages(Fields(fields))


def _messages(data: Fields) -> tuple[Message, ...]:
    messages: list[Message] = []
    instructions = data.optional_text("instructions")
    if instructions is not None:
        messages.append(Message.system(instructions))
    if isinstance(data.data.get("input"), str):
        return (*messages, Message.user(data.text("input")))
    for item in data.objects("input"):
        message = _item(item)
        last = messages[-1] if messages else None
        if last is not None and _continues_turn(last, message):
            messages[-1] = last.replace(parts=(*last.parts, *message.parts), extra=last.extra or message.extra)
        else:
            messages.append(message)
    return tuple(messages)


def _continues_turn(last: Message, message: Message) -> bool:
    """Return whether an item continues the previous turn: in this API a turn has several items."""
    if last.role != message.role:
        return False
    if last.extra or message.extra:
        # The fields of a message belong to its text, and are returned with it: it is the only text in the turn.
        return last.role == "assistant" and not (_has_content(last) and _has_content(message))
    only_text = all(isinstance(part, Text) for part in (*message.parts, *last.parts))
    return last.role == "tool" or (last.role == "assistant" and not only_text)


def _has_content(message: Message) -> bool:
    return bool(message.extra) or any(isinstance(part, (Text, Media)) for part in message.parts)


def _item(item: Fields) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        identity = item.text("call_id")
        name = item.text("name")
        arguments = arguments_text(item.get("arguments"))
        return Message("assistant", (ToolCall(identity, name, arguments, tagged(NAME, item.rest())),))
    if kind == "function_call_output":
        output = tuple(part for part in _content(item, "output") if isinstance(part, (Text, Media, Opaque)))
        return Message("tool", (ToolResult(item.text("call_id"), output, extra=tagged(NAME, item.rest())),))
    if kind == "reasoning":
        is_made_here = str(item.data.get("id") or "").startswith(MADE_REASONING)
        return Message(
            "assistant", (Reasoning(reasoning_text(item.data), {} if is_made_here else {NAME: dict(item.data)}),)
        )
    if kind != "message":
        return Message("assistant", (Opaque(NAME, item.data),))
    role_name = item.text("role")
    role = _ROLES.get(role_name)
    if role is None:
        hint = "Use system, developer, user or assistant."
        raise RequestError(f"Unknown role {role_name!r}", where=item.place("role"), hint=hint)
    content = tuple(_content(item, "content"))
    extra = item.rest()
    if role_name == "developer":
        extra["role"] = role_name
    return Message(role, content, extra=tagged(NAME, extra))


def _content(item: Fields, key: str) -> list[Part]:
    content = item.data.get(key)
    if isinstance(content, str):
        return [Text(item.text(key))]
    if content is not None and not isinstance(content, list):
        raise wrong(item.place(key), "a string or an array of parts", content)
    return [_part(part) for part in item.objects(key)]


def _part(part: Fields) -> Part:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return Text(part.text("text"), tagged(NAME, part.rest()))
    if kind == "refusal":
        return Text(part.text("refusal"), {NAME: {"type": kind, **part.rest()}})
    if kind == "input_image":
        if part.data.get("file_id") is not None:
            media = Media("image", file_id=part.text("file_id"))
        else:
            media = media_from_url(part.text("image_url"), "image")
    elif kind == "input_audio":
        audio = part.object("input_audio")
        media = read_audio(audio)
        return replace(media, extra=tagged(NAME, part.rest({"input_audio": audio})))
    elif kind == "input_file":
        name = part.optional_text("filename")
        if part.data.get("file_id") is not None:
            media = Media("file", file_id=part.text("file_id"), name=name)
        elif part.data.get("file_url") is not None:
            media = Media("file", url=part.text("file_url"), name=name)
        else:
            media = media_from_url(part.text("file_data"), "file", name)
    else:
        return Opaque(NAME, part.data)
    if part.data.get("detail") == "auto":  # its default anyway
        part.get("detail")
    return replace(media, extra=tagged(NAME, part.rest()))

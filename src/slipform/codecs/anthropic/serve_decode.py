"""Read a client's Messages request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.anthropic.decode import read_block
from slipform.codecs.anthropic.encode import NAME, SAMPLING_NAMES
from slipform.codecs.codec import ServedRequest
from slipform.codecs.request_fields import NO_FIELDS, Fields, mapping, read_body, tagged, wrong
from slipform.errors import RequestError
from slipform.ir import (
    Media,
    Message,
    ModelRequest,
    NamedTool,
    Opaque,
    Part,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from slipform.schema import ResponseFormat

TURN_FIELDS = frozenset({"system", "messages"})
_RAW_PREDICT = re.compile(r"/models/([^/:]+(?:@[^/:]+)?):(rawPredict|streamRawPredict)")


def decode_request(body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """Read a request; on Vertex the path contains the model and whether to stream."""
    data = Fields(read_body(body))
    on_vertex = _RAW_PREDICT.search(path)
    data.get("anthropic_version")  # read, so that it is not among the fields that are passed on
    output = data.optional("output_config")
    older = data.get("output_format")
    declared_format = output.get("format") or older
    format_ = NO_FIELDS if declared_format is None else Fields(declared_format, "output_config.format")
    effort = output.optional_text("effort")
    tools = tuple([_tool(tool) for tool in data.objects("tools")])
    chosen = data.optional("tool_choice")
    thinking = data.optional("thinking")
    choice, parallel = _choice(chosen)
    messages = _messages(data)
    named = data.get("model") if on_vertex else data.text("model")
    stream = data.flag("stream") is True
    request = ModelRequest(
        model=on_vertex[1] if on_vertex else named,
        messages=messages,
        response_format=_format(format_) if declared_format is not None else None,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=data.sampling(SAMPLING_NAMES),
        max_tokens=data.whole("max_tokens"),
        reasoning=_reasoning(thinking, effort),
        metadata=data.mapping("metadata"),
        # After all other fields have been read.
        extra=_unread(data, output, format_, thinking, chosen),
        extra_for=NAME,
    )
    return ServedRequest(request, on_vertex[2] == "streamRawPredict" if on_vertex else stream)


def decode_turns(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    """Read only the conversation of a request, from its fields."""
    return _messages(Fields(fields))


def _messages(data: Fields) -> tuple[Message, ...]:
    turns = data.items("messages")
    system = _content(data, "system")
    conversation = [_message(Fields(turn, f"messages[{at}]")) for at, turn in enumerate(turns)]
    if system:
        return (Message("system", tuple(system)), *conversation)
    return tuple(conversation)


def _unread(data: Fields, output: Fields, shape: Fields, thinking: Fields, choice: Fields) -> dict[str, Any]:
    extra = data.rest({"tool_choice": choice, "thinking": thinking, "output_config": output}, nulls=True)
    if more := shape.rest():
        extra.setdefault("output_config", {})["format"] = more
    if thinking.data.get("type") not in (None, "adaptive", "enabled", "disabled"):
        extra["thinking"] = thinking.data  # a thinking mode that only this vendor has
    return extra


def _format(fields: Fields) -> ResponseFormat:
    kind = fields.get("type")
    if kind != "json_schema":
        raise RequestError(f"Unknown format {kind!r}", where=fields.place("type"), hint="Use json_schema.")
    schema = fields.get("schema")
    title = mapping(schema, fields.place("schema")).get("title")
    name = "answer"
    if isinstance(title, str) and title.strip():
        name = title
    return fields.response_format(name, schema, strict=True)


def _reasoning(thinking: Fields, effort: str | None) -> dict[str, Any] | None:
    reasoning: dict[str, Any] = {} if effort is None else {"effort": effort}
    kind = thinking.get("type")
    budget = thinking.whole("budget_tokens")
    display = thinking.get("display")
    if kind == "disabled":
        reasoning["enabled"] = False
    elif kind is not None:
        reasoning["enabled"] = True
        if budget is not None:
            reasoning["budget"] = budget
        if display is not None:
            reasoning["summary"] = display
    return reasoning or None


def _tool(tool: Fields) -> Tool:
    name = tool.text("name")
    if tool.get("type") not in (None, "custom"):
        return Tool(name, {}, extra={NAME: dict(tool.data)}, vendor=NAME)
    parameters = tool.mapping("input_schema")
    description = tool.optional_text("description")
    return Tool(name, parameters, description, tool.flag("strict"), tagged(NAME, tool.rest()))


def _choice(choice: Fields) -> tuple[ToolChoice | None, bool | None]:
    parallel = False if choice.get("disable_parallel_tool_use") is True else None
    kind = choice.get("type")
    if kind == "tool":
        return NamedTool(choice.text("name")), parallel
    words: dict[Any, ToolChoice] = {"auto": "auto", "none": "none", "any": "required"}
    if kind is not None and (not isinstance(kind, str) or kind not in words):
        hint = "Use auto, any, tool or none."
        raise RequestError(f"Unknown tool choice {kind!r}", where=choice.place("type"), hint=hint)
    return words.get(kind), parallel


def _message(turn: Fields) -> Message:
    role = turn.get("role")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"Unknown role {role!r}", where=turn.place("role"), hint="Use user or assistant.")
    parts = tuple(_content(turn, "content"))
    if role == "user" and parts and all(isinstance(part, ToolResult) for part in parts):
        role = "tool"
    return Message(role, parts, extra=tagged(NAME, turn.rest()))


def _content(data: Fields, key: str) -> list[Part]:
    content = data.data.get(key)
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(data.text(key))]
    if not isinstance(content, list):
        raise wrong(data.place(key), "a string or an array of blocks", content)
    return [_part(block) for block in data.objects(key)]


def _part(block: Fields) -> Part:
    kind = block.get("type")
    if kind == "text":
        return Text(block.text("text"), tagged(NAME, block.rest()))
    if kind == "tool_result":
        content = tuple(part for part in _content(block, "content") if isinstance(part, (Text, Media, Opaque)))
        identity = block.text("tool_use_id")
        failed = block.flag("is_error") is True
        return ToolResult(identity, content, failed, extra=tagged(NAME, block.rest()))
    if kind == "tool_use":
        identity = str(block.get("id"))
        name = str(block.get("name"))
        return ToolCall(identity, name, arguments_text(block.get("input")), tagged(NAME, block.rest()))
    if kind in ("image", "document"):
        return _media(block, kind)
    return read_block(block.data)


def _media(block: Fields, kind: str) -> Part:
    source = block.object("source")
    name = block.optional_text("title") if kind == "document" else None
    form = source.get("type")
    mime = source.optional_text("media_type")
    media: dict[str, Any]
    if form == "base64":
        media = {"mime_type": mime, "data": source.base64("data")}
    elif form == "url":
        media = {"mime_type": mime, "url": source.text("url")}
    elif form == "file":
        media = {"file_id": source.text("file_id")}
    elif form == "text":
        media = {"mime_type": "text/plain", "data": source.text("data").encode()}
    else:
        return Opaque(NAME, block.data)
    extra = tagged(NAME, block.rest({"source": source}))
    return Media("image" if kind == "image" else "file", **media, name=name, extra=extra)

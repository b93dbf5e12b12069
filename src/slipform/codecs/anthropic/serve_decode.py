"""Read a client's Messages request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from slipform.codecs.anthropic.decode import read_block
from slipform.codecs.anthropic.encode import NAME, SAMPLING_NAMES
from slipform.codecs.codec import ServedRequest
from slipform.codecs.request_fields import Fields, read_body, tagged, wrong
from slipform.errors import RequestError
from slipform.ir import Media, Message, ModelRequest, NamedTool, Opaque, Part, Text, Tool, ToolChoice, ToolResult
from slipform.schema import ResponseFormat

_KNOWN = frozenset(
    {
        "model", "max_tokens", "system", "messages", "temperature", "top_p", "top_k", "stop_sequences", "output_config",
        "output_format", "thinking", "tools", "tool_choice", "metadata", "stream", "anthropic_version",
    }
)  # fmt: skip


_RAW_PREDICT = re.compile(r"/models/([^/:]+(?:@[^/:]+)?):(rawPredict|streamRawPredict)")


def decode_request(body: bytes | Mapping[str, Any], path: str) -> ServedRequest:
    """Read a request; on Vertex the path says the model and whether to stream."""
    data = Fields(read_body(body))
    on_vertex = _RAW_PREDICT.search(path)
    output = data.object("output_config")
    wanted = output.get("format") or data.get("output_format")
    effort = output.optional_text("effort")
    tools = tuple([_tool(tool) for tool in data.objects("tools")])
    choice, parallel = _choice(data.object("tool_choice"))
    extra = data.rest(_KNOWN, nulls=True)
    if unread := output.rest(("format", "effort"), nulls=True):
        extra["output_config"] = unread
    turns = data.items("messages")
    system = _content(data, "system")
    request = ModelRequest(
        model=on_vertex[1] if on_vertex else data.text("model"),
        messages=(
            *((Message("system", tuple(system)),) if system else ()),
            *(_message(Fields(turn, f"messages[{at}]")) for at, turn in enumerate(turns)),
        ),
        response_format=_format(Fields(wanted, "output_config.format")) if wanted is not None else None,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=data.sampling(SAMPLING_NAMES),
        max_tokens=data.whole("max_tokens"),
        reasoning=_reasoning(data.object("thinking"), effort),
        metadata=data.mapping("metadata"),
        extra=extra,
        extra_for=NAME,
    )
    if on_vertex:
        return ServedRequest(request, on_vertex[2] == "streamRawPredict")
    return ServedRequest(request, data.flag("stream") is True)


def _format(wanted: Fields) -> ResponseFormat:
    if wanted.get("type") != "json_schema":
        kind = wanted.get("type")
        raise RequestError(f"Unknown format {kind!r}", where=wanted.place("type"), hint="Use json_schema.")
    title = wanted.mapping("schema").get("title")
    name = title if isinstance(title, str) and title.strip() else "answer"
    return wanted.response_format(name, wanted.get("schema"), strict=True)


def _reasoning(thinking: Fields, effort: str | None) -> dict[str, Any] | None:
    wanted: dict[str, Any] = {} if effort is None else {"effort": effort}
    kind = thinking.get("type")
    if kind == "disabled":
        wanted["enabled"] = False
    elif kind is not None:
        wanted["enabled"] = True
        if thinking.get("budget_tokens") is not None:
            wanted["budget"] = thinking.whole("budget_tokens")
        if thinking.get("display") is not None:
            wanted["summary"] = thinking.get("display")
    return wanted or None


def _tool(tool: Fields) -> Tool:
    name = tool.text("name")
    if tool.get("type") not in (None, "custom"):
        return Tool(name, {}, extra={NAME: dict(tool.data)}, vendor=NAME)
    extra = tool.rest(("type", "name", "description", "input_schema", "strict"), nulls=True)
    return Tool(
        name, tool.mapping("input_schema"), tool.optional_text("description"), tool.flag("strict"), tagged(NAME, extra)
    )


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
        return Message("tool", parts)
    return Message(role, parts)


def _content(data: Fields, key: str) -> list[Part]:
    content = data.get(key)
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise wrong(data.place(key), "a string or an array of blocks", content)
    return [_part(block) for block in data.objects(key)]


def _part(block: Fields) -> Part:
    kind = block.get("type")
    if kind == "text":
        return Text(block.text("text"), tagged(NAME, block.rest(("type", "text"))))
    if kind == "tool_result":
        said = _content(block, "content")
        return ToolResult(
            block.text("tool_use_id"),
            tuple(part for part in said if isinstance(part, (Text, Media))),
            is_error=block.flag("is_error") is True,
            extra=tagged(NAME, block.rest(("type", "tool_use_id", "content", "is_error"), nulls=True)),
        )
    return _media(block) if kind in ("image", "document") else read_block(block.data)


def _media(block: Fields) -> Part:
    kind: Literal["image", "file"] = "image" if block.get("type") == "image" else "file"
    source = block.object("source")
    mime, name = source.optional_text("media_type"), block.optional_text("title")
    media = partial(Media, kind, name=name, extra=tagged(NAME, block.rest(("type", "source", "title"))))
    form = source.get("type")
    if form == "base64":
        return media(mime_type=mime, data=source.base64("data"))
    if form == "url":
        return media(url=source.text("url"))
    if form == "file":
        return media(file_id=source.text("file_id"))
    if form == "text":
        return media(mime_type="text/plain", data=source.text("data").encode())
    return Opaque(NAME, block.data)

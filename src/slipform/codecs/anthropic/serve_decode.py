"""A client's request → IR."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from slipform.codecs.anthropic.decode import read_block
from slipform.codecs.anthropic.encode import NAME
from slipform.codecs.codec import ServedRequest
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
    wrong,
)
from slipform.errors import RequestError
from slipform.ir import (
    Media,
    Message,
    ModelRequest,
    NamedTool,
    Opaque,
    Part,
    Sampling,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
)
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
    data = read_body(body)
    on_vertex = _RAW_PREDICT.search(path)
    output = dict(mapping(data.get("output_config"), "output_config"))
    wanted = output.pop("format", None) or data.get("output_format")
    effort = optional_text(output.pop("effort", None), "output_config.effort")
    tools = tuple(_tool(tool, f"tools[{at}]") for at, tool in enumerate(items(data.get("tools"), "tools")))
    choice, parallel = _choice(mapping(data.get("tool_choice"), "tool_choice"))
    extra = {key: value for key, value in data.items() if key not in _KNOWN}
    if output:
        extra["output_config"] = output
    turns = items(data.get("messages"), "messages")
    system = _content(data.get("system"), "system")
    request = ModelRequest(
        model=on_vertex[1] if on_vertex else text(data.get("model"), "model"),
        messages=(
            *((Message("system", tuple(system)),) if system else ()),
            *(_message(turn, f"messages[{at}]") for at, turn in enumerate(turns)),
        ),
        response_format=_format(wanted) if wanted is not None else None,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        sampling=Sampling(
            temperature=number(data.get("temperature"), "temperature"),
            top_p=number(data.get("top_p"), "top_p"),
            top_k=whole(data.get("top_k"), "top_k"),
            stop=stops(data.get("stop_sequences"), "stop_sequences"),
        ),
        max_tokens=whole(data.get("max_tokens"), "max_tokens"),
        reasoning=_reasoning(mapping(data.get("thinking"), "thinking"), effort),
        metadata=mapping(data.get("metadata"), "metadata"),
        extra=extra,
        extra_for=NAME,
    )
    if on_vertex:
        return ServedRequest(request, on_vertex[2] == "streamRawPredict")
    return ServedRequest(request, flag(data.get("stream"), "stream") is True)


def _format(wanted: Any) -> ResponseFormat:
    where = "output_config.format"
    data = mapping(wanted, where)
    if data.get("type") != "json_schema":
        raise RequestError(f"Unknown format {data.get('type')!r}", where=f"{where}.type", hint="Use json_schema.")
    schema = mapping(data.get("schema"), f"{where}.schema")
    title = schema.get("title")
    name = title if isinstance(title, str) and title.strip() else "answer"
    return response_format(name, data.get("schema"), strict=True, where=where)


def _reasoning(thinking: Mapping[str, Any], effort: str | None) -> dict[str, Any] | None:
    wanted: dict[str, Any] = {} if effort is None else {"effort": effort}
    kind = thinking.get("type")
    if kind == "disabled":
        wanted["enabled"] = False
    elif kind is not None:
        wanted["enabled"] = True
        if thinking.get("budget_tokens") is not None:
            wanted["budget"] = whole(thinking["budget_tokens"], "thinking.budget_tokens")
        if thinking.get("display") is not None:
            wanted["summary"] = thinking["display"]
    return wanted or None


def _tool(tool: Any, where: str) -> Tool:
    data = mapping(tool, where)
    name = text(data.get("name"), f"{where}.name")
    if data.get("type") not in (None, "custom"):
        return Tool(name, {}, extra={NAME: dict(data)}, vendor=NAME)
    known = ("type", "name", "description", "input_schema", "strict")
    extra = {key: value for key, value in data.items() if key not in known}
    return Tool(
        name,
        mapping(data.get("input_schema"), f"{where}.input_schema"),
        optional_text(data.get("description"), f"{where}.description"),
        flag(data.get("strict"), f"{where}.strict"),
        {NAME: extra} if extra else {},
    )


def _choice(data: Mapping[str, Any]) -> tuple[ToolChoice | None, bool | None]:
    parallel = False if data.get("disable_parallel_tool_use") is True else None
    kind = data.get("type")
    if kind == "tool":
        return NamedTool(text(data.get("name"), "tool_choice.name")), parallel
    words: dict[Any, ToolChoice] = {"auto": "auto", "none": "none", "any": "required"}
    if kind is not None and (not isinstance(kind, str) or kind not in words):
        raise RequestError(
            f"Unknown tool choice {kind!r}", where="tool_choice.type", hint="Use auto, any, tool or none."
        )
    return words.get(kind), parallel


def _message(turn: Any, where: str) -> Message:
    data = mapping(turn, where)
    role = data.get("role")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"Unknown role {role!r}", where=f"{where}.role", hint="Use user or assistant.")
    parts = tuple(_content(data.get("content"), f"{where}.content"))
    if role == "user" and parts and all(isinstance(part, ToolResult) for part in parts):
        return Message("tool", parts)
    return Message(role, parts)


def _content(content: Any, where: str) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)]
    if not isinstance(content, list):
        raise wrong(where, "a string or an array of blocks", content)
    return [_part(mapping(item, f"{where}[{at}]"), f"{where}[{at}]") for at, item in enumerate(content)]


def _part(data: Mapping[str, Any], where: str) -> Part:
    kind = data.get("type")
    if kind == "text":
        extra = {key: value for key, value in data.items() if key not in ("type", "text") and value is not None}
        return Text(text(data.get("text"), f"{where}.text"), {NAME: extra} if extra else {})
    if kind == "tool_result":
        known = ("type", "tool_use_id", "content", "is_error")
        extra = {key: value for key, value in data.items() if key not in known}
        said = _content(data.get("content"), f"{where}.content")
        return ToolResult(
            text(data.get("tool_use_id"), f"{where}.tool_use_id"),
            tuple(part for part in said if isinstance(part, (Text, Media))),
            is_error=flag(data.get("is_error"), f"{where}.is_error") is True,
            extra={NAME: extra} if extra else {},
        )
    if kind in ("image", "document"):
        return _media("image" if kind == "image" else "file", data, where)
    return read_block(data)


def _media(kind: Literal["image", "file"], data: Mapping[str, Any], where: str) -> Part:
    source = mapping(data.get("source"), f"{where}.source")
    mime = optional_text(source.get("media_type"), f"{where}.source.media_type")
    name = optional_text(data.get("title"), f"{where}.title")
    extra = {key: value for key, value in data.items() if key not in ("type", "source", "title") and value is not None}
    more = {NAME: extra} if extra else {}
    form = source.get("type")
    if form == "base64":
        return Media(kind, mime, base64_bytes(source.get("data"), f"{where}.source.data"), name=name, extra=more)
    if form == "url":
        return Media(kind, url=text(source.get("url"), f"{where}.source.url"), name=name, extra=more)
    if form == "file":
        return Media(kind, file_id=text(source.get("file_id"), f"{where}.source.file_id"), name=name, extra=more)
    if form == "text":
        return Media(
            kind, "text/plain", text(source.get("data"), f"{where}.source.data").encode(), name=name, extra=more
        )
    return Opaque(NAME, data)

"""A client's request → IR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ServedRequest
from slipform.codecs.openai_chat.decode import replayable, split_content
from slipform.codecs.openai_chat.encode import NAME
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
    Reasoning,
    Role,
    Sampling,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from slipform.ir.request import USUAL
from slipform.schema import ResponseFormat

_KNOWN = frozenset(
    {
        "model", "messages", "response_format", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p",
        "seed", "frequency_penalty", "presence_penalty", "stop", "max_tokens", "max_completion_tokens",
        "reasoning_effort", "metadata", "stream", "stream_options", "top_k",
    }
)  # fmt: skip
_SAMPLED = frozenset({"temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty", "stop"})
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_PLAIN = ("user", "system")
_MESSAGE = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "reasoning_details"}
)


def decode_request(body: bytes | Mapping[str, Any]) -> ServedRequest:
    """Read a request."""
    data = read_body(body)
    offered = items(data.get("tools"), "tools")
    tools = tuple([read_tool(tool, f"tools[{at}]") for at, tool in enumerate(offered)])
    choice, tools = read_choice(data.get("tool_choice"), tools)
    limit = data.get("max_completion_tokens")
    effort = optional_text(data.get("reasoning_effort"), "reasoning_effort")
    turns = items(data.get("messages"), "messages")
    model = text(data.get("model"), "model")
    messages = tuple([_plain_turn(turn) or read_message(turn, f"messages[{at}]") for at, turn in enumerate(turns)])
    wanted, json_mode = _format(mapping(data.get("response_format"), "response_format"))
    request = ModelRequest(
        model,
        messages,
        wanted,
        json_mode,
        tools,
        choice,
        flag(data.get("parallel_tool_calls"), "parallel_tool_calls"),
        USUAL if _SAMPLED.isdisjoint(data) else _sampling(data),
        whole(limit if limit is not None else data.get("max_tokens"), "max_tokens"),
        {"effort": effort} if effort is not None else None,
        mapping(data.get("metadata"), "metadata"),
        {} if _KNOWN.issuperset(data) else {key: value for key, value in data.items() if key not in _KNOWN},
        NAME,
    )
    options = mapping(data.get("stream_options"), "stream_options")
    streamed = flag(data.get("stream"), "stream") is True
    return ServedRequest(request, streamed, {"include_usage": options.get("include_usage") is True})


def _sampling(data: Mapping[str, Any]) -> Sampling:
    return Sampling(
        temperature=number(data.get("temperature"), "temperature"),
        top_p=number(data.get("top_p"), "top_p"),
        top_k=whole(data.get("top_k"), "top_k"),
        seed=whole(data.get("seed"), "seed"),
        frequency_penalty=number(data.get("frequency_penalty"), "frequency_penalty"),
        presence_penalty=number(data.get("presence_penalty"), "presence_penalty"),
        stop=stops(data.get("stop"), "stop"),
    )


def _format(wanted: Mapping[str, Any]) -> tuple[ResponseFormat | None, bool]:
    """The shape that is wanted, and whether any JSON object is."""
    kind = wanted.get("type", "text")
    if kind == "text":
        return None, False
    if kind == "json_object":
        return None, True
    if kind != "json_schema":
        raise RequestError(
            f"Unknown response format {kind!r}",
            where="response_format.type",
            hint="Use text, json_object or json_schema.",
        )
    where = "response_format.json_schema"
    spec = mapping(wanted.get("json_schema"), where)
    shape = response_format(
        spec.get("name"),
        spec.get("schema"),
        strict=spec.get("strict"),
        where=where,
        description=spec.get("description"),
    )
    return shape, False


def read_tool(tool: Any, where: str) -> Tool:
    """One tool; those that are no functions are kept as they are."""
    data = mapping(tool, where)
    if data.get("type", "function") != "function":
        inner = data.get(str(data["type"]))
        name = inner.get("name") if isinstance(inner, Mapping) else None
        return Tool(str(name or data["type"]), {}, extra={NAME: dict(data)}, vendor=NAME)
    function = mapping(data.get("function"), f"{where}.function")
    return Tool(
        text(function.get("name"), f"{where}.function.name"),
        mapping(function.get("parameters"), f"{where}.function.parameters"),
        optional_text(function.get("description"), f"{where}.function.description"),
        flag(function.get("strict"), f"{where}.function.strict"),
    )


def read_choice(choice: Any, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    """The tool choice, and the tools it leaves: an allowed subset becomes the only tools there are."""
    if choice is None:
        return None, tools
    if choice in ("auto", "none", "required"):
        return choice, tools
    if choice == "any":
        return "required", tools
    data = mapping(choice, "tool_choice")
    kind = data.get("type")
    if kind == "allowed_tools":
        allowed = mapping(data.get("allowed_tools", data), "tool_choice.allowed_tools")
        names = {_tool_name(item) for item in items(allowed.get("tools"), "tool_choice.allowed_tools.tools")}
        mode = allowed.get("mode")
        return ("required" if mode == "required" else "auto"), tuple(tool for tool in tools if tool.name in names)
    named = mapping(data.get(str(kind)), f"tool_choice.{kind}").get("name") or data.get("name")
    return NamedTool(text(named, "tool_choice.function.name")), tools


def _tool_name(item: Any) -> Any:
    data = mapping(item, "tool_choice.allowed_tools.tools")
    return mapping(data.get("function"), "function").get("name") or data.get("name")


def is_plain_turn(turn: Any) -> bool:
    """Whether a turn of the user's or the system's says nothing but words, as most do.

    >>> is_plain_turn({"role": "user", "content": "Hello"}), is_plain_turn({"role": "tool", "content": "1"})
    (True, False)
    """
    if type(turn) is not dict or len(turn) != 2:
        return False
    return turn.get("role") in _PLAIN and type(turn.get("content")) is str


def _plain_turn(turn: Any) -> Message | None:
    """A plain turn: there is nothing else to read in it."""
    return Message(turn["role"], (Text(turn["content"]),)) if is_plain_turn(turn) else None


def read_message(turn: Any, where: str) -> Message:
    """One turn."""
    data = mapping(turn, where)
    word = text(data.get("role"), f"{where}.role")
    role = _ROLES.get(word)
    if role is None:
        hint = "Use system, developer, user, assistant or tool."
        raise RequestError(f"Unknown role {word!r}", where=f"{where}.role", hint=hint)
    extra: dict[str, Any] = {key: value for key, value in data.items() if key not in _MESSAGE and value is not None}
    if word == "developer":
        extra["role"] = word
    name = optional_text(data.get("name"), f"{where}.name")
    parts = _content(data.get("content"), f"{where}.content", assistant=role == "assistant")
    if role == "tool":
        said = tuple(part for part in parts if isinstance(part, (Text, Media)))
        identity = data.get("tool_call_id") or name or ""
        parts = [ToolResult(text(identity, f"{where}.tool_call_id"), said, name=name)]
    elif role == "assistant":
        parts = [*_thought(data), *parts, *_calls(data, where)]
    return Message(role, tuple(parts), None if role == "tool" else name, {NAME: extra} if extra else {})


def _thought(data: Mapping[str, Any]) -> list[Part]:
    fields = replayable(data)
    thinking, _ = split_content(data.get("content"))
    if not fields and not thinking:
        return []
    return [Reasoning(str(data.get("reasoning_content") or data.get("reasoning") or thinking), fields)]


def _calls(data: Mapping[str, Any], where: str) -> list[Part]:
    calls: list[Part] = []
    for at, call in enumerate(items(data.get("tool_calls"), f"{where}.tool_calls")):
        place = f"{where}.tool_calls[{at}]"
        fields = mapping(call, place)
        function = fields.get("function")
        if not isinstance(function, Mapping):
            calls.append(Opaque(NAME, fields))
            continue
        extra = {key: value for key, value in fields.items() if key not in ("id", "type", "function", "index")}
        calls.append(
            ToolCall(
                text(fields.get("id"), f"{place}.id"),
                text(function.get("name"), f"{place}.function.name"),
                arguments_text(function.get("arguments")),
                {NAME: extra} if extra else {},
            )
        )
    return calls


def _content(content: Any, where: str, *, assistant: bool) -> list[Part]:
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content or not assistant else []
    if not isinstance(content, list):
        raise wrong(where, "a string or an array of parts", content)
    parts = (_part(item, f"{where}[{at}]") for at, item in enumerate(content))
    return [part for part in parts if part is not None]


def _part(item: Any, where: str) -> Part | None:
    data = mapping(item, where)
    kind = data.get("type")
    if kind == "thinking":
        return None
    if kind in ("text", "refusal"):
        extra = {key: value for key, value in data.items() if key not in ("type", "text", "refusal")}
        return Text(text(data.get(kind), f"{where}.{kind}"), {NAME: extra} if extra else {})
    if kind == "image_url":
        image = mapping(data.get("image_url"), f"{where}.image_url")
        media = media_from_url(text(image.get("url"), f"{where}.image_url.url"), "image")
        return media if image.keys() == {"url"} else replace(media, extra={NAME: {"image_url": dict(image)}})
    if kind == "input_audio":
        audio = mapping(data.get("input_audio"), f"{where}.input_audio")
        mime = {"mp3": "audio/mpeg"}.get(str(audio.get("format")), f"audio/{audio.get('format')}")
        return Media("audio", mime, base64_bytes(audio.get("data"), f"{where}.input_audio.data"))
    if kind == "file":
        return _file(mapping(data.get("file"), f"{where}.file"), where)
    return Opaque(NAME, data)


def _file(file: Mapping[str, Any], where: str) -> Media:
    name = optional_text(file.get("filename"), f"{where}.file.filename")
    if file.get("file_id") is not None:
        return Media("file", file_id=text(file["file_id"], f"{where}.file.file_id"), name=name)
    return media_from_url(text(file.get("file_data"), f"{where}.file.file_data"), "file", name)

"""Read a client's Chat Completions request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ServedRequest
from slipform.codecs.openai_chat.decode import replayable, split_content
from slipform.codecs.openai_chat.encode import NAME
from slipform.codecs.request_fields import SAMPLING, Fields, media_from_url, read_body, tagged, text, whole, wrong
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

_KNOWN = frozenset(
    {
        "model", "messages", "response_format", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p",
        "seed", "frequency_penalty", "presence_penalty", "stop", "max_tokens", "max_completion_tokens",
        "reasoning_effort", "metadata", "stream", "stream_options", "top_k",
    }
)  # fmt: skip
_SAMPLING = {name: name for name in SAMPLING}
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MESSAGE = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "reasoning_details"}
)


def decode_request(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    """Read a request."""
    data = Fields(read_body(body))
    tools = tuple([read_tool(tool) for tool in data.objects("tools")])
    choice, tools = read_choice(data.get("tool_choice"), tools)
    limit = data.get("max_completion_tokens")
    effort = data.optional_text("reasoning_effort")
    turns = data.items("messages")
    model = data.text("model")
    messages = [_plain_turn(turn) or read_message(Fields(turn, f"messages[{at}]")) for at, turn in enumerate(turns)]
    wanted, json_mode = _format(data.object("response_format"))
    request = ModelRequest(
        model,
        tuple(messages),
        wanted,
        json_mode,
        tools,
        choice,
        data.flag("parallel_tool_calls"),
        data.sampling(_SAMPLING),
        whole(limit if limit is not None else data.get("max_tokens"), "max_tokens"),
        {"effort": effort} if effort is not None else None,
        data.mapping("metadata"),
        data.rest(_KNOWN, nulls=True),
        NAME,
    )
    usage = data.mapping("stream_options").get("include_usage") is True
    return ServedRequest(request, data.flag("stream") is True, {"include_usage": usage})


def _format(wanted: Fields) -> tuple[ResponseFormat | None, bool]:
    """The shape that is wanted, and whether any JSON object is."""
    kind = wanted.get("type", "text")
    if kind in ("text", "json_object"):
        return None, kind == "json_object"
    if kind != "json_schema":
        hint = "Use text, json_object or json_schema."
        raise RequestError(f"Unknown response format {kind!r}", where=wanted.place("type"), hint=hint)
    return read_schema(wanted.object("json_schema")), False


def read_schema(spec: Fields, *, strict: bool = False) -> ResponseFormat:
    """A named schema, as both of OpenAI's APIs write it; `strict` is what it is where nothing is said."""
    name, schema = spec.get("name"), spec.get("schema")
    return spec.response_format(name, schema, strict=spec.get("strict", strict), description=spec.get("description"))


def read_tool(tool: Fields) -> Tool:
    """One tool; those that are no functions are kept as they are."""
    kind = tool.get("type", "function")
    if kind != "function":
        inner = tool.get(str(kind))
        name = inner.get("name") if isinstance(inner, Mapping) else None
        return Tool(str(name or kind), {}, extra={NAME: dict(tool.data)}, vendor=NAME)
    return read_function(tool.object("function"))


def read_function(function: Fields) -> Tool:
    """A function, as both of OpenAI's APIs write it."""
    return Tool(
        function.text("name"),
        function.mapping("parameters"),
        function.optional_text("description"),
        function.flag("strict"),
    )


def read_choice(choice: Any, tools: tuple[Tool, ...]) -> tuple[ToolChoice | None, tuple[Tool, ...]]:
    """The tool choice, and the tools it leaves: an allowed subset becomes the only tools there are."""
    if choice is None:
        return None, tools
    if choice in ("auto", "none", "required"):
        return choice, tools
    if choice == "any":
        return "required", tools
    data = Fields(choice, "tool_choice")
    kind = data.get("type")
    if kind == "allowed_tools":
        allowed = Fields(data.get("allowed_tools", data.data), "tool_choice.allowed_tools")
        names = {_tool_name(item, allowed.place("tools")) for item in allowed.items("tools")}
        mode = allowed.get("mode")
        return ("required" if mode == "required" else "auto"), tuple(tool for tool in tools if tool.name in names)
    named = data.object(str(kind)).get("name") or data.get("name")
    return NamedTool(text(named, "tool_choice.function.name")), tools


def _tool_name(item: Any, where: str) -> Any:
    data = Fields(item, where)
    return Fields(data.get("function"), "function").get("name") or data.get("name")


def _plain_turn(turn: Any) -> Message | None:
    """A turn of the user's or the system's that says nothing but words, as most do: there is no more to read in it."""
    if type(turn) is not dict or len(turn) != 2 or turn.get("role") not in ("user", "system"):
        return None
    said = turn.get("content")
    return Message(turn["role"], (Text(said),)) if type(said) is str else None


def read_message(turn: Fields) -> Message:
    """One turn."""
    word = turn.text("role")
    role = _ROLES.get(word)
    if role is None:
        hint = "Use system, developer, user, assistant or tool."
        raise RequestError(f"Unknown role {word!r}", where=turn.place("role"), hint=hint)
    extra = turn.rest(_MESSAGE)
    if word == "developer":
        extra["role"] = word
    name = turn.optional_text("name")
    parts = _content(turn, assistant=role == "assistant")
    if role == "tool":
        said = tuple(part for part in parts if isinstance(part, (Text, Media)))
        identity = turn.get("tool_call_id") or name or ""
        parts = [ToolResult(text(identity, turn.place("tool_call_id")), said, name=name)]
    elif role == "assistant":
        parts = [*_thought(turn.data), *parts, *map(_call, turn.objects("tool_calls"))]
    return Message(role, tuple(parts), None if role == "tool" else name, tagged(NAME, extra))


def _thought(data: Mapping[str, Any]) -> list[Part]:
    fields = replayable(data)
    thinking, _ = split_content(data.get("content"))
    if not fields and not thinking:
        return []
    return [Reasoning(str(data.get("reasoning_content") or data.get("reasoning") or thinking), fields)]


def _call(call: Fields) -> Part:
    if not isinstance(call.get("function"), Mapping):
        return Opaque(NAME, call.data)
    function = call.object("function")
    return ToolCall(
        call.text("id"),
        function.text("name"),
        arguments_text(function.get("arguments")),
        tagged(NAME, call.rest(("id", "type", "function", "index"), nulls=True)),
    )


def _content(turn: Fields, *, assistant: bool) -> list[Part]:
    content = turn.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(content)] if content or not assistant else []
    if not isinstance(content, list):
        raise wrong(turn.place("content"), "a string or an array of parts", content)
    return [part for item in turn.objects("content") if (part := _part(item)) is not None]


def _part(item: Fields) -> Part | None:
    kind = item.get("type")
    if kind == "thinking":
        return None
    if kind in ("text", "refusal"):
        return Text(item.text(kind), tagged(NAME, item.rest(("type", "text", "refusal"), nulls=True)))
    if kind == "image_url":
        image = item.object("image_url")
        media = media_from_url(image.text("url"), "image")
        return media if image.data.keys() == {"url"} else replace(media, extra={NAME: {"image_url": dict(image.data)}})
    if kind == "input_audio":
        return read_audio(item.object("input_audio"))
    if kind == "file":
        file = item.object("file")
        name = file.optional_text("filename")
        if file.get("file_id") is not None:
            return Media("file", file_id=file.text("file_id"), name=name)
        return media_from_url(file.text("file_data"), "file", name)
    return Opaque(NAME, item.data)


def read_audio(audio: Fields) -> Media:
    """A sound, as both of OpenAI's APIs write it."""
    mime = {"mp3": "audio/mpeg"}.get(str(audio.get("format")), f"audio/{audio.get('format')}")
    return Media("audio", mime, audio.base64("data"))

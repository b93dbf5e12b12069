"""Read a client's Chat Completions request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

import msgspec

from slipform.codecs.answer import arguments_text
from slipform.codecs.codec import ServedRequest
from slipform.codecs.openai_chat.decode import replayable, split_content
from slipform.codecs.openai_chat.encode import NAME
from slipform.codecs.request_fields import CACHE_MARK, SAMPLING, Fields, media_from_url, read_body, tagged, text, wrong
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
from slipform.ir.messages import PlainTurn, PlainTurns
from slipform.schema import ResponseFormat

_SAMPLING = {name: name for name in SAMPLING}
ANTHROPIC = "anthropic"
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def decode_request(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    """Read a request."""
    data = Fields(read_body(body))
    tools = tuple([read_tool(tool) for tool in data.objects("tools")])
    choice, tools, unread = read_choice(data.get("tool_choice"), tools)
    effort = data.optional_text("reasoning_effort")
    model = data.text("model")
    messages = _messages(data)
    response_format = data.get("response_format")
    shape = None
    json_mode = False
    if response_format is not None:
        shape, json_mode, unread["response_format"] = read_format(Fields(response_format, "response_format"))
    streaming = data.get("stream_options")
    usage = False
    if streaming is not None:
        options = Fields(streaming, "stream_options")
        usage = options.get("include_usage") is True
        unread["stream_options"] = options.rest()
    request = ModelRequest(
        model,
        messages,
        shape,
        json_mode,
        tools,
        choice,
        data.flag("parallel_tool_calls"),
        data.sampling(_SAMPLING),
        read_limit(data),
        {"effort": effort} if effort is not None else None,
        data.mapping("metadata"),
        extra_for=NAME,
        logprobs=_logprobs(data),
    )
    stream = data.flag("stream") is True
    extra = data.rest(nulls=True)
    for key, value in unread.items():
        if value:
            extra[key] = value
    return ServedRequest(request.replace(extra=extra) if extra else request, stream, {"include_usage": usage})


def decode_turns(fields: Mapping[str, Any]) -> tuple[Message, ...]:
    """Read only the conversation of a request, from its fields."""
    return _messages(Fields(fields))


_PLAIN_TURNS: Final = msgspec.json.Decoder(list[PlainTurn])


def decode_plain_turns(text: bytes) -> PlainTurns:
    """Read a conversation of plain text.

    >>> decode_plain_turns(b'[{"role": "user", "content": "hi"}]')[0].text
    'hi'
    """
    return PlainTurns(_PLAIN_TURNS.decode(text), len(text))


def _messages(data: Fields) -> tuple[Message, ...]:
    turns = enumerate(data.items("messages"))
    return tuple([_plain_turn(turn) or read_message(Fields(turn, f"messages[{at}]")) for at, turn in turns])


def _logprobs(data: Fields) -> int | None:
    """Return how many alternatives of each token are requested; other options are left unread."""
    if data.data.get("logprobs") is not True:
        return None
    data.get("logprobs")
    return data.whole("top_logprobs") or 0


def read_limit(data: Fields) -> int | None:
    """Return the limit on the answer's tokens, from its older or its newer field."""
    older = data.whole("max_tokens")
    limit = data.whole("max_completion_tokens")
    if limit is not None and older is not None and limit != older:
        hint = "Send max_completion_tokens alone."
        raise RequestError("The request has two limits that differ", where="max_tokens", hint=hint)
    return older if limit is None else limit


def read_format(fields: Fields) -> tuple[ResponseFormat | None, bool, dict[str, Any]]:
    """Return the requested shape, whether any JSON object is requested, and the unread fields."""
    kind = fields.get("type", "text")
    if kind == "text":
        unread = fields.rest()
        return None, False, {"type": kind, **unread} if unread else {}
    if kind == "json_object":
        if fields.data.get("schema") is None:
            return None, True, fields.rest()
        # Servers of open models accept a schema here.
        shape = fields.response_format("answer", fields.get("schema"), strict=None)
        return shape, False, fields.rest()
    if kind != "json_schema":
        hint = "Use text, json_object or json_schema."
        raise RequestError(f"Unknown response format {kind!r}", where=fields.place("type"), hint=hint)
    spec = fields.object("json_schema")
    shape = read_schema(spec)
    return shape, False, fields.rest({"json_schema": spec})


def read_schema(spec: Fields, *, strict: bool = False) -> ResponseFormat:
    """Return a named schema, as both of OpenAI's APIs write it; `strict` is the default of that field."""
    return spec.response_format(spec.get("name"), spec.get("schema"), strict=spec.get("strict", strict))


def read_tool(tool: Fields) -> Tool:
    """Return one tool; any that is not a function is kept unchanged."""
    kind = tool.get("type", "function")
    if kind != "function":
        inner = tool.get(str(kind))
        name = inner.get("name") if isinstance(inner, Mapping) else None
        return Tool(str(name or kind), {}, extra={NAME: dict(tool.data)}, vendor=NAME)
    function = tool.object("function")
    return read_function(function, NAME, lambda: tool.rest({"function": function}))


def read_function(function: Fields, codec: str, rest: Callable[[], dict[str, Any]]) -> Tool:
    """Return a function, as both of OpenAI's APIs write it; `rest` are the remaining fields of the tool."""
    return Tool(
        function.text("name"),
        function.mapping("parameters"),
        function.optional_text("description"),
        function.flag("strict"),
        _marked(rest()) if codec == NAME else tagged(codec, rest()),
    )


_Chosen: TypeAlias = tuple[ToolChoice | None, tuple[Tool, ...], dict[str, Any]]


def read_choice(choice: Any, tools: tuple[Tool, ...]) -> _Chosen:
    """Return the tool choice, the remaining tools (an allowed subset replaces them all), and the unread fields."""
    if choice is None:
        return None, tools, {}
    if choice in ("auto", "none", "required"):
        return choice, tools, {}
    if choice == "any":
        return "required", tools, {}
    data = Fields(choice, "tool_choice")
    kind = data.get("type")
    if kind == "allowed_tools":
        nested = data.get("allowed_tools")
        allowed = data if nested is None else Fields(nested, "tool_choice.allowed_tools")
        names = {_tool_name(item, allowed.place("tools")) for item in allowed.items("tools")}
        mode: ToolChoice = "required" if allowed.get("mode") == "required" else "auto"
        allowed_tools = tuple(tool for tool in tools if tool.name in names)
        return mode, allowed_tools, {"tool_choice": allowed.rest()}
    if kind not in ("function", "tool", None):
        # A vendor's own tool, which only the vendor can be forced to call.
        return None, tools, {"tool_choice": data.data}
    function = data.object(str(kind))
    named = function.get("name") or data.get("name")
    return NamedTool(text(named, "tool_choice.function.name")), tools, {"tool_choice": data.rest({str(kind): function})}


def _tool_name(item: Any, where: str) -> Any:
    data = Fields(item, where)
    kind = data.get("type")
    return Fields(data.get("function"), "function").get("name") or data.get("name") or kind


def _plain_turn(turn: Any) -> Message | None:
    """Return a turn of the user or system with only text, as most are; it needs no further reading."""
    if type(turn) is not dict or len(turn) != 2 or turn.get("role") not in ("user", "system"):
        return None
    content = turn.get("content")
    if type(content) is str:
        return Message(turn["role"], (Text(content),))
    return None


def read_message(turn: Fields) -> Message:
    """Return the message of one turn."""
    role_name = turn.text("role")
    role = _ROLES.get(role_name)
    if role is None:
        hint = "Use system, developer, user, assistant or tool."
        raise RequestError(f"Unknown role {role_name!r}", where=turn.place("role"), hint=hint)
    name = turn.optional_text("name")
    parts = _content(turn, assistant=role == "assistant")
    if role == "tool":
        content = tuple(part for part in parts if isinstance(part, (Text, Media, Opaque)))
        identity = turn.get("tool_call_id") or name or ""
        extra = turn.rest()
        if role_name == "function":
            extra["role"] = role_name
        identity = text(identity, turn.place("tool_call_id"))
        return Message("tool", (ToolResult(identity, content, name=name, extra=_marked(extra)),), name)
    if role == "assistant":
        refusal = None
        if turn.data.get("refusal") and not parts:
            refusal = turn.optional_text("refusal")
        if refusal is not None:
            parts = [Text(refusal, {NAME: {"type": "refusal"}})]
        parts = [*_thought(turn), *parts, *map(_call, turn.objects("tool_calls"))]
    extra = turn.rest()
    _move_cache_mark(parts, extra)
    if role_name == "developer":
        extra["role"] = role_name
    return Message(role, tuple(parts), name, tagged(NAME, extra))


def _move_cache_mark(parts: list[Part], extra: Mapping[str, Any]) -> None:
    """Move a prompt-cache mark of a whole turn to its last text, where Anthropic has it."""
    last = parts[-1] if parts else None
    mark = extra.get(CACHE_MARK)
    if isinstance(last, Text) and isinstance(mark, Mapping):
        parts[-1] = Text(last.text, {**last.extra, ANTHROPIC: {CACHE_MARK: mark}})


def _marked(rest: dict[str, Any]) -> dict[str, Any]:
    """Return the `extra` of a part; a prompt-cache mark, which is Anthropic's, is meant for its API, too."""
    mark = rest.get(CACHE_MARK)
    extra = tagged(NAME, rest)
    if isinstance(mark, Mapping):
        return {**extra, ANTHROPIC: {CACHE_MARK: mark}}
    return extra


def _thought(turn: Fields) -> list[Part]:
    fields = replayable(turn.data)
    for name in fields.get(NAME, ()):
        turn.get(name)
    if fields:
        return [Reasoning(str(turn.data.get("reasoning_content") or turn.data.get("reasoning") or ""), fields)]
    return []


def _call(call: Fields) -> Part:
    if not isinstance(call.data.get("function"), Mapping) or call.get("type") not in (None, "function"):
        return Opaque(NAME, call.data)
    function = call.object("function")
    identity = call.text("id")
    name = function.text("name")
    arguments = arguments_text(function.get("arguments"))
    return ToolCall(identity, name, arguments, tagged(NAME, call.rest({"function": function})))


def _content(turn: Fields, *, assistant: bool) -> list[Part]:
    content = turn.data.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        content = turn.text("content")
        if content or not assistant:
            return [Text(content)]
        return []
    if not isinstance(content, list):
        raise wrong(turn.place("content"), "a string or an array of parts", content)
    return [_part(item) for item in turn.objects("content")]


def _part(item: Fields) -> Part:
    kind = item.get("type")
    if kind == "text":
        return Text(item.text("text"), _marked(item.rest()))
    if kind == "refusal":
        return Text(item.text("refusal"), {NAME: {"type": kind, **item.rest()}})
    if kind == "thinking":
        return Reasoning(split_content([item.data])[0], {NAME: item.data})
    if kind == "image_url":
        image = item.object("image_url")
        media = media_from_url(image.text("url"), "image")
        return _with_rest(media, item.rest({"image_url": image}))
    if kind == "input_audio":
        audio = item.object("input_audio")
        return _with_rest(read_audio(audio), item.rest({"input_audio": audio}))
    if kind == "file":
        file = item.object("file")
        name = file.optional_text("filename")
        if file.data.get("file_id") is not None:
            media = Media("file", file_id=file.text("file_id"), name=name)
        else:
            media = media_from_url(file.text("file_data"), "file", name)
        return _with_rest(media, item.rest({"file": file}))
    return Opaque(NAME, item.data)


def _with_rest(media: Media, rest: dict[str, Any]) -> Media:
    if rest:
        return replace(media, extra=_marked(rest))
    return media


def read_audio(audio: Fields) -> Media:
    """Return a sound, as both of OpenAI's APIs write it."""
    format_ = audio.get("format")
    return Media("audio", {"mp3": "audio/mpeg"}.get(str(format_), f"audio/{format_}"), audio.base64("data"))

"""Serve Ollama's `/api/chat` and `/api/generate`, which stream lines of JSON by default."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from slipform.codecs.answer import arguments_object, arguments_text, envelope_of
from slipform.codecs.codec import ServedApi, ServedRequest, Stamp, refusal_text
from slipform.codecs.ollama.call import NAME
from slipform.codecs.request_fields import SAMPLING, Fields, base64_bytes, dumps, read_body, tagged, text
from slipform.codecs.vendor_errors import error_fields
from slipform.errors import RequestError, SlipformError
from slipform.ir import (
    CompletionChunk,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Part,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolDelta,
    ToolResult,
    Usage,
)
from slipform.ir.choice_merge import CallTable
from slipform.schema import ResponseFormat

GENERATE = "ollama-generate"
_SAMPLING = {name: name for name in SAMPLING}
_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_UNKNOWN = ("suffix", "template", "raw", "context")
"""Fields of `/api/generate` that only Ollama itself supports."""


def _chat(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    data = Fields(read_body(body))
    names: list[str] = []
    messages = tuple(_message(turn, names) for turn in data.objects("messages"))
    tools = tuple(_tool(tool) for tool in data.objects("tools"))
    return _served(data, messages, tools)


def _generate(body: bytes | Mapping[str, Any], _path: str) -> ServedRequest:
    data = Fields(read_body(body))
    for name in _UNKNOWN:
        if data.get(name):
            raise RequestError(f"`{name}` is honoured by Ollama alone, and without a schema", where=name)
    system = data.optional_text("system")
    prompt = data.optional_text("prompt")
    images = [_image(each, f"images[{at}]") for at, each in enumerate(data.items("images"))]
    if not prompt and not images:
        raise RequestError("The prompt is missing", where="prompt", hint="Send one.")
    turns = [Message.system(system)] if system else []
    turns.append(Message("user", (*([Text(prompt)] if prompt else []), *images)))
    return _served(data, tuple(turns), ())


def _served(data: Fields, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> ServedRequest:
    """Return the common part of both kinds of requests."""
    shape, json_mode = _format(data)
    options = data.optional("options")
    limit = options.whole("num_predict")
    request = ModelRequest(
        data.text("model"),
        messages,
        shape,
        json_mode,
        tools,
        sampling=options.sampling(_SAMPLING),
        max_tokens=limit if limit is not None and limit > 0 else None,  # -1 and -2 mean no limit
        reasoning=_thinking(data.get("think")),
        extra_for=NAME,
    )
    stream = data.flag("stream") is not False
    extra = data.rest({"options": options})
    return ServedRequest(request.replace(extra=extra) if extra else request, stream)


def _thinking(think: Any) -> dict[str, Any] | None:
    if think is None:
        return None
    if isinstance(think, str):
        return {"effort": think}
    return {"enabled": think is True}


def _format(data: Fields) -> tuple[ResponseFormat | None, bool]:
    declared_format = data.get("format")
    if declared_format is None or declared_format == "":
        return None, False
    if declared_format == "json":
        return None, True
    if not isinstance(declared_format, Mapping):
        raise RequestError('Expected a JSON Schema or "json"', where="format")
    return Fields(declared_format, "format").response_format("answer", declared_format, strict=None), False


def _message(turn: Fields, names: list[str]) -> Message:
    """Return one turn; calls have no ids here, so a result belongs to the first call of its tool without one."""
    role_name = turn.text("role")
    role = _ROLES.get(role_name)
    if role is None:
        hint = "Use system, user, assistant or tool."
        raise RequestError(f"Unknown role {role_name!r}", where=turn.place("role"), hint=hint)
    content = turn.optional_text("content") or ""
    if role == "tool":
        name = turn.optional_text("tool_name")
        identity = next((each for each in names if name is None or each.partition(" ")[2] == name), name or "call")
        if identity in names:
            names.remove(identity)
        result = ToolResult(identity.partition(" ")[0], (Text(content),), name=name, extra=tagged(NAME, turn.rest()))
        return Message("tool", (result,))
    thought = turn.optional_text("thinking")
    parts: list[Part] = [Reasoning(thought, {NAME: {"thinking": thought}})] if thought else []
    parts += [Text(content)] if content or role != "assistant" else []
    parts += [_image(each, f"{turn.place('images')}[{at}]") for at, each in enumerate(turn.items("images"))]
    for call in turn.objects("tool_calls"):
        function = call.object("function")
        name = function.text("name")
        identity = f"call_{turn.where.strip('mesag[]')}_{len(names)}"
        names.append(f"{identity} {name}")
        parts.append(ToolCall(identity, name, arguments_text(function.get("arguments"))))
    return Message(role, tuple(parts), extra=tagged(NAME, turn.rest()))


def _image(value: Any, where: str) -> Media:
    return Media("image", mime_type="image/png", data=base64_bytes(text(value, where), where))


def _tool(tool: Fields) -> Tool:
    function = tool.object("function")
    return Tool(function.text("name"), function.mapping("parameters"), function.optional_text("description"))


def _finish(finish: str | None) -> str:
    return "length" if finish == "length" else "stop"


def _time(stamp: Stamp) -> str:
    return datetime.fromtimestamp(stamp.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _end(finish: str | None, usage: Usage, extra: Mapping[str, Any]) -> dict[str, Any]:
    counts = {"prompt_eval_count": usage.input, "eval_count": usage.output}
    known_counts = {key: value for key, value in counts.items() if value is not None}
    return {**envelope_of(extra, NAME), "done": True, "done_reason": _finish(finish), **known_counts}


def _message_fields(
    is_chat: bool, words: str, thought: str = "", calls: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the fields of one line, or of the whole answer."""
    if not is_chat:
        return {"response": words, **({"thinking": thought} if thought else {})}
    message: dict[str, Any] = {"role": "assistant", "content": words}
    if thought:
        message["thinking"] = thought
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def _call(name: str | None, arguments: str) -> dict[str, Any]:
    return {"function": {"name": name or "", "arguments": arguments_object(arguments)}}


def _whole(response: ModelResponse, served: ServedRequest, stamp: Stamp, *, is_chat: bool) -> dict[str, Any]:
    words = response.text or refusal_text(response) or ""
    calls = [_call(call.name, call.arguments) for call in response.tool_calls]
    head = {"model": response.model or served.request.model, "created_at": _time(stamp)}
    return {
        **head,
        **_message_fields(is_chat, words, response.reasoning, calls),
        **_end(response.finish, response.usage, response.extra),
    }


class OllamaStreamEncoder:
    """Writes the lines of one streamed answer; a call is sent whole, with the last line."""

    def __init__(self, served: ServedRequest, stamp: Stamp, *, is_chat: bool = True) -> None:
        self.extra: Mapping[str, Any] = {}
        self._is_chat = is_chat
        self._stamp = stamp
        self._model = served.request.model
        self._usage = Usage()
        self._finish: str | None = None
        self._extra: Mapping[str, Any] = {}
        self._table = CallTable()
        self._arguments: dict[int, str] = {}

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk."""
        if chunk.choice != 0:
            return b""
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            self._usage = chunk.usage
        for delta in chunk.tool_calls:
            call, _ = self._table.place(delta)
            self._arguments[call.position] = self._arguments.get(call.position, "") + delta.arguments
        if chunk.finish is not None:
            self._finish = chunk.finish
            self._extra = chunk.extra
        words = chunk.text or chunk.refusal or ""
        if not words and not chunk.reasoning:
            return b""
        return self._line({**_message_fields(self._is_chat, words, chunk.reasoning), "done": False})

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for one piece of text, or of a call's arguments."""
        if call >= 0:
            return self.feed(CompletionChunk(tool_calls=(ToolDelta(call, arguments=text),)))
        if text:
            return self._line({**_message_fields(self._is_chat, text), "done": False})
        return b""

    def finish(self) -> bytes:
        """Return the calls, and the last line."""
        calls = [_call(call.name, self._arguments.get(call.position, "")) for call in self._table.calls]
        out = b""
        if calls:
            out = self._line({**_message_fields(self._is_chat, "", calls=calls), "done": False})
        end = _end(self._finish, self._usage, self._extra)
        return out + self._line({**_message_fields(self._is_chat, ""), **end, **self.extra})

    def fail(self, error: SlipformError) -> bytes:
        """Return an error after the stream has begun."""
        return dumps(_error(error)) + b"\n"

    def keep_alive(self) -> bytes:
        """Return nothing: clients give every line a meaning."""
        return b""

    def _line(self, fields: Mapping[str, Any]) -> bytes:
        return dumps({"model": self._model, "created_at": _time(self._stamp), **fields}) + b"\n"


def _error(error: SlipformError) -> dict[str, Any]:
    fields = error_fields(error)
    return {"error": fields["message"], "code": fields["code"]}


API = ServedApi(
    NAME,
    read=_chat,
    answer=lambda response, served, stamp: _whole(response, served, stamp, is_chat=True),
    events=OllamaStreamEncoder,
    error=_error,
    content_type_stream="application/x-ndjson",
)
GENERATE_API = ServedApi(
    GENERATE,
    read=_generate,
    answer=lambda response, served, stamp: _whole(response, served, stamp, is_chat=False),
    events=lambda served, stamp: OllamaStreamEncoder(served, stamp, is_chat=False),
    error=_error,
    content_type_stream="application/x-ndjson",
)

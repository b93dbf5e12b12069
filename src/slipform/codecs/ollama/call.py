"""Call Ollama's chat: write its requests, read its answers and streams."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.codecs.answer import Finishes, arguments_object, build_answer, count, function_calls, rest_of, usage_of
from slipform.codecs.codec import Codec
from slipform.codecs.framing import NdjsonDecoder
from slipform.codecs.request_fields import SAMPLING, Encoding, encode_function
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import UpstreamError
from slipform.ir import (
    CompletionChunk,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    Opaque,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolDelta,
    ToolResult,
    Usage,
)
from slipform.ir.response import ENVELOPE
from slipform.schema import OutputStrategy
from slipform.text.strict import compact_json

NAME = "ollama"

_SAMPLING = {name: name for name in SAMPLING}
_FINISH: Finishes = {"stop": "stop", "length": "length", "load": "error", "unload": "error"}
_KNOWN = frozenset({"model", "message", "done", "done_reason", "prompt_eval_count", "eval_count", "error"})


def _body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": request.model, "messages": _messages(request.messages, out)}
    _add_tools(body, plan, out)
    if plan.strategy is OutputStrategy.NATIVE:
        body["format"] = plan.schema
    elif plan.json_object:
        body["format"] = "json"
    options = out.sampling(request, _SAMPLING)
    if request.max_tokens is not None:
        options["num_predict"] = request.max_tokens
    if options:
        body["options"] = options
    reasoning = plan.reasoning
    if reasoning.get("effort") is not None:
        off = reasoning["effort"] == "none"
        body["think"] = False if off else out.effort(reasoning["effort"], "low", "medium", "high")
    elif reasoning.get("enabled") is not None:
        body["think"] = reasoning["enabled"]
    for key in ("budget", "summary"):
        if reasoning.get(key):
            out.lose(f"reasoning.{key}", f"This API has no place for {key}.")
    if request.metadata:
        out.lose("metadata", "This API keeps no metadata.")
    body["stream"] = stream  # Ollama's default is true
    out.add_extra(body, request)
    return body


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    def function(tool: Tool) -> dict[str, Any]:
        if tool.strict:
            out.lose(f"tools.{tool.name}.strict", "This API has no strict tools.")
        return {"type": "function", "function": encode_function(tool)}

    tools, choice = out.tools(plan, function)
    if tools and choice == "none":
        out.lose("tools", "This API cannot forbid tools: they were left out.", "approximated")
    elif tools:
        body["tools"] = tools
        if choice not in (None, "auto"):
            out.lose("tool_choice", "This API has no tool choice; the model may answer with text.")
        out.lose_one_call(plan)


def _messages(messages: Sequence[Message], out: Encoding) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        for part in message.parts:
            if isinstance(part, ToolResult):
                name = part.name or names.get(part.call_id)
                turn = {"role": "tool", "content": _result(part, path, out)}
                turns.append(out.carry({**turn, "tool_name": name} if name else turn, part.extra, path))
        out.speaker(message, path)
        if all(isinstance(part, ToolResult) for part in message.parts):
            out.drop(message.extra, path)
        else:
            turns.append(_turn(message, path, out))
    return turns


def _result(result: ToolResult, path: str, out: Encoding) -> str:
    """Return a tool's answer as text."""
    texts: list[str] = []
    for part in result.parts:
        if isinstance(part, Text):
            texts.append(part.text)
            out.drop(part.extra, path)
        elif isinstance(part, Media):
            out.reject_media(part, path, " in a tool's result")
        else:
            out.lose(path, "Only text goes back from a tool here.")
    if result.is_error:
        out.lose(f"{path}.is_error", "This API does not say that a tool failed.")
    return "".join(texts)


def _turn(message: Message, path: str, out: Encoding) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": message.role, "content": message.text}
    thought = "".join(part.text for part in message.parts if isinstance(part, Reasoning) and NAME in part.opaque)
    if thought:
        turn["thinking"] = thought
    images = [
        part for part in message.parts if isinstance(part, Media) and part.data is not None and part.kind == "image"
    ]
    if images:
        turn["images"] = [b64encode(image.data or b"").decode() for image in images]
    for part in message.parts:
        if isinstance(part, Media) and part not in images:
            out.reject_media(part, path)
        else:
            _report_losses(part, path, out)
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, path, out) for call in message.tool_calls]
    return out.carry(turn, message.extra, path)


def _report_losses(part: Part, path: str, out: Encoding) -> None:
    """Record the losses of a part that has no place in this API."""
    if isinstance(part, Opaque) or (isinstance(part, Reasoning) and NAME not in part.opaque):
        out.lose(path, "A part that this API does not take.")
    elif isinstance(part, Text):
        out.drop(part.extra, path)
    elif isinstance(part, Media):
        out.carry_media({}, part, path)


def _call(call: ToolCall, path: str, out: Encoding) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments_object(call.arguments)}
    return out.carry({"function": function}, call.extra, path)


def _decode(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    message = data.get("message") or {}
    parts: list[Part] = []
    if message.get("thinking"):
        parts.append(Reasoning(message["thinking"], {NAME: {"thinking": message["thinking"]}}))
    if message.get("content"):
        parts.append(Text(message["content"]))
    parts += function_calls(message.get("tool_calls"))
    raw_finish = data.get("done_reason")
    return build_answer(
        plan,
        parts,
        finish=_FINISH.get(raw_finish or "stop", "unknown"),
        raw_finish=raw_finish,
        usage=read_usage(data),
        model=data.get("model"),
        extra={**rest_of(data, _KNOWN), **_raw_usage(data), **_envelope(data)},
    )


def _envelope(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time of the answer and the duration of each step."""
    times = {key: value for key, value in data.items() if key == "created_at" or key.endswith("_duration")}
    return {ENVELOPE: {NAME: times}} if times else {}


def _raw_usage(data: Mapping[str, Any]) -> dict[str, Any]:
    usage = {key: data[key] for key in ("prompt_eval_count", "eval_count") if data.get(key) is not None}
    return {"usage": usage} if usage else {}


def read_usage(data: Mapping[str, Any]) -> Usage | None:
    """Return the usage; the prompt's tokens are missing if it was cached.

    >>> read_usage({"eval_count": 2}).input is None
    True
    """
    if not _raw_usage(data):
        return None
    return usage_of(count(data.get("prompt_eval_count")), count(data.get("eval_count")))


class OllamaEvents:
    """Reads the lines of a chat stream."""

    __slots__ = ("_calls", "_thought", "ended", "fault")

    text_key = arguments_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._calls = 0
        self._thought: list[str] = []

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:  # noqa: ARG002
        """Return the chunks of one line."""
        if data.get("error"):
            self.fault = fault_error(data, status=None)
            return []
        message = data.get("message") or {}
        thought = message.get("thinking") or ""
        if thought:
            self._thought.append(thought)
        calls = tuple(self._call(call) for call in message.get("tool_calls") or ())
        if not data.get("done"):
            return [CompletionChunk(message.get("content") or "", thought, tool_calls=calls, model=data.get("model"))]
        self.ended = True
        raw_finish = data.get("done_reason")
        whole = "".join(self._thought)
        chunk = CompletionChunk(
            text=message.get("content") or "",
            reasoning=thought,
            tool_calls=calls,
            finish=_FINISH.get(raw_finish or "stop", "unknown"),
            raw_finish=raw_finish,
            usage=read_usage(data),
            model=data.get("model"),
            extra={**rest_of(data, _KNOWN), **_raw_usage(data), **_envelope(data)},
            parts=(Reasoning(whole, {NAME: {"thinking": whole}}),) if whole else (),
        )
        return [chunk]

    def finish(self, _done: bool) -> list[CompletionChunk]:
        """Return nothing: no chunk is pending at the end."""
        return []

    def _call(self, call: Mapping[str, Any]) -> ToolDelta:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else compact_json(arguments or {})
        self._calls += 1
        return ToolDelta(self._calls - 1, call.get("id") or None, function.get("name"), text)


CODEC = Codec(
    NAME,
    path=lambda _model, _capabilities, _stream: "/api/chat",
    encode=_body,
    decode=_decode,
    events=lambda _plan: OllamaEvents(),
    read_usage=read_usage,
    usage_key="",
    framing=NdjsonDecoder,
    tool_names=None,
)

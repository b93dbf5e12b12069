"""Call Cohere's v2 chat: write its requests, read its answers and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipform.codecs.answer import Finishes, build_answer, count, details_of, function_calls, rest_of, usage_of
from slipform.codecs.codec import Codec
from slipform.codecs.request_fields import SAMPLING, Encoding, data_url, encode_function
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.tool_names import Alphabet
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import UpstreamError
from slipform.ir import (
    CompletionChunk,
    Media,
    Message,
    ModelRequest,
    ModelResponse,
    NamedTool,
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
from slipform.schema import OutputStrategy

NAME = "cohere"

_SAMPLING = {**{name: name for name in SAMPLING}, "top_p": "p", "top_k": "k", "stop": "stop_sequences"}
_FINISH: Finishes = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "TOOL_CALL": "tool_calls",
    "MAX_TOKENS": "length",
    "ERROR": "error",
    "TIMEOUT": "error",
}
_KNOWN = frozenset({"id", "finish_reason", "message", "usage", "error"})


def _body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    body: dict[str, Any] = {"model": request.model, "messages": _messages(request.messages, out)}
    if plan.strategy is OutputStrategy.NATIVE:
        body["response_format"] = {"type": "json_object", "json_schema": plan.schema}
    elif plan.json_object:
        body["response_format"] = {"type": "json_object"}
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    body.update(out.sampling(request, _SAMPLING))
    reasoning = plan.reasoning
    if reasoning.get("budget") is not None:
        body["thinking"] = {"type": "enabled", "token_budget": reasoning["budget"]}
    elif reasoning.get("enabled") is not None or reasoning.get("effort") is not None:
        off = reasoning.get("enabled") is False or reasoning.get("effort") == "none"
        body["thinking"] = {"type": "disabled" if off else "enabled"}
    if reasoning.get("effort") not in (None, "none"):
        out.lose("reasoning.effort", "This API thinks or does not.", "approximated")
    if reasoning.get("summary"):
        out.lose("reasoning.summary", "This API has no place for summary.")
    _add_tools(body, plan, out)
    if request.metadata:
        out.lose("metadata", "This API keeps no metadata.")
    body["stream"] = stream
    out.add_extra(body, request)
    return body


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    named = plan.tool_choice
    if isinstance(named, NamedTool) and len(plan.tools) > 1:
        # A single tool cannot be named here, but it can be the only one offered.
        out.lose("tools", f"Only {named.name} is offered, so that it is the one called.", "approximated")
        offered = tuple(tool for tool in plan.tools if tool.name == named.name)
        plan = msgspec.structs.replace(plan, tools=offered)
    tools, choice = out.tools(plan, _tool)
    if not tools:
        return
    body["tools"] = tools
    strict = {bool(tool.strict) for tool in plan.tools}
    if True in strict:
        body["strict_tools"] = True
        if False in strict:
            out.lose("tools.strict", "All tools are strict here, or none is.", "approximated")
    if choice == "none":
        body["tool_choice"] = "NONE"
    elif choice not in (None, "auto"):
        body["tool_choice"] = "REQUIRED"
    out.lose_one_call(plan)


def _tool(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": encode_function(tool)}


def _messages(messages: Sequence[Message], out: Encoding) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        out.speaker(message, path)
        turns.extend(_result(part, path, out) for part in message.parts if isinstance(part, ToolResult))
        spoken_parts = tuple(part for part in message.parts if not isinstance(part, (ToolResult, ToolCall)))
        if not spoken_parts and not message.tool_calls:
            out.drop(message.extra, path)
            continue
        turn: dict[str, Any] = {"role": "user" if message.role == "tool" else message.role}
        content = _content(spoken_parts, path, out)
        if content:
            turn["content"] = content
        for part in spoken_parts:
            if isinstance(part, Opaque) and part.vendor == NAME and "tool_plan" in part.data:
                turn["tool_plan"] = part.data["tool_plan"]
        if message.tool_calls:
            turn["tool_calls"] = [_call(call, path, out) for call in message.tool_calls]
        turns.append(out.carry(turn, message.extra, path))
    return turns


def _call(call: ToolCall, path: str, out: Encoding) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return out.carry({"id": call.id, "type": "function", "function": function}, call.extra, path)


def _result(result: ToolResult, path: str, out: Encoding) -> dict[str, Any]:
    if result.is_error:
        out.lose(f"{path}.is_error", "This API does not say that a tool failed.")
    turn = {"role": "tool", "tool_call_id": result.call_id, "content": _content(result.parts, path, out)}
    return out.carry(turn, result.extra, path)


def _content(parts: tuple[Part, ...], path: str, out: Encoding) -> str | list[dict[str, Any]]:
    """Return a turn's content, as text if it contains only text."""
    if len(parts) == 1 and isinstance(parts[0], Text) and NAME not in parts[0].extra:
        out.drop(parts[0].extra, path)
        return parts[0].text
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            content.append(out.carry({"type": "text", "text": part.text}, part.extra, path))
        elif isinstance(part, Media) and part.kind == "image" and (part.data is not None or part.url):
            image = {"type": "image_url", "image_url": {"url": data_url(part)}}
            content.append(out.carry_media(image, part, path))
        elif isinstance(part, Media):
            out.reject_media(part, path)
        elif isinstance(part, Reasoning) and NAME in part.opaque:
            content.append(dict(part.opaque[NAME]))
        elif not (isinstance(part, Opaque) and part.vendor == NAME):
            out.lose(path, "A part that this API does not take.")
    return content


def _decode(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    message = data.get("message") or {}
    parts: list[Part] = [Opaque(NAME, {"tool_plan": message["tool_plan"]})] if message.get("tool_plan") else []
    content = message.get("content") or ()
    for item in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        if item.get("type") == "thinking":
            parts.append(Reasoning(str(item.get("thinking") or ""), {NAME: dict(item)}))
        elif isinstance(item.get("text"), str):
            parts.append(Text(item["text"]))
    parts += function_calls(message.get("tool_calls"))
    raw_finish = data.get("finish_reason")
    usage = data.get("usage") or None
    extra = rest_of(data, _KNOWN)
    if message.get("citations"):
        extra["citations"] = message["citations"]
    if usage:
        extra["usage"] = usage
    return build_answer(
        plan,
        parts,
        finish=_FINISH.get(raw_finish or "", "unknown"),
        raw_finish=raw_finish,
        usage=read_usage(usage),
        id_=data.get("id"),
        extra=extra,
    )


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Return the usage, which Cohere counts in floats.

    >>> read_usage({"tokens": {"input_tokens": 3.0, "output_tokens": 2.0}}).total
    5
    """
    if not isinstance(usage, Mapping):
        return None
    tokens = details_of(usage, "tokens") or details_of(usage, "billed_units")
    return usage_of(
        count(tokens.get("input_tokens")), count(tokens.get("output_tokens")), count(usage.get("cached_tokens"))
    )


def _tool_delta(index: Any, call: Mapping[str, Any]) -> ToolDelta:
    function = call.get("function") or {}
    arguments = function.get("arguments") or ""
    return ToolDelta(index if isinstance(index, int) else None, call.get("id"), function.get("name"), arguments)


class CohereEvents:
    """Reads the events of a v2 chat stream."""

    __slots__ = ("_plan", "_thoughts", "ended", "fault")

    text_key = arguments_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._plan: list[str] = []
        self._thoughts: dict[Any, list[str]] = {}

    def _end_thought(self, index: Any) -> list[CompletionChunk]:
        thought = "".join(self._thoughts.pop(index, ()))
        block = {"type": "thinking", "thinking": thought}
        if thought:
            return [CompletionChunk(parts=(Reasoning(thought, {NAME: block}),))]
        return []

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """Return the chunks of one event."""
        kind = data.get("type") or name
        delta = data.get("delta") or {}
        message = delta.get("message") or {}
        if kind in ("content-delta", "content-start"):
            return self._content(data.get("index"), message.get("content") or {})
        if kind in ("tool-call-start", "tool-call-delta"):
            return [CompletionChunk(tool_calls=(_tool_delta(data.get("index"), message.get("tool_calls") or {}),))]
        if kind == "message-start":
            return [CompletionChunk(id=data.get("id"))]
        if kind == "content-end":
            return self._end_thought(data.get("index"))
        if kind == "tool-plan-delta":
            self._plan.append(message.get("tool_plan") or "")
        elif kind == "citation-start":
            return [CompletionChunk(extra={"citations": [message.get("citations")]})]
        elif kind == "message-end":
            return self._end(delta)
        elif kind == "error" or data.get("error") or (kind is None and data.get("message")):
            self.fault = fault_error(data, status=None)
        return []

    def finish(self, _done: bool) -> list[CompletionChunk]:
        """Return the plan that preceded the calls, for replay."""
        plan = "".join(self._plan)
        if plan:
            return [CompletionChunk(parts=(Opaque(NAME, {"tool_plan": plan}),))]
        return []

    def _content(self, index: Any, content: Mapping[str, Any]) -> list[CompletionChunk]:
        if content.get("thinking"):
            self._thoughts.setdefault(index, []).append(content["thinking"])
            return [CompletionChunk(reasoning=content["thinking"])]
        if content.get("text"):
            return [CompletionChunk(content["text"])]
        return []

    def _end(self, delta: Mapping[str, Any]) -> list[CompletionChunk]:
        self.ended = True
        if delta.get("error"):
            self.fault = fault_error({"error": delta["error"]}, status=None)
        raw_finish = delta.get("finish_reason")
        usage = delta.get("usage") or None
        extra = {"usage": usage} if usage else {}
        finish = _FINISH.get(raw_finish or "", "unknown")
        return [CompletionChunk(finish=finish, raw_finish=raw_finish, usage=read_usage(usage), extra=extra)]


CODEC = Codec(
    NAME,
    path=lambda _model, _capabilities, _stream: "/v2/chat",
    encode=_body,
    decode=_decode,
    events=lambda _plan: CohereEvents(),
    read_usage=read_usage,
    tool_names=Alphabet("A-Za-z0-9_", "A-Za-z_"),
)

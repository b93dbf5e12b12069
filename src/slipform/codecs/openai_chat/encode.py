"""Write a request for Chat Completions."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.codecs.request_fields import SAMPLING, Capabilities, Encoding, data_url, encode_function
from slipform.codecs.schema_channel import SchemaChannel, schema_name
from slipform.ir import Media, Message, ModelRequest, NamedTool, Opaque, Reasoning, Text, Tool, ToolCall, ToolResult
from slipform.schema import OutputStrategy

NAME = "openai-chat"

_SAMPLING = {name: name for name in SAMPLING if name != "top_k"}
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def request_path(_model: str, _capabilities: Capabilities, _stream: bool) -> str:
    """The path of the call."""
    return "/chat/completions"


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    """The JSON body of the request."""
    body: dict[str, Any] = {"model": request.model, "messages": encode_messages(request.messages, out)}
    body.update(_sampling(request, out))
    if request.max_tokens is not None:
        body[out.capabilities.max_tokens_field or "max_tokens"] = request.max_tokens
    _add_reasoning(body, plan, out)
    _add_format(body, plan, out)
    _add_tools(body, plan, out)
    if request.metadata:
        body["metadata"] = dict(request.metadata)
    if stream:
        body["stream"] = True
        if "usage_always" not in out.quirks:
            body["stream_options"] = {"include_usage": True}
    if "require_parameters" in out.quirks and plan.strategy in (OutputStrategy.NATIVE, OutputStrategy.TOOL):
        body["provider"] = {"require_parameters": True}
    out.add_extra(body, request)
    return body


def _sampling(request: ModelRequest, out: Encoding) -> dict[str, Any]:
    names = _SAMPLING
    if "random_seed" in out.quirks:
        names = {**names, "seed": "random_seed"}
    if request.sampling.top_k is not None and "top_k" in out.quirks:
        names = {**names, "top_k": "top_k"}
    return out.sampling(request, names)


def _add_reasoning(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    if not plan.reasoning:
        return
    wanted = dict(plan.reasoning)
    effort = wanted.pop("effort", None)
    enabled = wanted.pop("enabled", None)
    if "reasoning_object" in out.quirks:
        budget = wanted.pop("budget", None)
        encoded = {"effort": effort, "max_tokens": budget, "enabled": enabled}
        body["reasoning"] = {key: value for key, value in encoded.items() if value is not None}
    elif "thinking_object" in out.quirks:
        on = enabled if enabled is not None else effort != "none"
        body["thinking"] = {"type": "enabled" if on else "disabled"}
        if effort not in (None, "none"):
            body["reasoning_effort"] = effort
    elif effort is not None or enabled is False:
        body["reasoning_effort"] = effort if effort is not None else "none"
    for key in wanted:
        out.lose(f"reasoning.{key}", f"This API has no place for {key}.")


def _add_format(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    if plan.strategy is OutputStrategy.NATIVE:
        schema: dict[str, Any] = {"name": schema_name(plan.name, out), "schema": plan.schema}
        if "no_strict" not in out.quirks:
            schema["strict"] = plan.strict
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif plan.json_object:
        body["response_format"] = {"type": "json_object"}


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    if not plan.tools:
        return
    tools = out.tools(plan.tools, lambda tool, own: _tool(tool, own, out))
    if not tools:
        return
    body["tools"] = tools
    choice = plan.tool_choice
    if isinstance(choice, NamedTool):
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        body["tool_choice"] = choice
    if plan.parallel_tool_calls is not None and "no_parallel_switch" not in out.quirks:
        body["parallel_tool_calls"] = plan.parallel_tool_calls


def _tool(tool: Tool, own: Mapping[str, Any], out: Encoding) -> dict[str, Any]:
    function = encode_function(tool)
    if tool.strict is not None and "no_strict" not in out.quirks:
        function["strict"] = tool.strict
    return {"type": "function", "function": function, **own}


def encode_messages(messages: Sequence[Message], out: Encoding) -> list[dict[str, Any]]:
    """The turns, one object each; every tool result is a turn of its own."""
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if (text := _plain_text(message)) is not None:
            turns.append({"role": message.role, "content": text})
            continue
        path = f"messages[{index}]"
        results = (part for part in message.parts if isinstance(part, ToolResult))
        turns.extend(_tool_turn(result, path, out) for result in results)
        turn = _turn(message, path, out)
        if turn is not None:
            turns.append(turn)
    return turns


def _plain_text(message: Message) -> str | None:
    """The words of a turn that is nothing but words, as most are."""
    if len(message.parts) != 1 or message.name is not None or message.extra or message.role == "tool":
        return None
    part = message.parts[0]
    return part.text if type(part) is Text and not part.extra else None


def _tool_turn(result: ToolResult, path: str, out: Encoding) -> dict[str, Any]:
    content = _content(result.parts, path, out)
    if result.is_error and isinstance(content, str) and not content.lower().startswith("error"):
        out.lose(f"{path}.is_error", "The failure of the tool is said in words.", "approximated")
        content = f"Error: {content}"
    own = out.own(result.extra, path)
    return {"role": "tool", "tool_call_id": call_id(result.call_id, out.quirks), "content": content, **own}


def call_id(identity: str, quirks: frozenset[str]) -> str:
    """The id of a call as the vendor takes it; Mistral wants nine letters or digits.

    >>> len(call_id("call_1", frozenset({"short_tool_ids"})))
    9
    """
    if "short_tool_ids" not in quirks or re.fullmatch(r"[A-Za-z0-9]{9}", identity):
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:9]


def _turn(message: Message, path: str, out: Encoding) -> dict[str, Any] | None:
    said = tuple(part for part in message.parts if isinstance(part, (Text, Media, Opaque)))
    calls = message.tool_calls
    if message.role == "tool" and not said:
        return None
    if any(isinstance(part, ToolResult) for part in message.parts) and not said and not calls:
        return None
    turn: dict[str, Any] = {"role": message.role, "content": _content(said, path, out)}
    if message.role == "assistant" and not said:
        turn["content"] = None if calls else ""
    if message.name is not None:
        turn["name"] = message.name
    if calls:
        turn["tool_calls"] = [_call(call, path, out) for call in calls]
    for part in message.parts:
        if isinstance(part, Reasoning):
            _add_thought(turn, part, path, out)
    turn.update(out.own(message.extra, path))
    return turn


def _call(call: ToolCall, path: str, out: Encoding) -> dict[str, Any]:
    return {
        "id": call_id(call.id, out.quirks),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        **out.own(call.extra, path),
    }


def _add_thought(turn: dict[str, Any], part: Reasoning, path: str, out: Encoding) -> None:
    own = part.opaque.get(NAME)
    if own is not None:
        turn.update(own)
    elif "replay_reasoning" in out.quirks and part.text:
        turn["reasoning_content"] = turn.get("reasoning_content", "") + part.text
    elif part.text or part.opaque:
        out.lose(f"{path}.reasoning", "Reasoning of another API cannot be sent back here.")


def _content(parts: Sequence[Text | Media | Opaque], path: str, out: Encoding) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return parts[0].text
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            content.append({"type": "text", "text": part.text, **out.own(part.extra, path)})
        elif isinstance(part, Media):
            encoded = _media(part, path, out)
            if encoded is not None:
                content.append({**encoded, **out.own(part.extra, path)})
        elif part.vendor == NAME:
            content.append(dict(part.data))
        else:
            out.lose(path, f"A part that only {part.vendor} knows.")
    return content or ""


def _media(media: Media, path: str, out: Encoding) -> dict[str, Any] | None:
    if media.kind == "image" and (media.data is not None or media.url):
        return {"type": "image_url", "image_url": {"url": data_url(media)}}
    if media.kind == "audio" and media.data is not None:
        format_ = _AUDIO.get(media.mime_type or "", (media.mime_type or "").removeprefix("audio/") or "wav")
        return {"type": "input_audio", "input_audio": {"data": b64encode(media.data).decode(), "format": format_}}
    if media.file_id is not None:
        return {"type": "file", "file": {"file_id": media.file_id}}
    if media.data is not None:
        file = {"file_data": data_url(media)}
        return {"type": "file", "file": {**file, "filename": media.name} if media.name else file}
    out.lose(path, f"This API does not take a {media.kind} by its address.")
    return None

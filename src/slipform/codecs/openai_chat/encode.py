"""Write a request for Chat Completions."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipform.codecs.request_fields import (
    SAMPLING,
    Capabilities,
    Encoding,
    data_url,
    dumps,
    encode_function,
    open_turns,
)
from slipform.codecs.schema_channel import SchemaChannel, schema_name
from slipform.ir import (
    RESERVED_TOOL,
    Media,
    Message,
    ModelRequest,
    NamedTool,
    Opaque,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from slipform.ir.messages import PlainTurns
from slipform.schema import OutputStrategy

NAME = "openai-chat"

_SAMPLING = {name: name for name in SAMPLING if name != "top_k"}
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}


def request_path(_model: str, _capabilities: Capabilities, _stream: bool) -> str:
    """Return the path of the call."""
    return "/chat/completions"


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    """Return the JSON body of the request."""
    body: dict[str, Any] = {"model": request.model, "messages": encode_messages(request.messages, out)}
    if request.continues == "prefill":
        _add_prefill(body, out)
    body.update(_sampling(request, out))
    if request.max_tokens is not None:
        body[out.capabilities.max_tokens_field or "max_tokens"] = request.max_tokens
    if request.logprobs is not None:
        body["logprobs"] = True
        if request.logprobs:
            body["top_logprobs"] = request.logprobs
    _add_reasoning(body, plan, out)
    if "replay_reasoning" in out.quirks:
        _switch_off_thinking(body, request, out)
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


def _add_prefill(body: dict[str, Any], out: Encoding) -> None:
    """Mark the last message as the beginning of the answer."""
    if "prefix_message" in out.quirks:
        body["messages"][-1]["prefix"] = True
    elif "continue_final_message" in out.quirks:
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False


def _sampling(request: ModelRequest, out: Encoding) -> dict[str, Any]:
    names = _SAMPLING
    if "random_seed" in out.quirks:
        names = {**names, "seed": "random_seed"}
    if request.sampling.top_k is not None and "top_k" in out.quirks:
        names = {**names, "top_k": "top_k"}
    return out.sampling(request, names)


def _add_reasoning(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    """Write the reasoning options in the vendor's form, and report those that it cannot express."""
    if not plan.reasoning:
        return
    reasoning = dict(plan.reasoning)
    effort = reasoning.pop("effort", None)
    enabled = reasoning.pop("enabled", None)
    if "reasoning_object" in out.quirks:
        budget = reasoning.pop("budget", None)
        encoded = {"effort": effort, "max_tokens": budget, "enabled": enabled}
        body["reasoning"] = {key: value for key, value in encoded.items() if value is not None}
    elif "thinking_object" in out.quirks:
        on = enabled if enabled is not None else effort != "none"
        body["thinking"] = {"type": "enabled" if on else "disabled"}
        if effort not in (None, "none"):
            body["reasoning_effort"] = effort
    elif effort is not None or enabled is False:
        body["reasoning_effort"] = effort if effort is not None else "none"
    elif enabled:
        out.lose("reasoning.enabled", "Whether to think is left to the model here.", "approximated")
    for key, value in reasoning.items():
        if value is not False:
            out.lose(f"reasoning.{key}", f"This API has no place for {key}.")


def _switch_off_thinking(body: dict[str, Any], request: ModelRequest, out: Encoding) -> None:
    """Switch off reasoning if a call's reasoning is missing: such a server refuses a turn without it."""
    thinking = body.get("thinking") or request.extra.get("thinking")
    is_off = isinstance(thinking, Mapping) and thinking.get("type") == "disabled"
    if is_off or "thinking_object" not in out.quirks:
        return
    for index, message in open_turns(request.messages):
        if not any(isinstance(part, Reasoning) for part in message.parts):
            body["thinking"] = {"type": "disabled"}
            out.lose("reasoning", f"What was thought in messages[{index}] is not known: this turn does not think.")
            return


def _add_format(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    if plan.strategy is OutputStrategy.NATIVE:
        schema: dict[str, Any] = {"name": schema_name(plan.name, out), "schema": plan.schema}
        if "no_strict" not in out.quirks:
            schema["strict"] = plan.strict
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif plan.json_object:
        body["response_format"] = {"type": "json_object"}


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    tools, choice = out.tools(plan, lambda tool: _tool(tool, out))
    if not tools:
        return
    body["tools"] = tools
    if isinstance(choice, NamedTool):
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        body["tool_choice"] = choice
    if plan.parallel_tool_calls is not None:
        if "no_parallel_switch" not in out.quirks:
            body["parallel_tool_calls"] = plan.parallel_tool_calls
        else:
            out.lose_one_call(plan)


def _tool(tool: Tool, out: Encoding) -> dict[str, Any]:
    function = encode_function(tool)
    if tool.strict is not None and "no_strict" not in out.quirks:
        function["strict"] = tool.strict
    elif tool.strict and tool.name != RESERVED_TOOL:
        out.lose(f"tools.{tool.name}.strict", "This API has no strict tools.")
    return {"type": "function", "function": function}


def encode_messages(messages: Sequence[Message], out: Encoding) -> list[dict[str, Any]]:
    """Return the turns, one object each; every tool result is a separate turn."""
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if (text := _plain_text(message)) is not None:
            turns.append({"role": message.role, "content": text})
            continue
        path = f"messages[{index}]"
        results = (part for part in message.parts if isinstance(part, ToolResult))
        turns.extend(_tool_turn(result, message.name, path, out) for result in results)
        turn = _turn(message, path, out)
        if turn is not None:
            turns.append(turn)
        else:
            out.drop(message.extra, path)
    return turns


def encode_plain_turns(messages: Sequence[Message]) -> bytes | None:
    """Return the turns of a conversation of plain text as JSON; None for any other.

    >>> encode_plain_turns([Message.user("hi")])
    b'[{"role":"user","content":"hi"}]'
    """
    if isinstance(messages, PlainTurns):
        return msgspec.json.encode(messages.turns)
    turns = []
    for message in messages:
        text = _plain_text(message)
        if text is None:
            return None
        turns.append({"role": message.role, "content": text})
    return dumps(turns)


def _plain_text(message: Message) -> str | None:
    """Return the text of a turn that contains only text, as most do; None for any other."""
    if len(message.parts) != 1 or message.name is not None or message.extra or message.role == "tool":
        return None
    part = message.parts[0]
    if type(part) is Text and not part.extra:
        return part.text
    return None


def _tool_turn(result: ToolResult, name: str | None, path: str, out: Encoding) -> dict[str, Any]:
    content = _content(result.parts, path, out)
    if result.is_error:
        out.lose(f"{path}.is_error", "The tool's failure is sent as text that begins with `Error`.", "approximated")
        if isinstance(content, list):
            content.insert(0, {"type": "text", "text": "Error:"})
        elif not content.lower().startswith("error"):
            content = f"Error: {content}"
    turn = {"role": "tool", "tool_call_id": call_id(result.call_id, out.quirks), "content": content}
    if name is not None:
        turn["name"] = name
    return out.carry(turn, result.extra, path)


def call_id(identity: str, quirks: frozenset[str]) -> str:
    """Return the id of a call in a form that the vendor accepts; Mistral requires nine letters or digits.

    >>> len(call_id("call_1", frozenset({"short_tool_ids"})))
    9
    """
    if "short_tool_ids" not in quirks or re.fullmatch(r"[A-Za-z0-9]{9}", identity):
        return identity
    return hashlib.sha256(identity.encode()).hexdigest()[:9]


def _split_parts(message: Message) -> tuple[list[Text | Media | Opaque | Reasoning], list[dict[str, Any]]]:
    """Return the parts for the content of a turn, and the calls of this API's own tools."""
    content_parts: list[Text | Media | Opaque | Reasoning] = []
    custom_calls: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Opaque) and part.vendor == NAME and "id" in part.data:
            custom_calls.append(dict(part.data))
        elif isinstance(part, (Text, Media, Opaque)) or (isinstance(part, Reasoning) and _is_in_content(part)):
            content_parts.append(part)
    return content_parts, custom_calls


def _turn(message: Message, path: str, out: Encoding) -> dict[str, Any] | None:
    """Return a message of the conversation; None for one with only tool results, which become separate messages.

    None for one that holds tool results only, which are messages of their own.
    """
    content_parts, custom_calls = _split_parts(message)
    calls = [*(_call(call, path, out) for call in message.tool_calls), *custom_calls]
    if message.role == "tool" and not content_parts:
        return None
    if any(isinstance(part, ToolResult) for part in message.parts) and not content_parts and not calls:
        return None
    turn: dict[str, Any] = {"role": message.role, "content": _content(content_parts, path, out)}
    if message.role == "assistant" and not content_parts:
        turn["content"] = None if calls else ""
    if message.name is not None:
        turn["name"] = message.name
    if calls:
        turn["tool_calls"] = calls
    for part in message.parts:
        if isinstance(part, Reasoning) and not _is_in_content(part):
            _add_thought(turn, part, path, out)
    return out.carry(turn, message.extra, path)


def _is_in_content(part: Reasoning) -> bool:
    """Return whether reasoning is a part of `content`, as Mistral writes it."""
    return "type" in part.opaque.get(NAME, ())


def _call(call: ToolCall, path: str, out: Encoding) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    encoded = {"id": call_id(call.id, out.quirks), "type": "function", "function": function}
    return out.carry(encoded, call.extra, path)


def _add_thought(turn: dict[str, Any], part: Reasoning, path: str, out: Encoding) -> None:
    own = part.opaque.get(NAME)
    if own is not None:
        turn.update(own)
    elif "replay_reasoning" in out.quirks and part.text:
        turn["reasoning_content"] = turn.get("reasoning_content", "") + part.text
        if part.opaque:
            out.lose(f"{path}.reasoning", "Only the words of another API's reasoning are sent back.", "approximated")
    elif part.text or part.opaque:
        out.lose(f"{path}.reasoning", "Reasoning of another API cannot be sent back here.")


def _content(
    parts: Sequence[Text | Media | Opaque | Reasoning], path: str, out: Encoding
) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return parts[0].text
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            item = out.carry({"type": "text", "text": part.text}, part.extra, path)
            if item["type"] == "refusal":
                item["refusal"] = item.pop("text")
            content.append(item)
        elif isinstance(part, Media):
            encoded = _media(part, path, out)
            if encoded is not None:
                content.append(encoded)
        elif (own := out.own_part(part, path)) is not None:
            content.append(own)
    return content or ""


def _media(media: Media, path: str, out: Encoding) -> dict[str, Any]:
    if media.kind == "image" and (media.data is not None or media.url):
        return out.carry_media({"type": "image_url", "image_url": {"url": data_url(media)}}, media, path)
    if media.kind == "audio" and media.data is not None:
        format_ = _AUDIO.get(media.mime_type or "", (media.mime_type or "").removeprefix("audio/") or "wav")
        audio = {"data": b64encode(media.data).decode(), "format": format_}
        return out.carry_media({"type": "input_audio", "input_audio": audio}, media, path)
    out.check_file(media, path)
    if media.file_id is None and media.data is None:
        out.reject_media(media, path)
    file = {"file_data": data_url(media)} if media.file_id is None else {"file_id": media.file_id}
    if media.name:
        file["filename"] = media.name
    return out.carry_media({"type": "file", "file": file}, media, path, ("name",))

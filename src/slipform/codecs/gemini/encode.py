"""IR → request."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.answer import arguments_object
from slipform.codecs.codec import Capabilities
from slipform.codecs.schema_channel import Losses, SchemaChannel, add_extra, add_loss, drop_sampling, own_extra
from slipform.ir import Media, Message, ModelRequest, NamedTool, Part, Reasoning, Text, Tool, ToolCall, ToolResult
from slipform.schema import OutputStrategy

NAME = "gemini"

_SAMPLING = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "stop": "stopSequences",
}
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "HIGH", "max": "HIGH"}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_MIMES = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4", "file": "application/pdf"}


def encode_body(
    request: ModelRequest, plan: SchemaChannel, capabilities: Capabilities, losses: Losses
) -> dict[str, Any]:
    """The JSON body of the request."""
    system, contents = encode_messages(request.messages, losses)
    body: dict[str, Any] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system, "role": "user"}
    config = drop_sampling(request, _SAMPLING, losses, capabilities.sampling)
    if request.max_tokens is not None:
        config["maxOutputTokens"] = request.max_tokens
    if plan.strategy is OutputStrategy.NATIVE:
        field = "responseSchema" if capabilities.dialect == "gemini-openapi" else "responseJsonSchema"
        config |= {"responseMimeType": "application/json", field: plan.schema}
    elif plan.json_object:
        config["responseMimeType"] = "application/json"
    thinking = _thinking(plan, losses)
    if thinking:
        config["thinkingConfig"] = thinking
    if config:
        body["generationConfig"] = config
    _add_tools(body, plan, losses)
    if request.metadata:
        losses.append(add_loss("metadata", "This API keeps no metadata."))
    add_extra(body, request, NAME, losses)
    return body


def _thinking(plan: SchemaChannel, losses: Losses) -> dict[str, Any]:
    wanted = plan.reasoning
    config: dict[str, Any] = {}
    effort, budget = wanted.get("effort"), wanted.get("budget")
    if budget is not None:
        config["thinkingBudget"] = budget
    elif wanted.get("enabled") is False or effort == "none":
        config["thinkingBudget"] = 0
    elif effort is not None:
        config["thinkingLevel"] = _LEVELS.get(effort, "HIGH")
        if effort in ("xhigh", "max") or effort not in _LEVELS:
            losses.append(add_loss("reasoning.effort", f"{effort} is spelled HIGH here.", "approximated"))
    if wanted.get("summary"):
        config["includeThoughts"] = True
    return config


def _add_tools(body: dict[str, Any], plan: SchemaChannel, losses: Losses) -> None:
    declared: list[dict[str, Any]] = []
    hosted: list[dict[str, Any]] = []
    for tool in plan.tools:
        own = own_extra(tool.extra, NAME, f"tools.{tool.name}", losses)
        if tool.vendor == NAME:
            hosted.append(dict(own))
        elif tool.vendor is not None:
            losses.append(add_loss(f"tools.{tool.name}", f"A tool of {tool.vendor}'s own."))
        else:
            declared.append(_declaration(tool, own, losses))
    tools = ([{"functionDeclarations": declared}] if declared else []) + hosted
    if not tools:
        return
    body["tools"] = tools
    choice = plan.tool_choice
    if isinstance(choice, NamedTool):
        calling = {"mode": "ANY", "allowedFunctionNames": [choice.name]}
        body["toolConfig"] = {"functionCallingConfig": calling}
    elif choice is not None:
        body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[choice]}}
    if plan.parallel_tool_calls is False and plan.strategy is not OutputStrategy.TOOL:
        losses.append(add_loss("parallel_tool_calls", "This API may call several tools at once."))


def _declaration(tool: Tool, own: Mapping[str, Any], losses: Losses) -> dict[str, Any]:
    spelled: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        spelled["description"] = tool.description
    if tool.parameters:
        spelled["parametersJsonSchema"] = tool.parameters
    if tool.strict and tool.name != "output":
        losses.append(add_loss(f"tools.{tool.name}.strict", "This API has no strict tools."))
    return {**spelled, **own}


def encode_messages(messages: tuple[Message, ...], losses: Losses) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The system parts and the turns; turns of one side that follow each other are one."""
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        parts = [spelled for part in message.parts for spelled in _part(part, names, path, losses)]
        if message.role == "system":
            if contents:
                losses.append(add_loss(path, "A later system message was moved to the front.", "approximated"))
            system.extend(parts)
            continue
        role = "model" if message.role == "assistant" else "user"
        own = own_extra(message.extra, NAME, path, losses)
        if message.role == "tool" and contents and contents[-1]["role"] == "user":
            contents[-1]["parts"].extend(parts)
        elif parts:
            contents.append({"parts": parts, "role": role, **own})
    return system, contents


def _part(part: Part, names: Mapping[str, str], path: str, losses: Losses) -> list[dict[str, Any]]:
    if isinstance(part, Text):
        return [{"text": part.text, **own_extra(part.extra, NAME, path, losses)}]
    if isinstance(part, ToolCall):
        own = dict(own_extra(part.extra, NAME, path, losses))
        call = {"name": part.name, "args": arguments_object(part.arguments)}
        if not part.id.startswith("call_"):
            call["id"] = part.id
        return [{"functionCall": call, **own}]
    if isinstance(part, ToolResult):
        return [_result(part, names, path, losses)]
    if isinstance(part, Media):
        return [{**_media(part), **own_extra(part.extra, NAME, path, losses)}]
    own_data = part.opaque.get(NAME) if isinstance(part, Reasoning) else part.data if part.vendor == NAME else None
    if own_data is None:
        kind = "Reasoning" if isinstance(part, Reasoning) else "A part"
        losses.append(add_loss(path, f"{kind} of another API cannot be sent back here."))
        return []
    return [dict(own_data)]


def _result(result: ToolResult, names: Mapping[str, str], path: str, losses: Losses) -> dict[str, Any]:
    said = "".join(part.text for part in result.parts if isinstance(part, Text))
    losses.extend(
        add_loss(path, "Only text goes back from a tool here.") for part in result.parts if isinstance(part, Media)
    )
    answer: dict[str, Any] = {"name": result.name or names.get(result.call_id) or result.call_id}
    if not result.call_id.startswith("call_"):
        answer["id"] = result.call_id
    answer["response"] = {"error": said} if result.is_error else _object(said)
    return {"functionResponse": answer, **own_extra(result.extra, NAME, path, losses)}


def _object(said: str) -> dict[str, Any]:
    try:
        value = orjson.loads(said)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"output": said}


def _media(media: Media) -> dict[str, Any]:
    mime = media.mime_type or _MIMES[media.kind]
    if media.data is not None:
        return {"inlineData": {"mimeType": mime, "data": b64encode(media.data).decode()}}
    return {"fileData": {"mimeType": mime, "fileUri": media.url or media.file_id}}

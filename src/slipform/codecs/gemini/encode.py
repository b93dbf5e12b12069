"""Write a request for generateContent."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slipform.codecs.answer import arguments_object
from slipform.codecs.model_name import url_path
from slipform.codecs.request_fields import Capabilities, Encoding, encode_function, open_turns
from slipform.codecs.schema_channel import SchemaChannel
from slipform.ir import RESERVED_TOOL, Media, Message, ModelRequest, NamedTool, Part, Text, Tool, ToolCall, ToolResult
from slipform.schema import OutputStrategy
from slipform.text.strict import parse

NAME = "gemini"

SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
    "stop": "stopSequences",
}
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "HIGH", "max": "HIGH"}
_DECLARED = "functionDeclarations"
MADE_ID = "call_"
"""The beginnings of ids that are not sent: those generated here for calls without an id, and OpenAI's."""
RESPONSE = "response"
"""The field with a tool's original answer for this codec, if its text alone would be encoded differently."""
_VERSION = re.compile(r"gemini-(\d+)")
_SIGNED_SINCE = 3
_UNSIGNED = {"thoughtSignature": "skip_thought_signature_validator"}
"""The placeholder that Google accepts instead of an unknown signature."""
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_MIMES = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4", "file": "application/pdf"}


def request_path(model: str, _capabilities: Capabilities, stream: bool) -> str:
    """Return the path of the call, under a base URL that ends with the API's version (`…/v1`)."""
    name = url_path(model)
    call = "streamGenerateContent?alt=sse" if stream else "generateContent"
    if "/" in name:
        return f"/{name}:{call}"
    return f"/models/{name}:{call}"


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, _stream: bool) -> dict[str, Any]:
    """Return the JSON body of the request.

    The dialect `gemini-openapi` sends the schema as `responseSchema`, every other one as `responseJsonSchema`.
    """
    system, contents = encode_messages(_with_signatures(request, out), out)
    body: dict[str, Any] = {"contents": contents}
    if system["parts"]:
        body["systemInstruction"] = system
    config = out.sampling(request, SAMPLING_NAMES)
    if request.max_tokens is not None:
        config["maxOutputTokens"] = request.max_tokens
    if request.logprobs is not None:
        config["responseLogprobs"] = True
        if request.logprobs:
            config["logprobs"] = request.logprobs
    if plan.strategy is OutputStrategy.NATIVE:
        field = "responseSchema" if out.capabilities.dialect == "gemini-openapi" else "responseJsonSchema"
        config |= {"responseMimeType": "application/json", field: plan.schema}
    elif plan.json_object:
        config["responseMimeType"] = "application/json"
    thinking = _thinking(plan, out)
    if thinking:
        config["thinkingConfig"] = thinking
    if config:
        body["generationConfig"] = config
    _add_tools(body, plan, out)
    if request.metadata:
        out.lose("metadata", "This API keeps no metadata.")
    out.add_extra(body, request)
    return body


def _thinking(plan: SchemaChannel, out: Encoding) -> dict[str, Any]:
    """Return the reasoning options, and report those that this API cannot express."""
    reasoning = plan.reasoning
    config: dict[str, Any] = {}
    effort = reasoning.get("effort")
    budget = reasoning.get("budget")
    summary = reasoning.get("summary")
    if budget is not None:
        config["thinkingBudget"] = budget
    if budget is None and (reasoning.get("enabled") is False or effort == "none"):
        config["thinkingBudget"] = 0
    elif effort is not None:
        config["thinkingLevel"] = _LEVELS.get(effort, "HIGH")
        if effort in ("xhigh", "max") or effort not in _LEVELS:
            out.lose("reasoning.effort", f"{effort} is spelled HIGH here.", "approximated")
    elif reasoning.get("enabled") and budget is None and out.origin != NAME:
        out.lose("reasoning.enabled", "Whether to think is left to the model here.", "approximated")
    if summary is not None:
        config["includeThoughts"] = summary not in (False, "omitted")
        if isinstance(summary, str) and summary not in ("auto", "summarized", "omitted"):
            out.lose("reasoning.summary", "Thoughts are shown in one way here.", "approximated")
    return config


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    def declare(tool: Tool) -> dict[str, Any]:
        declaration = encode_function(tool, "parametersJsonSchema")
        if not tool.parameters:
            del declaration["parametersJsonSchema"]
        if tool.strict and tool.name != RESERVED_TOOL:
            out.lose(f"tools.{tool.name}.strict", "This API has no strict tools.")
        return declaration

    tools, choice = out.tools(plan, declare)
    if not tools:
        return
    # All declarations are in one group; a tool of Google's own is a separate group.
    hosted = [tool for tool in tools if "name" not in tool]
    declared = [tool for tool in tools if "name" in tool]
    body["tools"] = [{_DECLARED: declared}, *hosted] if declared else hosted
    if isinstance(choice, NamedTool):
        calling = {"mode": "ANY", "allowedFunctionNames": [choice.name]}
        body["toolConfig"] = {"functionCallingConfig": calling}
    elif choice is not None:
        body["toolConfig"] = {"functionCallingConfig": {"mode": _MODES[choice]}}
    out.lose_one_call(plan)


def _with_signatures(request: ModelRequest, out: Encoding) -> Sequence[Message]:
    """Return the turns with a placeholder for unknown signatures of calls, which version 3 and later require."""
    version = _VERSION.search(request.model)
    if request.extra_for == NAME or version is None or int(version[1]) < _SIGNED_SINCE:
        return request.messages
    messages = list(request.messages)
    for index, message in open_turns(request.messages):
        first = message.tool_calls[0]
        if "thoughtSignature" in first.extra.get(NAME, {}):
            continue
        out.lose(
            f"messages[{index}]", "The signature of this call is not known; the call goes without.", "approximated"
        )
        unsigned = replace(first, extra={**first.extra, NAME: {**first.extra.get(NAME, {}), **_UNSIGNED}})
        messages[index] = message.replace(parts=tuple([unsigned if part is first else part for part in message.parts]))
    return tuple(messages)


def encode_messages(messages: Sequence[Message], out: Encoding) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the system instruction and the turns; consecutive turns of one role are merged."""
    system: dict[str, Any] = {"parts": [], "role": "user"}
    contents: list[dict[str, Any]] = []
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        out.speaker(message, path)
        parts = [encoded for part in message.parts for encoded in _part(part, names, path, out)]
        if message.role == "system":
            if contents:
                out.lose(path, "A later system message was moved to the front.", "approximated")
            system["parts"].extend(parts)
            out.carry(system, message.extra, path)
            continue
        role = "model" if message.role == "assistant" else "user"
        if message.role == "tool" and contents and contents[-1]["role"] == "user" and NAME not in message.extra:
            contents[-1]["parts"].extend(parts)
            out.drop(message.extra, path)
        elif parts:
            contents.append(out.carry({"parts": parts, "role": role}, message.extra, path))
    return system, contents


def _part(part: Part, names: Mapping[str, str], path: str, out: Encoding) -> list[dict[str, Any]]:
    if isinstance(part, Text):
        return [out.carry({"text": part.text}, part.extra, path)]
    if isinstance(part, ToolCall):
        call = {"name": part.name, "args": arguments_object(part.arguments)}
        if not part.id.startswith(MADE_ID):
            call["id"] = part.id
        return [out.carry({"functionCall": call}, part.extra, path)]
    if isinstance(part, ToolResult):
        return [_result(part, names, path, out)]
    if isinstance(part, Media):
        out.check_file(part, path)
        return [_media(part, path, out)]
    own_data = out.own_part(part, path)
    return [] if own_data is None else [own_data]


def _result(result: ToolResult, names: Mapping[str, str], path: str, out: Encoding) -> dict[str, Any]:
    output = result.text
    for part in result.parts:
        if isinstance(part, Text):
            out.drop(part.extra, path)
        elif isinstance(part, Media):
            out.reject_media(part, path, " in a tool's result")
        else:
            out.lose(path, "Only text goes back from a tool here.")
    answer: dict[str, Any] = {"name": result.name or names.get(result.call_id) or result.call_id}
    if not result.call_id.startswith(MADE_ID):
        answer["id"] = result.call_id
    answer["response"] = result_object(output, failed=result.is_error)
    encoded = out.carry({"functionResponse": answer}, result.extra, path)
    response = encoded.pop(RESPONSE, None)
    if response is not None:
        encoded["functionResponse"]["response"] = response
    return encoded


def result_object(output: str, *, failed: bool) -> dict[str, Any]:
    """Return a tool's answer as the object that this API requires."""
    if failed:
        return {"error": output}
    try:
        value = parse(output)
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    return {"output": output}


def _media(media: Media, path: str, out: Encoding) -> dict[str, Any]:
    mime = media.mime_type or _MIMES[media.kind]
    key = "fileData"
    source = {"mimeType": mime, "fileUri": media.url or media.file_id}
    if media.data is not None:
        key = "inlineData"
        source = {"mimeType": mime, "data": b64encode(media.data).decode()}
    encoded = out.carry({key: source}, media.extra, path)
    if media.name is not None and "displayName" not in encoded[key]:
        # Only one of Google's two APIs accepts it: it is returned to that API only.
        out.lose(f"{path}.name", f"This API takes no name for this {media.kind}.")
    return encoded

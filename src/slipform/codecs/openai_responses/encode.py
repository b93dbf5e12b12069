"""Write a request for Responses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from slipform.codecs.request_fields import Capabilities, Encoding, data_url, encode_function
from slipform.codecs.schema_channel import SchemaChannel, schema_name
from slipform.ir import (
    Media,
    Message,
    ModelRequest,
    NamedTool,
    Opaque,
    Part,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from slipform.ir.parts import MESSAGE
from slipform.schema import OutputStrategy

NAME = "openai-responses"
OWN_ID = "_slipform_"
"""Follows the kind in an id that slipform generated: OpenAI does not know these responses and items."""
MADE_REASONING = f"rs{OWN_ID}"
"""The beginning of the ids of reasoning that another vendor's model wrote."""
NAMESPACE = "namespace"
"""The key of a tool's `extra` for its namespace."""
LOADED = "loaded"
"""The key of a tool's `extra` that marks it as loaded by the vendor: it is in the conversation already."""
LOADING_ITEM = "tool_search_output"
"""The type of a conversation's items that contain tools."""
INCLUDED = "message.output_text.logprobs"
"""The value of `include` that requests token probabilities."""
SAMPLING_NAMES = {"temperature": "temperature", "top_p": "top_p"}


def request_path(_model: str, _capabilities: Capabilities, _stream: bool) -> str:
    """Return the path of the call."""
    return "/responses"


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    """Return the JSON body of the request."""
    body: dict[str, Any] = {"model": request.model}
    messages = request.messages
    if messages and messages[0].role == "system" and _is_plain(messages[0]):
        body["instructions"] = messages[0].text
        messages = messages[1:]
    body["input"] = _input(messages, len(request.messages) - len(messages), out)
    body.update(out.sampling(request, SAMPLING_NAMES))
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    if request.logprobs is not None:
        body["include"] = [INCLUDED]
        if request.logprobs:
            body["top_logprobs"] = request.logprobs
    _add_reasoning(body, plan, out)
    if plan.strategy is OutputStrategy.NATIVE:
        format_ = {"type": "json_schema", "name": schema_name(plan.name, out), "schema": plan.schema}
        body["text"] = {"format": {**format_, "strict": plan.strict}}
    elif plan.json_object:
        body["text"] = {"format": {"type": "json_object"}}
    _add_tools(body, plan, out)
    if request.metadata:
        body["metadata"] = dict(request.metadata)
    if stream:
        body["stream"] = True
        if "stream_options" in request.extra and request.extra_for == NAME:
            body["stream_options"] = {}
    include = body.get("include")
    out.add_extra(body, request)
    if include and body["include"] is not include:
        body["include"] = [*body["include"], *include]
    return body


def _is_plain(message: Message) -> bool:
    """Return whether a turn contains only text."""
    if message.extra or message.name is not None or len(message.parts) != 1:
        return False
    return isinstance(message.parts[0], Text) and not message.parts[0].extra


def _add_reasoning(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    reasoning = dict(plan.reasoning)
    effort = reasoning.pop("effort", None)
    enabled = reasoning.pop("enabled", None)
    summary = reasoning.pop("summary", None)
    if effort is None and enabled is False:
        effort = "none"
    encoded: dict[str, Any] = {} if effort is None else {"effort": effort}
    if summary:
        encoded["summary"] = summary if summary in ("auto", "concise", "detailed") else "auto"
        if encoded["summary"] != summary:
            out.lose("reasoning.summary", f"{summary} is spelled auto here.", "approximated")
    if encoded:
        body["reasoning"] = encoded
    if effort is None and enabled:
        out.lose("reasoning.enabled", "Whether to think is left to the model here.", "approximated")
    for key in reasoning:
        out.lose(f"reasoning.{key}", f"This API has no place for {key}.")


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    tools, choice = out.tools(plan, _tool)
    tools = _in_namespaces(tools)
    if not tools:
        return
    body["tools"] = tools
    if isinstance(choice, NamedTool):
        body["tool_choice"] = {"type": "function", "name": choice.name}
    elif choice is not None:
        body["tool_choice"] = choice
    if plan.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = plan.parallel_tool_calls


def _in_namespaces(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tools as this API writes them: nested in their namespace, and without those in the conversation."""
    written: list[dict[str, Any]] = []
    namespaces: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if tool.pop(LOADED, False):
            continue
        namespace = tool.pop(NAMESPACE, None)
        if namespace is None:
            written.append(tool)
            continue
        name = str(namespace.get("name"))
        if name not in namespaces:
            namespaces[name] = {"type": NAMESPACE, **namespace, "tools": []}
            written.append(namespaces[name])
        namespaces[name]["tools"].append(tool)
    return written


def namespace_of(tool: Tool) -> str | None:
    """Return the name of the namespace that a tool is in.

    >>> namespace_of(Tool("find", {}, extra={NAME: {"namespace": {"name": "crm"}}}))
    'crm'
    """
    namespace = tool.extra.get(NAME, {}).get(NAMESPACE)
    if namespace is None:
        return None
    return str(namespace.get("name"))


def _tool(tool: Tool) -> dict[str, Any]:
    # The key is required here, and its default differs between servers: it is always written.
    return {"type": "function", **encode_function(tool), "strict": tool.strict is True}


def _input(messages: Sequence[Message], offset: int, out: Encoding) -> str | list[dict[str, Any]]:
    if len(messages) == 1 and messages[0].role == "user" and _is_plain(messages[0]):
        return messages[0].text
    items: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        items.extend(_items(message, f"messages[{index + offset}]", out))
    return items


def _items(message: Message, path: str, out: Encoding) -> list[dict[str, Any]]:
    """Return the items of one turn: the content in one, and one for every call, result and reasoning, in order."""
    items: list[dict[str, Any]] = []
    content_parts: list[Part] = []
    fields: dict[str, Any] = {}
    out.speaker(message, path)

    def flush() -> None:
        if content_parts:
            role = "user" if message.role == "tool" else message.role
            item: dict[str, Any] = {"role": role, "content": _content(tuple(content_parts), role, path, out)}
            if fields:
                item = {"type": "message", **item, **fields}
            items.append(out.carry(item, message.extra, path))
            content_parts.clear()

    for part in message.parts:
        item = _item(part, path, out)
        if item is None:
            part, of_message = _split_fields(part)
            if of_message != fields:
                flush()
                fields = of_message
            content_parts.append(part)
        else:
            flush()
            items.extend(item)
    flush()
    if message.extra and not any("role" in item for item in items):
        out.drop(message.extra, path)  # there is no content that they could accompany
    return items


def _split_fields(part: Part) -> tuple[Part, dict[str, Any]]:
    """Return a part of the message's content, and the fields of the message."""
    own = part.extra.get(NAME, {}) if isinstance(part, Text) else {}
    if not isinstance(part, Text) or MESSAGE not in own:
        return part, {}
    # Messages with an id have their parts in a list, each with its own notes.
    part_fields = {"annotations": [], **{key: value for key, value in own.items() if key != MESSAGE}}
    return Text(part.text, {**part.extra, NAME: part_fields}), own[MESSAGE]


def _item(part: Part, path: str, out: Encoding) -> list[dict[str, Any]] | None:
    """Return the items of a part, or None if it belongs to the message's content."""
    if isinstance(part, ToolCall):
        call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
        return [out.carry(call, part.extra, path)]
    if isinstance(part, ToolResult):
        if part.is_error:
            out.lose(f"{path}.is_error", "This API does not say that a tool failed.")
        output = _content(part.parts, "user", path, out)
        result = {"type": "function_call_output", "call_id": part.call_id, "output": output}
        return [out.carry(result, part.extra, path)]
    if isinstance(part, (Reasoning, Opaque)):
        own = out.own_part(part, path)
        if own is None:
            return []
        if str(own.get("type", "")).startswith("input_"):
            return None
        return [own]
    return None


def _content(parts: tuple[Part, ...], role: str, path: str, out: Encoding) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return parts[0].text
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            kind = "output_text" if role == "assistant" else "input_text"
            item = out.carry({"type": kind, "text": part.text}, part.extra, path)
            if item["type"] == "refusal":
                item["refusal"] = item.pop("text")
            content.append(item)
        elif isinstance(part, Media):
            content.extend(_media(part, path, out))
        elif isinstance(part, Opaque) and (own := out.own_part(part, path)) is not None:
            content.append(own)
    return content


def _media(media: Media, path: str, out: Encoding) -> list[dict[str, Any]]:
    out.check_file(media, path)
    encoded: dict[str, Any]
    if media.kind == "image":
        source = {"image_url": data_url(media)} if media.file_id is None else {"file_id": media.file_id}
        encoded = {"type": "input_image", **source, "detail": "auto"}
    elif media.kind == "audio" and media.data is not None:
        format_ = (media.mime_type or "audio/wav").removeprefix("audio/").replace("mpeg", "mp3")
        encoded = {"type": "input_audio", "input_audio": {"data": b64encode(media.data).decode(), "format": format_}}
    elif media.kind != "file":
        out.reject_media(media, path)
    elif media.file_id is not None:
        encoded = {"type": "input_file", "file_id": media.file_id}
    elif media.data is None:
        encoded = {"type": "input_file", "file_url": media.url}
    else:
        encoded = {"type": "input_file", "file_data": data_url(media)}
    if media.kind == "file" and media.name:
        encoded["filename"] = media.name
    return [out.carry_media(encoded, media, path, ("name",) if media.kind == "file" else ())]

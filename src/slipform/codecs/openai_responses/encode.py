"""Write a request for Responses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
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
from slipform.schema import OutputStrategy

NAME = "openai-responses"

SAMPLING_NAMES = {"temperature": "temperature", "top_p": "top_p"}


def request_path(_model: str, _capabilities: Capabilities, _stream: bool) -> str:
    """The path of the call."""
    return "/responses"


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    """The JSON body of the request."""
    body: dict[str, Any] = {"model": request.model}
    messages = request.messages
    if messages and messages[0].role == "system" and _is_plain(messages[0]):
        body["instructions"] = messages[0].text
        messages = messages[1:]
    body["input"] = _input(messages, len(request.messages) - len(messages), out)
    body.update(out.sampling(request, SAMPLING_NAMES))
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    _add_reasoning(body, plan, out)
    if plan.strategy is OutputStrategy.NATIVE:
        format_ = {"type": "json_schema", "name": schema_name(plan.name, out), "schema": plan.schema}
        body["text"] = {"format": {**format_, "strict": plan.strict}}
    elif plan.json_object:
        body["text"] = {"format": {"type": "json_object"}}
    _add_tools(body, plan, out)
    if request.metadata:
        body["metadata"] = dict(request.metadata)
    out.add_extra(body, request)
    if stream:
        body["stream"] = True
    return body


def _is_plain(message: Message) -> bool:
    return not message.extra and len(message.parts) == 1 and isinstance(message.parts[0], Text)


def _add_reasoning(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    wanted = dict(plan.reasoning)
    effort, enabled, summary = wanted.pop("effort", None), wanted.pop("enabled", None), wanted.pop("summary", None)
    if effort is None and enabled is False:
        effort = "none"
    encoded: dict[str, Any] = {} if effort is None else {"effort": effort}
    if summary:
        encoded["summary"] = summary if summary in ("auto", "concise", "detailed") else "auto"
    if encoded:
        body["reasoning"] = encoded
    for key in wanted:
        out.lose(f"reasoning.{key}", f"This API has no place for {key}.")


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    tools = out.tools(plan.tools, _tool)
    if not tools:
        return
    body["tools"] = tools
    choice = plan.tool_choice
    if isinstance(choice, NamedTool):
        body["tool_choice"] = {"type": "function", "name": choice.name}
    elif choice is not None:
        body["tool_choice"] = choice
    if plan.parallel_tool_calls is not None:
        body["parallel_tool_calls"] = plan.parallel_tool_calls


def _tool(tool: Tool, own: Mapping[str, Any]) -> dict[str, Any]:
    # The key is required here, and its default is not the same everywhere: always say it.
    return {"type": "function", **encode_function(tool), "strict": tool.strict is True, **own}


def _input(messages: tuple[Message, ...], offset: int, out: Encoding) -> str | list[dict[str, Any]]:
    if len(messages) == 1 and messages[0].role == "user" and _is_plain(messages[0]):
        return messages[0].text
    items: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        items.extend(_items(message, f"messages[{index + offset}]", out))
    return items


def _items(message: Message, path: str, out: Encoding) -> list[dict[str, Any]]:
    """The items of one turn: what is said in one, every call, result and thought in one of its own, in order."""
    items: list[dict[str, Any]] = []
    said: list[Part] = []
    if message.name is not None:
        out.lose(f"{path}.name", "This API has no names for speakers.")

    def flush() -> None:
        if said:
            own = out.own(message.extra, path)
            role = "user" if message.role == "tool" else message.role
            items.append({"role": role, "content": _content(tuple(said), role, path, out), **own})
            said.clear()

    for part in message.parts:
        item = _item(part, path, out)
        if item is None:
            said.append(part)
        else:
            flush()
            items.extend(item)
    flush()
    return items


def _item(part: Part, path: str, out: Encoding) -> list[dict[str, Any]] | None:
    """The items a part stands for, or None when it belongs to what is said."""
    if isinstance(part, ToolCall):
        call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
        return [{**call, **out.own(part.extra, path)}]
    if isinstance(part, ToolResult):
        if part.is_error:
            out.lose(f"{path}.is_error", "This API does not say that a tool failed.")
        output = _content(part.parts, "user", path, out)
        result = {"type": "function_call_output", "call_id": part.call_id, "output": output}
        return [{**result, **out.own(part.extra, path)}]
    if isinstance(part, Reasoning):
        if NAME in part.opaque:
            return [dict(part.opaque[NAME])]
        out.lose(path, "Reasoning of another API cannot be sent back here.")
        return []
    if isinstance(part, Opaque):
        if part.vendor != NAME:
            out.lose(path, f"A part that only {part.vendor} knows.")
            return []
        return None if str(part.data.get("type", "")).startswith("input_") else [dict(part.data)]
    return None


def _content(parts: tuple[Part, ...], role: str, path: str, out: Encoding) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return parts[0].text
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            kind = "output_text" if role == "assistant" else "input_text"
            content.append({"type": kind, "text": part.text, **out.own(part.extra, path)})
        elif isinstance(part, Media):
            content.extend({**item, **out.own(part.extra, path)} for item in _media(part, path, out))
        elif isinstance(part, Opaque):
            content.append(dict(part.data))
    return content


def _media(media: Media, path: str, out: Encoding) -> list[dict[str, Any]]:
    if media.kind == "image":
        if media.file_id is not None:
            return [{"type": "input_image", "file_id": media.file_id, "detail": "auto"}]
        return [{"type": "input_image", "image_url": data_url(media), "detail": "auto"}]
    if media.kind == "audio" and media.data is not None:
        format_ = (media.mime_type or "audio/wav").removeprefix("audio/").replace("mpeg", "mp3")
        audio = {"data": b64encode(media.data).decode(), "format": format_}
        return [{"type": "input_audio", "input_audio": audio}]
    if media.kind != "file":
        out.lose(path, f"This API takes no {media.kind}.")
        return []
    if media.file_id is not None:
        return [{"type": "input_file", "file_id": media.file_id}]
    if media.data is None:
        return [{"type": "input_file", "file_url": media.url}]
    file = {"type": "input_file", "file_data": data_url(media)}
    return [{**file, "filename": media.name} if media.name else file]

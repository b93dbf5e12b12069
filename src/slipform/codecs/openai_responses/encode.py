"""Write a request for Responses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from slipform.codecs.request_fields import (
    Losses,
    add_extra,
    data_url,
    encode_function,
    encode_sampling,
    encode_tools,
    lose,
    own_extra,
)
from slipform.codecs.schema_channel import Capabilities, SchemaChannel, schema_name
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

_SAMPLING = {"temperature": "temperature", "top_p": "top_p"}


def encode_body(
    request: ModelRequest, plan: SchemaChannel, capabilities: Capabilities, losses: Losses, stream: bool
) -> dict[str, Any]:
    """The JSON body of the request."""
    body: dict[str, Any] = {"model": request.model}
    messages = request.messages
    if messages and messages[0].role == "system" and _is_plain(messages[0]):
        body["instructions"] = messages[0].text
        messages = messages[1:]
    body["input"] = _input(messages, len(request.messages) - len(messages), losses)
    body.update(encode_sampling(request, _SAMPLING, losses, capabilities.sampling))
    if request.max_tokens is not None:
        body["max_output_tokens"] = request.max_tokens
    _add_reasoning(body, plan, losses)
    if plan.strategy is OutputStrategy.NATIVE:
        format_ = {"type": "json_schema", "name": schema_name(plan.name, losses), "schema": plan.schema}
        body["text"] = {"format": {**format_, "strict": plan.strict}}
    elif plan.json_object:
        body["text"] = {"format": {"type": "json_object"}}
    _add_tools(body, plan, losses)
    if request.metadata:
        body["metadata"] = dict(request.metadata)
    add_extra(body, request, NAME, losses)
    if stream:
        body["stream"] = True
    return body


def _is_plain(message: Message) -> bool:
    return not message.extra and len(message.parts) == 1 and isinstance(message.parts[0], Text)


def _add_reasoning(body: dict[str, Any], plan: SchemaChannel, losses: Losses) -> None:
    wanted = dict(plan.reasoning)
    effort, enabled, summary = wanted.pop("effort", None), wanted.pop("enabled", None), wanted.pop("summary", None)
    if effort is None and enabled is False:
        effort = "none"
    spelled: dict[str, Any] = {} if effort is None else {"effort": effort}
    if summary:
        spelled["summary"] = summary if summary in ("auto", "concise", "detailed") else "auto"
    if spelled:
        body["reasoning"] = spelled
    for key in wanted:
        lose(losses, f"reasoning.{key}", f"This API has no place for {key}.")


def _add_tools(body: dict[str, Any], plan: SchemaChannel, losses: Losses) -> None:
    tools = encode_tools(plan.tools, NAME, _tool, losses)
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


def _input(messages: tuple[Message, ...], offset: int, losses: Losses) -> str | list[dict[str, Any]]:
    if len(messages) == 1 and messages[0].role == "user" and _is_plain(messages[0]):
        return messages[0].text
    items: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        items.extend(_items(message, f"messages[{index + offset}]", losses))
    return items


def _items(message: Message, path: str, losses: Losses) -> list[dict[str, Any]]:
    """The items of one turn: what is said in one, every call, result and thought in one of its own, in order."""
    items: list[dict[str, Any]] = []
    said: list[Part] = []
    if message.name is not None:
        lose(losses, f"{path}.name", "This API has no names for speakers.")

    def flush() -> None:
        if said:
            own = own_extra(message.extra, NAME, path, losses)
            role = "user" if message.role == "tool" else message.role
            items.append({"role": role, "content": _content(tuple(said), role, path, losses), **own})
            said.clear()

    for part in message.parts:
        item = _item(part, path, losses)
        if item is None:
            said.append(part)
        else:
            flush()
            items.extend(item)
    flush()
    return items


def _item(part: Part, path: str, losses: Losses) -> list[dict[str, Any]] | None:
    """The items a part stands for, or None when it belongs to what is said."""
    if isinstance(part, ToolCall):
        call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
        return [{**call, **own_extra(part.extra, NAME, path, losses)}]
    if isinstance(part, ToolResult):
        if part.is_error:
            lose(losses, f"{path}.is_error", "This API does not say that a tool failed.")
        output = _content(part.parts, "user", path, losses)
        result = {"type": "function_call_output", "call_id": part.call_id, "output": output}
        return [{**result, **own_extra(part.extra, NAME, path, losses)}]
    if isinstance(part, Reasoning):
        if NAME in part.opaque:
            return [dict(part.opaque[NAME])]
        lose(losses, path, "Reasoning of another API cannot be sent back here.")
        return []
    if isinstance(part, Opaque):
        if part.vendor != NAME:
            lose(losses, path, f"A part that only {part.vendor} knows.")
            return []
        return None if str(part.data.get("type", "")).startswith("input_") else [dict(part.data)]
    return None


def _content(parts: tuple[Part, ...], role: str, path: str, losses: Losses) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return parts[0].text
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Text):
            kind = "output_text" if role == "assistant" else "input_text"
            content.append({"type": kind, "text": part.text, **own_extra(part.extra, NAME, path, losses)})
        elif isinstance(part, Media):
            content.extend({**item, **own_extra(part.extra, NAME, path, losses)} for item in _media(part, path, losses))
        elif isinstance(part, Opaque):
            content.append(dict(part.data))
    return content


def _media(media: Media, path: str, losses: Losses) -> list[dict[str, Any]]:
    if media.kind == "image":
        if media.file_id is not None:
            return [{"type": "input_image", "file_id": media.file_id, "detail": "auto"}]
        return [{"type": "input_image", "image_url": data_url(media), "detail": "auto"}]
    if media.kind == "audio" and media.data is not None:
        format_ = (media.mime_type or "audio/wav").removeprefix("audio/").replace("mpeg", "mp3")
        audio = {"data": b64encode(media.data).decode(), "format": format_}
        return [{"type": "input_audio", "input_audio": audio}]
    if media.kind != "file":
        lose(losses, path, f"This API takes no {media.kind}.")
        return []
    if media.file_id is not None:
        return [{"type": "input_file", "file_id": media.file_id}]
    if media.data is None:
        return [{"type": "input_file", "file_url": media.url}]
    file = {"type": "input_file", "file_data": data_url(media)}
    return [{**file, "filename": media.name} if media.name else file]

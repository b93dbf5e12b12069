"""Write a request for Messages."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.codecs.answer import arguments_object
from slipform.codecs.model_name import url_path
from slipform.codecs.request_fields import CACHE_MARK, Capabilities, Encoding, encode_function
from slipform.codecs.schema_channel import SchemaChannel
from slipform.ir import Media, Message, ModelRequest, ModelWarning, NamedTool, Part, Text, Tool, ToolCall, ToolResult
from slipform.schema import OutputStrategy

NAME = "anthropic"
VERSION = "2026-10-21"
"""The API version the codec is written for."""
DEFAULT_MAX_TOKENS = 8192
"""The API requires a limit; this is the default."""

SAMPLING_NAMES = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "stop": "stop_sequences"}


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, stream: bool) -> dict[str, Any]:
    """Return the JSON body of the request."""
    limit = request.max_tokens
    if limit is None:
        limit = DEFAULT_MAX_TOKENS
        out.losses.append(
            ModelWarning("max_tokens_default", f"This API wants a limit; {limit} tokens were set.", "max_tokens")
        )
    system, turns = encode_messages(request.messages, out)
    body: dict[str, Any] = {"model": request.model, "max_tokens": limit}
    if system:
        body["system"] = system
    body["messages"] = turns
    body.update(out.sampling(request, SAMPLING_NAMES))
    output = _output_config(plan, out)
    if output:
        body["output_config"] = output
    _add_thinking(body, request, plan, out)
    _add_tools(body, plan, out)
    if plan.json_object:
        out.lose("json_mode", "This API has no JSON mode.")
    if request.metadata:
        _add_metadata(body, request, out)
    out.add_extra(body, request)
    if request.cache_prefix:
        _mark_prefix(body)
    if stream:
        body["stream"] = True
    if _is_raw_predict(out.capabilities):
        del body["model"]
        body["anthropic_version"] = VERSION
    return body


def _mark_prefix(body: dict[str, Any]) -> None:
    """Mark the end of the common prefix of requests, tools and system, unless the caller has set marks.

    https://platform.claude.com/docs/en/build-with-claude/prompt-caching: four marks at most, and everything before a
    mark is cached. A prefix too short for the model's cache is not cached, which costs nothing.
    """
    system = body.get("system", ())
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) and system else list(system)
    tools = body.get("tools", ())
    contents = [turn["content"] for turn in body["messages"] if isinstance(turn["content"], list)]
    if any(CACHE_MARK in block for block in [*blocks, *tools, *(each for content in contents for each in content)]):
        return
    if blocks:
        body["system"] = [*blocks[:-1], {**blocks[-1], CACHE_MARK: {"type": "ephemeral"}}]
    elif tools:
        body["tools"] = [*tools[:-1], {**tools[-1], CACHE_MARK: {"type": "ephemeral"}}]


def _is_raw_predict(capabilities: Capabilities) -> bool:
    """Return whether the model is called as on Vertex: the model in the path, the version in the body."""
    return "body_version" in capabilities.quirks


def request_path(model: str, capabilities: Capabilities, stream: bool) -> str:
    """Return the path of the call."""
    if not _is_raw_predict(capabilities):
        return "/v1/messages"
    return f"/publishers/anthropic/models/{url_path(model)}:{'streamRawPredict' if stream else 'rawPredict'}"


def request_headers(capabilities: Capabilities) -> Mapping[str, str]:
    """Return the headers with the version of the API, if it is not in the body."""
    if _is_raw_predict(capabilities):
        return {}
    return {"anthropic-version": VERSION}


def _output_config(plan: SchemaChannel, out: Encoding) -> dict[str, Any]:
    output: dict[str, Any] = {}
    if plan.strategy is OutputStrategy.NATIVE:
        output["format"] = {"type": "json_schema", "schema": plan.schema}
    effort = plan.reasoning.get("effort")
    if effort not in (None, "none"):
        output["effort"] = out.effort(effort, "low", "medium", "high", "xhigh", "max")
    return output


def _add_thinking(body: dict[str, Any], request: ModelRequest, plan: SchemaChannel, out: Encoding) -> None:
    """Write the reasoning options, and report those that this API cannot express."""
    reasoning = plan.reasoning
    enabled = reasoning.get("enabled")
    budget = reasoning.get("budget")
    summary = reasoning.get("summary")
    if enabled is False or reasoning.get("effort") == "none":
        body["thinking"] = {"type": "disabled"}
        return
    if (budget is not None or enabled or summary) and out.lost_thinking(request):
        return
    if budget is not None:
        body["thinking"] = {"type": "enabled", "budget_tokens": budget}
    elif enabled or summary:
        body["thinking"] = {"type": "adaptive"}
    if summary and "thinking" in body:
        display = summary if summary in ("summarized", "omitted") else "summarized"
        body["thinking"]["display"] = display
        if display != summary and summary is not True:
            out.lose("reasoning.summary", f"{summary} is spelled {display} here.", "approximated")


def _add_metadata(body: dict[str, Any], request: ModelRequest, out: Encoding) -> None:
    if "user_id" in request.metadata:
        body["metadata"] = {"user_id": request.metadata["user_id"]}
    for key in request.metadata:
        if key != "user_id":
            out.lose(f"metadata.{key}", "This API keeps no metadata.")


def _add_tools(body: dict[str, Any], plan: SchemaChannel, out: Encoding) -> None:
    """Write the tools and the choice among them."""
    tools, chosen = out.tools(plan, _tool)
    if not tools:
        return
    body["tools"] = tools
    choice: dict[str, Any] = {}
    if isinstance(chosen, NamedTool):
        choice = {"type": "tool", "name": chosen.name}
    elif chosen is not None:
        choice = {"type": "any" if chosen == "required" else chosen}
    if plan.parallel_tool_calls is False and choice.get("type") != "none":
        choice = {"type": "auto", **choice, "disable_parallel_tool_use": True}
    if choice:
        body["tool_choice"] = choice


def _tool(tool: Tool) -> dict[str, Any]:
    encoded = encode_function(tool, "input_schema")
    encoded["input_schema"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict is not None:
        encoded["strict"] = tool.strict
    return encoded


def encode_messages(
    messages: Sequence[Message], out: Encoding
) -> tuple[str | list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the system text and the turns; consecutive tool results share a turn."""
    system: list[Part] = []
    turns: list[dict[str, Any]] = []
    after_tool = False
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        extra = _unmoved_fields(message)
        out.speaker(message, path)
        if message.role == "system" and (not turns or "mid_system" not in out.quirks):
            if turns:
                out.lose(path, "A later system message was moved to the front.", "approximated")
            out.drop(extra, path)
            system.extend(message.parts)
            continue
        is_tool = message.role == "tool"
        # A tool's turn always has blocks: the next one may be added to it.
        content = (_blocks if is_tool else _content)(message.parts, path, out)
        if after_tool and is_tool and NAME not in message.extra:
            turns[-1]["content"].extend(content)
            out.drop(extra, path)
        elif content:
            turn = {"role": "user" if is_tool else message.role, "content": content}
            turns.append(out.carry(turn, extra, path))
        after_tool = is_tool and (after_tool or bool(content))
    return _content(tuple(system), "system", out), turns


def _unmoved_fields(message: Message) -> Mapping[str, Any]:
    """Return the fields of a turn except those of other APIs that its last part carries, such as a cache mark."""
    extra = message.extra
    if not extra or not message.parts:
        return extra
    moved = getattr(message.parts[-1], "extra", {}).get(NAME, {})
    return {
        codec: fields if codec == NAME else {name: value for name, value in fields.items() if name not in moved}
        for codec, fields in extra.items()
    }


def _content(parts: tuple[Part, ...], path: str, out: Encoding) -> str | list[dict[str, Any]]:
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return parts[0].text
    return _blocks(parts, path, out)


def _blocks(parts: tuple[Part, ...], path: str, out: Encoding) -> list[dict[str, Any]]:
    return [block for part in parts if (block := _block(part, path, out)) is not None]


def _block(part: Part, path: str, out: Encoding) -> dict[str, Any] | None:
    if isinstance(part, Text):
        # The API refuses empty text blocks.
        if part.text:
            return out.carry({"type": "text", "text": part.text}, part.extra, path)
        return None
    if isinstance(part, ToolCall):
        call = {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments_object(part.arguments)}
        return out.carry(call, part.extra, path)
    if isinstance(part, ToolResult):
        result: dict[str, Any] = {
            "type": "tool_result",
            "tool_use_id": part.call_id,
            "content": _content(part.parts, path, out),
        }
        if part.is_error:
            result["is_error"] = True
        return out.carry(result, part.extra, path)
    if isinstance(part, Media):
        return _media(part, path, out)
    return out.own_part(part, path)


def _media(media: Media, path: str, out: Encoding) -> dict[str, Any]:
    kind = {"image": "image", "file": "document"}.get(media.kind)
    if kind is None:
        out.reject_media(media, path)
    out.check_file(media, path)
    source: dict[str, Any]
    if media.file_id is not None:
        source = {"type": "file", "file_id": media.file_id}
    elif media.data is None:
        source = {"type": "url", "url": media.url}
    elif media.mime_type == "text/plain":
        source = {"type": "text", "media_type": "text/plain", "data": media.data.decode("utf-8", "replace")}
    else:
        mime = media.mime_type or ("application/pdf" if kind == "document" else "image/png")
        source = {"type": "base64", "media_type": mime, "data": b64encode(media.data).decode()}
    block = {"type": kind, "source": source}
    if kind == "image":
        return out.carry_media(block, media, path)
    return out.carry_media({**block, "title": media.name} if media.name else block, media, path, ("name",))

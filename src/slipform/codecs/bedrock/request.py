"""IR → Converse request."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from slipform.codecs.answer import arguments_object
from slipform.codecs.base import Capabilities
from slipform.codecs.openai_chat.request import schema_name
from slipform.codecs.plan import Losses, add_extra, drop_sampling, dumps, lost, own_extra
from slipform.codecs.plan_types import Plan
from slipform.ir import Media, Message, ModelRequest, NamedTool, Part, Reasoning, Text, Tool, ToolCall, ToolResult
from slipform.schema import OutputStrategy

NAME = "bedrock"

_SAMPLING = {"temperature": "temperature", "top_p": "topP", "top_k": "top_k", "stop": "stopSequences"}
_KINDS = {"image": "image", "file": "document", "video": "video"}


def encode_body(request: ModelRequest, plan: Plan, capabilities: Capabilities, losses: Losses) -> dict[str, Any]:
    """The JSON body of the request."""
    system, turns = _messages(request.messages, losses)
    body: dict[str, Any] = {}
    if system:
        body["system"] = system
    body["messages"] = turns
    config = drop_sampling(request, _SAMPLING, losses, capabilities.sampling)
    more = {"top_k": config.pop("top_k")} if "top_k" in config else {}
    if request.max_tokens is not None:
        config["maxTokens"] = request.max_tokens
    if config:
        body["inferenceConfig"] = config
    output: dict[str, Any] = {}
    if plan.strategy is OutputStrategy.NATIVE:
        # The schema travels as text here.
        schema = {"name": schema_name(plan.name, losses), "schema": dumps(plan.schema).decode()}
        output["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    effort = plan.reasoning.get("effort")
    if effort not in (None, "none"):
        output["effort"] = effort
    if output:
        body["outputConfig"] = output
    _add_tools(body, plan, request.messages, losses)
    if plan.json_object:
        losses.append(lost("json_mode", "This API has no JSON mode."))
    more |= _thinking(plan)
    if more:
        body["additionalModelRequestFields"] = more
    if request.metadata:
        body["requestMetadata"] = {key: str(value) for key, value in request.metadata.items()}
    add_extra(body, request, NAME, losses)
    return body


def _thinking(plan: Plan) -> dict[str, Any]:
    wanted = plan.reasoning
    if wanted.get("budget") is not None:
        return {"thinking": {"type": "enabled", "budget_tokens": wanted["budget"]}}
    if wanted.get("enabled") is not None:
        return {"thinking": {"type": "adaptive" if wanted["enabled"] else "disabled"}}
    return {}


def _add_tools(body: dict[str, Any], plan: Plan, messages: tuple[Message, ...], losses: Losses) -> None:
    tools = [spelled for tool in plan.tools if (spelled := _tool(tool, losses)) is not None]
    if not tools:
        return
    choice = plan.tool_choice
    if choice == "none":
        # There is no such choice; tools may only be left out where the conversation shows no call.
        spoken = any(isinstance(part, (ToolCall, ToolResult)) for message in messages for part in message.parts)
        losses.append(lost("tool_choice", "This API cannot forbid tools." if spoken else "The tools were left out."))
        if not spoken:
            return
        choice = None
    config: dict[str, Any] = {"tools": tools}
    if isinstance(choice, NamedTool):
        config["toolChoice"] = {"tool": {"name": choice.name}}
    elif choice is not None:
        config["toolChoice"] = {"any" if choice == "required" else "auto": {}}
    body["toolConfig"] = config
    if plan.parallel_tool_calls is False and plan.strategy is not OutputStrategy.TOOL:
        losses.append(lost("parallel_tool_calls", "This API may call several tools at once."))


def _tool(tool: Tool, losses: Losses) -> dict[str, Any] | None:
    own = own_extra(tool.extra, NAME, f"tools.{tool.name}", losses)
    if tool.vendor is not None:
        if tool.vendor == NAME:
            return dict(own)
        losses.append(lost(f"tools.{tool.name}", f"A tool of {tool.vendor}'s own."))
        return None
    spec: dict[str, Any] = {"name": tool.name}
    if tool.description:
        spec["description"] = tool.description
    spec["inputSchema"] = {"json": tool.parameters or {"type": "object", "properties": {}}}
    if tool.strict is not None:
        spec["strict"] = tool.strict
    return {"toolSpec": {**spec, **own}}


def _messages(messages: tuple[Message, ...], losses: Losses) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        blocks = [block for part in message.parts if (block := _block(part, path, losses)) is not None]
        if message.role == "system":
            if turns:
                losses.append(lost(path, "A later system message was moved to the front.", "approximated"))
            system.extend(blocks)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _block(part: Part, path: str, losses: Losses) -> dict[str, Any] | None:
    if isinstance(part, Text):
        # Blank text is refused.
        return {"text": part.text, **own_extra(part.extra, NAME, path, losses)} if part.text.strip() else None
    if isinstance(part, ToolCall):
        use = {"toolUseId": part.id, "name": part.name, "input": arguments_object(part.arguments)}
        return {"toolUse": {**use, **own_extra(part.extra, NAME, path, losses)}}
    if isinstance(part, ToolResult):
        content = [block for piece in part.parts if (block := _block(piece, path, losses)) is not None]
        result = {"toolUseId": part.call_id, "content": content, "status": "error" if part.is_error else "success"}
        return {"toolResult": {**result, **own_extra(part.extra, NAME, path, losses)}}
    if isinstance(part, Media):
        return _media(part, path, losses)
    own = part.opaque.get(NAME) if isinstance(part, Reasoning) else part.data if part.vendor == NAME else None
    if own is None:
        kind = "Reasoning" if isinstance(part, Reasoning) else "A part"
        losses.append(lost(path, f"{kind} of another API cannot be sent back here."))
        return None
    return dict(own)


def _media(media: Media, path: str, losses: Losses) -> dict[str, Any] | None:
    kind = _KINDS.get(media.kind)
    s3 = media.url is not None and media.url.startswith("s3://")
    if kind is None or (media.data is None and not s3):
        losses.append(lost(path, f"This API takes no {media.kind} by its address."))
        return None
    source: dict[str, Any] = {"s3Location": {"uri": media.url}}
    if media.data is not None:
        source = {"bytes": b64encode(media.data).decode()}
    format_ = (media.mime_type or "").rpartition("/")[2].replace("jpg", "jpeg").replace("plain", "txt") or "png"
    block = {"format": format_, "source": source}
    return {kind: {**block, "name": media.name or "document"} if kind == "document" else block}

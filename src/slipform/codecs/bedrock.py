"""Call Bedrock's Converse: write its requests, read its answers and its event streams."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from slipform.codecs.answer import Finishes, arguments_object, arguments_text, build_answer, count, rest_of, usage_of
from slipform.codecs.codec import Codec
from slipform.codecs.framing import EventStreamDecoder
from slipform.codecs.model_name import url_path
from slipform.codecs.request_fields import Capabilities, Encoding, dumps
from slipform.codecs.schema_channel import SchemaChannel, schema_name
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

NAME = "bedrock"
_SAMPLING = {"temperature": "temperature", "top_p": "topP", "top_k": "top_k", "stop": "stopSequences"}
_KINDS = {"image": "image", "file": "document", "video": "video"}


def encode_body(request: ModelRequest, plan: SchemaChannel, out: Encoding, _stream: bool) -> dict[str, Any]:
    """Return the JSON body of the request."""
    system, turns = _messages(request.messages, out)
    body: dict[str, Any] = {}
    if system:
        body["system"] = system
    body["messages"] = turns
    config = out.sampling(request, _SAMPLING)
    more = {"top_k": config.pop("top_k")} if "top_k" in config else {}
    if request.max_tokens is not None:
        config["maxTokens"] = request.max_tokens
    if config:
        body["inferenceConfig"] = config
    output: dict[str, Any] = {}
    if plan.strategy is OutputStrategy.NATIVE:
        # The API takes the schema as text here.
        schema = {"name": schema_name(plan.name, out), "schema": dumps(plan.schema).decode()}
        output["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    effort = plan.reasoning.get("effort")
    if effort not in (None, "none"):
        output["effort"] = out.effort(effort, "low", "medium", "high", "xhigh", "max")
    if output:
        body["outputConfig"] = output
    _add_tools(body, plan, request.messages, out)
    if plan.json_object:
        out.lose("json_mode", "This API has no JSON mode.")
    more |= _thinking(request, plan, out)
    if more:
        body["additionalModelRequestFields"] = more
    if request.metadata:
        body["requestMetadata"] = {key: str(value) for key, value in request.metadata.items()}
    out.add_extra(body, request)
    return body


def _thinking(request: ModelRequest, plan: SchemaChannel, out: Encoding) -> dict[str, Any]:
    """Return the reasoning options, and report those that this API cannot express."""
    reasoning = plan.reasoning
    if reasoning.get("summary"):
        out.lose("reasoning.summary", "This API has no place for summary.")
    enabled = False if reasoning.get("effort") == "none" else reasoning.get("enabled")
    if (reasoning.get("budget") is not None or enabled) and out.lost_thinking(request):
        return {}
    if reasoning.get("budget") is not None:
        return {"thinking": {"type": "enabled", "budget_tokens": reasoning["budget"]}}
    if enabled is None:
        return {}
    return {"thinking": {"type": "adaptive" if enabled else "disabled"}}


def _add_tools(body: dict[str, Any], plan: SchemaChannel, messages: Sequence[Message], out: Encoding) -> None:
    tools, choice = out.tools(plan, _tool, "toolSpec")
    if not tools:
        return
    if choice == "none":
        # The API has no such choice; tools may be left out only if the conversation contains no call.
        has_calls = any(isinstance(part, (ToolCall, ToolResult)) for message in messages for part in message.parts)
        out.lose("tool_choice", "This API cannot forbid tools." if has_calls else "The tools were left out.")
        if not has_calls:
            return
        choice = None
    config: dict[str, Any] = {"tools": tools}
    if isinstance(choice, NamedTool):
        config["toolChoice"] = {"tool": {"name": choice.name}}
    elif choice is not None:
        config["toolChoice"] = {"any" if choice == "required" else "auto": {}}
    body["toolConfig"] = config
    out.lose_one_call(plan)


def _tool(tool: Tool) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": tool.name}
    if tool.description:
        spec["description"] = tool.description
    spec["inputSchema"] = {"json": tool.parameters or {"type": "object", "properties": {}}}
    if tool.strict is not None:
        spec["strict"] = tool.strict
    return {"toolSpec": spec}


def _messages(messages: Sequence[Message], out: Encoding) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the system blocks and the turns; neighbouring turns of one role are merged, as the API requires."""
    system: list[dict[str, Any]] = []
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        out.speaker(message, path)
        out.drop(message.extra, path)
        blocks = [block for part in message.parts if (block := _block(part, path, out)) is not None]
        if message.role == "system":
            if turns:
                out.lose(path, "A later system message was moved to the front.", "approximated")
            system.extend(blocks)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _block(part: Part, path: str, out: Encoding) -> dict[str, Any] | None:
    if isinstance(part, Text):
        # The API refuses blank text.
        if part.text.strip():
            return out.carry({"text": part.text}, part.extra, path)
        return None
    if isinstance(part, ToolCall):
        use = {"toolUseId": part.id, "name": part.name, "input": arguments_object(part.arguments)}
        return {"toolUse": out.carry(use, part.extra, path)}
    if isinstance(part, ToolResult):
        content = [block for piece in part.parts if (block := _block(piece, path, out)) is not None]
        result = {"toolUseId": part.call_id, "content": content, "status": "error" if part.is_error else "success"}
        return {"toolResult": out.carry(result, part.extra, path)}
    if isinstance(part, Media):
        return _media(part, path, out)
    return out.own_part(part, path)


def _media(media: Media, path: str, out: Encoding) -> dict[str, Any]:
    kind = _KINDS.get(media.kind)
    s3 = media.url is not None and media.url.startswith("s3://")
    if kind is None or (media.data is None and not s3):
        out.reject_media(media, path)
    source: dict[str, Any] = {"s3Location": {"uri": media.url}}
    if media.data is not None:
        source = {"bytes": b64encode(media.data).decode()}
    format_ = (media.mime_type or "").rpartition("/")[2].replace("jpg", "jpeg").replace("plain", "txt") or "png"
    block = {"format": format_, "source": source}
    if kind == "document":
        block["name"] = media.name or "document"
    return {kind: out.carry_media(block, media, path, ("name", "mime_type") if kind == "document" else ("mime_type",))}


FINISH: Finishes = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_model_output": "error",
    "malformed_tool_use": "error",
}
_KNOWN = frozenset({"output", "stopReason", "usage", "error"})


def decode_body(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    """Return a whole answer."""
    message = (data.get("output") or {}).get("message") or {}
    raw_finish = data.get("stopReason")
    usage = data.get("usage") or None
    extra = rest_of(data, _KNOWN, usage)
    return build_answer(
        plan,
        [_part(block) for block in message.get("content") or () if isinstance(block, Mapping)],
        finish=FINISH.get(raw_finish or "", "unknown"),
        raw_finish=raw_finish,
        usage=read_usage(usage),
        extra=extra,
    )


def _part(block: Mapping[str, Any]) -> Part:
    if isinstance(block.get("text"), str):
        return Text(block["text"])
    use = block.get("toolUse")
    if isinstance(use, Mapping):
        return ToolCall(str(use.get("toolUseId")), str(use.get("name")), arguments_text(use.get("input")))
    thought = block.get("reasoningContent")
    if isinstance(thought, Mapping):
        return Reasoning(str((thought.get("reasoningText") or {}).get("text") or ""), {NAME: dict(block)})
    return Opaque(NAME, block)


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Return the usage; cached tokens are not part of this API's input tokens, so they are added.

    >>> read_usage({"inputTokens": 3, "outputTokens": 2, "cacheReadInputTokens": 4}).input
    7
    """
    if not isinstance(usage, Mapping):
        return None
    fresh = count(usage.get("inputTokens"))
    read = count(usage.get("cacheReadInputTokens"))
    written = count(usage.get("cacheWriteInputTokens"))
    total = usage_of(
        None if fresh is None else fresh + (read or 0) + (written or 0),
        count(usage.get("outputTokens")),
        read,
        None,
        count(usage.get("totalTokens")),
    )
    if written:
        return total.replace(cache_write=written)
    return total


class ConverseEvents:
    """Reads the frames of a Converse stream; text and reasoning begin with their first piece, unannounced."""

    __slots__ = ("_thoughts", "ended", "fault")

    text_key = arguments_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._thoughts: dict[int, dict[str, str]] = {}

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """Return the chunks of one frame."""
        index = data.get("contentBlockIndex") or 0
        if name == "contentBlockDelta":
            return self._delta(index, data.get("delta") or {})
        if name == "contentBlockStart":
            use = (data.get("start") or {}).get("toolUse")
            if not isinstance(use, Mapping):
                return []
            return [CompletionChunk(tool_calls=(ToolDelta(index, use.get("toolUseId"), use.get("name")),))]
        if name == "contentBlockStop":
            return self._stop(index)
        if name == "messageStop":
            self.ended = True
            raw_finish = data.get("stopReason")
            more = data.get("additionalModelResponseFields")
            extra = {"additionalModelResponseFields": more} if more else {}
            return [CompletionChunk(finish=FINISH.get(raw_finish or "", "unknown"), raw_finish=raw_finish, extra=extra)]
        if name == "metadata":
            usage = data.get("usage") or None
            extra = {key: data[key] for key in ("usage", "metrics", "trace") if data.get(key)}
            return [CompletionChunk(usage=read_usage(usage), extra=extra)]
        if name is not None and name.startswith("!"):
            self.fault = fault_error(data, status=None, kind=name[1:])
        return []

    def finish(self, _done: bool) -> list[CompletionChunk]:
        """Return nothing: no chunk is pending at the end."""
        return []

    def _delta(self, index: int, delta: Mapping[str, Any]) -> list[CompletionChunk]:
        if isinstance(delta.get("text"), str):
            return [CompletionChunk(delta["text"])]
        use = delta.get("toolUse")
        if isinstance(use, Mapping):
            return [CompletionChunk(tool_calls=(ToolDelta(index, arguments=use.get("input") or ""),))]
        thought = delta.get("reasoningContent")
        if not isinstance(thought, Mapping):
            return []
        buffered = self._thoughts.setdefault(index, {})
        for key in ("text", "signature", "redactedContent"):
            buffered[key] = buffered.get(key, "") + (thought.get(key) or "")
        if thought.get("text"):
            return [CompletionChunk(reasoning=thought["text"])]
        return []

    def _stop(self, index: int) -> list[CompletionChunk]:
        buffered = self._thoughts.pop(index, None)
        if buffered is None:
            return []
        content: dict[str, Any] = {"reasoningText": {"text": buffered["text"], "signature": buffered["signature"]}}
        if buffered["redactedContent"]:
            content = {"redactedContent": buffered["redactedContent"]}
        return [CompletionChunk(parts=(Reasoning(buffered["text"], {NAME: {"reasoningContent": content}}),))]


def _path(model: str, _capabilities: Capabilities, stream: bool) -> str:
    return f"/model/{url_path(model, one_segment=True)}/{'converse-stream' if stream else 'converse'}"


def _error_kind(headers: Mapping[str, str]) -> str:
    lower = {name.lower(): value for name, value in headers.items()}
    return lower.get("x-amzn-errortype", "").partition(":")[0]


CODEC = Codec(
    NAME,
    path=_path,
    encode=encode_body,
    decode=decode_body,
    events=lambda _plan: ConverseEvents(),
    read_usage=read_usage,
    framing=EventStreamDecoder,
    error_kind=_error_kind,
    tool_rule="closed",
)

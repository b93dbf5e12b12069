"""Read an answer of Responses, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slipform.codecs.answer import Finishes, arguments_text, at_tier, build_answer, count, details_of, rest_of, usage_of
from slipform.codecs.openai_responses.encode import NAME
from slipform.codecs.request_fields import tagged
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelResponse, Opaque, Part, Reasoning, Text, ToolCall, ToolDelta, Usage
from slipform.ir.logprobs import LOGPROBS
from slipform.ir.parts import ITEM_ID, MESSAGE
from slipform.ir.response import ENVELOPE

FINISH: Finishes = {
    "completed": "stop",
    "max_output_tokens": "length",
    "max_messages": "length",
    "content_filter": "content_filter",
    "steered": "pause",
    "queued": "pause",
    "in_progress": "pause",
    "cancelled": "error",
    "failed": "error",
}
_MESSAGE = frozenset({"type", "role", "content"})
PHASE = "phase"
_CALL = frozenset({"type", "call_id", "name", "arguments", "status"})
_OWN = frozenset(
    {
        "id", "object", "status", "error", "incomplete_details", "output", "output_text", "model", "text", "tools",
        "tool_choice", "metadata", "previous_response_id", "conversation",
    }
)  # fmt: skip
"""Fields that slipform writes itself: the content, and the request as the caller wrote it."""
_ECHOED = frozenset(
    {
        "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details", "output", "usage",
        "model", "text", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "instructions", "temperature",
        "top_p", "max_output_tokens", "metadata", "truncation", "output_text",
    }
)  # fmt: skip


def decode_body(data: Mapping[str, Any], plan: SchemaChannel) -> ModelResponse:
    """Return a whole answer."""
    if data.get("status") == "failed":
        raise fault_error(data.get("error") or {"message": "The response failed"}, status=None)
    refusals: list[str] = []
    parts = [
        part
        for item in data.get("output") or ()
        for part in read_item(item, refusals, shaped=plan.strategy is not None)
    ]
    raw_finish, reason = finish_words(data)
    usage = data.get("usage") or None
    extra = {
        **rest_of(data, _ECHOED, usage),
        **_envelope(data),
        **_logprobs(data.get("output") or (), shaped=plan.strategy is not None),
    }
    return build_answer(
        plan,
        parts,
        finish=FINISH.get(reason or "", "unknown"),
        raw_finish=raw_finish,
        refusal="".join(refusals) or None,
        usage=at_tier(read_usage(usage), data.get("service_tier")),
        model=data.get("model"),
        id_=data.get("id"),
        extra=extra,
    )


def _envelope(response: Mapping[str, Any]) -> dict[str, Any]:
    fields = rest_of(response, _OWN)
    fields["text"] = {key: value for key, value in details_of(response, "text").items() if key != "format"}
    return {ENVELOPE: {NAME: fields}}


def finish_words(data: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the status with its reason as one word, and the word that determines the finish reason.

    >>> finish_words({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}})
    ('incomplete:max_output_tokens', 'max_output_tokens')
    """
    details = data.get("incomplete_details")
    status = data.get("status")
    reason = None
    if isinstance(details, Mapping) and status == "incomplete":
        reason = details.get("reason")
    if reason:
        return (f"{status}:{reason}", reason)
    return (status, status)


def read_item(item: Any, refusals: list[str], *, shaped: bool) -> list[Part]:
    """Return one output item; if a shape is requested, commentary before the answer is kept separate from it."""
    if not isinstance(item, Mapping):
        return []
    kind = item.get("type")
    if kind == "message":
        if shaped and is_commentary(item):
            return [Opaque(NAME, item)]
        return list[Part](_message(item, refusals))
    if kind == "function_call":
        return [read_call(item)]
    if kind == "reasoning":
        return [Reasoning(reasoning_text(item), {NAME: dict(item)})]
    return [Opaque(NAME, item)]


def read_call(item: Mapping[str, Any]) -> ToolCall:
    """Return a function call; results refer to its `call_id`, not to its `id`."""
    extra = {key: value for key, value in item.items() if key not in _CALL and value is not None}
    identity = str(item.get("call_id") or item.get("id") or "")
    name = str(item.get("name") or "")
    arguments = arguments_text(item.get("arguments"))
    return ToolCall(identity, name, arguments, tagged(NAME, extra))


def is_commentary(item: Mapping[str, Any]) -> bool:
    """Return whether a message is commentary before the final answer."""
    return item.get("phase") == "commentary"


def _message(item: Mapping[str, Any], refusals: list[str]) -> list[Text]:
    parts: list[Text] = []
    fields = {key: value for key, value in item.items() if key not in _MESSAGE and value is not None}
    message_fields = {MESSAGE: fields} if fields else {}
    for piece in item.get("content") or ():
        if not isinstance(piece, Mapping):
            continue
        if piece.get("type") == "refusal":
            refusals.append(str(piece.get("refusal") or ""))
        elif isinstance(piece.get("text"), str):
            noted = {"annotations": piece["annotations"]} if piece.get("annotations") else {}
            parts.append(Text(piece["text"], tagged(NAME, {**noted, **message_fields})))
    return parts


def _logprobs(items: Iterable[Any], *, shaped: bool) -> dict[str, Any]:
    """Return the token probabilities of all texts, in the common form of answers."""
    messages = [item for item in items if isinstance(item, Mapping) and item.get("type") == "message"]
    content = [
        entry
        for item in messages
        if not (shaped and is_commentary(item))
        for piece in _pieces(item, "content")
        for entry in piece.get("logprobs") or ()
    ]
    return {LOGPROBS: {"content": content}} if content else {}


def reasoning_text(item: Mapping[str, Any]) -> str:
    """Return the text of a reasoning item: its full text if it has one, else its summary."""
    full = [str(piece.get("text") or "") for piece in _pieces(item, "content")]
    summary = [str(piece.get("text") or "") for piece in _pieces(item, "summary")]
    return "".join(full) or "".join(summary)


def _pieces(item: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    pieces = item.get(key)
    if isinstance(pieces, list):
        return [piece for piece in pieces if isinstance(piece, Mapping)]
    return []


def read_usage(usage: Mapping[str, Any] | None) -> Usage | None:
    """Return the usage.

    >>> read_usage({"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}).total
    5
    """
    if not isinstance(usage, Mapping):
        return None
    return usage_of(
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count(details_of(usage, "input_tokens_details").get("cached_tokens")),
        count(details_of(usage, "output_tokens_details").get("reasoning_tokens")),
        count(usage.get("total_tokens")),
    )


_NOTHING: Mapping[str, Any] = {}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_THINKING = frozenset({"response.reasoning_summary_text.delta", "response.reasoning_text.delta"})


class ResponsesEvents:
    """Reads the events of a Responses stream; the type in the data counts, not the name of the event."""

    __slots__ = ("_commentary", "_emitted_items", "_phases", "_shaped", "_streamed_fields", "ended", "fault")

    text_key = arguments_key = b""

    def __init__(self, *, shaped: bool) -> None:
        self._shaped = shaped
        self.ended = False
        self.fault: UpstreamError | None = None
        self._commentary: set[Any] = set()
        self._phases: dict[Any, Any] = {}
        """The phases of the messages in the turn, by their position: commentary, or the final answer."""
        self._streamed_fields: set[tuple[str, Any]] = set()
        self._emitted_items: set[Any] = set()

    def _text(self, at: Any, data: Any) -> list[CompletionChunk]:
        if at in self._commentary:
            return []
        extra = self._item_fields(at, data)
        self._emitted_items.add(at)
        if logprobs := data.get("logprobs"):
            extra = {**extra, LOGPROBS: {"content": logprobs}}
        return [CompletionChunk(data.get("delta") or "", extra=extra)]

    def _refusal(self, at: Any, data: Any) -> list[CompletionChunk]:
        extra = self._item_fields(at, data)
        self._emitted_items.add(at)
        return [CompletionChunk(refusal=data.get("delta") or "", extra=extra)]

    def _arguments(self, at: Any, data: Any, *, is_whole: bool) -> list[CompletionChunk]:
        """Return a piece of a call's arguments; all of them if a server sends them only when they are whole."""
        if is_whole and ("arguments", at) in self._streamed_fields:
            return []
        self._streamed_fields.add(("arguments", at))
        arguments = data.get("arguments" if is_whole else "delta") or ""
        return [CompletionChunk(tool_calls=(ToolDelta(at, arguments=arguments),))]

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """Return the chunks of one event."""
        kind = data.get("type") or name or ""
        at = data.get("output_index")
        if kind == "response.output_text.delta":
            return self._text(at, data)
        if kind in ("response.function_call_arguments.delta", "response.function_call_arguments.done"):
            return self._arguments(at, data, is_whole=kind.endswith("done"))
        if kind in _THINKING:
            return [self._thought(at, data)]
        if kind == "response.refusal.delta":
            return self._refusal(at, data)
        if kind == "response.output_item.added":
            return self._added(at, data.get("item") or {})
        if kind == "response.output_item.done":
            return self._done(at, data.get("item") or {})
        if kind in _TERMINAL:
            return self._end(data.get("response") or {}, kind)
        if kind in ("response.created", "response.queued"):
            response = data.get("response") or {}
            return [CompletionChunk(model=response.get("model"), id=response.get("id"), extra=_envelope(response))]
        if kind == "error" or data.get("error"):
            self.fault = fault_error(data, status=None)
        elif data.get("object") == "response":
            # A server that does not stream sends the whole response as one event.
            return self._end(data, "response.completed")
        return []

    def finish(self, _done: bool) -> list[CompletionChunk]:
        """Return nothing: no chunk is pending at the end."""
        return []

    def _item_fields(self, at: Any, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the item that a piece of a message begins; empty for later pieces."""
        if at in self._emitted_items or not data.get("item_id"):
            return _NOTHING
        phase = {PHASE: self._phases[at]} if at in self._phases else {}
        return {NAME: {ITEM_ID: data["item_id"], **phase}}

    def _thought(self, at: Any, data: Mapping[str, Any]) -> CompletionChunk:
        """Return a piece of reasoning; the first names its item: an encrypted item is only valid with its own id."""
        text = data.get("delta") or ""
        is_new = ("reasoning", at) not in self._streamed_fields
        self._streamed_fields.add(("reasoning", at))
        extra = {NAME: {ITEM_ID: data["item_id"]}} if is_new and data.get("item_id") else {}
        return CompletionChunk(reasoning=text, extra=extra)

    def _added(self, at: Any, item: Mapping[str, Any]) -> list[CompletionChunk]:
        if self._shaped and item.get("type") == "message" and is_commentary(item):
            self._commentary.add(at)
        if item.get("type") == "message" and item.get("phase"):
            self._phases[at] = item["phase"]
        if item.get("type") != "function_call":
            return []
        self._emitted_items.add(at)
        call = read_call({**item, "arguments": ""})
        return [CompletionChunk(tool_calls=(ToolDelta(at, call.id or None, call.name or None, "", call.extra),))]

    def _done(self, at: Any, item: Mapping[str, Any]) -> list[CompletionChunk]:
        """Return the parts of an item that were not streamed: all of it, or only its opaque parts."""
        kind = item.get("type")
        refusals: list[str] = []
        if kind == "message" and at in self._emitted_items:
            message_parts = _message(item, refusals)
            if not message_parts or not message_parts[-1].extra:
                return []
            return [CompletionChunk(parts=(Text("", message_parts[-1].extra),))]
        chunks: list[CompletionChunk] = []
        for part in read_item(item, refusals, shaped=self._shaped):
            if isinstance(part, ToolCall):
                arguments = "" if ("arguments", at) in self._streamed_fields else part.arguments
                chunks.append(CompletionChunk(tool_calls=(ToolDelta(at, part.id, part.name, arguments, part.extra),)))
            elif isinstance(part, Text):
                extra = _logprobs((item,), shaped=False)
                chunks.append(CompletionChunk(part.text, parts=(Text("", part.extra),), extra=extra))
            elif isinstance(part, Reasoning):
                text = "" if ("reasoning", at) in self._streamed_fields else part.text
                chunks.append(CompletionChunk(reasoning=text, parts=(part,)))
            elif isinstance(part, Opaque):
                chunks.append(CompletionChunk(parts=(part,)))
        self._emitted_items.add(at)
        if refusals:
            chunks.append(CompletionChunk(refusal="".join(refusals)))
        return chunks

    def _end(self, response: Mapping[str, Any], kind: str) -> list[CompletionChunk]:
        if kind == "response.failed" or response.get("status") == "failed":
            self.fault = fault_error(response.get("error") or {"message": "The response failed"}, status=None)
        self.ended = True
        chunks: list[CompletionChunk] = []
        if not self._emitted_items:
            for at, item in enumerate(response.get("output") or ()):
                chunks += self._done(at, item)
        raw_finish, reason = finish_words({"status": kind.removeprefix("response."), **response})
        usage = response.get("usage") or None
        extra = {"usage": usage, **_envelope(response)} if usage else _envelope(response)
        if response.get("service_tier"):
            extra["service_tier"] = response["service_tier"]
        chunks.append(
            CompletionChunk(
                finish=FINISH.get(reason or "", "unknown"),
                raw_finish=raw_finish,
                usage=at_tier(read_usage(usage), response.get("service_tier")),
                model=response.get("model"),
                id=response.get("id"),
                extra=extra,
            )
        )
        return chunks

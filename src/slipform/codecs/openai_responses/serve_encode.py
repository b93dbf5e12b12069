"""Write a Responses answer, whole or streamed, for a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.codec import DECLINED, ServedRequest, Stamp, reasoning_parts, refusal_text
from slipform.codecs.openai_responses.encode import NAME
from slipform.codecs.request_fields import dumps
from slipform.codecs.vendor_errors import openai_error
from slipform.errors import SlipformError
from slipform.ir import CompletionChunk, FinishReason, ModelResponse, NamedTool, ToolDelta, Usage
from slipform.ir.choice_merge import CallTable, OpenCall
from slipform.ir.response import resolve_finish

_REASONS: dict[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}


def text_part(text: str) -> dict[str, Any]:
    """A piece of text in a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    """A refusal in a message."""
    return {"type": "refusal", "refusal": text}


def message_item(identity: str, content: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    """A message of the assistant's."""
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": content}


def reasoning_item(identity: str, text: str) -> dict[str, Any]:
    """Thinking, as a summary."""
    return {"id": identity, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}] if text else []}


def call_item(identity: str, call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    """A function call."""
    item = {"id": identity, "type": "function_call", "call_id": call_id, "name": name}
    return {**item, "arguments": arguments, "status": status}


def encode_usage(usage: Usage) -> dict[str, Any] | None:
    """Usage as Responses counts it, or nothing when nothing is known."""
    if usage == Usage():
        return None
    input_, output = usage.input or 0, usage.output or 0
    return {
        "input_tokens": input_,
        "input_tokens_details": {"cached_tokens": usage.cached or 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.total if usage.total is not None else input_ + output,
    }


def response_object(
    served: ServedRequest,
    identity: str,
    model: str | None,
    created: int,
    *,
    finish: FinishReason | None,
    output: list[dict[str, Any]],
    usage: Usage,
) -> dict[str, Any]:
    """The response; without a finish reason it is still in progress."""
    request = served.request
    reason = _REASONS.get(finish) if finish is not None else None
    status = "in_progress" if finish is None else "incomplete" if reason else "completed"
    choice = request.tool_choice
    return {
        "id": identity,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "metadata": dict(request.metadata),
        "model": model or request.model,
        "output": output,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "text": {"format": _format(served)},
        "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice or "auto",
        "tools": [],
        "usage": encode_usage(usage),
    }


def _format(served: ServedRequest) -> dict[str, Any]:
    wanted = served.request.response_format
    if wanted is None:
        return {"type": "json_object" if served.request.json_mode else "text"}
    spec = wanted.json_schema
    return {"type": "json_schema", "name": spec.name, "schema": spec.schema, "strict": wanted.strict}


class ResponsesStreamEncoder:
    """Writes the events of one streamed answer: every item is announced before its pieces and closed once.

    Thinking and text are one item each; a call is an item from the moment its name is known.
    """

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._served = served
        self._created = stamp.seconds()
        self._id = f"resp_{stamp.new_id()}"
        self._model: str | None = None
        self._begun = False
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._text = _Item()
        self._refusal = _Item()
        self._thought = _Item()
        self._calls = CallTable()
        self._at: dict[int, int] = {}
        self._finish: FinishReason = "stop"
        self._usage = Usage()

    def feed(self, chunk: CompletionChunk) -> bytes:
        """The bytes for one chunk."""
        if chunk.choice != 0:
            return b""
        if chunk.usage is not None:
            self._usage = chunk.usage
        out = [self._begin(chunk)]
        if chunk.reasoning:
            out += self._think(chunk.reasoning)
        if chunk.text:
            out += self._say(chunk.text)
        refusal = chunk.refusal or (DECLINED if chunk.finish == "refusal" and not self._refusal.pieces else "")
        if refusal:
            out += self._refuse(refusal)
        for delta in chunk.tool_calls:
            out += self._call(delta)
        if chunk.finish is not None:
            self._finish = chunk.finish
        return b"".join(out)

    def feed_text(self, text: str) -> bytes:
        """The bytes for one piece of text."""
        return self.feed(CompletionChunk(text))

    def finish(self) -> bytes:
        """The ends of all items and of the response."""
        out = [self._begin(CompletionChunk())]
        if not self._items:
            out += self._say("")
        for call in self._calls.calls:
            out += self._open_call(call) if call.position not in self._at else []
        for at in range(len(self._items)):
            out += self._end_item(at)
            out.append(self._event("response.output_item.done", {"output_index": at, "item": self._items[at]}))
        finish = resolve_finish(self._finish, bool(self._calls.calls), "".join(self._refusal.pieces))
        kind = "response.incomplete" if finish in ("length", "content_filter") else "response.completed"
        out.append(self._event(kind, {"response": {**self._response(finish), **self.extra}}))
        return b"".join(out)

    def fail(self, error: SlipformError) -> bytes:
        """An error after the stream has begun; flat, as this API writes it."""
        body = openai_error(error)
        return self._event("error", {**{key: body["error"].get(key) for key in ("code", "message", "param")}, **body})

    def keep_alive(self) -> bytes:
        """A comment."""
        return b": keep-alive\n\n"

    def _response(self, finish: FinishReason | None) -> dict[str, Any]:
        output = list(self._items) if finish is not None else []
        return response_object(
            self._served, self._id, self._model, self._created, finish=finish, output=output, usage=self._usage
        )

    def _begin(self, chunk: CompletionChunk) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        self._id, self._model = chunk.id or self._id, chunk.model
        response = {"response": self._response(None)}
        return self._event("response.created", response) + self._event("response.in_progress", response)

    def _add(self, item: dict[str, Any], done: dict[str, Any]) -> tuple[int, bytes]:
        """Announce an item; `done` is what it will be, filled in as it grows."""
        at = len(self._items)
        self._items.append(done)
        return at, self._event("response.output_item.added", {"output_index": at, "item": item})

    def _think(self, text: str) -> list[bytes]:
        out: list[bytes] = []
        thought = self._thought
        if thought.at is None:
            identity = f"rs_{self._id}"
            thought.at, event = self._add(reasoning_item(identity, ""), reasoning_item(identity, ""))
            part = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
            out += [event, self._event("response.reasoning_summary_part.added", {**self._where(thought.at), **part})]
        thought.pieces.append(text)
        fields = {**self._where(thought.at), "summary_index": 0, "delta": text}
        return [*out, self._event("response.reasoning_summary_text.delta", fields)]

    def _say(self, text: str) -> list[bytes]:
        out = self._open_part(self._text, text_part(""))
        self._text.pieces.append(text)
        fields = {**self._where(self._text.at), "content_index": self._text.content, "delta": text, "logprobs": []}
        return [*out, self._event("response.output_text.delta", fields)] if text else out

    def _refuse(self, text: str) -> list[bytes]:
        out = self._open_part(self._refusal, refusal_part(""))
        self._refusal.pieces.append(text)
        fields = {**self._where(self._refusal.at), "content_index": self._refusal.content, "delta": text}
        return [*out, self._event("response.refusal.delta", fields)]

    def _open_part(self, part: _Item, content: dict[str, Any]) -> list[bytes]:
        """Make sure that the message and this part of it have been announced."""
        if part.at is not None:
            return []
        out: list[bytes] = []
        other = self._refusal if part is self._text else self._text
        part.at = other.at
        if part.at is None:
            identity = f"msg_{self._id}"
            part.at, event = self._add(message_item(identity, [], "in_progress"), message_item(identity, []))
            out.append(event)
        part.content = len(self._items[part.at]["content"])
        self._items[part.at]["content"].append(content)
        fields = {**self._where(part.at), "content_index": part.content, "part": dict(content)}
        return [*out, self._event("response.content_part.added", fields)]

    def _call(self, delta: ToolDelta) -> list[bytes]:
        call, _ = self._calls.place(delta)
        call.add(delta)
        at = self._at.get(call.position)
        if at is None:
            return self._open_call(call) if call.name is not None else []
        if not delta.arguments:
            return []
        return [self._event("response.function_call_arguments.delta", {**self._where(at), "delta": delta.arguments})]

    def _open_call(self, call: OpenCall) -> list[bytes]:
        identity = f"fc_{self._id}_{call.position}"
        known = call.known_id(self._id)
        name = call.name or ""
        at, event = self._add(call_item(identity, known, name, "", "in_progress"), call_item(identity, known, name, ""))
        self._at[call.position] = at
        held = "".join(call.pieces)
        if not held:
            return [event]
        return [event, self._event("response.function_call_arguments.delta", {**self._where(at), "delta": held})]

    def _end_item(self, at: int) -> list[bytes]:
        if at == self._thought.at:
            return self._end_thought(at)
        out: list[bytes] = []
        for part, kind in ((self._text, "output_text"), (self._refusal, "refusal")):
            if at == part.at:
                out += self._end_part(part, at, kind)
        for call in self._calls.calls:
            if at == self._at[call.position]:
                out += self._end_call(call, at)
        return out

    def _end_thought(self, at: int) -> list[bytes]:
        text = "".join(self._thought.pieces)
        part = {"type": "summary_text", "text": text}
        self._items[at]["summary"] = [part]
        where = {**self._where(at), "summary_index": 0}
        return [
            self._event("response.reasoning_summary_text.done", {**where, "text": text}),
            self._event("response.reasoning_summary_part.done", {**where, "part": part}),
        ]

    def _end_part(self, part: _Item, at: int, kind: str) -> list[bytes]:
        text = "".join(part.pieces)
        whole = text_part(text) if kind == "output_text" else refusal_part(text)
        self._items[at]["content"][part.content] = whole
        where = {**self._where(at), "content_index": part.content}
        said: dict[str, Any] = {"text": text, "logprobs": []} if kind == "output_text" else {"refusal": text}
        return [
            self._event(f"response.{kind}.done", {**where, **said}),
            self._event("response.content_part.done", {**where, "part": whole}),
        ]

    def _end_call(self, call: OpenCall, at: int) -> list[bytes]:
        arguments = "".join(call.pieces) or "{}"
        self._items[at]["arguments"] = arguments
        fields = {**self._where(at), "name": call.name or "", "arguments": arguments}
        return [self._event("response.function_call_arguments.done", fields)]

    def _where(self, at: int | None) -> dict[str, Any]:
        return {"item_id": self._items[at or 0]["id"], "output_index": at or 0}

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + dumps(event) + b"\n\n"


class _Item:
    """A part of the answer that grows: where it stands and what it holds."""

    __slots__ = ("at", "content", "pieces")

    def __init__(self) -> None:
        self.at: int | None = None
        self.content = 0
        self.pieces: list[str] = []


def encode_answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    """The body of a whole answer."""
    identity = response.id or f"resp_{stamp.new_id()}"
    output, created = _output(response, identity), stamp.seconds()
    return response_object(
        served, identity, response.model, created, finish=response.finish, output=output, usage=response.usage
    )


def _output(response: ModelResponse, identity: str) -> list[dict[str, Any]]:
    output = [
        dict(part.opaque[NAME]) if NAME in part.opaque else reasoning_item(f"rs_{identity}_{at}", part.text)
        for at, part in enumerate(reasoning_parts(response))
    ]
    refusal = refusal_text(response)
    content = [text_part(response.text)] if response.text or not (refusal or response.tool_calls) else []
    if refusal is not None:
        content.append(refusal_part(refusal))
    if content:
        output.append(message_item(f"msg_{identity}", content))
    for at, call in enumerate(response.tool_calls):
        known = call.extra.get(NAME, {})
        output.append({**call_item(f"fc_{identity}_{at}", call.id, call.name, call.arguments), **known})
    return output

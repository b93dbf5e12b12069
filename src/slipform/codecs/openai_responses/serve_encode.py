"""Write a Responses answer, whole or streamed, for a client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from slipform.codecs.answer import envelope_of, with_vendor_counts
from slipform.codecs.codec import DECLINED, ECHO, ServedRequest, Stamp, refusal_text
from slipform.codecs.openai_responses.decode import PHASE, read_usage
from slipform.codecs.openai_responses.encode import MADE_REASONING, NAME, NAMESPACE, OWN_ID, namespace_of
from slipform.codecs.request_fields import dumps
from slipform.codecs.vendor_errors import openai_error
from slipform.errors import SlipformError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    ModelRequest,
    ModelResponse,
    NamedTool,
    Opaque,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
    Usage,
)
from slipform.ir.choice_merge import CallTable, OpenCall
from slipform.ir.logprobs import LOGPROBS
from slipform.ir.parts import ITEM_ID, MESSAGE
from slipform.ir.response import plain_chunks, resolve_finish

_REASONS: dict[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}


def text_part(text: str) -> dict[str, Any]:
    """Return a piece of text in a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def refusal_part(text: str) -> dict[str, Any]:
    """Return a refusal in a message."""
    return {"type": "refusal", "refusal": text}


def message_item(identity: str, content: list[dict[str, Any]], status: str = "completed") -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"id": identity, "type": "message", "role": "assistant", "status": status, "content": content}


def reasoning_item(identity: str, text: str) -> dict[str, Any]:
    """Return reasoning, as a summary."""
    return {"id": identity, "type": "reasoning", "summary": [{"type": "summary_text", "text": text}] if text else []}


def call_item(identity: str, call_id: str, name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    """Return a function call."""
    item = {"id": identity, "type": "function_call", "call_id": call_id, "name": name}
    return {**item, "arguments": arguments, "status": status}


UNIQUE_CALL_IDS = "unique_call_ids"
"""The option of a served request that makes the ids of its answer's calls unique."""


@dataclass(frozen=True, slots=True)
class UniqueCallIds:
    """Replaces ids of calls that the conversation already contains: many servers number them anew in each answer.

    >>> UniqueCallIds(frozenset({"call_0"}), "x").unique_id("call_0")
    'call_slipform_x_b0378962'
    """

    taken: frozenset[str]
    stem: str

    @classmethod
    def of(cls, items: Any) -> UniqueCallIds | None:
        """Return an instance that avoids the ids in these items; None if they contain no calls."""
        ids = [item.get("call_id") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
        taken = frozenset([each for each in ids if isinstance(each, str)])
        return cls(taken, os.urandom(12).hex()) if taken else None

    def unique_id(self, identity: str) -> str:
        """Return the id of a call: its own, unless it is taken."""
        if identity in self.taken:
            return f"call{OWN_ID}{self.stem}_{crc32(identity.encode()):08x}"
        return identity


def _call_id(identity: str, served: ServedRequest) -> str:
    unique_ids = served.options.get(UNIQUE_CALL_IDS)
    return identity if unique_ids is None else unique_ids.unique_id(identity)


def _namespace(name: str | None, served: ServedRequest) -> dict[str, Any]:
    """Return the namespace of a called tool, which another API's vendor does not report."""
    names = (namespace_of(tool) for tool in served.request.tools if tool.name == name)
    namespace = next((each for each in names if each is not None), None)
    return {} if namespace is None else {NAMESPACE: namespace}


def item_id(kind: str, response: str) -> str:
    """Return the id of an item of this kind in a response; that of reasoning shows that it is not OpenAI's.

    >>> item_id("fc", "resp_slipform_1"), item_id("msg", "resp_1"), item_id("rs", "resp_1")
    ('fc_slipform_1', 'msg_resp_1', 'rs_slipform_resp_1')
    """
    if response.startswith(f"resp{OWN_ID}"):
        return kind + response.removeprefix("resp")
    if kind == "rs":
        return f"{MADE_REASONING}{response}"
    return f"{kind}_{response}"


def own_fields(extra: Mapping[str, Any], served: ServedRequest) -> dict[str, Any]:
    """Return the fields of a part from this API's own vendor, without ids if slipform stores the answer."""
    fields = dict(extra.get(NAME, {}))
    if "response_id" not in served.options:
        return fields
    if MESSAGE in fields:
        fields[MESSAGE] = {key: value for key, value in fields[MESSAGE].items() if key != "id"}
    fields.pop("id", None)
    return fields


def encode_usage(usage: Usage, envelope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return usage as Responses counts it, or None if it is unknown."""
    if usage == Usage():
        return None
    input_ = usage.input or 0
    output = usage.output or 0
    encoded: dict[str, Any] = {
        "input_tokens": input_,
        "input_tokens_details": {"cached_tokens": usage.cached or 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.total if usage.total is not None else input_ + output,
    }
    if usage.cost is not None:
        encoded["cost"] = usage.cost
    return with_vendor_counts(encoded, usage, envelope, read_usage)


def response_object(
    served: ServedRequest,
    identity: str,
    model: str | None,
    created: int,
    *,
    finish: FinishReason | None,
    output: list[dict[str, Any]],
    usage: Usage,
    envelope: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the response; without a finish reason it is still in progress.

    It repeats the request as the client wrote it. The vendor's further fields are kept (`envelope`).
    """
    request = served.request
    echo = served.options.get(ECHO, {})
    reason = _REASONS.get(finish) if finish is not None else None
    status = "incomplete" if reason else "completed"
    if finish is None:
        status = "in_progress"
    choice = request.tool_choice
    conversation = served.options.get("conversation")
    return {
        "id": identity,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": _instructions(request, envelope),
        "max_output_tokens": request.max_tokens,
        "metadata": dict(request.metadata),
        "model": model or request.model,
        "output": output,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": served.options.get("previous_response_id"),
        "store": served.options.get("store") is True,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "tool_choice": {"type": "function", "name": choice.name} if isinstance(choice, NamedTool) else choice or "auto",
        "tools": [],
        "reasoning": {"effort": None, "summary": None},
        "truncation": "disabled",
        **echo,
        **_vendor_fields(served, envelope),
        "text": {"format": _format(served), **echo.get("text", {}), **envelope.get("text", {})},
        "usage": encode_usage(usage, envelope),
        **({} if conversation is None else {"conversation": conversation}),
    }


def _vendor_fields(served: ServedRequest, envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vendor's fields of the response, except for those that slipform stores itself."""
    own = {"instructions", "store"} if "response_id" in served.options else {"instructions"}
    return {key: value for key, value in envelope.items() if key not in own}


def _instructions(request: ModelRequest, envelope: Mapping[str, Any]) -> str | None:
    """Return the instructions, if the vendor repeats them as the client wrote them."""
    instructions = envelope.get("instructions")
    first = request.messages[0] if request.messages else None
    if first is not None and first.role == "system" and first.text == instructions:
        return first.text
    return None


def _format(served: ServedRequest) -> dict[str, Any]:
    response_format = served.request.response_format
    if response_format is None:
        return {"type": "json_object" if served.request.json_mode else "text"}
    spec = response_format.json_schema
    return {"type": "json_schema", "name": spec.name, "schema": spec.schema, "strict": response_format.strict}


class ResponsesStreamEncoder:
    """Writes the events of one streamed answer: every item is announced before its pieces and closed once.

    Reasoning, a message and a call are an item each; a call begins once its name is known.
    """

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._served = served
        self._created = stamp.seconds()
        self._own_id: str | None = served.options.get("response_id")
        self._id = self._own_id or f"resp_{stamp.new_id()}"
        self._answer_id: str | None = self._id
        """The base of generated ids for calls without one."""
        self._model: str | None = None
        self._is_started = False
        self._sequence = 0
        self._items: list[dict[str, Any]] = []
        self._growing: list[_Growing] = []
        """The reasoning, texts and refusals among them, in order."""
        self._calls = CallTable()
        self._at: dict[int, int] = {}
        self._finished_items: set[int] = set()
        """The closed items."""
        self._finish: FinishReason = "stop"
        self._refused = False
        self._usage = Usage()
        self._envelope: dict[str, Any] = {}
        self._message_fields: dict[str, Any] = {}
        """The vendor's fields of the message that the chunk begins."""
        self._logprobs: list[Any] = []

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk."""
        if chunk.choice != 0:
            return b""
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.extra:
            self._envelope.update(envelope_of(chunk.extra, NAME))
            phase = chunk.extra.get(NAME, {}).get(PHASE)
            self._message_fields = {PHASE: phase} if phase else {}
        out = [self._begin(chunk)]
        if chunk.reasoning:
            out += self._grow("reasoning", chunk.reasoning, _item_id(chunk))
        logprobs = (chunk.extra.get(LOGPROBS) or {}).get("content") or []
        self._logprobs += logprobs
        if chunk.text:
            out += self._grow("output_text", chunk.text, self._message_id(chunk), logprobs)
        refusal = chunk.refusal or (DECLINED if chunk.finish == "refusal" and not self._refused else "")
        if refusal:
            self._refused = True
            out += self._grow("refusal", refusal, self._message_id(chunk))
        for delta in chunk.tool_calls:
            out += self._call(delta)
        for part in chunk.parts:
            out += self._part(part)
        if chunk.finish is not None:
            self._finish = chunk.finish
        return b"".join(out)

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for one piece of text, or of the arguments of a call."""
        return self.feed(plain_chunks((text,), call)[0])

    def finish(self) -> bytes:
        """Return the ends of all items and of the response."""
        out = [self._begin(CompletionChunk())]
        if not self._items:
            out += self._grow("output_text", "")
        for call in self._calls.calls:
            out += self._open_call(call) if call.position not in self._at else []
        finish = resolve_finish(self._finish, bool(self._calls.calls), "refused" if self._refused else None)
        if self._items and len(self._items) - 1 not in self._finished_items:
            _mark_incomplete(self._items, finish)
        for at in range(len(self._items)):
            out += self._end_item(at)
        kind = "response.incomplete" if finish in ("length", "content_filter") else "response.completed"
        out.append(self._event(kind, {"response": {**self._response(finish), **self.extra}}))
        return b"".join(out)

    def fail(self, error: SlipformError) -> bytes:
        """Return an error event for a stream that has begun; its fields are not nested, as this API requires."""
        body = openai_error(error)
        return self._event("error", {**{key: body["error"].get(key) for key in ("code", "message", "param")}, **body})

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return b": keep-alive\n\n"

    def _response(self, finish: FinishReason | None) -> dict[str, Any]:
        output = list(self._items) if finish is not None else []
        return response_object(
            self._served,
            self._id,
            self._model,
            self._created,
            finish=finish,
            output=output,
            usage=self._usage,
            envelope=self._envelope,
        )

    def _begin(self, chunk: CompletionChunk) -> bytes:
        if self._is_started:
            return b""
        self._is_started = True
        self._id = self._own_id or chunk.id or self._id
        self._answer_id = chunk.id if self._own_id else self._id
        self._model = chunk.model
        response = {"response": self._response(None)}
        return self._event("response.created", response) + self._event("response.in_progress", response)

    def _add(self, item: dict[str, Any], done: dict[str, Any]) -> tuple[int, bytes]:
        """Close the open items and announce the next one; return its index and the events.

        `item` is the item as announced, without content. `done` is the same item in the finished response; the caller
        fills it in while its pieces arrive.
        """
        events: list[bytes] = []
        for part in self._growing:
            if not part.closed:
                events += self._close(part)
        index = len(self._items)
        self._items.append(done)
        events.append(self._event("response.output_item.added", {"output_index": index, "item": item}))
        return index, b"".join(events)

    def _close(self, part: _Growing) -> list[bytes]:
        part.closed = True
        return self._end_item(part.at)

    def _open(self, kind: str) -> _Growing | None:
        """Return the part of this kind that may still grow."""
        return next((each for each in reversed(self._growing) if each.kind == kind and not each.closed), None)

    def _identity(self, prefix: str) -> str:
        """Return an id for the next item of this kind."""
        count = sum(str(item["id"]).startswith(prefix) for item in self._items)
        identity = item_id(prefix, self._id)
        return f"{identity}_{count}" if count else identity

    def _grow(self, kind: str, text: str, identity: str = "", logprobs: list[Any] | None = None) -> list[bytes]:
        out: list[bytes] = []
        part = self._open(kind)
        if part is None:
            part = _Growing(kind)
            out = self._start_reasoning(part, identity) if kind == "reasoning" else self._start_message(part, identity)
            self._growing.append(part)
        part.pieces.append(text)
        if not text:
            return out
        fields = {**self._where(part.at), part.place: part.index, "delta": text}
        if kind == "output_text":
            fields["logprobs"] = logprobs or []
        return [*out, self._event(f"response.{_EVENTS[kind]}.delta", fields)]

    def _message_id(self, chunk: CompletionChunk) -> str:
        """Return the id of the message that a chunk begins, if its vendor has one and stores it; else empty."""
        identity = ""
        if chunk.extra and not self._own_id:
            identity = str(chunk.extra.get(NAME, {}).get(ITEM_ID) or "")
        if any(item["id"] == identity for item in self._items):
            return ""
        return identity

    @property
    def message_ids(self) -> list[str]:
        """Return the ids of the messages so far."""
        return [item["id"] for item in self._items if item["type"] == "message"]

    def _start_reasoning(self, part: _Growing, identity: str) -> list[bytes]:
        identity = identity or self._identity("rs")
        part.at, event = self._add(reasoning_item(identity, ""), reasoning_item(identity, ""))
        fields = {**self._where(part.at), "summary_index": 0, "part": {"type": "summary_text", "text": ""}}
        return [event, self._event("response.reasoning_summary_part.added", fields)]

    def _start_message(self, part: _Growing, identity: str) -> list[bytes]:
        """Announce this part of a message, and the message if none is open to add it to."""
        out: list[bytes] = []
        beside = self._open("refusal" if part.kind == "output_text" else "output_text")
        if beside is not None:
            part.at = beside.at
        else:
            identity = identity or self._identity("msg")
            item = {**message_item(identity, []), **self._message_fields}
            part.at, event = self._add({**item, "content": [], "status": "in_progress"}, item)
            out.append(event)
        content = self._items[part.at]["content"]
        part.index = len(content)
        content.append(text_part("") if part.kind == "output_text" else refusal_part(""))
        fields = {**self._where(part.at), "content_index": part.index, "part": dict(content[-1])}
        return [*out, self._event("response.content_part.added", fields)]

    def _part(self, part: Part) -> list[bytes]:
        """Write a part that arrives whole, or ends one that has grown."""
        if isinstance(part, Text):
            return self._end_text(part)
        if isinstance(part, Opaque):
            # Commentary before an answer of a requested shape is kept separate from it: clients join all texts.
            is_item = part.vendor == NAME and part.data.get("type") != "message"
            return self._whole(part.data) if is_item else []
        if not isinstance(part, Reasoning):
            return []
        thought = self._open("reasoning")
        own = part.opaque.get(NAME)
        if thought is None:
            return self._whole(own) if own else []
        thought.closed = True
        is_own = own is not None and own.get("id") == self._items[thought.at]["id"]
        if own is not None and is_own:
            thought.own = dict(own)
        ended = self._end_item(thought.at)
        # The encrypted reasoning is only valid under its own id, which differs from the announced one.
        if own and not is_own and own.get("encrypted_content"):
            return [*ended, *self._whole(own)]
        return ended

    def _whole(self, item: Mapping[str, Any]) -> list[bytes]:
        at, event = self._add(dict(item), dict(item))
        return [event, *self._end_item(at)]

    def _end_text(self, part: Text) -> list[bytes]:
        own = part.extra.get(NAME, {})
        text = self._open("output_text")
        if text is None:
            last = next((each for each in reversed(self._growing) if each.kind == "output_text"), None)
            if last is not None and own.get("annotations") and not last.annotations:  # sent after the next item began
                last.annotations = list(own["annotations"])
                self._items[last.at]["content"][last.index]["annotations"] = last.annotations
            return []
        text.closed = True
        text.annotations = list(own.get("annotations") or ())
        message_fields = {key: value for key, value in own.get(MESSAGE, {}).items() if key not in ("id", "status")}
        self._items[text.at].update(message_fields)
        where = {**self._where(text.at), "content_index": text.index}
        noted = [
            self._event("response.output_text.annotation.added", {**where, "annotation_index": at, "annotation": each})
            for at, each in enumerate(text.annotations)
        ]
        return [*noted, *self._end_item(text.at)]

    def _call(self, delta: ToolDelta) -> list[bytes]:
        call, _ = self._calls.place(delta)
        call.add(delta)
        at = self._at.get(call.position)
        out: list[bytes] = []
        if at is None:
            out = self._open_call(call) if call.name is not None else []
        elif delta.arguments and at not in self._finished_items:
            fields = {**self._where(at), "delta": delta.arguments}
            out = [self._event("response.function_call_arguments.delta", fields)]
        at = self._at.get(call.position)
        if delta.done and at is not None:
            return [*out, *self._end_item(at)]
        return out

    def _open_call(self, call: OpenCall) -> list[bytes]:
        own = own_fields(call.extra, self._served)
        identity = f"{item_id('fc', self._id)}_{call.position}"
        call_id = _call_id(call.known_id(self._answer_id), self._served)
        item = {**call_item(identity, call_id, call.name or "", ""), **_namespace(call.name, self._served), **own}
        index, announcement = self._add({**item, "status": "in_progress"}, item)
        self._at[call.position] = index
        buffered = "".join(call.pieces)  # the pieces that arrived before the call was announced
        if not buffered:
            return [announcement]
        delta = {**self._where(index), "delta": buffered}
        return [announcement, self._event("response.function_call_arguments.delta", delta)]

    def _end_item(self, at: int) -> list[bytes]:
        """Close an item, once."""
        out: list[bytes] = []
        if at in self._finished_items:
            return out
        self._finished_items.add(at)
        for part in self._growing:
            if at == part.at:
                out += self._end_thought(part) if part.kind == "reasoning" else self._end_content(part)
        for call in self._calls.calls:
            if at == self._at.get(call.position):
                out += self._end_call(call, at)
        return [*out, self._event("response.output_item.done", {"output_index": at, "item": self._items[at]})]

    def _end_thought(self, thought: _Growing) -> list[bytes]:
        """Close the reasoning item."""
        text = "".join(thought.pieces)
        part = {"type": "summary_text", "text": text}
        where = {**self._where(thought.at), "summary_index": 0}
        self._items[thought.at] = thought.own or {**self._items[thought.at], "summary": [part]}
        return [
            self._event("response.reasoning_summary_text.done", {**where, "text": text}),
            self._event("response.reasoning_summary_part.done", {**where, "part": part}),
        ]

    def _end_content(self, part: _Growing) -> list[bytes]:
        text = "".join(part.pieces)
        whole = {**text_part(text), "annotations": part.annotations, "logprobs": self._logprobs}
        done_fields: dict[str, Any] = {"text": text, "logprobs": self._logprobs}
        if part.kind == "refusal":
            whole = refusal_part(text)
            done_fields = {"refusal": text}
        self._items[part.at]["content"][part.index] = whole
        where = {**self._where(part.at), "content_index": part.index}
        return [
            self._event(f"response.{part.kind}.done", {**where, **done_fields}),
            self._event("response.content_part.done", {**where, "part": whole}),
        ]

    def _end_call(self, call: OpenCall, at: int) -> list[bytes]:
        arguments = "".join(call.pieces) or "{}"
        self._items[at]["arguments"] = arguments
        fields = {**self._where(at), "name": call.name or "", "arguments": arguments}
        return [self._event("response.function_call_arguments.done", fields)]

    def _where(self, at: int) -> dict[str, Any]:
        return {"item_id": self._items[at]["id"], "output_index": at}

    def _event(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + dumps(event) + b"\n\n"


_EVENTS = {"reasoning": "reasoning_summary_text", "output_text": "output_text", "refusal": "refusal"}


def _item_id(chunk: CompletionChunk) -> str:
    """Return the id of the reasoning item that a chunk begins, if its vendor has one."""
    item_id = chunk.extra.get(NAME, {}).get(ITEM_ID)
    own = (part.opaque.get(NAME, {}) for part in chunk.parts if isinstance(part, Reasoning))
    return item_id or next((each["id"] for each in own if each.get("id")), "")


class _Growing:
    """Reasoning, or a part of a message, that is growing: its position and its text."""

    __slots__ = ("annotations", "at", "closed", "index", "kind", "own", "pieces", "place")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.place = "summary_index" if kind == "reasoning" else "content_index"
        self.at = 0
        self.index = 0
        self.pieces: list[str] = []
        self.closed = False
        self.own: dict[str, Any] | None = None
        self.annotations: list[Any] = []


def encode_answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    """Return the body of a whole answer."""
    identity = served.options.get("response_id") or response.id or f"resp_{stamp.new_id()}"
    output = _output(response, identity, served)
    _mark_incomplete(output, response.finish)
    return response_object(
        served,
        identity,
        response.model,
        stamp.seconds(),
        finish=response.finish,
        output=output,
        usage=response.usage,
        envelope=envelope_of(response.extra, NAME),
    )


def _mark_incomplete(output: list[dict[str, Any]], finish: FinishReason) -> None:
    """Set the status of the item that was incomplete when the answer was cut off."""
    if finish in _REASONS and output and "status" in output[-1]:
        output[-1]["status"] = "incomplete"


def _output(response: ModelResponse, identity: str, served: ServedRequest) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    refusal = refusal_text(response)
    logprobs = (response.extra.get(LOGPROBS) or {}).get("content") or []
    for part in response.message.parts:
        if isinstance(part, Text):
            _add_text(output, part, item_id("msg", identity), logprobs, own_fields(part.extra, served))
            logprobs = []  # of all texts together: nearly every answer has only one
        elif isinstance(part, ToolCall):
            call_id = _call_id(part.id, served)
            item = call_item(f"{item_id('fc', identity)}_{len(output)}", call_id, part.name, part.arguments)
            output.append({**item, **_namespace(part.name, served), **own_fields(part.extra, served)})
        elif isinstance(part, Reasoning):
            new_item = reasoning_item(f"{item_id('rs', identity)}_{len(output)}", part.text)
            if NAME in part.opaque or part.text:
                output.append(dict(part.opaque.get(NAME) or new_item))
        elif isinstance(part, Opaque) and part.vendor == NAME and part.data.get("type") != "message":
            output.append(dict(part.data))
    if refusal is not None:
        if not output or output[-1]["type"] != "message":
            output.append(message_item(item_id("msg", identity), []))
        output[-1]["content"].append(refusal_part(refusal))
    if not any(item["type"] != "reasoning" for item in output):
        output.append(message_item(item_id("msg", identity), [text_part("")]))
    return output


def _add_text(
    output: list[dict[str, Any]], part: Text, identity: str, logprobs: list[Any], own: dict[str, Any]
) -> None:
    """Add a text to the message it belongs to."""
    fields = {"id": identity, **own.pop(MESSAGE, {})}
    own_ids = (fields["id"], f"{fields['id']}_{len(output) - 1}")
    if not output or output[-1]["type"] != "message" or output[-1]["id"] not in own_ids:
        if any(item.get("id") == fields["id"] for item in output):
            fields["id"] = f"{fields['id']}_{len(output)}"
        output.append({**message_item("", []), **fields})
    output[-1]["content"].append({**text_part(part.text), "logprobs": logprobs, **own})

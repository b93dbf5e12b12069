"""Write a Chat Completions answer, whole or streamed, for a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from slipform.codecs.answer import envelope_of, with_vendor_counts
from slipform.codecs.codec import DECLINED, ServedRequest, Stamp, refusal_text
from slipform.codecs.openai_chat.decode import HAS_REASONING, OF_CHOICE, read_usage
from slipform.codecs.openai_chat.encode import NAME
from slipform.codecs.request_fields import dumps
from slipform.codecs.vendor_errors import openai_error
from slipform.errors import SlipformError
from slipform.ir import (
    CompletionChunk,
    FinishReason,
    ModelResponse,
    NamedTool,
    Opaque,
    Reasoning,
    ToolCall,
    ToolDelta,
    Usage,
)
from slipform.ir.choice_merge import CallTable
from slipform.ir.response import NO_USAGE, plain_chunks

_WORDS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
SOURCES = ("citations", "search_results")
"""Fields in which some of this API's servers name the sources of an answer."""
_OF_HEAD = ("service_tier", "system_fingerprint")
_PASSED = (*_OF_HEAD, *SOURCES)
_OF_PARTS = (OF_CHOICE, HAS_REASONING, "usage")
"""Fields of an envelope that are written elsewhere."""
_dumps: Final = orjson.dumps


def encode_answer(response: ModelResponse, served: ServedRequest, stamp: Stamp) -> dict[str, Any]:
    """Return the body of a whole answer."""
    answer: dict[str, Any] = {
        "id": response.id or f"chatcmpl-{stamp.new_id()}",
        "object": "chat.completion",
        "created": response.extra.get("created") or stamp.seconds(),
        "model": response.model or served.request.model,
        "choices": [_choice(each, index, served) for index, each in enumerate((response, *response.others))],
    }
    for key in _PASSED:
        if key in response.extra:
            answer[key] = response.extra[key]
    envelope = envelope_of(response.extra, NAME)
    answer.update({key: value for key, value in envelope.items() if key not in _OF_PARTS})
    usage = encode_usage(response.usage, envelope)
    if usage is not None:
        answer["usage"] = usage
    return answer


def _choice(response: ModelResponse, index: int, served: ServedRequest) -> dict[str, Any]:
    is_older = _has_functions(served) and bool(response.tool_calls)
    refusal = refusal_text(response)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": response.text if response.text or not (refusal or response.tool_calls) else None,
        "refusal": refusal,
    }
    calls = [encode_call(call) for call in response.tool_calls]
    for part in response.parts:
        if isinstance(part, Reasoning) and NAME in part.opaque:
            message.update(part.opaque[NAME])
        elif isinstance(part, Opaque) and is_custom_call(part):
            calls.append(dict(part.data))
    if response.reasoning:
        message["reasoning_content"] = response.reasoning
    if is_older:
        message["function_call"] = encode_call(response.tool_calls[0])["function"]
    elif calls:
        message["tool_calls"] = calls
    if NAME in response.extra:  # for example annotations
        message.update(response.extra[NAME])
    word = _WORDS.get(response.finish, "stop")
    if calls and word in ("stop", "tool_calls"):
        word = _calls_finish_reason(served, response.raw_finish)
    return {
        **envelope_of(response.extra, NAME).get(OF_CHOICE, {}),
        "index": index,
        "message": message,
        "logprobs": response.extra.get("logprobs"),
        "finish_reason": word,
    }


def _calls_finish_reason(served: ServedRequest, raw: str | None) -> str:
    """Return the finish reason of an answer with calls; OpenAI ends a call forced by its name with `stop`."""
    if isinstance(served.request.tool_choice, NamedTool) and raw == "stop":
        return raw
    return "function_call" if _has_functions(served) else "tool_calls"


def is_custom_call(part: Opaque) -> bool:
    """Whether a part is a call of a tool that is not a function."""
    return part.vendor == NAME and "custom" in part.data


def _has_functions(served: ServedRequest) -> bool:
    """Whether the client has offered `functions`, the predecessor of tools, and reads `function_call`."""
    return served.options.get("functions") is True


def encode_call(call: ToolCall) -> dict[str, Any]:
    """Return one whole tool call."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function, **call.extra.get(NAME, {})}


def encode_usage(usage: Usage, envelope: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return usage as Chat Completions counts it, or None if it is unknown."""
    if usage.total is None and usage == NO_USAGE:
        return None
    input_ = usage.input or 0
    output = usage.output or 0
    total = usage.total if usage.total is not None else input_ + output
    encoded: dict[str, Any] = {"prompt_tokens": input_, "completion_tokens": output, "total_tokens": total}
    if usage.cached is not None:
        encoded["prompt_tokens_details"] = {"cached_tokens": usage.cached}
    if usage.reasoning is not None:
        encoded["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    if usage.cost is not None:
        encoded["cost"] = usage.cost
    return with_vendor_counts(encoded, usage, envelope, read_usage) if envelope else encoded


def _is_whole(delta: ToolDelta) -> bool:
    return delta.done and delta.name is not None and len(delta.arguments) > 1


def _split_whole_calls(chunk: CompletionChunk) -> tuple[CompletionChunk, CompletionChunk]:
    """Split a chunk with whole calls in two, the second with the last character of each.

    Instructor 1.3 reads the list in a call only from the piece after the one with its bracket.
    """
    first = [replace(each, arguments=each.arguments[:-1], done=False) for each in chunk.tool_calls if _is_whole(each)]
    rest = [ToolDelta(each.index, None, None, each.arguments[-1:]) for each in chunk.tool_calls if _is_whole(each)]
    others = [each for each in chunk.tool_calls if not _is_whole(each)]
    head = chunk._replace(tool_calls=(*others, *first), finish=None, raw_finish=None, usage=None)
    return head, CompletionChunk("", "", "", tuple(rest), chunk.finish, chunk.raw_finish, chunk.usage, chunk.choice)


class ChatStreamEncoder:
    """Writes the events of one streamed answer; tool calls are numbered from 0 whatever numbers they have."""

    def __init__(self, served: ServedRequest, stamp: Stamp) -> None:
        self.extra: Mapping[str, Any] = {}
        self._served = served
        self._model = served.request.model
        self._usage_wanted = served.options.get("include_usage") is True
        self._has_functions = _has_functions(served)
        self._created = stamp.seconds()
        self._head: dict[str, Any] = {}
        self._id = f"chatcmpl-{stamp.new_id()}"
        self._calls: dict[int, CallTable] = {}
        self._buffered_arguments: dict[tuple[int, int], str] = {}
        self._started_calls: set[tuple[int, int]] = set()
        self._roles: set[int] = set()
        self._ended: set[int] = set()
        self._refused: set[int] = set()
        self._usage: Usage | None = None
        self._envelope: dict[str, Any] = {}
        """The vendor's fields around its answer."""
        self._written_fields: set[str] = set()
        """The names of those fields that an event has contained."""
        self._around: tuple[bytes, bytes] | None = None
        """The bytes before and after the text in an event that only adds text to the first choice."""
        self._around_arguments: dict[int, tuple[bytes, bytes]] = {}
        """The same for arguments, by the index of their call."""

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk."""
        if chunk.only_text and 0 in self._roles:
            return self.feed_text(chunk.text)
        if any(map(_is_whole, chunk.tool_calls)):
            return b"".join(map(self.feed, _split_whole_calls(chunk)))
        if not self._roles:
            self._read_head(chunk)
        if chunk.usage is not None:
            self._usage = chunk.usage
        delta = self._delta(chunk)
        if chunk.parts or chunk.extra:
            self._add_parts(delta, chunk)
            self._read_envelope(chunk.extra)
        word = self._finish_reason(chunk)
        logprobs = chunk.extra.get("logprobs")
        if not delta and word is None and logprobs is None:
            return b""
        index = chunk.choice
        if index not in self._roles:
            self._roles.add(index)
            # OpenAI writes null, not an empty string, for a turn without text.
            delta = {"role": "assistant", "content": None if delta else "", **delta}
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": word}
        fields = self._new_fields()
        if word is None:
            return self._event([choice], extra=fields)
        choice = {**self._envelope.get(OF_CHOICE, {}), **choice}
        return self._event([choice], extra=fields if self._usage_wanted else {**fields, **self.extra})

    def _read_envelope(self, extra: Mapping[str, Any]) -> None:
        """Remember the vendor's fields around the answer; its sources whatever the vendor's API."""
        self._envelope.update({key: extra[key] for key in SOURCES if key in extra})
        self._envelope.update(envelope_of(extra, NAME))

    def _new_fields(self) -> dict[str, Any]:
        """Return the fields of the envelope that no event has contained; clients read them from any event."""
        fields = {
            key: value
            for key, value in self._envelope.items()
            if key not in _OF_PARTS and key not in _OF_HEAD and key not in self._written_fields
        }
        self._written_fields.update(fields)
        return fields

    def _read_head(self, chunk: CompletionChunk) -> None:
        """Read the fields that every event repeats, before the first event."""
        self._id = chunk.id or self._id
        self._model = chunk.model or self._model
        if chunk.extra:
            self._created = chunk.extra.get("created") or self._created
            self._head = {key: chunk.extra[key] for key in _OF_HEAD if key in chunk.extra}

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for one piece of text, or of the arguments of a call."""
        if not text:
            return b""
        if call >= 0:
            around = self._around_arguments.get(call) or self._arguments_event(call)
            if around is None:
                return self.feed(plain_chunks((text,), call)[0])
            return around[0] + _dumps(text) + around[1]
        if self._around is None:
            if 0 not in self._roles:
                return self.feed(CompletionChunk(text))
            self._around = self._text_event()
        before, after = self._around
        return before + _dumps(text) + after

    def finish(self) -> bytes:
        """Return the last events and `[DONE]`."""
        out = b"" if self._ended else self.feed(CompletionChunk(finish="stop"))
        if self._usage_wanted:
            usage = encode_usage(self._usage or Usage(), self._envelope)
            out += self._event([], usage=usage, extra={**self._new_fields(), **self.extra})
        return out + b"data: [DONE]\n\n"

    def fail(self, error: SlipformError) -> bytes:
        """Return an error after the stream has begun."""
        return b"data: " + dumps(openai_error(error)) + b"\n\n"

    def keep_alive(self) -> bytes:
        """Return a comment."""
        return b": keep-alive\n\n"

    def _text_event(self) -> tuple[bytes, bytes]:
        """Return an event with empty text: all events with only text have the same bytes around it."""
        choice = {"index": 0, "delta": {"content": None}, "logprobs": None, "finish_reason": None}
        before, separator, after = self._event([choice]).partition(b'"delta":{"content":')
        return before + separator, after.removeprefix(b"null")

    def _arguments_event(self, index: int) -> tuple[bytes, bytes] | None:
        """Return an event with empty arguments of the call with this index, once the call has begun.

        None for a client that has offered `functions`: its arguments are written under another key.
        """
        if self._has_functions:
            return None
        call, _ = self._calls.setdefault(0, CallTable()).place(ToolDelta(index))
        if (0, call.position) not in self._started_calls:
            return None
        delta = {"tool_calls": [{"index": call.position, "function": {"arguments": None}}]}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        before, separator, after = self._event([choice]).partition(b'"function":{"arguments":')
        around = self._around_arguments[index] = (before + separator, after.removeprefix(b"null"))
        return around

    def _event(
        self,
        choices: list[dict[str, Any]],
        usage: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        event: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            **self._head,
            "choices": choices,
        }
        if self._usage_wanted:
            event["usage"] = usage
        if extra:
            event.update(extra)
        return b"data: " + dumps(event) + b"\n\n"

    def _delta(self, chunk: CompletionChunk) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if chunk.text:
            delta["content"] = chunk.text
        if chunk.reasoning:
            delta["reasoning_content"] = chunk.reasoning
            if HAS_REASONING in envelope_of(chunk.extra, NAME):
                delta["reasoning"] = chunk.reasoning
        if chunk.refusal:
            self._refused.add(chunk.choice)
            delta["refusal"] = chunk.refusal
        elif chunk.finish == "refusal" and chunk.choice not in self._refused:
            delta["refusal"] = DECLINED
        if chunk.tool_calls:
            table = self._calls.setdefault(chunk.choice, CallTable())
            calls = [encoded for each in chunk.tool_calls if (encoded := self._call(each, chunk.choice, table))]
            if self._has_functions:
                first = next((call["function"] for call in calls if call["index"] == 0), None)
                delta |= {"function_call": first} if first is not None else {}
            elif calls:
                delta["tool_calls"] = calls
        return delta

    def _add_parts(self, delta: dict[str, Any], chunk: CompletionChunk) -> None:
        """Add this API's further fields: reasoning details, calls of custom tools, annotations."""
        for part in chunk.parts:
            if isinstance(part, Reasoning) and part.opaque.get(NAME, {}).get("reasoning_details"):
                delta["reasoning_details"] = part.opaque[NAME]["reasoning_details"]
            elif isinstance(part, Opaque) and is_custom_call(part):
                table = self._calls.setdefault(chunk.choice, CallTable())
                call, _ = table.place(ToolDelta(len(table.calls), str(part.data.get("id")), "custom"))
                delta.setdefault("tool_calls", []).append({**part.data, "index": call.position})
        if NAME in chunk.extra:
            delta.update(chunk.extra[NAME])

    def _call(self, delta: ToolDelta, choice: int, table: CallTable) -> dict[str, Any] | None:
        call, _ = table.place(delta)
        key = (choice, call.position)
        if key in self._started_calls:
            if delta.arguments:
                return {"index": call.position, "function": {"arguments": delta.arguments}}
            return None
        arguments = self._buffered_arguments.pop(key, "") + delta.arguments
        if call.name is None:
            # Clients take the name from the first piece, so the pieces wait for it.
            self._buffered_arguments[key] = arguments
            return None
        self._started_calls.add(key)
        self._around_arguments.clear()  # some servers give every call the same index
        function = {"name": call.name, "arguments": arguments}
        encoded = {"index": call.position, "id": call.known_id(self._id), "type": "function", "function": function}
        return {**encoded, **delta.extra.get(NAME, {})}

    def _finish_reason(self, chunk: CompletionChunk) -> str | None:
        if chunk.finish is None or chunk.choice in self._ended:
            return None
        self._ended.add(chunk.choice)
        called = chunk.choice in self._calls and chunk.finish in ("stop", "unknown", "tool_calls")
        if called:
            return _calls_finish_reason(self._served, chunk.raw_finish)
        return _WORDS.get(chunk.finish, "stop")

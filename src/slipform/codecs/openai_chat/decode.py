"""Read an answer of Chat Completions, whole or streamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.answer import (
    FINISH_MISSING,
    Finishes,
    arguments_text,
    at_tier,
    build_answer,
    count,
    details_of,
    rest_of,
    usage_of,
)
from slipform.codecs.openai_chat.encode import NAME
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, ModelResponse, Opaque, Part, Reasoning, Text, ToolCall, ToolDelta, Usage
from slipform.ir.response import ENVELOPE
from slipform.text.strict import compact_json

FINISH: Finishes = {
    "stop": "stop",
    "eos": "stop",
    "": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "error": "error",
}
_CACHED = ("prompt_cache_hit_tokens", "num_cached_tokens", "cached_tokens")
_PLAIN_USAGE = frozenset({"prompt_tokens", "completion_tokens", "total_tokens"})
"""Token counts that every answer of this API has: with no others, the envelope need not keep the usage."""
_ANSWER = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_CHOICE = frozenset({"index", "message", "finish_reason", "delta", "error"})
_CHOICE_EVENT = _CHOICE | {"logprobs"}
OF_CHOICE = "choice"
"""The key of an answer's envelope for the fields of its choice."""
HAS_REASONING = "has_reasoning"
"""The key of a stream's envelope that says that reasoning is also sent as `reasoning` (Groq, OpenRouter)."""
_MESSAGE = frozenset(
    {
        "role", "content", "refusal", "tool_calls", "function_call", "reasoning", "reasoning_content",
        "reasoning_details", "thinking", "token_id", "channel",
    }
)  # fmt: skip


def decode_body(data: dict[str, Any], plan: SchemaChannel) -> ModelResponse:
    """Return a whole answer."""
    choices = [choice for choice in data.get("choices") or () if isinstance(choice, dict)]
    if not choices:
        raise UpstreamError("The response has no choices", details={"category": "unreadable", "retryable": True})
    broken = choices[0].get("error")
    if broken:
        raise fault_error({"error": broken}, status=None)
    others = tuple([_choice(choice, data, SchemaChannel()) for choice in choices[1:]])
    return _choice(choices[0], data, plan, others)


def _choice(
    choice: dict[str, Any], data: dict[str, Any], plan: SchemaChannel, others: tuple[ModelResponse, ...] = ()
) -> ModelResponse:
    """Return one choice as a response, with the vendor's further fields."""
    message = choice.get("message") or {}
    ended = choice.get("finish_reason")
    usage = find_usage(data)
    of_answer = rest_of(data, _ANSWER, usage)
    of_choice = rest_of(choice, _CHOICE)
    extra = {**of_answer, **_created(data), **of_choice}
    is_plain = len(of_answer) == 1 and usage is not None and _PLAIN_USAGE.issuperset(usage)
    if of_choice or (of_answer and not is_plain):
        extra[ENVELOPE] = {NAME: {**of_answer, OF_CHOICE: of_choice}}
    message_fields = rest_of(message, _MESSAGE)
    if message_fields:
        extra.update(message_fields)
        extra[NAME] = message_fields
    return build_answer(
        plan,
        message_parts(message, str(data.get("id") or "")),
        finish=FINISH.get(ended or "", "unknown"),
        raw_finish=ended,
        refusal=message.get("refusal"),
        usage=at_tier(read_usage(usage), data.get("service_tier")),
        model=data.get("model"),
        id_=data.get("id"),
        extra=extra,
        warnings=() if ended else (FINISH_MISSING,),
        others=others,
    )


def message_parts(message: dict[str, Any], answer_id: str) -> list[Part]:
    """Return the parts of the message, in order: reasoning, text, calls."""
    thought, content = split_content(message.get("content"))
    parts: list[Part] = []
    thinking = read_reasoning(message) or thought
    if thinking or message.get("reasoning_details"):
        parts.append(Reasoning(thinking, replayable(message)))
    if content:
        parts.append(Text(content))
    for index, call in enumerate(message.get("tool_calls") or ()):
        parts.append(_call(call, index, answer_id))
    legacy = message.get("function_call")
    if isinstance(legacy, dict) and legacy.get("name"):  # Snowflake has an empty one in every message
        parts.append(ToolCall(made_id(answer_id, 0), str(legacy.get("name")), arguments_text(legacy.get("arguments"))))
    return parts


def made_id(answer_id: str, index: int) -> str:
    """Return an id for a call without one: the same each time the same answer is read."""
    if answer_id:
        return f"call_{answer_id}_{index}"
    return f"call_{index}"


def _call(call: Mapping[str, Any], index: int, answer_id: str) -> Part:
    function = call.get("function")
    if isinstance(function, str):
        return ToolCall(call.get("id") or made_id(answer_id, index), function, arguments_text(call.get("arguments")))
    if not isinstance(function, Mapping):
        return Opaque(NAME, call)
    extra = {NAME: {"extra_content": call["extra_content"]}} if call.get("extra_content") else {}
    name = str(function.get("name") or "")
    arguments = arguments_text(function.get("arguments"))
    return ToolCall(call.get("id") or made_id(answer_id, index), name, arguments, extra)


def split_content(content: Any) -> tuple[str, str]:
    """Return the reasoning and the text of `content`, which is text, None, or (Mistral) a list of both.

    >>> split_content([{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "ok"}])
    ('hm', 'ok')
    """
    if content is None:
        return "", ""
    if isinstance(content, str):
        return "", content
    thought: list[str] = []
    texts: list[str] = []
    for item in content if isinstance(content, list) else ():
        if not isinstance(item, Mapping):
            continue
        thinking = item.get("thinking")
        if isinstance(thinking, str):
            thought.append(thinking)
        elif isinstance(thinking, list):
            thought.extend(str(piece.get("text") or "") for piece in thinking if isinstance(piece, Mapping))
        elif isinstance(item.get("text"), str):
            texts.append(item["text"])
    return "".join(thought), "".join(texts)


def read_reasoning(message: dict[str, Any]) -> str:
    """Return the reasoning of a message or a delta, under any of the servers' names for it."""
    for name in ("reasoning_content", "reasoning", "thinking"):
        text = message.get(name)
        if isinstance(text, str) and text:
            return text
    return ""


def replayable(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reasoning fields unchanged, for the server that sent them."""
    names = ("reasoning_content", "reasoning", "reasoning_details")
    fields = {name: message[name] for name in names if message.get(name)}
    return {NAME: fields} if fields else {}


def find_usage(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the usage object, wherever the server puts it (Groq nests it in streams)."""
    usage = data.get("usage") or (data.get("x_groq") or {}).get("usage")
    return usage if isinstance(usage, dict) else None


def read_usage(usage: Any) -> Usage | None:
    """Return the usage, from any spelling of OpenAI-compatible servers.

    >>> read_usage({"prompt_tokens": 3, "completion_tokens": 2, "prompt_cache_hit_tokens": 1}).cached
    1
    """
    if not isinstance(usage, dict):
        return None
    cached = details_of(usage, "prompt_tokens_details").get("cached_tokens")
    for name in _CACHED:
        if cached is None:
            cached = usage.get(name)
    thought = details_of(usage, "completion_tokens_details").get("reasoning_tokens")
    return usage_of(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(cached),
        count(thought),
        count(usage.get("total_tokens")),
    )


_NO_EXTRA: dict[str, Any] = {}


class ChatEvents:
    """Reads the events of a Chat Completions stream."""

    __slots__ = ("_custom", "_details", "_extra", "_has_started", "_open", "_thought", "_word", "ended", "fault")

    text_key = b"content"
    arguments_key = b"arguments"

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._open: set[int] = set()
        self._word = False
        self._has_started = False
        self._extra: dict[str, Any] = {}
        self._thought: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._custom: dict[Any, dict[str, Any]] = {}
        """Calls of the first choice whose tools are not functions, by index."""

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """Return the chunks of one event."""
        chunks: list[CompletionChunk] = []
        choices = data.get("choices")
        usage = data.get("usage") or (find_usage(data) if "x_groq" in data else None)
        extra = self._changed_fields(data)
        if not self._has_started:
            self._has_started = True
            if choices and "role" in (choices[0].get("delta") or ()):
                extra = {**extra, **_created(data)}
        if usage or extra:
            extra = _with_envelope(extra, usage)
        if choices:
            chunks = [self._choice(choice, data, usage, extra) for choice in choices]
        elif usage or extra:
            chunks.append(
                CompletionChunk(
                    usage=at_tier(read_usage(usage), data.get("service_tier")),
                    model=data.get("model") or None,
                    id=data.get("id") or None,
                    extra=extra,
                )
            )
        if data.get("error"):
            self.fault = fault_error(data, status=None, kind=name or "")
        elif name == "error":
            self.fault = fault_error(data, status=None, kind=name)
        return chunks

    def finish(self, done: bool) -> list[CompletionChunk]:
        """Return a finish reason for a stream without one: it ended cleanly if `[DONE]` followed anything at all."""
        if done:
            self.ended = self._word or bool(self._open)
        chunks = [CompletionChunk(parts=(part,)) for part in self._reasoning()]
        chunks += [CompletionChunk(parts=(Opaque(NAME, call),)) for call in self._custom.values()]
        if not self._word:
            chunks.append(CompletionChunk(finish="stop", warnings=(FINISH_MISSING,)))
        return chunks

    def _changed_fields(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields without a name in the IR if they have changed: most servers repeat them in every event."""
        extra = _NO_EXTRA
        if not data.keys() <= _ANSWER:
            extra = {key: value for key, value in data.items() if key not in _ANSWER and value is not None}
        if extra == self._extra:
            return _NO_EXTRA
        self._extra = extra
        return extra

    def _choice(
        self, choice: Mapping[str, Any], data: Mapping[str, Any], usage: Any, extra: dict[str, Any]
    ) -> CompletionChunk:
        """Return the chunk of one choice of an event."""
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        delta = choice.get("delta") or choice.get("message") or _NO_EXTRA
        word = choice.get("finish_reason")
        if word:
            self._word = True
            self._open.discard(index)
            self.ended = not self._open
        elif not self._word:
            self._open.add(index)
        content = delta.get("content")
        reasoning = ""
        calls: tuple[ToolDelta, ...] = ()
        if type(content) is not str or len(delta) > 1:
            content, reasoning, calls = self._read_delta(delta, index)
            if not _MESSAGE.issuperset(delta):
                extra = _with_message_fields(extra, delta)
        if reasoning or not _CHOICE.issuperset(choice):
            extra = _with_choice_fields(extra, choice, delta)
        if choice.get("error"):
            self.fault = fault_error({"error": choice["error"]}, status=None)
        return CompletionChunk(
            content,
            reasoning,
            delta.get("refusal") or "",
            calls,
            FINISH.get(word, "unknown") if word else None,
            str(word) if word else None,
            at_tier(read_usage(usage), data.get("service_tier")) if usage else None,
            index,
            data.get("model") or None,
            data.get("id") or None,
            (),
            extra,
        )

    def _read_delta(self, delta: Mapping[str, Any], index: int) -> tuple[str, str, tuple[ToolDelta, ...]]:
        """Return the text, reasoning and calls of a delta that is not just a piece of text."""
        thought, content = split_content(delta.get("content"))
        calls = delta.get("tool_calls")
        if calls:
            calls = [call for call in calls if not self._is_custom(call, index)]
        call_deltas = tuple(map(_delta, calls)) if calls else _legacy(delta.get("function_call"))
        return content, self._think(delta, index) or thought, call_deltas

    def _is_custom(self, call: Mapping[str, Any], index: int) -> bool:
        """Whether this is a piece of a call whose tool is not a function; such pieces are joined."""
        piece = call.get("custom")
        if piece is None or not isinstance(piece, dict) or index != 0:
            return False
        whole = self._custom.setdefault(call.get("index"), {"id": "", "type": "custom", "custom": {"input": ""}})
        whole["id"] = call.get("id") or whole["id"]
        custom = whole["custom"]
        whole["custom"] = {**custom, **piece, "input": custom["input"] + (piece.get("input") or "")}
        return True

    def _think(self, delta: Mapping[str, Any], index: int) -> str:
        """Return the reasoning in a delta, under any of its names, and collect it to be sent back."""
        thinking = ""
        for name in ("reasoning_content", "reasoning", "thinking"):
            text = delta.get(name)
            if text and isinstance(text, str):
                thinking = thinking or text
                if index == 0:
                    self._thought.setdefault(name, []).append(text)
        if index == 0 and delta.get("reasoning_details"):
            self._details.extend(delta["reasoning_details"])
        return thinking

    def _reasoning(self) -> list[Reasoning]:
        """Return the reasoning of the first choice in the form that the server expects back."""
        fields: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._thought.items()}
        text = next(iter(fields.values()), "")
        if self._details:
            fields["reasoning_details"] = _join_details(self._details)
        return [Reasoning(text, {NAME: fields})] if fields else []


def _with_envelope(extra: dict[str, Any], usage: Any) -> dict[str, Any]:
    """Return the vendor's fields of an event, including its usage, with a copy as its envelope."""
    if usage:
        extra = {**extra, "usage": usage}
    return {**extra, ENVELOPE: {NAME: {key: value for key, value in extra.items() if key != "created"}}}


def _with_message_fields(extra: dict[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return `extra` with the vendor's own fields of the message."""
    fields = rest_of(delta, _MESSAGE)
    if fields:
        return {**extra, **fields, NAME: fields}
    return extra


def _with_choice_fields(extra: dict[str, Any], choice: Mapping[str, Any], delta: Mapping[str, Any]) -> dict[str, Any]:
    """Return `extra` with the vendor's own fields of the choice.

    Its envelope also records whether the vendor sends reasoning as `reasoning`, so that the same name is sent on.
    """
    if choice.get("logprobs"):
        extra = {**extra, "logprobs": choice["logprobs"]}
    fields: dict[str, Any] = {OF_CHOICE: rest_of(choice, _CHOICE_EVENT)}
    if delta.get("reasoning"):
        fields[HAS_REASONING] = True
    elif not fields[OF_CHOICE]:
        return extra
    return {**extra, ENVELOPE: {NAME: {**extra.get(ENVELOPE, _NO_EXTRA).get(NAME, _NO_EXTRA), **fields}}}


def _created(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vendor's creation time of the answer, for a client of the same API."""
    created = data.get("created")
    if type(created) is int and created > 0:
        return {"created": created}
    return {}


def _delta(call: Mapping[str, Any]) -> ToolDelta:
    """Return a piece of a tool call; some servers leave out the index, or send arguments as an object."""
    function = call.get("function")
    if type(function) is not dict:
        function = {"name": function, "arguments": call.get("arguments")} if isinstance(function, str) else _NO_EXTRA
    arguments = function.get("arguments")
    if type(arguments) is not str:
        arguments = "" if arguments is None else compact_json(arguments)
    index = call.get("index")
    more = call.get("extra_content")
    return ToolDelta(
        index if type(index) is int else None,
        call.get("id") or None,
        function.get("name") or None,
        arguments,
        {NAME: {"extra_content": more}} if more else _NO_EXTRA,
    )


def _legacy(call: Any) -> tuple[ToolDelta, ...]:
    if isinstance(call, dict):
        return (_delta({"index": 0, "function": call}),)
    return ()


def _join_details(details: list[Any]) -> list[Any]:
    """Return the pieces of streamed reasoning details joined: text grows, signatures and ids occur once."""
    whole: list[Any] = []
    for detail in details:
        last = whole[-1] if whole else None
        if not isinstance(detail, dict) or not isinstance(last, dict) or not _same_detail(last, detail):
            whole.append(dict(detail) if isinstance(detail, dict) else detail)
            continue
        for key, value in detail.items():
            if key in ("text", "summary", "data") and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None:
                last[key] = value
    return whole


def _same_detail(last: dict[str, Any], detail: dict[str, Any]) -> bool:
    return last.get("type") == detail.get("type") and last.get("index") == detail.get("index") and "text" in detail

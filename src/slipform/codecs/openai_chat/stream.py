"""Chat Completions stream → chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slipform.codecs.faults import fault_error
from slipform.codecs.openai_chat.request import NAME
from slipform.codecs.openai_chat.response import FINISH, MISSING, find_usage, read_usage, split_content
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Reasoning, ToolDelta

_KNOWN = frozenset({"id", "object", "created", "model", "choices", "usage", "obfuscation", "error"})
_NO_EXTRA: dict[str, Any] = {}


class ChatMachine:
    """What the events of a Chat Completions stream mean."""

    __slots__ = ("_details", "_extra", "_open", "_thought", "_word", "ended", "fault")

    text_key = b"content"

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._open: set[int] = set()
        self._word = False
        self._extra: dict[str, Any] = {}
        self._thought: dict[str, list[str]] = {}
        self._details: list[Any] = []

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """The chunks that one event stands for."""
        chunks: list[CompletionChunk] = []
        choices = data.get("choices")
        usage = data.get("usage") or (find_usage(data) if "x_groq" in data else None)
        extra = self._news(data)
        if usage:
            extra = {**extra, "usage": usage}
        if choices:
            chunks = [self._choice(choice, data, usage, extra) for choice in choices]
        elif usage or extra:
            chunks.append(
                CompletionChunk(
                    usage=read_usage(usage), model=data.get("model") or None, id=data.get("id") or None, extra=extra
                )
            )
        if data.get("error"):
            self.fault = fault_error(data, status=None, kind=name or "")
        elif name == "error":
            self.fault = fault_error(data, status=None, kind=name)
        return chunks

    def done(self) -> None:
        """The server has ended; that is an answer if there was anything before it."""
        self.ended = self._word or bool(self._open)

    def finish(self) -> list[CompletionChunk]:
        """A finish reason for a stream that ended cleanly without one."""
        chunks = [CompletionChunk(parts=(part,)) for part in self._reasoning()]
        if not self._word:
            chunks.append(CompletionChunk(finish="stop", warnings=(MISSING,)))
        return chunks

    def _news(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Fields the IR has no name for, when they change: most servers repeat them on every event."""
        extra = _NO_EXTRA
        if not data.keys() <= _KNOWN:
            extra = {key: value for key, value in data.items() if key not in _KNOWN and value is not None}
        if extra == self._extra:
            return _NO_EXTRA
        self._extra = extra
        return extra

    def _choice(
        self, choice: Mapping[str, Any], data: Mapping[str, Any], usage: Any, extra: dict[str, Any]
    ) -> CompletionChunk:
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
        content, reasoning = delta.get("content"), ""
        calls: tuple[ToolDelta, ...] = ()
        if type(content) is not str or len(delta) > 1:
            content, reasoning, calls = self._more(delta, index)
        if choice.get("logprobs"):
            extra = {**extra, "logprobs": choice["logprobs"]}
        if choice.get("error"):
            self.fault = fault_error({"error": choice["error"]}, status=None)
        return CompletionChunk(
            content,
            reasoning,
            delta.get("refusal") or "",
            calls,
            FINISH.get(word, "unknown") if word else None,
            str(word) if word else None,
            read_usage(usage) if usage else None,
            index,
            data.get("model") or None,
            data.get("id") or None,
            (),
            extra,
        )

    def _more(self, delta: Mapping[str, Any], index: int) -> tuple[str, str, tuple[ToolDelta, ...]]:
        """Text, thinking and calls of a delta that is more, or less, than a piece of text."""
        thought, said = split_content(delta.get("content"))
        calls = delta.get("tool_calls")
        found = tuple(map(_delta, calls)) if calls else _legacy(delta.get("function_call"))
        return said, self._think(delta, index) or thought, found

    def _think(self, delta: Mapping[str, Any], index: int) -> str:
        found = ""
        for name in ("reasoning_content", "reasoning", "thinking"):
            text = delta.get(name)
            if text and isinstance(text, str):
                found = found or text
                if index == 0:
                    self._thought.setdefault(name, []).append(text)
        if index == 0 and delta.get("reasoning_details"):
            self._details.extend(delta["reasoning_details"])
        return found

    def _reasoning(self) -> list[Reasoning]:
        """The thinking of the first choice as the server wants it back."""
        fields: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._thought.items()}
        text = next(iter(fields.values()), "")
        if self._details:
            fields["reasoning_details"] = _joined(self._details)
        return [Reasoning(text, {NAME: fields})] if fields else []


def _delta(call: Mapping[str, Any]) -> ToolDelta:
    function = call.get("function")
    if type(function) is not dict:
        function = {"name": function, "arguments": call.get("arguments")} if isinstance(function, str) else _NO_EXTRA
    arguments = function.get("arguments")
    if type(arguments) is not str:
        arguments = "" if arguments is None else orjson.dumps(arguments).decode()
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
    return (_delta({"index": 0, "function": call}),) if isinstance(call, dict) else ()


def _joined(details: list[Any]) -> list[Any]:
    """The pieces of streamed reasoning details put together: text grows, signatures and ids come once."""
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

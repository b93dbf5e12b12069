"""How the pieces of one choice are put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slipform.ir.messages import Part, Reasoning, Text, ToolCall
from slipform.ir.response import CompletionChunk, FinishReason, ToolDelta


class OpenCall:
    """A tool call that is still being spoken."""

    __slots__ = ("extra", "id", "name", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id: str | None = None
        self.name: str | None = None
        self.extra: dict[str, Any] = {}
        self.pieces: list[str] = []

    def add(self, delta: ToolDelta) -> None:
        """Take one piece of the arguments."""
        if delta.extra:
            merge_extra(self.extra, delta.extra)
        arguments: Any = delta.arguments
        if arguments:
            self.pieces.append(arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode())

    def known_id(self, answer_id: str | None) -> str:
        """The id of the call; a missing one is made from the answer's id and the place of the call."""
        return self.id or (f"call_{answer_id}_{self.position}" if answer_id else f"call_{self.position}")

    def close(self, answer_id: str | None) -> ToolCall:
        """The whole call."""
        return ToolCall(self.known_id(answer_id), self.name or "", "".join(self.pieces) or "{}", self.extra)


class CallTable:
    """Tool calls in the order they were first heard of, found again by index, by id, or as the last one."""

    __slots__ = ("_by_id", "_by_index", "calls")

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}

    def place(self, delta: ToolDelta) -> tuple[OpenCall, bool]:
        """The call this piece belongs to, and whether it is a new one; id and name stay as they first came."""
        call = self._find(delta)
        new = call is None
        if call is None:
            call = OpenCall(len(self.calls))
            self.calls.append(call)
            if delta.index is not None:
                self._by_index[delta.index] = call
        if call.id is None and delta.id is not None:
            call.id = delta.id
            self._by_id[delta.id] = call
        if call.name is None:
            call.name = delta.name
        return call, new

    def _find(self, delta: ToolDelta) -> OpenCall | None:
        if delta.index is not None:
            call = self._by_index.get(delta.index)
            # Some servers count every parallel call as number 0: a second id with a name is a second call.
            if call is not None and delta.name and delta.id and call.id and delta.id != call.id:
                return self._by_id.get(delta.id)
            return call
        last = self.calls[-1] if self.calls else None
        if delta.id is not None:
            known = self._by_id.get(delta.id)
            late = last is not None and last.id is None and not (delta.name and last.name)
            return known if known is not None or not late else last
        return None if last is not None and delta.name and last.name else last


class ChoiceBuilder:
    """Everything one choice has said, and in which order."""

    __slots__ = ("_log", "calls", "finish", "raw_finish", "reasoning", "refusal", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls = CallTable()
        self.finish: FinishReason | None = None
        self.raw_finish: str | None = None
        self._log: list[list[str] | OpenCall | Part] = []

    def add(self, chunk: CompletionChunk) -> None:
        """Fold one chunk in."""
        if chunk.text:
            self._say(chunk.text)
        if chunk.reasoning:
            self.reasoning.append(chunk.reasoning)
        if chunk.refusal:
            self.refusal.append(chunk.refusal)
        for delta in chunk.tool_calls:
            call, new = self.calls.place(delta)
            call.add(delta)
            if new:
                self._log.append(call)
        if chunk.parts:
            self._log.extend(chunk.parts)
        if chunk.finish is not None:
            self.finish, self.raw_finish = chunk.finish, chunk.raw_finish

    def _say(self, text: str) -> None:
        self.text.append(text)
        last = self._log[-1] if self._log else None
        if type(last) is list:
            last.append(text)
        else:
            self._log.append([text])

    def parts(
        self, calls: Mapping[int, ToolCall], output: OpenCall | None = None, answer: str = ""
    ) -> tuple[Part, ...]:
        """The turn in the order it was spoken; `calls` gives the closed calls by the identity of the open ones.

        The reserved call `output` is given as the text `answer`; thinking that came in no block of its own goes first.
        """
        parts: list[Part] = []
        for entry in self._log:
            if isinstance(entry, list):
                parts.append(Text("".join(entry)))
            elif isinstance(entry, OpenCall):
                if entry is output:
                    parts.append(Text(answer))
                elif id(entry) in calls:
                    parts.append(calls[id(entry)])
            else:
                parts.append(entry)
        if self.reasoning and not any(isinstance(part, Reasoning) for part in parts):
            parts.insert(0, Reasoning("".join(self.reasoning)))
        return tuple(parts)


def merge_extra(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Fold vendor fields of one chunk into those of the answer: lists grow, objects merge, the rest is replaced.

    >>> fields = {"logprobs": {"content": [1]}}
    >>> merge_extra(fields, {"logprobs": {"content": [2]}, "tier": "default"})
    >>> fields
    {'logprobs': {'content': [1, 2]}, 'tier': 'default'}
    """
    for key, value in extra.items():
        old = into.get(key)
        if key == "usage" or old is None:
            into[key] = value
        elif isinstance(old, list) and isinstance(value, list):
            into[key] = [*old, *value]
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            into[key] = dict(old)
            merge_extra(into[key], value)
        else:
            into[key] = value

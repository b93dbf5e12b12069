"""Merge the chunks of one choice of a streamed answer into its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.ir.messages import Part, Reasoning, Text, ToolCall
from slipform.ir.response import CompletionChunk, FinishReason, ToolDelta
from slipform.text.strict import compact_json


class OpenCall:
    """A tool call that is still growing."""

    __slots__ = ("extra", "id", "name", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id: str | None = None
        self.name: str | None = None
        self.extra: dict[str, Any] = {}
        self.pieces: list[str] = []

    def add(self, delta: ToolDelta) -> None:
        """Add one piece of the arguments."""
        if delta.extra:
            merge_extra(self.extra, delta.extra)
        arguments: Any = delta.arguments
        if arguments:
            self.pieces.append(arguments if isinstance(arguments, str) else compact_json(arguments))

    def known_id(self, answer_id: str | None) -> str:
        """Return the id of the call; a missing one is built from the answer's id and the call's position."""
        return self.id or (f"call_{answer_id}_{self.position}" if answer_id else f"call_{self.position}")

    def close(self, answer_id: str | None) -> ToolCall:
        """Return the whole call."""
        return ToolCall(self.known_id(answer_id), self.name or "", "".join(self.pieces) or "{}", self.extra)


class CallTable:
    """The tool calls of one choice in order of arrival, which later deltas find by index, by id, or as the last one."""

    __slots__ = ("_by_id", "_by_index", "calls")

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []
        self._by_index: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}

    def place(self, delta: ToolDelta) -> tuple[OpenCall, bool]:
        """Return the call of this delta, and whether it is new; the first id and name of a call are used."""
        call = self._find(delta)
        is_new = call is None
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
        return call, is_new

    def _find(self, delta: ToolDelta) -> OpenCall | None:
        """Return the call that a delta belongs to: by its index, else its id, else the last call.

        None for a new one.
        """
        if delta.index is not None:
            call = self._by_index.get(delta.index)
            # Some servers give every parallel call the index 0: a second id with a name is a second call.
            if call is not None and delta.name and delta.id and call.id and delta.id != call.id:
                return self._by_id.get(delta.id)
            return call
        last = self.calls[-1] if self.calls else None
        if delta.id is not None:
            call_by_id = self._by_id.get(delta.id)
            is_late_id = last is not None and last.id is None and not (delta.name and last.name)
            if call_by_id is not None or not is_late_id:
                return call_by_id
            return last
        if last is not None and delta.name and last.name:
            return None
        return last


class ChoiceBuilder:
    """The content of one choice so far, in its order; the reducer has one for each choice."""

    __slots__ = ("_sequence", "_thinking_at", "calls", "finish", "raw_finish", "reasoning", "refusal", "text")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self.calls = CallTable()
        self.finish: FinishReason | None = None
        self.raw_finish: str | None = None
        self._sequence: list[list[str] | OpenCall | Part] = []
        self._thinking_at: int | None = None
        """Where the reasoning began whose whole part is still missing: some servers send it only at the end."""

    def add(self, chunk: CompletionChunk) -> None:
        """Merge one chunk."""
        if chunk.text:
            self._add_text(chunk.text)
        if chunk.reasoning:
            self.reasoning.append(chunk.reasoning)
            if self._thinking_at is None:
                self._thinking_at = len(self._sequence)
        if chunk.refusal:
            self.refusal.append(chunk.refusal)
        for delta in chunk.tool_calls:
            call, is_new = self.calls.place(delta)
            call.add(delta)
            if is_new:
                self._sequence.append(call)
        if chunk.parts:
            self._add_parts(chunk.parts)
        if chunk.finish is not None:
            self.finish = chunk.finish
            self.raw_finish = chunk.raw_finish

    def _add_parts(self, parts: tuple[Part, ...]) -> None:
        """Insert whole parts in their order: thinking before the text that follows it."""
        for part in parts:
            if isinstance(part, Text):
                self._end_text(part.extra)
            elif isinstance(part, Reasoning) and (self._thinking_at is not None or self.finish is not None):
                self._sequence.insert(self._thinking_at or 0, part)
                self._thinking_at = None
            else:
                self._sequence.append(part)

    def _add_text(self, text: str) -> None:
        self.text.append(text)
        last = self._sequence[-1] if self._sequence else None
        if type(last) is list:
            last.append(text)
        else:
            self._sequence.append([text])

    def _end_text(self, extra: Mapping[str, Any]) -> None:
        """End the open text with the vendor's data about it; further text is a new part."""
        last = self._sequence[-1] if self._sequence else None
        if type(last) is list:
            self._sequence[-1] = Text("".join(last), extra)

    def parts(
        self, calls: Mapping[int, ToolCall], output: OpenCall | None = None, answer_text: str = ""
    ) -> tuple[Part, ...]:
        """Return the parts in the order of their arrival; `calls` has the closed calls by position.

        The reserved call `output` becomes the text `answer_text`; reasoning without a block of its own goes first.
        """
        parts: list[Part] = []
        for entry in self._sequence:
            if isinstance(entry, list):
                parts.append(Text("".join(entry)))
            elif isinstance(entry, OpenCall):
                if entry is output:
                    parts.append(Text(answer_text))
                elif entry.position in calls:
                    parts.append(calls[entry.position])
            else:
                parts.append(entry)
        if self.reasoning and not any(isinstance(part, Reasoning) for part in parts):
            parts.insert(0, Reasoning("".join(self.reasoning)))
        return tuple(parts)


def merge_extra(target: dict[str, Any], extra: Mapping[str, Any]) -> None:
    """Merge the vendor's fields of one chunk into those of the answer: lists grow, objects merge, others are replaced.

    >>> fields = {"logprobs": {"content": [1]}}
    >>> merge_extra(fields, {"logprobs": {"content": [2]}, "tier": "default"})
    >>> fields
    {'logprobs': {'content': [1, 2]}, 'tier': 'default'}
    """
    for key, value in extra.items():
        old = target.get(key)
        if key == "usage" or old is None:
            target[key] = value
        elif isinstance(old, list) and isinstance(value, list):
            target[key] = [*old, *value]
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            target[key] = dict(old)
            merge_extra(target[key], value)
        else:
            target[key] = value

"""generateContent stream → chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipform.codecs.faults import fault_error
from slipform.codecs.gemini.partial import PartialCall
from slipform.codecs.gemini.request import NAME
from slipform.codecs.gemini.response import FINISH, camel, extras, finish_word, read_part, read_usage
from slipform.errors import UpstreamError
from slipform.ir import CompletionChunk, Media, Opaque, Reasoning, Text, ToolCall, ToolDelta


class GeminiMachine:
    """What the events of a stream mean: each is an answer that holds only the new parts."""

    __slots__ = ("_calls", "_extra", "_open", "_partial", "_word", "ended", "fault")

    text_key = b""

    def __init__(self) -> None:
        self.ended = False
        self.fault: UpstreamError | None = None
        self._calls = 0
        self._partial: PartialCall | None = None
        self._open: set[int] = set()
        self._word = False
        self._extra: dict[str, Any] = {}

    def read(self, name: str | None, data: Any) -> list[CompletionChunk]:
        """The chunks that one event stands for."""
        if data.get("error"):
            self.fault = fault_error(data, status=None, kind=name or "")
            return []
        data = camel(data)
        chunks = [
            chunk
            for candidate in data.get("candidates") or ()
            if isinstance(candidate, Mapping)
            for chunk in self._candidate(camel(candidate), str(data.get("responseId") or ""))
        ]
        reason = camel(data.get("promptFeedback") or {}).get("blockReason")
        if reason is not None and not chunks:
            self.ended = True
            chunks.append(CompletionChunk(finish="content_filter", raw_finish=str(reason)))
        return [*chunks, *self._about(data)]

    def done(self) -> None:
        """Nothing: other events end this stream."""

    def finish(self) -> list[CompletionChunk]:
        """Nothing is left at the end."""
        return []

    def _about(self, data: Mapping[str, Any]) -> list[CompletionChunk]:
        """Usage, names and vendor fields, when they are new."""
        extra = extras(data)
        if extra == self._extra:
            return []
        self._extra = extra
        usage = read_usage(data.get("usageMetadata"))
        return [CompletionChunk(usage=usage, model=data.get("modelVersion"), id=data.get("responseId"), extra=extra)]

    def _candidate(self, candidate: Mapping[str, Any], answer_id: str) -> list[CompletionChunk]:
        index = candidate.get("index") or 0
        chunks: list[CompletionChunk] = []
        for item in camel(candidate.get("content") or {}).get("parts") or ():
            chunks.extend(self._part(camel(item), index, answer_id))
        word = finish_word(candidate.get("finishReason"))
        if word:
            self._word = True
            self._open.discard(index)
            self.ended = not self._open
            more = {key: candidate[key] for key in ("finishMessage", "continuationToken") if candidate.get(key)}
            finish = FINISH.get(word, "unknown")
            chunks.append(CompletionChunk(finish=finish, raw_finish=word, choice=index, extra=more))
        elif not self._word:
            self._open.add(index)
        return chunks

    def _part(self, item: Mapping[str, Any], index: int, answer_id: str) -> list[CompletionChunk]:
        call = item.get("functionCall")
        if isinstance(call, Mapping) and (self._partial is not None or call.get("willContinue")):
            return self._piece(item, camel(call), index, answer_id)
        chunks: list[CompletionChunk] = []
        for part in read_part(item, self._calls, answer_id):
            if isinstance(part, Text):
                signed = part.extra.get(NAME)
                alone = (Opaque(NAME, {"text": "", **signed}),) if signed else ()
                chunks.append(CompletionChunk(part.text, choice=index, parts=alone))
            elif isinstance(part, ToolCall):
                delta = ToolDelta(self._calls, part.id, part.name, part.arguments, part.extra)
                self._calls += 1
                chunks.append(CompletionChunk(tool_calls=(delta,), choice=index))
            elif isinstance(part, Reasoning):
                chunks.append(CompletionChunk(reasoning=part.text, parts=(part,), choice=index))
            elif isinstance(part, (Media, Opaque)):
                chunks.append(CompletionChunk(parts=(part,), choice=index))
        return chunks

    def _piece(
        self, item: Mapping[str, Any], call: Mapping[str, Any], index: int, answer_id: str
    ) -> list[CompletionChunk]:
        """One piece of a call whose arguments are streamed; they are given out when they are whole."""
        chunks: list[CompletionChunk] = []
        partial = self._partial
        if partial is None:
            named = {**item, "functionCall": {**call, "args": ""}}
            (started,) = (part for part in read_part(named, self._calls, answer_id) if isinstance(part, ToolCall))
            partial = self._partial = PartialCall(self._calls)
            self._calls += 1
            delta = ToolDelta(partial.index, started.id, started.name, "", started.extra)
            chunks.append(CompletionChunk(tool_calls=(delta,), choice=index))
        partial.add(call.get("partialArgs") or ())
        if not call.get("willContinue"):
            self._partial = None
            whole = ToolDelta(partial.index, arguments=partial.arguments)
            chunks.append(CompletionChunk(tool_calls=(whole,), choice=index))
        return chunks

"""The engine's chunks → ours: one reader for an answer, whether it is streamed or not, from a worker or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from slipform.ir import CompletionChunk, FinishReason, ModelResponse, ModelWarning, ToolCall, ToolDelta, Usage
from slipform.providers.local.engine import raise_for_error
from slipform.providers.local.llama import Chunk
from slipform.providers.local.options import StopHook

Read = Callable[[str], tuple[str, tuple[ToolDelta, ...]]]
"""Takes what belongs to the answer, text or pieces of a tool call, out of the engine's text."""

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


Check = Callable[[str], tuple[ModelWarning, ...]]
"""What is to be said of a finished answer's text, as the engine wrote it."""


class Answer:
    """Reads one answer; `over` once its hook has stopped it."""

    def __init__(self, read: Read, hook: StopHook | None, model: str, check: Check | None = None) -> None:
        self.over = False
        self._check = check
        self._raw: list[str] = []
        self._read = read
        self._hook = hook
        self._model = model
        self._called = False

    def feed(self, chunk: Chunk) -> CompletionChunk:
        """Our chunk for the engine's; raises what the engine says in its place."""
        raise_for_error(chunk)
        choice: Mapping[str, Any] = next(iter(chunk["choices"]), {})
        raw = choice.get("delta", {}).get("content") or ""
        text, calls = self._read(raw)
        self._called = self._called or bool(calls)
        finish, usage = choice.get("finish_reason"), _usage(chunk.get("usage"))
        if raw and self._hook and self._hook(raw):
            # The engine is stopped here, before it says why it ended and what was spent.
            self.over, finish, usage = True, "stop", _spent(chunk.get("timings"))
        if self._check:
            self._raw.append(raw)
        return CompletionChunk(
            text=text,
            tool_calls=calls,
            finish=self._finish(finish) if finish else None,
            raw_finish=finish,
            usage=usage,
            model=self._model,
            id=chunk.get("id"),
            warnings=self._check("".join(self._raw)) if finish and self._check else (),
        )

    def _finish(self, finish: str) -> FinishReason:
        if finish == "stop" and self._called:
            return "tool_calls"
        return _FINISH.get(finish, "unknown")


def whole(chunks: Iterable[CompletionChunk], warnings: tuple[ModelWarning, ...]) -> ModelResponse:
    """The response that the chunks of one answer add up to."""
    texts: list[str] = []
    deltas: list[ToolDelta] = []
    finish, raw_finish, usage, model, id_ = None, None, Usage(), None, None
    for chunk in chunks:
        warnings += chunk.warnings
        texts.append(chunk.text)
        deltas.extend(chunk.tool_calls)
        finish, raw_finish = chunk.finish or finish, chunk.raw_finish or raw_finish
        usage, model, id_ = chunk.usage or usage, chunk.model, chunk.id
    return ModelResponse(
        text="".join(texts),
        tool_calls=_calls(deltas),
        finish=finish or "unknown",
        raw_finish=raw_finish,
        usage=usage,
        model=model,
        id=id_,
        warnings=warnings,
    )


def _calls(deltas: list[ToolDelta]) -> tuple[ToolCall, ...]:
    if not deltas:
        return ()
    arguments = "".join(delta.arguments for delta in deltas)
    return (ToolCall(deltas[0].id or "", deltas[0].name or "", arguments.strip()),)


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=usage.get("prompt_tokens"),
        output=usage.get("completion_tokens"),
        cached=details.get("cached_tokens"),
        total=usage.get("total_tokens"),
    )


def _spent(timings: Mapping[str, Any] | None) -> Usage | None:
    if timings is None:
        return None
    cached, read, written = (timings.get(name) or 0 for name in ("cache_n", "prompt_n", "predicted_n"))
    return Usage(input=cached + read, output=written, cached=cached, total=cached + read + written)

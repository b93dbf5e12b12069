"""An enforced answer as a stream: pieces while they are certain, silence while it is asked again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal, TypeAlias

from slipform.enforce import Live, Outcome, Plan, Steps, WatchedAnswer, enforce
from slipform.enforce.stream import closing_chunks
from slipform.engine import logged
from slipform.errors import JsonEnforcementError, SlipformError, TruncatedError, UpstreamError
from slipform.ir import RESERVED_TOOL, CompletionChunk, ModelRequest, ModelResponse
from slipform.ir.reducer import Reducer, Snapshot
from slipform.providers.base import Batches
from slipform.schema import OutputStrategy, is_large

Mode: TypeAlias = Literal["auto", "live", "buffer"]
"""`live`: pieces leave as they become certain. `buffer`: all at the end. `auto`: live where the channel is held to the
schema."""
Source: TypeAlias = Callable[[ModelRequest], Batches]


async def respond_batches(
    request: ModelRequest, plan: Plan, source: Source, mode: Mode = "auto"
) -> AsyncGenerator[Sequence[CompletionChunk] | Outcome, None]:
    """Chunks of the answer as they become certain; the outcome, as soon as there is one; then the last chunks.

    What can no longer become valid ends the call to the model at once; so does a model that talks on after its JSON.
    The model is then asked again behind the open stream. What has left stays: a new answer that does not begin with it
    is an error.
    """
    listening = _Listening(plan, follows=_follows(request, plan, mode))
    steps = logged(enforce(request, plan), request, plan, streaming=True)
    asked = next(steps)
    while True:
        listening.begin(asked)
        batches = source(asked)
        try:
            async for batch in batches:
                if certain := listening.take(batch):
                    yield certain
                if listening.stopped:
                    break
        except (TruncatedError, UpstreamError) as error:
            # What breaks off after the last bracket takes nothing away.
            if not listening.complete:
                if isinstance(error, UpstreamError):
                    steps.throw(error)
                raise
        finally:
            # An answer that was left off early ends with its connection.
            with contextlib.suppress(SlipformError):
                await batches.aclose()
        further, outcome = await advanced(steps, listening.response())
        if outcome is not None:
            rest, outcome = listening.settled(outcome)
            yield outcome
            yield closing_chunks(outcome.answer, rest)
            return
        asked = further


def _follows(request: ModelRequest, plan: Plan, mode: Mode) -> bool:
    """Whether the answer can be followed: there is one shape for it, and nothing else may come in its place."""
    if plan.schema is None or request.tools or plan.on_failure == "raw" or mode == "buffer":
        return False
    return mode == "live" or plan.strategy is OutputStrategy.NATIVE


class _Listening:
    """One answer after the other: the first is followed while it grows, those after it are read whole."""

    def __init__(self, plan: Plan, *, follows: bool) -> None:
        self._plan = plan
        self._reducer = Reducer()
        self._live = Live(plan.schema, plan.switches) if follows and plan.schema is not None else None
        self._call = plan.strategy is OutputStrategy.TOOL
        self._call_index: int | None = None
        self._called = False
        self._following: Live | None = None
        self._first = True
        self._watched: WatchedAnswer | None = None
        self._id: str | None = None
        self._model: str | None = None
        self.stopped = False

    @property
    def sent(self) -> bool:
        """Whether something has left that cannot be taken back."""
        return self._live is not None and self._live.sent

    @property
    def complete(self) -> bool:
        """Whether the answer that is followed has its last bracket."""
        return self._following is not None and self._following.complete

    def begin(self, asked: ModelRequest) -> None:
        """The answer to this request begins."""
        self._reducer.start(Snapshot(emulated=None))
        self._following = self._live if self._first else None
        watch = self._plan.watch(asked) if self._following is None else None
        self._watched = None if watch is None else WatchedAnswer(watch)
        self._first = self.stopped = False

    def take(self, batch: Sequence[CompletionChunk]) -> list[CompletionChunk]:
        """What may leave now; sets `stopped` when no more is worth hearing."""
        certain: list[CompletionChunk] = []
        for chunk in batch:
            if self._watched is not None:
                self.stopped = self._watched.push(chunk)
            else:
                self._reducer.push(chunk)
                if (live := self._following) is not None and (piece := self._followed(chunk, live)):
                    certain.append(CompletionChunk(text=piece, id=self._id, model=self._model))
            if self.stopped:
                break
        return certain

    def _followed(self, chunk: CompletionChunk, live: Live) -> str:
        if chunk.id is not None:
            self._id = chunk.id
        if chunk.model is not None:
            self._model = chunk.model
        piece = live.feed(self._text(chunk, live))
        if live.fault is not None or live.over:
            self.stopped = live.over or live.confirmed(self._plan.standard)
        return piece

    def response(self) -> ModelResponse:
        """The answer for the judge; one that was stopped is closed where it was open."""
        if self._watched is not None:
            return self._watched.response()
        response = self._reducer.finish(check=False)
        live = self._following
        if self.stopped and live is not None and live.fault is not None:
            return dataclasses.replace(response, text=live.closed_text(), tool_calls=(), parts=(), finish="stop")
        return response

    def settled(self, outcome: Outcome) -> tuple[str, Outcome]:
        """What is to leave last, and the outcome with the text that has left then."""
        found = (outcome.text, outcome.text) if self._live is None else self._live.rest(outcome.text)
        if found is None:
            error = JsonEnforcementError(
                "The answer had to be changed where it had already been sent",
                hint="Ask without `stream`, or with the stream mode `buffer`.",
            )
            error.report = outcome.report
            raise error
        rest, whole = found
        return rest, outcome if whole == outcome.text else dataclasses.replace(outcome, text=whole)

    def _text(self, chunk: CompletionChunk, live: Live) -> str:
        """What the chunk adds to the text that holds the answer."""
        if chunk.lift is not None:
            live.give_up()  # the text is in the vendor's shape, not in the caller's
        if chunk.choice != 0:
            return ""
        if not self._call:
            if chunk.tool_calls:
                live.give_up()
            return chunk.text
        pieces = []
        for delta in chunk.tool_calls:
            if delta.name == RESERVED_TOOL and not self._called:
                self._called, self._call_index = True, delta.index
            if self._called and delta.index == self._call_index and isinstance(delta.arguments, str):
                pieces.append(delta.arguments)
        return "".join(pieces)


async def advanced(steps: Steps, response: ModelResponse) -> tuple[ModelRequest, Outcome | None]:
    """Send a response into the steps: what to ask next, or the outcome. A large one is judged off the event loop."""
    if is_large(len(response.text)):
        return await asyncio.to_thread(_advance, steps, response)
    return _advance(steps, response)


def _advance(steps: Steps, response: ModelResponse) -> tuple[ModelRequest, Outcome | None]:
    try:
        return steps.send(response), None
    except StopIteration as done:
        outcome: Outcome = done.value
        return ModelRequest("", ()), outcome

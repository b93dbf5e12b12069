"""One enforced call without I/O: EnforcedCall, EarlyStop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from slipform.enforce.early_stop import GuardedAnswer
from slipform.enforce.plan import Outcome, Plan, Steps
from slipform.enforce.release import ReleaseGate
from slipform.errors import JsonEnforcementError
from slipform.ir import RESERVED_TOOL, CompletionChunk, ModelRequest, ModelResponse, Reasoning, Text
from slipform.ir.parts import part_chunks
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.response import ChunkSink
from slipform.schema import OutputStrategy


class EnforcedStream:
    """One answer after the other: the first is followed while it grows, those after it are read whole."""

    def __init__(self, plan: Plan, *, follows: bool, sink: ChunkSink | None = None) -> None:
        self._plan = plan
        self._sink = sink
        self._reducer = Reducer()
        self._unfolded: list[str] = []
        """Pieces of text that the reducer has still to be told of: it wants to know them at the end."""
        self._live = ReleaseGate(plan.schema, plan.switches) if follows and plan.schema is not None else None
        self._call = plan.strategy is OutputStrategy.TOOL
        self._call_index: int | None = None
        self._called = False
        self._following: ReleaseGate | None = None
        self._first = True
        self._watched: GuardedAnswer | None = None
        self._id: Any = None
        self._model: Any = None
        self._sent: list[Any] = []
        """Parts of the answer that is followed that have left: thinking, and what only its vendor knows."""
        self._thought = False
        self.stopped = False

    @property
    def is_guarded(self) -> bool:
        """Whether a guard looks at the answer that is read."""
        return self._watched is not None

    @property
    def complete(self) -> bool:
        """Whether the answer that is followed has its last bracket."""
        return self._following is not None and self._following.complete

    def begin(self, asked: ModelRequest) -> None:
        """The answer to this request begins."""
        self._reducer.start(Snapshot(emulated=None))
        self._unfolded.clear()
        self._following = self._live if self._first else None
        watch = self._plan.watch(asked) if self._following is None else None
        self._watched = None if watch is None else GuardedAnswer(watch)
        self._first = self.stopped = False

    def push(self, batch: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """What may leave now and the sink has not taken; None when there is nothing to be done.

        Sets `stopped` when no more is worth hearing.
        """
        certain = self._take(batch)
        if self.stopped or self._sink is None:
            return certain if certain or self.stopped else None
        return self._sink.push(certain) if certain else None

    def push_texts(self, texts: list[str]) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that are no more than text of the first choice, by who spoke last."""
        live = self._following
        if live is None or self._call:
            return self.push([CompletionChunk(text) for text in texts])
        pieces: list[str] = []
        for text in texts:
            self._unfolded.append(text)
            piece = self._grown(text, live)
            if piece:
                pieces.append(piece)
            if self.stopped:
                break
        if not self.stopped and not pieces:
            return None
        if not self.stopped and self._sink is not None and self._sink.push_texts(pieces) is None:
            return None
        return [self._certain(piece) for piece in pieces]

    def _take(self, batch: Sequence[CompletionChunk]) -> list[CompletionChunk]:
        certain: list[CompletionChunk] = []
        for chunk in batch:
            if self._watched is not None:
                self.stopped = self._watched.push(chunk)
            else:
                self._fold()
                self._reducer.push(chunk)
                if (live := self._following) is not None:
                    if chunk.reasoning or chunk.parts:
                        certain += self._aside(chunk)
                    if piece := self._followed(chunk, live):
                        certain.append(self._certain(piece))
            if self.stopped:
                break
        return certain

    # Compiled code holds values to their types; what comes from a vendor is read as it is.

    def _followed(self, chunk: Any, live: ReleaseGate) -> str:
        if chunk.id is not None:
            self._id = chunk.id
        if chunk.model is not None:
            self._model = chunk.model
        return self._grown(self._text(chunk, live), live)

    def _aside(self, chunk: Any) -> list[CompletionChunk]:
        """What stands beside the text: no schema holds it, so it leaves as it comes."""
        parts = tuple([part for part in chunk.parts if not isinstance(part, Text)])
        if chunk.choice != 0 or not (chunk.reasoning or parts):
            return []
        self._sent += parts
        self._thought = self._thought or bool(chunk.reasoning)
        return [
            CompletionChunk(reasoning=chunk.reasoning, parts=parts, model=chunk.model, id=chunk.id, extra=chunk.extra)
        ]

    def _grown(self, text: str, live: ReleaseGate) -> str:
        piece = live.feed(text)
        if live.fault is not None or live.over:
            self.stopped = live.over or live.confirmed(self._plan.standard)
        return piece

    def _certain(self, piece: str) -> CompletionChunk:
        return CompletionChunk(piece, "", "", (), None, None, None, 0, self._model, self._id)

    def _fold(self) -> None:
        if self._unfolded:
            self._reducer.push(CompletionChunk("".join(self._unfolded)))
            self._unfolded.clear()

    def response(self) -> ModelResponse:
        """The answer for the judge; one that was stopped is closed where it was open."""
        if self._watched is not None:
            return self._watched.response()
        self._fold()
        response = self._reducer.finish(check=False)
        live = self._following
        if self.stopped and live is not None and live.fault is not None:
            return response.replace(text=live.closed_text(), tool_calls=(), parts=(), finish="stop")
        return response

    def settled(self, outcome: Outcome) -> tuple[list[CompletionChunk], Outcome]:
        """The chunks that are to leave last, and the outcome with the text that has left then."""
        found = (outcome.text, outcome.text) if self._live is None else self._live.rest(outcome.text)
        if found is None:
            error = JsonEnforcementError(
                "The answer had to be changed where it had already been sent",
                hint="Ask without `stream`, or with the stream mode `buffer`.",
            )
            error.report = outcome.report
            raise error
        rest, whole = found
        if whole != outcome.text:
            outcome = msgspec.structs.replace(outcome, text=whole)
        return self._closing(outcome.answer, len(whole) - len(rest)), outcome

    def _closing(self, answer: ModelResponse, sent_text: int) -> list[CompletionChunk]:
        """What has not left yet, why the answer ended, and what it cost."""
        sent = {id(part) for part in self._sent}
        parts = answer.message.parts
        if self._thought and self._following is not None:
            # Its words have left; a part with nothing but words says no more.
            parts = tuple([part for part in parts if not (isinstance(part, Reasoning) and not part.opaque)])
        last = CompletionChunk(
            finish=answer.finish, raw_finish=answer.raw_finish, usage=answer.usage, id=answer.id, extra=answer.extra
        )
        return [*part_chunks(parts, sent_text=sent_text, sent=sent), last]

    def _text(self, chunk: Any, live: ReleaseGate) -> str:
        """What the chunk adds to the text that holds the answer."""
        if chunk.lift is not None:
            live.give_up()  # the text is in the vendor's shape, not in the caller's
        if chunk.choice != 0:
            return ""
        if not self._call:
            if chunk.tool_calls:
                live.give_up()
            text: str = chunk.text
            return text
        pieces: list[str] = []
        for delta in chunk.tool_calls:
            if delta.name == RESERVED_TOOL and not self._called:
                self._called, self._call_index = True, delta.index
            if self._called and delta.index == self._call_index and isinstance(delta.arguments, str):
                pieces.append(delta.arguments)
        return "".join(pieces)


class EnforcedCall:
    """One request under enforcement: what to ask next, what has arrived, how it ended. Does no I/O.

    >>> from slipform.enforce import enforce
    >>> from slipform.schema import Schema
    >>> plan = Plan(Schema.of(int))
    >>> call = EnforcedCall(enforce(ModelRequest("m", ()), plan), plan)
    >>> call.answer(ModelResponse(text="36"))
    >>> call.outcome.value
    36
    """

    def __init__(
        self, steps: Steps, plan: Plan, *, streaming: bool = False, live: bool = False, sink: ChunkSink | None = None
    ) -> None:
        self._steps = steps
        self._plan = plan
        self._streaming = streaming
        self._live = live
        self._sink = sink
        self._reader: EnforcedStream | None = None
        self.asked: ModelRequest = next(steps)
        """The request to be answered, as long as there is no outcome."""
        self.outcome: Outcome | None = None
        self.attempt = 1

    def read(self) -> EnforcedStream:
        """What is given the pieces of the answer to `asked`; its `response` is that answer."""
        if self._reader is None:
            self._reader = EnforcedStream(self._plan, follows=self._live, sink=self._sink)
        self._reader.begin(self.asked)
        return self._reader

    def reader(self) -> EnforcedStream | None:
        """`read` where somebody looks at pieces, a guard or who streams; None where the answer may come whole."""
        if not self._streaming and not self._plan.guard.watches:
            return None
        reader = self.read()
        return reader if self._streaming or reader.is_guarded else None

    def answer(self, response: ModelResponse) -> None:
        """Judge this answer: afterwards there is an outcome, or another request; raises when there is neither."""
        self._advance(lambda: self._steps.send(response))

    def fail(self, error: BaseException) -> None:
        """There is no answer. Raises the error, with the report of the attempts before, unless it can be gone on."""
        self._advance(lambda: self._steps.throw(error))

    def last(self) -> tuple[list[CompletionChunk], Outcome]:
        """What is still to leave of a streamed answer that is over, and the outcome with all that has left then."""
        if self._reader is None or self.outcome is None:
            raise TypeError("There is no streamed answer, or it is not over")
        return self._reader.settled(self.outcome)

    def _advance(self, step: Callable[[], ModelRequest]) -> None:
        try:
            self.asked = step()
        except StopIteration as done:
            self.outcome = done.value
        else:
            self.attempt += 1

"""Run one enforced stream without I/O: which request to send, and which chunks to release."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from slipform.enforce.early_stop import GuardedAnswer, RunawayStop
from slipform.enforce.judging import changed_after_release
from slipform.enforce.live_calls import LiveCall, LiveCalls
from slipform.enforce.plan import Outcome, Plan, Steps
from slipform.enforce.release import ReleaseGate
from slipform.enforce.usage_estimate import with_estimated_usage
from slipform.errors import SlipformError
from slipform.ir import (
    CompletionChunk,
    ModelRequest,
    ModelResponse,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolDelta,
)
from slipform.ir.choice_merge import merge_extra
from slipform.ir.parts import ITEM_ID, part_chunks, with_content
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.response import ChunkSink, head_fields, plain_chunks
from slipform.schema import OutputStrategy

NO_REQUEST: Final = ModelRequest("", ())
_MAY_BE_A_CALL: Final = re.compile(r"[{\[<`]")
"""Where a call may begin that a model writes as text, which the judge takes for the call if one was required."""
_BETWEEN: Final = "\n\n"
"""Between a text that has been released and the text of an answer that was retried and does not begin like it."""


Observer: TypeAlias = Callable[[int, str, str, int], None]
"""Called with each piece: the attempt's number, what was received, what was released, how much is held back."""


_TextRest: TypeAlias = tuple[str, str]
_CallsRest: TypeAlias = tuple[dict[str, ToolDelta | None], tuple[ToolCall, ...]]


class Release(NamedTuple):
    """What of a streamed answer is released before its end."""

    asides: bool = False
    """Thinking, text that no schema holds, and the caller's tool calls."""
    answer: bool = False
    """The JSON answer."""
    after_prose: bool = True
    """Also where more than a short lead-in precedes the JSON."""


NOTHING_EARLY: Final = Release()


class StreamWatch:
    """The observers of every piece of a stream; they may come and go while it runs."""

    def __init__(self, tell: Observer | None = None) -> None:
        self.tell = tell


def _answer_text(chunk: Any) -> str:
    """What a chunk adds to the answer: text, or arguments of the tool that carries it."""
    if chunk.choice != 0:
        return ""
    calls = [delta.arguments for delta in chunk.tool_calls if isinstance(delta.arguments, str)]
    return chunk.text + "".join(calls) if calls else str(chunk.text)


class EnforcedStream:
    """One answer after the other: the first is followed while it grows, those after it are read whole."""

    def __init__(self, plan: Plan, release: Release = NOTHING_EARLY, sink: ChunkSink | None = None) -> None:
        self._plan = plan
        self._sink = sink
        self._reducer = Reducer()
        self._texts: list[str] = []
        """The text of the answer that is followed, in pieces."""
        self._folded = 0
        """How many of these the reducer has received; the others follow at the end."""
        self._unfolded: list[str] = []
        self._unfolded_index = -1
        """Pieces of this call's arguments that the reducer has not received yet."""
        has_answer = plan.schema is not None and not plan.must_call
        self._release = release
        self._gate = self._new_gate() if release.answer and has_answer else None
        self._calls: LiveCalls | None = None
        if release.asides and plan.calls:
            self._calls = LiveCalls(plan.standard, holds=plan.on_failure == "raw")
        self._live = release.asides or release.answer
        self._prose = release.asides and not has_answer
        """Whether the text of the answer has no schema."""
        self._free = self._prose and not plan.must_call
        """Whether all of it is released as it comes."""
        self._sent: list[str] = []
        """The prose that has been released."""
        self._asides: list[Any] = []
        """The parts that have been released: thinking, and what only its vendor knows."""
        self._thought = False
        self._withholds = False
        """Whether text is held back that may be a call."""
        self._by_tool = plan.strategy is OutputStrategy.TOOL
        self._output_index: int | None = None
        self._output_called = False
        self._leads = False
        """Whether the answer that is read is the one that is followed."""
        self._first = True
        self._watched: GuardedAnswer | None = None
        self._runaway = RunawayStop(plan.schema)
        self._lift: Any = None
        """What turns the vendor's shape into the caller's, where the schema had to be rewritten."""
        self._id: Any = None
        self._model: Any = None
        self._item: Any = None
        """Which item of its vendor's the text is in that is released next; None once that has been said."""
        self._head: dict[str, Any] = {}
        """What the vendor says of the answer as a whole before it begins; it is released with the first piece."""
        self.stopped = False
        self._broke_off = False
        self._request = NO_REQUEST
        self.watch = StreamWatch()
        self.attempts = 0
        """How many answers have begun, this one included."""

    def _new_gate(self) -> ReleaseGate | None:
        plan = self._plan
        if plan.schema is None:
            return None
        return ReleaseGate(plan.schema, plan.switches, after_prose=self._release.after_prose)

    @property
    def is_guarded(self) -> bool:
        """Whether a guard looks at the answer that is read."""
        return self._watched is not None

    @property
    def complete(self) -> bool:
        """Whether the answer that is followed has its last bracket."""
        return self._leads and not self._prose and self._gate is not None and self._gate.complete

    def adopt(self, plan: Plan) -> None:
        """Another model is asked from here on: what was released stays, and its answer has to continue it."""
        self._plan = plan

    def break_off(self) -> None:
        """The answer ended without its end."""
        self._broke_off = True

    def begin(self, request: ModelRequest) -> None:
        """The answer to this request begins."""
        self._reducer.start(Snapshot(emulated=None if self._plan.answer_tool else False))
        self._leads = self._live and self._first
        watch = None if self._leads else self._plan.watch(request)
        self._watched = None if watch is None else GuardedAnswer(watch)
        self._runaway = RunawayStop(self._plan.schema)
        self._first = self.stopped = self._broke_off = False
        self._request = request
        self.attempts += 1

    def push(self, batch: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """What may be released now and the sink has not taken; None when there is nothing to be done.

        Sets `stopped` when no more is worth hearing.
        """
        certain = self._take(batch)
        if self.watch.tell is not None:
            self._observed("".join([_answer_text(chunk) for chunk in batch]), "".join([each.text for each in certain]))
        if self.stopped or self._sink is None:
            if certain or self.stopped:
                return certain
            return None
        return self._sink.push(certain) if certain else None

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """`push`, for chunks that are only text, or arguments of one call."""
        live = None
        if call >= 0 and self._leads and self._calls is not None:
            live = self._calls.begun(call)
        pieces: list[str] | None = None
        if live is not None:
            pieces = self._grown_arguments(texts, call, live)
            call = live.index
        elif self._leads and call < 0:
            pieces = self._grown(texts)
        if pieces is None:
            return self.push(plain_chunks(texts, call))
        if self.watch.tell is not None:
            self._observed("".join(texts), "".join(pieces) if call < 0 else "")
        if not self.stopped and not pieces:
            return None
        if not self.stopped and self._sink is not None and self._sink.push_texts(pieces, call) is None:
            return None
        if call < 0:
            return [self._certain(piece) for piece in pieces]
        return plain_chunks(pieces, call)

    def _grown_arguments(self, texts: list[str], index: int, live: LiveCall) -> list[str]:
        """What may be released of these pieces of arguments of the call that the vendor has given this index."""
        pieces: list[str] = []
        if self._calls is None:
            return pieces
        if index != self._unfolded_index or self._folded < len(self._texts):
            self._fold()
            self._unfolded_index = index
        for text in texts:
            self._unfolded.append(text)
            piece = self._calls.grow(live, text)
            if piece:
                pieces.append(piece)
            if self._calls.fault is not None or self._runaway.feed_arguments(text, index):
                self.stopped = True
                break
        return pieces

    def _observed(self, received: str, released: str) -> None:
        """Report to the watch what was received, what was released, and how much is waiting."""
        waiting = 0
        if self._leads and self._gate is not None and not self._prose:
            waiting = self._gate.held
        if self.watch.tell is not None and (received or released):
            self.watch.tell(self.attempts, received, released, waiting)

    def _grown(self, texts: list[str]) -> list[str] | None:
        """What may be released of these texts; None where that takes more than a look at them."""
        if (self._calls is not None and self._calls.any_open) or self._item is not None:
            return None
        if self._free:
            self._texts += texts
            self._sent += texts
            return texts
        gate = self._gate
        if gate is None or self._by_tool or self._prose:
            return None
        pieces: list[str] = []
        for text in texts:
            self._texts.append(text)
            piece = self._feed_gate(text, gate)
            if piece:
                pieces.append(piece)
            if self._runaway.feed_text(text):
                self.stopped = True
            if self.stopped:
                break
        return pieces

    def _take(self, batch: Sequence[CompletionChunk]) -> list[CompletionChunk]:
        """Fold chunks into the answer; return those that may be sent now."""
        certain: list[CompletionChunk] = []
        for chunk in batch:
            if self._watched is not None:
                self.stopped = self._watched.push(chunk)
            else:
                self._fold()
                self._reducer.push(chunk)
                if self._leads and chunk.choice == 0:
                    self._lead(chunk, certain)
            if self._runaway.feed(chunk):
                self.stopped = True
            if self.stopped:
                break
        return certain

    # Compiled code holds values to their types; what comes from a vendor is read unchecked.

    def _lead(self, chunk: Any, certain: list[CompletionChunk]) -> None:
        """Follow a chunk of the answer that is followed; what may be released is added to `certain`."""
        self._read_head(chunk)
        if chunk.lift is not None and self._gate is not None:
            self._lift = chunk.lift
            self._gate.lift_with(chunk.lift.plan)
        calls = self._calls
        if calls is not None and calls.any_open and (chunk.text or chunk.reasoning):
            self._leave(calls.end(), certain)  # something else has begun
        if chunk.text:
            self._note_item(chunk.extra)
            self._texts.append(chunk.text)
            self._folded += 1
            self._say(chunk.text, certain)
        if chunk.reasoning or chunk.parts:
            self._aside(chunk, certain)
        for delta in chunk.tool_calls:
            if not self.stopped:
                self._call(delta, certain)
        if calls is not None and calls.any_open and chunk.finish in ("stop", "tool_calls"):
            self._leave(calls.end(), certain)

    def _read_head(self, chunk: Any) -> None:
        """Note what a chunk says of the answer as a whole."""
        if chunk.id is not None:
            self._id = chunk.id
        if chunk.model is not None:
            self._model = chunk.model
        if chunk.extra and not self.has_shown:
            merge_extra(self._head, head_fields(chunk.extra))

    def _note_item(self, extra: Mapping[str, Any]) -> None:
        """Remember which item of its vendor's the text of a chunk begins, if it begins one."""
        if extra:
            self._item = _item_fields(extra) or self._item

    def _aside(self, chunk: Any, certain: list[CompletionChunk]) -> None:
        """Release what comes beside the text: no schema constrains it, so it is sent as it arrives."""
        parts = tuple([part for part in chunk.parts if self._free or not isinstance(part, Text)])
        if chunk.reasoning or parts:
            self._asides += parts
            self._thought = self._thought or bool(chunk.reasoning)
            aside = CompletionChunk(reasoning=chunk.reasoning, parts=parts, model=self._model, id=self._id)
            aside = self._headed(aside)
            certain.append(aside._replace(extra={**chunk.extra, **aside.extra}) if chunk.extra else aside)

    def _say(self, text: str, certain: list[CompletionChunk]) -> None:
        """Follow a piece of text: prose is sent unchanged, JSON as far as the gate releases it."""
        gate = self._gate
        piece = ""
        if self._prose:
            piece = text if self._free else self._not_a_call(text)
            if piece:
                self._sent.append(piece)
        elif gate is not None and not self._by_tool:
            piece = self._feed_gate(text, gate)
        if piece:
            certain.append(self._certain(piece))

    def _not_a_call(self, text: str) -> str:
        """What is released of a text where a call is required: a call may have been written as text."""
        bracket = None if self._withholds else _MAY_BE_A_CALL.search(text)
        if bracket is not None:
            text = text[: bracket.start()]
            self._withholds = True
        elif self._withholds:
            text = ""
        return text

    def _feed_gate(self, text: str, gate: ReleaseGate) -> str:
        """Return what the gate releases of a piece; stops the answer where the validator confirms the gate's fault."""
        piece = gate.feed(text)
        if gate.fault is None:
            return piece
        if self._plan.budget.attempts == 1 and gate.may_be_read_whole:
            gate.give_up()  # no other attempt will give the answer
        else:
            self.stopped = gate.confirmed(self._plan.standard)
        return piece

    def _begin_output(self, index: Any) -> None:
        """The reserved tool is called: its arguments are the answer."""
        gate = self._gate
        self._output_called = True
        self._output_index = index
        if gate is None or self._by_tool or gate.sent:
            return
        # The codec chose the tool instead of the native mode; the text before it is not the answer.
        self._by_tool = True
        self._gate = self._new_gate()
        if self._lift is not None and self._gate is not None:
            self._gate.lift_with(self._lift.plan)

    def _call(self, delta: Any, certain: list[CompletionChunk]) -> None:
        """Follow a piece of a call, of the caller's tools or of the reserved one, whose arguments are the answer."""
        gate = self._gate
        answer_tool = self._plan.answer_tool
        is_answer = delta.name is not None and delta.name == answer_tool
        if is_answer and not self._output_called:
            self._begin_output(delta.index)
        if self._output_called and delta.index == self._output_index and (is_answer or delta.name is None):
            if self._by_tool and not self._prose and self._gate is not None and isinstance(delta.arguments, str):
                piece = self._feed_gate(delta.arguments, self._gate)
                if piece:
                    certain.append(self._certain(piece))
        elif is_answer:
            pass  # a second answer; the first one counts
        elif self._calls is not None:
            self._leave(self._calls.feed(delta, self._id), certain)
        elif gate is not None:
            gate.give_up()

    def _free_text(self, certain: list[CompletionChunk]) -> None:
        """Release the text that was held back: there is a call, so it is neither the answer nor a call itself."""
        if self._free:
            return
        text = "".join(self._texts)
        sent = "".join(self._sent)
        if self._gate is not None and self._gate.sent:
            text = sent = self._gate.sent_text
        self._sent = [text]
        self._free = self._prose = True
        if len(text) > len(sent):
            certain.append(self._certain(text[len(sent) :]))

    def _leave(self, deltas: list[ToolDelta], certain: list[CompletionChunk]) -> None:
        """Release these pieces of calls, and stop where one can become no valid call."""
        if self._calls is not None and self._calls.fault is not None:
            self.stopped = True
        if deltas:
            self._free_text(certain)
            chunk = CompletionChunk("", "", "", tuple(deltas), None, None, None, 0, self._model, self._id)
            certain.append(self._headed(chunk))

    def _certain(self, piece: str) -> CompletionChunk:
        chunk = self._headed(CompletionChunk(piece, "", "", (), None, None, None, 0, self._model, self._id))
        if self._item is not None:
            chunk = chunk._replace(extra={**chunk.extra, **self._item})
            self._item = None
        return chunk

    def _headed(self, chunk: CompletionChunk) -> CompletionChunk:
        """The chunk; the first one with what the vendor says of the answer as a whole."""
        if not self._head:
            return chunk
        head = self._head
        self._head = {}
        return chunk._replace(extra=head)

    def _fold(self) -> None:
        """Pass the reducer what it has not received yet; of text and arguments, only one is waiting."""
        if self._unfolded:
            self._reducer.push(plain_chunks(("".join(self._unfolded),), self._unfolded_index)[0])
            self._unfolded.clear()
        if self._folded < len(self._texts):
            self._reducer.push(CompletionChunk("".join(self._texts[self._folded :])))
            self._folded = len(self._texts)

    def response(self) -> ModelResponse:
        """The answer for the judge; one that was stopped is closed where it was open."""
        response = self._read_answer()
        if self.has_released:
            return response.replace(continues=self._continues)
        return response

    @property
    def has_shown(self) -> bool:
        """Whether the caller has seen anything of the answer, be it thinking."""
        return self.has_released or self._thought or bool(self._asides)

    @property
    def shown_id(self) -> str | None:
        """The id of the answer under which the caller has seen something of it."""
        if self._id is not None and self.has_shown:
            return str(self._id)
        return None

    @property
    def replaced_ids(self) -> Mapping[str, str]:
        """By the ids of calls that the caller has seen, those of the calls that took their places."""
        return {} if self._calls is None else self._calls.replaced

    @property
    def has_released(self) -> bool:
        """Whether some of the answer has been released, which later attempts have to continue from."""
        gate = self._gate
        return (
            bool(self._sent) or (gate is not None and gate.sent) or (self._calls is not None and self._calls.has_left)
        )

    def _read_answer(self) -> ModelResponse:
        """Return the answer so far as a response, with the reason if the stream was stopped."""
        if self._watched is not None:
            response = self._watched.response()
        else:
            self._fold()
            response = self._reducer.finish(check=False)
        if self.stopped or self._broke_off:
            response = with_estimated_usage(response, self._request)
        gate = self._gate
        if gate is not None and self._leads and not self._prose and not self._by_tool:
            response = response.replace(stream=gate.figures("".join(self._texts)))
        if self._runaway.error is not None and response.stopped is None:
            return response.replace(stopped=self._runaway.error)
        if not self.stopped or not self._leads:
            return response
        if gate is not None and gate.fault is not None:
            text = gate.closed_text()
            stop = gate.stop_point()
            return response.replace(text=text, tool_calls=(), parts=(), finish="stop", lift=None, stop=stop)
        if self._calls is None:
            return response
        return self._calls.closed(response)

    def _continues(self, outcome: Outcome) -> bool:
        rest, calls = self._rest(outcome)
        return rest is not None and calls is not None

    def _rest(self, outcome: Outcome) -> tuple[_TextRest | None, _CallsRest | None]:
        """Return what to release of the text and of the calls; None for what does not continue what is released."""
        answer = outcome.answer
        calls = (self._calls or LiveCalls(self._plan.standard)).settled(answer.tool_calls)
        return self._text_rest(outcome.text, called=bool(answer.tool_calls)), calls

    def settled(self, outcome: Outcome) -> tuple[list[CompletionChunk], Outcome]:
        """The chunks that are to be released last, and the outcome with the text and the calls released by then."""
        rest, calls = self._rest(outcome)
        if rest is None or calls is None:
            error = changed_after_release()
            error.report = outcome.report
            raise error
        if rest[1] != outcome.text or calls[1] != outcome.answer.tool_calls:
            response = outcome.response
            if calls[1]:
                parts = with_content(response.parts, response.text, calls[1]) if response.parts else ()
                response = response.replace(tool_calls=calls[1], parts=parts)
            outcome = msgspec.structs.replace(outcome, text=rest[1], response=response)
        self._observed("", rest[0])
        return self._closing(outcome.answer, len(rest[1]) - len(rest[0]), calls[0]), outcome

    def _closing(
        self, answer: ModelResponse, sent_text: int, calls: Mapping[str, ToolDelta | None]
    ) -> list[CompletionChunk]:
        """What has not left yet, why the answer ended, and what it cost; first the ends of calls that have begun."""
        sent = {id(part) for part in self._asides}
        open_calls = [delta for delta in calls.values() if delta is not None and delta.id is None]
        more = {identity: None if delta is None or delta.id is None else delta for identity, delta in calls.items()}
        parts: Sequence[Part] = answer.message.parts
        if self._thought and self._leads:
            # Its words have been released; a part with nothing but words says no more.
            parts = [part for part in parts if not (isinstance(part, Reasoning) and not part.opaque)]
        elif sent_text or None in more.values():
            parts = _without_late_thoughts(parts, sent)
        last = CompletionChunk(
            finish=answer.finish, raw_finish=answer.raw_finish, usage=answer.usage, id=answer.id, extra=answer.extra
        )
        closing = [CompletionChunk(tool_calls=(delta,)) for delta in open_calls]
        closing += [*part_chunks(parts, sent_text=sent_text, sent=sent, calls=more), last]
        if not self.has_shown:
            first = closing[0]._replace(id=answer.id, model=answer.model)
            closing[0] = first if first.extra else first._replace(extra=head_fields(answer.extra))
        return closing

    def _text_rest(self, final: str, *, called: bool) -> _TextRest | None:
        """Return what to release of the text, and all that is released then; None if it does not continue it."""
        if not self._prose and self._gate is not None and not called:
            return self._gate.rest(final)
        sent = "".join(self._sent)
        if not self._prose and self._gate is not None:
            sent = self._gate.sent_text
        if final.startswith(sent):
            return final[len(sent) :], final
        if called:
            return "", sent  # the text beside a call that was retried is about the one before
        if self._plan.schema is not None:
            return None
        return _BETWEEN + final, sent + _BETWEEN + final


def _item_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Which item of its vendor's a chunk begins."""
    return {key: each for key, each in extra.items() if isinstance(each, Mapping) and ITEM_ID in each}


class OpenStream:
    """One stream to a caller, over all models that are asked for it."""

    def __init__(self, sink: ChunkSink | None = None, watch: StreamWatch | None = None) -> None:
        self.sink = sink
        self.watch = watch
        self.reader: EnforcedStream | None = None
        """What has been released is here; later answers continue from it."""


def _without_late_thoughts(parts: Sequence[Part], sent: Collection[int]) -> list[Part]:
    """The parts without thinking that has not left: after a retry it comes too late, behind another one's."""
    return [part for part in parts if not isinstance(part, Reasoning) or id(part) in sent]


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
        self,
        steps: Steps,
        plan: Plan,
        *,
        streaming: bool = False,
        release: Release = NOTHING_EARLY,
        opened: OpenStream | None = None,
    ) -> None:
        self._steps = steps
        self._plan = plan
        self._streaming = streaming
        self._release = release
        self._opened = opened
        self._asks_anew = True
        """Whether the request is the first one to this model, or the same as the one before it."""
        self.asked: ModelRequest = next(steps)
        """The request to send next, until the call has an outcome."""
        self.outcome: Outcome | None = None
        self.attempt = 1

    def read(self) -> EnforcedStream:
        """What is given the pieces of the answer to `asked`; its `response` is that answer."""
        opened = self._opened = self._opened or OpenStream()
        reader = opened.reader
        if reader is None or (self._asks_anew and not reader.has_shown):
            attempts = 0 if reader is None else reader.attempts
            reader = opened.reader = EnforcedStream(self._plan, self._release, opened.sink)
            reader.attempts = attempts
            if opened.watch is not None:
                reader.watch = opened.watch
        elif self._asks_anew:
            reader.adopt(self._plan)
        reader.begin(self.asked)
        return reader

    def reader(self) -> EnforcedStream | None:
        """`read` where pieces are needed, by a guard or a stream; None where the answer may come whole."""
        if not self._streaming and not self._plan.guard.watches:
            return None
        reader = self.read()
        if self._streaming or reader.is_guarded:
            return reader
        return None

    def answer(self, response: ModelResponse) -> None:
        """Judge this answer: afterwards there is an outcome, or another request; raises when there is neither."""
        try:
            request = self._steps.send(response)
        except StopIteration as done:
            self.outcome = done.value
        else:
            self._ask_next(request)

    def fail(self, error: BaseException) -> None:
        """End the call without an answer; raises the error, with the report so far, unless it can be continued."""
        reader = None if self._opened is None else self._opened.reader
        if isinstance(error, SlipformError) and reader is not None:
            reader.break_off()
            error.response = reader.response()
        try:
            request = self._steps.throw(error)
        except StopIteration as done:
            self.outcome = done.value
        else:
            self._ask_next(request)

    def last(self) -> tuple[list[CompletionChunk], Outcome]:
        """Return what is left to release of a finished stream, and the outcome with all that is released then."""
        if self._opened is None or self._opened.reader is None or self.outcome is None:
            raise TypeError("The call has no streamed answer, or it has not ended")
        return self._opened.reader.settled(self.outcome)

    def _ask_next(self, request: ModelRequest) -> None:
        self._asks_anew = request.messages is self.asked.messages
        self.asked = request
        self.attempt += 1

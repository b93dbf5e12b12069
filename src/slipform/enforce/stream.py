"""Run one enforced stream without I/O: produce the requests to send and the chunks to release."""

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
"""Where a call may begin that the model writes as text; the judge accepts it as the call if one was required."""
_BETWEEN: Final = "\n\n"
"""Separates a released text from the text of a retried answer that does not continue it."""


Observer: TypeAlias = Callable[[int, str, str, int], None]
"""Called for each piece with the attempt's number, the received text, the released text and the pending length."""


_TextRest: TypeAlias = tuple[str, str]
_CallsRest: TypeAlias = tuple[dict[str, ToolDelta | None], tuple[ToolCall, ...]]


class Release(NamedTuple):
    """Which parts of a streamed answer are released before its end."""

    asides: bool = False
    """Reasoning, text without a schema, and calls of the caller's tools."""
    answer: bool = False
    """The JSON answer."""
    after_prose: bool = True
    """Whether JSON is released early after more than a short lead-in."""


NOTHING_EARLY: Final = Release()


class StreamWatch:
    """The observer of every piece of a stream; it may be attached and detached while the stream runs."""

    def __init__(self, tell: Observer | None = None) -> None:
        self.tell = tell


def _answer_text(chunk: Any) -> str:
    """Return a chunk's part of the answer: text, or arguments of the tool that carries it."""
    if chunk.choice != 0:
        return ""
    calls = [delta.arguments for delta in chunk.tool_calls if isinstance(delta.arguments, str)]
    return chunk.text + "".join(calls) if calls else str(chunk.text)


class EnforcedStream:
    """Reads the answers of one call: the first is released while it grows, retried ones are read whole."""

    def __init__(self, plan: Plan, release: Release = NOTHING_EARLY, sink: ChunkSink | None = None) -> None:
        self._plan = plan
        self._sink = sink
        self._reducer = Reducer()
        self._texts: list[str] = []
        """The pieces of the text that is followed."""
        self._folded = 0
        """How many of these the reducer has received; the others follow at the end."""
        self._unfolded: list[str] = []
        self._unfolded_index = -1
        """The index of the call whose arguments in `_unfolded` the reducer has not received yet."""
        has_answer = plan.schema is not None and not plan.must_call
        self._release = release
        self._gate = self._new_gate() if release.answer and has_answer else None
        self._calls: LiveCalls | None = None
        if release.asides and plan.calls:
            self._calls = LiveCalls(plan.standard, holds=plan.on_failure == "raw")
        self._live = release.asides or release.answer
        self._prose = release.asides and not has_answer
        """Whether the answer's text has no schema."""
        self._releases_all_text = self._prose and not plan.must_call
        """Whether all text is released as it arrives."""
        self._sent: list[str] = []
        """The released prose."""
        self._asides: list[Any] = []
        """The released parts: reasoning, and parts that only their vendor understands."""
        self._reasoning_sent = False
        self._withholds = False
        """Whether text is held back that may be a call."""
        self._by_tool = plan.strategy is OutputStrategy.TOOL
        self._output_index: int | None = None
        self._output_called = False
        self._is_released_live = False
        """Whether the current answer is the one that is released while it grows."""
        self._is_first = True
        self._watched: GuardedAnswer | None = None
        self._runaway = RunawayStop(plan.schema)
        self._lift: Any = None
        """Converts the vendor's shape to the caller's, if the schema had to be rewritten."""
        self._id: Any = None
        self._model: Any = None
        self._item: Any = None
        """The vendor's item that begins with the next released text; None once it has been announced."""
        self._head: dict[str, Any] = {}
        """The vendor's fields about the answer as a whole; they are released with the first piece."""
        self.stopped = False
        self._broke_off = False
        self._request = NO_REQUEST
        self.watch = StreamWatch()
        self.attempts = 0
        """How many answers have begun, including this one."""

    def _new_gate(self) -> ReleaseGate | None:
        plan = self._plan
        if plan.schema is None:
            return None
        return ReleaseGate(plan.schema, plan.switches, after_prose=self._release.after_prose)

    @property
    def is_guarded(self) -> bool:
        """Whether a guard checks the current answer."""
        return self._watched is not None

    @property
    def complete(self) -> bool:
        """Whether the JSON that is released has its last bracket."""
        return self._is_released_live and not self._prose and self._gate is not None and self._gate.complete

    def adopt(self, plan: Plan) -> None:
        """Continue with another model: its answer has to continue the released text."""
        self._plan = plan

    def break_off(self) -> None:
        """Record that the answer ended without its end."""
        self._broke_off = True

    def begin(self, request: ModelRequest) -> None:
        """Start reading the answer to this request."""
        self._reducer.start(Snapshot(emulated=None if self._plan.answer_tool else False))
        self._is_released_live = self._live and self._is_first
        watch = None if self._is_released_live else self._plan.watch(request)
        self._watched = None if watch is None else GuardedAnswer(watch)
        self._runaway = RunawayStop(self._plan.schema)
        self._is_first = self.stopped = self._broke_off = False
        self._request = request
        self.attempts += 1

    def push(self, batch: Sequence[CompletionChunk]) -> Sequence[CompletionChunk] | None:
        """Return the releasable chunks that the sink did not accept; None if the caller has nothing to do.

        Sets `stopped` when the rest of the answer is not needed.
        """
        certain = self._take(batch)
        if self.watch.tell is not None:
            self._notify_observer(
                "".join([_answer_text(chunk) for chunk in batch]), "".join([each.text for each in certain])
            )
        if self.stopped or self._sink is None:
            if certain or self.stopped:
                return certain
            return None
        return self._sink.push(certain) if certain else None

    def push_texts(self, texts: list[str], call: int = -1) -> Sequence[CompletionChunk] | None:
        """Do the same as `push` for chunks that contain only text, or only arguments of one call."""
        live = None
        if call >= 0 and self._is_released_live and self._calls is not None:
            live = self._calls.begun(call)
        pieces: list[str] | None = None
        if live is not None:
            pieces = self._releasable_arguments(texts, call, live)
            call = live.index
        elif self._is_released_live and call < 0:
            pieces = self._releasable_texts(texts)
        if pieces is None:
            return self.push(plain_chunks(texts, call))
        if self.watch.tell is not None:
            self._notify_observer("".join(texts), "".join(pieces) if call < 0 else "")
        if not self.stopped and not pieces:
            return None
        if not self.stopped and self._sink is not None and self._sink.push_texts(pieces, call) is None:
            return None
        if call < 0:
            return [self._text_chunk(piece) for piece in pieces]
        return plain_chunks(pieces, call)

    def _releasable_arguments(self, texts: list[str], index: int, live: LiveCall) -> list[str]:
        """Return the releasable pieces of arguments of the call with this index."""
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

    def _notify_observer(self, received: str, released: str) -> None:
        """Report the received text, the released text and the pending length to the observer."""
        waiting = 0
        if self._is_released_live and self._gate is not None and not self._prose:
            waiting = self._gate.pending_chars
        if self.watch.tell is not None and (received or released):
            self.watch.tell(self.attempts, received, released, waiting)

    def _releasable_texts(self, texts: list[str]) -> list[str] | None:
        """Return the releasable part of these texts; None if they need more than the gate."""
        if (self._calls is not None and self._calls.any_open) or self._item is not None:
            return None
        if self._releases_all_text:
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
        """Add chunks to the answer; return those that may be sent now."""
        certain: list[CompletionChunk] = []
        for chunk in batch:
            if self._watched is not None:
                self.stopped = self._watched.push(chunk)
            else:
                self._fold()
                self._reducer.push(chunk)
                if self._is_released_live and chunk.choice == 0:
                    self._follow_chunk(chunk, certain)
            if self._runaway.feed(chunk):
                self.stopped = True
            if self.stopped:
                break
        return certain

    # Compiled code checks the declared types of values; chunks from a vendor may violate them, hence Any.

    def _follow_chunk(self, chunk: Any, certain: list[CompletionChunk]) -> None:
        """Process a chunk of the released answer; append its releasable part to `certain`."""
        self._read_head(chunk)
        if chunk.lift is not None and self._gate is not None:
            self._lift = chunk.lift
            self._gate.lift_with(chunk.lift.plan)
        calls = self._calls
        if calls is not None and calls.any_open and (chunk.text or chunk.reasoning):
            self._release_calls(calls.end(), certain)  # something else has begun
        if chunk.text:
            self._note_item(chunk.extra)
            self._texts.append(chunk.text)
            self._folded += 1
            self._release_text(chunk.text, certain)
        if chunk.reasoning or chunk.parts:
            self._release_reasoning(chunk, certain)
        for delta in chunk.tool_calls:
            if not self.stopped:
                self._follow_call(delta, certain)
        if calls is not None and calls.any_open and chunk.finish in ("stop", "tool_calls"):
            self._release_calls(calls.end(), certain)

    def _read_head(self, chunk: Any) -> None:
        """Store a chunk's fields about the answer as a whole."""
        if chunk.id is not None:
            self._id = chunk.id
        if chunk.model is not None:
            self._model = chunk.model
        if chunk.extra and not self.has_shown:
            merge_extra(self._head, head_fields(chunk.extra))

    def _note_item(self, extra: Mapping[str, Any]) -> None:
        """Remember the vendor's item that a chunk's text begins, if it begins one."""
        if extra:
            self._item = _item_fields(extra) or self._item

    def _release_reasoning(self, chunk: Any, certain: list[CompletionChunk]) -> None:
        """Release reasoning and vendor's parts: no schema constrains them, so they are sent as they arrive."""
        parts = tuple([part for part in chunk.parts if self._releases_all_text or not isinstance(part, Text)])
        if chunk.reasoning or parts:
            self._asides += parts
            self._reasoning_sent = self._reasoning_sent or bool(chunk.reasoning)
            aside = CompletionChunk(reasoning=chunk.reasoning, parts=parts, model=self._model, id=self._id)
            aside = self._with_head(aside)
            certain.append(aside._replace(extra={**chunk.extra, **aside.extra}) if chunk.extra else aside)

    def _release_text(self, text: str, certain: list[CompletionChunk]) -> None:
        """Process a piece of text: prose is sent unchanged, JSON as far as the gate releases it."""
        gate = self._gate
        piece = ""
        if self._prose:
            piece = text if self._releases_all_text else self._not_a_call(text)
            if piece:
                self._sent.append(piece)
        elif gate is not None and not self._by_tool:
            piece = self._feed_gate(text, gate)
        if piece:
            certain.append(self._text_chunk(piece))

    def _not_a_call(self, text: str) -> str:
        """Return the text before a possible call: a required call may have been written as text."""
        bracket = None if self._withholds else _MAY_BE_A_CALL.search(text)
        if bracket is not None:
            text = text[: bracket.start()]
            self._withholds = True
        elif self._withholds:
            text = ""
        return text

    def _feed_gate(self, text: str, gate: ReleaseGate) -> str:
        """Return the part of a piece that the gate releases; stop the answer if the validator confirms its fault."""
        piece = gate.feed(text)
        if gate.fault is None:
            return piece
        if self._plan.budget.attempts == 1 and gate.may_be_read_whole:
            gate.give_up()  # no attempt is left to replace the answer
        else:
            self.stopped = gate.confirm_fault(self._plan.standard)
        return piece

    def _begin_output(self, index: Any) -> None:
        """Start reading the arguments of the reserved tool: they are the answer."""
        gate = self._gate
        self._output_called = True
        self._output_index = index
        if gate is None or self._by_tool or gate.sent:
            return
        # The codec chose the tool over the native mode; the text before the call is not the answer.
        self._by_tool = True
        self._gate = self._new_gate()
        if self._lift is not None and self._gate is not None:
            self._gate.lift_with(self._lift.plan)

    def _follow_call(self, delta: Any, certain: list[CompletionChunk]) -> None:
        """Process a piece of a call: of the caller's tools, or of the reserved tool, whose arguments are the answer."""
        gate = self._gate
        answer_tool = self._plan.answer_tool
        is_answer = delta.name is not None and delta.name == answer_tool
        if is_answer and not self._output_called:
            self._begin_output(delta.index)
        if self._output_called and delta.index == self._output_index and (is_answer or delta.name is None):
            if self._by_tool and not self._prose and self._gate is not None and isinstance(delta.arguments, str):
                piece = self._feed_gate(delta.arguments, self._gate)
                if piece:
                    certain.append(self._text_chunk(piece))
        elif is_answer:
            pass  # a second answer; the first one counts
        elif self._calls is not None:
            self._release_calls(self._calls.feed(delta, self._id), certain)
        elif gate is not None:
            gate.give_up()

    def _release_withheld_text(self, certain: list[CompletionChunk]) -> None:
        """Release the withheld text: there is a call, so the text is neither the answer nor a call."""
        if self._releases_all_text:
            return
        text = "".join(self._texts)
        sent = "".join(self._sent)
        if self._gate is not None and self._gate.sent:
            text = sent = self._gate.sent_text
        self._sent = [text]
        self._releases_all_text = self._prose = True
        if len(text) > len(sent):
            certain.append(self._text_chunk(text[len(sent) :]))

    def _release_calls(self, deltas: list[ToolDelta], certain: list[CompletionChunk]) -> None:
        """Release these pieces of calls, and stop if one can no longer become a valid call."""
        if self._calls is not None and self._calls.fault is not None:
            self.stopped = True
        if deltas:
            self._release_withheld_text(certain)
            chunk = CompletionChunk("", "", "", tuple(deltas), None, None, None, 0, self._model, self._id)
            certain.append(self._with_head(chunk))

    def _text_chunk(self, piece: str) -> CompletionChunk:
        chunk = self._with_head(CompletionChunk(piece, "", "", (), None, None, None, 0, self._model, self._id))
        if self._item is not None:
            chunk = chunk._replace(extra={**chunk.extra, **self._item})
            self._item = None
        return chunk

    def _with_head(self, chunk: CompletionChunk) -> CompletionChunk:
        """Return the chunk; the first chunk carries the vendor's fields about the whole answer."""
        if not self._head:
            return chunk
        head = self._head
        self._head = {}
        return chunk._replace(extra=head)

    def _fold(self) -> None:
        """Pass the pending text or arguments to the reducer; never both are pending."""
        if self._unfolded:
            self._reducer.push(plain_chunks(("".join(self._unfolded),), self._unfolded_index)[0])
            self._unfolded.clear()
        if self._folded < len(self._texts):
            self._reducer.push(CompletionChunk("".join(self._texts[self._folded :])))
            self._folded = len(self._texts)

    def response(self) -> ModelResponse:
        """Return the answer for the judge; if it was stopped, its open parts are closed."""
        response = self._read_answer()
        if self.has_released:
            return response.replace(continues=self._continues)
        return response

    @property
    def has_shown(self) -> bool:
        """Whether the caller has received anything of the answer, including reasoning."""
        return self.has_released or self._reasoning_sent or bool(self._asides)

    @property
    def shown_id(self) -> str | None:
        """The id of the answer if the caller has received some of it."""
        if self._id is not None and self.has_shown:
            return str(self._id)
        return None

    @property
    def replaced_ids(self) -> Mapping[str, str]:
        """The ids of replacement calls, by the ids that the caller has received."""
        return {} if self._calls is None else self._calls.replaced

    @property
    def has_released(self) -> bool:
        """Whether a part of the answer has been released that later attempts have to continue."""
        gate = self._gate
        return (
            bool(self._sent)
            or (gate is not None and gate.sent)
            or (self._calls is not None and self._calls.has_released)
        )

    def _read_answer(self) -> ModelResponse:
        """Return the answer read so far, with the reason if it was stopped."""
        if self._watched is not None:
            response = self._watched.response()
        else:
            self._fold()
            response = self._reducer.finish(check=False)
        if self.stopped or self._broke_off:
            response = with_estimated_usage(response, self._request)
        gate = self._gate
        if gate is not None and self._is_released_live and not self._prose and not self._by_tool:
            response = response.replace(stream=gate.stream_figures("".join(self._texts)))
        if self._runaway.error is not None and response.stopped is None:
            return response.replace(stopped=self._runaway.error)
        if not self.stopped or not self._is_released_live:
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
        """Return the text and the calls still to release; None for one that does not continue the released part."""
        answer = outcome.answer
        calls = (self._calls or LiveCalls(self._plan.standard)).resolve(answer.tool_calls)
        return self._text_rest(outcome.text, called=bool(answer.tool_calls)), calls

    def resolve(self, outcome: Outcome) -> tuple[list[CompletionChunk], Outcome]:
        """Return the last chunks to release, and the outcome with the released text and calls."""
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
        self._notify_observer("", rest[0])
        return self._closing(outcome.answer, len(rest[1]) - len(rest[0]), calls[0]), outcome

    def _closing(
        self, answer: ModelResponse, sent_text: int, calls: Mapping[str, ToolDelta | None]
    ) -> list[CompletionChunk]:
        """Return the last chunks: the ends of open calls, the unsent parts, the finish reason and the usage."""
        sent = {id(part) for part in self._asides}
        open_calls = [delta for delta in calls.values() if delta is not None and delta.id is None]
        more = {identity: None if delta is None or delta.id is None else delta for identity, delta in calls.items()}
        parts: Sequence[Part] = answer.message.parts
        if self._reasoning_sent and self._is_released_live:
            # The reasoning's text has been released; a part with only text adds nothing.
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
        """Return the text to release and all released text; None if `final` does not continue the released text."""
        if not self._prose and self._gate is not None and not called:
            return self._gate.rest(final)
        sent = "".join(self._sent)
        if not self._prose and self._gate is not None:
            sent = self._gate.sent_text
        if final.startswith(sent):
            return final[len(sent) :], final
        if called:
            return "", sent  # the text beside a retried call describes the earlier call
        if self._plan.schema is not None:
            return None
        return _BETWEEN + final, sent + _BETWEEN + final


def _item_fields(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the vendor's item that a chunk begins."""
    return {key: each for key, each in extra.items() if isinstance(each, Mapping) and ITEM_ID in each}


class OpenStream:
    """One stream to a caller, across all models of a fallback list."""

    def __init__(self, sink: ChunkSink | None = None, watch: StreamWatch | None = None) -> None:
        self.sink = sink
        self.watch = watch
        self.reader: EnforcedStream | None = None
        """Holds the released text, which later answers continue."""


def _without_late_thoughts(parts: Sequence[Part], sent: Collection[int]) -> list[Part]:
    """Return the parts without unsent reasoning: after a retry it would follow the reasoning of another answer."""
    return [part for part in parts if not isinstance(part, Reasoning) or id(part) in sent]


class EnforcedCall:
    """One request under enforcement: the next request, the answer so far, the outcome. Does no I/O.

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
        """Whether the request starts a new conversation: it is the model's first, or repeats the earlier one."""
        self.request: ModelRequest = next(steps)
        """The next request to send, until there is an outcome."""
        self.outcome: Outcome | None = None
        self.attempt = 1

    def read(self) -> EnforcedStream:
        """Return the reader for the pieces of the answer to `request`; its `response` is that answer."""
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
        reader.begin(self.request)
        return reader

    def reader(self) -> EnforcedStream | None:
        """Return the reader if a guard or a stream needs pieces; None if the answer may arrive whole."""
        if not self._streaming and not self._plan.guard.watches:
            return None
        reader = self.read()
        if self._streaming or reader.is_guarded:
            return reader
        return None

    def answer(self, response: ModelResponse) -> None:
        """Judge this answer and set an outcome or the next request; raises if there is neither."""
        try:
            request = self._steps.send(response)
        except StopIteration as done:
            self.outcome = done.value
        else:
            self._ask_next(request)

    def fail(self, error: BaseException) -> None:
        """End the call without an answer: raise the error with the report so far, unless the call can be continued."""
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
        """Return the last chunks of a finished stream, and the outcome with all released text."""
        if self._opened is None or self._opened.reader is None or self.outcome is None:
            raise TypeError("The call has no streamed answer, or it has not ended")
        return self._opened.reader.resolve(self.outcome)

    def _ask_next(self, request: ModelRequest) -> None:
        self._asks_anew = request.messages is self.request.messages
        self.request = request
        self.attempt += 1

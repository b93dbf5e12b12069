"""Follow one enforced call through its attempts and report partial values, deltas and items of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, NoReturn, TypeVar

from slipform.enforce import Outcome, Report
from slipform.enforce.judging import NOT_TYPED, is_quickly_judged
from slipform.enforce.stream import EnforcedStream, Release
from slipform.engine.fallback import FallbackCall
from slipform.errors import ConfigError, EnforcementError, SlipformError
from slipform.ir import UNRESOLVED, CompletionChunk, Lift, Message, ModelResponse, ToolCall, Usage
from slipform.ir.evidence import FieldEvidence
from slipform.ir.reducer import JsonParser, ParserChoice, Reducer, Snapshot
from slipform.library.partial import Kind, Memory, Partial, ValuePath, finished_items, restore_parts
from slipform.library.tool_loop import AskEffect, Conversation, ConversationSpec, RunEffect, ToolRun, conversation
from slipform.providers.router import Router
from slipform.schema import OutputStrategy, Schema
from slipform.text.lifted import LiftedText
from slipform.text.parser import Parser
from slipform.text.tree import PENDING

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """An answer and the report of how it was obtained."""

    value: T
    text: str
    """The answer as compact JSON."""
    report: Report
    messages: tuple[Message, ...] = ()
    """The whole conversation including this answer: append a message to continue it."""
    runs: tuple[ToolRun, ...] = ()
    """The tool calls that were run, in order."""

    @property
    def usage(self) -> Usage:
        """The tokens of all attempts."""
        return self.report.usage

    @property
    def evidence(self) -> Mapping[str, FieldEvidence]:
        """The evidence for each value, by JSON Pointer; empty unless the call requested `evidence`."""
        return self.report.evidence or {}


def result_of(schema: Schema[T], ended: Conversation) -> Result[T]:
    """Return the answer of a conversation as an object of the requested type."""
    outcome = ended.outcome
    typed = schema.to_python(outcome.value) if outcome.typed is NOT_TYPED else outcome.typed
    return Result(typed, outcome.text, outcome.report, ended.messages, ended.runs)


@dataclass(frozen=True, slots=True)
class Delta:
    """One change of the answer's JSON.

    * `"set"`: `path` now has `value`; only a string may still grow;
    * `"open"`: an object or array was opened at `path`; `value` is an empty one, and its children follow;
    * `"text"`: the string at `path` grew by `value`;
    * `"restart"`: the answer was invalid and is retried; discard everything. `value` is the number of the new attempt.

    >>> Delta(("name",), "text", "da").value
    'da'
    """

    path: ValuePath
    kind: Literal["set", "open", "text", "restart"]
    value: Any


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of text that the model writes before its answer, or beside its tool calls."""

    text: str
    step: int = 1


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A tool call that has grown: `arguments` is the part of them that is certain so far."""

    id: str | None
    name: str
    arguments: Any
    step: int = 1


@dataclass(frozen=True, slots=True)
class Restart:
    """The answer or a call was invalid, and the request is retried: discard the events of this step."""

    attempt: int
    step: int = 1


class _ObservedParser:
    """The reducer's parser, wrapped so that the session sees what the reducer feeds it."""

    __slots__ = ("_is_hidden", "_lifted", "fed", "parser")

    def __init__(self, parser: Parser) -> None:
        self.parser = parser
        self.fed = False
        """Whether text has been fed since the last call of `deltas`."""
        self._lifted: LiftedText | None = None
        self._is_hidden = False
        """Whether only the whole answer can be converted, so that nothing more is shown before its end."""

    def lift_with(self, lift: Lift) -> None:
        """Parse text in a vendor's shape, converted by this lift."""
        self._lifted = None if lift.plan is None else LiftedText(lift.plan)
        self._is_hidden = lift.plan is None

    @property
    def value(self) -> Any:
        return self.parser.value

    @property
    def complete(self) -> bool:
        return self.parser.complete

    @property
    def error(self) -> Any:
        return self.parser.error

    def feed(self, chunk: str, /) -> JsonParser:
        if self._lifted is not None:
            chunk = self._lifted.feed(chunk)
            self._is_hidden = self._lifted.failed
        if chunk and not self._is_hidden:
            self.parser = self.parser.feed(chunk)
            self.fed = True
        return self

    def finish(self) -> JsonParser:
        self.parser = self.parser.finish()
        self.fed = True
        return self


_UNRESOLVED: Final = object()
_NO_SCHEMA: Final[dict[str, Any]] = {}
"""The reducer parses only when it has a schema; any schema will do here."""


class Session(Generic[T]):
    """One conversation, owned by its `Stream`: its steps, their attempts, and the value of the current attempt."""

    def __init__(self, router: Router, spec: ConversationSpec, schema: Schema[T], kind: Kind) -> None:
        evidence = spec.options.evidence
        if evidence is not None and evidence.samples:
            raise ConfigError(
                "A stream has no further answers to compare with", where="evidence.samples", hint="Use `ask_full`."
            )
        self._router = router
        self._schema = schema
        self._kind = kind
        self.toolbox = spec.toolbox
        self._tool_schemas = {name: dict(tool.parameters) for name, tool in spec.toolbox.tools.items()}
        self._steps = conversation(router, spec)
        self.step = 0
        """The number of the model's current answer, counted from 1."""
        self.pending: RunEffect | None = None
        """The calls to run before the next request."""
        self.yielded_items: list[Any] = []
        """The items yielded to the caller, over all attempts."""
        self.result: Result[T] | None = None
        self._error: BaseException | None = None
        self._finished = ModelResponse()
        """The last answer that was read to its end."""
        self._events: list[TextDelta | CallDelta | Restart | ToolRun] = []
        self._proceed(next(self._steps))

    def _proceed(self, effect: AskEffect | RunEffect) -> None:
        if isinstance(effect, RunEffect):
            self.pending = effect
            return
        self.pending = None
        self.step += 1
        self.call = FallbackCall(self._router, effect.models, effect.request, effect.options, self._schema)
        self._response_format = self.call.request.response_format
        self._begin()

    def _begin(self) -> None:
        request = self.call.request
        strategy = self._strategy()
        self._observed = _ObservedParser(Parser(lenient=strategy is OutputStrategy.PROMPTED))
        self._reducer = Reducer(ParserChoice(lambda: self._observed, lambda *_: _UNRESOLVED))
        self._emulated = strategy is OutputStrategy.TOOL
        self._reducer.start(Snapshot(_NO_SCHEMA, emulated=True))
        self._reader = EnforcedStream(self.call.plan, Release(asides=bool(request.tools)))
        self._reader.begin(request)
        self._calls = Reducer()
        has_answer_tool = self.call.plan.answer_tool is not None
        self._calls.start(Snapshot(emulated=None if has_answer_tool else False, tools=self._tool_schemas))
        self._shown_calls: list[CallDelta] = []
        """The state of each call as it was last shown."""
        self._memory = Memory()
        self._compared_items = 0
        """How many items of this attempt were compared with those yielded before."""
        self._last_value: Any = PENDING
        self._last_open_path: ValuePath | None = None
        # A retry of only the invalid parts has another shape, so none of it can be shown.
        self._visible = (
            request.response_format is None
            or self._response_format is None
            or request.response_format.json_schema is self._response_format.json_schema
        )
        self._restarted = self.attempt > 1
        if request.continues == "prefill":
            self._observed.feed(request.messages[-1].text)
        if self._restarted and request.continues is None:
            self._events.append(Restart(self.attempt, self.step))

    @property
    def attempt(self) -> int:
        """The number of the current attempt of the step, counted from 1."""
        return self.call.attempt

    @property
    def over(self) -> bool:
        """Whether the call has a result."""
        return self.result is not None

    @property
    def stopped(self) -> bool:
        """Whether this attempt can be cut short: its JSON is closed, or it or a call can no longer become valid."""
        return self._reader.stopped

    def _strategy(self) -> OutputStrategy:
        """Return how the current request obtains its JSON."""
        request = self.call.request
        formatter = self.call.plan.formatter
        if request.response_format is None:
            return self.call.plan.strategy
        if formatter is not None and self.attempt > 1 and request.model == formatter.model:
            return formatter.strategy
        strategy = request.response_format.strategy
        if strategy is OutputStrategy.AUTO:
            return self.call.plan.strategy
        return strategy

    def push(self, chunk: CompletionChunk) -> None:
        """Feed one chunk of the answer."""
        certain = self._reader.push((chunk,)) or ()
        if chunk.lift is not None:
            self._observed.lift_with(chunk.lift)
        if self._emulated:
            self._reducer.push(chunk if chunk.lift is None else chunk._replace(lift=None))
            if chunk.tool_calls:
                _ = self._reducer.message  # makes the reducer find the tool call with the answer, and parse it
        elif chunk.text and chunk.choice == 0:
            self._observed.feed(chunk.text)
        if chunk.text and chunk.choice == 0 and self._observed.value is PENDING:
            self._events.append(TextDelta(chunk.text, self.step))
        for each in certain:
            if each.tool_calls:
                self._show_calls(each)

    def _show_calls(self, certain: CompletionChunk) -> None:
        self._calls.push(CompletionChunk(tool_calls=certain.tool_calls))
        for position, call in enumerate(self._calls.message.tool_calls):
            value = call.arguments.resolved
            is_new = position == len(self._shown_calls)
            if not is_new and (value is UNRESOLVED or self._shown_calls[position].arguments is value):
                continue
            shown = CallDelta(call.id, str(call.name), {} if value is UNRESOLVED else value, self.step)
            self._shown_calls[position:] = [shown, *self._shown_calls[position + 1 :]]
            self._events.append(shown)

    def _show_whole_calls(self, calls: Sequence[ToolCall]) -> None:
        """Show the calls that are run and have not been shown in this form: those that only the judge could repair."""
        for call in calls:
            whole = CallDelta(call.id, call.name, call.arguments_resolved, self.step)
            if whole not in self._shown_calls:
                self._events.append(whole)

    def end(self) -> Iterator[None]:
        """Judge the finished answer: then the session is `over` or has a new request. Yields before and after."""
        response = self._finished = self._reader.response()
        if self._emulated:
            self._reducer.finish(check=False)
        else:
            self._observed.finish()
        yield
        self.judge(response)
        yield

    def judge(self, response: ModelResponse) -> None:
        """Judge an answer, or the answers to requests that were sent concurrently."""
        try:
            self.call.answer(response)
        except SlipformError as error:
            self._raise(error)
        if self.call.outcome is None:
            self._begin()
        else:
            self._show_whole_calls(self.call.outcome.answer.tool_calls)
            self._send(self.call.outcome)

    def judges_quickly(self) -> bool:
        """Return whether judging the finished answer is quick."""
        plan = self.call.plan
        return plan.evidence is None and is_quickly_judged(self._finished, plan.standard)

    def fail(self, error: BaseException) -> None:
        """Continue with the next model after a failed call, or raise the error with the report so far."""
        try:
            self.call.fail(error)
        except SlipformError as failed:
            self._raise(failed)
        self._begin()

    def add_results(self, runs: tuple[ToolRun, ...]) -> None:
        """Record the results of the pending calls, after which the session has a new request."""
        self._events.extend(runs)
        self._send(runs)

    def _send(self, reply: Outcome | tuple[ToolRun, ...]) -> None:
        try:
            self._proceed(self._steps.send(reply))
        except StopIteration as done:
            self.result = result_of(self._schema, done.value)
            if self._visible:  # the caller's objects of it stay the same
                kind = self._kind.narrowed(done.value.outcome.value, None)
                restore_parts(self.result.value, kind, self._memory)
        except SlipformError as error:
            self._error = error
            raise

    def _raise(self, error: SlipformError) -> NoReturn:
        """Raise an error of the step with the report of the earlier steps."""
        self._error = error
        self._steps.throw(error)
        raise error

    def events(self) -> Iterator[TextDelta | CallDelta | ToolRun | Restart | Partial[T] | Result[T]]:
        """Yield the events since the last call."""
        happened = self._events
        self._events = []
        yield from happened
        if self.result is not None:
            yield self.result
        elif (partial := self.partial()) is not None:
            yield partial

    def outcome(self) -> Result[T]:
        """Return the result; raises the error that the call ended with."""
        if self._error is not None:
            raise self._error
        if self.result is None:
            raise EnforcementError("The stream was closed before the answer was over", hint="Read it to its end.")
        return self.result

    def partial(self) -> Partial[T] | None:
        """Return the value so far, or None if it has not changed since the last call."""
        value, open_path = self._current()
        if value is PENDING or (value is self._last_value and open_path == self._last_open_path):
            return None
        self._last_value = value
        self._last_open_path = open_path
        return Partial(value, self._kind, self._memory, open_path)

    def partials(self) -> Iterator[Partial[T]]:
        """Yield the value so far, if it has changed."""
        if (partial := self.partial()) is not None:
            yield partial

    def _current(self) -> tuple[Any, ValuePath | None]:
        parser = self._observed.parser
        value = parser.value
        if value is PENDING or not self._visible:
            return PENDING, None
        return value, parser.open_path

    def deltas(self) -> Iterator[Delta]:
        """Yield the changes of the last chunk."""
        if self._restarted:
            self._restarted = False
            yield Delta((), "restart", self.attempt)
        if not self._observed.fed or not self._visible:
            return
        self._observed.fed = False
        for delta in self._observed.parser.deltas():
            yield Delta(delta.path, delta.kind, delta.value)

    def items(self) -> Iterator[Any]:
        """Yield the new, finished and valid items of an array."""
        if self._kind.form not in ("array", "any"):
            raise TypeError(f"items() is for lists, and this is a stream of {self._schema.name}")
        value, open_path = self._current()
        if value is PENDING:
            return
        partial: Partial[Any] = Partial(value, self._kind, self._memory, open_path)
        for item in finished_items(partial, self._compared_items):
            self._compared_items += 1
            if self._is_new(self._compared_items - 1, item):
                yield item

    def last_items(self) -> Iterator[Any]:
        """Yield the items of the final answer that were not yielded before."""
        value = self.outcome().value
        for position, item in enumerate(value if isinstance(value, list | tuple) else []):
            if self._is_new(position, item):
                yield item

    def _is_new(self, position: int, item: Any) -> bool:
        if position == len(self.yielded_items):
            self.yielded_items.append(item)
            return True
        if self.yielded_items[position] != item:
            raise EnforcementError(
                f"Item {position} was already returned, and the retried answer has a different one there",
                where=f"$[{position}]",
                hint="Take the items from `result`, or allow one attempt only.",
            )
        return False

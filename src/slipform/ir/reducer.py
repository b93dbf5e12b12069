"""Fold the chunks of a streamed answer into a message, and parse its values while they grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from slipform.errors import (
    EmptyAnswerError,
    EnforcementError,
    JsonEnforcementError,
    SchemaViolationError,
    SlipformError,
    TruncatedError,
)
from slipform.ir.choice_merge import ChoiceBuilder, OpenCall, merge_extra
from slipform.ir.messages import UNRESOLVED, ToolCall
from slipform.ir.request import RESERVED_TOOL, ModelWarning
from slipform.ir.response import CompletionChunk, Lift, ModelResponse, Usage, resolve_finish
from slipform.schema.limits import plain_copy
from slipform.text.lifted import LiftedText
from slipform.text.strict import compact_json
from slipform.text.tree import ParseError


class JsonParser(Protocol):
    """The interface of a streaming parser for the reducer; immutable: each call returns the next one."""

    @property
    def value(self) -> Any:
        """The value so far."""

    @property
    def complete(self) -> bool:
        """Whether the value has closed."""

    @property
    def error(self) -> Any:
        """The error of the text, or None."""

    def feed(self, chunk: str, /) -> JsonParser:
        """Return the parser after these characters."""

    def finish(self) -> JsonParser:
        """Return the parser at the end of the text."""


Resolver: TypeAlias = Callable[[Any, Any, Any], Any]
"""`resolve(schema, parser, cache)` returns a match with a `value`, a mismatch with a `message`, or neither yet."""


class ParserChoice(NamedTuple):
    """The parser factory, the resolver, and the factory of the resolver's caches."""

    parser: Callable[[], JsonParser]
    resolve: Resolver
    cache: Callable[[], Any] = dict


class GrowingChannel:
    """One growing JSON text: its parser, its cache, and the last value that matched."""

    __slots__ = (
        "_cache", "_deferred", "_lift", "_lifted", "_new_parser", "_parser", "_pieces_fed", "_resolve", "_schema",
        "error", "kind", "value",
    )  # fmt: skip

    def __init__(self, schema: Mapping[str, Any], parsers: ParserChoice, *, deferred: bool) -> None:
        self._schema = schema
        self._new_parser = parsers.parser
        self._parser = parsers.parser()
        self._resolve = parsers.resolve
        self._deferred = deferred
        self._cache = parsers.cache()
        self._pieces_fed = 0
        self._lift: Lift | None = None
        self._lifted: LiftedText | None = None
        self.value: Any = UNRESOLVED
        self.error: str | None = None
        self.kind: type[EnforcementError] = JsonEnforcementError
        """Return the kind of error: not JSON, JSON that was cut off, or JSON that does not match the schema."""

    def lift_with(self, lift: Lift) -> None:
        """Lift the text from the vendor's shape to the caller's, while it grows if possible."""
        self._lift = lift
        self._lifted = None if lift.plan is None else LiftedText(lift.plan)

    def sync(self, pieces: Sequence[str]) -> Any:
        """Parse the new pieces and return the value so far."""
        if len(pieces) > self._pieces_fed:
            text = "".join(pieces[self._pieces_fed :])
            self._parser = self._parser.feed(text if self._lifted is None else self._lifted.feed(text))
            self._pieces_fed = len(pieces)
            self._update()
        return self.value

    def close(self, pieces: Sequence[str]) -> None:
        """Parse the rest and set the final value and error."""
        self.sync(pieces)
        if self._lifted is not None and self._lifted.failed:  # only the complete text can be lifted
            self._lifted = None
            self._parser = self._new_parser().feed("".join(pieces))
        self._parser = self._parser.finish()
        self._update(final=True)

    def _update(self, *, final: bool = False) -> None:
        """Update the value, and the error if there is one, to the text so far."""
        if self.error is not None:
            return
        if self._parser.error is not None:
            self.error = str(self._parser.error)
            if isinstance(self._parser.error, ParseError) and self._parser.error.code == "unexpected_end":
                self.kind = TruncatedError
            return
        complete = self._parser.complete
        if not complete and final:
            self.error = "the text ended before the value was whole"
            self.kind = TruncatedError
            return
        if self._lift is not None and self._lifted is None:
            if complete:
                self.value = self._lift(self._parser.value)
            return
        if self._deferred and not complete:
            return
        match self._resolve(self._schema, self._parser, self._cache):
            case object(value=value):
                self.value = value
            case found if complete or hasattr(found, "message"):
                self.kind = SchemaViolationError
                self.error = f"the value does not match the schema: {found}"


def default_parsers() -> ParserChoice:
    """Return slipform's own parser and resolver, imported on first use."""
    from importlib import import_module

    text = import_module("slipform.text.resolve")
    return ParserChoice(import_module("slipform.text.parser").Parser, text.resolve, text.ResolveCache)


_UNFINISHED: Final = ("length", "content_filter", "refusal")
"""Finish reasons after which the answer is incomplete."""
State: TypeAlias = Literal["idle", "streaming", "committing", "error"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The facts of the request that the reducer needs; schemas are copied at construction.

    `emulated` says whether the schema was sent as the reserved tool; with None (unknown), its call is the answer if it
    comes, else the text. `tools` has the schemas of the caller's tools; those in `deferred` get a value only once
    their arguments are complete.
    """

    response_schema: Mapping[str, Any] | None = None
    emulated: bool | None = False
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    deferred: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.response_schema:
            object.__setattr__(self, "response_schema", plain_copy(self.response_schema))
        if self.tools:
            copies = {name: plain_copy(schema) for name, schema in self.tools.items()}
            object.__setattr__(self, "tools", copies)


@dataclass(frozen=True, slots=True)
class GrowingValue:
    """A text or the arguments of a call so far: the pieces, and their value."""

    pieces: list[str] = field(repr=False, compare=False)
    length: int
    resolved: Any = UNRESOLVED

    @property
    def raw(self) -> str:
        """The text so far, joined on access only: reading the value costs no copy."""
        return "".join(self.pieces[: self.length])

    @property
    def view(self) -> Any:
        """The value where it is known, else the raw text."""
        if self.resolved is UNRESOLVED:
            return self.raw
        return self.resolved


@dataclass(frozen=True, slots=True)
class StreamingCall:
    """A tool call so far; id and name may still be missing."""

    id: str | None
    name: str | None
    arguments: GrowingValue


@dataclass(frozen=True, slots=True)
class StreamingMessage:
    """The first choice so far."""

    content: GrowingValue
    tool_calls: tuple[StreamingCall, ...] = ()
    reasoning: GrowingValue = field(default_factory=lambda: GrowingValue([], 0))
    refusal: GrowingValue = field(default_factory=lambda: GrowingValue([], 0))


class Reducer:
    """Assembles the chunks of one answer, returns it from `finish`, and is then ready for the next.

    Text is parsed when `message` is read, so folding costs the same for every chunk. An error of the text is raised by
    `finish`; transport errors go to `fail` at once. Either way the reducer is idle afterwards.

    >>> reducer = Reducer()
    >>> reducer.start(Snapshot())
    >>> reducer.push(CompletionChunk(text="hel"))
    >>> reducer.push(CompletionChunk(text="lo", finish="stop"))
    >>> reducer.finish().text
    'hello'
    """

    def __init__(self, parsers: ParserChoice | None = None) -> None:
        self._parsers = parsers
        self.state: State = "idle"
        self._usage: Usage | None = None
        self._model: str | None = None
        self._id: str | None = None
        self._lift: Lift | None = None
        self._output: GrowingChannel | None = None
        self._content_pieces: list[str] | None = None
        self._reset(Snapshot())

    def start(self, snapshot: Snapshot) -> None:
        """Begin an answer to the request of this snapshot."""
        self._reset(snapshot)
        self.state = "streaming"

    def push(self, chunk: CompletionChunk) -> None:
        """Add one chunk; raises `RuntimeError` before `start`."""
        if self.state != "streaming":
            raise RuntimeError(f"The reducer is {self.state}; call start() first.")
        if chunk.choice == 0:
            self._first.add(chunk)
        else:
            self._others.setdefault(chunk.choice, ChoiceBuilder()).add(chunk)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.model is not None:
            self._model = chunk.model
        if chunk.id is not None:
            self._id = chunk.id
        if chunk.warnings:
            self._warnings.extend(chunk.warnings)
        if chunk.extra:
            merge_extra(self._extra, chunk.extra)
        if chunk.lift is not None:
            self._lift = chunk.lift

    @property
    def message(self) -> StreamingMessage:
        """The first choice so far, with the values of its text and arguments."""
        first = self._first
        pieces = self._source()
        return StreamingMessage(
            content=GrowingValue(pieces, len(pieces), self._content_value(pieces)),
            tool_calls=tuple(self._open_call(call) for call in self._caller_calls()),
            reasoning=GrowingValue(first.reasoning, len(first.reasoning)),
            refusal=GrowingValue(first.refusal, len(first.refusal)),
        )

    @property
    def error(self) -> str | None:
        """The error so far of a tool call's arguments, or of the text, which is the answer unless a call follows it."""
        calls = self._caller_calls()
        pieces = self._source()
        self._content_value(pieces)
        if self._output is not None and self._output.error is not None and self._is_answer(pieces, bool(calls)):
            return self._output.error
        for call in calls:
            self._open_call(call)
        return next((each.error for each in self._channels.values() if each.error is not None), None)

    def stop(self) -> None:
        """Discard the answer."""
        self._reset(Snapshot())
        self.state = "idle"

    def fail(self, error: SlipformError) -> SlipformError:
        """Discard the answer after an error of the transport or the vendor; return the error to be raised."""
        self.state = "error"
        self.stop()
        return error

    def finish(self, *, check: bool = True) -> ModelResponse:
        """Return the whole answer; with `check`, raise for text or arguments that are not JSON, or break their schema.

        Not raised for an answer that the token limit, a filter or a refusal ended: it cannot be whole.
        """
        if self.state != "streaming":
            raise RuntimeError(f"The reducer is {self.state}; call start() first.")
        self.state = "committing"
        try:
            return self._commit(check)
        except SlipformError:
            self.state = "error"
            raise
        finally:
            self.stop()

    def _reset(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._first = ChoiceBuilder()
        self._others: dict[int, ChoiceBuilder] = {}
        self._warnings: list[ModelWarning] = []
        self._extra: dict[str, Any] = {}
        self._channels: dict[int, GrowingChannel] = {}
        self._usage = self._model = self._id = self._lift = self._output = self._content_pieces = None

    def _source(self) -> list[str]:
        """Return the pieces of the answer: the reserved tool's arguments if it was called, else the content."""
        output = self._output_call()
        if output is None:
            return self._first.text
        return output.pieces

    def _output_call(self) -> OpenCall | None:
        if self._snapshot.emulated is False:
            return None
        return next((call for call in self._first.calls.calls if call.name == RESERVED_TOOL), None)

    def _caller_calls(self, *, final: bool = False) -> list[OpenCall]:
        """Return the calls of the caller's tools; on the tool channel a call without a name yet may be the answer."""
        calls = self._first.calls.calls
        if self._snapshot.emulated is False:
            return calls
        hidden = (RESERVED_TOOL,) if final else (None, RESERVED_TOOL)
        return [call for call in calls if call.name not in hidden]

    @staticmethod
    def _is_answer(pieces: list[str], has_calls: bool) -> bool:
        """Return whether the text is the answer; beside a call, it must begin like JSON."""
        return not has_calls or "".join(pieces).lstrip()[:1] in ("{", "[")

    def _content_value(self, pieces: list[str]) -> Any:
        # On the tool channel, text may precede the call; it is the answer only if no call arrives.
        if self._snapshot.response_schema is None or (self._snapshot.emulated and self._output_call() is None):
            return UNRESOLVED
        return self._content(pieces).sync(pieces)

    def _content(self, pieces: list[str]) -> GrowingChannel:
        if self._output is None or self._content_pieces is not pieces:
            self._content_pieces = pieces
            self._output = self._channel(self._snapshot.response_schema or {}, deferred=False)
            if self._lift is not None:
                self._output.lift_with(self._lift)
        return self._output

    def _channel(self, schema: Mapping[str, Any], *, deferred: bool) -> GrowingChannel:
        if self._parsers is None:
            self._parsers = default_parsers()
        return GrowingChannel(schema, self._parsers, deferred=deferred)

    def _call_channel(self, call: OpenCall) -> GrowingChannel | None:
        channel = self._channels.get(call.position)
        name = call.name
        if channel is not None or name is None or name not in self._snapshot.tools:
            return channel
        channel = self._channel(self._snapshot.tools[name], deferred=name in self._snapshot.deferred)
        self._channels[call.position] = channel
        return channel

    def _open_call(self, call: OpenCall) -> StreamingCall:
        channel = self._call_channel(call)
        value = channel.sync(call.pieces) if channel is not None else UNRESOLVED
        return StreamingCall(call.id, call.name, GrowingValue(call.pieces, len(call.pieces), value))

    def _commit(self, check: bool) -> ModelResponse:
        """Build the response; with `check`, raise for invalid text and arguments."""
        first = self._first
        refusal = "".join(first.refusal)
        pieces = self._source()
        output = self._output_call()
        text = "".join(pieces)
        open_calls = self._caller_calls(final=True)
        finish = resolve_finish(first.finish or "unknown", bool(open_calls), refusal)
        check = check and finish not in _UNFINISHED
        calls = {call.position: self._close_call(call, check) for call in open_calls}
        resolved = UNRESOLVED
        lift = self._lift
        if self._snapshot.response_schema is not None:
            resolved = self._final_value(pieces, expected=check and self._is_answer(pieces, bool(calls)))
            if lift is not None and resolved is not UNRESOLVED:
                text = compact_json(resolved)
                lift = None
        return ModelResponse(
            text=text,
            tool_calls=tuple(calls.values()),
            reasoning="".join(first.reasoning),
            refusal=refusal or None,
            finish=finish,
            raw_finish=first.raw_finish,
            usage=self._usage or Usage(),
            model=self._model,
            id=self._id,
            warnings=tuple(self._warnings),
            extra=self._extra,
            parts=first.parts(calls, output, text),
            others=tuple(self._build_choice(choice) for _, choice in sorted(self._others.items())),
            content_resolved=resolved,
            lift=lift,
        )

    def _close_call(self, call: OpenCall, check: bool) -> ToolCall:
        closed = call.close(self._id)
        channel = self._call_channel(call)
        if channel is None:
            return closed
        channel.close(call.pieces or ["{}"])
        if channel.error is not None and check:
            raise channel.kind(
                f"The arguments of the tool {closed.name} cannot be used: {channel.error}",
                where=f"tool_calls[{call.position}].arguments",
                details={"arguments": closed.arguments},
            )
        if channel.error is not None:
            return closed
        return replace(closed, arguments_resolved=channel.value)

    def _final_value(self, pieces: list[str], *, expected: bool) -> Any:
        if not any(piece.strip() for piece in pieces):
            if expected:
                raise EmptyAnswerError("The model gave back nothing", hint="Retry the request.")
            return UNRESOLVED
        channel = self._content(pieces)
        channel.close(pieces)
        if channel.error is None:
            return channel.value
        if not expected:
            return UNRESOLVED
        raise channel.kind(f"The answer cannot be used: {channel.error}", details={"text": "".join(pieces)})

    def _build_choice(self, choice: ChoiceBuilder) -> ModelResponse:
        calls = {call.position: call.close(self._id) for call in choice.calls.calls}
        refusal = "".join(choice.refusal)
        return ModelResponse(
            text="".join(choice.text),
            tool_calls=tuple(calls.values()),
            reasoning="".join(choice.reasoning),
            refusal=refusal or None,
            finish=resolve_finish(choice.finish or "unknown", bool(calls), refusal),
            raw_finish=choice.raw_finish,
            model=self._model,
            id=self._id,
            parts=choice.parts(calls),
        )


def fold_chunks(chunks: Iterable[CompletionChunk], warnings: tuple[ModelWarning, ...] = ()) -> ModelResponse:
    """Return the response of an answer's chunks."""
    reducer = Reducer()
    reducer.start(Snapshot())
    reducer.push(CompletionChunk(warnings=warnings))
    for chunk in chunks:
        reducer.push(chunk)
    return reducer.finish(check=False)

"""Decode a streamed answer into chunks: a framing cuts the bytes into events, a vendor's interpreter reads them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from slipform.codecs.answer import MALFORMED, lifted_arguments, malformed
from slipform.codecs.framing import Framing, WireEvent
from slipform.codecs.schema_channel import SchemaChannel
from slipform.codecs.tool_names import restore_chunk_names
from slipform.codecs.vendor_errors import fault_error
from slipform.errors import SlipformError, TruncatedError, UpstreamError
from slipform.ir import CompletionChunk, Lift, ToolDelta
from slipform.text.lifted import LiftedText
from slipform.text.loads import load
from slipform.text.strict import parse

_loads: Final = orjson.loads
_MOST_TEMPLATES = 4
"""How often a template is tried; some servers vary the padding of every event, which makes templates useless."""


class EventInterpreter(Protocol):
    """Reads the events of one vendor."""

    ended: bool
    """Whether the vendor has marked the end of the answer."""
    fault: UpstreamError | None
    """The error in the vendor's stream, if any."""
    text_key: bytes
    """The key of an event's text, if events that differ only there give chunks that differ only in their text; else
    empty."""
    arguments_key: bytes
    """The same for the arguments of a call."""

    def read(self, name: str | None, data: Any) -> Sequence[CompletionChunk]:
        """Return the chunks of one event."""
        ...

    def finish(self, done: bool) -> Sequence[CompletionChunk]:
        """Return the chunks that only the stream's end yields, and whether it `ended`; `done`: it said `[DONE]`."""
        ...


class TextTemplate:
    """The bytes around one piece of text, and the ids of its chunk; with `call`, around a piece of arguments.

    Most servers send hundreds of events that differ only in the text: they need not be parsed one by one.
    """

    __slots__ = ("_after", "_before", "_between", "_id", "_model", "call")

    def __init__(self, before: bytes, after: bytes, model: Any, id_: Any, call: int) -> None:
        self.call = call
        self._before = before
        self._after = after
        self._between = after + before
        self._model = model  # a vendor's name of any type; compiled code would insist on a string
        self._id = id_

    def texts(self, data: bytes) -> tuple[list[str], bytes] | None:
        """The texts in bytes that fill it once, or several times, and the bytes after them; None if they do not."""
        if not data.startswith(self._before):
            return None
        pieces = data[len(self._before) :].split(self._between)
        pieces[-1], end, rest = pieces[-1].partition(self._after)
        if not end:  # the last event is incomplete
            rest = self._before + pieces.pop()
        texts: list[str] = []
        for encoded in pieces:
            text = _string(encoded)
            if text is None:
                return None
            texts.append(text)
        return (texts, rest) if texts else None

    def chunk_of(self, data: bytes) -> CompletionChunk | None:
        """Return the chunk of an event that differs only in its text; None for any other."""
        if not data.startswith(self._before) or not data.endswith(self._after):
            return None
        text = _string(data[len(self._before) : len(data) - len(self._after)])
        if text is None:
            return None
        if self.call < 0:
            return CompletionChunk(text, "", "", (), None, None, None, 0, self._model, self._id)
        delta = ToolDelta(self.call, None, None, text)
        return CompletionChunk("", "", "", (delta,), None, None, None, 0, self._model, self._id)

    def for_whole_events(self, events: list[WireEvent], data: bytes) -> TextTemplate | None:
        """Return the template for whole events, from the bytes of all events and the data of the last one."""
        last = events[-1].data
        start = data.rfind(last)
        if start < 0:
            return None
        after = data[start + len(last) :]
        before = data[:start]
        if len(events) > 1:
            previous = events[-2].data
            end = data.rfind(previous, 0, start)
            gap = before[end + len(previous) :]  # the bytes that end an event, and those that begin one
            before = gap[len(after) :]
            if end < 0 or not gap.startswith(after):
                return None
        return TextTemplate(before + self._before, self._after + after, self._model, self._id, self.call)


def _string(encoded: bytes) -> str | None:
    """Return the string that these bytes encode, without surrounding blanks: a line break would end an event."""
    if not encoded.endswith(b'"') or not encoded.startswith(b'"'):
        return None
    try:
        text = _loads(encoded)
    except ValueError:  # for example several fields
        return None
    return text if isinstance(text, str) else None


def template_of(data: bytes, chunk: Any, interpreter: EventInterpreter) -> TextTemplate | None:
    """Return the template of an event that yielded only this chunk; None if its text cannot be located for sure."""
    key = interpreter.text_key
    text = chunk.text
    call = -1
    if chunk.tool_calls:
        key = interpreter.arguments_key
        text = chunk.tool_calls[0].arguments
        call = chunk.tool_calls[0].index
    field = b'"%b":' % key
    before, _, rest = data.partition(field)
    after = rest.lstrip(b" ")
    encoded = orjson.dumps(text)
    if not text or data.count(field) != 1 or not after.startswith(encoded):
        return None
    blank = rest[: len(rest) - len(after)]
    return TextTemplate(before + field + blank, after[len(encoded) :], chunk.model, chunk.id, call)


def _is_plain(chunks: Sequence[CompletionChunk]) -> bool:
    """Whether an event yielded only a piece of text, or of arguments."""
    return len(chunks) == 1 and (chunks[0].only_text or chunks[0].only_arguments)


class StreamDecoder:
    """Reads one streamed answer from bytes split anywhere: a framing, then a vendor's interpreter.

    The first chunk carries the warnings of the encoded request, and `lift` if the text is in the vendor's shape.
    """

    __slots__ = (
        "_calls",
        "_done",
        "_fault",
        "_first",
        "_framing",
        "_halves",
        "_interpreter",
        "_is_aligned",
        "_plan",
        "_template",
        "_templates_left",
        "_whole_event",
    )  # fmt: skip

    def __init__(self, framing: Framing, interpreter: EventInterpreter, plan: SchemaChannel) -> None:
        self._template: TextTemplate | None = None
        self._whole_event: TextTemplate | None = None
        """The template for bytes that are exactly one event."""
        self._is_aligned = False
        """Whether the last event matched the template, and the next bytes begin an event."""
        self._templates_left = _MOST_TEMPLATES if interpreter.text_key else 0
        self._framing = framing
        self._interpreter = interpreter
        self._plan = plan
        self._first = True
        self._done = False
        self._fault: UpstreamError | None = None
        self._calls = LiftedCalls(plan.tool_lifts) if plan.tool_lifts else None
        self._halves = SurrogateHalves()

    def feed(self, data: bytes) -> list[CompletionChunk]:
        """Return the chunks completed by these bytes.

        An error inside the stream is raised as an `UpstreamError`, after the chunks before it have been returned.
        """
        if self._fault is not None:
            raise self._fault
        was_between_events = self._framing.is_between_events
        self._is_aligned = False
        events = self._framing.feed(data)
        if not events or self._done:
            return []
        chunks = self._chunks(events)
        if self._plan.tool_names:
            chunks = restore_chunk_names(chunks, self._plan.tool_names)
        if self._is_aligned:
            self._is_aligned = self._framing.is_between_events
            is_framed = self._is_aligned and (was_between_events or len(events) > 1)
            if self._whole_event is None and self._template is not None and is_framed:
                self._whole_event = self._template.for_whole_events(events, data)
        return chunks

    def texts(self, data: bytes) -> tuple[list[str], int, bytes] | None:
        """Return the texts of the chunks that `feed` would return for these bytes, as long as they are texts.

        With them come the index of the call whose arguments they are, or -1, and the bytes to be fed after them. None:
        all bytes have to be fed.
        """
        wide = self._whole_event
        if wide is None or not self._is_aligned:
            return None
        plain = wide.texts(data)
        return None if plain is None else (plain[0], wide.call, plain[1])

    def finish(self) -> list[CompletionChunk]:
        """Return the last chunks, with the rest of open calls; raises `TruncatedError` for a stream without its end."""
        chunks = self._finish()
        if self._calls is not None:
            chunks = self._calls.feed(chunks, done=True)
            if self._calls.fault is not None:
                raise self._calls.fault
        if self._plan.tool_names:
            return restore_chunk_names(chunks, self._plan.tool_names)
        return chunks

    def _finish(self) -> list[CompletionChunk]:
        """Return the last chunks; raises `TruncatedError` if the stream ended without its terminator."""
        chunks: list[CompletionChunk] = []
        if self._fault is None and not self._done:
            try:
                chunks = self._chunks(self._framing.finish())
            except UpstreamError as error:
                if error.details.get("category") == "unreadable":
                    raise cut_short() from error
                raise
        if self._fault is not None:
            raise self._fault
        last = self._interpreter.finish(self._done)
        if not self._interpreter.ended:
            raise cut_short()
        return chunks + self._started(last)

    def _event_chunks(self, name: str | None, value: dict[str, Any], data: bytes) -> Sequence[CompletionChunk]:
        """Return the chunks of one event; one with only text becomes the template for similar events."""
        interpreter = self._interpreter
        try:
            decoded = self._halves.joined(interpreter.read(name, value))
        except MALFORMED as error:
            interpreter.fault = malformed(error)
            return ()
        if self._templates_left and self._calls is None and _is_plain(decoded):
            self._templates_left -= 1
            self._template = template_of(data, decoded[0], interpreter)
            self._whole_event = None
        return decoded

    def _chunks(self, events: list[WireEvent]) -> list[CompletionChunk]:
        chunks: list[CompletionChunk] = []
        interpreter = self._interpreter
        for name, data in events:
            template = None if self._halves.waits else self._template
            self._is_aligned = False
            if template is not None and name is None and (like := template.chunk_of(data)) is not None:
                chunks.append(like)
                self._templates_left = _MOST_TEMPLATES
                self._is_aligned = True
                continue
            if data == b"[DONE]":
                self._done = True  # later events are not part of the answer
                break
            value = _parse(data)
            if value is _NOT_JSON:
                if not data.strip():
                    continue
                self._fault = _fault_in_text(name, data)
                break
            if isinstance(value, dict):
                chunks += self._event_chunks(name, value, data)
            elif name == "error" or isinstance(value, str):
                interpreter.fault = fault_error(value, status=None, kind=name or "")
            if interpreter.fault is not None:
                self._fault = interpreter.fault
                break
        if self._fault is not None and not chunks:
            raise self._fault
        chunks = self._lifted(chunks)
        return self._started(chunks) if self._first else chunks

    def _lifted(self, chunks: list[CompletionChunk]) -> list[CompletionChunk]:
        """Return the chunks with the arguments of strict tools in the caller's shape."""
        if self._calls is None:
            return chunks
        lifted = self._calls.feed(chunks)
        if self._calls.fault is not None:
            self._fault = self._calls.fault
            if not lifted:
                raise self._fault
        return lifted

    def _started(self, chunks: Sequence[CompletionChunk]) -> list[CompletionChunk]:
        """Return the chunks, the first one with the request's warnings and the converter to the caller's shape."""
        if not self._first or not chunks:
            return list(chunks)
        self._first = False
        if not self._plan.warnings and self._plan.lift is None:
            return list(chunks)
        first = chunks[0]._replace(warnings=(*self._plan.warnings, *chunks[0].warnings), lift=self._plan.lift)
        return [first, *chunks[1:]]


_NOT_JSON: Final = object()


def _parse(data: bytes) -> Any:
    """Return the JSON of an event, also with half a surrogate pair, as servers write that cut strings in UTF-16."""
    try:
        return parse(data)
    except ValueError:
        pass
    try:
        return json.loads(data) if b"\\u" in data else _NOT_JSON
    except (ValueError, RecursionError):
        return _NOT_JSON


class SurrogateHalves:
    """Joins the halves of surrogate pairs that arrive in two events; a single half becomes U+FFFD."""

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: dict[int | None, str] = {}
        """Pending halves by the index of a call, or -1 for the text."""

    @property
    def waits(self) -> bool:
        """Whether a half is pending."""
        return bool(self._halves)

    def joined(self, chunks: Sequence[CompletionChunk]) -> Sequence[CompletionChunk]:
        r"""Return the chunks with whole characters.

        >>> halves = SurrogateHalves()
        >>> halves.joined([CompletionChunk("a\ud83d")])[0].text, halves.joined([CompletionChunk("\ude00b")])[0].text
        ('a', '😀b')
        """
        if not self._halves and not any(map(_has_half, chunks)):
            return chunks
        out: list[CompletionChunk] = []
        for chunk in chunks:
            text = self._text(-1, chunk.text, ends=chunk.finish is not None)
            deltas = tuple(
                [
                    dataclasses.replace(delta, arguments=self._text(delta.index, delta.arguments))
                    for delta in chunk.tool_calls
                ]
            )
            reasoning = _whole_characters(chunk.reasoning)
            out.append(chunk._replace(text=text, reasoning=reasoning, tool_calls=deltas))
        return out

    def _text(self, key: int | None, text: str, *, ends: bool = False) -> str:
        if not text and not ends:
            return text
        text = self._halves.pop(key, "") + text
        if not ends and text and 0xD800 <= ord(text[-1]) <= 0xDBFF:
            self._halves[key] = text[-1]
            text = text[:-1]
        return _whole_characters(text)


def _has_half(chunk: CompletionChunk) -> bool:
    texts = [chunk.text, chunk.reasoning, *[delta.arguments for delta in chunk.tool_calls]]
    return any(isinstance(text, str) and _SURROGATE.search(text) for text in texts if text)


_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")


def _whole_characters(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class GrowingArguments:
    """Converts the growing arguments of one call from the vendor's shape to the caller's."""

    __slots__ = ("_lift", "_lifted", "_pieces", "_released")

    def __init__(self, lift: Lift) -> None:
        self._lift: Final = lift
        self._lifted: Final = None if lift.plan is None else LiftedText(lift.plan)
        self._pieces: list[str] = []
        self._released: list[str] = []

    def grow(self, piece: str) -> str:
        """Add the next piece; return its addition in the caller's shape. Text after the JSON stays unchanged."""
        self._pieces.append(piece)
        lifted = self._lifted
        if lifted is None or lifted.failed:
            return ""
        if lifted.complete:
            return piece
        start = lifted.offset
        own_text = lifted.feed(piece)
        self._released.append(own_text)
        return own_text + self._after_json(piece[lifted.offset - start :])

    def _after_json(self, text: str) -> str:
        lifted = self._lifted
        if lifted is not None and lifted.complete and not lifted.failed:
            return text.rstrip()
        return ""

    def end(self, *, is_cut: bool) -> str | None:
        """Return the part that was not released yet; None if the complete arguments contradict the released part.

        Nothing is added to arguments that were cut off: they are repaired later.
        """
        lifted = self._lifted
        if lifted is not None and lifted.complete and not lifted.failed:
            return ""
        text = "".join(self._pieces)
        released = "".join(self._released)
        if released and lifted is not None and not lifted.failed:
            if is_cut or self._is_fully_released(text, released):
                return ""
            return None
        # Nothing was released, or the incremental conversion failed: convert the arguments as a whole.
        converted = lifted_arguments(text, self._lift)
        if converted.startswith(released):
            return converted[len(released) :]
        return None

    def _is_fully_released(self, text: str, released: str) -> bool:
        """Whether the released text has the value of all arguments, although they are unfinished."""
        try:
            return bool(self._lift(load(text).value) == load(released).value)
        except (SlipformError, *MALFORMED):
            return False


class LiftedCalls:
    """Converts the growing arguments of tools whose schemas were lowered."""

    __slots__ = ("_last", "_lifts", "_open", "fault")

    def __init__(self, lifts: Mapping[str, Lift]) -> None:
        self.fault: UpstreamError | None = None
        """Set if arguments contradict their beginning; nothing after them is returned."""
        self._lifts: Final = lifts
        self._open: dict[tuple[int, int | None], GrowingArguments] = {}
        """The unfinished calls, by choice and index."""
        self._last: dict[int, int | None] = {}
        """The index of the call to which pieces without one belong, by choice."""

    def feed(self, chunks: list[CompletionChunk], *, done: bool = False) -> list[CompletionChunk]:
        """Return the chunks with arguments in the caller's shape."""
        out: list[CompletionChunk] = []
        for chunk in chunks:
            deltas: list[ToolDelta] = []
            for delta in chunk.tool_calls:
                deltas += self._delta(chunk.choice, delta)
            if chunk.finish is not None:
                deltas += self._end(chunk.choice, is_cut=chunk.finish not in ("stop", "tool_calls"))
            if self.fault is not None:
                return out
            if chunk.tool_calls or deltas:
                chunk = chunk._replace(tool_calls=tuple(deltas))
            if chunk != _EMPTY._replace(choice=chunk.choice, model=chunk.model, id=chunk.id):
                out.append(chunk)
        for choice in sorted({choice for choice, _ in self._open}) if done else ():
            deltas = self._end(choice)
            if deltas:
                out.append(CompletionChunk(tool_calls=tuple(deltas), choice=choice))
        return out

    def _delta(self, choice: int, delta: ToolDelta) -> list[ToolDelta]:
        index = self._last.get(choice) if delta.index is None and not delta.name else delta.index
        # Without indices, a name begins the next call.
        ended = self._end(choice) if delta.name and delta.index is None else []
        if delta.name and (lift := self._lifts.get(delta.name)) is not None and (choice, index) not in self._open:
            self._open[choice, index] = GrowingArguments(lift)
        self._last[choice] = index
        arguments = self._open.get((choice, index))
        if arguments is None:
            return [*ended, delta]
        own_delta = dataclasses.replace(delta, arguments=arguments.grow(delta.arguments))
        is_empty = not (own_delta.arguments or own_delta.id or own_delta.name or own_delta.extra or own_delta.done)
        return ended if is_empty else [*ended, own_delta]

    def _end(self, choice: int, *, is_cut: bool = False) -> list[ToolDelta]:
        """Return the last pieces of all open calls of a choice."""
        deltas: list[ToolDelta] = []
        for key in [key for key in self._open if key[0] == choice]:
            rest = self._open.pop(key).end(is_cut=is_cut)
            if rest is None:
                self.fault = _changed_arguments()
            elif rest:
                deltas.append(ToolDelta(key[1], arguments=rest))
        return deltas


def _changed_arguments() -> UpstreamError:
    return UpstreamError(
        "The arguments of a call do not have the shape of the tool's strict schema",
        hint="Retry, or send the tool without `strict`.",
        details={"category": "unreadable", "phase": "body", "retryable": True},
    )


_EMPTY: Final = CompletionChunk()


def cut_short() -> TruncatedError:
    """Return the error for a stream that stopped before its end."""
    return TruncatedError(
        "The model's stream ended before the answer was over",
        hint="Retry; the connection or the server broke off.",
        details={"category": "cut"},
    )


def _fault_in_text(name: str | None, data: bytes) -> UpstreamError:
    if name == "error":
        return fault_error(data.decode("utf-8", "replace"), status=None, kind=name)
    shown = data[:200].decode("utf-8", "replace")
    return UpstreamError(
        f"An event of the model's stream is not JSON: {shown}", details={"category": "unreadable", "retryable": True}
    )

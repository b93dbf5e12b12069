"""Define a codec: a frozen record of functions per vendor (`Codec`), and one per served API (`ServedApi`).

A record contains only what differs between vendors. The common part is implemented once on top of it: `BoundCodec`
encodes requests and decodes answers, streams and errors; `ServedApi`'s own methods do the same from the server's side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from slipform.codecs.answer import MALFORMED, malformed, read_json
from slipform.codecs.framing import Framing, SniffingDecoder
from slipform.codecs.request_fields import Capabilities, Encoding, dumps
from slipform.codecs.schema_channel import SchemaChannel, choose_channel, serving_strategy
from slipform.codecs.stream_decoder import EventInterpreter, StreamDecoder
from slipform.codecs.tool_names import LETTERS, Alphabet, respell_tools, restore_tool_names
from slipform.codecs.vendor_errors import error_status, fault_error, read_error_body
from slipform.codecs.wire_schemas import StrictRule
from slipform.errors import SlipformError, UpstreamError
from slipform.ir import (
    CompletionChunk,
    LossyEncode,
    Message,
    ModelRequest,
    ModelResponse,
    ModelWarning,
    Opaque,
    Part,
    Text,
    ToolCall,
    Usage,
)
from slipform.ir.messages import PlainTurns
from slipform.schema import OutputStrategy


class EncodedRequest(msgspec.Struct, frozen=True):
    """A request ready for the wire, relative to the provider's base URL."""

    path: str
    body: bytes
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    warnings: tuple[ModelWarning, ...] = ()
    context: SchemaChannel | None = None
    """What the same codec needs to read the answer; None if another codec wrote the request."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One vendor's wire format, from the side of its caller."""

    name: str
    path: Callable[[str, Capabilities, bool], str]
    """Returns the path for a model, for whole or streamed answers."""
    encode: Callable[[ModelRequest, SchemaChannel, Encoding, bool], dict[str, Any]]
    """Returns the body of a request, for a whole or streamed answer; fields it cannot carry are recorded as losses."""
    decode: Callable[[dict[str, Any], SchemaChannel], ModelResponse]
    """Returns a whole answer; may raise any of `MALFORMED` if it does not have the vendor's shape."""
    events: Callable[[SchemaChannel], EventInterpreter]
    """Creates the reader for the events of one streamed answer."""
    read_usage: Callable[[Any], Usage | None] = lambda _usage: None
    """Returns the usage from the object under an answer's `usage_key`."""
    usage_key: str = "usage"
    """Empty if the last line of an answer has the usage."""
    framing: Callable[[], Framing] = SniffingDecoder
    headers: Callable[[Capabilities], Mapping[str, str]] = lambda _capabilities: {}
    error_kind: Callable[[Mapping[str, str]], str] = lambda _headers: ""
    """Returns the kind of an error if a header names it."""
    read: Callable[[bytes], dict[str, Any]] = read_json
    """Returns the JSON object of a whole answer."""
    native_rule: StrictRule = "always"
    tool_rule: StrictRule = "always"
    tool_names: Alphabet | None = LETTERS
    """The allowed characters of tool names; None if any are."""
    encode_plain_turns: Callable[[Sequence[Message]], bytes | None] | None = None
    """Returns the JSON text of `messages` for a conversation of plain text; None for any other.

    Set if the rest of the body does not depend on such a conversation.
    """


_NO_TURNS: Final = b'"messages":[]'


class BodyTemplate(msgspec.Struct, frozen=True):
    """The body without its conversation: the same for all requests of one frame."""

    encoded: EncodedRequest
    before: bytes
    after: bytes

    def with_turns(self, turns: bytes) -> bytes:
        """Return the body of a request with this conversation."""
        return b'%b"messages":%b%b' % (self.before, turns, self.after)


_WITH_LOGPROBS = frozenset({"openai-chat", "openai-responses", "gemini"})
"""The codecs that can request token probabilities."""


class BoundCodec:
    """A codec for a model with these capabilities; `auto` is resolved here, so that it is the same for all requests.

    >>> from slipform.codecs import make_codec
    >>> from slipform.ir import Message
    >>> codec = make_codec("openai-chat", Capabilities(native=True))
    >>> codec.strategy.value
    'native'
    >>> codec.encode_request(ModelRequest("m", (Message.user("hi"),)), stream=False).body
    b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    """

    __slots__ = ("_codec", "capabilities", "encode_plain_turns", "name", "strategy")

    def __init__(self, codec: Codec, capabilities: Capabilities) -> None:
        self._codec: Final = codec
        self.name: Final = codec.name
        self.encode_plain_turns: Final = codec.encode_plain_turns
        self.capabilities: Final = capabilities
        self.strategy: Final = capabilities.auto_strategy

    def strategy_for(self, request: ModelRequest) -> OutputStrategy:
        """Return the strategy for this request's schema: the codec's preferred one, or the next that can carry it."""
        return serving_strategy(request, self.capabilities, self.strategy, self._codec.native_rule)[0]

    def encode_request(self, request: ModelRequest, *, stream: bool) -> EncodedRequest:
        """Return the request in the vendor's format; raises `RequestError` if it cannot be written."""
        codec = self._codec
        frame = request.frame
        turns = None
        if frame is not None and codec.encode_plain_turns is not None:
            turns = codec.encode_plain_turns(request.messages)
            template = None if turns is None else frame.find((self, request.model, stream))
            if turns is not None and isinstance(template, BodyTemplate):
                encoded = template.encoded
                body_bytes = template.with_turns(turns)
                return EncodedRequest(encoded.path, body_bytes, encoded.headers, encoded.warnings, encoded.context)
        out = Encoding(self.name, self.capabilities, request.extra_for)
        request, names = respell_tools(request, codec.tool_names, out)
        if request.logprobs is not None and (self.name not in _WITH_LOGPROBS or "no_logprobs" in out.quirks):
            out.lose("logprobs", "This model gives no probabilities of its tokens.")
            if request.logprobs:
                out.lose("top_logprobs", "This model gives no alternatives of its tokens.")
            request = request.replace(logprobs=None)
        plan = self._channel(request, out)
        body = codec.encode(request, plan, out, stream)
        path = codec.path(request.model, self.capabilities, stream)
        if out.losses:
            plan = msgspec.structs.replace(plan, warnings=tuple(out.losses), tool_names=names)
        encoded = EncodedRequest(path, dumps(body), codec.headers(self.capabilities), plan.warnings, plan)
        if frame is not None and turns is not None and dumps(body.get("messages")) == turns:
            before, _, after = dumps({**body, "messages": []}).partition(_NO_TURNS)
            frame.keep((self, request.model, stream), BodyTemplate(encoded, before, after))
        return encoded

    def find_template(self, request: ModelRequest, *, stream: bool) -> BodyTemplate | None:
        """Return the body around the conversation, if an earlier request of the same frame has stored it."""
        template = None if request.frame is None else request.frame.find((self, request.model, stream))
        return template if isinstance(template, BodyTemplate) else None

    def _channel(self, request: ModelRequest, out: Encoding) -> SchemaChannel:
        """Return how the schemas of the request are sent; computed once for requests of one frame."""
        codec = self._codec
        frame = request.frame
        if frame is not None and (cached := frame.find(self)) is not None:
            plan, losses = cached
            out.losses.extend(losses)
            return plan  # type: ignore[no-any-return]  # it was kept below
        before = len(out.losses)
        plan = choose_channel(request, out, self.strategy, native_rule=codec.native_rule, tool_rule=codec.tool_rule)
        if frame is not None:
            frame.keep(self, (plan, tuple(out.losses[before:])))
        return plan

    def decode_response(self, body: bytes, encoded: EncodedRequest) -> ModelResponse:
        """Return a whole answer in the caller's shape, with the request's warnings and the reserved call as text."""
        plan = _plan(encoded)
        try:
            response = self._codec.decode(self._codec.read(body), plan)
        except MALFORMED as error:
            raise malformed(error) from error
        if plan.tool_names:
            return restore_tool_names(response, plan.tool_names)
        return response

    def decode_stream(self, encoded: EncodedRequest) -> StreamDecoder:
        """Return a reader for one streamed answer."""
        plan = _plan(encoded)
        return StreamDecoder(self._codec.framing(), self._codec.events(plan), plan)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> UpstreamError:
        """Return the error for a response that is not a 2xx."""
        kind = self._codec.error_kind(headers)
        return fault_error(read_error_body(body), status=status, headers=headers, kind=kind)


def _plan(encoded: EncodedRequest) -> SchemaChannel:
    if encoded.context is not None:
        return encoded.context
    return SchemaChannel(warnings=encoded.warnings)


ECHO: Final = "echo"
"""The option of a served request with the fields that the answer repeats."""


class ServedRequest(msgspec.Struct, frozen=True):
    """A client's request in the IR, and the form of answer that the client requested."""

    request: ModelRequest
    stream: bool = False
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What only this API needs to write the answer (for example `include_usage`)."""


class StreamEncoder(Protocol):
    """Writes one streamed answer."""

    extra: Mapping[str, Any]
    """Fields to add to the last event, if they are known before it is written."""

    def feed(self, chunk: CompletionChunk) -> bytes:
        """Return the bytes for one chunk; may be empty."""
        ...

    def feed_text(self, text: str, call: int = -1) -> bytes:
        """Return the bytes for a chunk that contains only text of the first choice, or arguments of its call `call`."""
        ...

    def finish(self) -> bytes:
        """Return the bytes that end the stream, including its terminator."""
        ...

    def fail(self, error: SlipformError) -> bytes:
        """Return the bytes of an error event for a stream that has begun; nothing may follow."""
        ...

    def keep_alive(self) -> bytes:
        """Return bytes without meaning that keep the connection open; empty if the API's clients accept none."""
        ...


@dataclass(frozen=True, slots=True)
class Stamp:
    """The source of ids and times; tests replace it."""

    now: Callable[[], float] = time.time
    new_id: Callable[[], str] = field(default=lambda: os.urandom(16).hex())

    def seconds(self) -> int:
        """Return the time in whole seconds."""
        return int(self.now())


_SOURCES: Final = dict.fromkeys(
    ("groundingMetadata", "citationMetadata", "urlContextMetadata", "annotations", "citations", "search_results")
)
"""Fields in which answers name their sources, of any vendor."""
_FOR_NEXT_TURN: Final = frozenset({"id", "status", "message", "thoughtSignature", "extra_content", "caller"})
"""Fields of parts that readers do not need: the vendor reads them in the next turn."""


@dataclass(frozen=True, slots=True)
class ServedApi:
    """One API that slipform serves, seen from the server."""

    name: str
    read: Callable[[bytes | Mapping[str, Any], str], ServedRequest]
    """Returns a request from its body and its path; raises `RequestError` with the location of the mistake."""
    answer: Callable[[ModelResponse, ServedRequest, Stamp], dict[str, Any]]
    """Returns the body of a whole answer."""
    events: Callable[[ServedRequest, Stamp], StreamEncoder]
    """Creates the writer of the events of one streamed answer."""
    error: Callable[[SlipformError], dict[str, Any]]
    """Returns the body that makes the API's own clients raise their own errors."""
    turns: Callable[[Mapping[str, Any]], tuple[Message, ...]] | None = None
    """Returns only the conversation, from the fields of a body that contain it; None if other fields affect it."""
    turn_fields: frozenset[str] = frozenset()
    """Those fields."""
    plain_turns: Callable[[bytes], PlainTurns] | None = None
    """Returns the conversation from the JSON text of `messages`; raises `msgspec.DecodeError` if it is not plain
    text."""
    statuses: Mapping[int, int] = field(default_factory=dict)
    """The API's own HTTP statuses for some errors."""
    sources: frozenset[str] = frozenset()
    """The fields of an answer that name its sources, and that this API's own answers have."""
    content_type_stream: str = "text/event-stream"
    stamp: Stamp = Stamp()

    def decode_request(self, body: bytes | Mapping[str, Any], *, path: str = "") -> ServedRequest:
        """Return the request; raises `RequestError` with the location of the mistake."""
        return self.read(body, path)

    def encode_response(
        self, response: ModelResponse, served: ServedRequest, *, extra: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return a whole answer as bytes; `extra` are top-level fields to add."""
        answer = self.answer(response, served, self.stamp)
        return dumps({**answer, **extra} if extra else answer)

    def unrepresented(self, response: ModelResponse) -> tuple[ModelWarning, ...]:
        """Return the names of another vendor's fields that this API cannot carry; empty for the vendor's own API.

        Signatures are not among them: the proxy stores them for the next turn.
        """
        lost: dict[str, None] = {}
        for each in (response, *response.others):
            for part in each.parts:
                if type(part) is not Text or part.extra:
                    lost.update(dict.fromkeys(self._foreign(part)))
        if response.extra and not _SOURCES.keys().isdisjoint(response.extra):
            lost.update(dict.fromkeys(key for key in _SOURCES if response.extra.get(key) and key not in self.sources))
        if not lost:
            return ()
        message = f"This API has no place for what the answer holds besides: {', '.join(lost)}."
        return (LossyEncode("lossy_answer", message, "answer", "dropped"),)

    def _foreign(self, part: Part) -> Iterator[str]:
        """Return the names of the part, or of its fields, that only another vendor's clients read."""
        if isinstance(part, Opaque):
            if part.vendor != self.name:
                yield str(part.data.get("type") or next(iter(part.data), "a block"))
        elif isinstance(part, Text | ToolCall) and part.extra:
            for vendor, fields in part.extra.items():
                if vendor != self.name:
                    yield from (key for key in fields if key not in _FOR_NEXT_TURN)

    def encode_stream(self, served: ServedRequest) -> StreamEncoder:
        """Return a writer for one streamed answer."""
        return self.events(served, self.stamp)

    def encode_error(self, error: SlipformError, extra: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        """Return the HTTP status and the body of an error, with the fields of `extra`."""
        status = error_status(error)
        body = self.error(error)
        return self.statuses.get(status, status), dumps({**body, **extra} if extra else body)


DECLINED = "The model declined to answer."
"""The text of a refusal that has none."""


def refusal_text(response: ModelResponse) -> str | None:
    """Return the text of a refusal, if the answer is one."""
    return response.refusal or (DECLINED if response.finish == "refusal" else None)

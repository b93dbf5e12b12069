"""Cache the decoded fields of a call without its conversation, for later calls with the same fields."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from slipform.addons.server.calls.forward import ForwardedCall, vendor_headers
from slipform.addons.server.calls.model_names import is_named_plainly, is_unescaped
from slipform.addons.server.calls.parsed_body import write_body
from slipform.addons.server.calls.request_switches import StreamMode
from slipform.bounded import BoundedCache
from slipform.codecs import ServedApi, ServedRequest
from slipform.engine.drive import AsyncModel
from slipform.engine.planning import ModelRoute
from slipform.ir import ModelRequest
from slipform.ir.messages import PlainTurns
from slipform.ir.request import CallCount
from slipform.prices import AnyPrice
from slipform.providers.forward import Route
from slipform.providers.http import HttpProvider
from slipform.schema.limits import LARGE_BYTES

_RAW_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MESSAGES: Final = b'"messages"'
_ZERO: Final = msgspec.Raw(b"0")
_TAIL: Final = 64
_MAX_ALIKE: Final = 8
"""The most frames of bodies that begin and end alike; further bodies are parsed."""
_FRAME_BYTES: Final = 2_000
_TIMES_TEXT: Final = 20
"""The bytes that a frame retains per byte of its fields, with the validators and lowered schemas of its tools.
Measured: ten."""


class ForwardTemplate(NamedTuple):
    """The route of forwarded calls, and the bytes of their body around the conversation."""

    provider: HttpProvider
    route: Route
    price: AnyPrice | None
    before: bytes
    after: bytes

    def call(self, api: str, split: SplitBody, headers: Mapping[bytes, bytes]) -> ForwardedCall:
        """Return the forwarded call: the caller's bytes, with the model replaced."""
        body = b"%b%b%b" % (self.before, split.text, self.after)
        return ForwardedCall(api, self.provider, self.route, body, vendor_headers(headers), self.price)


class BoundCall(NamedTuple):
    """The model that answers the calls of a frame, where nothing else has to be decided for each call."""

    route: ModelRoute
    model: AsyncModel
    request: ModelRequest
    """The request to that model, without a conversation."""
    most_calls: int

    def with_turns(self, messages: PlainTurns) -> ModelRequest:
        """Return the request with this conversation, and with a new count of calls."""
        return msgspec.structs.replace(self.request, messages=messages, calls=CallCount(self.most_calls))


class CallFrame(msgspec.Struct, frozen=True):
    """The decoded fields of a call without its conversation."""

    served: ServedRequest
    stream_mode: StreamMode
    enforced: bool
    schema: str
    models: tuple[str, ...]
    forward: ForwardTemplate | None = None
    """Set where such calls are forwarded unchanged."""
    bound: BoundCall | None = None
    """Set where such calls, if their conversation is plain text, need no further decisions."""

    def with_turns(self, messages: PlainTurns) -> ServedRequest:
        """Return the request with this conversation: to the bound model, where there is one."""
        served = self.served
        bound = self.bound
        request = served.request.replace(messages=messages) if bound is None else bound.with_turns(messages)
        return ServedRequest(request, served.stream, served.options)


FrameKey: TypeAlias = Hashable
"""The API, the path where it names the model, and the fields as JSON."""
Frames: TypeAlias = BoundedCache[FrameKey, CallFrame]


def new_frames() -> Frames:
    """Return an empty cache of frames, for one configuration."""
    return Frames("frames", entries=256, max_bytes=16_000_000)


def keep_frame(frames: Frames, key: FrameKey, text_bytes: int, frame: CallFrame) -> None:
    """Store a frame whose fields take `text_bytes` bytes as JSON."""
    frames.put(key, frame, _FRAME_BYTES + _TIMES_TEXT * text_bytes)


class SplitFields(NamedTuple):
    """The key of a call's frame, the size of its fields as JSON, and the fields of the conversation."""

    key: FrameKey
    text_bytes: int
    turns: Mapping[str, Any]


def split_fields(api: ServedApi, data: Mapping[str, Any], path: str) -> SplitFields:
    """Split the parsed fields of a call."""
    rest = {}
    turns = {}
    for name, value in data.items():
        if name in api.turn_fields:
            turns[name] = value
        else:
            rest[name] = value
    text = write_body(rest)
    return SplitFields((api.name, path if api.name == "gemini" else "", text), len(text), turns)


class SplitBody(msgspec.Struct, frozen=True):
    """An unparsed body: its conversation of plain text, decoded and as bytes, and the bytes around it."""

    before: bytes
    after: bytes
    messages: PlainTurns
    text: bytes

    @property
    def has_unique_keys(self) -> bool:
        """Whether no turn has a duplicate key, or a key with escapes."""
        turns = len(self.messages.turns)
        text = self.text
        return text.count(b'"role"') == turns and text.count(b'"content"') == turns and is_unescaped(text)


def split_body(api: ServedApi, body: bytes) -> SplitBody | None:
    """Split a body by decoding only its conversation; None where that is not plain text, or not found at once."""
    if api.plain_turns is None or len(body) >= LARGE_BYTES or not is_named_plainly(body):
        return None
    try:
        text = bytes(_RAW_FIELDS.decode(body)["messages"])
        messages = api.plain_turns(text)
        start = _conversation_start(body)
        before = body[:start]
        after = body[start + len(text) :]
        # The first match may be the same text in another field.
        is_conversation = _RAW_FIELDS.decode(b"%b0%b" % (before, after))["messages"] == _ZERO
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        return None  # the full parser reports the error
    return SplitBody(before, after, messages, text) if messages.turns and is_conversation else None


def _conversation_start(body: bytes) -> int:
    return body.find(b"[", body.find(_MESSAGES))


def around_conversation(body: bytes, text: bytes) -> tuple[bytes, bytes] | None:
    """Return the bytes before and after a conversation in its body; None where it is not found at once.

    >>> around_conversation(b'{"messages":[1],"b":2}', b"[1]")
    (b'{"messages":', b',"b":2}')
    """
    start = _conversation_start(body)
    if not body.startswith(text, start):
        return None
    return body[:start], body[start + len(text) :]


class KnownBodies:
    """Finds the frame of an unparsed body by the bytes around its conversation.

    The bytes are those of an earlier body, which was parsed and checked: if the text between them is one JSON value, it
    is the value of the same field. Callers whose keys are limited to certain models have separate entries, whose fields
    were checked for that.
    """

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries = BoundedCache[Hashable, tuple[tuple[bytes, CallFrame], ...]](
            "bodies", entries=256, max_bytes=16_000_000
        )
        """By the bytes before the conversation, and the last bytes after it if there are enough."""

    def find(self, api: ServedApi, body: bytes, *, limits_models: bool) -> tuple[CallFrame, SplitBody] | None:
        """Return the frame of a body, and its conversation; None where there is none."""
        start = _conversation_start(body)
        if start < 0 or api.plain_turns is None or len(body) >= LARGE_BYTES:
            return None
        before = body[:start]
        key = (api.name, limits_models, before)
        get = self.entries.get
        for after, frame in get((*key, body[-_TAIL:])) or get((*key, b"")) or ():
            if not body.endswith(after):
                continue
            text = body[start : len(body) - len(after)]
            try:
                messages = api.plain_turns(text)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # the conversation ends earlier, or the full parser reports the error
            return (frame, SplitBody(before, after, messages, text)) if messages.turns else None
        return None

    def keep(self, api: ServedApi, split: SplitBody, frame: CallFrame, *, limits_models: bool) -> None:
        """Store the frame of a body for later bodies with the same bytes around the conversation."""
        after = split.after
        key = (api.name, limits_models, split.before, after[-_TAIL:] if len(after) >= _TAIL else b"")
        others = [each for each in self.entries.get(key) or () if each[0] != after]
        entry = ((after, frame), *others[: _MAX_ALIKE - 1])
        size = sum([_FRAME_BYTES + _TIMES_TEXT * (len(split.before) + len(each)) for each, _ in entry])
        self.entries.put(key, entry, size)

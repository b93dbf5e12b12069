"""Keep what was read of all fields of a call but its conversation, for the next call that has the same fields."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from slipform.addons.server.calls.forward import ForwardedCall, vendor_headers
from slipform.addons.server.calls.model_names import is_named_plainly
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
_SEARCHED: Final = 64
"""Bytes of a conversation by which it is looked for in its body."""
_FRAME_BYTES: Final = 2_000
_TIMES_TEXT: Final = 20
"""Bytes that a frame keeps alive, at least, and for each byte of its fields: with it stay the validators of its tools
and their schemas as vendors take them. Measured: ten for each byte."""


class ForwardTemplate(NamedTuple):
    """Where calls that go through unchanged are sent, and their body around its conversation."""

    provider: HttpProvider
    route: Route
    price: AnyPrice | None
    before: bytes
    after: bytes

    def call(self, api: str, split: SplitBody, headers: Mapping[bytes, bytes]) -> ForwardedCall:
        """Return such a call, in its caller's bytes but for the model."""
        body = b"%b%b%b" % (self.before, split.text, self.after)
        return ForwardedCall(api, self.provider, self.route, body, vendor_headers(headers), self.price)


class BoundCall(NamedTuple):
    """Who answers the calls of a frame, where that is one model and nothing else is to be decided for each of them."""

    route: ModelRoute
    model: AsyncModel
    request: ModelRequest
    """To that model, without a conversation."""
    most_calls: int

    def with_turns(self, messages: PlainTurns) -> ModelRequest:
        """The request with this conversation, and with the count of its calls."""
        return msgspec.structs.replace(self.request, messages=messages, calls=CallCount(self.most_calls))


class CallFrame(msgspec.Struct, frozen=True):
    """What was read of all fields of a call but its conversation."""

    served: ServedRequest
    stream_mode: StreamMode
    enforced: bool
    schema: str
    models: tuple[str, ...]
    forward: ForwardTemplate | None = None
    """Set where such calls go through unchanged."""
    bound: BoundCall | None = None
    """Set where such calls, with a conversation of nothing but words, need no more decisions."""

    def with_turns(self, messages: PlainTurns) -> ServedRequest:
        """Return the request with this conversation: the one to send, where that is decided."""
        served = self.served
        bound = self.bound
        request = served.request.replace(messages=messages) if bound is None else bound.with_turns(messages)
        return ServedRequest(request, served.stream, served.options)


FrameKey: TypeAlias = Hashable
"""The API, the path where it names the model, and the fields as JSON: rewritten, or in their caller's bytes."""
Frames: TypeAlias = BoundedCache[FrameKey, CallFrame]


def new_frames() -> Frames:
    """The frames of calls under one configuration, on which they depend."""
    return Frames("frames", entries=256, max_bytes=16_000_000)


def keep_frame(frames: Frames, key: FrameKey, text_bytes: int, frame: CallFrame) -> None:
    """Keep a frame whose fields take so many bytes as JSON."""
    frames.put(key, frame, _FRAME_BYTES + _TIMES_TEXT * text_bytes)


class SplitFields(NamedTuple):
    """The fields of a call, apart: the key of its frame, its size as JSON, and the fields of the conversation."""

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
    """A body that is not parsed yet: the key of its frame, its conversation of nothing but words, and that as JSON."""

    key: FrameKey
    messages: PlainTurns
    text: bytes

    @property
    def has_unique_keys(self) -> bool:
        """Whether no turn has a key twice: `split_body` takes none that is spelled with escapes."""
        turns = len(self.messages.turns)
        return self.text.count(b'"role"') == turns and self.text.count(b'"content"') == turns


def split_body(api: ServedApi, body: bytes, *, limits_models: bool) -> SplitBody | None:
    """Split a body without parsing more than its conversation; None where that is more than words.

    The other fields stay in their caller's bytes: the first call that has them is parsed and checked, and the next ones
    are known by them. Callers whose keys are limited to certain models have frames of their own, whose fields were
    checked for that.
    """
    if api.plain_turns is None or len(body) >= LARGE_BYTES or not is_named_plainly(body):
        return None
    try:
        turns = bytes(_RAW_FIELDS.decode(body)["messages"])
        messages = api.plain_turns(turns)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        return None  # the parser says what is wrong
    if not messages.turns:
        return None
    around = split_around(body, turns)
    return None if around is None else SplitBody((api.name, limits_models, *around), messages, turns)


def split_around(body: bytes, text: bytes) -> tuple[bytes, bytes] | None:
    """Return what is before and after a part of a body; None where it is not found at once.

    >>> split_around(b'{"a":[1],"b":2}', b"[1]")
    (b'{"a":', b',"b":2}')
    """
    start = body.find(text[:_SEARCHED])
    end = start + len(text)
    if start < 0 or body[start:end] != text:
        return None
    return body[:start], body[end:]

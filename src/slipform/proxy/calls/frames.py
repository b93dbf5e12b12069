"""Keep what was read of all fields of a call but its conversation, for the next call that has the same fields."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from slipform.bounded import BoundedCache
from slipform.codecs import ServedApi, ServedRequest
from slipform.ir import Message
from slipform.proxy.calls.model_names import is_named_plainly
from slipform.proxy.calls.parsed_body import write_body
from slipform.proxy.calls.request_switches import StreamMode
from slipform.schema.limits import LARGE_BYTES

_RAW_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FRAME_BYTES: Final = 2_000
_TIMES_TEXT: Final = 20
"""Bytes that a frame keeps alive, at least, and for each byte of its fields: with it stay the validators of its tools
and their schemas as vendors take them. Measured: ten for each byte."""


class CallFrame(msgspec.Struct, frozen=True):
    """What was read of all fields of a call but its conversation."""

    served: ServedRequest
    stream_mode: StreamMode
    enforced: bool
    schema: str
    models: tuple[str, ...]


FrameKey: TypeAlias = Hashable
"""The API, the path where it names the model, and the fields as JSON: written anew, or each in its caller's bytes."""
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


class SplitBody(NamedTuple):
    """A body that is not parsed yet: the key of its frame, its size, and its conversation of nothing but words."""

    key: FrameKey
    text_bytes: int
    messages: tuple[Message, ...]


def split_body(api: ServedApi, body: bytes, *, limits_models: bool) -> SplitBody | None:
    """Split a body without parsing more than its conversation; None where that is more than words.

    The other fields stay in their caller's bytes: the first call that has them is parsed and checked, and the next ones
    are known by them. Callers whose keys are limited to certain models have frames of their own, whose fields were
    checked for that.
    """
    if api.plain_turns is None or len(body) >= LARGE_BYTES or not is_named_plainly(body):
        return None
    try:
        fields = _RAW_FIELDS.decode(body)
        messages = api.plain_turns(fields.pop("messages"))
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        return None  # the parser says what is wrong
    if not messages:
        return None
    texts = tuple([(name, bytes(text)) for name, text in fields.items()])
    return SplitBody((api.name, limits_models, texts), len(body), messages)

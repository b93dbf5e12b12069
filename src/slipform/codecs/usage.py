"""Read the token counts of a forwarded response from its bytes, without decoding the response."""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import Any

import orjson

from slipform.codecs import SPOKEN_BY, Codec, find_codec
from slipform.codecs.answer import at_tier
from slipform.codecs.framing import SniffingDecoder
from slipform.errors import UpstreamError
from slipform.ir import Usage
from slipform.ir.response import NO_USAGE

_TIER = re.compile(rb'"service_tier"\s*:\s*"(\w{1,32})"')
_OBJECT = re.compile(rb"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")
"""An object with nested objects, which contain none themselves."""
_PIECES = 3
"""An event may be split between two pieces, and the event that only marks the end follows them."""
_LOOKS = 4
_TEXT_PLACES = ("choices", "delta", "candidates", "message", "thinking")
"""Where the events of an API contain the model's text."""
_MAX_EVENT_BYTES = 8 * 1024 * 1024
_MAX_OPEN_BYTES = 64 * 1024
_NOT_TEXT = frozenset(
    {
        "id", "type", "role", "name", "model", "object", "finish_reason", "finishReason", "stop_reason",
        "stop_sequence", "signature", "thoughtSignature", "logprobs", "logprobsResult", "data", "usage",
        "safetyRatings", "citationMetadata", "groundingMetadata",
    }
)  # fmt: skip
"""Fields there that contain something else."""


class UsageTail:
    """The last pieces of an answer, and its first, which in Anthropic's streams has the input tokens."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first = b""
        self._last: deque[bytes] = deque(maxlen=_PIECES)

    def add(self, piece: bytes) -> None:
        """The next piece."""
        if not self._first:
            self._first = piece
        self._last.append(piece)

    @property
    def size(self) -> int:
        """The number of stored bytes."""
        return len(self._first) + sum(map(len, self._last))

    def usage(self, api: str) -> Usage | None:
        """Return the usage found in all pieces."""
        last = self._last
        last_usage = usage_in(api, last[0] if len(last) == 1 else b"".join(last))
        if last_usage is None or last_usage.input is not None:
            return last_usage
        input_usage = usage_in(api, self._first, with_input=True)
        if input_usage is None:
            return last_usage
        return Usage(input_usage.input, last_usage.output, input_usage.cached, last_usage.reasoning)


class StreamMeter:
    r"""Counts the text in the bytes of a streamed answer while they are forwarded.

    >>> meter = StreamMeter("openai-chat")
    >>> meter.feed(b'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n')
    >>> meter.pieces, meter.text_bytes
    (1, 5)
    """

    __slots__ = ("_api", "_framing", "_open_bytes", "_usage_name", "_written", "pieces", "usage")

    def __init__(self, api: str) -> None:
        codec = _codec(api)
        self._api = api
        self._usage_name = _quoted(codec.usage_key) if codec.usage_key else b""
        self._framing: SniffingDecoder | None = SniffingDecoder(_MAX_EVENT_BYTES)
        self._open_bytes = 0
        """The bytes of an incomplete event."""
        self._written = 0
        self.pieces = 0
        """The number of events with text."""
        self.usage = NO_USAGE
        """The vendor's usage so far."""

    @property
    def text_bytes(self) -> int:
        """Return the bytes of the model's text; an incomplete event counts in full, as it may contain only text."""
        return self._written + min(self._open_bytes, _MAX_OPEN_BYTES)

    def feed(self, data: bytes) -> None:
        """Count the next bytes."""
        self._open_bytes += len(data)
        if self._framing is None:
            return
        try:
            events = self._framing.feed(data)
        except UpstreamError:
            self._framing = None
            return
        for event in events:
            self._count(event.data)
            self._open_bytes = 0

    def _count(self, data: bytes) -> None:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return  # `[DONE]`
        if not isinstance(event, dict):
            return
        places = [event.get(place) for place in _TEXT_PLACES]
        if isinstance(response := event.get("response"), str):  # Ollama's generate; elsewhere it is an object
            places.append(response)
        written = _text_size(places)
        self._written += written
        self.pieces += written > 0
        if self._usage_name in data and (reported := usage_in(self._api, data)) is not None:
            previous = self.usage
            self.usage = Usage(
                previous.input if reported.input is None else reported.input,
                previous.output if reported.output is None else reported.output,
            )


def _text_size(value: Any) -> int:
    """Return how many bytes of text a value holds."""
    size = 0
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            size += len(each.encode("utf-8", "surrogatepass"))
        elif isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            pending += [inner for name, inner in each.items() if name not in _NOT_TEXT]
    return size


def usage_in(api: str, body: bytes, *, with_input: bool = False) -> Usage | None:
    r"""Return the last usage in an answer's bytes that counts output tokens, or input tokens; None without one.

    >>> usage_in("openai-chat", b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}').total
    9
    """
    codec = _codec(api)
    if not codec.usage_key:  # the last line of the answer has it
        return _usage_of_line(codec, body)
    name = _quoted(codec.usage_key)
    at = len(body)
    for _ in range(_LOOKS):
        at = body.rfind(name, 0, at)
        if at < 0:
            return None
        try:
            usage = codec.read_usage(_object_at(body, at + len(name)))
        except (AttributeError, TypeError):  # not a vendor's: they may contain anything
            continue
        if usage is not None and (usage.input is not None or (usage.output is not None and not with_input)):
            return at_tier(usage, _service_tier(body))
    return None


def _service_tier(answer: bytes) -> str | None:
    """Return the service tier that an answer, or the end of a stream, reports."""
    at = answer.rfind(b'"service_tier"')
    tier = _TIER.match(answer, at) if at >= 0 else None
    return None if tier is None else tier[1].decode()


def usage_offset(api: str, piece: bytes) -> int:
    """Return where the last complete usage object in a piece begins; -1 without one."""
    name = _quoted(_codec(api).usage_key)
    at = piece.rfind(name)
    if at >= 0 and _OBJECT.match(piece, at + len(name)):
        return at
    return -1


@lru_cache(maxsize=32)
def _codec(api: str) -> Codec:
    return find_codec(SPOKEN_BY.get(api, api))


@lru_cache(maxsize=32)
def _quoted(name: str) -> bytes:
    return f'"{name}"'.encode()


def _usage_of_line(codec: Codec, body: bytes) -> Usage | None:
    try:
        line = orjson.loads(body.rstrip(b"\n").rpartition(b"\n")[2])
    except orjson.JSONDecodeError:
        return None
    if isinstance(line, dict):
        return codec.read_usage(line)
    return None


def _object_at(body: bytes, at: int) -> Any:
    """Return the object that follows a name; None if something else does."""
    if body.startswith((b":{", b": {"), at):  # most contain no objects
        try:
            return orjson.loads(body[body.index(b"{", at) : body.index(b"}", at) + 1])
        except ValueError:
            pass
    match = _OBJECT.match(body, at)
    if match is None:
        return None
    try:
        return orjson.loads(match[1])
    except orjson.JSONDecodeError:
        return None

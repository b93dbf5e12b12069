"""Find the tokens that an answer's bytes tell of, without decoding the answer: for bytes that are only handed on."""

from __future__ import annotations

import re
from collections import deque
from typing import Any

import orjson

from slipform.codecs import SPOKEN_BY, Codec, find_codec
from slipform.ir import Usage

_OBJECT = re.compile(rb"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")
"""An object with objects in it, which hold none in turn."""
_PIECES = 3
"""An event may be split between two pieces, and the one that only says that it is over comes after them."""
_LOOKS = 4


class UsageTail:
    """The last pieces of an answer, and its first, which in Anthropic's streams tells what was read."""

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
        """How much is kept."""
        return len(self._first) + sum(map(len, self._last))

    def usage(self, api: str) -> Usage | None:
        """What the whole of them tells."""
        last = self._last
        found = usage_in(api, last[0] if len(last) == 1 else b"".join(last))
        if found is None or found.input is not None:
            return found
        begun = usage_in(api, self._first, with_input=True)
        return found if begun is None else Usage(begun.input, found.output, begun.cached, found.reasoning)


def usage_in(api: str, said: bytes, *, with_input: bool = False) -> Usage | None:
    r"""The last usage in an answer's bytes that tells of tokens, or of tokens read; None where there is none.

    >>> usage_in("openai-chat", b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}').total
    9
    """
    codec = _codec(api)
    if not codec.usage_key:  # the last line of the answer tells it
        return _usage_of_line(codec, said)
    name, at = _name(codec), len(said)
    for _ in range(_LOOKS):
        at = said.rfind(name, 0, at)
        if at < 0:
            return None
        try:
            found = codec.read_usage(_object_at(said, at + len(name)))
        except (AttributeError, TypeError):  # no vendor's: they may hold what they like
            continue
        if found is not None and (found.input is not None or (found.output is not None and not with_input)):
            return found
    return None


def usage_place(api: str, piece: bytes) -> int:
    """Where the object of the last usage stands that a piece has whole; -1 where it has none."""
    name = _name(_codec(api))
    at = piece.rfind(name)
    return at if at >= 0 and _OBJECT.match(piece, at + len(name)) else -1


def _codec(api: str) -> Codec:
    return find_codec(SPOKEN_BY.get(api, api))


def _name(codec: Codec) -> bytes:
    return f'"{codec.usage_key}"'.encode()


def _usage_of_line(codec: Codec, said: bytes) -> Usage | None:
    try:
        line = orjson.loads(said.rstrip(b"\n").rpartition(b"\n")[2])
    except orjson.JSONDecodeError:
        return None
    return codec.read_usage(line) if isinstance(line, dict) else None


def _object_at(said: bytes, at: int) -> Any:
    """The object that follows a name; None when something else does."""
    found = _OBJECT.match(said, at)
    if found is None:
        return None
    try:
        return orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None

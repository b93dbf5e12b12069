"""Read the token probabilities of an answer, and select those of a part of its text.

Whatever the vendor's form, an answer has them as `extra["logprobs"]`, in OpenAI's: `{"content": [{"token", "logprob",
"bytes", "top_logprobs"}]}`. The `bytes` count: the text of a token may be half a character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

LOGPROBS = "logprobs"
ADMITTED = "admitted_logprob"
"""The embedded model's field: the log-probability among the tokens that the grammar allows."""
_BLANKS = frozenset(b" \t\r\n")


class Token(NamedTuple):
    """A piece of the raw text as the model wrote it; a character may be split between two."""

    data: bytes
    logprob: float


def tokens_of(logprobs: Any) -> list[Token] | None:
    """Return the tokens; None where the data is missing or unusable.

    Where the provider reports the probability among the tokens that the schema allows, that is used: according to
    `bench.confidence`, it separates right values from wrong ones better than the model's own.

    >>> tokens_of({"content": [{"token": "a", "bytes": [97], "logprob": -0.5}]})
    [Token(data=b'a', logprob=-0.5)]
    """
    entries = _entries(logprobs)
    if not entries:
        return None
    tokens = []
    name = "logprob"
    if all(isinstance(entry, Mapping) and ADMITTED in entry for entry in entries):
        name = ADMITTED
    for entry in entries:
        data = _bytes_of(entry)
        if data is None or not isinstance(entry.get(name), int | float):
            return None
        tokens.append(Token(data, float(entry[name])))
    return tokens


def _entries(logprobs: Any) -> Sequence[Any]:
    entries = logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
    return entries if isinstance(entries, list | tuple) else ()


def _bytes_of(entry: Any) -> bytes | None:
    if not isinstance(entry, Mapping):
        return None
    data = entry.get("bytes")
    text = entry.get("token")
    try:
        if isinstance(data, list | tuple | bytes):
            return bytes(data)
        return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else None
    except (TypeError, ValueError):
        return None


def utf8(text: str) -> bytes:
    """Return the bytes of a text, including unpaired surrogates, which JSON can contain."""
    return text.encode("utf-8", "surrogatepass")


def cut_logprobs(logprobs: Any, text: str, start: int, end: int) -> dict[str, Any] | None:
    """Return the probabilities of the characters from `start` to `end` of a text.

    None where the tokens do not join to it.

    >>> tokens = [{"token": "So: ", "logprob": -1}, {"token": "[1", "logprob": -2}, {"token": "]!", "logprob": -3}]
    >>> [entry["token"] for entry in cut_logprobs({"content": tokens}, "So: [1]!", 4, 7)["content"]]
    ['[1', ']']
    """
    if _joined_bytes(logprobs) != utf8(text):
        return None
    first = len(utf8(text[:start]))
    last = len(utf8(text[:end]))
    return _entries_at(logprobs, range(first, last))


def fit_logprobs(logprobs: Any, text: str) -> dict[str, Any] | None:
    """Return the probabilities of a JSON text whose tokens have additional blanks.

    None where they spell another.

    >>> tokens = [{"token": '{"a":', "logprob": -1}, {"token": " 1", "logprob": -2}, {"token": "}", "logprob": 0}]
    >>> [entry["token"] for entry in fit_logprobs({"content": tokens}, '{"a":1}')["content"]]
    ['{"a":', '1', '}']
    """
    joined = _joined_bytes(logprobs)
    target = utf8(text)
    if joined is None:
        return None
    places: list[int] = []
    in_string = is_escaped = False
    at = 0
    for place, byte in enumerate(joined):
        if at < len(target) and byte == target[at]:
            places.append(place)
            at += 1
            if is_escaped:
                is_escaped = False
            elif in_string and byte == 0x5C:  # a backslash
                is_escaped = True
            elif byte == 0x22:  # a quote
                in_string = not in_string
        elif in_string or byte not in _BLANKS:
            return None
    return _entries_at(logprobs, places) if at == len(target) else None


def _joined_bytes(logprobs: Any) -> bytes | None:
    pieces = [_bytes_of(entry) for entry in _entries(logprobs)]
    return None if None in pieces or not pieces else b"".join(piece for piece in pieces if piece is not None)


def _entries_at(logprobs: Any, places: Sequence[int]) -> dict[str, Any]:
    """Return the entries whose bytes are at these positions, without other bytes; tokens in between are dropped."""
    entries = _entries(logprobs)
    pieces = [_bytes_of(entry) or b"" for entry in entries]
    chosen_entries = []
    chosen = set(places)
    for entry, piece, end in zip(entries, pieces, accumulate(map(len, pieces)), strict=True):
        begin = end - len(piece)
        selected = bytes(byte for index, byte in enumerate(piece, begin) if index in chosen)
        if selected == piece and selected:
            chosen_entries.append(entry)
        elif selected:
            chosen_entries.append({**entry, "token": selected.decode("utf-8", "replace"), "bytes": list(selected)})
    return {"content": chosen_entries}

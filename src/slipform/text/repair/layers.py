"""Remove one layer of escapes from JSON that was escaped as a whole, for HTML or for a string."""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from typing import Final, NamedTuple

_QUOTE: Final = re.compile(r"[{\[](?:[\s{\[]|\\[nrt])*+(\\\"|\\u(?:0022|201[cCdD])|&(?:quot|apos|#34|#39|#[xX]2[27]);)")
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[\"\\/nrtbf])")
_ENTITY: Final = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_CHARACTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


class Layer(NamedTuple):
    """A text without its outer escapes, and the original places of its parts."""

    kind: str
    start: int
    """The start of the text in the original."""
    text: str
    decoded_ends: list[int]
    original_ends: list[int]
    """After each escape, and at the start: the position in `text`, and in the original."""

    def original(self, at: int) -> int:
        """Return the original position of a position in `text`."""
        index = bisect_right(self.decoded_ends, at) - 1
        return self.original_ends[index] + at - self.decoded_ends[index]

    def decoded(self, at: int) -> int:
        """Return the position in `text` of an original position."""
        index = bisect_right(self.original_ends, at) - 1
        return self.decoded_ends[index] + at - self.original_ends[index]


def layer_kind(text: str, at: int, end: int) -> str:
    r"""Return how the first quote of the document at `at` is escaped: `escaped`, `html_entity`, or "" if it is not.

    >>> layer_kind(r'{\"a\": 1}', 0, 10), layer_kind('{"a": 1}', 0, 8)
    ('escaped', '')
    """
    quote = _QUOTE.match(text, at, end)
    if quote is None:
        return ""
    if quote.group(1)[0] == "\\":
        return "escaped"
    return "html_entity"


def remove_layer(text: str, at: int, kind: str) -> Layer:
    r"""Return the text from `at` to its end with one layer of escapes removed.

    >>> remove_layer(r'{\"a\": \"x\\ny\"}', 0, "escaped").text
    '{"a": "x\\ny"}'
    """
    pattern = _ESCAPE if kind == "escaped" else _ENTITY
    pieces: list[str] = []
    decoded_ends = [0]
    original_ends = [at]
    length = 0
    done = at
    for match in pattern.finditer(text, at):
        decoded = _decoded(match.group(), kind)
        pieces += (text[done : match.start()], decoded)
        length += match.start() - done + len(decoded)
        done = match.end()
        decoded_ends.append(length)
        original_ends.append(done)
    pieces.append(text[done:])
    return Layer(kind, at, "".join(pieces), decoded_ends, original_ends)


def _decoded(escape: str, kind: str) -> str:
    if kind == "html_entity":
        return html.unescape(escape)
    if escape[1] == "u":
        # An unpaired half of a surrogate pair stays escaped, in case its other half follows.
        code = int(f"0x{escape[2:]}", 0)
        return escape if 0xD800 <= code < 0xE000 else chr(code)
    return _CHARACTERS.get(escape[1], escape[1])

"""Remove one layer of escapes from JSON that was escaped as a whole, for HTML or for a string."""

from __future__ import annotations

import html
import re
from typing import Final, NamedTuple

_QUOTE: Final = re.compile(r"[{\[](?:[\s{\[]|\\[nrt])*+(\\\"|\\u(?:0022|201[cCdD])|&(?:quot|apos|#34|#39|#[xX]2[27]);)")
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[\"\\/nrtbf])")
_ENTITY: Final = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_CHARACTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


class Layer(NamedTuple):
    """The text without its outer escapes, and where its parts stood before."""

    kind: str
    text: str
    steps: list[tuple[int, int]]
    """After each escape: the position in `text`, and in the original."""

    def original(self, at: int) -> int:
        """Return the original position of a position in `text`."""
        decoded, original = 0, self.steps[0][1]
        for step_decoded, step_original in self.steps:
            if step_decoded > at:
                break
            decoded, original = step_decoded, step_original
        return original + at - decoded


def layer_at(text: str, at: int, end: int) -> Layer | None:
    r"""Return the text from `at` with one layer of escapes removed, if its first quote is escaped; else None.

    >>> layer_at(r'{\"a\": \"x\\ny\"}', 0, 18).text
    '{"a": "x\\ny"}'
    """
    quote = _QUOTE.match(text, at, end)
    if quote is None:
        return None
    kind, pattern = ("escaped", _ESCAPE) if quote.group(1)[0] == "\\" else ("html_entity", _ENTITY)
    pieces: list[str] = []
    steps = [(0, at)]
    length, done = 0, at
    for match in pattern.finditer(text, at, end):
        decoded = _decoded(match.group(), kind)
        pieces += (text[done : match.start()], decoded)
        length += match.start() - done + len(decoded)
        done = match.end()
        steps.append((length, done))
    pieces.append(text[done:end])
    return Layer(kind, "".join(pieces), steps)


def _decoded(escape: str, kind: str) -> str:
    if kind == "html_entity":
        return html.unescape(escape)
    if escape[1] == "u":
        # A lone half of a pair stays written as an escape, for its other half to follow.
        code = int(f"0x{escape[2:]}", 0)
        return escape if 0xD800 <= code < 0xE000 else chr(code)
    return _CHARACTERS.get(escape[1], escape[1])

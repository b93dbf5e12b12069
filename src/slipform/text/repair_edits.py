"""What a repair did to a text, one small change at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

CERTAIN: Final = frozenset(
    {
        "bad_escape",
        "comment",
        "control_character",
        "escaped",
        "extra_comma",
        "html_entity",
        "invisible",
        "literal",
        "missing_comma",
        "number",
        "punctuation",
        "trailing_comma",
        "unquoted_key",
        "wrong_quote",
    }
)
"""Kinds that only spell the same thing in JSON; every other kind is a guess at what was meant."""


class Edit(NamedTuple):
    """One change: at `position` of the original text, `before` became `after`.

    >>> Edit("trailing_comma", 5, ",", "").certain
    True
    """

    kind: str
    position: int
    before: str
    after: str

    @property
    def certain(self) -> bool:
        """False when the change is a guess at what the writer meant, not a plain matter of spelling."""
        return self.kind in CERTAIN


RawEdit = tuple[str, int, str, str]
"""An edit while the machine runs: a plain tuple, because there may be very many."""


def apply_edits(text: str, edits: Iterable[Edit | RawEdit], start: int = 0, end: int | None = None) -> str:
    """The piece of `text` from `start` to `end` with `edits` (in order of position) made.

    >>> apply_edits("[1,]", [Edit("trailing_comma", 2, ",", "")])
    '[1]'
    """
    pieces: list[str] = []
    done = start
    for _, position, before, after in edits:
        pieces.append(text[done:position])
        pieces.append(after)
        done = position + len(before)
    pieces.append(text[done:end])
    return "".join(pieces)

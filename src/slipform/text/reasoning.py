"""What marks a model's reasoning: one table, whole and in pieces.

Reasoning may hold drafts of the answer, so every reader of answers passes over it, and all of them by this table: what
`loads` passes over, the stream passes over too.
"""

from __future__ import annotations

import re
from typing import Final

_TAGS: Final = (
    "think", "thinking", "thought", "thoughts", "reasoning", "reason", "reflection", "scratchpad", "analysis",
    "rationale", "inner_monologue",
)  # fmt: skip
_TOKENS: Final = {
    "<|channel|>analysis<|message|>": "<|end|>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""Special tokens of some model families, where a server passes them on, with the token that closes each."""
_LONGEST_TAG: Final = 200
"""A `<` that is no tag of ours by then never was one."""

_MOST_BLANKS: Final = 8
_BLANKS: Final = rf"\s{{0,{_MOST_BLANKS}}}"
"""Before the end of a closing tag; few, so that a stream knows how much to hold back."""
_ANY_TAG: Final = "|".join(_TAGS)
_OPENING: Final = re.compile(
    rf"<(?P<tag>{_ANY_TAG})(?:\s[^<>]{{0,{_LONGEST_TAG}}})?>|" + "|".join(map(re.escape, _TOKENS)), re.IGNORECASE
)
# A harmony message of any channel ends in `<|end|>`: alone it does not say that what came before was reasoning.
_CLOSING: Final = re.compile(
    rf"</(?:{_ANY_TAG}){_BLANKS}>|" + "|".join(re.escape(each) for each in _TOKENS.values() if each != "<|end|>"),
    re.IGNORECASE,
)
STARTS: Final = frozenset({"<", "◁", "["})
"""The characters that a marker can begin with."""


class Block:
    """An open reasoning block: where it begins in its text, and what ends it."""

    __slots__ = ("closing", "longest_closing", "start")

    def __init__(self, opening: re.Match[str]) -> None:
        tag = opening["tag"]
        self.start = opening.end()
        self.closing = re.compile(
            rf"</{re.escape(tag)}{_BLANKS}>" if tag else re.escape(_TOKENS[_canonical(opening[0])]), re.IGNORECASE
        )
        self.longest_closing = len(tag) + 3 + _MOST_BLANKS if tag else len(_TOKENS[_canonical(opening[0])])

    def end(self, text: str, at: int) -> int:
        """The index after the block's closing marker, or -1 while it is open."""
        found = self.closing.search(text, at)
        return -1 if found is None else found.end()


def block_at(text: str, at: int) -> Block | None:
    """The reasoning block whose opening marker stands at `at`.

    >>> text = "<think>{1}</think>[2]"
    >>> block_at(text, 0).end(text, 0), block_at(text, 7)
    (18, None)
    """
    if text[at] not in STARTS:
        return None
    found = _OPENING.match(text, at)
    return None if found is None else Block(found)


def closing_at(text: str, at: int) -> int:
    """The index after the closing marker that stands at `at`, or -1: without its opening it ends reasoning, too."""
    found = _CLOSING.match(text, at)
    return -1 if found is None else found.end()


def may_open_at(text: str, at: int) -> bool:
    """Whether an opening marker could still come to stand at `at`, where the text is cut off.

    >>> may_open_at("see <thi", 4), may_open_at("see <b>", 4)
    (True, False)
    """
    rest = text[at : at + _LONGEST_TAG].lower()
    if any(token.lower().startswith(rest) for token in _TOKENS):
        return True
    if rest[:1] != "<" or len(rest) == _LONGEST_TAG or ">" in rest or "<" in rest[1:]:
        return False
    name = rest[1:].split(maxsplit=1)[0] if rest[1:2].strip() else rest[1:]
    return any(tag.startswith(name) for tag in _TAGS)


def is_mentioned(text: str, start: int, stop: int) -> bool:
    """Whether any marker stands in a part of a text."""
    return any(marks.search(text, start, stop) is not None for marks in (_OPENING, _CLOSING))


def _canonical(token: str) -> str:
    return next(each for each in _TOKENS if each.lower() == token.lower())

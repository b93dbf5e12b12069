"""The small values a parser hands out: its sentinel, its error, its notes and its deltas."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal


class Pending(Enum):
    """The type of `PENDING`, so that type checkers can tell it from a JSON value."""

    PENDING = "PENDING"

    def __repr__(self) -> str:
        return "PENDING"

    __str__ = __repr__

    def __bool__(self) -> bool:
        return False


PENDING: Final = Pending.PENDING
"""What `Parser.value` is before anything can be shown. It is false, and never mistaken for JSON's null."""


@dataclass(frozen=True, slots=True)
class ParseError:
    """Why a text is not JSON: a value, not an exception, because a stream keeps it until the end.

    `index` counts characters from the start of the text; `line` and `column` start at 1.

    >>> ParseError("unexpected_character", "Expected a value, found '}'", 5, 1, 6).line
    1
    """

    code: str
    message: str
    index: int
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.message} (line {self.line}, column {self.column})"


@dataclass(frozen=True, slots=True)
class Note:
    """Something the reader of the value should know: a key given twice, or an edit of the lenient mode.

    `before` is the text that stood at `index`, `after` what was read instead of it.

    >>> Note("trailing_comma", 6, ",", "").code
    'trailing_comma'
    """

    code: str
    index: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Delta:
    """One change between a snapshot and its parent.

    `kind` says how to apply `value` at `path`:

    * `"set"`: the value now stands there, and only a string may still grow. In a list the index is the list's length;
    * `"open"`: a container was opened there; `value` is an empty one, and its children follow;
    * `"text"`: the string there grew by `value`.

    >>> Delta(("name",), "text", "da").value
    'da'
    """

    path: tuple[str | int, ...]
    kind: Literal["set", "open", "text"]
    value: Any

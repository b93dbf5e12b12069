"""What the repair knows while it reads."""

from __future__ import annotations

from typing import Final

from slipform.text.repair.tokens import (
    BLANK,
    BLOCK_COMMENT,
    CALL,
    COMMAS,
    ELLIPSIS,
    ESCAPED_BLANK,
    INVISIBLE,
    ITEM,
    LINE_COMMENT,
    MARKUP_COMMENT,
    MEMBER,
    PUNCTUATION,
    STOP,
    TOP,
    RawEdit,
)

MAX_DEPTH: Final = 1000
"""Deeper nesting than this is refused, whether broken or not."""

PUT_IN: Final = -2
"""The comma is one the text lacks."""

AT_VALUE, AT_KEY, AT_END, DONE = range(4)
CLOSER: Final = {"{": "}", "[": "]", "t": ")", "f": ")"}
"""What closes a frame: an object, an array, a tuple written with parentheses, a function call."""
_WHERE: Final = {"{": MEMBER, "[": ITEM, "t": ITEM, "f": CALL}
_PLAIN: Final = frozenset('"{}[],:0123456789-tfn')


class CannotRepair(Exception):  # noqa: N818 — it says no; nothing went wrong
    """The text cannot be read as JSON without inventing something."""

    def __init__(self, position: int, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.final = final
        """Whether looking further on in the text is useless."""


class RepairState:
    """One reading of one stretch of text: the position, the open brackets, and the edits so far."""

    __slots__ = (
        "choices",
        "colon",
        "comma",
        "doubled",
        "edits",
        "end",
        "in_string",
        "key",
        "last_close",
        "last_string",
        "many",
        "nan",
        "position",
        "roots",
        "stack",
        "state",
        "taken",
        "text",
        "unlucky",
        "valueless",
    )

    def __init__(self, text: str, start: int, end: int, *, many: bool, nan: str, taken: dict[int, int]) -> None:
        self.text = text
        self.end = end
        self.many = many
        """Whether several values in a row make one list."""
        self.nan = nan
        self.taken = taken
        """Readings to take instead of the first one, by position."""
        self.choices: list[int] = []
        """Positions where the text can be read in another way."""
        self.position = start
        self.state = AT_VALUE
        self.stack: list[str] = []
        self.edits: list[RawEdit] = []
        self.comma = -1
        """The comma right before the current key or item: its position, -1 for none, or `PUT_IN`."""
        self.key = -1
        """The key whose value is awaited."""
        self.colon = False
        """Whether a colon was just read."""
        self.last_string = -1
        """Where the last value began, if it was a string."""
        self.last_close = -1
        """Where the last value ended, if it was an object or an array."""
        self.doubled = 0
        self.in_string = False
        """Whether the text ended inside a string."""
        self.valueless = 0
        """How many keys had no value."""
        self.unlucky = 0
        """How often a stride over good text led nowhere."""
        self.roots: list[tuple[int, int]] = []

    def edit(self, kind: str, at: int, before: str, after: str) -> None:
        """Note a change at or after every change noted so far."""
        self.edits.append((kind, at, before, after))

    def edit_before(self, kind: str, at: int, before: str, after: str) -> None:
        """Note a change that may stand before changes already noted."""
        index = len(self.edits)
        while index and (
            self.edits[index - 1][1] > at or (self.edits[index - 1][1] == at and self.edits[index - 1][2])
        ):
            index -= 1
        self.edits.insert(index, (kind, at, before, after))

    def drop_comma(self) -> None:
        """Leave out the comma before a value that never came, whether it was written or put in."""
        if self.comma >= 0:
            index = len(self.edits) - 1
            while index >= 0 and self.edits[index][1] >= self.comma:
                if self.edits[index][1] == self.comma and self.edits[index][2]:
                    del self.edits[index]
                index -= 1
            self.edit_before("trailing_comma", self.comma, self.text[self.comma], "")
        elif self.comma == PUT_IN:
            index = len(self.edits) - 1
            while self.edits[index][0] != "missing_comma":
                index -= 1
            del self.edits[index]
        self.comma = -1

    def undo_from(self, at: int) -> None:
        """Forget every change at or after `at`."""
        while self.edits and self.edits[-1][1] >= at:
            self.edits.pop()

    def undo_change(self, at: int) -> None:
        """Forget every change after `at` and to the character at `at`, but keep what was put in before it."""
        self.undo_from(at + 1)
        while self.edits and self.edits[-1][1] == at and self.edits[-1][2]:
            self.edits.pop()

    def peek(self) -> str:
        """Skip what means nothing; the next character in its plain form, or "" at the end."""
        text = self.text
        while True:
            at = BLANK.match(text, self.position, self.end).end()  # type: ignore[union-attr]
            self.position = at
            if at >= self.end:
                return ""
            char = text[at]
            if char in _PLAIN:
                return char
            if not self._skip(char, at):
                return PUNCTUATION.get(char, char)

    def _skip(self, char: str, at: int) -> bool:
        kind, found = "comment", None
        text, end = self.text, self.end
        if char in "`~<[" and STOP.match(text, at, end):
            self.end = at
            return True
        if char in "/#<":
            found = LINE_COMMENT.match(text, at, end) or BLOCK_COMMENT.match(text, at, end)
            found = found or MARKUP_COMMENT.match(text, at, end)
        elif char in ".…":
            kind, found = "ellipsis", ELLIPSIS.match(text, at, end)
        elif char == "\\":
            kind, found = "escaped", ESCAPED_BLANK.match(text, at, end)
        else:
            kind, found = "invisible", INVISIBLE.match(text, at, end)
        if found is None:
            return False
        self.edit(kind, at, found.group(), "")
        self.position = found.end()
        return True

    def take(self, char: str) -> None:
        """Step over a punctuation mark, in JSON's spelling."""
        written = self.text[self.position]
        if written != char:
            self.edit("punctuation", self.position, written, char)
        self.position += 1

    def drop(self, kind: str) -> None:
        """Leave one character out."""
        self.edit(kind, self.position, self.text[self.position], "")
        self.position += 1

    def drop_commas(self) -> None:
        """Leave out commas that separate nothing."""
        found = COMMAS.match(self.text, self.position, self.end)
        run = found.group() if found else self.text[self.position]
        self.edit("extra_comma", self.position, run, "")
        self.position += len(run)

    def push(self, frame: str) -> None:
        """A bracket was opened."""
        if len(self.stack) >= MAX_DEPTH:
            raise CannotRepair(self.position, f"it is nested deeper than {MAX_DEPTH} levels", final=True)
        self.stack.append(frame)
        self.comma = -1
        self.state = AT_KEY if frame == "{" else AT_VALUE
        self.colon = False

    def valued(self, position: int, string: int = -1) -> None:
        """A value was read up to `position`; it was the string at `string`, or no string."""
        self.position = position
        self.last_string = string
        self.comma = -1
        self.colon = False
        self.state = AT_END
        if not self.stack:
            self.roots[-1] = (self.roots[-1][0], position)

    def begin_root(self, at: int) -> None:
        """A value begins; when nothing is open it is a whole document."""
        if not self.stack:
            self.roots.append((at, at))

    def where(self) -> int:
        """Where the next value stands: in an object, an array, a call, or by itself."""
        return _WHERE[self.stack[-1]] if self.stack else TOP

    def closers(self) -> str:
        """The brackets that would close all that is open, innermost first."""
        return "".join([CLOSER[frame] for frame in reversed(self.stack)])

    def choose(self, at: int) -> int:
        """Note that the text at `at` can be read in several ways; which of them to take."""
        self.choices.append(at)
        return self.taken.get(at, 0)

    def last_before(self, at: int, mark: str) -> int:
        """Where `mark` stands, if it is the last thing before `at`; else -1."""
        while at and self.text[at - 1] in " \t\r\n":
            at -= 1
        return at - 1 if at and self.text[at - 1] == mark else -1

    def stray(self, at: int) -> None:
        """Step over text that belongs to nothing, up to the next mark of structure."""
        if not self.stack:
            raise CannotRepair(at, "there is no JSON value here")
        stop = at + 1
        text, end = self.text, self.end
        while stop < end and text[stop] not in ',{}[]"\n':
            stop += 1
        self.edit("stray_text", at, text[at:stop], "")
        self.position = stop

"""Hold the state of a repair pass: position, open brackets and edits, and the primitive steps that change them."""

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
    TUPLE,
    RawEdit,
)

MAX_DEPTH: Final = 1000
"""The maximum depth of nesting."""

INSERTED: Final = -2
"""In place of a comma's position: the text lacks the comma, and an edit inserts it."""

AT_VALUE, AT_KEY, AT_END, DONE = range(4)
PARENTHESES: Final = "p"
PYTHON_TUPLE: Final = "t"
"""Parentheses in which a comma follows a value."""
CALL_FRAME: Final = "f"
CLOSER: Final = {"{": "}", "[": "]", PARENTHESES: ")", PYTHON_TUPLE: ")", CALL_FRAME: ")"}
"""The closing bracket of each kind of frame."""
_WHERE: Final = {"{": MEMBER, "[": ITEM, PARENTHESES: TUPLE, PYTHON_TUPLE: TUPLE, CALL_FRAME: CALL}
_PLAIN: Final = frozenset('"{}[],:0123456789-tfn')


class CannotRepair(Exception):  # noqa: N818 — never raised to users
    """The text cannot be read as JSON without inventing content."""

    def __init__(self, position: int, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason
        self.final = final
        """Whether searching the rest of the text is useless."""


class RepairState:
    """One pass over one part of a text: the position, the open brackets, and the edits so far."""

    __slots__ = (
        "balances", "bracket_choices", "choices", "colon", "comma", "doubled", "edits", "end", "failed_strides",
        "in_string", "key", "keys_without_value", "last_close", "last_string", "many", "nan", "next_structure",
        "parentheses", "position", "readings", "roots", "searched_from", "stack", "state", "text", "work",
    )  # fmt: skip

    def __init__(self, text: str, start: int, end: int, *, many: bool, nan: str, readings: dict[int, int]) -> None:
        self.text = text
        self.end = end
        self.many = many
        """Whether several values in a row become one list."""
        self.nan = nan
        self.readings = dict(readings)
        """The number of the reading to choose at a position, instead of 0."""
        self.choices: list[int] = []
        """Positions where the text is ambiguous."""
        self.bracket_choices: list[int] = []
        """Those of them where a bracket is."""
        self.position = start
        self.state = AT_VALUE
        self.stack: list[str] = []
        self.parentheses: list[int] = []
        """The positions of those in the stack."""
        self.edits: list[RawEdit] = []
        self.comma = -1
        """The position of the comma right before the current key or item; -1 for none, or `INSERTED`."""
        self.key = -1
        """The position of the key whose value is expected."""
        self.colon = False
        """Whether a colon was just read."""
        self.last_string = -1
        """The start of the last value, if it was a string."""
        self.last_close = -1
        """The end of the last value, if it was an object or an array."""
        self.doubled = 0
        self.balances = 0
        """The number of counts of the remaining brackets."""
        self.in_string = False
        """Whether the text ended inside a string."""
        self.keys_without_value = 0
        """The number of keys without a value."""
        self.failed_strides = 0
        """The number of strides without a match."""
        self.roots: list[tuple[int, int]] = []
        self.searched_from = 0
        self.next_structure = -1
        """The first closing bracket or quote after `searched_from`."""
        self.work = 0
        """Characters that were read ahead."""

    def edit(self, kind: str, at: int, before: str, after: str) -> None:
        """Record an edit at or after all edits so far."""
        self.edits.append((kind, at, before, after))

    def edit_before(self, kind: str, at: int, before: str, after: str) -> None:
        """Record an edit that may precede edits already recorded."""
        index = len(self.edits)
        while index and (
            self.edits[index - 1][1] > at or (self.edits[index - 1][1] == at and self.edits[index - 1][2])
        ):
            index -= 1
        self.edits.insert(index, (kind, at, before, after))

    def drop_comma(self) -> None:
        """Remove the comma before a missing value, whether original or inserted."""
        if self.comma >= 0:
            index = len(self.edits) - 1
            while index >= 0 and self.edits[index][1] >= self.comma:
                if self.edits[index][1] == self.comma and self.edits[index][2]:
                    del self.edits[index]
                index -= 1
            self.edit_before("trailing_comma", self.comma, self.text[self.comma], "")
        elif self.comma == INSERTED:
            index = len(self.edits) - 1
            while self.edits[index][0] != "missing_comma":
                index -= 1
            del self.edits[index]
        self.comma = -1

    def undo_from(self, at: int) -> None:
        """Remove every edit at or after `at`."""
        while self.edits and self.edits[-1][1] >= at:
            self.edits.pop()

    def undo_change(self, at: int) -> None:
        """Remove every edit after `at` and of the character at `at`, but keep insertions before it."""
        self.undo_from(at + 1)
        while self.edits and self.edits[-1][1] == at and self.edits[-1][2]:
            self.edits.pop()

    def peek(self) -> str:
        """Skip blanks, comments and the like; return the next character in its ASCII form, or "" at the end."""
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
        """Skip a comment, dots, an escaped blank or an invisible character at `at`; return False without one."""
        kind = "comment"
        match = None
        text = self.text
        end = self.end
        if char in "`~<[" and STOP.match(text, at, end):
            self.end = at
            return True
        if char in "/#<":
            match = LINE_COMMENT.match(text, at, end) or BLOCK_COMMENT.match(text, at, end)
            match = match or MARKUP_COMMENT.match(text, at, end)
        elif char in ".…":
            kind = "ellipsis"
            match = ELLIPSIS.match(text, at, end)
        elif char == "\\":
            kind = "escaped"
            match = ESCAPED_BLANK.match(text, at, end)
        else:
            kind = "invisible"
            match = INVISIBLE.match(text, at, end)
        if match is None:
            return False
        self.edit(kind, at, match.group(), "")
        self.position = match.end()
        return True

    def accept(self, char: str) -> None:
        """Step over a punctuation character, replacing it by `char` if it differs."""
        original = self.text[self.position]
        if original != char:
            self.edit("punctuation", self.position, original, char)
        self.position += 1

    def drop(self, kind: str) -> None:
        """Remove one character."""
        self.edit(kind, self.position, self.text[self.position], "")
        self.position += 1

    def drop_commas(self, kind: str = "extra_comma") -> None:
        """Remove commas that separate nothing; `kind` is "missing_item" where an item may be lost between them."""
        match = COMMAS.match(self.text, self.position, self.end)
        run = match.group() if match else self.text[self.position]
        self.edit(kind, self.position, run, "")
        self.position += len(run)

    def push(self, frame: str) -> None:
        """Open a frame; raises `CannotRepair` beyond MAX_DEPTH."""
        if len(self.stack) >= MAX_DEPTH:
            raise CannotRepair(self.position, f"it is nested deeper than {MAX_DEPTH} levels", final=True)
        self.stack.append(frame)
        self.comma = -1
        self.state = AT_KEY if frame == "{" else AT_VALUE
        self.colon = False

    def note_comma(self) -> None:
        """Make parentheses in which a comma follows a value a tuple."""
        if self.stack[-1] == PARENTHESES:
            self.stack[-1] = PYTHON_TUPLE

    def end_parentheses(self, *, is_tuple: bool) -> str:
        """End the innermost parentheses; return the bracket that closes a tuple, empty where they hold one value."""
        at = self.parentheses.pop()
        if is_tuple:
            return "]"
        for index in range(len(self.edits) - 1, -1, -1):
            kind, position, before, after = self.edits[index]
            if position == at and after == "[":
                self.edits[index] = (kind, position, before, "")
                return ""
        return "]"

    def end_value(self, position: int, string: int = -1) -> None:
        """End a value at `position`; `string` is its start if it was a string."""
        self.position = position
        self.last_string = string
        self.comma = -1
        self.colon = False
        self.state = AT_END
        if not self.stack:
            self.roots[-1] = (self.roots[-1][0], position)

    def begin_root(self, at: int) -> None:
        """Begin a value at `at`, which is a whole document when no frame is open."""
        if not self.stack:
            self.roots.append((at, at))

    def where(self) -> int:
        """Return the kind of the next place: MEMBER, ITEM, CALL or TOP."""
        return _WHERE[self.stack[-1]] if self.stack else TOP

    def closed_by(self, closers: str) -> bool:
        """Whether these brackets would close the innermost open frames, in this order."""
        stack = self.stack
        return len(closers) <= len(stack) and all(
            CLOSER[stack[-1 - depth]] == closer for depth, closer in enumerate(closers)
        )

    def choose(self, at: int) -> int:
        """Record that the text at `at` is ambiguous; return the number of the reading to choose."""
        self.choices.append(at)
        return self.readings.get(at, 0)

    def choose_bracket(self, at: int) -> int:
        """`choose`, for a bracket, whose readings are also compared without a schema: the fewest edits win."""
        self.bracket_choices.append(at)
        return self.choose(at)

    def last_before(self, at: int, character: str) -> int:
        """Return the position of `character`, if only blanks separate it from `at`; else -1."""
        while at and self.text[at - 1] in " \t\r\n":
            at -= 1
        if at and self.text[at - 1] == character:
            return at - 1
        return -1

    def skip_stray(self, at: int) -> None:
        """Remove text that belongs to no value, up to the next structural character."""
        if not self.stack:
            raise CannotRepair(at, "there is no JSON value here")
        stop = at + 1
        text = self.text
        end = self.end
        while stop < end and text[stop] not in ',{}[]"\n':
            stop += 1
        self.edit("stray_text", at, text[at:stop], "")
        self.position = stop

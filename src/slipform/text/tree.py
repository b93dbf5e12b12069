"""Hold the growing value behind the parser.

A `Frame` is one container that was opened. It keeps its closed children in a log that only grows. A reader never gets
the log of an open container but a *version* of it: a plain list or dict that does not change while a caller can see
it. A small container is simply copied per version. A wide one keeps its last few versions and updates the oldest in
place when only the frame holds it, which the reference count shows; a version that a caller
holds is left alone and a copy is made instead. Where reference counts cannot be trusted every version is a copy.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

WIDE: Final = 32
"""With this many children or more, versions are updated rather than copied."""
MAX_VERSIONS: Final = 3
"""A reader may hold the values of this snapshot and the previous one without causing a copy."""


class Missing:
    """The type of `MISSING`: no child is open here, or it must not be shown."""

    __slots__ = ()


MISSING: Final = Missing()


class FrameVersion:
    """A version of a container: `count` closed children, and then perhaps an open one under `open_key`."""

    __slots__ = ("count", "open_key", "shown")

    def __init__(self, shown: Any, count: int) -> None:
        self.shown: Any = shown
        self.count: int = count
        self.open_key: str | None = None


def _holders(version: FrameVersion) -> int:
    return sys.getrefcount(version.shown)


def _counts_references() -> bool:
    if sys.implementation.name != "cpython":
        return False
    gil_enabled = getattr(sys, "_is_gil_enabled", None)
    return gil_enabled is None or bool(gil_enabled())


_ALONE: Final = _holders(FrameVersion([], 0)) if _counts_references() else -1
"""The result of `_holders` for a container that only its version holds; measured, because compiled code differs."""


_NO_ITEMS: Final[list[Any]] = []
_NO_MEMBERS: Final[dict[str, Any]] = {}
_NO_KEYS: Final[list[str]] = []


class Frame:
    """One opened container: its place, its closed children, and how it was last shown.

    A key given twice is twice in `keys`, and `overwritten` has its earlier value.
    """

    __slots__ = (
        "closed", "count", "final", "is_object", "items", "key", "keys", "members", "overwritten", "parent", "shown",
        "shown_child", "shown_count", "slot", "versions",
    )  # fmt: skip

    def __init__(self, parent: Frame | None, slot: int, key: str, is_object: bool) -> None:
        self.parent: Frame | None = parent
        self.slot: int = slot
        """The number of the parent's closed children until this frame closes."""
        self.key: str = key
        """The key in the parent, when that is an object."""
        self.is_object: bool = is_object
        self.count: int = 0
        """The number of closed children, including those with a repeated key."""
        self.items: list[Any] = _NO_ITEMS if is_object else []
        """The closed children of an array."""
        self.members: dict[str, Any] = {} if is_object else _NO_MEMBERS
        """The closed children of an object."""
        self.keys: list[str] = [] if is_object else _NO_KEYS
        self.overwritten: list[tuple[int, str, Any]] | None = None
        self.closed: bool = False
        self.final: Any = None
        self.shown: Any = None
        self.shown_count: int = -1
        self.shown_child: Any = MISSING
        self.versions: list[FrameVersion] = []

    def add(self, key: str, value: Any) -> None:
        """Add a child that has closed."""
        self.count += 1
        if not self.is_object:
            self.items.append(value)
            return
        if key in self.members:
            self.overwritten = self.overwritten or []
            self.overwritten.append((len(self.keys), key, self.members[key]))
        self.keys.append(key)
        self.members[key] = value

    def child(self, index: int) -> Any:
        """Return the closed child with this index, as it was then."""
        if not self.is_object:
            return self.items[index]
        key = self.keys[index]
        for position, name, value in self.overwritten or ():
            if position > index and name == key:
                return value
        return self.members[key]

    def name(self, index: int) -> str | int:
        """Return the key or the position of the closed child with this index."""
        return self.keys[index] if self.is_object else index

    def log(self) -> Any:
        """Return the closed children, in the container that is used when the frame closes."""
        return self.members if self.is_object else self.items

    def copy(self) -> Any:
        """Return a new container of the closed children."""
        if self.is_object:
            return self.members.copy()
        return self.items.copy()

    def catch_up(self, version: FrameVersion) -> bool:
        """Replace the open child of an old version by the children closed since; return False if impossible."""
        # The lengths can only differ if a reader has changed the value.
        if not self.is_object:
            items: list[Any] = version.shown
            items[version.count :] = self.items[version.count :]
            return len(items) == len(self.items)
        shown: dict[str, Any] = version.shown
        open_key = version.open_key
        if open_key is not None:
            if open_key in self.members:
                shown[open_key] = self.members[open_key]
            else:
                shown.pop(open_key, None)
        for key in self.keys[version.count :]:
            shown[key] = self.members[key]
        return len(shown) == len(self.members)

    def upto(self, count: int, key: str, child: Any) -> Any:
        """Return the container with its first `count` closed children and then `child`."""
        if self.ended_with(count, child):
            return self.final
        if not self.is_object:
            if child is MISSING:
                return self.items[:count]
            return [*self.items[:count], child]
        out = {name: self.members[name] for name in self.keys[:count]}
        for position, name, value in (self.overwritten or [])[::-1]:
            if position >= count and name in out:
                out[name] = value
        if child is not MISSING:
            out[key] = child
        return out

    def adopt(self, container: Any, open_key: str | None) -> None:
        """Take over the closed children of an equal container; a value hidden by an open child stays."""
        if self.is_object:
            for key in self.members:
                if key != open_key:
                    self.members[key] = container[key]
            return
        children = container[: len(self.items)]
        if len(children) == len(self.items):
            self.items[:] = children

    def ended_with(self, count: int, child: Any) -> bool:
        """Return whether it closed with exactly this content."""
        if not self.closed:
            return False
        if child is MISSING:
            return self.count == count
        return self.count == count + 1 and self.child(count) is child

    def fresh(self) -> Any:
        """Return a container of all closed children that no caller holds; `place` may add the open child to it."""
        count = self.count
        self.shown_child = MISSING
        self.shown_count = count
        if count < WIDE:
            self.shown = self.copy()
            return self.shown
        versions = self.versions
        # The reader holds the newest version now; only older ones can be unused.
        for position in range(len(versions) - 1):
            version = versions[position]
            if _holders(version) == _ALONE and self.catch_up(version):
                del versions[position]
                version.count = count
                version.open_key = None
                versions.append(version)
                self.shown = version.shown
                return self.shown
        if len(versions) == MAX_VERSIONS:
            del versions[0]
        self.shown = self.copy()
        versions.append(FrameVersion(self.shown, count))
        return self.shown

    def place(self, key: str, child: Any) -> None:
        """Show `child` as the open child of the container that `fresh` returned."""
        shown = self.shown
        if self.is_object:
            shown[key] = child
            if self.shown_count >= WIDE:
                self.versions[-1].open_key = key
        else:
            shown.append(child)
        self.shown_child = child

    def close(self) -> Any:
        """Finish the container and return it; the same object if it was last shown with exactly this content."""
        count = self.count
        shown_count = self.shown_count
        if shown_count == count:
            unchanged = self.shown_child is MISSING
        else:
            unchanged = shown_count >= 0 and shown_count + 1 == count and self.shown_child is self.child(shown_count)
        self.final = self.shown if unchanged else self.log()
        self.closed = True
        self.shown = None
        self.shown_child = MISSING
        self.versions = []
        return self.final


class Position:
    """A position in a text: `count` closed children in `frame`, then `length` characters of a string (-1: none)."""

    __slots__ = ("count", "frame", "length")

    def __init__(self, frame: Frame, count: int, length: int) -> None:
        self.frame: Frame = frame
        self.count: int = count
        self.length: int = length


class PendingType(Enum):
    """The type of `PENDING`, so that type checkers can distinguish it from a JSON value."""

    PENDING = "PENDING"

    def __repr__(self) -> str:
        return "PENDING"

    def __str__(self) -> str:
        return "PENDING"

    def __bool__(self) -> bool:
        return False


PENDING: Final = PendingType.PENDING
"""The value of `Parser.value` before anything is visible. It is false, and differs from JSON's null."""


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
    """A note for the reader of the value: a repeated key, or an edit of the lenient mode.

    `before` is the original text at `index`, `after` its replacement.

    >>> Note("trailing_comma", 6, ",", "").code
    'trailing_comma'
    """

    code: str
    index: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ParserDelta:
    """One change between a snapshot and its parent.

    `kind` says how to apply `value` at `path`:

    * `"set"`: the value is now there, and only a string may still grow. In a list the index is the list's length;
    * `"open"`: a container was opened there; `value` is an empty one, and its children follow;
    * `"text"`: the string there grew by `value`.

    >>> ParserDelta(("name",), "text", "da").value
    'da'
    """

    path: tuple[str | int, ...]
    kind: Literal["set", "open", "text"]
    value: Any

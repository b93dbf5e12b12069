"""Build a snapshot of the value that a growing text has so far."""

from __future__ import annotations

import codecs
from typing import Any

from slipform.text.scanner import JsonScanner
from slipform.text.tree import MISSING, Frame, Position


def show(scanner: JsonScanner) -> Any:
    """Return the value so far, in containers that do not change while a caller uses them.

    MISSING if there is none.
    """
    if scanner.depth == 0:
        if scanner.length >= 0:
            return scanner.open_text()
        if scanner.root.count:
            return scanner.root.child(0)
        return MISSING
    return show_frames(scanner, scanner.top, scanner.length >= 0)


def show_frames(scanner: JsonScanner, top: Frame, with_text: bool) -> Any:
    """Return the value now with the open path shown down to `top`, and with the string open in it if asked for."""
    path: list[Frame] = []
    frame: Frame | None = top
    while frame is not None and frame.parent is not None:
        path.append(frame)
        frame = frame.parent
    # Outermost containers first: reusing an old one also releases its content.
    for depth in range(len(path) - 1, -1, -1):
        path[depth].fresh()
    if with_text:
        top.place(scanner.key, scanner.open_text())
    inner = top
    for depth in range(1, len(path)):
        outer = path[depth]
        outer.place(inner.key, inner.shown)
        inner = outer
    return inner.shown


def show_cut(scanner: JsonScanner, top: Frame) -> Any:
    """Return the value with the open path shown down to `top`, without anything open in it.

    The frames forget this version: it differs from the final content, which may be equal to the last complete
    version.
    """
    path: list[Frame] = []
    frame: Frame | None = top
    while frame is not None:
        path.append(frame)
        frame = frame.parent
    last = [(frame.shown, frame.shown_count, frame.shown_child) for frame in path]
    value = show_frames(scanner, top, False)
    for depth in range(len(path)):
        path[depth].shown, path[depth].shown_count, path[depth].shown_child = last[depth]
    return value


def show_past(scanner: JsonScanner, position: Position) -> Any:
    """Return the value at an earlier position of the scanner."""
    frame = position.frame
    count = position.count
    key = ""
    child: Any = MISSING
    if position.length >= 0:
        key = key_at(scanner, position)
        child = text_at(scanner, position)
    while frame.parent is not None:
        child = frame.upto(count, key, child)
        key = frame.key
        count = frame.slot
        frame = frame.parent
    if child is MISSING and count:
        return frame.child(0)
    return child


def text_at(scanner: JsonScanner, position: Position) -> str:
    """Return the text of the open string at a position."""
    frame = position.frame
    text: str = frame.child(position.count) if frame.count > position.count else scanner.open_text()
    return text[: position.length]


def key_at(scanner: JsonScanner, position: Position) -> str:
    """Return the key of the open string at a position, if it is in an object."""
    frame = position.frame
    if frame.count > position.count:
        return str(frame.name(position.count))
    return scanner.key


class SnapshotCell:
    """The content of one or more snapshots: a position and, once read, its value."""

    __slots__ = ("position", "scanner", "value", "version")

    def __init__(self, scanner: JsonScanner, position: Position) -> None:
        self.scanner: JsonScanner = scanner
        self.position: Position = position
        self.version: int = scanner.version
        self.value: Any = MISSING

    def show(self) -> Any:
        """Return the value at the position, built once; MISSING without a visible value."""
        scanner = self.scanner
        shown = show(scanner) if self.version == scanner.version else show_past(scanner, self.position)
        self.value = shown
        return shown


class GrowingText:
    """The changing part of a text: its scanner, its chunks, and the place of its newest snapshot."""

    __slots__ = ("before", "cell", "chunks", "decoder", "position", "scanner", "version")

    def __init__(self, scanner: JsonScanner) -> None:
        self.scanner: JsonScanner = scanner
        self.chunks: list[str | bytes | None] = []
        self.decoder: codecs.IncrementalDecoder | None = None
        self.version: int = scanner.version
        self.position: Position = Position(scanner.top, 0, -1)
        self.before: Position = self.position
        self.cell: SnapshotCell = SnapshotCell(scanner, self.position)

    def feed(self, chunk: str | bytes) -> None:
        """Add a chunk; one that cannot be decoded is an error like any other."""
        self.chunks.append(chunk)
        if isinstance(chunk, str) and self.decoder is None:
            self.scanner.feed(chunk)
        else:
            self.feed_bytes(chunk)
        self.mark()

    def mark(self) -> None:
        """Record the scanner's current position; a new cell if there is more to see."""
        scanner = self.scanner
        top = scanner.top
        position = self.position
        self.before = position
        count = top.count
        if position.frame is not top or position.count != count or position.length != scanner.length:
            self.position = Position(top, count, scanner.length)
        if scanner.version != self.version:
            self.version = scanner.version
            self.cell = SnapshotCell(scanner, self.position)

    def feed_bytes(self, chunk: str | bytes) -> None:
        """Add a chunk of a text of which some arrived as bytes."""
        if isinstance(chunk, str):
            if self.pending_bytes():
                self.bad_utf8("")
            else:
                self.scanner.feed(chunk)
            return
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = self.decoder.decode(chunk)
        except UnicodeDecodeError as error:
            self.bad_utf8(error.object[: error.start].decode())
        else:
            self.scanner.feed(text)

    def finish(self) -> None:
        """End the text."""
        self.chunks.append(None)
        if self.pending_bytes():
            self.bad_utf8("")
        self.scanner.finish()
        self.mark()

    def pending_bytes(self) -> bool:
        """Return whether a character is incomplete, because some of its bytes are missing."""
        return self.decoder is not None and bool(self.decoder.getstate()[0])

    def bad_utf8(self, text: str) -> None:
        """Add the decodable part, then stop."""
        scanner = self.scanner
        scanner.feed(text)
        if scanner.error is None:
            scanner.fail("", 0, "invalid_utf8", "The bytes are not UTF-8")

    def fork(self, chunk_count: int, value: Any, cell: SnapshotCell) -> GrowingText:
        """Return another source that has read the first `seen` chunks and shares the closed parts of `value`."""
        other = GrowingText(self.scanner.anew())
        for chunk in self.chunks[:chunk_count]:
            if chunk is None:
                other.finish()
            else:
                other.feed(chunk)
        adopt(other.scanner, value)
        other.cell = cell
        return other


def adopt(scanner: JsonScanner, value: Any) -> None:
    """Replace the children of the scanner's open containers by those of `value`, which are equal."""
    path: list[Frame] = []
    frame: Frame | None = scanner.top
    while frame is not None:
        path.append(frame)
        frame = frame.parent
    container: Any = [value]
    for depth in range(len(path) - 1, -1, -1):
        frame = path[depth]
        inner = path[depth - 1] if depth else None
        open_key = scanner.key if scanner.length >= 0 else None
        if inner is not None:
            open_key = inner.key
        try:
            frame.adopt(container, open_key)
            if inner is not None:
                container = container[inner.key] if frame.is_object else container[inner.slot]
        except (KeyError, IndexError, TypeError):
            return  # a reader has changed the value; the scanner's own children are used

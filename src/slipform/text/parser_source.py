"""What the snapshots of one text share: the machine that moves on, and the cells that remember where it was."""

from __future__ import annotations

import codecs
from typing import Any

from slipform.text.parser_machine import Machine
from slipform.text.parser_show import show, show_past
from slipform.text.parser_tree import MISSING, Frame, Position


class Cell:
    """What one or more snapshots show: a position and, once somebody asked, the value there."""

    __slots__ = ("machine", "position", "value", "version")

    def __init__(self, machine: Machine, position: Position) -> None:
        self.machine: Machine = machine
        self.position: Position = position
        self.version: int = machine.version
        self.value: Any = MISSING

    def show(self) -> Any:
        """The value at the position, made once; MISSING when nothing shows there."""
        machine = self.machine
        shown = show(machine) if self.version == machine.version else show_past(machine, self.position)
        self.value = shown
        return shown


class Source:
    """The moving part of a text: its machine, the chunks it was fed, and where its newest snapshot stands."""

    __slots__ = ("before", "cell", "chunks", "decoder", "machine", "position", "version")

    def __init__(self, machine: Machine) -> None:
        self.machine: Machine = machine
        self.chunks: list[str | bytes | None] = []
        self.decoder: codecs.IncrementalDecoder | None = None
        self.version: int = machine.version
        self.position: Position = Position(machine.top, 0, -1)
        self.before: Position = self.position
        self.cell: Cell = Cell(machine, self.position)

    def feed(self, chunk: str | bytes) -> None:
        """Take a chunk; one that cannot be decoded is an error like any other."""
        self.chunks.append(chunk)
        if isinstance(chunk, str) and self.decoder is None:
            self.machine.feed(chunk)
        else:
            self.feed_bytes(chunk)
        self.mark()

    def mark(self) -> None:
        """Remember where the machine stands now; a new cell if there is more to see."""
        machine = self.machine
        top = machine.top
        position = self.position
        self.before = position
        count = top.size()
        if position.frame is not top or position.count != count or position.length != machine.length:
            self.position = Position(top, count, machine.length)
        if machine.version != self.version:
            self.version = machine.version
            self.cell = Cell(machine, self.position)

    def feed_bytes(self, chunk: str | bytes) -> None:
        """Take a chunk of a text of which some came as bytes."""
        if isinstance(chunk, str):
            if self.pending_bytes():
                self.bad_utf8("")
            else:
                self.machine.feed(chunk)
            return
        if self.decoder is None:
            self.decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            text = self.decoder.decode(chunk)
        except UnicodeDecodeError as error:
            self.bad_utf8(error.object[: error.start].decode())
        else:
            self.machine.feed(text)

    def finish(self) -> None:
        """The text ends here."""
        self.chunks.append(None)
        if self.pending_bytes():
            self.bad_utf8("")
        self.machine.finish()
        self.mark()

    def pending_bytes(self) -> bool:
        """Whether a character has begun whose bytes have not all come."""
        return self.decoder is not None and bool(self.decoder.getstate()[0])

    def bad_utf8(self, text: str) -> None:
        """Take what could be decoded, then stop."""
        machine = self.machine
        machine.feed(text)
        if machine.error is None:
            machine.fail("", 0, "invalid_utf8", "The bytes are not UTF-8")

    def fork(self, seen: int, value: Any, cell: Cell) -> Source:
        """Another source that stands after the first `seen` chunks and shares the closed parts of `value`."""
        other = Source(self.machine.anew())
        for chunk in self.chunks[:seen]:
            if chunk is None:
                other.finish()
            else:
                other.feed(chunk)
        adopt(other.machine, value)
        other.cell = cell
        return other


def adopt(machine: Machine, value: Any) -> None:
    """Let the machine's open containers hold the children of `value`, which are equal to its own."""
    path: list[Frame] = []
    frame: Frame | None = machine.top
    while frame is not None:
        path.append(frame)
        frame = frame.parent
    container: Any = [value]
    for depth in range(len(path) - 1, -1, -1):
        frame = path[depth]
        inner = path[depth - 1] if depth else None
        open_key = inner.key if inner is not None else machine.key if machine.length >= 0 else None
        try:
            frame.adopt(container, open_key)
            if inner is not None:
                container = container[inner.key] if frame.is_object() else container[inner.slot]
        except (KeyError, IndexError, TypeError):
            return  # a reader has changed the value; the machine's own children will do

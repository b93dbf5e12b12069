"""What can be seen of a text: its value now, or as it was at an earlier position."""

from __future__ import annotations

from typing import Any

from slipform.text.parser_machine import Machine
from slipform.text.parser_tree import MISSING, Frame, Position


def show(machine: Machine) -> Any:
    """The value so far, in containers that will not be touched while anybody can see them; MISSING if there is none."""
    if machine.depth == 0:
        if machine.length >= 0:
            return machine.open_text()
        return machine.root.child(0) if machine.root.size() else MISSING
    return show_frames(machine, machine.top, machine.length >= 0)


def show_frames(machine: Machine, top: Frame, with_text: bool) -> Any:
    """The value now with the open path shown down to `top`, and with the string open in it if asked for."""
    path: list[Frame] = []
    frame: Frame | None = top
    while frame is not None and frame.parent is not None:
        path.append(frame)
        frame = frame.parent
    # First all containers, outermost first: taking an old one back also lets go of what it held.
    for depth in range(len(path) - 1, -1, -1):
        path[depth].fresh()
    if with_text:
        top.place(machine.key, machine.open_text())
    inner = top
    for depth in range(1, len(path)):
        outer = path[depth]
        outer.place(inner.key, inner.shown)
        inner = outer
    return inner.shown


def show_cut(machine: Machine, top: Frame) -> Any:
    """The value now with the open path shown down to `top` and nothing that is open in it.

    The frames forget that they were shown like this: what they close with is never this again, but may be what they
    were last shown with in full.
    """
    path: list[Frame] = []
    frame: Frame | None = top
    while frame is not None:
        path.append(frame)
        frame = frame.parent
    last = [(frame.shown, frame.shown_count, frame.shown_child) for frame in path]
    value = show_frames(machine, top, False)
    for depth in range(len(path)):
        path[depth].shown, path[depth].shown_count, path[depth].shown_child = last[depth]
    return value


def show_past(machine: Machine, position: Position) -> Any:
    """The value as it was at a position the machine has left behind."""
    frame = position.frame
    count = position.count
    key = ""
    child: Any = MISSING
    if position.length >= 0:
        key = key_at(machine, position)
        child = text_at(machine, position)
    while frame.parent is not None:
        child = frame.upto(count, key, child)
        key = frame.key
        count = frame.slot
        frame = frame.parent
    if child is MISSING and count:
        return frame.child(0)
    return child


def text_at(machine: Machine, position: Position) -> str:
    """The text of the string that was open at a position."""
    frame = position.frame
    text: str = frame.child(position.count) if frame.size() > position.count else machine.open_text()
    return text[: position.length]


def key_at(machine: Machine, position: Position) -> str:
    """The key of the string that was open at a position, if that was in an object."""
    frame = position.frame
    return str(frame.name(position.count)) if frame.size() > position.count else machine.key

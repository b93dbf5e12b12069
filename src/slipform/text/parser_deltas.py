"""What changed between two positions of one text, read off the tree's logs when somebody asks."""

from __future__ import annotations

from typing import Any

from slipform.text.parser_machine import Machine
from slipform.text.parser_show import key_at, text_at
from slipform.text.parser_tree import Frame, Position
from slipform.text.parser_types import Delta

Path = tuple[str | int, ...]


def path_of(frame: Frame) -> Path:
    """Where a container stands, from the root."""
    names: list[str | int] = []
    parent = frame.parent
    while parent is not None and parent.parent is not None:
        names.append(frame.key if parent.is_object() else frame.slot)
        frame = parent
        parent = frame.parent
    names.reverse()
    return tuple(names)


def open_path(machine: Machine, position: Position) -> Path | None:
    """The innermost container or string that is open at the position."""
    frame = position.frame
    if frame.parent is None:
        return () if position.length >= 0 else None
    return path_of(frame) + _text_name(machine, position) if position.length >= 0 else path_of(frame)


def deltas_between(machine: Machine, before: Position, after: Position) -> tuple[Delta, ...]:
    """The changes, in the order in which they are to be applied."""
    if before is after:
        return ()
    out: list[Delta] = []
    old = _chain(before.frame, before.count)
    new = _chain(after.frame, after.count)
    common = 0
    while common < min(len(old), len(new)) and old[common][0] is new[common][0]:
        common += 1
    same_string = before.length >= 0 and before.frame is after.frame and before.count == after.count
    if before.length >= 0:
        _grown(out, machine, before, after.length if same_string else -1)
    for depth in range(len(old) - 1, common - 2, -1):
        frame, count = old[depth]
        until = new[depth][1] if depth < common else frame.size()
        # The child that was open at `count`, if there was one, has been dealt with.
        open_child = depth + 1 < len(old) or before.length >= 0
        _closed_children(out, frame, count + open_child, until)
    for frame, count in new[common:]:
        out.append(Delta(path_of(frame), "open", {} if frame.is_object() else []))
        _closed_children(out, frame, 0, count)
    if after.length >= 0 and not same_string:
        path = path_of(after.frame) + _text_name(machine, after)
        out.append(Delta(path, "set", text_at(machine, after)))
    return tuple(out)


def _chain(frame: Frame, count: int) -> list[tuple[Frame, int]]:
    chain = [(frame, count)]
    while frame.parent is not None:
        count = frame.slot
        frame = frame.parent
        chain.append((frame, count))
    chain.reverse()
    return chain


def _closed_children(out: list[Delta], frame: Frame, start: int, stop: int) -> None:
    if start >= stop:
        return
    if frame.parent is None:
        out.append(Delta((), "set", frame.child(0)))
        return
    path = path_of(frame)
    out.extend(Delta((*path, frame.name(index)), "set", frame.child(index)) for index in range(start, stop))


def _grown(out: list[Delta], machine: Machine, before: Position, length: int) -> None:
    """The string open before grew to this length, or to its end."""
    text: Any
    if length >= 0:
        text = text_at(machine, Position(before.frame, before.count, length))
    else:
        text = before.frame.child(before.count)
    if len(text) > before.length:
        path = path_of(before.frame) + _text_name(machine, before)
        out.append(Delta(path, "text", text[before.length :]))


def _text_name(machine: Machine, position: Position) -> Path:
    """The key or index of the open string in its container; nothing for a string at the root."""
    frame = position.frame
    if frame.parent is None:
        return ()
    return (key_at(machine, position),) if frame.is_object() else (position.count,)

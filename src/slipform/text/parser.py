"""Parse a growing JSON text: `Parser`, `PENDING`, and deltas."""

from __future__ import annotations

from typing import Any, Final

from slipform.text.scanner import JsonScanner
from slipform.text.scanner_lenient import LenientScanner
from slipform.text.snapshots import GrowingText, SnapshotCell, key_at, text_at
from slipform.text.tree import MISSING, PENDING, Frame, Note, ParseError, ParserDelta, Position

__all__ = [
    "PENDING",
    "Note",
    "ParseError",
    "Parser",
    "ParserDelta",
    "chain_of",
    "deltas_between",
    "open_path",
    "path_of",
]

Path = tuple[str | int, ...]


def path_of(frame: Frame) -> Path:
    """Return the path of a container from the root."""
    names: list[str | int] = []
    parent = frame.parent
    while parent is not None and parent.parent is not None:
        names.append(frame.key if parent.is_object else frame.slot)
        frame = parent
        parent = frame.parent
    names.reverse()
    return tuple(names)


def open_path(scanner: JsonScanner, position: Position) -> Path | None:
    """Return the innermost container or string that is open at the position."""
    frame = position.frame
    is_in_string = position.length >= 0
    if frame.parent is None:
        return () if is_in_string else None
    if is_in_string:
        return path_of(frame) + _text_name(scanner, position)
    return path_of(frame)


def deltas_between(scanner: JsonScanner, before: Position, after: Position) -> tuple[ParserDelta, ...]:
    """Return the changes, in the order in which they are to be applied."""
    if before is after:
        return ()
    out: list[ParserDelta] = []
    old = chain_of(before.frame, before.count)
    new = chain_of(after.frame, after.count)
    common = 0
    while common < min(len(old), len(new)) and old[common][0] is new[common][0]:
        common += 1
    same_string = before.length >= 0 and before.frame is after.frame and before.count == after.count
    if before.length >= 0:
        _add_string_delta(out, scanner, before, after.length if same_string else -1)
    for depth in range(len(old) - 1, common - 2, -1):
        frame, count = old[depth]
        until = new[depth][1] if depth < common else frame.count
        # The child that was open at `count`, if any, has been handled.
        open_child = depth + 1 < len(old) or before.length >= 0
        _closed_children(out, frame, count + open_child, until)
    for frame, count in new[common:]:
        out.append(ParserDelta(path_of(frame), "open", {} if frame.is_object else []))
        _closed_children(out, frame, 0, count)
    if after.length >= 0 and not same_string:
        path = path_of(after.frame) + _text_name(scanner, after)
        out.append(ParserDelta(path, "set", text_at(scanner, after)))
    return tuple(out)


def chain_of(frame: Frame, count: int) -> list[tuple[Frame, int]]:
    """The containers around a position, from the one that holds the root on, and how many children each had closed."""
    chain = [(frame, count)]
    while frame.parent is not None:
        count = frame.slot
        frame = frame.parent
        chain.append((frame, count))
    chain.reverse()
    return chain


def _closed_children(out: list[ParserDelta], frame: Frame, start: int, stop: int) -> None:
    if start >= stop:
        return
    if frame.parent is None:
        out.append(ParserDelta((), "set", frame.child(0)))
        return
    path = path_of(frame)
    out.extend(ParserDelta((*path, frame.name(index)), "set", frame.child(index)) for index in range(start, stop))


def _add_string_delta(out: list[ParserDelta], scanner: JsonScanner, before: Position, length: int) -> None:
    """The string open before grew to this length, or to its end."""
    text: Any
    if length >= 0:
        text = text_at(scanner, Position(before.frame, before.count, length))
    else:
        text = before.frame.child(before.count)
    if len(text) > before.length:
        path = path_of(before.frame) + _text_name(scanner, before)
        out.append(ParserDelta(path, "text", text[before.length :]))


def _text_name(scanner: JsonScanner, position: Position) -> Path:
    """Return the key or index of the open string in its container; nothing for a string at the root."""
    frame = position.frame
    if frame.parent is None:
        return ()
    if frame.is_object:
        return (key_at(scanner, position),)
    return (position.count,)


DEFAULT_MAX_DEPTH: Final = 512


class Parser:
    """Reads JSON chunk by chunk and shows its value as it grows.

    >>> first = Parser().feed('{"name": "Ad')
    >>> second = first.feed('a", "age": 3')
    >>> first.value, second.value
    ({'name': 'Ad'}, {'name': 'Ada'})
    >>> second.feed('6}').finish().value
    {'name': 'Ada', 'age': 36}

    **What shows.** A string shows from its opening quote on, as the text decoded so far; half an escape or half a
    surrogate pair is held back. A container shows from its opening bracket on. A number or literal shows when it has
    ended, because 3 may still become 36. A key shows together with its value. Before anything shows, `value` is
    `PENDING`, never None.

    **Snapshots.** A parser never changes: `feed` gives a new one, and the old one keeps its value and can be fed
    something else. (Feeding an older snapshot reads its text again, once; only the newest continues at no cost.) The
    same text gives the same value, error and notes, however it is cut, as `str` or as UTF-8 `bytes`.

    **Identity.** Values are plain dicts, lists and strings. A part that is the same in two snapshots is the same object
    in both, so `is` shows what changed. They share parts, so treat them as read-only; `copy.deepcopy` what you change.

    **Cost.** Feeding a chunk costs its length. Reading the value costs the open path: the containers not yet closed, at
    most `max_depth`, whatever their width, as long as no more than the last two values of the text are held. While more
    are held, each read copies the open containers on the way, as it must. Elsewhere than on CPython it always does.

    **Errors.** Nothing raises. `error` says where and why the text stopped being JSON; `value` keeps what came before.
    Strict means RFC 8259: no NaN, no comments, nothing after the value (`error.code == "trailing_text"`, and `complete`
    stays true). Deeper than `max_depth` is an error, as are integers of more than 4,300 digits, which Python itself
    refuses. A key given twice (the last one counts), half a surrogate pair and a number beyond the floats (read as
    infinity) are in `notes`.

    `lenient=True` first finds the JSON in prose and reasoning, then repairs what can be decided without looking ahead,
    each repair in `notes`; see `slipform.text.scanner_lenient`.

    Threads may read one snapshot, but must take turns to feed and to read snapshots of the same text.
    """

    __slots__ = (
        "_after",
        "_before",
        "_cell",
        "_chunk_count",
        "_complete",
        "_error",
        "_note_count",
        "_notes",
        "_source",
    )

    def __init__(
        self, *, max_depth: int = DEFAULT_MAX_DEPTH, lenient: bool = False, _source: GrowingText | None = None
    ) -> None:
        source = _source
        if source is None:
            source = GrowingText(LenientScanner(max_depth) if lenient else JsonScanner(max_depth))
        scanner = source.scanner
        self._source: GrowingText = source
        self._chunk_count: int = len(source.chunks)
        self._complete: bool = scanner.complete
        self._error: ParseError | None = scanner.error
        self._notes: list[Note] = scanner.notes
        self._note_count: int = len(scanner.notes)
        self._cell: SnapshotCell = source.cell
        self._before: Position = source.before
        self._after: Position = source.position

    def feed(self, chunk: str | bytes) -> Parser:
        """Return the parser after this chunk; this one does not change. After an error, further text is ignored."""
        source = self._current()
        source.feed(chunk)
        return Parser(_source=source)

    def finish(self) -> Parser:
        """Return the parser at the end of the text: complete, or with an `error`. A number at the root ends here."""
        source = self._current()
        source.finish()
        return Parser(_source=source)

    @property
    def value(self) -> Any:
        """The value so far, or `PENDING`."""
        cell = self._cell
        value = cell.value
        if value is MISSING:
            value = cell.show()
        return PENDING if value is MISSING else value

    @property
    def complete(self) -> bool:
        """Whether the value has closed. Text after it is an error, but does not make it less complete."""
        return self._complete

    @property
    def error(self) -> ParseError | None:
        """Where and why the text stopped being JSON."""
        return self._error

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes for the reader of the value, in the order of the text."""
        return tuple(self._notes[: self._note_count])

    @property
    def open_path(self) -> tuple[str | int, ...] | None:
        """Where the text is now: the innermost container or string that has not closed; None when none is open.

        Visible values outside this path do not change any more.

        >>> Parser().feed('{"a": 1, "b": [true, "x').open_path
        ('b', 1)
        """
        return open_path(self._source.scanner, self._after)

    def deltas(self) -> tuple[ParserDelta, ...]:
        """Return the changes from the value of the previous snapshot to this one's.

        >>> [(delta.path, delta.kind, delta.value) for delta in Parser().feed('["a').feed('b", 1').deltas()]
        [((0,), 'text', 'b')]
        """
        return deltas_between(self._source.scanner, self._before, self._after)

    @property
    def cursor(self) -> tuple[GrowingText, int, Position]:
        """The source, the number of its chunks in this snapshot, and its place in the tree; for `resolve`."""
        return self._source, self._chunk_count, self._after

    def __repr__(self) -> str:
        # Without the value, which may be long, and too deep for `repr`.
        if self._error is not None:
            return f"Parser(error={self._error!s})"
        if self._complete:
            return "Parser(complete)"
        return f"Parser(open_path={self.open_path})"

    def _current(self) -> GrowingText:
        """Return the source if nothing was fed since this snapshot, else a separate one at that point."""
        source = self._source
        if len(source.chunks) == self._chunk_count:
            return source
        return source.fork(self._chunk_count, self.value, self._cell)

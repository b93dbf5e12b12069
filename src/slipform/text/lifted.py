"""Convert a growing JSON text from a vendor's shape to the caller's, piece by piece.

The plan of a lowered schema describes each part of the vendor's text. One generator reads each open part of the
text: it is sent the scanner's events, and writes the caller's text as soon as it is known. A generator yields the
reader of an inner part, and is resumed when that part has ended: an explicit stack of generators instead of
`yield from`, so that an event costs the same at every depth. Text that depends on later events (a value whose key
comes after it, an object whose branch is still open) is buffered separately; everything before it
has been written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from slipform.schema.lowering.lift import holds, parse_text, passes
from slipform.schema.lowering.lift_plan import (
    SAME,
    ChoicePlan,
    FieldPlan,
    Items,
    LiftPlan,
    NullBox,
    Pairs,
    RecordPlan,
    Ref,
    Table,
    Test,
    TextPlan,
    Tuple,
    UnionPlan,
    ValuePlan,
    Wrapped,
    kind_of,
)
from slipform.text.scanner import JsonScanner, ScanListener, plain_run_end
from slipform.text.strict import compact_json

OBJECT: Final = "{"
ARRAY: Final = "["
KEY: Final = ":"
TEXT_OPENED: Final = '"'
TEXT: Final = "…"
SCALAR: Final = "="
CLOSED: Final = "}"
_KINDS: Final = {OBJECT: "object", ARRAY: "array", TEXT_OPENED: "string"}
_JSON_IN_TEXT: Final = ("{", "[", '"')
"""First characters of JSON in a string that can be written while it grows: a number or word may turn out to be text."""


class ScanEvent:
    """An event of the vendor's text: a bracket, a key, a piece of a string, a scalar.

    Not a `NamedTuple`: a compiled class is created in a twentieth of the instructions.
    """

    __slots__ = ("kind", "spelling", "value")

    def __init__(self, kind: str, value: Any = None, spelling: str = "") -> None:
        self.kind = kind
        self.value = value
        self.spelling = spelling
        """A number as it is written."""


ValueSteps: TypeAlias = Generator[Any, ScanEvent, None]
"""Reads one value of the vendor's text; yields a `Follower` for an inner value, or None for the next event."""
Follower: TypeAlias = Any
"""How a value is read: by `ValueSteps`; None, if it is copied and the next event is its end; or `_WRITTEN`."""
Begin: TypeAlias = Callable[[], None]
"""Writes the text before a value: its comma and its key."""
_WRITTEN: Final = object()
"""In place of `ValueSteps`: the whole value has been written."""
_OPENED: Final = ScanEvent(OBJECT)
_ARRAY_OPENED: Final = ScanEvent(ARRAY)
_TEXT_OPENED: Final = ScanEvent(TEXT_OPENED)
_CLOSED: Final = ScanEvent(CLOSED)
_RESUMED: Final = ScanEvent("")
"""Sent to a part when an inner part has ended; not read by any."""


class _NotLiftable(Exception):  # noqa: N818 — control flow: only the whole answer can be lifted
    """The text does not have the vendor's shape."""


class _Container:
    """An object or array of the caller's text in progress."""

    __slots__ = ("count", "keys")

    def __init__(self) -> None:
        self.count = 0
        self.keys: set[str] = set()


class _Copied:
    """An open container that is copied unchanged, without a generator."""

    __slots__ = ("count", "is_object")

    def __init__(self, is_object: bool) -> None:
        self.count = 0
        self.is_object = is_object


class LiftedText(ScanListener):
    """Converts one answer: `feed` it the vendor's JSON text, and it returns the caller's.

    >>> from slipform.schema.lowering import lower
    >>> schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    >>> lifted = LiftedText(lower(schema, "openai", open_objects="closed").plan)
    >>> lifted.feed('{"a": "grow'), lifted.feed('ing", "b": nu'), lifted.feed("ll}")
    ('{"a":"grow', 'ing"', '}')
    """

    def __init__(self, plan: LiftPlan, max_depth: int = 256) -> None:
        super().__init__()
        self.follows_text = True
        self.failed = False
        """Whether the text deviates from the vendor's shape, so that only the whole answer can be read."""
        self._active = plan.active
        self._scanner = JsonScanner(max_depth, self)
        self._written: list[str] = []
        self._sink = self._written
        """The current target of written text: the output, or a buffer."""
        self._waiting: deque[ScanEvent] = deque()
        """Events that were read ahead, to be processed again."""
        self._copied = -1
        """The number of copied characters of the open string; -1 where none is copied."""
        self._copies: list[_Copied] = []
        """The open containers that are copied unchanged, the innermost last."""
        self._open_parts: list[ValueSteps] = []
        """The readers of the open parts of the text, the innermost last."""
        self._open_parts.append(self._root(plan.root))
        next(self._open_parts[0])

    @property
    def complete(self) -> bool:
        """Whether the vendor's JSON has closed."""
        return self._scanner.complete

    @property
    def offset(self) -> int:
        """How many characters of the vendor's text have been read."""
        return self._scanner.offset

    def feed(self, text: str) -> str:
        """Read the next piece of the vendor's text; return the text that it adds to the caller's."""
        self._scanner.feed(text)
        self._scanner.blanks.clear()
        if self._scanner.error is not None or self._scanner.notes:
            self.failed = True
        pieces = self._written
        written = pieces[0] if len(pieces) == 1 else "".join(pieces)
        pieces.clear()
        return "" if self.failed else written

    # Called by the scanner.

    def opened(self, is_object: bool, start: int) -> bool:
        """Handle the bracket that opens a container."""
        del start
        if self._copies:
            self._begin_copy()
            self._open_copy(is_object)
            return True
        return self._send(_OPENED if is_object else _ARRAY_OPENED)

    def key(self, key: str) -> bool:
        """Handle a key."""
        if not self._copies:
            return self._send(ScanEvent(KEY, key))
        copied = self._copies[-1]
        self._sink.append(f',"{_escaped(key)}":' if copied.count else f'"{_escaped(key)}":')
        copied.count += 1
        return True

    def text_opened(self) -> bool:
        """Handle the quote that opens a string."""
        if not self._copies:
            return self._send(_TEXT_OPENED)
        self._begin_copy()
        self._sink.append('"')
        self._copied = 0
        return True

    def text(self, text: str) -> bool:
        """Handle the growth of an open string."""
        if self._copied < 0:
            return self._send(ScanEvent(TEXT, text))
        if len(text) > self._copied:
            self._copy_text(text)
        return True

    def scalar(self, value: Any) -> bool:
        """Handle the end of a string, number or literal."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        spelling = "".join(self._scanner.digits) if is_number else ""
        if self._copied >= 0:
            if len(value) > self._copied:
                self._copy_text(value)
            self._copied = -1
            self._sink.append('"')
            return True if self._copies else self._send(_CLOSED)
        if not self._copies:
            return self._send(ScanEvent(SCALAR, value, spelling))
        self._begin_copy()
        self._sink.append(spelling or compact_json(value))
        return True

    def closed(self, container: Any) -> bool:
        """Handle the bracket that closes a container."""
        del container
        if self._copies:
            self._sink.append("}" if self._copies.pop().is_object else "]")
            if self._copies:
                return True
        return self._send(_CLOSED)

    def _send(self, event: ScanEvent) -> bool:
        try:
            self._advance(event)
            while self._waiting and self._open_parts:
                self._advance(self._waiting.popleft())
        except _NotLiftable:
            self.failed = True
        return not self.failed

    def _advance(self, event: ScanEvent) -> None:
        """Send an event to the innermost open part, and run until the next event is needed."""
        parts = self._open_parts
        while parts:
            try:
                inner = parts[-1].send(event)
                while inner is not None and inner is not _WRITTEN:
                    parts.append(inner)
                    inner = next(inner)
                if inner is None:
                    return
            except StopIteration:
                parts.pop()
            event = _RESUMED

    # Copies a value unchanged, as the scanner reads it.

    def _open_copy(self, is_object: bool) -> None:
        self._sink.append("{" if is_object else "[")
        self._copies.append(_Copied(is_object))

    def _begin_copy(self) -> None:
        """Write the comma before an item; that of a member is written with its key."""
        copied = self._copies[-1]
        if not copied.is_object:
            if copied.count:
                self._sink.append(",")
            copied.count += 1

    def _copy_text(self, text: str) -> None:
        """Write the new part of the copied string."""
        self._sink.append(_escaped(text[self._copied :]))
        self._copied = len(text)

    # What follows the parts of the text.

    def _root(self, plan: ValuePlan) -> ValueSteps:
        first = yield
        yield self._value(plan, first, _write_nothing)

    def _write(self, text: str) -> None:
        self._sink.append(text)

    def _value(self, plan: ValuePlan, first: ScanEvent, begin: Begin) -> Follower:
        """Read one value; `begin` is called before anything is written, and never for an absent value."""
        while isinstance(plan, Ref) and plan.target is not None:
            plan = plan.target
        if id(plan) in self._active:
            steps = self._active_steps(plan, first, begin)
            if steps is not None:
                return steps
        begin()
        return self._copy_value(first)

    def _active_steps(self, plan: ValuePlan, first: ScanEvent, begin: Begin) -> ValueSteps | None:
        """Return the reader of an encoded value; None for one without the encoded shape."""
        match plan, first.kind:
            case UnionPlan(table=Table() as table), _:
                return self._union(table, first, begin)
            case TextPlan(), '"':
                return self._json_in_text(begin)
            case RecordPlan(), "{":
                return self._record(plan, begin)
            case Wrapped(), "{":
                return self._wrapped(plan, begin)
            case ChoicePlan(), "{":
                return self._choice(plan, begin)
            case Tuple(), "{":
                return self._tuple(plan, begin)
            case Items(), "[":
                return self._items(plan, begin)
            case Pairs(), "[":
                return self._pairs(plan, begin)
            case NullBox(), "[":
                return self._null_box(plan, begin)
            case _:
                return None

    def _copy_value(self, first: ScanEvent) -> Follower:
        """Copy a value unchanged."""
        kind = first.kind
        if kind == SCALAR:
            self._write(first.spelling or compact_json(first.value))
            return _WRITTEN
        if self._waiting:  # its events were read ahead: the scanner does not report them again
            return self._copy_waiting(kind)
        if kind == TEXT_OPENED:
            self._write('"')
            self._copied = 0
        else:
            self._open_copy(kind == OBJECT)
        return None

    def _copy_waiting(self, kind: str) -> ValueSteps:
        """Copy a string or container whose events were read ahead."""
        if kind == OBJECT:
            return self._record(_ANY_RECORD, _write_nothing)
        if kind == ARRAY:
            return self._items(_ANY_ITEMS, _write_nothing)
        return self._string()

    def _string(self) -> ValueSteps:
        """Copy a string as it grows, from events."""
        self._write('"')
        length = 0
        while True:
            event = yield
            text: str = event.value
            if len(text) > length:
                self._write(_escaped(text[length:]))
                length = len(text)
            if event.kind == SCALAR:
                self._write('"')
                return

    def _json_in_text(self, begin: Begin) -> ValueSteps:
        """Write the JSON in a string; a string without JSON is written unchanged."""
        length = 0
        is_growing = False
        while True:
            event = yield
            text: str = event.value
            if not is_growing and text.lstrip()[:1] in _JSON_IN_TEXT:
                is_growing = True
                begin()
            if event.kind == SCALAR and not is_growing:
                begin()
                self._write(compact_json(parse_text(text)))
                return
            if is_growing:
                self._write(text[length:])
                length = len(text)
            if event.kind == SCALAR:
                return

    def _record(self, plan: RecordPlan, begin: Begin) -> ValueSteps:
        """Read an object with renamed or encoded keys, and write the caller's."""
        begin()
        self._write("{")
        container = _Container()
        waiting: dict[str, str] = {}
        others = plan.values if plan.extra is None else SAME
        while (event := (yield)) is not _CLOSED:
            name: str = event.value
            first = yield
            if name == plan.extra and first.kind == ARRAY:
                yield self._extra_pairs(plan, container, waiting)
                continue
            if name == plan.extra and first.kind == OBJECT:
                raise _NotLiftable
            member = self._member(container, plan.names.get(name, name))
            entry = plan.fields.get(name)
            if entry is None:
                yield self._value(others, first, member)
            else:
                yield self._field(entry, first, member)
        for name, text in waiting.items():
            if name not in container.keys:
                self._member(container, name)()
                self._write(text)
        self._write("}")

    def _member(self, container: _Container, name: str) -> Begin:
        """Return the function that writes the comma and the key of a member."""

        def begin() -> None:
            if name in container.keys:
                raise _NotLiftable
            container.keys.add(name)
            self._write(f',"{_escaped(name)}":' if container.count else f'"{_escaped(name)}":')
            container.count += 1

        return begin

    def _item(self, container: _Container) -> Begin:
        """Return the function that writes the comma before an item."""

        def begin() -> None:
            if container.count:
                self._write(",")
            container.count += 1

        return begin

    def _field(self, entry: FieldPlan, first: ScanEvent, begin: Begin) -> Follower:
        """Read a property with the vendor's encoding of absence; an absent one is not written."""
        if entry.mode == "null" and first.kind == SCALAR and first.value is None:
            return _WRITTEN
        if first.kind == ARRAY and entry.mode in ("empty", "box"):
            return self._optional_array(entry, first, begin)
        return self._value(entry.plan, first, begin)

    def _optional_array(self, entry: FieldPlan, first: ScanEvent, begin: Begin) -> ValueSteps:
        """Read a property that is absent where its array is empty; a box has the value as its one item."""
        item = yield
        if item is _CLOSED:
            return
        if entry.mode == "box":
            yield self._value(entry.plan, item, begin)
            yield self._skip_rest()
            return
        self._waiting.appendleft(item)
        yield self._value(entry.plan, first, begin)

    def _extra_pairs(self, plan: RecordPlan, container: _Container, waiting: dict[str, str]) -> ValueSteps:
        """Write pairs as members of their object; a pair with the name of a listed property waits for the end."""
        listed = {plan.names.get(name, name) for name in plan.fields}
        while (event := (yield)) is not _CLOSED:
            yield self._pair(plan.values, event, container, listed, waiting)

    def _pairs(self, plan: Pairs, begin: Begin) -> ValueSteps:
        begin()
        self._write("{")
        container = _Container()
        while (event := (yield)) is not _CLOSED:
            yield self._pair(plan.value, event, container, frozenset(), {})
        self._write("}")

    def _pair(
        self,
        plan: ValuePlan,
        first: ScanEvent,
        container: _Container,
        listed: set[str] | frozenset[str],
        waiting: dict[str, str],
    ) -> ValueSteps:
        """Write one pair as a member, while it grows if its key comes first. The first pair of a key counts."""
        if first.kind != OBJECT:
            yield self._skip(first)
            return
        key: str | None = None
        text: str | None = None
        is_written = False
        while (event := (yield)) is not _CLOSED:
            value = yield
            if event.value == "key":
                captured: list[Any] = []
                yield self._read_scalar(value, captured)
                key = None
                if captured and isinstance(captured[0], str):
                    key = captured[0]
            elif event.value != "value":
                yield self._skip(value)
            elif key is not None and key not in container.keys and key not in listed:
                is_written = True
                yield self._value(plan, value, self._member(container, key))
            else:
                with self._capturing() as pieces:
                    yield self._value(plan, value, _write_nothing)
                text = "".join(pieces)
        if key is None or text is None or is_written or key in container.keys:
            return
        if key in listed:
            waiting.setdefault(key, text)
            return
        self._member(container, key)()
        self._write(text)

    def _items(self, plan: Items, begin: Begin) -> ValueSteps:
        begin()
        self._write("[")
        container = _Container()
        item = self._item(container)
        while (event := (yield)) is not _CLOSED:
            at = container.count
            yield self._value(plan.prefix[at] if at < len(plan.prefix) else plan.rest, event, item)
        self._write("]")

    def _tuple(self, plan: Tuple, begin: Begin) -> ValueSteps:
        """Write the positions of a tuple in order; an early one waits, and an absent one ends the array."""
        begin()
        self._write("[")
        container = _Container()
        item = self._item(container)
        names = list(plan.places)
        if plan.rest_key is not None:
            names.append(plan.rest_key)
        waiting: dict[str, str | None] = {}
        at = 0
        while (event := (yield)) is not _CLOSED:
            name: str = event.value
            first = yield
            if at < len(names) and name == names[at]:
                count = container.count
                yield self._place(plan, name, first, item)
                at = at + 1 if container.count > count or name == plan.rest_key else len(names)
            else:
                with self._capturing() as pieces:
                    yield self._place(plan, name, first, self._item(_Container()))
                waiting[name] = "".join(pieces) or None
            while at < len(names) and names[at] in waiting:
                text = waiting.pop(names[at])
                at = len(names) if text is None else at + 1
                if text is not None:
                    item()
                    self._write(text)
        self._write("]")

    def _place(self, plan: Tuple, name: str, first: ScanEvent, begin: Begin) -> ValueSteps:
        entry = plan.places.get(name)
        if entry is not None:
            yield self._field(entry, first, begin)
        elif name == plan.rest_key and first.kind == ARRAY:
            while (event := (yield)) is not _CLOSED:
                yield self._value(plan.rest, event, begin)
        else:
            yield self._skip(first)

    def _wrapped(self, plan: Wrapped, begin: Begin) -> ValueSteps:
        is_written = False
        while (event := (yield)) is not _CLOSED:
            first = yield
            if event.value == plan.key:
                is_written = True
                yield self._value(plan.plan, first, begin)
            else:
                yield self._skip(first)
        if not is_written:
            raise _NotLiftable

    def _null_box(self, plan: NullBox, begin: Begin) -> ValueSteps:
        first = yield
        if first is _CLOSED:
            begin()
            self._write("null")
            return
        yield self._value(plan.plan, first, begin)
        yield self._skip_rest()

    def _choice(self, plan: ChoicePlan, begin: Begin) -> ValueSteps:
        """Write the first item of the first non-empty alternative; null where all are empty."""
        is_written = False
        while (event := (yield)) is not _CLOSED:
            first = yield
            option = plan.options.get(event.value)
            if is_written or option is None or first.kind != ARRAY:
                yield self._skip(first)
                continue
            item = yield
            if item is not _CLOSED:
                is_written = True
                yield self._value(option[0], item, begin)
                yield self._skip_rest()
        if not is_written:
            begin()
            self._write("null")

    def _union(self, table: Table, first: ScanEvent, begin: Begin) -> ValueSteps:
        if first.kind != OBJECT:
            plan = table.by_kind.get(_KINDS.get(first.kind) or kind_of(first.value))
        else:
            chosen: list[ValuePlan | None] = []
            yield self._choose(table, chosen)
            plan = chosen[0]
        yield self._value(SAME if plan is None else plan, first, begin)

    def _choose(self, table: Table, chosen: list[ValuePlan | None]) -> ValueSteps:
        """Read an object until its alternative is known, then process what was read again."""
        read: list[ScanEvent] = []
        members: dict[str, Any] = {}
        open_key: str | None = None
        depth = 0
        while True:
            decided, plan = _alternative(table, members, open_key)
            if decided:
                break
            event = yield
            read.append(event)
            if depth == 0 and event is _CLOSED:
                plan = next((plan for tests, plan in table.objects if holds(tests, members)), None)
                break
            if event.kind == KEY and depth == 0:
                open_key = event.value
            elif depth == 0 and open_key is not None:
                members[open_key] = _PLACEHOLDERS.get(event.kind, event.value)
                if event.kind == SCALAR:
                    open_key = None
            if event.kind in (OBJECT, ARRAY):
                depth += 1
            elif event is _CLOSED:
                depth -= 1
                if depth == 0:
                    open_key = None
        self._waiting.extendleft(reversed(read))
        chosen.append(plan)

    def _skip(self, first: ScanEvent) -> ValueSteps:
        """Skip a value."""
        with self._capturing():
            yield self._copy_value(first)

    def _skip_rest(self) -> ValueSteps:
        """Skip the remaining items of an array."""
        while (event := (yield)) is not _CLOSED:
            yield self._skip(event)

    def _read_scalar(self, first: ScanEvent, captured: list[Any]) -> ValueSteps:
        """Skip a value, and add it to `captured` if it is a scalar."""
        event = first
        if first.kind == TEXT_OPENED:
            while event.kind != SCALAR:
                event = yield
        if event.kind == SCALAR:
            captured.append(event.value)
        else:
            yield self._skip(first)

    @contextmanager
    def _capturing(self) -> Iterator[list[str]]:
        """Write to a separate list instead of the output."""
        outer = self._sink
        pieces: list[str] = []
        self._sink = pieces
        try:
            yield pieces
        finally:
            self._sink = outer


def _escaped(text: str) -> str:
    """Return text as the content of a JSON string."""
    return text if plain_run_end(text, 0) == len(text) else compact_json(text)[1:-1]


def _write_nothing() -> None:
    """Write nothing: before the root, or before a value that is written elsewhere."""


_ANY_RECORD: Final = RecordPlan({})
_ANY_ITEMS: Final = Items((), SAME)
_PLACEHOLDERS: Final[Mapping[str, Any]] = {OBJECT: {}, ARRAY: [], TEXT_OPENED: ""}


def _alternative(table: Table, members: dict[str, Any], open_key: str | None) -> tuple[bool, ValuePlan | None]:
    """Return whether the keys so far decide which alternative an open object is, and its plan."""
    for tests, plan in table.objects:
        if any(_is_sure(test, members, open_key) and not passes(test, members) for test in tests):
            continue
        if all(_is_sure(test, members, open_key) for test in tests):
            return True, plan
        return False, None
    return False, None


def _is_sure(test: Test, members: dict[str, Any], open_key: str | None) -> bool:
    """Return whether an open object already decides a test: the key is there, and its value complete where needed."""
    word, key, _ = test
    return key in members and (word in ("has", "lacks", "kind", "other_kind") or key != open_key)

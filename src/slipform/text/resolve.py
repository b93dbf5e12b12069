"""How a growing text becomes a growing value of a schema: `resolve`, `ResolveCache`."""

from __future__ import annotations

from typing import Any

from slipform.text.parser import Parser
from slipform.text.resolve_plan import NormalForm
from slipform.text.snapshots import GrowingText, show_cut, show_past
from slipform.text.tracker import NO_MATCH, Invalid, Match, NoMatch, Tracker
from slipform.text.tree import PENDING, Frame, Position


class ResolveCache:
    """What `resolve` remembers between the snapshots of one text; one per text and schema.

    It never has to be cleared: given another text, another schema or an older snapshot, it starts over by itself.
    """

    def __init__(self) -> None:
        self.plan: NormalForm | None = None
        self.source: GrowingText | None = None
        self.seen: int = 0
        self.position: Position | None = None
        self.tracker: Tracker | None = None
        self.result: Match | NoMatch | Invalid = NO_MATCH
        self.shown: Position | None = None
        """The position that the last match showed, which may be short of where the text was."""


def resolve(schema: Any, parser: Parser, cache: ResolveCache) -> Match | NoMatch | Invalid:
    """What can be shown of a text that must follow `schema`, or why it cannot follow it any more.

    >>> schema = {"properties": {"mood": {"enum": ["happy", "sad"]}, "why": {"type": "string"}}}
    >>> cache = ResolveCache()
    >>> parser = Parser().feed('{"mood": "hap')
    >>> resolve(schema, parser, cache)
    Match(value={})
    >>> resolve(schema, parser.feed('py", "why": "It is s'), cache)
    Match(value={'mood': 'happy', 'why': 'It is s'})
    >>> print(resolve(schema, parser.feed("less"), cache))
    $.mood: begins like none of the allowed values

    The value is the parser's, with one thing held back: the part of the open path that is not decided. A string shows
    as it grows, but one of an `enum` or `const` only when it has closed. Where `anyOf` or `oneOf` leaves a choice, a
    container shows as soon as one branch is left, or when it has closed. Keys the schema does not know pass, unless
    `additionalProperties` forbids them. So the value of a complete, valid text is the parser's own value, and a part
    that is the same for two snapshots is the same object. When nothing shows yet the answer is `NoMatch`; it never is
    once the text is complete.

    `Invalid` comes with the first chunk after which no continuation can be valid. It looks at `type`, `enum`, `const`,
    `properties`, `patternProperties`, `additionalProperties`, `required`, `items`, `prefixItems`, minima and maxima,
    `$ref` inside the document, `allOf`, `anyOf` and `oneOf` (as `anyOf`). Other keywords pass: `resolve` shows a
    stream, the validator judges the whole.

    The cost per chunk is that of what is new: closed parts are looked at once.
    """
    source, seen, position = parser.cursor
    tracker = _tracker(schema, source, seen, cache)
    if cache.position is position:
        return cache.result
    cache.seen = seen
    cache.position = position
    if tracker.invalid is None:
        tracker.advance(source.machine, position)
    if tracker.invalid is not None:
        cache.result = tracker.invalid
        return cache.result
    shown = _visible(tracker, position)
    if shown is None:
        cache.result = NO_MATCH
        cache.shown = None
    elif cache.shown is None or not _same_place(cache.shown, shown):
        cache.result = _show(parser, source, seen, position, shown)
        cache.shown = shown
    return cache.result


def _tracker(schema: Any, source: GrowingText, seen: int, cache: ResolveCache) -> Tracker:
    """The tracker to go on with; a new one if the cache belongs to something else."""
    plan = cache.plan
    if plan is None or plan.schema is not schema:
        plan = cache.plan = NormalForm(schema)
        cache.tracker = None
    tracker = cache.tracker
    if tracker is None or cache.source is not source or seen < cache.seen:
        tracker = cache.tracker = Tracker(plan.root)
        cache.source = source
        cache.position = None
        cache.shown = None
        cache.result = NO_MATCH
    return tracker


def _visible(tracker: Tracker, position: Position) -> Position | None:
    """The position up to which the value may be shown; None when that is nowhere."""
    frame = position.frame
    if frame.parent is None:
        if position.length >= 0:
            return position if tracker.shows_text else None
        return position if position.count else None
    for track in tracker.tracks:
        if not track.decided():
            return _before(track.frame)
    if position.length >= 0 and not tracker.shows_text:
        return Position(frame, position.count, -1)
    return position


def _before(frame: Frame) -> Position | None:
    """The position just before a container opened."""
    parent = frame.parent
    return None if parent is None or parent.parent is None else Position(parent, frame.slot, -1)


def _show(parser: Parser, source: GrowingText, seen: int, position: Position, shown: Position) -> Match | NoMatch:
    if shown is position:
        value = parser.value
        return NO_MATCH if value is PENDING else Match(value)
    if seen == len(source.chunks):
        return Match(show_cut(source.machine, shown.frame))
    return Match(show_past(source.machine, shown))


def _same_place(left: Position, right: Position) -> bool:
    if left.frame is right.frame and left.count == right.count and min(left.length, right.length) >= 0:
        return left.length == right.length  # one string, which may have grown
    a, b = _settled(left), _settled(right)
    return a.frame is b.frame and a.count == b.count and a.length == b.length


def _settled(position: Position) -> Position:
    """The outermost position that shows the same: a string or container that closed as it was adds nothing."""
    frame, count, length = position.frame, position.count, position.length
    while True:
        if length >= 0:
            if frame.size() <= count or len(frame.child(count)) != length:
                break
            count, length = count + 1, -1
        else:
            parent = frame.parent
            if parent is None or not frame.closed or frame.size() != count:
                break
            count, frame = frame.slot + 1, parent
    return Position(frame, count, length)

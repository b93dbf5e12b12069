"""Turn a growing text into a growing value of a schema: `resolve`, `ResolveCache`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from slipform.schema.shape import to_text
from slipform.text.parser import Parser, chain_of
from slipform.text.resolve_plan import NormalForm
from slipform.text.scanner import JsonScanner
from slipform.text.snapshots import GrowingText, key_at, show_cut, show_past, text_at
from slipform.text.tracker import Mismatch, Tracker
from slipform.text.tree import PENDING, Frame, Position

__all__ = ["NO_MATCH", "Match", "Mismatch", "NoMatch", "ResolveCache", "resolve"]


@dataclass(frozen=True, slots=True)
class Match:
    """The text matches the schema so far; `value` is the visible part.

    >>> Match({"name": "Ad"}).value
    {'name': 'Ad'}
    """

    value: Any


@dataclass(frozen=True, slots=True)
class NoMatch:
    """No value is visible yet: the text is too short, or the branch of a union is still undecided."""


NO_MATCH: Final = NoMatch()


class ResolveCache:
    """The state of `resolve` between the snapshots of one text; one per text and schema.

    It never has to be cleared: with another text, another schema or an older snapshot, it starts again.
    """

    def __init__(self) -> None:
        self.plan: NormalForm | None = None
        self.source: GrowingText | None = None
        self.seen: int = 0
        self.position: Position | None = None
        self.tracker: Tracker | None = None
        self.frames: list[Frame] = []
        """The open containers in the tracker."""
        self.result: Match | NoMatch | Mismatch = NO_MATCH
        self.shown: Position | None = None
        """The position that the last match showed, which may be before the end of the text."""


def resolve(schema: Any, parser: Parser, cache: ResolveCache) -> Match | NoMatch | Mismatch:
    """Return the visible value of a text that must match `schema`, or why it no longer can.

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

    `Mismatch` comes with the first chunk after which no continuation can be valid. It looks at `type`, `enum`, `const`,
    `properties`, `patternProperties`, `additionalProperties`, `required`, `items`, `prefixItems`, minima and maxima,
    `$ref` inside the document, `allOf`, `anyOf` and `oneOf` (as `anyOf`). Other keywords pass: `resolve` shows a
    stream, the validator judges the whole.

    The cost per chunk is that of what is new: closed parts are looked at once.
    """
    source, chunk_count, position = parser.cursor
    tracker = _tracker(schema, source, chunk_count, cache)
    if cache.position is position:
        return cache.result
    cache.seen = chunk_count
    cache.position = position
    if tracker.mismatch is None:
        _advance(tracker, cache.frames, source.scanner, position)
    if tracker.mismatch is not None:
        cache.result = tracker.mismatch
        return cache.result
    shown = _visible(tracker, cache.frames, position)
    if shown is None:
        cache.result = NO_MATCH
        cache.shown = None
    elif cache.shown is None or not _same_place(cache.shown, shown):
        cache.result = _match_at(parser, source, chunk_count, position, shown)
        cache.shown = shown
    return cache.result


def _tracker(schema: Any, source: GrowingText, chunk_count: int, cache: ResolveCache) -> Tracker:
    """Return the tracker to continue with; a new one if the cache belongs to another text or schema."""
    plan = cache.plan
    if plan is None or (plan.schema is not schema and not _is_same(plan.schema, schema)):
        plan = cache.plan = NormalForm(schema)
        cache.tracker = None
    tracker = cache.tracker
    if tracker is None or cache.source is not source or chunk_count < cache.seen:
        tracker = cache.tracker = Tracker(plan)
        cache.frames = []
        cache.source = source
        cache.position = None
        cache.shown = None
        cache.result = NO_MATCH
    return tracker


def _is_same(cached: Any, schema: Any) -> bool:
    """Whether a schema that is rebuilt for each call is the one the cache was made for."""
    if not isinstance(cached, dict) or not isinstance(schema, dict) or cached != schema:
        return False
    return to_text(cached) == to_text(schema)  # 1 and True are equal, and are not the same


def _advance(tracker: Tracker, frames: list[Frame], scanner: JsonScanner, position: Position) -> None:
    """Feed the tracker the new text up to the position."""
    if frames and frames[-1] is position.frame:
        if not _feed_children(tracker, position.frame, position.count):
            return
    elif not _follow(tracker, frames, chain_of(position.frame, position.count)[1:]):
        return
    if position.length >= 0:
        if not tracker.in_text:
            if position.frame.is_object and not tracker.key(key_at(scanner, position)):
                return
            if not tracker.text_opened():
                return
        if tracker.follows_text:
            tracker.text(text_at(scanner, position))
    elif not frames and position.count and not tracker.complete:
        tracker.value(position.frame.child(0))


def _follow(tracker: Tracker, frames: list[Frame], chain: list[tuple[Frame, int]]) -> bool:
    """Leave the closed containers, and enter the opened ones."""
    while frames and not (len(frames) <= len(chain) and chain[len(frames) - 1][0] is frames[-1]):
        frame = frames.pop()
        if not _feed_children(tracker, frame, frame.count) or not tracker.closed(frame.final):
            return False
    for depth in range(max(len(frames) - 1, 0), len(chain)):
        frame, count = chain[depth]
        if depth == len(frames):
            frames.append(frame)
            parent = frame.parent
            if depth and parent is not None and parent.is_object and not tracker.key(frame.key):
                return False
            if not tracker.opened(frame.is_object, depth):
                return False
        if not _feed_children(tracker, frame, count):
            return False
    return True


def _feed_children(tracker: Tracker, frame: Frame, count: int) -> bool:
    """Feed the tracker the new ones of the first `count` children of the innermost container."""
    track = tracker.tracks[-1]
    while track.count < count:
        # The key of a string is known since the string opened.
        if frame.is_object and not tracker.in_text and not tracker.key(str(frame.name(track.count))):
            return False
        if not tracker.value(frame.child(track.count)):
            return False
    return True


def _visible(tracker: Tracker, frames: list[Frame], position: Position) -> Position | None:
    """Return the position up to which the value may be shown; None when nothing may be shown."""
    frame = position.frame
    if frame.parent is None:
        if position.length >= 0:
            return position if tracker.shows_text else None
        return position if position.count else None
    undecided = tracker.undecided_from
    if undecided >= 0:
        return _position_before(frames[undecided])
    if position.length >= 0 and not tracker.shows_text:
        return Position(frame, position.count, -1)
    return position


def _position_before(frame: Frame) -> Position | None:
    """Return the position just before a container opened."""
    parent = frame.parent
    if parent is None or parent.parent is None:
        return None
    return Position(parent, frame.slot, -1)


def _match_at(
    parser: Parser, source: GrowingText, chunk_count: int, position: Position, shown: Position
) -> Match | NoMatch:
    """Return the value as far as `shown`, which is `position`, the end of the parsed text, or a place before it."""
    if shown is position:
        value = parser.value
        return NO_MATCH if value is PENDING else Match(value)
    if chunk_count == len(source.chunks):
        return Match(show_cut(source.scanner, shown.frame))
    return Match(show_past(source.scanner, shown))


def _same_place(left: Position, right: Position) -> bool:
    if left.frame is right.frame and left.count == right.count and min(left.length, right.length) >= 0:
        return left.length == right.length  # one string, which may have grown
    outer_left = _outermost_alike(left)
    outer_right = _outermost_alike(right)
    is_same_child = outer_left.frame is outer_right.frame and outer_left.count == outer_right.count
    return is_same_child and outer_left.length == outer_right.length


def _outermost_alike(position: Position) -> Position:
    """Return the outermost position with the same value: a container that closed unchanged adds nothing."""
    frame = position.frame
    count = position.count
    length = position.length
    while True:
        if length >= 0:
            if frame.count <= count or len(frame.child(count)) != length:
                break
            count = count + 1
            length = -1
        else:
            parent = frame.parent
            if parent is None or not frame.closed or frame.count != count:
                break
            count = frame.slot + 1
            frame = parent
    return Position(frame, count, length)

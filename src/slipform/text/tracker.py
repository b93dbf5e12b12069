"""The one tracker: which alternatives each open container may still follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from slipform.text.parser import path_of
from slipform.text.resolve_plan import Alternative, Leaf, Node
from slipform.text.scanner import JsonScanner
from slipform.text.snapshots import key_at, text_at
from slipform.text.tree import Frame, Position


def kind_of(value: Any) -> str:
    """The JSON type of a value; integers and numbers without a fraction are "integer"."""
    if isinstance(value, str):
        return "string"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    return "integer" if isinstance(value, int) or value.is_integer() else "number"


def equal(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1."""
    if isinstance(left, dict | list):
        return same_json(left, right)
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def same_json(left: Any, right: Any) -> bool:
    """The same for containers, without recursion."""
    pairs: list[tuple[Any, Any]] = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            pairs.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            pairs.extend(zip(a, b, strict=True))
        elif isinstance(a, dict | list) or a != b or isinstance(a, bool) != isinstance(b, bool):
            return False
    return True


class Checker:
    """Says whether closed values match nodes, and remembers it for containers, by identity."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], tuple[Any, bool]] = {}
        """(container, node) to the verdict; the container is kept so that its identity stays its own."""

    def remember(self, value: Any, node: Node, verdict: bool) -> None:
        """Note a verdict that was reached while the container was open."""
        self.known[id(value), id(node)] = (value, verdict)

    def matches(self, value: Any, node: Node) -> bool:
        """Whether a closed value matches some alternative of the node."""
        if node.free:
            return True
        if not isinstance(value, dict | list):
            kind = kind_of(value)
            return any(_scalar_fits(value, kind, alternative) for alternative in node.alternatives)
        known = self.known.get((id(value), id(node)))
        if known is None:
            self._settle(value, node)
            known = self.known[id(value), id(node)]
        return known[1]

    def _settle(self, value: Any, node: Node) -> None:
        """Reach a verdict on a container after all containers in it."""
        work: list[tuple[Any, Node, bool]] = [(value, node, False)]
        while work:
            container, node, ready = work.pop()
            key = (id(container), id(node))
            if key in self.known:
                continue
            if ready:
                fits = any(self._container_fits(container, alternative) for alternative in node.alternatives)
                self.known[key] = (container, fits)
                continue
            work.append((container, node, True))
            for name, child in children(container):
                if isinstance(child, dict | list):
                    for alternative in node.alternatives:
                        inner = alternative.child(name)
                        if inner is not None and not inner.free:
                            work.append((child, inner, False))

    def _container_fits(self, container: Any, alternative: Alternative) -> bool:
        if not alternative.admits(kind_of(container)) or closing_fault(container, alternative) is not None:
            return False
        for name, child in children(container):
            node = alternative.child(name)
            if node is None or not self.matches(child, node):
                return False
        return True

    def explain(self, value: Any, node: Node) -> tuple[tuple[str | int, ...], str]:
        """Where in a closed value that does not match, and why; the place is exact as long as there is no choice."""
        path: list[str | int] = []
        while len(node.alternatives) == 1:
            alternative = node.alternatives[0]
            if not isinstance(value, dict | list):
                return tuple(path), scalar_fault(value, kind_of(value), alternative) or "does not match the schema"
            fault = kind_fault(kind_of(value), alternative) or closing_fault(value, alternative)
            if fault is not None:
                return tuple(path), fault
            for name, child in children(value):
                inner = alternative.child(name)
                if inner is None:
                    return (*path, name), "is not allowed here"
                if not self.matches(child, inner):
                    path.append(name)
                    value, node = child, inner
                    break
            else:
                break
        return tuple(path), "matches none of the alternatives" if node.alternatives else "is not allowed here"


def children(container: Any) -> Iterable[tuple[str | int, Any]]:
    """The names and values in a container."""
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container))


def kind_fault(kind: str, alternative: Alternative) -> str | None:
    """What is wrong with the type, if anything."""
    for leaf in alternative.leaves:
        if leaf.types is not None and kind not in leaf.types:
            expected = " or ".join(sorted(leaf.types - {"integer"} if "number" in leaf.types else leaf.types))
            return f"expected {expected}, found {kind}"
    return None


def closing_fault(container: Any, alternative: Alternative) -> str | None:
    """What is wrong with a container as a whole, now that it is closed; its children are not looked at."""
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(equal(container, allowed) for allowed in leaf.values):
            return "is none of the allowed values"
        if isinstance(container, dict):
            for key in leaf.required:
                if key not in container:
                    return f"lacks the required property {key!r}"
        if leaf.limits:
            what = "Properties" if isinstance(container, dict) else "Items"
            if len(container) < leaf.limits.get("min" + what, 0):
                return f"has fewer than {leaf.limits['min' + what]} {what.lower()}"
            if len(container) > leaf.limits.get("max" + what, len(container)):
                return f"has more than {leaf.limits['max' + what]} {what.lower()}"
    return None


def scalar_fault(value: Any, kind: str, alternative: Alternative) -> str | None:
    """What is wrong with a closed scalar, if anything."""
    fault = kind_fault(kind, alternative)
    if fault is not None:
        return fault
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(equal(value, allowed) for allowed in leaf.values):
            return "is none of the allowed values"
        if leaf.limits and not _within(value, kind, leaf):
            return "is outside its limits"
    return None


def _scalar_fits(value: Any, kind: str, alternative: Alternative) -> bool:
    return scalar_fault(value, kind, alternative) is None


def _within(value: Any, kind: str, leaf: Leaf) -> bool:
    limits = leaf.limits
    if kind == "string":
        return bool(limits.get("minLength", 0) <= len(value) <= limits.get("maxLength", len(value)))
    if kind not in ("integer", "number"):
        return True
    return not (
        value < limits.get("minimum", value)
        or value > limits.get("maximum", value)
        or ("exclusiveMinimum" in limits and value <= limits["exclusiveMinimum"])
        or ("exclusiveMaximum" in limits and value >= limits["exclusiveMaximum"])
    )


@dataclass(frozen=True, slots=True)
class Match:
    """So far it fits the schema; `value` is what can be shown of it.

    >>> Match({"name": "Ad"}).value
    {'name': 'Ad'}
    """

    value: Any


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Nothing can be shown yet: the text has not got that far, or which branch of a union it is remains open."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """It cannot become valid any more: where, and why.

    >>> str(Invalid(("items", 0, "age"), "expected integer, found string"))
    '$.items[0].age: expected integer, found string'
    """

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"${steps}: {self.message}"


NO_MATCH: Final = NoMatch()


class Thread:
    """One alternative an open container may still follow, within one that its parent may follow."""

    def __init__(self, alternative: Alternative, node: Node, parent: Thread | None) -> None:
        self.alternative: Alternative = alternative
        self.node: Node = node
        self.parent: Thread | None = parent


class Track:
    """An open container, how many of its closed children have been looked at, and its threads."""

    def __init__(self, frame: Frame, threads: list[Thread]) -> None:
        self.frame: Frame = frame
        self.seen: int = 0
        self.threads: list[Thread] = threads

    def decided(self) -> bool:
        """Whether it is known what may stand where in the container."""
        threads = self.threads
        return len(threads) == 1 or len({thread.alternative.shape for thread in threads}) == 1


class Tracker:
    """Follows one text through one plan; `advance` looks at what is new, and at nothing twice."""

    def __init__(self, root: Node) -> None:
        self.root: Node = root
        self.checker: Checker = Checker()
        self.tracks: list[Track] = []
        self.invalid: Invalid | None = None
        self.shows_text: bool = False
        """Whether the string open at the last position can be shown."""

    def advance(self, machine: JsonScanner, position: Position) -> None:
        """Move on to a position; sets `invalid` when nothing can be valid any more."""
        if self.tracks and self.tracks[-1].frame is position.frame:
            self._consume(self.tracks[-1], position.count)
        else:
            self._follow(_chain(position))
        if self.invalid is not None:
            return
        if position.length >= 0:
            self._look_at_text(machine, position)
        elif position.frame.parent is None and position.count:
            self._look_at_root(position.frame)

    # What happens to a container.

    def _follow(self, chain: list[tuple[Frame, int]]) -> None:
        """Leave the containers that have closed, and enter those that have opened."""
        while self.tracks and not _stands_in(self.tracks[-1].frame, len(self.tracks) - 1, chain):
            self._close(self.tracks[-1])
            if self.invalid is not None:
                return
            self.tracks.pop()
        for depth, (frame, count) in enumerate(chain):
            if depth == len(self.tracks):
                self._open(frame)
                if self.invalid is not None:
                    return
            self._consume(self.tracks[depth], count)
            if self.invalid is not None:
                return

    def _open(self, frame: Frame) -> None:
        kind = "object" if frame.is_object() else "array"
        parents = self.tracks[-1].threads if self.tracks else None
        name = _name(frame)
        threads: list[Thread] = []
        fault = "matches none of the alternatives"
        for parent in [None] if parents is None else parents:
            node = self.root if parent is None else parent.alternative.child(name)
            if node is None:
                fault = "is not allowed here"
                continue
            for alternative in node.alternatives:
                if alternative.admits(kind):
                    threads.append(Thread(alternative, node, parent))
                else:
                    fault = kind_fault(kind, alternative) or fault
        self.tracks.append(Track(frame, threads))
        self._prune(Invalid(path_of(frame), fault))

    def _consume(self, track: Track, count: int) -> None:
        """Look at the children that have closed since the last time."""
        frame = track.frame
        while track.seen < count:
            name, child = frame.name(track.seen), frame.child(track.seen)
            track.seen += 1
            kept: list[Thread] = []
            fault: Invalid | None = None
            for thread in track.threads:
                node = thread.alternative.child(name)
                if node is None:
                    fault = Invalid((*path_of(frame), name), "is not allowed here")
                elif track.seen > thread.alternative.most_items and not frame.is_object():
                    fault = Invalid(path_of(frame), f"has more than {thread.alternative.most_items:g} items")
                elif self.checker.matches(child, node):
                    kept.append(thread)
                else:
                    inner, message = self.checker.explain(child, node)
                    fault = Invalid((*path_of(frame), name, *inner), message)
            if fault is not None:
                track.threads = kept
                self._prune(fault)
                if self.invalid is not None:
                    return

    def _close(self, track: Track) -> None:
        """A container has closed: look at the rest of it, then keep the verdict for its parent."""
        frame = track.frame
        self._consume(track, frame.size())
        if self.invalid is not None:
            return
        nodes = [thread.node for thread in track.threads]
        matched: list[Node] = []
        fault = ""
        for thread in track.threads:
            problem = closing_fault(frame.final, thread.alternative)
            if problem is None:
                matched.append(thread.node)
            else:
                fault = problem
        for node in nodes:
            self.checker.remember(frame.final, node, any(node is other for other in matched))
        if not matched:
            # Its parent will find the same; only the reason is better known here.
            self.invalid = Invalid(path_of(frame), fault)

    def _prune(self, fault: Invalid) -> None:
        """Let go of the threads of outer containers that no inner one continues; with none left it is invalid."""
        for depth in range(len(self.tracks) - 1, 0, -1):
            continued = {id(thread.parent) for thread in self.tracks[depth].threads}
            outer = self.tracks[depth - 1]
            kept = [thread for thread in outer.threads if id(thread) in continued]
            if len(kept) == len(outer.threads):
                return
            outer.threads = kept
        if self.tracks and not self.tracks[0].threads:
            self.invalid = fault

    # Strings and scalars at the open end.

    def _look_at_text(self, machine: JsonScanner, position: Position) -> None:
        """An open string: refuse it, hold it back, or let it show."""
        frame = position.frame
        name: str | int = key_at(machine, position) if frame.is_object() else position.count
        self.shows_text = False
        if frame.parent is None:
            if not self._text_fits(self.root, machine, position):
                self.invalid = Invalid((), _text_fault(self.root))
            return
        track = self.tracks[-1]
        kept: list[Thread] = []
        message = ""
        for thread in track.threads:
            node = thread.alternative.child(name)
            if node is not None and self._text_fits(node, machine, position):
                kept.append(thread)
            else:
                message = "is not allowed here" if node is None else _text_fault(node)
        if len(kept) < len(track.threads):
            track.threads = kept
            self._prune(Invalid((*path_of(frame), name), message))

    def _text_fits(self, node: Node, machine: JsonScanner, position: Position) -> bool:
        """Whether a string that begins like this may stand there; notes whether it may be shown."""
        fits = False
        for alternative in node.alternatives:
            if not alternative.admits("string"):
                continue
            allowed = [leaf.values for leaf in alternative.leaves if leaf.values is not None]
            length = position.length
            if any(length > leaf.limits.get("maxLength", length) for leaf in alternative.leaves):
                continue
            if not allowed:
                fits = self.shows_text = True
                continue
            text = text_at(machine, position)
            if all(any(isinstance(value, str) and value.startswith(text) for value in values) for values in allowed):
                fits = True
        return fits

    def _look_at_root(self, document: Frame) -> None:
        """The whole value has closed. A container among them has been followed already."""
        value = document.child(0)
        if not self.checker.matches(value, self.root):
            path, message = self.checker.explain(value, self.root)
            self.invalid = Invalid(path, message)


def _chain(position: Position) -> list[tuple[Frame, int]]:
    """The open containers, outermost first, each with how many of its children had closed."""
    chain: list[tuple[Frame, int]] = []
    frame = position.frame
    count = position.count
    while frame.parent is not None:
        chain.append((frame, count))
        count = frame.slot
        frame = frame.parent
    chain.reverse()
    return chain


def _stands_in(frame: Frame, depth: int, chain: list[tuple[Frame, int]]) -> bool:
    return depth < len(chain) and chain[depth][0] is frame


def _name(frame: Frame) -> str | int:
    parent = frame.parent
    return frame.key if parent is not None and parent.is_object() else frame.slot


def _text_fault(node: Node) -> str:
    for alternative in node.alternatives:
        fault = kind_fault("string", alternative)
        if fault is not None and len(node.alternatives) == 1:
            return fault
    return "begins like none of the allowed values"

"""Track a growing JSON text against a schema: which alternatives remain, and where it can no longer be valid.

A tracker belongs to one text: one answer, or one tool call's arguments. It receives the parts of the text one after the
other, by a scanner or from a parser's tree, and keeps for each open container the alternatives of the schema that the
container may still follow. An alternative is dropped with the first part that it does not allow; when none is left, the
text cannot become valid, and `mismatch` says where and why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from slipform.schema.patterns import TextMatcher, matcher_for
from slipform.text.reasoning import CALL_KEYS
from slipform.text.resolve_plan import Alternative, Node, NormalForm
from slipform.text.scanner import ScanListener
from slipform.text.tracker_facts import (
    closing_fault,
    count_matches,
    kind_message,
    kind_of,
    may_be_number,
    may_become,
    scalar_message,
)

_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_NO_MORE: Final = object()


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The text can no longer be valid: where, and why.

    `patchable` when a change that is allowed may still make it valid, which only the whole answer decides.

    >>> str(Mismatch(("items", 0, "age"), "expected integer, found string"))
    '$.items[0].age: expected integer, found string'
    """

    path: tuple[str | int, ...]
    message: str
    patchable: bool = False

    def __str__(self) -> str:
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return f"${steps}: {self.message}"


class AllowedChanges(Protocol):
    """Decides which faults a patch may remove before validation; called for faults only."""

    def of_scalar(self, value: Any, alternatives: list[Alternative], *, optional: bool) -> bool:
        """Return whether a complete scalar of a wrong type may be fixed; `optional` if its key may be omitted."""

    def of_number(self, alternatives: list[Alternative]) -> bool:
        """Return the same for a number of which only the first character is known."""

    def of_text(self, text: str, alternatives: list[Alternative]) -> bool:
        """Return the same for the beginning of a string."""

    def of_container(self, alternatives: list[Alternative], *, root: bool) -> bool:
        """Return the same for an object or array where none is allowed."""

    def of_closed_container(self) -> bool:
        """Return the same for an incomplete container."""

    def of_key(self) -> bool:
        """Return the same for a key that is not allowed."""

    def is_misspelt(self, key: str, missing: frozenset[str]) -> bool:
        """Return whether a key that no alternative declares may be intended as one of the missing ones."""


class Thread:
    """One alternative of a container, within those of its parent."""

    __slots__ = ("alternative", "parents")

    def __init__(self, alternative: Alternative) -> None:
        self.alternative: Alternative = alternative
        self.parents: list[Thread] = []


class Track:
    """An open container and its threads."""

    __slots__ = (
        "certain",
        "count",
        "exclusive",
        "is_object",
        "key",
        "keys",
        "limited",
        "needs_whole",
        "start",
        "threads",
    )

    def __init__(self, is_object: bool, start: int, threads: list[Thread]) -> None:
        self.is_object: bool = is_object
        self.start: int = start
        self.count: int = 0
        """The number of its complete children."""
        self.key: str = ""
        self.keys: list[str] = []
        """The keys so far, where they are needed."""
        self.threads: list[Thread] = threads
        self.keep(threads)

    def keep(self, threads: list[Thread]) -> None:
        """Continue with these threads."""
        self.threads = threads
        first = threads[0].alternative
        decided = True
        self.needs_whole: bool = first.container_needs_whole
        self.limited: bool = first.limits_members if self.is_object else first.limits_items
        self.exclusive: bool = False
        """Whether several threads are left, of which only one may match in the end."""
        if len(threads) > 1:
            for thread in threads[1:]:
                alternative = thread.alternative
                self.needs_whole = self.needs_whole or alternative.container_needs_whole
                limited = alternative.limits_members if self.is_object else alternative.limits_items
                self.limited = self.limited or limited
                self.exclusive = self.exclusive or alternative.exclusive
                decided = decided and alternative.shape == first.shape
        self.certain: bool = decided and not self.needs_whole and not self.exclusive
        """Whether the constraints on the container are known, and all of them are met."""


def _is_undecided(threads: list[Thread]) -> bool:
    """Whether only the complete answer decides which of these a container matches."""
    for thread in threads:  # noqa: SIM110 — compiled, a generator costs more than all of this
        if thread.alternative.container_is_undecided:
            return True
    return False


class Tracker(ScanListener):
    """Tracks one text; every method returns whether to continue.

    >>> tracker = Tracker(NormalForm({"properties": {"a": {"enum": ["red", "blue"]}}}))
    >>> tracker.opened(True, 0), tracker.key("a"), tracker.text_opened(), tracker.text("re"), tracker.text("ro")
    (True, True, True, True, False)
    >>> print(tracker.mismatch)
    $.a: begins like none of the allowed values
    """

    def __init__(self, form: NormalForm, changes: AllowedChanges | None = None) -> None:
        super().__init__()
        self.mismatch: Mismatch | None = None
        self.complete: bool = False
        self.tracks: list[Track] = []
        self.in_text: bool = False
        """Whether a string that is a value is open."""
        self.shows_text: bool = False
        """Whether that string is not limited to listed values."""
        self._root: list[Node] = [form.root]
        self._nodes: list[Node] = self._root
        """The nodes of the current value, for each thread of the container around it."""
        self._changes: AllowedChanges | None = changes
        self.follows_keys = changes is None or not changes.of_key()
        self._matchers: dict[Alternative, list[TextMatcher]] = {}
        self._unmatched: set[Alternative] = set()
        self._matched: int = 0
        self._held_from: int = -1
        self._may_be_wrapped: bool = False
        """Whether the answer may be nested under a key: the first key is undeclared, or all are those of a call."""

    @property
    def undecided_from(self) -> int:
        """The start of the outermost container that only more text can decide; -1 for none."""
        if self._held_from >= 0:
            return self._held_from
        if self._may_be_wrapped and self.tracks:
            return self.tracks[0].start
        for track in self.tracks:
            if not track.certain:
                return track.start
        return -1

    # The events of the text.

    def opened(self, is_object: bool, start: int) -> bool:
        """Open a container; `start` is its value of `undecided_from`."""
        if not self._enter():
            return False
        kind = "object" if is_object else "array"
        depth = len(self.tracks)
        # Threads with the same alternative are merged: otherwise a recursive choice doubles them at every level.
        by_alternative: dict[Alternative, Thread] | None = {} if len(self._nodes) > 1 else None
        threads: list[Thread] = []
        for index in range(len(self._nodes)):
            for alternative in self._nodes[index].alternatives:
                if alternative.admits(kind):
                    thread = None if by_alternative is None else by_alternative.get(alternative)
                    if thread is None:
                        thread = Thread(alternative)
                        threads.append(thread)
                        if by_alternative is not None:
                            by_alternative[alternative] = thread
                    if depth:
                        thread.parents.append(self.tracks[depth - 1].threads[index])
        if not threads:
            allowed = self._alternatives()
            changes = self._changes
            patchable = changes is not None and changes.of_container(allowed, root=not depth)
            return self._report_mismatch(kind_message(kind, allowed), patchable)
        self._prune(threads, depth)
        self.tracks.append(Track(is_object, start, threads))
        return True

    def closed(self, container: Any) -> bool:
        """Close the innermost container; `container` is its content."""
        closing = self.tracks.pop()
        problem = ""
        remaining: list[Thread] = []
        for thread in closing.threads:
            fault = closing_fault(container, thread.alternative)
            if fault is None and not thread.alternative.accepts_container(container):
                fault = "does not fit as a whole"
            if fault is None:
                remaining.append(thread)
            else:
                problem = fault
        if not remaining:
            return self._report_mismatch(problem, self._changes is not None and self._changes.of_closed_container())
        if self._held_from < 0 and (_is_undecided(remaining) or (closing.exclusive and len(remaining) > 1)):
            self._held_from = closing.start
        if len(remaining) < len(closing.threads):
            self._prune(remaining, len(self.tracks))
        return self._end_value()

    def key_text(self, text: str) -> bool:
        """Handle the growth of the open key: stop where no allowed key begins like it."""
        top = self.tracks[-1]
        for thread in top.threads:
            if thread.alternative.may_begin_key(text):
                return True
        top.key = text
        return self._report_mismatch("is not allowed here", False)

    def key(self, key: str) -> bool:
        """Handle the end of a key; return whether the object may have it."""
        top = self.tracks[-1]
        top.key = key
        if self._may_be_wrapped and len(self.tracks) == 1:
            # A second key is beside the first: only a call has two.
            self._may_be_wrapped = key in CALL_KEYS and top.keys[0] in CALL_KEYS and self._is_undeclared(top, key)
        if not top.limited and len(top.threads) == 1:  # the usual case
            alternative = top.threads[0].alternative
            only = alternative.property(key)
            if only is not None and (self._changes is None or key in alternative.declared or not alternative.declared):
                self._nodes = [only]
                if self._changes is not None:
                    top.keys.append(key)
                return True
        return self._key_among_several(top, key)

    def _key_among_several(self, top: Track, key: str) -> bool:
        """Handle the end of a key in an object with several alternatives, or a limited number of keys."""
        remaining: list[Thread] = []
        nodes: list[Node] = []
        full = top.limited and key not in top.keys
        most = -1.0
        for thread in top.threads:
            if full and len(top.keys) >= thread.alternative.most_members:
                most = max(most, thread.alternative.most_members)
                continue
            node = thread.alternative.property(key)
            if node is not None:
                remaining.append(thread)
                nodes.append(node)
        if not remaining:
            patchable = self._changes is not None and self._changes.of_key()
            if most >= 0:
                return self._report_mismatch(f"has more than {most:g} properties", patchable, self._path()[:-1])
            return self._report_mismatch("is not allowed here", patchable)
        self._narrow(remaining, nodes)
        if self._changes is not None and self._is_undeclared(top, key):
            if self._changes.is_misspelt(key, self._missing_keys(top)):
                return self._report_mismatch("may be another spelling of a key", True)
            self._may_be_wrapped = len(self.tracks) == 1 and (not top.keys or self._may_be_wrapped)
        if full or self._changes is not None:
            top.keys.append(key)
        return True

    def text_opened(self) -> bool:
        """Open a string that is a value."""
        if not self._enter():
            return False
        self.in_text = self.shows_text = True
        self.follows_text = False
        for node in self._nodes:
            if "string" not in node.any_of:
                self.follows_text = True
        if not self.follows_text:
            return True
        self._matched = 0
        self._matchers = {}
        self._unmatched = set()
        for node in self._nodes:
            for each in node.strings:
                matchers = [matcher_for(pattern) for pattern in each.patterns]
                self._matchers[each] = [matcher for matcher in matchers if matcher is not None]
        return self.text("")

    def number_opened(self, is_negative: bool) -> bool:
        """Begin a number: stop where no number is allowed, or no negative one."""
        if not self._enter():
            return False
        for node in self._nodes:
            if may_be_number(node, is_negative):
                return True
        allowed = self._alternatives()
        if self._changes is not None and self._changes.of_number(allowed):
            return True
        any_number = any(may_be_number(node, False) for node in self._nodes)
        message = "is outside its limits"
        if not any_number:
            message = kind_message("number", allowed)
        return self._report_mismatch(message, False)

    def text(self, text: str) -> bool:
        """Handle the growth of the open string, decoded."""
        if not self.follows_text:
            return True
        self._match(text[self._matched :])
        self._matched = len(text)
        self.shows_text = False
        remaining: list[int] = [at for at in range(len(self._nodes)) if self._text_fits(text, self._nodes[at])]
        if not remaining:
            strings = any(node.strings for node in self._nodes)
            message = "begins like none of the allowed values"
            # At the root, the string may contain the whole answer, or its first bracket may be missing.
            patchable = self._changes is not None and not self.tracks and not strings
            if not strings:
                message = kind_message("string", self._alternatives())
            return self._report_mismatch(message, patchable)
        self._keep(remaining)
        return True

    def scalar(self, value: Any) -> bool:
        """Handle the end of a string, number or literal."""
        if self.in_text:
            self.in_text = self.follows_text = False
        elif not self._enter():
            return False
        if self._may_be_wrapped and len(self.tracks) == 1 and self.tracks[0].key not in CALL_KEYS:
            self._may_be_wrapped = False  # an answer that is nested under a key is an object or an array
        kind = kind_of(value)
        nodes = self._nodes
        if len(nodes) == 1 and kind in nodes[0].any_of and not nodes[0].scalar_needs_whole:  # the usual case
            return self._end_value()
        is_undecided = False
        remaining: list[int] = []
        for at in range(len(nodes)):
            matches = count_matches(value, kind, nodes[at])
            if matches:
                remaining.append(at)
                # Where several branches of a `oneOf` match, only the complete answer decides.
                is_undecided = is_undecided or matches > 1 or nodes[at].scalar_needs_whole
        if not remaining:
            allowed = self._alternatives()
            changes = self._changes
            patchable = changes is not None and changes.of_scalar(value, allowed, optional=self._is_optional())
            return self._report_mismatch(scalar_message(value, allowed), patchable)
        if is_undecided:
            return self._report_mismatch("can only be judged with the whole answer", True)
        self._keep(remaining)
        return self._end_value()

    def value(self, value: Any) -> bool:
        """Handle a complete value at once, with the same result as its parts in sequence."""
        work: list[tuple[Any, Iterator[Any]]] = []
        following: Any = value
        while True:
            if isinstance(following, (dict, list)) and not self._is_free():
                if not self.opened(isinstance(following, dict), 0):
                    return False
                work.append((following, iter(following)))
            elif not (self._end_value() if isinstance(following, (dict, list)) else self.scalar(following)):
                return False
            following = _NO_MORE
            while work and following is _NO_MORE:
                container, children = work[-1]
                following = next(children, _NO_MORE)
                if following is _NO_MORE:
                    work.pop()
                    if not self.closed(container):
                        return False
                elif isinstance(container, dict):
                    if not self.key(following):
                        return False
                    following = container[following]
            if following is _NO_MORE:
                return True

    # The state of the threads.

    def _enter(self) -> bool:
        """Find the nodes of a value that begins here. In an object, the key has selected them."""
        if not self.tracks:
            self._nodes = self._root
            return True
        top = self.tracks[-1]
        if top.is_object:
            return True
        if not top.limited and len(top.threads) == 1:  # the usual case
            only = top.threads[0].alternative.item(top.count)
            if only is not None:
                self._nodes = [only]
                return True
        remaining: list[Thread] = []
        nodes: list[Node] = []
        most = -1.0
        for thread in top.threads:
            alternative = thread.alternative
            if top.limited and top.count >= alternative.most_items:
                most = max(most, alternative.most_items)
                continue
            node = alternative.item(top.count)
            if node is not None:
                remaining.append(thread)
                nodes.append(node)
        if not remaining:
            if most >= 0:
                return self._report_mismatch(f"has more than {most:g} items", False, self._path()[:-1])
            return self._report_mismatch("is not allowed here", False)
        self._narrow(remaining, nodes)
        return True

    def _is_free(self) -> bool:
        """Whether anything is allowed at the place where a value begins."""
        if not self._enter():
            return False
        for node in self._nodes:  # noqa: SIM110 — compiled, a generator costs more than all of this
            if not node.free:
                return False
        return True

    def _match(self, piece: str) -> None:
        """Feed the matchers of patterns the new part of the string."""
        if not piece or not self._matchers:
            return
        if _ESCAPED.search(piece):
            self._matchers = {}  # they read JSON, where the escape may differ: the complete string decides
        for alternative, matchers in self._matchers.items():
            for matcher in matchers:
                if not matcher.feed(piece):
                    self._unmatched.add(alternative)

    def _text_fits(self, text: str, node: Node) -> bool:
        """Return whether a string that begins like this is allowed; record whether listed values limit it."""
        fits = False
        for alternative in node.strings:
            if alternative not in self._unmatched and may_become(text, alternative):
                fits = True
                self.shows_text = self.shows_text or not alternative.listed
        return fits or (self._changes is not None and self._changes.of_text(text, node.alternatives))

    def _end_value(self) -> bool:
        """Leave the ended value."""
        if self.tracks:
            self.tracks[-1].count += 1
        else:
            self.complete = True
        return True

    def _keep(self, remaining: list[int]) -> None:
        """Continue with these nodes and their threads."""
        if len(remaining) < len(self._nodes):
            threads = self.tracks[-1].threads
            self._narrow([threads[at] for at in remaining], [self._nodes[at] for at in remaining])

    def _narrow(self, remaining: list[Thread], nodes: list[Node]) -> None:
        """Continue with these threads of the innermost container, and their nodes where a value is expected."""
        top = self.tracks[-1]
        self._nodes = nodes
        if len(remaining) < len(top.threads):
            top.keep(remaining)
            self._prune(remaining, len(self.tracks) - 1)

    def _prune(self, inner: list[Thread], depth: int) -> None:
        """Drop the threads of the outer containers that none of these inner ones continues."""
        for at in range(depth - 1, -1, -1):
            outer = self.tracks[at]
            if len(outer.threads) == 1:
                return  # it is the one that continues
            continued = {parent for thread in inner for parent in thread.parents}
            inner = [thread for thread in outer.threads if thread in continued]
            if len(inner) == len(outer.threads):
                return
            outer.keep(inner)

    def _alternatives(self) -> list[Alternative]:
        """Return all nodes of the current place."""
        return [alternative for node in self._nodes for alternative in node.alternatives]

    def _is_undeclared(self, top: Track, key: str) -> bool:
        """Whether keys are declared here, and this one is not."""
        any_declared = False
        for thread in top.threads:
            declared = thread.alternative.declared
            if key in declared:
                return False
            any_declared = any_declared or bool(declared)
        return any_declared

    def _missing_keys(self, top: Track) -> frozenset[str]:
        """Return the declared keys that have not occurred yet."""
        declared = {name for thread in top.threads for name in thread.alternative.declared}
        return frozenset(declared.difference(top.keys))

    def _is_optional(self) -> bool:
        """Whether the key of the current value may be omitted."""
        if not self.tracks or not self.tracks[-1].is_object:
            return False
        key = self.tracks[-1].key
        threads = self.tracks[-1].threads
        return not all(any(key in leaf.required for leaf in thread.alternative.leaves) for thread in threads)

    def _path(self) -> tuple[str | int, ...]:
        return tuple([track.key if track.is_object else track.count for track in self.tracks])

    def _report_mismatch(
        self, message: str, patchable: bool, path: tuple[str | int, ...] | None = None
    ) -> Literal[False]:
        self.mismatch = Mismatch(self._path() if path is None else path, message, patchable)
        return False

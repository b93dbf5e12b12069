"""A growing text against a schema: what may follow which alternative, where it is decided, and where it cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from slipform.enforce.coercion import Switches
from slipform.enforce.live_match import TextMatcher, matcher_for
from slipform.enforce.live_shape import (
    TrackerFacts,
    container_may_be_patched,
    folded,
    scalar_may_be_patched,
    text_may_be_patched,
)
from slipform.text.resolve_plan import Alternative, Node
from slipform.text.tracker import closing_fault, kind_fault, kind_of, scalar_fault


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What is wrong, and where. `patchable` when only the whole answer can tell whether it can be mended."""

    path: tuple[str | int, ...]
    message: str
    patchable: bool = False


class _Thread:
    """One alternative that a container may follow, within one that its parent may follow."""

    __slots__ = ("alternative", "parent")

    def __init__(self, alternative: Alternative, parent: _Thread | None) -> None:
        self.alternative = alternative
        self.parent = parent


class _Open:
    """A container that is open."""

    __slots__ = ("certain", "is_object", "items", "key", "limited", "members", "opaque", "start", "threads")

    def __init__(self, is_object: bool, start: int, threads: list[_Thread], shape: TrackerFacts) -> None:
        self.is_object = is_object
        self.members: dict[str, Any] = {}
        self.items: list[Any] = []
        self.key = ""
        self.start = start
        self.keep(threads, shape)

    @property
    def value(self) -> Any:
        """What is in it so far."""
        return self.members if self.is_object else self.items

    @property
    def name(self) -> str | int:
        """The key or the index of what is being written."""
        return self.key if self.is_object else len(self.items)

    def keep(self, threads: list[_Thread], shape: TrackerFacts) -> None:
        """Go on with these threads."""
        self.threads = threads
        self.opaque = self.limited = False
        for thread in threads:
            self.opaque = self.opaque or shape.opaque(thread.alternative)
            self.limited = self.limited or thread.alternative.most_items != _NO_LIMIT
        decided = len(threads) == 1 or len({thread.alternative.shape for thread in threads}) == 1
        self.certain = decided and not self.opaque


_NO_LIMIT: Final = float("inf")
_ROOT: Final[list[_Thread | None]] = [None]


class LiveTracker:
    """Told by a scanner what a text holds, it keeps what the text may still become."""

    def __init__(self, shape: TrackerFacts, switches: Switches) -> None:
        self.fault: Mismatch | None = None
        self._shape = shape
        self._switches = switches
        self._stack: list[_Open] = []
        self._text = ""
        self._free = False
        self._checked = False
        """Whether what grows of a string is looked at as it grows."""
        self._matchers: list[list[TextMatcher]] = []
        self._frozen: int | None = None
        """Where a container begins that has closed and that only the whole answer can vouch for."""

    @property
    def shows_text(self) -> bool:
        """Whether what has been written of the open string stays."""
        return self._free

    @property
    def undecided(self) -> int | None:
        """Where the first container begins of which nothing is certain before it closes, or before more is known."""
        if self._frozen is not None:
            return self._frozen
        for each in self._stack:
            if not each.certain:
                return each.start
        return None

    # What the scanner tells.

    def opened(self, is_object: bool, offset: int) -> bool:
        """A container has opened; `offset` is where its member begins, the comma and the key before it included."""
        word = "object" if is_object else "array"
        threads: list[_Thread] = []
        for parent in self._parents():
            node = self._node(parent)
            if node is not None:
                threads += [_Thread(each, parent) for each in node.alternatives if each.admits(word)]
        if not threads:
            seen, root = self._alternatives(), not self._stack
            return self._wrong(_kind_message(word, seen), container_may_be_patched(seen, self._switches, root=root))
        self._prune(threads, len(self._stack))
        self._stack.append(_Open(is_object, offset, threads, self._shape))
        return True

    def closed(self) -> bool:
        """The innermost container has closed."""
        closing = self._stack[-1]
        value, problem = closing.value, ""
        fitting: list[_Thread] = []
        for thread in closing.threads:
            found = closing_fault(value, thread.alternative)
            if found is None:
                fitting.append(thread)
            problem = found or problem
        self._stack.pop()
        if not fitting:
            return self._wrong(problem, self._switches.fill_defaults)
        if closing.opaque and self._frozen is None:
            self._frozen = closing.start
        self._prune(fitting, len(self._stack))
        return self._ended(value)

    def key(self, key: str) -> bool:
        """A key has closed."""
        top = self._stack[-1]
        top.key = key
        if key in top.members:
            return self._wrong("is given twice", True)
        kept = [thread for thread in top.threads if thread.alternative.property(key) is not None]
        if not kept:
            return self._wrong("is not allowed here", self._switches.drop_extra or self._switches.rename_keys)
        if len(kept) < len(top.threads):
            self._narrow(top, kept)
        if self._may_be_renamed(top, key):
            return self._wrong("may be another spelling of a key, or stand around the answer", True)
        return True

    def scalar(self, value: Any) -> bool:
        """A string, number or literal has ended."""
        self._free = self._checked = False
        kind = kind_of(value)
        parents = self._parents()
        kept = [parent for parent in parents if self._takes(value, kind, self._node(parent))]
        if not kept:
            seen = self._alternatives()
            optional = bool(self._stack) and not self._is_required()
            patchable = scalar_may_be_patched(value, seen, self._switches, optional=optional)
            return self._wrong(_scalar_message(value, kind, seen), patchable)
        if self._shape.has_unknown and any(self._shape.unknown(each) for each in self._alternatives()):
            return self._wrong("can only be judged with the whole answer", True)
        if len(kept) < len(parents):
            self._narrow(self._stack[-1], [each for each in kept if each is not None])
        return self._ended(value)

    def text_begins(self) -> bool:
        """A string that is a value has begun."""
        self._free = False
        for parent in self._parents():
            node = self._node(parent)
            self._free = self._free or (node is not None and self._shape.facts(node).free_text)
        self._checked = not self._free
        return self._free or self._text_is_checked()

    def text_grows(self, piece: str) -> bool:
        """That string has grown by this much, as it is written."""
        if not self._checked:
            return True
        self._text += piece
        if "\\" in self._text:
            self._checked = False  # an escape: the whole string will tell
            return True
        return self._still_fits(piece)

    # How it is kept.

    def _text_is_checked(self) -> bool:
        """A string has begun that has to be looked at as it grows."""
        self._text = ""
        alternatives, admitting = self._alternatives(), self._strings()
        if not admitting:
            patchable = text_may_be_patched("", alternatives, self._switches)
            return patchable or self._wrong(_kind_message("string", alternatives), False)
        found = [[matcher_for(pattern) for pattern in self._shape.patterns(each)] for each in admitting]
        self._matchers = [[matcher for matcher in each if matcher is not None] for each in found]
        return True

    def _still_fits(self, piece: str) -> bool:
        alternatives, admitting = self._alternatives(), self._strings()
        if not admitting:
            if text_may_be_patched(self._text, alternatives, self._switches):
                return True
            return self._wrong(_kind_message("string", alternatives), False)
        # Every matcher is told, so that all of them have read the same.
        read = [[matcher.feed(piece) for matcher in matchers] for matchers in self._matchers]
        matched = [all(each) for each in read]
        for each, fits in zip(admitting, matched, strict=True):
            if fits and _may_become(self._text, each):
                return True
        if text_may_be_patched(self._text, alternatives, self._switches):
            return True
        return self._wrong("begins like nothing that is allowed here", False)

    def _fits(self, value: Any, kind: str, alternative: Alternative) -> bool:
        return scalar_fault(value, kind, alternative) is None and self._shape.accepts(value, alternative)

    def _takes(self, value: Any, kind: str, node: Node | None) -> bool:
        if node is None:
            return False
        if kind in self._shape.facts(node).any_of:
            return True
        for each in node.alternatives:  # noqa: SIM110 — compiled, a generator costs more than all of this
            if self._fits(value, kind, each):
                return True
        return False

    def _parents(self) -> list[_Thread | None]:
        """What the place that is being written may be part of; it is only looked at."""
        return cast("list[_Thread | None]", self._stack[-1].threads) if self._stack else _ROOT

    def _alternatives(self) -> list[Alternative]:
        """All that may stand at the place that is being written."""
        found: list[Alternative] = []
        for parent in self._parents():
            node = self._node(parent)
            if node is not None:
                found += node.alternatives
        return found

    def _strings(self) -> list[Alternative]:
        """Those of them that a string may follow."""
        found: list[Alternative] = []
        for parent in self._parents():
            node = self._node(parent)
            if node is not None:
                found += self._shape.facts(node).strings
        return found

    def _node(self, parent: _Thread | None) -> Node | None:
        if parent is None:
            return self._shape.plan.root
        top = self._stack[-1]
        return parent.alternative.property(top.key) if top.is_object else parent.alternative.item(len(top.items))

    def _ended(self, value: Any) -> bool:
        """A value has ended: put it where it belongs."""
        if not self._stack:
            return True
        top = self._stack[-1]
        if top.is_object:
            top.members[top.key] = value
            return True
        top.items.append(value)
        if not top.limited:
            return True
        kept = [thread for thread in top.threads if len(top.items) <= thread.alternative.most_items]
        if not kept:
            return self._wrong("has too many items", False, self._path()[:-1])
        if len(kept) < len(top.threads):
            self._narrow(top, kept)
        return True

    def _narrow(self, top: _Open, kept: list[_Thread]) -> None:
        top.keep(kept, self._shape)
        self._prune(kept, len(self._stack) - 1)

    def _prune(self, inner: list[_Thread], depth: int) -> None:
        """Let go of the threads of the outer containers, so many, that none of these inner ones continues."""
        for at in range(depth - 1, -1, -1):
            outer = self._stack[at]
            if len(outer.threads) == 1:
                return  # it is the one that goes on
            continued = {id(thread.parent) for thread in inner}
            inner = [thread for thread in outer.threads if id(thread) in continued]
            if len(inner) == len(outer.threads):
                return
            outer.keep(inner, self._shape)

    def _may_be_renamed(self, top: _Open, key: str) -> bool:
        for thread in top.threads:
            if key in thread.alternative.declared:
                return False
        declared = frozenset().union(*(thread.alternative.declared for thread in top.threads))
        if not declared:
            return False
        if len(self._stack) == 1 and not top.members:
            return True
        said = folded(key)
        return self._switches.rename_keys and any(folded(name) == said for name in declared if name not in top.members)

    def _is_required(self) -> bool:
        top = self._stack[-1]
        if not top.is_object:
            return True
        return all(any(top.key in leaf.required for leaf in thread.alternative.leaves) for thread in top.threads)

    def _path(self) -> tuple[str | int, ...]:
        return tuple(each.name for each in self._stack)

    def _wrong(self, message: str, patchable: bool, path: tuple[str | int, ...] | None = None) -> Literal[False]:
        self.fault = Mismatch(self._path() if path is None else path, message, patchable)
        return False


def _may_become(text: str, alternative: Alternative) -> bool:
    """Whether a string that begins like this, without escapes, may become one that is allowed."""
    for leaf in alternative.leaves:
        if leaf.values is not None and not any(
            isinstance(value, str) and value.startswith(text) for value in leaf.values
        ):
            return False
        if len(text) > leaf.limits.get("maxLength", len(text)):
            return False
    return True


def _kind_message(kind: str, alternatives: list[Alternative]) -> str:
    found = (kind_fault(kind, each) for each in alternatives)
    return next((message for message in found if message), "is not allowed here")


def _scalar_message(value: Any, kind: str, alternatives: list[Alternative]) -> str:
    found = (scalar_fault(value, kind, each) for each in alternatives)
    return next((message for message in found if message), "does not match the schema")

"""Lift an answer while it grows.

Nothing shown is ever taken back. What a value will turn out to be is known of everything but the last branch of it:
a container that something follows is whole. So each call looks only at what is new and at the open branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from slipform.schema.lowering.lift import holds, parse_text, passes
from slipform.schema.lowering.lift_plan import (
    PENDING,
    ChoicePlan,
    FieldPlan,
    Items,
    NullBox,
    Pairs,
    Plan,
    Record,
    Ref,
    Table,
    Test,
    TextPlan,
    Tuple,
    Union,
    Wrapped,
    kind_of,
)


class Stage(Protocol):
    """The lifting of one growing value."""

    def feed(self, value: Any, is_open: bool) -> Any:
        """What can be shown of the value so far; PENDING for nothing."""


@dataclass(slots=True)
class Streamer:
    """Makes stages of plans."""

    active: frozenset[int]

    def of(self, plan: Plan) -> Stage:
        """A stage for a new value of a plan."""
        if id(plan) not in self.active:
            return _SAME
        match plan:
            case TextPlan():
                return _TEXT
            case Record():
                return _Record(self, plan)
            case Items():
                return _Items(self, plan)
            case Pairs():
                return _Pairs(self, plan.value)
            case Tuple():
                return _Tuple(self, plan)
            case Wrapped():
                return _Wrapped(plan.key, self.of(plan.plan))
            case NullBox():
                return _Box(self.of(plan.plan), None)
            case ChoicePlan():
                return _Choice(self, plan)
            case Union():
                assert plan.table is not None  # noqa: S101 — every union is settled before streaming
                return _Union(self, plan.table)
            case Ref():
                assert plan.target is not None  # noqa: S101 — every reference is closed before streaming
                return self.of(plan.target)
            case _:
                return _SAME

    def entry(self, entry: FieldPlan) -> Stage:
        """A stage for one property: it shows nothing when the property is absent."""
        inner = self.of(entry.plan)
        if entry.mode == "null":
            return _Unless(inner, None)
        if entry.mode == "empty":
            return _Unless(inner, [])
        if entry.mode == "box":
            return _Box(inner, PENDING)
        return inner


@dataclass(slots=True)
class _Same:
    def feed(self, value: Any, is_open: bool) -> Any:  # noqa: ARG002
        return value


@dataclass(slots=True)
class _Text:
    def feed(self, value: Any, is_open: bool) -> Any:
        return PENDING if is_open and isinstance(value, str) else parse_text(value)


_SAME = _Same()
_TEXT = _Text()


@dataclass(slots=True)
class _Unless:
    inner: Stage
    marker: Any

    def feed(self, value: Any, is_open: bool) -> Any:
        absent = value is None if self.marker is None else value == self.marker
        return PENDING if absent else self.inner.feed(value, is_open)


@dataclass(slots=True)
class _Box:
    inner: Stage
    empty: Any

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, list):
            return self.inner.feed(value, is_open) if self.empty is PENDING else value
        if value:
            return self.inner.feed(value[0], is_open and len(value) == 1)
        return PENDING if is_open else self.empty


@dataclass(slots=True)
class _Wrapped:
    key: str
    inner: Stage

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, dict) or self.key not in value:
            return PENDING if is_open and isinstance(value, dict) else value
        return self.inner.feed(value[self.key], is_open and next(reversed(value)) == self.key)


@dataclass(slots=True)
class _Growing:
    """What has been settled of a container, and the stage of its last, open child."""

    done: int = 0
    stage: Stage | None = None
    last: Any = PENDING


@dataclass(slots=True)
class _Record:
    streamer: Streamer
    plan: Record
    state: _Growing = field(default_factory=_Growing)
    base: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Any] = field(default_factory=dict)
    out: dict[str, Any] | None = None

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, dict):
            return value
        before = (self.state.done, self.state.last)
        shown: dict[str, Any] = {}
        size = len(value)
        for at, (name, each) in enumerate(islice(value.items(), self.state.done, None), self.state.done):
            stage = self.state.stage or self._stage(name)
            child_open = is_open and at == size - 1
            lifted = stage.feed(each, child_open)
            shown = self._shown(name, lifted)
            if child_open:
                self.state.stage, self.state.last = stage, lifted
            else:
                self.base |= shown
                self.state.done, self.state.stage, self.state.last, shown = at + 1, None, PENDING, {}
        same = self.state.done == before[0] and self.state.last is before[1]
        if self.out is None or not same:
            self.out = {**self.base, **shown}
        if self.held and not is_open:
            self.out = self.out | {key: each for key, each in self.held.items() if key not in self.out}
        return self.out

    def _stage(self, name: str) -> Stage:
        if name == self.plan.extra:
            return _Pairs(self.streamer, self.plan.values)
        entry = self.plan.fields.get(name)
        if entry is not None:
            return self.streamer.entry(entry)
        return self.streamer.of(self.plan.values) if self.plan.extra is None else _SAME

    def _shown(self, name: str, lifted: Any) -> dict[str, Any]:
        if lifted is PENDING:
            return {}
        if name == self.plan.extra and isinstance(lifted, dict):
            # A listed key among the extra ones counts only if it is not there by itself, which the end will tell.
            named = {self.plan.names.get(key, key) for key in self.plan.fields}
            self.held = {key: each for key, each in lifted.items() if key in named}
            return {key: each for key, each in lifted.items() if key not in self.held}
        return {self.plan.names.get(name, name): lifted}


@dataclass(slots=True)
class _Items:
    streamer: Streamer
    plan: Items
    state: _Growing = field(default_factory=_Growing)
    base: list[Any] = field(default_factory=list)
    out: list[Any] | None = None

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, list):
            return value
        before = (self.state.done, self.state.last)
        state = self.state
        for at in range(state.done, len(value)):
            stage = state.stage or self._stage(at)
            child_open = is_open and at == len(value) - 1
            lifted = stage.feed(value[at], child_open)
            if child_open:
                state.stage, state.last = stage, lifted
            else:
                self.base.append(lifted)
                state.done, state.stage, state.last = at + 1, None, PENDING
        if self.out is None or state.done != before[0] or state.last is not before[1]:
            self.out = [*self.base] if state.last is PENDING else [*self.base, state.last]
        return self.out

    def _stage(self, at: int) -> Stage:
        return self.streamer.of(self.plan.prefix[at] if at < len(self.plan.prefix) else self.plan.rest)


@dataclass(slots=True)
class _Pairs:
    streamer: Streamer
    plan: Plan
    state: _Growing = field(default_factory=_Growing)
    base: dict[str, Any] = field(default_factory=dict)
    out: dict[str, Any] | None = None

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, list):
            return value
        before = (self.state.done, self.state.last)
        state = self.state
        open_key: str | None = None
        for at in range(state.done, len(value)):
            child_open = is_open and at == len(value) - 1
            key, lifted = self._pair(value[at], child_open)
            if child_open:
                open_key, state.last = key, lifted
            else:
                if key is not None and lifted is not PENDING:
                    self.base.setdefault(key, lifted)
                state.done, state.stage, state.last = at + 1, None, PENDING
        if self.out is None or state.done != before[0] or state.last is not before[1]:
            self.out = {**self.base}
            if open_key is not None and state.last is not PENDING:
                self.out.setdefault(open_key, state.last)
        return self.out

    def _pair(self, pair: Any, is_open: bool) -> tuple[str | None, Any]:
        if not isinstance(pair, dict) or not isinstance(pair.get("key"), str) or "value" not in pair:
            return None, PENDING
        if is_open and next(reversed(pair)) == "key":
            return None, PENDING
        stage = self.state.stage
        if stage is None:
            stage = self.state.stage = self.streamer.of(self.plan)
        return pair["key"], stage.feed(pair["value"], is_open and next(reversed(pair)) == "value")


@dataclass(slots=True)
class _Tuple:
    streamer: Streamer
    plan: Tuple
    stages: dict[str, Stage] = field(default_factory=dict)

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, dict):
            return value
        out: list[Any] = []
        last = next(reversed(value), None)
        for name, entry in self.plan.places.items():
            if name not in value:
                return out
            stage = self.stages.get(name) or self.stages.setdefault(name, self.streamer.entry(entry))
            lifted = stage.feed(value[name], is_open and name == last)
            if lifted is PENDING:
                return out
            out.append(lifted)
        rest = value.get(self.plan.rest_key) if self.plan.rest_key is not None else None
        if isinstance(rest, list):
            key = str(self.plan.rest_key)
            stage = self.stages.get(key) or self.stages.setdefault(
                key, _Items(self.streamer, Items((), self.plan.rest))
            )
            out += stage.feed(rest, is_open and key == last)
        return out


@dataclass(slots=True)
class _Choice:
    streamer: Streamer
    plan: ChoicePlan
    name: str | None = None
    stage: Stage | None = None

    def feed(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, dict):
            return value
        if self.name is None:
            options = self.plan.options
            full = (name for name, each in value.items() if name in options and isinstance(each, list) and each)
            self.name = next(full, None)
            if self.name is None:
                return PENDING if is_open else None
            self.stage = self.streamer.of(options[self.name][0])
        items = value.get(self.name)
        if self.stage is None or not isinstance(items, list) or not items:
            return PENDING
        last = next(reversed(value)) == self.name and len(items) == 1
        return self.stage.feed(items[0], is_open and last)


@dataclass(slots=True)
class _Union:
    streamer: Streamer
    table: Table
    stage: Stage | None = None

    def feed(self, value: Any, is_open: bool) -> Any:
        if self.stage is None:
            plan = self._plan(value, is_open)
            if plan is PENDING:
                return PENDING
            self.stage = _SAME if plan is None else self.streamer.of(plan)
        return self.stage.feed(value, is_open)

    def _plan(self, value: Any, is_open: bool) -> Any:
        if not isinstance(value, dict):
            return self.table.by_kind.get(kind_of(value))
        if not is_open:
            return next((plan for tests, plan in self.table.objects if holds(tests, value)), None)
        for tests, plan in self.table.objects:
            if any(_sure(test, value) and not passes(test, value) for test in tests):
                continue
            return plan if all(_sure(test, value) for test in tests) else PENDING
        return PENDING


def _sure(test: Test, value: dict[str, Any]) -> bool:
    """Whether a growing object already answers a test for good: the key is there, and its value is whole."""
    word, key, _ = test
    return key in value and (word in ("has", "lacks", "kind", "other_kind") or next(reversed(value)) != key)


@dataclass(slots=True)
class LiftStream:
    """Lifts one growing value, call by call.

    Give it what a streaming parser shows so far, with unfinished scalars left out; `done=True` with the whole value.
    It gives PENDING while there is nothing to show. Parts that did not change between calls are the same objects.
    """

    _stage: Stage
    _whole: Callable[[Any], Any]
    _shown: Any = PENDING

    def __call__(self, partial: Any, *, done: bool = False) -> Any:
        """The caller's shape of what has arrived."""
        try:
            self._shown = self._stage.feed(partial, not done)
        except RecursionError:
            # Nested deeper than the stack: what was shown stays, and the whole is lifted at the end.
            self._stage = _Whole(self._whole, self._shown)
            self._shown = self._stage.feed(partial, not done)
        return self._shown


@dataclass(slots=True)
class _Whole:
    whole: Callable[[Any], Any]
    shown: Any

    def feed(self, value: Any, is_open: bool) -> Any:
        return self.shown if is_open else self.whole(value)

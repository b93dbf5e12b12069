"""Follow the tool calls of a growing answer against their tools' schemas, and release the parts that are certain."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipform.enforce.judging import SMALL_ANSWER, Requirement, is_valid_as_written, judge_arguments
from slipform.enforce.kept_calls import with_unique_ids
from slipform.enforce.release import ReleaseGate
from slipform.ir import ModelResponse, ToolCall, ToolDelta
from slipform.ir.choice_merge import CallTable, OpenCall
from slipform.ir.response import StopPoint
from slipform.schema.limits import json_text

MOST_FOLLOWED = 1 << 16
"""The largest schema, in bytes, that a growing text is validated against on the event loop."""
_NO_EXTRA: Final[dict[str, Any]] = {}


class LiveCall:
    """One growing call: its gate, and whether it has been released."""

    __slots__ = ("call", "fed", "gate", "id", "index", "is_over", "sent")

    def __init__(self, call: OpenCall) -> None:
        self.call = call
        self.gate: ReleaseGate | None = None
        """None until the name is known, and for tools without a schema."""
        self.fed = 0
        """How many of the call's pieces the gate has received."""
        self.id = ""
        self.index = -1
        """Its number among the released calls; -1 before its release."""
        self.sent: list[str] = []
        """The text released without a gate."""
        self.is_over = False

    def rest(self, final: str) -> tuple[str, str] | None:
        """Return the last piece to release and all released text; None if `final` begins differently."""
        if self.gate is not None:
            return self.gate.rest(final)
        sent = "".join(self.sent)
        if final.startswith(sent):
            return (final[len(sent) :], final)
        return None


class LiveCalls:
    """The calls of one answer; `fault` is the first call that can no longer become valid.

    >>> from slipform.schema import Schema
    >>> calls = LiveCalls(Requirement(None, {"look": Schema.of({"properties": {"at": {"type": "string"}}})}))
    >>> calls.feed(ToolDelta(0, "c1", "look"), None), calls.feed(ToolDelta(0, arguments='{"at": "the s'), None)
    ([], [ToolDelta(index=0, id='c1', name='look', arguments='{"at":"the s', extra={}, done=False)])
    >>> [delta.arguments for delta in (*calls.feed(ToolDelta(0, arguments='ky"}'), None), *calls.end())]
    ['ky"', '}']
    """

    def __init__(self, standard: Requirement, *, holds: bool = False) -> None:
        self.fault: LiveCall | None = None
        self._standard = standard
        self._holds = holds
        """Whether nothing is released before the end."""
        self._table = CallTable()
        self._calls: list[LiveCall] = []
        self._by_index: dict[int, LiveCall] = {}
        self._left: list[LiveCall] = []
        self.any_open = False
        """Whether some call may still grow."""
        self.replaced: dict[str, str] = {}
        """The ids of replacement calls, by the ids under which the replaced calls were released."""

    @property
    def has_released(self) -> bool:
        """Whether some part of a call has been released."""
        return bool(self._left)

    def feed(self, delta: Any, answer_id: Any) -> list[ToolDelta]:
        """Return the pieces of calls that this piece allows to release."""
        call, is_new = self._table.place(delta)
        call.add(delta)
        if is_new:
            self._calls.append(LiveCall(call))
        live = self._calls[call.position]
        if delta.index is not None:
            self._by_index[delta.index] = live
        if call.name is None or self._holds:
            return []
        out: list[ToolDelta] = []
        if not live.id:
            out += self.end(live)
            self._begin(live, answer_id)
        self.any_open = True
        while live.fed < len(call.pieces) and not (live.is_over or self.fault):
            certain = self._grow(live, call.pieces[live.fed])
            live.fed += 1
            if certain:
                out.append(self._delta(live, certain))
        return out

    def begun(self, index: int) -> LiveCall | None:
        """Return the call with this index if it is partly released and still open: `grow` then reads its next piece."""
        live = self._by_index.get(index)
        if live is None or live.index < 0 or live.is_over or self.fault is not None:
            return None
        return live

    def grow(self, live: LiveCall, piece: str) -> str:
        """Return the part of a call's arguments that this piece allows to release."""
        live.call.pieces.append(piece)
        live.fed += 1
        return self._grow(live, piece)

    def end(self, but: LiveCall | None = None) -> list[ToolDelta]:
        """Return the last pieces of the calls that ended, because something else has begun or the answer has ended."""
        out: list[ToolDelta] = []
        if not self.any_open:
            return out
        self.any_open = False
        for live in self._calls:
            if live.is_over or live is but or not live.id:
                continue
            last_piece = self._judged(live)
            if last_piece is None:
                self.any_open = True
            else:
                live.is_over = True
                out.append(self._delta(live, last_piece, done=True))
        return out

    def closed(self, response: ModelResponse) -> ModelResponse:
        """Return the answer as it was when the model was stopped, so that it can be validated.

        The brackets of the faulty call are closed; a call without a name or arguments is left out.
        """
        calls: list[ToolCall] = []
        dropped: list[ToolCall] = []
        changed: dict[int, ToolCall] = {}
        stop: StopPoint | None = None
        for live, call in zip(self._calls, response.tool_calls, strict=False):
            if live is self.fault and live.gate is not None and live.gate.fault is not None:
                changed[id(call)] = dataclasses.replace(call, arguments=live.gate.closed_text())
                stop = live.gate.stop_point(call.id)
                calls.append(changed[id(call)])
            elif live is self.fault or live.call.pieces or live.is_over:
                calls.append(call)
            else:
                dropped.append(call)
        parts = [changed.get(id(part), part) for part in response.parts if not any(part is each for each in dropped)]
        return response.replace(tool_calls=tuple(calls), parts=tuple(parts), stop=stop)

    def resolve(self, calls: Sequence[ToolCall]) -> tuple[dict[str, ToolDelta | None], tuple[ToolCall, ...]] | None:
        """Return the last piece of each call and all calls; None if they do not continue the released part.

        A retried call takes the place of the one that has been released, with its id.
        """
        self.replaced = {}
        waiting = list(calls)
        rest: dict[str, ToolDelta | None] = {}
        final: list[ToolCall] = []
        for live in self._left:
            ending: tuple[str, str] | None = None
            same = [call for call in waiting if call.name == live.call.name]
            for call in sorted(same, key=lambda call: call.id != live.id):
                ending = live.rest(call.arguments)
                if ending is not None:
                    waiting.remove(call)
                    self.replaced.update(_replaced_ids(live, call))
                    final.append(dataclasses.replace(call, id=live.id, arguments=ending[1]))
                    break
            if ending is None:
                return None
            rest[live.id] = None if live.is_over else self._delta(live, ending[0], done=True)
        for call in with_unique_ids(waiting, rest.keys()):
            rest[call.id] = ToolDelta(len(final), call.id, call.name, call.arguments, call.extra, True)
            final.append(call)
        return rest, tuple(final)

    def _begin(self, live: LiveCall, answer_id: Any) -> None:
        live.id = live.call.known_id(answer_id)
        name = str(live.call.name)
        tools = self._standard.tools
        if name in tools:
            live.gate = ReleaseGate(tools[name], self._standard.switches, call=True)
            if len(json_text(tools[name].document)) > MOST_FOLLOWED:
                live.gate.give_up()
        elif tools and not self._standard.loads_tools:
            self.fault = live

    def _grow(self, live: LiveCall, piece: str) -> str:
        gate = live.gate
        if gate is None:
            live.sent.append(piece)
            return piece
        certain = gate.feed(piece)
        if gate.fault is not None:
            requirement = Requirement(
                self._standard.tools[str(live.call.name)], {}, self._standard.switches, self._standard.repair
            )
            if gate.confirm_fault(requirement):
                self.fault = live
        return certain

    def _judged(self, live: LiveCall) -> str | None:
        """Return the last piece of a call that has ended; None while that is uncertain."""
        if live.gate is None:
            return "" if live.call.pieces else "{}"
        text = "".join(live.call.pieces)
        if text and live.gate.is_open:
            return None
        name = str(live.call.name)
        if len(text) >= SMALL_ANSWER and not is_valid_as_written(text, self._standard.tools[name]):
            return None
        verdict = judge_arguments(name, text, self._standard)
        if not verdict.ok:
            if live.gate.complete:
                self.fault = live
            return None
        if any(edit.kind in ("missing_bracket", "truncated") for edit in verdict.repairs):
            return None  # it may continue
        ending = live.rest(verdict.candidate)
        if ending is not None and live.gate is not None:
            live.gate.release(ending[1])
        return None if ending is None else ending[0]

    def _delta(self, live: LiveCall, arguments: str, *, done: bool = False) -> ToolDelta:
        if live.index >= 0:
            return ToolDelta(live.index, None, None, arguments, _NO_EXTRA, done)
        live.index = len(self._left)
        self._left.append(live)
        return ToolDelta(live.index, live.id, live.call.name, arguments, live.call.extra, done)


def _replaced_ids(live: LiveCall, call: ToolCall) -> dict[str, str]:
    """Return the ids of a released call, mapped to those of its replacement: slipform's and its vendor's."""
    pairs = {live.id: call.id}
    for vendor, own in live.call.extra.items():
        other = call.extra.get(vendor)
        if isinstance(own, Mapping) and isinstance(other, Mapping) and own.get("id") and other.get("id"):
            pairs[str(own["id"])] = str(other["id"])
    return {shown_id: vendor_id for shown_id, vendor_id in pairs.items() if shown_id != vendor_id}

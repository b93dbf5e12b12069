"""When a growing answer can no longer become valid: the guards that stop a model early."""

from __future__ import annotations

from typing import Any

from slipform.enforce.coercion import Switches
from slipform.enforce.judging import violation_error
from slipform.enforce.patching import patch
from slipform.errors import EnforcementError, JsonEnforcementError
from slipform.ir import CompletionChunk, ModelResponse
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.request import Guard
from slipform.schema import Schema, Violation
from slipform.text.parser import Parser
from slipform.text.resolve import ResolveCache, resolve
from slipform.text.tracker import Mismatch
from slipform.text.tree import PENDING


class EarlyStop:
    """Follows one answer; `over` says that there is nothing more to wait for, `error` why if it is a bad one.

    >>> watch = EarlyStop(Guard(stop_after_json=True), Schema.of(dict[str, int]))
    >>> watch.feed('Sure: {"a": 1}')
    True
    >>> watch = EarlyStop(Guard(response_format_fail_hard=True), Schema.of(dict[str, int]))
    >>> watch.feed('{"a": "one", "b'), watch.error.code
    (True, 'schema_violation')
    """

    def __init__(self, guard: Guard, schema: Schema[Any] | None, switches: Switches | None = None) -> None:
        self.over = False
        self.error: EnforcementError | None = None
        self._guard = guard
        self._schema = schema
        self._switches = switches
        self._fence = guard.detector()
        self._parser = Parser(lenient=True)
        self._cache = ResolveCache()
        self._length = 0
        self._next_look: int | None = None
        """Once the resolver has seen a fault that can be mended it says no more: at which length to look again."""

    def feed(self, text: str) -> bool:
        """Take the next piece of text; whether to stop here."""
        if self.over or not text:
            return self.over
        self._fence.add_chunk(text)
        found = self._fence.process()
        hard = self._guard.response_format_fail_hard
        if hard and found.failed:
            self._end(JsonEnforcementError("No JSON has begun so far", hint="Ask again, or ask another model."))
        elif hard and found.delta and self._schema is not None:
            self._follow(found.delta, self._schema)
        if found.complete and self._guard.stop_after_json:
            self.over = True
        return self.over

    def follow_no_schema(self) -> None:
        """The text is in a vendor's shape, of which the caller's schema says nothing until it is whole."""
        self._schema = None

    def _end(self, error: EnforcementError) -> None:
        self.over, self.error = True, error

    def _follow(self, text: str, schema: Schema[Any]) -> None:
        self._parser = self._parser.feed(text)
        self._length += len(text)
        if self._parser.error is not None:
            self._end(JsonEnforcementError(f"The JSON is broken: {self._parser.error}", hint="Ask again."))
        elif self._next_look is None:
            if isinstance(resolve(schema.document, self._parser, self._cache), Mismatch):
                self._look(schema)
        elif self._length >= self._next_look:
            self._look(schema)

    def _look(self, schema: Schema[Any]) -> None:
        """Whether something that is finished is wrong and cannot be mended."""
        self._next_look = 2 * self._length  # the text must double before the whole is looked at again
        value, open_path = self._parser.value, self._parser.open_path
        if value is PENDING:
            return
        left = patch(value, schema, self._switches).violations
        certain = [violation for violation in left if _is_finished(violation, open_path)]
        if certain:
            self._end(violation_error(certain))


def _is_finished(violation: Violation, open_path: tuple[str | int, ...] | None) -> bool:
    """Whether nothing that is still to come can change this: it stands outside the part that is being written."""
    steps = violation.steps
    if steps is None:
        return False
    return open_path is None or open_path[: len(steps)] != steps


class GuardedAnswer:
    """Folds the chunks of an answer that is read to be judged whole, and says when to stop."""

    def __init__(self, watch: EarlyStop) -> None:
        self.watch = watch
        self._reducer = Reducer()
        self._reducer.start(Snapshot(emulated=None))

    def push(self, chunk: CompletionChunk) -> bool:
        """Take a chunk; whether to stop here."""
        self._reducer.push(chunk)
        if chunk.lift is not None:
            self.watch.follow_no_schema()
        return self.watch.feed(chunk.text) if chunk.choice == 0 else self.watch.over

    def response(self) -> ModelResponse:
        """The answer as far as it was read."""
        response = self._reducer.finish(check=False)
        return response.replace(stopped=self.watch.error) if self.watch.error else response

"""Stop a model early when its growing answer can no longer become valid, or does not end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from slipform.enforce.coercion import Switches
from slipform.enforce.judging import TRIALS_ON_LOOP, root_types, runaway_error, violation_error
from slipform.enforce.patching import patch
from slipform.errors import EnforcementError, JsonEnforcementError, RunawayError
from slipform.ir import CompletionChunk, ModelResponse
from slipform.ir.reducer import Reducer, Snapshot
from slipform.ir.request import Guard
from slipform.schema import Schema, Violation
from slipform.schema.document import followed, with_plain_references
from slipform.schema.shape import to_text
from slipform.text.parser import Parser
from slipform.text.resolve import ResolveCache, resolve
from slipform.text.runaway import MAX_PERIODIC, Runaway, RunawayDetector
from slipform.text.tracker import Mismatch
from slipform.text.tree import PENDING
from slipform.text.work import bounded_work


class EarlyStop:
    """Follows one growing answer; `over` says that it can be stopped, `error` why if the answer is bad.

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
        self._next_validation_at: int | None = None
        """The length at which to validate again: once the resolver has met a patchable fault it reports no others."""

    def feed(self, text: str) -> bool:
        """Read the next piece of text; return whether to stop."""
        pieces = _UP_TO_A_CLOSING_BRACKET.findall(text) if self._guard.stop_after_json else (text,)
        for piece in pieces:
            if self.over:
                break
            self._feed_piece(piece)
        return self.over

    def _feed_piece(self, text: str) -> None:
        """Read a piece of the text, and stop once the JSON is complete or can no longer become valid."""
        if not text:
            return
        self._fence.add_chunk(text)
        reading = self._fence.process()
        if self._guard.response_format_fail_hard and reading.failed:
            self._end(JsonEnforcementError("No JSON has begun so far", hint="Retry, or use another model."))
        elif reading.delta:
            self._follow(reading.delta)
        if self._guard.stop_after_json and self._is_complete(reading.complete):
            if self.over or self._may_be_answer():
                self.over = True
            else:
                self._restart()

    def _may_be_answer(self) -> bool:
        """Return whether the schema allows JSON of this kind as the answer: `[1]` in prose is not an object."""
        if self._schema is None or self._parser.error is not None:
            return True
        value = self._parser.value
        if not value:
            return self._schema.fits(value)
        types = root_types(self._schema.document)
        return types is None or ("array" if isinstance(value, list) else "object") in types

    def _restart(self) -> None:
        """Search for JSON in the text that follows."""
        self._fence = self._guard.detector()
        self._parser = Parser(lenient=True)
        self._cache = ResolveCache()
        self._next_validation_at = None

    def _is_complete(self, brackets_closed: bool) -> bool:
        """Return whether the lenient parser has closed the JSON; if it gave up, whether the brackets are balanced."""
        if self._parser.error is None:
            return self._parser.complete
        return brackets_closed

    def follow_no_schema(self) -> None:
        """Stop validating: the text is in a vendor's shape, which only a whole answer can be converted from."""
        self._schema = None

    def _end(self, error: EnforcementError) -> None:
        self.over = True
        self.error = error

    def _follow(self, text: str) -> None:
        """Parse more of the JSON, and compare it with the schema so far."""
        if self._parser.error is not None or self._parser.complete:
            return  # faults that only the whole text can resolve are left to the judge
        self._parser = self._parser.feed(text)
        self._length += len(text)
        schema = self._schema
        if schema is None or not self._guard.response_format_fail_hard or self._parser.error is not None:
            return
        if self._next_validation_at is None:
            if isinstance(resolve(schema.document, self._parser, self._cache), Mismatch):
                self._validate_finished_parts(schema)
        elif self._length >= self._next_validation_at:
            self._validate_finished_parts(schema)

    def _validate_finished_parts(self, schema: Schema[Any]) -> None:
        """Stop if a finished part is invalid and cannot be patched."""
        self._next_validation_at = 2 * self._length  # the text must double before the whole is validated again
        value = self._parser.value
        open_path = self._parser.open_path
        if value is PENDING:
            return
        with bounded_work(self._length, TRIALS_ON_LOOP) as budget:
            left = patch(value, schema, self._switches).violations
        if not budget.allows_trials:
            return  # the outcome of patches is unknown
        certain = [violation for violation in left if _is_finished(violation, open_path)]
        if certain:
            self._end(violation_error(certain))


def _is_finished(violation: Violation, open_path: tuple[str | int, ...] | None) -> bool:
    """Return whether later text cannot change this violation: it is outside of the part that is still open."""
    steps = violation.steps
    if steps is None:
        return False
    return open_path is None or open_path[: len(steps)] != steps


_UP_TO_A_CLOSING_BRACKET: Final = re.compile(r"[^\]}]*[\]}]|[^\]}]+")
_ENCODED: Final = (b'"contentEncoding"', b'"format"', b'"maxLength"')
_MOST_NODES: Final = 200


class RunawayStop:
    """Stops an answer that repeats itself endlessly: its text, its reasoning or the arguments of its calls.

    Strings may repeat if the schema says they are encoded, or bounds them below the limit: base64 of zeros does.

    >>> stop = RunawayStop(Schema.of(dict[str, str]))
    >>> stop.feed(CompletionChunk('{"a": "' + "la " * 2_000)), stop.error.code
    (True, 'runaway')
    """

    __slots__ = ("_calls", "_exempt", "_pieces", "_reasoning", "_schema", "_text", "error")

    def __init__(self, schema: Schema[Any] | None) -> None:
        self.error: RunawayError | None = None
        self._text = None if schema is None else RunawayDetector()
        self._reasoning = RunawayDetector(prose=True)
        self._calls: dict[int | None, RunawayDetector] = {}
        self._schema = schema
        self._pieces: list[str] = []
        """The pieces of the text so far."""
        self._exempt = False

    def feed(self, chunk: CompletionChunk) -> bool:
        """Read the next chunk; return whether to stop."""
        if chunk.choice != 0 or self.error is not None:
            return self.error is not None
        if chunk.text:
            self.feed_text(chunk.text)
        if chunk.reasoning:
            self._end(self._reasoning.feed(chunk.reasoning), "thinking")
        for delta in chunk.tool_calls:
            if isinstance(delta.arguments, str) and delta.arguments:
                self.feed_arguments(delta.arguments, delta.index)
        return self.error is not None

    def feed_arguments(self, arguments: str, index: int | None) -> bool:
        """Read the next piece of a call's arguments; return whether to stop."""
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = RunawayDetector()
        self._end(call.feed(arguments), "arguments")
        return self.error is not None

    def feed_text(self, text: str) -> bool:
        """Read the next piece of text; return whether to stop."""
        if self._text is None:
            return False
        self._pieces.append(text)
        runaway = self._text.feed(text)
        if runaway is not None and not (runaway.kind == "string" and self._may_repeat()):
            self._end(runaway, "text")
        return self.error is not None

    def _may_repeat(self) -> bool:
        document = None if self._schema is None else self._schema.document
        if document is not None and not self._exempt and any(word in to_text(document) for word in _ENCODED):
            path = Parser(lenient=True).feed("".join(self._pieces)).open_path or ()
            self._exempt = any(_is_bounded_or_encoded(node) for node in _nodes_at(document, path))
        return self._exempt

    def _end(self, runaway: Runaway | None, where: str) -> None:
        if runaway is not None:
            self.error = runaway_error(runaway, where)


def _is_bounded_or_encoded(node: Mapping[str, Any]) -> bool:
    longest = node.get("maxLength")
    if isinstance(longest, int) and longest < MAX_PERIODIC:
        return True
    return "contentEncoding" in node or node.get("format") in ("byte", "binary")


def _nodes_at(document: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[Mapping[str, Any]]:
    """Yield the subschemas that apply at a path of a value, all alternatives included."""
    document = with_plain_references(document)
    nodes = list(_alternatives(document, document))
    for step in path:
        below: list[Mapping[str, Any]] = []
        for node in nodes:
            if isinstance(step, int):
                inner = node.get("items")
            else:
                properties = node.get("properties")
                named = properties.get(step) if isinstance(properties, Mapping) else None
                inner = named if named is not None else node.get("additionalProperties")
            if isinstance(inner, Mapping):
                below += _alternatives(inner, document)
        nodes = below[:_MOST_NODES]
    yield from nodes


def _alternatives(node: Any, document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    pending = [node]
    for _ in range(_MOST_NODES):
        if not pending:
            return
        shape = followed(pending.pop(), document)
        yield shape
        for word in ("anyOf", "oneOf", "allOf"):
            branches = shape.get(word)
            pending += branches if isinstance(branches, list) else []


class GuardedAnswer:
    """Collects the chunks of an answer that is validated as a whole, and says when to stop."""

    def __init__(self, watch: EarlyStop) -> None:
        self.watch = watch
        self._reducer = Reducer()
        self._reducer.start(Snapshot(emulated=None))

    def push(self, chunk: CompletionChunk) -> bool:
        """Add a chunk; return whether to stop."""
        self._reducer.push(chunk)
        if chunk.lift is not None:
            self.watch.follow_no_schema()
        if chunk.choice == 0:
            return self.watch.feed(chunk.text)
        return self.watch.over

    def response(self) -> ModelResponse:
        """Return the part of the answer read so far."""
        response = self._reducer.finish(check=False)
        if self.watch.error:
            return response.replace(stopped=self.watch.error)
        return response

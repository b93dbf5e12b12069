"""Compute the confidence of a model in each value of its answer, from its token probabilities.

The tokens are those of the raw text. A value is traced back to them: through the patches that moved or changed it,
the edits that repaired the JSON around it, and the text around that JSON. Where that is not exactly possible, there
is a reason instead of a score; never a guess, and never 1.0 for lack of data.

A score is not a probability of being right: see docs/evidence.md.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from slipform.addons.evidence.comparison import is_equal
from slipform.addons.evidence.lifting import FieldPath, lifted_paths, scalars
from slipform.enforce import loads_report
from slipform.enforce.coercion import ABSENT
from slipform.errors import SlipformError
from slipform.ir.evidence import Touch
from slipform.ir.logprobs import Token, tokens_of, utf8
from slipform.schema.document import join_pointer, split_pointer
from slipform.text.loads import load
from slipform.text.repair.tokens import RepairEdit


class Confidence(NamedTuple):
    """The model's confidence in one value."""

    score: float | None
    """The joint probability of the value's tokens; None where it is unknown."""
    least: float | None = None
    """The probability of the least likely token."""
    tokens: int = 0
    shared: bool = False
    """Whether a token also covers neighbouring values or syntax."""
    reason: str | None = None
    """Why the score is missing."""
    touched: tuple[Touch, ...] = ()
    """The changes to the value after the model wrote it."""


class Written(NamedTuple):
    """How an answer was read: the model's raw text, the place of the JSON in it, and the edits."""

    text: str
    start: int
    end: int
    edits: Sequence[RepairEdit] = ()
    """The edits of the repair; their positions are in the raw text."""
    operations: Sequence[Mapping[str, Any]] = ()
    """JSON Patch operations on the value of the repaired text."""
    value: Any = ABSENT
    """The value of the repaired text, where it is known; scores are unknown for a text that yields another value."""
    lift: Callable[[Any], Any] | None = None
    """Converts the value to the caller's shape, before the patches."""


def answer_confidence(
    value: Any, text: str, logprobs: Any, schema: Mapping[str, Any] | None = None
) -> dict[str, Confidence]:
    """Return the confidence of each leaf of `value`, which slipform read from the model's raw `text`.

    `logprobs` are those of the vendor's answer; `schema` is the schema of the value.

    >>> logprobs = {"content": [{"token": "4", "logprob": -0.7}, {"token": "2", "logprob": 0.0}]}
    >>> round(answer_confidence(42, "42", logprobs)[""].score, 2)
    0.5
    """
    pointers = [join_pointer(path) for path, _ in scalars(value)]
    try:
        report = loads_report(text, schema=dict(schema)) if schema is not None else loads_report(text)
    except SlipformError:
        return dict.fromkeys(pointers, Confidence(None, reason="the text does not hold the value"))
    operations = report.patched.operations if report.patched is not None else ()
    scores = leaf_confidence(tokens_of(logprobs), Written(text, report.start, report.end, report.edits, operations))
    if not is_equal(report.value, value) or set(scores) != set(pointers):
        return dict.fromkeys(pointers, Confidence(None, reason="the text does not hold the value"))
    return {pointer: scores[pointer] for pointer in pointers}


def leaf_confidence(tokens: Sequence[Token] | None, written: Written) -> dict[str, Confidence]:
    """Return the confidence of each leaf, by its JSON Pointer after all patches.

    >>> tokens = [Token(b'{"a": ', -0.1), Token(b"4", -0.7), Token(b"2", 0.0), Token(b"}", 0.0)]
    >>> scores = leaf_confidence(tokens, Written('{"a": 42}', 0, 9))
    >>> round(scores["/a"].score, 2), scores["/a"].tokens
    (0.5, 2)
    """
    scores = patched_paths(path_confidence(tokens, written), written.operations)
    return {join_pointer(path): score for path, score in scores.items()}


def path_confidence(tokens: Sequence[Token] | None, written: Written) -> dict[FieldPath, Confidence]:
    """Return the confidence of each leaf by its path, before the patches."""
    repaired, places = _with_places(written)
    leaves = {path: (start, end) for path, start, end in leaf_spans(repaired)}
    offsets = _offsets(tokens, written.text)
    if written.value is not ABSENT and not _reads_as(repaired, written.value):
        leaves = {path: (0, 0) for path, _ in scalars(written.value)}
        offsets = "the repair cannot be followed"
    scores: dict[FieldPath, Confidence] = {}
    byte_at = int if isinstance(offsets, str) else _byte_offsets(written.text)
    for path, (start, end) in leaves.items():
        if isinstance(offsets, str):
            scores[path] = Confidence(None, reason=offsets)
        else:
            scores[path] = _score(tokens or (), offsets, list(places[start:end]), byte_at)
        if is_repaired(places[start:end]):
            scores[path] = scores[path]._replace(touched=("repaired",))
    if written.lift is None:
        return scores
    return lifted_paths(scores, written.value, written.lift, Confidence(None, reason=NOT_FOLLOWED))


def _reads_as(text: str, value: Any) -> bool:
    try:
        return is_equal(load(text, strict=True).value, value)
    except SlipformError:
        return False


def is_repaired(places: Sequence[int]) -> bool:
    """Return whether the characters at these positions of the raw text are not one unchanged run."""
    return bool(places) and list(places) != list(range(places[0], places[0] + len(places)))


NO_TOKENS = "the model's vendor gave no token probabilities"
NOT_JOINED = "the tokens do not join to the model's text"
NOT_FOLLOWED = "the value cannot be followed through the vendor's shape of the schema"


def _offsets(tokens: Sequence[Token] | None, text: str) -> list[int] | str:
    """Return the byte offsets at which each token begins and the last one ends; or the reason for having none."""
    if not tokens:
        return NO_TOKENS
    if b"".join(token.data for token in tokens) != utf8(text):
        return NOT_JOINED
    return [0, *accumulate(len(token.data) for token in tokens)]


def _score(tokens: Sequence[Token], offsets: list[int], places: list[int], byte_at: Callable[[int], int]) -> Confidence:
    """Return the score of a leaf whose characters have these positions in the raw text; -1 for inserted ones."""
    written = sorted(place for place in places if place >= 0)
    if not written:
        return Confidence(None, reason="the repair put it in" if places else "it is empty")
    first = byte_at(written[0])
    last = byte_at(written[-1] + 1)
    low = bisect_right(offsets, first) - 1
    high = bisect_left(offsets, last)
    logprobs = [token.logprob for token in tokens[low:high]]
    if any(math.isnan(logprob) or logprob > 1e-6 for logprob in logprobs):
        return Confidence(None, reason="a token has no probability")
    shared = offsets[low] < first or offsets[high] > last
    return Confidence(math.exp(min(0.0, sum(logprobs))), math.exp(min(0.0, *logprobs)), high - low, shared)


def _byte_offsets(text: str) -> Callable[[int], int]:
    """Return a function that converts an offset in characters to one in bytes."""
    if text.isascii():
        return int
    return array("q", [0, *accumulate(len(utf8(character)) for character in text)]).__getitem__


def _with_places(written: Written) -> tuple[str, array[int]]:
    """Return the repaired JSON, and the position in the raw text of each of its characters.

    Inserted characters have the position -1.
    """
    text = written.text
    at = written.start
    pieces: list[str] = []
    places = array("q")
    for edit in sorted(written.edits, key=lambda each: each.position):
        if edit.position < at or edit.position > written.end:
            continue
        pieces += [text[at : edit.position], edit.after]
        places.extend(range(at, edit.position))
        places.extend(_aligned(edit))
        at = edit.position + len(edit.before)
    pieces.append(text[at : written.end])
    places.extend(range(at, written.end))
    return "".join(pieces), places


def _aligned(edit: RepairEdit) -> Iterator[int]:
    """Yield the positions of an edit's new characters: those of the same characters before, in order."""
    at = 0
    absent = set("\"'{}[]:,\\")
    for character in edit.after:
        offset = -1 if character in absent else edit.before.find(character, at)
        if offset < 0:
            absent.add(character)
            yield -1
        else:
            yield edit.position + offset
            at = offset + 1


_JSON_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def leaf_spans(text: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """Return the path and span of every scalar of a JSON text, without its quotes; the last of a repeated key.

    >>> list(leaf_spans('{"a": ["x", 1]}'))
    [(('a', '0'), 8, 9), (('a', '1'), 12, 13)]
    """
    stack: list[list[Any]] = []  # [key or index, is_object]
    expects_key = False
    for token in _JSON_TOKEN.finditer(text):
        literal = token[0]
        if literal in "{[":
            stack.append(["" if literal == "{" else 0, literal == "{"])
            expects_key = literal == "{"
        elif literal in "}]":
            if stack:
                stack.pop()
            expects_key = False
        elif literal == ",":
            if stack and not stack[-1][1]:
                stack[-1][0] += 1
            expects_key = bool(stack and stack[-1][1])
        elif literal == ":":
            expects_key = False
        elif expects_key and literal[0] == '"':
            stack[-1][0] = _unquoted(literal)
        else:
            quoted = literal[0] == '"'
            path = tuple(str(key) for key, _ in stack)
            yield path, token.start() + quoted, max(token.end() - quoted, token.start() + quoted)


def _unquoted(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return literal[1:-1]


def patched_paths(
    scores_by_path: Mapping[FieldPath, Confidence], operations: Sequence[Mapping[str, Any]], value: Any = ABSENT
) -> dict[FieldPath, Confidence]:
    """Return the scores by the pointers after the patches.

    Scores move and disappear with their values; new values have none.

    `value` is the patched value, where it is known: a part of it that replaces it keeps its scores.
    """
    if not operations:
        return dict(scores_by_path)
    scores = _ScoreTree(scores_by_path)
    for number, operation in enumerate(operations):
        path = split_pointer(str(operation.get("path", "")))
        if operation["op"] == "remove":
            scores.remove(path)
        elif operation["op"] == "move":
            scores.move(split_pointer(str(operation.get("from", ""))), path)
        elif operation["op"] == "replace":
            part = None if number else _part_that_is(value, path, operation.get("value"))
            if part is not None:
                scores.move(part, path)
            else:
                scores.replace(path, operation.get("value"))
        else:
            for leaf, _ in scalars(operation.get("value"), path):
                scores.put(leaf, Confidence(None, reason="slipform put it in", touched=("filled",)))
    return scores.by_path()


class _ScoreTree:
    """Scores by path, nested like the value, so that moving or removing a part costs only as much as that part."""

    def __init__(self, scores_by_path: Mapping[FieldPath, Confidence]) -> None:
        self._top: dict[str, Any] = {}
        for path, score in scores_by_path.items():
            self.put(path, score)

    def put(self, path: FieldPath, part: Any) -> None:
        """Set the value at a path."""
        holder, key = self._holder(path)
        holder[key] = part

    def remove(self, path: FieldPath) -> None:
        """Remove the value at a path; the items of a list after it move up."""
        holder, key = self._holder(path)
        holder.pop(key, None)
        if key.isdecimal():
            gone = int(key)
            after = [each for each in holder if each.isdecimal() and int(each) > gone]
            for each in sorted(after, key=int):
                holder[str(int(each) - 1)] = holder.pop(each)

    def move(self, source: FieldPath, path: FieldPath) -> None:
        """Replace the value at one path by the value at another."""
        holder, key = self._holder(source)
        part = holder.pop(key, None)
        self.put(path, {} if part is None else _map_scores(part, lambda score: touched(score, "patched")))

    def replace(self, path: FieldPath, value: Any) -> None:
        """Replace a value; a leaf that is only written differently keeps its tokens."""
        holder, key = self._holder(path)
        previous = holder.pop(key, None)
        leaves = [leaf for leaf, _ in scalars(value, path)]
        is_same = isinstance(previous, Confidence) and len(leaves) == 1
        for leaf in leaves:
            own = previous if is_same else Confidence(None, reason="slipform rebuilt it")
            self.put(leaf, touched(own, "patched"))

    def by_path(self) -> dict[FieldPath, Confidence]:
        """Return all scores by their paths."""
        scores_by_path: dict[FieldPath, Confidence] = {}
        stack: list[tuple[FieldPath, Any]] = [((), self._top.get("", {}))]
        while stack:
            path, part = stack.pop()
            if isinstance(part, Confidence):
                scores_by_path[path] = part
            else:
                stack.extend(((*path, key), each) for key, each in reversed(part.items()))
        return scores_by_path

    def _holder(self, path: FieldPath) -> tuple[dict[str, Any], str]:
        """Return the part of the tree that contains the value at a path, and its key there."""
        holder = self._top
        key = ""
        for step in path:
            inner = holder.get(key)
            if not isinstance(inner, dict):
                inner = holder[key] = {}
            holder = inner
            key = step
        return holder, key


def _map_scores(part: Any, change: Callable[[Confidence], Confidence]) -> Any:
    """Return a part of a tree with its scores changed."""
    if isinstance(part, Confidence):
        return change(part)
    stack: list[dict[str, Any]] = [part]
    while stack:
        node = stack.pop()
        for key, each in node.items():
            if isinstance(each, Confidence):
                node[key] = change(each)
            else:
                stack.append(each)
    return part


def touched(score: Confidence, how: Touch) -> Confidence:
    """Return the confidence with another change of its value."""
    if how in score.touched:
        return score
    return score._replace(touched=(*score.touched, how))


def _part_that_is(value: Any, path: FieldPath, new: Any) -> FieldPath | None:
    """Return the one part of a container at a path that is the new value: a wrapper was removed."""
    for step in path:
        if isinstance(value, list):
            value = value[int(step)]
        else:
            value = value[step] if isinstance(value, dict) else ABSENT
    if not isinstance(value, dict) or not isinstance(new, dict | list):
        return None
    parts = [(*path, key) for key, each in value.items() if is_equal(each, new)]
    return parts[0] if len(parts) == 1 else None

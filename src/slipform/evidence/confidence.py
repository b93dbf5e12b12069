"""Say how sure a model was of each value of its answer, from the probabilities of the tokens it wrote.

The tokens are those of the raw text. A value is followed back to them: through the patches that moved or changed it,
the edits that repaired the JSON around it, and the text around that JSON. Where that cannot be done exactly there is no
score but a reason; never a guess, and never 1.0 for want of knowing.

A score is not a probability of being right: see docs/evidence.md.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from slipform.enforce import loads_report
from slipform.errors import SlipformError
from slipform.ir.logprobs import Token, tokens_of, utf8
from slipform.schema.document import join_pointer, split_pointer
from slipform.text.repair.tokens import RepairEdit


class Confidence(NamedTuple):
    """How sure the model was of one value."""

    score: float | None
    """The probability of the value's tokens together; None where it is not known."""
    least: float | None = None
    """The probability of the least likely of them."""
    tokens: int = 0
    shared: bool = False
    """Whether a token belongs to the value's neighbours or to syntax, too."""
    reason: str | None = None
    """Why there is no score."""


class Written(NamedTuple):
    """How an answer was read: the model's raw text, where in it the JSON is, and what was done to it."""

    text: str
    start: int
    end: int
    edits: Sequence[RepairEdit] = ()
    """Of the repair; their positions are in the raw text."""
    operations: Sequence[Mapping[str, Any]] = ()
    """JSON Patch operations on the value that the repaired text holds."""


def answer_confidence(
    value: Any, text: str, logprobs: Any, schema: Mapping[str, Any] | None = None
) -> dict[str, Confidence]:
    """How sure the model was of each leaf of `value`, which slipform made of the model's raw `text`.

    `logprobs` are those of the vendor's answer; `schema` is the one that the value was judged by.

    >>> logprobs = {"content": [{"token": "4", "logprob": -0.7}, {"token": "2", "logprob": 0.0}]}
    >>> round(answer_confidence(42, "42", logprobs)[""].score, 2)
    0.5
    """
    pointers = [join_pointer(path) for path in _leaves_of(value, ())]
    try:
        report = loads_report(text, schema=dict(schema)) if schema is not None else loads_report(text)
    except SlipformError:
        return dict.fromkeys(pointers, Confidence(None, reason="the text does not hold the value"))
    operations = report.patched.operations if report.patched is not None else ()
    found = leaf_confidence(tokens_of(logprobs), Written(text, report.start, report.end, report.edits, operations))
    if report.value != value or set(found) != set(pointers):
        return dict.fromkeys(pointers, Confidence(None, reason="the text does not hold the value"))
    return {pointer: found[pointer] for pointer in pointers}


def leaf_confidence(tokens: Sequence[Token] | None, written: Written) -> dict[str, Confidence]:
    """How sure the model was of each leaf, by its JSON Pointer after all patches.

    >>> tokens = [Token(b'{"a": ', -0.1), Token(b"4", -0.7), Token(b"2", 0.0), Token(b"}", 0.0)]
    >>> found = leaf_confidence(tokens, Written('{"a": 42}', 0, 9))
    >>> round(found["/a"].score, 2), found["/a"].tokens
    (0.5, 2)
    """
    repaired, places = _with_places(written)
    leaves = {path: (start, end) for path, start, end in leaf_spans(repaired)}
    offsets = _offsets(tokens, written.text)
    found: dict[tuple[str, ...], Confidence] = {}
    for path, (start, end) in leaves.items():
        if isinstance(offsets, str):
            found[path] = Confidence(None, reason=offsets)
        else:
            found[path] = _score(tokens or (), offsets, [places[at] for at in range(start, end)], written.text)
    return {join_pointer(path): score for path, score in _patched(found, written.operations).items()}


def _offsets(tokens: Sequence[Token] | None, text: str) -> list[int] | str:
    """Where each token begins in the bytes of the text, and where the last ends; or why that cannot be said."""
    if not tokens:
        return "the model's vendor gave no token probabilities"
    if b"".join(token.data for token in tokens) != utf8(text):
        return "the tokens do not join to the model's text"
    return [0, *accumulate(len(token.data) for token in tokens)]


def _score(tokens: Sequence[Token], offsets: list[int], places: list[int], text: str) -> Confidence:
    """The score of a leaf whose characters stand at these places of the raw text; -1 for what was put in."""
    written = sorted(place for place in places if place >= 0)
    if not written:
        return Confidence(None, reason="the repair put it in" if places else "it is empty")
    first, last = _byte_at(text, written[0]), _byte_at(text, written[-1] + 1)
    low, high = bisect_right(offsets, first) - 1, bisect_left(offsets, last)
    logprobs = [token.logprob for token in tokens[low:high]]
    if any(math.isnan(logprob) or logprob > 1e-6 for logprob in logprobs):
        return Confidence(None, reason="a token has no probability")
    shared = offsets[low] < first or offsets[high] > last
    return Confidence(math.exp(min(0.0, sum(logprobs))), math.exp(min(0.0, *logprobs)), high - low, shared)


def _byte_at(text: str, at: int) -> int:
    return at if text.isascii() else len(utf8(text[:at]))


def _with_places(written: Written) -> tuple[str, list[int]]:
    """The repaired JSON, and for each of its characters the place in the raw text; -1 for one that was put in."""
    text, at = written.text, written.start
    pieces: list[str] = []
    places: list[int] = []
    for edit in sorted(written.edits, key=lambda each: each.position):
        if edit.position < at or edit.position > written.end:
            continue
        pieces += [text[at : edit.position], edit.after]
        places += range(at, edit.position)
        places += _aligned(edit)
        at = edit.position + len(edit.before)
    pieces.append(text[at : written.end])
    places += range(at, written.end)
    return "".join(pieces), places


def _aligned(edit: RepairEdit) -> Iterator[int]:
    """The places of an edit's new characters: those that stood there before, in their order."""
    at = 0
    for character in edit.after:
        found = edit.before.find(character, at)
        if found < 0 or character in "\"'{}[]:,\\":
            yield -1
        else:
            yield edit.position + found
            at = found + 1


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


def leaf_spans(text: str) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """The path of every scalar of a JSON text and where it stands, without its quotes; of a repeated key the last.

    >>> list(leaf_spans('{"a": ["x", 1]}'))
    [(('a', '0'), 8, 9), (('a', '1'), 12, 13)]
    """
    stack: list[list[Any]] = []  # [key or index, is_object]
    expects_key = False
    for token in _JSON_TOKEN.finditer(text):
        spelled = token[0]
        if spelled in "{[":
            stack.append(["" if spelled == "{" else 0, spelled == "{"])
            expects_key = spelled == "{"
        elif spelled in "}]":
            if stack:
                stack.pop()
            expects_key = False
        elif spelled == ",":
            if stack and not stack[-1][1]:
                stack[-1][0] += 1
            expects_key = bool(stack and stack[-1][1])
        elif spelled == ":":
            expects_key = False
        elif expects_key and spelled[0] == '"':
            stack[-1][0] = _unquoted(spelled)
        else:
            quoted = spelled[0] == '"'
            path = tuple(str(key) for key, _ in stack)
            yield path, token.start() + quoted, max(token.end() - quoted, token.start() + quoted)


def _unquoted(spelled: str) -> str:
    try:
        return str(json.loads(spelled))
    except ValueError:
        return spelled[1:-1]


def _patched(
    found: dict[tuple[str, ...], Confidence], operations: Sequence[Mapping[str, Any]]
) -> dict[tuple[str, ...], Confidence]:
    """The scores under the pointers that the patches left: moved and removed with their values, None for new ones."""
    for operation in operations:
        path = split_pointer(str(operation.get("path", "")))
        if operation["op"] == "remove":
            rest = {each: score for each, score in found.items() if each[: len(path)] != path}
            found = {_shifted(each, path): score for each, score in rest.items()}
        elif operation["op"] == "move":
            source = split_pointer(str(operation.get("from", "")))
            found = {
                (*path, *each[len(source) :]) if each[: len(source)] == source else each: score
                for each, score in found.items()
            }
        elif operation["op"] == "replace":
            found = _replaced(found, path, operation.get("value"))
        else:
            for leaf in _leaves_of(operation.get("value"), path):
                found[leaf] = Confidence(None, reason="slipform put it in")
    return found


def _shifted(path: tuple[str, ...], removed: tuple[str, ...]) -> tuple[str, ...]:
    """A path after another item of its list was removed before it."""
    depth = len(removed) - 1
    if depth < 0 or len(path) <= depth or path[:depth] != removed[:depth]:
        return path
    here, gone = path[depth], removed[depth]
    if not (here.isdecimal() and gone.isdecimal()) or int(here) < int(gone):
        return path
    return (*path[:depth], str(int(here) - 1), *path[depth + 1 :])


def _replaced(
    found: dict[tuple[str, ...], Confidence], path: tuple[str, ...], value: Any
) -> dict[tuple[str, ...], Confidence]:
    """A value that was written otherwise keeps its tokens, if it was one leaf and still is."""
    under = [each for each in found if each[: len(path)] == path]
    leaves = list(_leaves_of(value, path))
    kept = found.get(path) if under == [path] else None
    rest = {each: score for each, score in found.items() if each[: len(path)] != path}
    for leaf in leaves:
        same = kept is not None and len(leaves) == 1
        rest[leaf] = kept if same and kept is not None else Confidence(None, reason="slipform rebuilt it")
    return rest


def _leaves_of(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves_of(each, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _leaves_of(each, (*path, str(number)))
    else:
        yield path
